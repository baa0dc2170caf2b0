"""Resample by sums of shifted slices, which torch.compile fuses with the operations after it.

Change. In the compiled phases the [1, 3, 3, 1] filter is four shifted slices of the image, weighted and summed along
each dimension. It stands between ordinary convolutions, as in `fused_resample`, but in plain PyTorch. The compiler
makes one pass of it, together with the scale, noise, bias and activation behind it. Lazy phases are not compiled, and
there each slice would be a pass over memory. So they keep the filter folded into the weights. Code:
`stylegan_lite/resample.py`.

Why it should help. A filter folded into the weights costs four times the convolution's FLOPs. It also costs passes to
fold them and to bring blocks of pixels into place. A filter of its own costs one pass, and a compiler that fuses does
the neighbours' work in the same pass. It is the best plain PyTorch that a compiled step can be compared with.

When it does not. At low resolutions a convolution takes so little that the fourfold FLOPs do not show. If the
compiler writes the half-filtered image to memory, it is two passes. Uncompiled it is never faster.
"""

from ladder.receipts import Receipt, judge, list_compiled_phases

title = "resampling by shifted slices"
change = {"resample": "shifts"}
needs = ("cuda", "triton")


def receipt(seen: dict) -> Receipt:
    """Check that both main phases are compiled, without a convolution with the taps of [1, 3, 3, 1]."""
    found, ran = seen["compile"], list_compiled_phases(seen)
    filters = found.get("filters", 0)
    return judge(
        (len(ran) == 2, f"phases that ran compiled: {', '.join(ran) or 'none'}"),
        (filters == 0, f"convolutions with the filter in compiled graphs: {filters}"),
    )
