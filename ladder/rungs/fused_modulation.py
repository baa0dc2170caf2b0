"""Apply the style of a block's second layer in the pass of its first activation.

Change. A layer of the generator multiplies its input by a style, one number a channel and sample, and then convolves.
In a block the first layer's activation goes to the second layer alone. So `kernels/upfirdn/filter_act_modulate.py`
writes it with that style in it, in the kernel that filters and activates (`fused_filter`). A pass that only
multiplies is gone. The second layer's activation is read by toRGB as it is, and by the next block's first layer with
a style in it. `kernels/pointwise/bias_act_modulate.py` writes both.

Backward the pass over gradients is gone as well, and the remaining kernel reads no more than before. The activation's
sign is that of the modulated one, turned if the style is negative. Style times its gradient is a sum that the
demodulation scale's gradient needs anyway. Path length differentiates the three ops one by one, and makes the
activation once more for it.

Why it should help. Each pass is bound by memory. At 256x256, 64 channels, batch 8 in BF16 the map is 67 MB: two of
them are saved forward, three backward. All blocks together save about twice that.

When it does not. Path length gains nothing: the activation that it makes again, and its gradient, are as many passes
as are saved. At low resolutions, or in small batches, the maps fit in the L2 cache, and only a launch is saved.
Without modulation (`norm: instance`) the rung is n/a.
"""

from ladder.receipts import Receipt, judge, launched, taken

title = "fused modulation"
change = {"fused_modulation": True}
needs = ("cuda", "triton", "demodulation", "no_clamp")


def receipt(seen: dict) -> Receipt:
    """Check that our kernels are launched, one each between two blocks, and that only 4x4 is modulated alone."""
    calls = {name: count.get("calls", 0) for name, count in seen["kernels"].items()}
    joined, alone = calls.get("filter_act_modulate_kernel", 0), calls.get("modulate_kernel", 0)
    both = calls.get("bias_act_modulate_kernel", 0)
    instead = taken(seen, "bias_act_modulate")
    most = len(seen["passes"].get("Generator", []))
    if seen["passes"].get(
        "SynthesisBlock"
    ):  # older commits' checkpointing: the block at 4x4 once more, in each part
        most += seen["recipe"].get("micro_batches", 1)
    if seen["recipe"]["rgb"] == "conv":  # toRGB's, too: one for each block
        most += joined + most
    left = calls.get("filter_act_kernel", 0)
    return judge(
        *launched(seen, "filter_act_modulate_kernel", "filter_act_modulate_grad_kernel"),
        *launched(seen, "bias_act_modulate_kernel", "bias_act_modulate_grad_kernel"),
        (not left, f"activations behind a filter that are written as they are: {left}"),
        (alone <= most, f"modulations by themselves: {alone}, at most {most}"),
        (
            both == joined or bool(instead),
            f"both results of a block's last activation: {both} of {joined}{instead}",
        ),
    )
