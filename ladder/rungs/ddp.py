"""Train on several GPUs with PyTorch's DistributedDataParallel: buckets of gradients travel during backward.

Change. Each phase's loss is computed inside `DistributedDataParallel`. Its hooks fire when autograd has accumulated a
gradient. A bucket of 25 MB whose gradients are there is all-reduced on a stream of its own, while the backward pass
goes on. Each phase has a wrapper. Parameters without a gradient (a bias of toRGB in path length) are left out of it.
So nothing searches for unused parameters in every step. Code: `stylegan_lite/step/ranks.py`.

Why it should help. It is PyTorch's default, and most of the communication hides behind the backward pass.

When it does not. Hooks see only the gradients that autograd accumulates in `.grad`. The recipe refuses what hands
gradients over elsewhere: compute copies of weights (`lean_weights`), the update that reads them (`fused_update`), and
the second stream (`parallel_streams`). A captured graph has no hooks, so every step is launched by the CPU. On four
H200s a late CPU held up all the others, and scaling was 81% where `captured_reduce` on the top had 96%
(docs/distributed.md). The last bucket is ready when backward ends, and is exposed. NCCL's kernels take
multiprocessors from the backward pass.
"""

from ladder.receipts import Receipt, check_communication, check_reduction, judge

title = "DistributedDataParallel"
change = {"reduce": "ddp"}
needs = ("ranks",)

BURSTS = 2  # a phase; a reduction after backward has one, and a mean before it may have another


def receipt(seen: dict) -> Receipt:
    """Check that every phase reduces its gradients among several ranks, and begins to do so during backward."""
    return judge(*check_reduction(seen), check_communication(seen, BURSTS))
