"""NVIDIA's weights: network pickles and state dicts of its StyleGAN2, to checkpoints of `ladder train` and back."""
