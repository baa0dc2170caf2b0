"""Resampling by a short separable filter: upsample, pad, filter, downsample, alone and fused with the activation beside
it.

The reason. StyleGAN2 doubles and halves maps with the filter 1 3 3 1. In PyTorch that is a depthwise convolution with
inserted zeros and padding: several passes, and three quarters of the products are with zero. The filter does 8
operations an element, so its time can be the time of reading x once and writing y once. The activation before or after
it is one more pass, which the fused ops save: the tensor between filter and activation is never written.

The ops:

- `upfirdn2d`: the filter alone, with factors 1 or 2 up and down, padding or cropping.
- `act_filter`: filter(leaky_relu(x + bias)), where a discriminator goes down.
- `filter_act`: leaky_relu(filter(x) * scale + noise * strength + bias), where a generator goes up.
- `filter_act_modulate`: `filter_act` times the style of the next layer.

The walk. A program makes a strip of output: some columns, and many rows one after another. It loads a row of x and
filters it along the row. The result stays in registers for as long as rows of y below need it. So x crosses memory
once, but for the rim that neighbouring strips share. Zeros are never inserted: each output pixel sums only the taps
that meet a pixel (polyphase). Loops over rows, columns and taps are unrolled when the kernel is compiled.

For 16-bit channels_last images there is a second walk (`filter_strip.py`). Along a row it is a product with a banded
matrix on tensor cores. So only one thread works on a pixel and its activation.

Backward. The filter is linear. Its gradient is the same map with up and down swapped and the filter mirrored, so one
kernel serves forward, backward and double backward. The fused ops multiply by the activation's slope at the loads or at
the stores. The sums for bias, strength, scale and style are taken on the way. For them `filter_act` needs no filtered
x: y holds it, because leaky ReLU and the affine map can be undone.

Double backward. `act_filter` is its own linearized self, one pass again. `filter_act` and `filter_act_modulate` fall
back on the separate ops, whose gradients can be differentiated.

Tiles. The tables in `upfirdn2d.py` and in `filtered_act_launch.py` say how many rows, columns and channels a program
makes. The program `python -m kernels.tuning.filters` finds the rows for a GPU.

Without Triton. Each op has a `<op>_reference` in plain PyTorch with the same arguments.

A learner should read `upfirdn2d.py` first. Then `filtered_act.py` explains the fused ops. Their walk is in
`filtered_act_kernels.py`, the walk on tensor cores in `filter_strip.py`.
"""
