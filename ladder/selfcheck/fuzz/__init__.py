"""`python -m ladder.selfcheck.fuzz`: damaged files, and whether every reader refuses them in one line."""
