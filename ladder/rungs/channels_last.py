"""Store images and weights as NHWC, the order in which Tensor Cores read them.

Change. Model and inputs are converted with `.to(memory_format=torch.channels_last)`. The shape stays [N, C, H, W].
Only the strides change, so that all channels of one pixel lie next to each other. That alone is not enough: a single
operation that answers in NCHW silently turns everything after it back. Each way back is a copy of the whole tensor.
Two such operations are `F.pixel_shuffle` and `F.instance_norm`, so the model writes both differently for
channels_last inputs. Code: `stylegan_lite/resample.py`.

Why it should help. cuDNN's Tensor Core kernels work on NHWC. Given NCHW they convert before and after each
convolution, and that traffic costs far more than one conversion of the model.

When it does not. In FP32 the gain is smaller, and it can be a loss. Without Tensor Cores (TF32 switched off, or a CPU
with its own blocked layout) NHWC kernels are no faster. Layers with 3 channels (toRGB, fromRGB) do not profit. And
while the CPU sets the pace (see `baseline`), faster convolutions shorten nothing. On an H100 and an H200 the GPU's
work shrank by more than a tenth, and the step did not change for sure.
"""

from ladder.receipts import Receipt, judge, pair_of, share

title = "channels_last"
change = {"channels_last": True, "instance_norm": "var_mean"}
needs: tuple[str, ...] = ()

# The least share of the bytes that convolutions read: of StyleGAN2, and of a user's networks, which may make some anew
REACHED = {True: 0.9, False: 0.5}


def receipt(seen: dict) -> Receipt:
    """Check that weights are stored, and images reach the convolutions, as NHWC in the forward and the backward pass.

    The pass that differentiates a gradient swaps batch and channels, so it is shown and not judged.
    """
    stored = share(seen["stored"], "nhwc", of=("nhwc", "nchw", "other"))
    images, weights = (
        {stage: share(amounts, "nhwc", of=("nhwc", "nchw", "other")) for stage, amounts in seen[kind].items()}
        for kind in ("inputs", "weights")
    )
    left, least = seen["relayouts"], REACHED[pair_of(seen)["own"]]
    return judge(
        (stored > 0.9, f"convolution weights stored as NHWC: {stored:.2f} of bytes"),
        *(
            (images.get(s, 0) > least, f"convolution inputs NHWC, {s}: {images.get(s, 0):.2f} of bytes")
            for s in ("forward", "backward")
        ),
        (None, f"convolution inputs NHWC, double backward: {images.get('double backward', 0):.2f} of bytes"),
        (None, f"weights as convolutions get them NHWC, forward: {weights.get('forward', 0):.2f} of bytes"),
        (None, f"layout conversions left: {left['calls']:.1f} a step, {left['mb']:.1f} MB"),
    )
