"""`python -m ladder.fuzz`: damaged files, and whether every reader refuses them in one line."""
