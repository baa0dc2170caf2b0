"""Pass generated and real images through the discriminator together, their statistics kept apart.

Change. D's main phase has two batches to judge. The baseline passes one after the other through D and adds the two
gradients of every weight. Here both go through together, one behind the other. In one place samples of a batch
influence each other: D appends the standard deviation over groups to its last maps. The groups are formed inside each
half, as before, so every image keeps its logit. With that channel the last convolution has one channel more than a
power of two. In every call cuDNN would copy image and weight to tensors with a multiple of 8 channels. Here zero
channels are appended once instead. With `fused_norm` the deviation, its channel and the zeros are one Triton kernel,
and so is the gradient. Code: `stylegan_lite/step/phases.py`, `kernels/norm/minibatch_std.py`.

Why it should help. D's convolutions at 4x4 to 16x16 are too small for a large GPU: 16 images take the time of 8. So
does every small kernel around them, and there are half as many. The gradients of the weights are computed once, not
twice and then added, and Adam's inputs are cast once.

When it does not. A batch that fills the GPU at 4x4 already gains only the launches and the sums of weight gradients.
A model that must be cut in pieces to fit gains nothing in memory. The loss is a sum of both halves, so the baseline
keeps both graphs until its backward pass, too.
"""

from ladder.receipts import Receipt, judge, launched

title = "fakes and reals in one pass"
change = {"joint_batch": True}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """Check that D runs once in its main phase, on twice the images of G's main phase and of R1; of each part of them.

    With `fused_norm` the deviation is a kernel of ours, forward and backward.
    """
    batches = seen["passes"].get("Discriminator", [])
    one = min(batches, default=0)
    said = f"batches D is given: {', '.join(map(str, batches)) or 'none'}"
    ours = ("minibatch_std_kernel", "minibatch_std_grad_kernel") if seen["recipe"]["fused_norm"] else ()
    parts = seen["recipe"].get("micro_batches", 1)
    whole = one > 0 and sorted(batches) == sorted([one, one, 2 * one] * parts)
    return judge((whole, said), *launched(seen, *ours))
