"""Compile the main phases with torch.compile, in its default mode.

Change. The losses of G_main and D_main, networks included, go through torch.compile. Dynamo records each as one
graph, and AOTAutograd writes its backward pass. Inductor generates Triton kernels for all but convolutions, matmuls
and our own operators. Shapes are fixed, so each phase is compiled once. R1 and path length differentiate a gradient,
which AOTAutograd cannot, so they run the same modules uncompiled. Inside CUDA graphs the generated kernels are
captured like any others. A phase that does not compile runs as before, and the receipt says so. Code:
`stylegan_lite/step/compiled.py`.

Why it should help. The compiler fuses the work between convolutions and between our kernels: casts, sums, gains,
losses, copies from one layout to another. Each of those reads and writes memory once more, and each small one takes
microseconds whatever it computes. The compiler also decides anew which tensors the backward pass reads and which it
recomputes.

When it does not. If our kernels have taken the large passes, only small ones are left to fuse. An operator of ours is
opaque: nothing is fused into it. So our kernels that only saved launches are plain PyTorch here. These are dense
layers, demodulation, the batch's deviation, and the sum of gradients at a residual block's fork. In a stopped run on
an H200 a step of plain PyTorch became 1.45 times as fast, one with all our kernels 0.87 times (docs/log.md). The
first process compiles for minutes. Later ones find their kernels in Inductor's cache but are traced again; the result
holds the seconds to prepare. If anything changes that Dynamo guards on, it compiles again while training. Here
nothing changes, and the receipt counts it.
"""

from ladder.receipts import Receipt, judge_compilation

title = "torch.compile"
change = {"compile": "default"}
needs = ("cuda", "triton")


def receipt(seen: dict) -> Receipt:
    """Check that each main phase ran as one compiled graph, with no graph break and nothing compiled after warm-up."""
    return judge_compilation(seen, "default")
