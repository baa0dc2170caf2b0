"""Compute the spectral norms of all layers together: a few launches for each pass through a network.

Change. Whenever a layer with `torch.nn.utils.parametrizations.spectral_norm` reads its weight in training, PyTorch
takes a step of the power iteration and divides the weight by its largest singular value: a dozen launches. Here the
first layer that reads its weight in a pass takes the step for all layers of the network, and writes all quotients, in
the precision of the convolutions (`kernels/weights/spectral_norm.py`). The others find theirs. The buffers u and v move
as they did, and the gradients are two launches for all layers. Your code stays as it is.

Why it should help. A product of a small matrix and a vector takes less time than its launch, and layers come one after
another. In channels_last PyTorch copies a weight before it is a matrix; here it is read as it lies.

When it does not. With one or two large layers there is little to put side by side. The older
`torch.nn.utils.spectral_norm` iterates in another order and is left alone, and so are layers with several iterations or
another `dim`.
"""

from ladder.receipts import Receipt, gone, judge, launched, pair_of

title = "grouped spectral norm"
change = {"fused_spectral_norm": True}
needs = ("cuda", "triton")

KERNELS = ("spectral_rows_kernel", "spectral_columns_kernel", "spectral_scale_kernel", "spectral_grad_kernel")


def receipt(seen: dict) -> Receipt:
    """Check that our kernels are launched for all layers, and PyTorch iterates none."""
    layers = pair_of(seen).get("spectral", 0)
    return judge(
        *launched(seen, *KERNELS),
        (layers > 0, f"weights made together: {layers}"),
        gone(seen, "spectral norm", "spectral", ("_SpectralNorm",)),
    )
