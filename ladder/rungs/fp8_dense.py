"""Fully connected layers in FP8, as far as PyTorch goes.

What changes. The products of the mapping network, the style affines and the discriminator's hidden layer take both
operands in E4M3, each divided by a scale that brings its largest element to 448, through `torch._scaled_mm`; sums are
FP32. Gradients are products in full precision. Layers whose sizes are no multiples of 16 stay as they are, and so do
convolutions: PyTorch has none in FP8.

Why it should help. FP8 Tensor Cores run at twice the rate of BF16, and operands take half the bytes.

When it does not. Here, in two ways. These layers have the batch for rows and far below one percent of the FLOPs:
finding the two largest elements, dividing and casting is more work than the product. And four bits of mantissa (3%) in
front of everything else is more than BF16 strays in the whole step: on a CPU it is outside parity's budget for BF16.
It is in no ladder: results/precision records why. `ladder precision` tries and times it on the GPU at hand.
"""

from ladder.receipts import Receipt, judge

title = "FP8 fully connected layers"
change = {"dense": "fp8"}
needs = ("cuda", "fp8")


def receipt(seen: dict) -> Receipt:
    """Fully connected layers call torch._scaled_mm."""
    calls = sum(seen["plain"].get("fp8", {}).values())
    return judge((calls > 0, f"products in FP8 in one run of each phase: {calls}"))
