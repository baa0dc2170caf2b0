"""Compute fully connected layers in FP8, as far as PyTorch supports it.

Change. Products of the mapping network, the style affines and the discriminator's hidden layer go through
`torch._scaled_mm`. Both operands are in E4M3, each divided by a scale that brings its largest element to 448. Sums
are FP32, and gradients are products in full precision. Layers whose sizes are not multiples of 16 stay as they are.
So do convolutions: PyTorch has none in FP8. Code: `stylegan_lite/fp8.py`.

Why it should help. FP8 Tensor Cores run at twice the rate of BF16, and operands take half the bytes.

When it does not. It fails here, in two ways. These layers have the batch for rows and far below one percent of the
FLOPs. So the two largest elements, the division and the cast are more work than the product. And four bits of
mantissa (3%) at the start of the network are a larger error than BF16's over the whole step. It fails parity on a CPU
and on an H200, and is slower there than BF16 (docs/precision.md). So it is in no ladder. `ladder precision` tries and
times it on the GPU at hand.
"""

from ladder.receipts import Receipt, judge

title = "FP8 fully connected layers"
change = {"dense": "fp8"}
needs = ("cuda", "fp8")


def receipt(seen: dict) -> Receipt:
    """Check that fully connected layers call torch._scaled_mm."""
    calls = sum(seen["plain"].get("fp8", {}).values())
    return judge((calls > 0, f"products in FP8 in one run of each phase: {calls}"))
