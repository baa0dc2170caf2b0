"""Kernels: linear."""
