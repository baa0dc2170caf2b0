"""Ops that need a statistic of many pixels or samples before they can compute one: instance norm, minibatch deviation.

The reason. An AdaIN layer normalizes each map of each sample by its own mean and variance. Then it applies the style's
scale and bias, and the leaky ReLU. The statistic needs all pixels, so x must be read before the first y is known. A
single pass over memory is impossible unless a whole map stays on the chip. Eager PyTorch moves about four times the
bytes of this op. The minibatch deviation is ten small launches on a tensor that fits into the cache.

`instance_norm_act` has three ways:

- By tiles (`instance_norm_act_kernels.py`): programs take moments of their tiles and a small kernel joins them. A
  second pass over x writes y, so x is read twice. It serves all shapes and both memory formats.
- By planes (`instance_norm_act_planes.py`): for large NCHW maps. A program reads a plane, then reads it again while the
  L2 cache still holds it. So one of the two reads does not cross memory.
- In CUDA C++ (`kernels/cuda`): a block keeps most of a plane in shared memory, which Triton has no way to do.

Statistics. A plain sum of squares loses digits where the mean is far from zero. So each program keeps Welford's running
moments, and rows of moments are joined by Chan's rule. Both happen in float32 (float64 for float64).

Backward. The gradient of a normalization subtracts two means over the map: the mean of dz, and the mean of dz times the
normalized x. They are also the gradients of bias and scale. One pass takes these sums, and a second pass writes dx. The
mean and rstd of the forward pass are saved, the normalized x is computed again.

Double backward. It has the same two passes with five sums instead of two. The formulas stand beside
`instance_norm_grad_grad`. The planes have no double backward of their own: the kernels by tiles compute it.

Sums are partial sums added in a fixed order, as everywhere (`kernels/common/sums.py`), so results are equal in every
run.

Tiles. The kernels by tiles take them from `kernels/choices.py`. For planes, a table in their own file says how many
programs may run: so many that the L2 cache still has room for the plane of each.

Without Triton. `instance_norm_act_reference` and `minibatch_std_reference` are plain PyTorch with the same arguments.

A learner should read `minibatch_std.py` first: it is one kernel with a statistic. Then follow `instance_norm_act.py`
for the launches, `instance_norm_act_kernels.py` for the formulas, and the planes for what a cache can save.
"""
