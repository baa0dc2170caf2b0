"""`ladder upstream`: NVIDIA's own StyleGAN2, from a clone that the user has, timed beside our steps.

It may not know another study or `ladder.cli`.
"""
