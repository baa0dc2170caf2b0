"""Ops that touch each element of an activation once: bias, noise, activation, modulation, residual sum.

The reason. A StyleGAN2 layer ends in a chain of elementwise operations: demodulation scale, noise, bias, leaky ReLU,
gain. Eager PyTorch launches a kernel for each, and each reads and writes the whole activation. The arithmetic is a few
operations an element, so the time is the time of the memory traffic. An activation of [8, 64, 256, 256] in BF16 is 67
MB. Five passes over it move ten times that, one fused pass moves twice that.

The ops:

- `bias_act`: the whole chain. Operands that are not given are left out when the kernel is compiled.
- `scale_act`: `bias_act` with nothing but a scale.
- `bias_act_modulate`: `bias_act`, and its result times a style as a second result.
- `modulate`: x times a style, one factor for each sample and channel.
- `bias_act_residual` and `fork_upfirdn2d`: the two ends of a residual block, in passes that exist anyway.
- `logistic_loss`: the loss of a main phase with its gradient; here the launches are the cost, not the memory.
- `noise.py`: the checks of StyleGAN's noise, shared with the ops of upfirdn/ and norm/.

Forward. One kernel reads x and the small operands and writes y. It saves the cheapest tensor that tells the
activation's mask. The sign of y tells it, and the next layer keeps y anyway. Only two cases save x: its values are
needed, or y no longer tells the mask (after a residual sum).

Backward. One kernel reads dy and the saved tensor, and writes dx. The gradients of bias, strength, scale and style are
sums over pixels, taken in registers on the way. The partial sums are added up by `kernels/common/sums.py`.

Double backward. R1 and path length differentiate the gradient again. Leaky ReLU is piecewise linear: its second
derivative is zero, and the gradient of the gradient needs only the same mask. So it is one kernel as well, which
computes the forward pass linearized at x. `_BiasActGrad` and `_ModulateGrad` are the Functions that carry it.

Tiles. Both memory formats run the same kernels (`kernels/common/tiles.py`). Forward passes have a program for each
tile. Passes with sums have as many programs as are resident, each of which walks.

Without Triton. Each op has a `<op>_reference` in plain PyTorch with the same arguments. An op itself refuses a CPU
tensor, unless Triton's interpreter runs. Under torch.compile an op is one operator (`kernels/common/operators.py`).

A learner should read `modulate.py` first: it is the shortest op with a forward, a backward and a double backward
kernel. Then `bias_act.py` adds optional operands and the choice of what to save. The last, `residual.py`, shows how a
pass is saved by joining two ops that meet.
"""
