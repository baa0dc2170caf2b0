"""Compute each fully connected layer in one Triton kernel, and all the generator's style affines in one.

Change. The mapping network, the affine layer before every convolution of G, and D's last two layers are fully
connected. They run in FP32, for a batch of 4 to 16 rows. In PyTorch such a layer scales its weight and bias
(equalized learning rate), multiplies, and adds up a split sum. Then it applies a leaky ReLU and scales again. Its
gradients take as many launches once more. Here one kernel does all of it, and one kernel all the gradients: of the
input, the weight and the bias. The 20 affines of a 256x256 generator depend only on w, so they are one launch
together. Each program finds its layer in the kernel's arguments. The second derivatives of path length are the same
two kernels. The loss behind D's last layer is computed with its gradient, in one launch. G's loss always is, D's if
it sees fakes and reals as one batch. Code: `kernels/linear/dense.py`.

Why it should help. There is almost no arithmetic here. A weight of 512x512 is 1 MB, read in a quarter of a
microsecond. An empty kernel in a CUDA graph takes half of one (results/archive/claims). PyTorch runs 5 operators a
layer of the mapping network forward and 7 backward, 2 and 4 an affine. That is some 200 a main phase of G, of which
about 20 are left. Scaled weights are no longer written and read again: 16 MB for D's first fully connected layer.

When it does not. Large batches have enough arithmetic for a library's matrix product, so D's first layer leaves its
gradients to one: the weight's from 16 samples on, the input's from 64. Our sums are FP32 without
Tensor Cores, as in the baseline; with TF32 allowed the library has that advantage. Eager steps that wait for
the CPU gain by fewer launches, but a launch with 60 pointers costs more than another.
"""

from ladder.receipts import Receipt, gone, judge, launched

title = "fused dense layers"
change = {"dense": "triton"}
needs = ("cuda", "triton")


PLAIN = ("Dense", "Generator", "AddmmBackward0")  # layers in which PyTorch's products would be seen


def receipt(seen: dict) -> Receipt:
    """Check that our kernels are launched, forward and backward, and that no layer multiplies matrices in PyTorch.

    Demodulation's products are not ours: they are shown, not judged.
    """
    others = {k: n for k, n in seen["plain"].get("dense", {}).items() if k not in PLAIN}
    where = ", ".join(f"{place} {count}x" for place, count in sorted(others.items()))
    return judge(
        *launched(seen, "dense_kernel", "dense_grad_kernel"),
        gone(seen, "dense layers", "dense", PLAIN),
        (None, f"other matrix products: {where or 'none'}"),
    )
