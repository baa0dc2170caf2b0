"""NVIDIA's own implementation of StyleGAN2, from a clone that the user has, measured as our rungs are."""
