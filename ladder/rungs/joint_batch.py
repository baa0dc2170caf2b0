"""The discriminator sees generated and real images in one pass, their statistics kept apart.

What changes. D's main phase has two batches to judge. The baseline passes one after the other through D
and adds the two gradients of every weight. Here both are laid one behind the other and go through
together. The one place where samples of a batch see each other, the standard deviation over groups that
D appends to its last maps, forms its groups inside each half, as before: every image keeps its logit.
With that channel the last convolution has one channel more than a power of two, for which cuDNN copies
image and weight to tensors of a multiple of 8 in every call; zero channels are appended once instead.
With `fused_norm` the deviation, its channel and the zeros are one Triton kernel, and so is the gradient.

Why it should help. D's convolutions at 4x4 to 16x16 are too small for a large GPU: 16 images take the
time of 8. So does every small kernel around them, and there are half as many. The gradients of the
weights are computed once, not twice and then added, and Adam's inputs are cast once.

When it does not. A batch that fills the GPU at 4x4 already gains only the launches and the sums of weight
gradients. A model that must be cut in pieces to fit needs the memory of both halves anyway: the loss is a
sum of both, so the baseline keeps both graphs until its backward pass.
"""

from ladder.receipts import Receipt, judge, launched

title = "fakes and reals in one pass"
change = {"joint_batch": True}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """D runs once in its main phase, on twice the images that it is given in G's main phase and in R1.

    With `fused_norm` the deviation is a kernel of ours, forward and backward.
    """
    batches = seen["passes"].get("Discriminator", [])
    one = min(batches, default=0)
    said = f"batches D is given: {', '.join(map(str, batches)) or 'none'}"
    ours = ("minibatch_std_kernel", "minibatch_std_grad_kernel") if seen["recipe"]["fused_norm"] else ()
    return judge((one > 0 and sorted(batches) == [one, one, 2 * one], said), *launched(seen, *ours))
