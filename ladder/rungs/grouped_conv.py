"""Compute 3x3 convolutions in groups of few channels by kernels that are bound by memory.

Change. R3GAN, ResNeXt and their like mix channels in groups of 8, 16 or 32. While a phase runs, another function is
in the place of `torch.nn.functional.conv2d`. It gives such convolutions, with stride and padding 1, to Triton
kernels, and leaves everything else to PyTorch. The kernels serve 16-bit channels_last images, so `channels_last` and
`bf16` (or `fp16`) must be on. They compute the convolution, the gradient of the image and the gradient of the weight;
second derivatives are made of the same three. Code: `kernels/linear/grouped.py`.

Why it should help. With 16 channels a group a convolution takes 72 FLOP for each byte that it reads or writes, a third
of what an H200 computes in that time. So a copy of the image is its measure. cuDNN's kernels pad the channels of a
group to a tile, convert layouts, or copy operands before the weight's gradient. And PyTorch differentiates a grouped
convolution a second time by one small convolution for each group.

When it does not. Maps that fit into the cache, 16x16 and less, are bound by launches. A network that computes in FP32,
or whose images reach these convolutions in NCHW, is not served. Code that imported `conv2d` under a name of its own
keeps PyTorch's.
"""

from ladder.receipts import Receipt, gone, judge, launched

title = "grouped convolutions"
change = {"fused_grouped_conv": True}
needs = ("cuda", "triton", "bf16")


def receipt(seen: dict) -> Receipt:
    """Check that both kernels are launched, in 16 bits, and no such convolution is left to PyTorch."""
    names = ("grouped_conv_kernel", "grouped_correlate_kernel")
    half = [seen["kernels"].get(name, {}).get("dtypes", []) for name in names]
    return judge(
        *launched(seen, *names),
        (all({"bfloat16", "float16"} & {*each} for each in half), f"dtypes: {half}"),
        gone(seen, "grouped 3x3 convolutions", "grouped"),
    )
