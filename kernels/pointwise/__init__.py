"""Kernels: pointwise."""
