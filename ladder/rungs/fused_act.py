"""Apply noise, bias, leaky ReLU and gain in one Triton kernel, forward and backward.

Change. After every convolution StyleGAN adds per-pixel noise and a bias, applies a leaky ReLU of slope 0.2 and
multiplies by sqrt(2). In plain PyTorch these are separate kernels, each of which reads and writes the whole
activation. One Triton kernel does them in registers. With demodulation it also applies the demodulation scale, which
moves here from the `fused_norm` rung. Backward is a second kernel of the same kind. Code:
`kernels/pointwise/bias_act.py`.

Why it should help. The same arithmetic needs a fraction of the memory traffic and of the launches. After the
convolutions themselves these are the widest operations of the step.

When it does not. The gain is bounded by the share of elementwise kernels in the GPU's time. If convolutions dominate
(wide layers, large channel counts), that share is small. Bias gradients are reductions over N, H and W, which fusing
moves into the same pass but does not remove. The compiler (`torch.compile`) finds much of the same fusion by itself.
"""

from ladder.receipts import Receipt, gone, judge, launched

title = "fused activation"
change = {"fused_act": True}
needs = ("cuda", "triton")


def receipt(seen: dict) -> Receipt:
    """Check that our kernel is launched, forward and backward, and that no layer that uses it has its own leaky ReLU.

    Instance norm has its activation in the kernel of `fused_norm`: without that rung it stays in plain PyTorch.
    """
    layers = ["Conv", "ModulatedConv"] + ["NormalizedConv"] * seen["recipe"]["fused_norm"]
    return judge(
        *launched(seen, "bias_act_kernel", "bias_act_grad_kernel"),
        gone(seen, "leaky ReLU", "act", layers),
    )
