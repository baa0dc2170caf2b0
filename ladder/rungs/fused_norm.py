"""Fuse the normalization of StyleGAN into single kernels, forward and backward.

Change. With demodulation (StyleGAN2) three operations each become one Triton kernel: modulating the input, computing
the demodulation coefficients rsqrt(sum (w s)^2 + eps), and applying them. The coefficients are computed without writing
the per-sample weights, which at batch 8 are eight copies of every kernel. With `norm: instance` mean, variance, scale,
bias and leaky ReLU become one kernel that reads the activation, instead of five that each read and write it. The
article fuses this one. Code: `kernels/pointwise/modulate.py`, `kernels/weights/demodulate.py`,
`kernels/norm/instance_norm_act.py`.

Why it should help. Normalization does almost no arithmetic; its time is memory traffic and launches. A chain of n
elementwise operations moves the tensor 2n times, a fused one moves it twice. The [8, 64, 256, 256] activations of the
last layers are 67 MB each in BF16. Every pass saved is that much traffic, in each direction, at each layer.

When it does not. If normalization is already folded into the convolution's weights, there is little left to fuse. A
kernel of ours is also one more Python call. So on an eager, CPU-bound step fusing helps only if it launches fewer
kernels than it replaces. R1 and path length differentiate twice; their time is in the convolutions' second
derivatives, which this rung does not touch.
"""

from ladder.receipts import Receipt, gone, judge, launched

title = "fused normalization"
change = {"fused_norm": True}
needs = ("cuda", "triton")


KERNELS = {
    "demod": ("modulate_kernel", "modulate_grad_kernel", "demodulate_kernel", "demodulate_dweight_kernel"),
    "demod, grouped": ("modulate_kernel", "modulate_grad_kernel"),  # the others have a rung of their own
    "instance": ("modulate_kernel", "instance_norm_act_kernel", "instance_norm_act_grad_kernel"),
    "instance, cuda": ("modulate_kernel",),
}


def receipt(seen: dict) -> Receipt:
    """Check that our kernels are launched, forward and backward, and the plain operations they replace are gone."""
    which = seen["norm"]
    if which == "demod" and seen["recipe"]["demodulation"] == "grouped":
        which = "demod, grouped"
    if which == "instance" and seen["recipe"].get("cuda_norm"):
        which = "instance, cuda"
    wanted = list(KERNELS[which])
    if seen["norm"] == "instance" and seen["recipe"].get("rgb") == "triton":
        wanted.remove("modulate_kernel")  # only toRGB is modulated there, and its own kernel does that
    return judge(
        *launched(seen, *wanted),
        gone(seen, "modulation", "modulate"),
        gone(seen, "normalization", "normalize"),
    )
