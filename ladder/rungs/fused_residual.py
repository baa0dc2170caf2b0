"""Take the sums of the discriminator's residual blocks in passes that run anyway.

Change. A residual block ends in a sum and begins with a fork. In the forward pass PyTorch adds the two branches with
its own kernel, which reads two activations and writes one. In the backward pass autograd does the same at the fork,
where the gradients of both branches meet. Here the activation's kernel adds the skip's result while it writes its
own. With 16 bits in channels_last memory and `conv_double_backward` it even computes the skip's 1x1 convolution
(`kernels/linear/skip.py`). At the fork the skip begins with the filter that halves the resolution
(`kernels/pointwise/residual.py`). The kernel of the filter's gradient reads the other branch's gradient, and adds it
while it writes. The gradient of the fork is a sum, and the gradient of that sum is a fork. So R1, which
differentiates twice, saves the passes in each direction.

Why it should help. Additions do almost no arithmetic; their time is memory traffic. Each fused one saves writing an
activation and reading it again: 134 MB at the fork of a [8, 64, 256, 256] block in BF16. And there is one rounding
instead of two.

When it does not. The sign of the sum no longer tells on which side of its kink the activation's input was. So the
gradient needs that input, not the result, which the next block keeps anyway: a little more memory. At low resolutions
the sums fit into the cache, and only two launches a block are saved. If the filter is folded into the convolution
(without `fused_resample`), autograd still adds at the fork.
"""

from ladder.receipts import Receipt, gone, judge, launched, taken

title = "fused residual sums"
change = {"fused_residual": True}
needs = ("cuda", "triton", "no_clamp")


def receipt(seen: dict) -> Receipt:
    """Check that our kernel is launched, no block adds in plain PyTorch, and a filter of ours adds at the fork, too."""
    adds = "add" in seen["kernels"].get("upfirdn2d_kernel", {}).get("tensors", [])
    ours = seen["recipe"]["resample"] == "triton"
    said = "summed in the filter's pass" if adds else "summed in a pass of their own"
    instead = taken(seen, "fork_upfirdn2d")
    skips = "bias_act_skip_kernel" in seen["kernels"]
    return judge(
        *launched(seen, "bias_act_skip_kernel" if skips else "bias_act_residual_kernel"),
        gone(seen, "residual sums", "residual"),
        (adds or bool(instead) if ours else None, f"gradients at the fork: {said}{instead}"),
    )
