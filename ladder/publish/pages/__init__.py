"""The generated tables of README.md and docs/: each is a function of the committed results."""
