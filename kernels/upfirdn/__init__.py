"""Kernels: upfirdn."""
