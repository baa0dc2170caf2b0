"""Errors, files, text, paths and locks, on which every room stands. Knows nothing of GPUs, torch or results."""
