"""Errors, files, text, paths and locks: what every room stands on. Knows nothing of GPUs, torch or results."""
