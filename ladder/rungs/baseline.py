"""PyTorch's defaults in FP32: what a careful first version of StyleGAN2 does before anyone optimizes it.

What it is. FP32 tensors in NCHW, no autocast, one kernel for each operation, a DataLoader without
workers, blocking copies, Adam as it comes. Each operation is spelled in the plain-PyTorch way that is
fastest in this setting, so that the ladder above it cannot win against a straw man. For modulated
convolution and for resampling there are several spellings that compute the same thing; which one the
baseline uses was decided by timing them all.

Two defaults are worth knowing. cuDNN may use TF32 for FP32 convolutions, matmuls may not: "FP32" here
means what PyTorch means by it, and the settings in force are stored with every result. And `zero_grad`
has set gradients to None since PyTorch 2.0, so this rung asks for `set_to_none=False`, which was the
default before.

Where its time goes. On one H200 at 256x256 and batch 8, a straightforward FP32 step takes 90 to 100 ms,
and much of that is the CPU launching 3,000 to 5,700 kernels one by one while the GPU waits. Keep that in
mind on the way up: a rung that makes kernels faster gains nothing as long as the CPU cannot launch them
any sooner.
"""

title = "FP32 baseline"
change: dict[str, object] = {}
needs: tuple[str, ...] = ()
