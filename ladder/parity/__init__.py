"""Parity of a rung: its losses, gradients and updates against FP64, within a measured error budget."""
