"""Compute all spectral norms of the discriminator together: a few launches, not a dozen a layer.

Change. With `spectral_norm: true` a workload divides every weight of D by its largest singular value. Two vectors u
and v estimate it, and take one step of the power iteration after each update. In plain PyTorch each layer in each
pass through D needs a matrix times a vector, a product of vectors and a division. Its gradient needs as many again,
and each step of the iteration two products and two lengths. Here (`kernels/weights/spectral_norm.py`) one launch sums
the rows of all layers' weights, and the next writes the quotients, in BF16 if the convolutions want that. The
gradient is two launches, the iteration two. u and v are constants in the gradient either way, and sums are in a fixed
order.

Why it should help. A layer's products read a few megabytes, which takes 2 microseconds. But a product with a vector
has few rows to share out among multiprocessors, and each launch in a graph costs as much again. In channels_last
memory a weight is no matrix, so plain PyTorch copies it first; here it is read as it lies. The cast to BF16 is one
pass less.

When it does not. StyleGAN2's own discriminator has no spectral norm: in such a workload the rung is n/a. With one or
two large layers there is little to put side by side. If the main phases are compiled, torch.compile has the norms to
itself. With `weights: once` D keeps no compute copies here: its normalized weights change with u and v, and are made
in each pass.
"""

from ladder.receipts import Receipt, gone, judge, launched

title = "fused spectral norm"
change = {"spectral_norm": "triton"}
needs = ("cuda", "triton", "spectral_norm")

KERNELS = (
    "spectral_rows_kernel",
    "spectral_columns_kernel",
    "spectral_scale_kernel",
    "spectral_products_kernel",
    "spectral_grad_kernel",
)
# Launches in one run of each of the four phases, for two groups of layers (BF16 and full precision). G_main passes
# through D without a gradient of its weights, D_main has two passes, D_r1 one.
MOST = 4 + (8 + 8 + 2) + (4 + 4 + 2)


def receipt(seen: dict) -> Receipt:
    """Check that our kernels are launched a few times for all layers, and that plain PyTorch does none of it."""
    counts = [seen["kernels"].get(name, {}).get("calls", 0) for name in KERNELS]
    return judge(
        *launched(seen, *KERNELS),
        (
            sum(counts) <= MOST,
            f"launches in one run of each phase: {sum(counts)}, at most {MOST}",
        ),
        gone(seen, "spectral norm", "spectral"),
    )
