"""Resample with one Triton kernel between ordinary convolutions, instead of inside wider ones.

Change. StyleGAN2 filters with [1, 3, 3, 1] wherever the resolution changes. The baseline folds the filter into the
weights. One convolution then does both, with four times the FLOPs, because plain PyTorch has no fast way to apply a
small filter to each channel. Here a 3x3 convolution of stride 2, transposed on the way up, applies the weights, and
`kernels.upfirdn2d` the filter. Going up, no zero is inserted and none multiplied: each output pixel sums only the
taps that meet an input pixel. The gradient is the same kernel with up and down swapped and the filter mirrored, and
so is the gradient of the gradient. Code: `kernels/upfirdn/upfirdn2d.py`.

Why it should help. Every convolution that resamples takes a quarter of the FLOPs. The price is memory traffic: the
filter reads and writes the activation once, 67 MB each way for [8, 64, 256, 256] in BF16. R1 and path length
differentiate the convolution twice, so they save it most often.

When it does not. If channels are few (high resolution, small widths), the saved convolution is cheap, and the pass
over memory is not. A strided convolution may run at a lower rate than the plain one it replaces. A GPU with much
arithmetic for its bandwidth may do better with the folded weights.
"""

from ladder.receipts import Receipt, gone, judge, launched

title = "fused resampling"
change = {"resample": "triton"}
needs = ("cuda", "triton")


def receipt(seen: dict) -> Receipt:
    """Check that our kernel is launched, and that plain PyTorch neither filters nor interpolates."""
    return judge(*launched(seen, "upfirdn2d_kernel"), gone(seen, "resampling", "resample"))
