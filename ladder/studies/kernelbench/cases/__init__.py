"""The ops that `ladder kernels` times: how each is called, and with which tensors."""
