"""Is a rung right? Its losses, gradients and updates against FP64, within a measured error budget."""
