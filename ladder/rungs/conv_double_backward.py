"""Make a convolution's second derivative of ordinary convolutions.

Change. R1 and path length regularization put a gradient into the loss, so convolutions are differentiated twice.
PyTorch's second derivative computes the gradient of the weight as one more convolution. Its channels are the batch,
and its kernel is the whole gradient image, 256x256 pixels. Here every convolution is a function of our own instead
(`kernels/linear/conv2d.py`). A convolution is linear in the image and in the weight. So its derivatives of any order
are convolutions, transposed convolutions and weight gradients of sizes that training runs anyway. The function calls
those.

Why it should help. No library has a fast kernel for a convolution with a 256x256 kernel; for the ordinary ones cuDNN
has its best. R1 runs on every 16th step, so a step gets a sixteenth of its gain. Path length, on every 4th, gains in
the same way. The first pass through R1 does not need the gradients of the weights, so they are not computed either.

When it does not. Without regularization that differentiates twice there is nothing to gain: the main phases run the
same convolutions as before. NVIDIA's StyleGAN code did the same (`conv2d_gradfix`) for PyTorch before 1.11 and has
switched it off since. The function is Python: in an eager step that waits for its launches each call costs some
microseconds more.
"""

from ladder.receipts import Receipt, judge

title = "fast double backward"
change = {"conv": "double_backward"}
needs: tuple[str, ...] = ()


KERNEL = 6  # the filter folded into 3x3 weights; a larger kernel is an image


def receipt(seen: dict) -> Receipt:
    """Check that R1 and path length call convolutions, and that none of them has an image for a kernel."""
    stages = seen["convolutions"]
    second = stages.get("double backward", {"calls": 0, "largest": 0})
    lines = ", ".join(f"{stage} {found['calls']}" for stage, found in stages.items())
    return judge(
        (second["calls"] > 0, f"convolutions in the double backward: {second['calls']}"),
        (second["largest"] <= KERNEL, f"largest kernel in the double backward: {second['largest']}"),
        (None, f"calls, one run of each phase: {lines or 'none'}"),
    )
