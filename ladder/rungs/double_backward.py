"""Differentiate PyTorch's own convolutions twice by ordinary convolutions.

Change. A gradient penalty puts a gradient into the loss, so convolutions are differentiated twice. For that second
derivative PyTorch convolves with the image as the kernel. While a phase with `twice=True` runs, this rung puts the
formula of `kernels/double_backward.py` in its place, in PyTorch's dispatcher: a convolution is linear in image and
weight, so its derivatives are convolutions, transposed convolutions and weight gradients. Your code stays as it is.
Convolutions of one, two and three dimensions, transposed and grouped ones are served.

Why it should help. No library has a fast kernel for a convolution whose kernel is an image; for the others cuDNN has
its best. With groups PyTorch runs one such convolution after another. `ladder penalty` times it on common networks.

When it does not. The gain is in phases with a penalty. One that runs on every 16th step gives a step a sixteenth of
it. Penalties on few or small convolutions cost little either way. First derivatives and forward passes stay
PyTorch's.
"""

from ladder.receipts import Receipt, judge, pair_of

title = "double backward by convolutions"
change = {"double_backward": True}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """Check that second derivatives of convolutions were computed by the formula."""
    served = pair_of(seen).get("served", 0)
    second = seen["convolutions"].get("double backward", {"calls": 0, "largest": 0})
    return judge(
        (served > 0, f"second derivatives of convolutions served: {served}"),
        (None, f"convolutions in the double backward: {second['calls']}, largest kernel {second['largest']}"),
    )
