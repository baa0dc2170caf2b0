"""Scale and cast convolution weights when they change, not where they are used.

Change. At each use equalized learning rate multiplies a weight by He's constant, and autocast casts the product to
BF16. A transposed convolution wants it turned around. The gradient goes the same way back: cast, multiplied, added up
over the uses. Here each convolution weight has a compute copy, scaled, in BF16 and in the layout of its convolution.
Multi-tensor operations write the copies of all weights once after the optimizer's step, and every use reads them. A
copy is a leaf of autograd: its BF16 gradient becomes the parameter's float32 gradient in a few launches. Parameters,
moments and checkpoints stay in float32. Code: `stylegan_lite/weights.py`.

Why it should help. Even in a CUDA graph an empty kernel takes half a microsecond and a small elementwise one nine
tenths (results/archive/claims). A step of the article's workload launches some hundreds that only do this to weights. D
passes its 22 through twice, G once more without a gradient. Memory traffic shrinks too: a float32 product, its cast,
and two turned copies for each transposed convolution, forward and backward.

When it does not. If launches cost nothing and weights are small beside activations (large batches), there is little
to gain. A weight used twice adds its gradients in BF16 instead of float32. That is one more rounding of 2^-9, as in
cuDNN's own output. Code that writes a parameter behind the step's back must refresh the copies.
"""

from ladder.receipts import Receipt, judge

title = "weights cast once"
change = {"weights": "once"}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """Check that copies exist and equal their weights, and that no single weight is scaled or cast any more."""
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
