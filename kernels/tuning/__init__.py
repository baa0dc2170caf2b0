"""Kernels: tuning."""
