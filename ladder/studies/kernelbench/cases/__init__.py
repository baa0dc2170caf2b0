"""The ops that `ladder kernels` times: how each is called, and with which tensors.

The cases may not know the timing.
"""
