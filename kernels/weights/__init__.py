"""Ops on parameters instead of activations: demodulation, spectral normalization, Adam.

The reason. These ops depend on weights and styles alone. A layer's tensors are small (a few MB), so each PyTorch
operation on them is shorter than the launch of the next. A network has dozens of layers, and an optimizer visits every
parameter. In plain PyTorch the cost is hundreds of launches a step, most of which leave the GPU nearly idle.

One idea for all of them: do all layers in one launch. Kernels take the layers as tuples of pointers, or as a table of
addresses. A program finds its layer by its number, because the first program of each layer is a constant of the kernel
(`pick` in `kernels/linear/dense_kernels.py`). So small layers fill the GPU side by side.

The ops:

- `demodulate`: d[n, o] = 1 / sqrt(sum of (weight * style)^2), one layer. The per-sample weights are never built: with
  the energy W2 = sum over taps of weight^2, the sum is style^2 @ W2^T.
- `weight_energies` and `demodulate_group`: the same for all layers of a generator. A weight is read once, for its
  energy, however often styles change. `demodulate_group_fork` also adds up the gradients of styles.
- `power_iteration` and `spectral_norm`: W / sigma(W) of all layers of a discriminator.
- `AdamPlan`: Adam for all parameters of a network. It also writes the weights in the dtype and layout that the next
  step's convolutions read.

Backward. Gradients are products with the same small matrices: rows (sums over inputs) and columns (sums over outputs or
samples). They run as two kinds of programs side by side in one launch. Every sum has a fixed order.

Double backward. Path length and R1 differentiate these ops twice. The second derivatives of `demodulate` and
`spectral_norm` are PyTorch operations on small tensors. Path length needs the derivative of `demodulate_group` along
the styles, which has a kernel. The rest is PyTorch operations.

Adam. Its tables of addresses are made once. Inside CUDA graphs gradients lie at other addresses in each capture, so
they have tables of their own. A loss scale is read on the device, so a captured launch follows it.

Tiles. Nothing is tuned: sizes follow from the layers' shapes, so that loads are 16 bytes a thread.

Without Triton. Each op has a `<op>_reference`; Adam has `adam_reference`.

A learner should read `demodulate.py` first: one layer, three short kernels and the formulas. Then `demodulate_group.py`
shows the step from one layer to all, and `adam.py` the tables of addresses.
"""
