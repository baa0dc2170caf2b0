"""`ladder kernels`: every fused op timed by itself, beside plain PyTorch and torch.compile.

It may not know another study or `ladder.cli`.
"""
