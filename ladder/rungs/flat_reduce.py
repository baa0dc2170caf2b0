"""Train on several GPUs: add up the gradients of all ranks in one flat all-reduce before each update.

Change. A process for each GPU takes its share of the batch, and the batch of the workload stays the total. After the
backward pass the gradients that the optimizer reads are copied into one buffer in float32. The second stream has
joined by then. One all-reduce adds up the buffers of all ranks, and the mean is copied back. The loss travels in the
same buffer. The mean path length and the average w are those of all ranks, so the training is that of one process.
Code: `stylegan_lite/step/ranks.py`.

Why it should help. Each GPU computes a part of the batch. Autograd is not asked: gradients may lie in compute copies
of weights, be written by a second stream, or be read by a fused update. One large all-reduce comes near the bandwidth
of the link, and a launch for each tensor is saved.

When it does not. Nothing runs beside the all-reduce, so all of it is exposed: two bytes of traffic for each byte of
gradients and rank, in every phase. A small batch a GPU has little work to pay for that. The copies into and out of the
buffer read and write every gradient twice more.
"""

from ladder.receipts import Receipt, check_communication, check_reduction, judge

title = "flat all-reduce"
change = {"reduce": "flat"}
needs = ("ranks",)


def receipt(seen: dict) -> Receipt:
    """Check that every phase reduces its gradients among several ranks, and tell what of it is exposed."""
    return judge(*check_reduction(seen), check_communication(seen))
