"""Kernels: compile."""
