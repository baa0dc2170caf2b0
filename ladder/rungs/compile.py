"""torch.compile of the main phases, in its default mode.

What changes. The losses of G_main and D_main, networks and all, go through torch.compile: Dynamo records each as one
graph, AOTAutograd writes its backward pass, Inductor generates Triton kernels for whatever is neither a convolution
nor a matmul, nor an operator of ours. Shapes are fixed, so each phase is compiled once. R1 and path length
differentiate a gradient, which AOTAutograd cannot: they run the same modules uncompiled. Inside CUDA graphs the
generated kernels are captured like any others. What does not compile runs as before, and the receipt says that
it did.

Why it should help. The compiler fuses what stands between convolutions and between our kernels: casts, sums, gains,
the losses, copies from one layout to another. Each of those reads and writes memory once more, and each small one
takes microseconds whatever it computes. It also decides anew what the backward pass reads and what it recomputes.

When it does not. Where our kernels have taken the large passes, only small ones are left to fuse. An operator
of ours is opaque: nothing is fused into it. What only saved launches is plain PyTorch here (dense layers,
demodulation, the batch's deviation), and so is the sum of gradients where a residual block's input forks. The
first process compiles for minutes, later ones find their kernels in Inductor's cache but are traced again:
seconds to prepare are in the result. A change of anything that Dynamo guards on means compiling again while
training; here nothing changes, and the receipt counts.
"""

from ladder.receipts import Receipt, torch_compile

title = "torch.compile"
change = {"compile": "default"}
needs = ("cuda", "triton")


def receipt(seen: dict) -> Receipt:
    """Each main phase ran as one compiled graph, with no graph break and nothing compiled after warm-up."""
    return torch_compile.receipt(seen, "default")
