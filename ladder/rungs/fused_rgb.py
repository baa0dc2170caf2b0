"""Go to and from an image's three channels with kernels of our own instead of convolutions.

Change. Each resolution of the generator turns its activation into an image with a 1x1 convolution to 3 channels
(toRGB). The discriminator begins with one from 3 channels (fromRGB). Here each is one Triton kernel. The kernel of
toRGB scales its weights by the style for each sample, 3 x C numbers; before, a pass of its own scaled the activation.
It adds the bias, and returns the image in full precision. The kernel of fromRGB writes its result once, with bias and
leaky ReLU (`fused_act`). Backward is one pass too: the gradient of the activation is written while that of the
weights is summed, in a fixed order. Code: `kernels/linear/rgb.py`.

Why it should help. With 3 channels on one side there is next to no arithmetic, so the time is that of reading or
writing the other side. Tensor Core kernels are made for many channels. They pad 3 of them to 8 or more, in kernels of
their own, and wait for the arithmetic of the padding. The passes around the convolutions go too: scaling the
activation by the style, casts of weights and image, bias, activation.

When it does not. At 4x4 to 32x32 a launch takes longer than the work, and only fewer launches can help. The weights
stay in full precision and are multiplied outside Tensor Cores, so an image of many more channels than 3 favours a
convolution. A GPU with much bandwidth for its arithmetic gains less.
"""

from ladder.receipts import Receipt, judge, launched, taken

title = "toRGB and fromRGB as kernels"
change = {"rgb": "triton"}
needs = ("cuda", "triton")


def receipt(seen: dict) -> Receipt:
    """Check that our kernels are launched, and that no pass has a convolution to or from 3 channels."""
    left = {stage: found.get("rgb", 0) for stage, found in seen["convolutions"].items()}
    where = ", ".join(f"{stage} {calls}x" for stage, calls in left.items() if calls)
    instead = taken(seen, "to_rgb", "from_rgb")
    return judge(
        *launched(seen, "rgb_narrow_kernel", "rgb_wide_kernel", "rgb_correlate_kernel"),
        (not where or bool(instead), f"1x1 convolutions of 3 channels: {where or 'none left'}{instead}"),
    )
