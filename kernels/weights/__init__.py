"""Kernels: weights."""
