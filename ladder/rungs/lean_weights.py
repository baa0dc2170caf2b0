"""Convolution weights are scaled and cast when they change, not where they are used.

What changes. Equalized learning rate multiplies a weight by He's constant at each use, autocast casts the
product to BF16, a transposed convolution wants it turned around, and the gradient goes the same way back:
cast, multiplied, added up over the uses. Here each convolution weight has a compute copy, scaled, in BF16 and
in the layout of its convolution. It is written once after the optimizer's step, for all weights together by
multi-tensor operations, and read by every use. It is a leaf of autograd; what arrives at it in BF16 becomes the
parameter's float32 gradient in a few launches. Parameters, moments and checkpoints stay in float32.

Why it should help. Even in a CUDA graph an empty kernel takes half a microsecond and a small elementwise one
nine tenths (results/claims), and a step of the article's workload launches some hundreds that do nothing else
to weights: D passes its 22 through twice, G once more without a gradient. What is moved shrinks too: a
float32 product, its cast, and two turned copies for each transposed convolution, forward and backward.

When it does not. Where launches cost nothing and weights are small beside activations (large batches), there is
little to gain. A weight used twice adds its gradients in BF16, where they were added in float32: one more rounding
of 2^-9, as cuDNN's own output has it. Whoever writes a parameter behind the step's back must refresh the copies.
"""

from ladder.receipts import Receipt, judge

title = "weights cast once"
change = {"weights": "once"}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """There are copies, they are what the weights have become, and no single weight is scaled or cast any more."""
    copies = seen["copies"]
    kept = ", ".join(f"{count} in {dtype}" for dtype, count in copies["kept"].items())
    lean = {"bf16": "bfloat16", "fp16": "float16"}.get(seen["recipe"]["precision"])
    return judge(
        (bool(copies["kept"]), f"compute copies: {kept or 'none'}"),
        (
            lean is None or list(copies["kept"]) == [lean],
            f"their dtypes: {', '.join(copies['kept']) or 'none'}",
        ),
        (not copies["stale"], f"copies that are not what their weight has become: {copies['stale']}"),
        (
            not copies["reworked"],
            f"weights scaled, cast or turned for one use, in one run of each phase: {copies['reworked']}x",
        ),
    )
