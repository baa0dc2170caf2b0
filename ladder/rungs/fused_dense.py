"""Fully connected layers in one Triton kernel each, and all of the generator's style affines in one together.

What changes. The mapping network, the affine layer in front of every convolution of G, and D's last two
layers are fully connected, in FP32, for a batch of 4 to 16 rows. Written in PyTorch, such a layer with
equalized learning rate scales its weight, scales its bias, multiplies, adds up the parts of a split sum,
applies a leaky ReLU and scales again; its gradients take as many launches once more. Here one kernel does
all of it, and one all the gradients: of the input, of the weight and of the bias. The 20 affines of a
256x256 generator depend on nothing but w, so they are one launch together, each program finding its layer
in the kernel's arguments. The second derivatives of path length are the same two kernels.

Why it should help. Almost nothing here is arithmetic: a weight of 512x512 is 1 MB, read in a quarter of a
microsecond, where a kernel in a CUDA graph takes half of one to do nothing at all (results/claims). PyTorch
runs 5 operators a layer of the mapping network forward and 7 backward, 2 and 4 an affine: some 200 a main
phase of G, of which about 20 are left. Scaled weights are no longer written and read again: 16 MB for D's
first fully connected layer.

When it does not. Large batches have enough arithmetic for a library's matrix product. The sums are FP32
and use no tensor core, as the baseline's; with TF32 allowed the library would have that advantage. Eager
steps that wait for the CPU gain by fewer launches; a launch with 60 pointers costs more than another.
"""

from ladder.receipts import Receipt, gone, judge, launched

title = "fused dense layers"
change = {"dense": "triton"}
needs = ("cuda", "triton")


PLAIN = ("Dense", "Generator", "AddmmBackward0")  # where PyTorch's products of these layers would be seen


def receipt(seen: dict) -> Receipt:
    """Our kernels are launched, forward and backward, and no layer multiplies matrices in PyTorch.

    What demodulation multiplies is not ours: it is shown, not judged.
    """
    others = {k: n for k, n in seen["plain"].get("dense", {}).items() if k not in PLAIN}
    where = ", ".join(f"{place} {count}x" for place, count in sorted(others.items()))
    return judge(
        *launched(seen, "dense_kernel", "dense_grad_kernel"),
        gone(seen, "dense layers", "dense", PLAIN),
        (None, f"other matrix products: {where or 'none'}"),
    )
