"""Train on several GPUs with nn.DataParallel, in one process: the counter-example that old code still has.

Change. Each call of a network goes through `torch.nn.DataParallel`. It copies the weights to every GPU, cuts the batch,
runs a thread for each GPU and collects the results on the first GPU. The gradients come back the same way. Each GPU
gets the samples that a rank would get, so groups of minibatch standard deviation stay whole.

Why it should help. It is one line, and each GPU computes a part of the batch.

When it does not. All weights are copied in every forward pass, and all threads share Python's lock. Each operator is
launched from one process, which sets the pace for all GPUs. The first GPU also holds all results, the optimizer and
the moving average. Graphs, compute copies and a joint batch cannot go with it, so it stands on `bf16`.
"""

from ladder.receipts import Receipt, check_communication, judge

title = "nn.DataParallel"
change = {"reduce": "data_parallel"}
needs = ("ranks", "cuda")


def receipt(seen: dict) -> Receipt:
    """Check that the one process has several GPUs, and that data moves between them."""
    gpus = seen["reduced"]["gpus"]
    return judge((gpus > 1, f"GPUs of the process: {gpus}"), check_communication(seen))
