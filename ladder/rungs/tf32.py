"""Compute every FP32 matmul in TF32: Tensor Cores for the layers that are not convolutions.

Change. `torch.backends.cuda.matmul.fp32_precision` becomes "tf32". The same is said of convolutions, for which it is
PyTorch's default already. TF32 keeps FP32's eight bits of exponent and cuts the mantissa of the inputs to ten bits;
sums stay FP32. Code: `stylegan_lite/step/settings.py`.

Why it should help. Tensor Cores multiply TF32 several times faster than the ordinary cores multiply FP32. For a model
whose time is in large matmuls this is the cheapest switch there is, and it needs no autocast.

When it does not. In StyleGAN2 the matmuls are the mapping network, the style affines and two layers of the
discriminator. All have the batch for rows: together far below one percent of the FLOPs. The convolutions, which are
the rest, run in TF32 by default, so the baseline has that gain in it. This rung is an alternative to `bf16` for users
who must not leave FP32 storage. Under `bf16` it changes the few layers that autocast leaves in full precision, among
them the demodulation.
"""

from ladder.receipts import Receipt, judge

title = "TF32"
change = {"fp32_precision": "tf32"}
needs = ("cuda",)


def receipt(seen: dict) -> Receipt:
    """Check both flags where phases run. PyTorch does not show what cuBLAS and cuDNN make of them."""
    settings = seen["settings"]
    matmul, conv = settings["matmul_fp32_precision"], settings["conv_fp32_precision"]
    return judge(
        (matmul == "tf32", f"FP32 matmuls in: {matmul}"), (conv == "tf32", f"FP32 convolutions in: {conv}")
    )
