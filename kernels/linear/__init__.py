"""Linear maps that libraries serve badly at a GAN's shapes: small batches, three channels, double backward.

The reason. cuBLAS and cuDNN are made for large products. For three kinds of maps in StyleGAN2 a library call costs more
than its bytes. Fully connected layers have 8 to 32 rows, and launches are most of their time. Tiles of 1x1 convolutions
to and from 3 channels are mostly padding. For the second derivative of a convolution cuDNN has no good algorithm.

The ops:

- `dense`: act(x @ (weight * gain)^T + bias * gain) * gain, one launch instead of six.
- `dense_group`: several layers that read the same tensor, one launch together (all style affines of a generator).
- `to_rgb` and `from_rgb`: 1x1 convolutions with at most 4 channels on one side, one pass over the wide side.
- `conv2d` and `conv_transpose2d`: cuDNN's kernels, arranged so that every derivative is again a convolution. Those of
  3x3 pixels in groups of few channels are ours (`grouped.py`).
- `bias_act_skip`: a residual block's end, whose kernel computes the skip's 1x1 convolution while it adds it.
- `weight_gradients.py`: weight gradients on a second CUDA stream, beside the chain of activations.

One idea for all derivatives. A bilinear map y = f(x, w) has the gradients dx = f1(g, w) and dw = f2(g, x). Each of
these is bilinear, and its gradients are among the same three maps. So three operations that call each other can be
differentiated to any order, and no special code for the double backward exists:

- dense: y = x @ w^T, dx = g @ w, dw = g^T @ x
- conv2d: y = conv(x, w), dx = adjoint(g, w), dw = correlate(g, x)
- rgb: y = narrow(x, w), dx = wide(g, w), dw = correlate(g, x)

Activations. A leaky ReLU with a positive slope and gain keeps the sign, so the sign of y is its mask. The mask is
constant in the second derivative.

Groups. Kernels for many layers take tuples of pointers. A program compares its number with the first number of each
layer's programs. Those are constants of the kernel. The whole trick is `pick` in `dense_kernels.py`, and weights/ uses
it too.

Precision. Products and sums of our kernels are float32 (float64 for float64), never TF32. Gradients that `dense` leaves
to PyTorch's products are TF32 only if its matmuls may be. `conv2d` computes in the dtype of its input.

Tiles. Nothing is tuned for `dense`: `dense_launches.py` derives enough programs to fill the GPU. The maps of
`rgb_kernels.py` have a small table of their own.

Without Triton. Each op has a `<op>_reference`. `conv2d` runs on any device; without Triton, cuDNN has all of it.

A learner should read `conv2d.py` first: it shows the three maps without any kernel. Then follow `dense.py` and
`dense_kernels.py`, and `rgb.py` for a kernel that is bound by memory.
"""
