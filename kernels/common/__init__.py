"""Kernels: common."""
