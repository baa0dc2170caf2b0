"""Measurements beside the ladder's run, one room each, with the same file names in each."""
