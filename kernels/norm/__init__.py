"""Kernels: norm."""
