"""Compute the weights of all layers with weight norm together: one launch each way.

Change. Weight norm makes a weight of a direction v and a length g in each pass through a layer. PyTorch does it layer
by layer, each with its launches, and autocast casts each result. Here the weights of a network are made before the loss
of a phase, all at once, in the precision of its convolutions (`kernels/weights/weight_norm.py`). Layers then read what
is there. Their gradients are one launch, too. It serves `torch.nn.utils.parametrizations.weight_norm` and the older
`torch.nn.utils.weight_norm`, with `dim=0`, which is the default. Your code stays as it is.

Why it should help. A vocoder has a hundred layers or more, each with a few thousand numbers. A launch takes longer than
the work. D sees real and generated batches with the same weights, which are made once here.

When it does not. A few large layers have little to put side by side. The gradients of all weights are copied into one
buffer, a copy as long as the weights. Gradients that are differentiated again are composed of PyTorch's operators.
"""

from ladder.receipts import Receipt, gone, judge, launched, pair_of

title = "grouped weight norm"
change = {"fused_weight_norm": True}
needs = ("cuda", "triton")


def receipt(seen: dict) -> Receipt:
    """Check that a phase launches our kernel once for each network at most, and PyTorch makes no such weight."""
    pair = pair_of(seen)
    layers = pair.get("grouped", 0)
    calls = seen["kernels"].get("weight_norm_kernel", {}).get("calls", 0)
    parts = sum(pair.get("parts", {}).values())
    most = len(pair["trained"]) * parts + parts  # networks that no phase trains are one more at most
    return judge(
        *launched(seen, "weight_norm_kernel", "weight_norm_grad_kernel"),
        (layers > 0, f"weights made together: {layers}"),
        (calls <= most, f"launches in one run of each phase: {calls}, at most {most}"),
        gone(seen, "weight norm", "weight norm"),
    )
