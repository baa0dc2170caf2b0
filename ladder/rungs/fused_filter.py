"""Resample and activate in one pass over memory.

Change. On the way down the discriminator activates a map, filters it and convolves it with stride 2. On the way up
the generator convolves, filters and activates. Rungs `fused_act` and `fused_resample` have a kernel for each step:
the map between the two is written to memory and read back at once. These are among the largest maps of the network.
Here one kernel of `kernels/upfirdn/filtered_act.py` does both. Down, a pixel is activated as it is loaded for the
filter; up, a filtered value is activated before it is stored.

Backward is one kernel as well. It takes the activation's slope from the sign of a saved tensor. On the way it sums
the gradients of bias, noise strength and demodulation scale. The scale's gradient needs the filtered map, which is
not kept. It is recovered from the output, less noise and bias. R1 differentiates the discriminator twice, by a third
kernel of the kind; path length goes back to the two ops.

Why it should help. Filter and activation are bound by memory, and a pass over [8, 64, 256, 256] in BF16 is 67 MB.
Forward moves two maps instead of four, backward three instead of five.

When it does not. A pixel is activated again for each neighbouring group of outputs that it reaches, so arithmetic
takes the place of traffic. A GPU with little arithmetic for its bandwidth may lose. If instance norm stands between
the generator's filter and its activation, only the discriminator gains.
"""

from ladder.receipts import Receipt, judge, launched, taken

title = "fused filter"
change = {"fused_filter": True}
needs = ("cuda", "triton", "no_clamp")

LEAST = 0.25  # of all activations: the share of a discriminator of a single block; others have more


def receipt(seen: dict) -> Receipt:
    """Check that our kernels are launched, forward and backward, and that fewer activations run by themselves."""
    names = ["act_filter_kernel", "act_filter_grad_kernel"]
    if seen["norm"] == "demod":
        up = "filter_act_modulate" if seen["recipe"].get("fused_modulation") else "filter_act"
        names += [f"{up}_kernel", f"{up}_grad_kernel"]
    calls = {name: count.get("calls", 0) for name, count in seen["kernels"].items()}
    joined = sum(
        calls.get(f"{name}_kernel", 0) for name in ("act_filter", "filter_act", "filter_act_modulate")
    )
    alone = calls.get("bias_act_kernel", 0)
    share = joined / max(joined + alone, 1)
    line = f"activations that share a pass with a filter: {joined} of {joined + alone}"
    instead = taken(seen, "act_filter", "filter_act")
    return judge(*launched(seen, *names), (share >= LEAST or bool(instead), line + instead))
