"""Capture the all-reduce in the whole-step graph: a step on several GPUs is one launch for each rank.

Change. With CUDA graphs the flat all-reduce is recorded with its phase, between the backward pass and the update. A
replay runs NCCL's kernels at their place in the step. The means over ranks (path length, average w) are recorded, too.
Random numbers are drawn for the total batch before the replay, and each rank takes its samples.

Why it should help. Eager ranks wait for their CPUs, and for the slowest CPU of all in every all-reduce. A replay needs
no CPU, so ranks stay together. All rungs of `full` from `lean_weights` to `fused_modulation` work with it.

When it does not. A step that the GPU bounds anyway gains nothing. NCCL's own timeout does not see an all-reduce in a
replayed graph: a rank that is gone leaves the others waiting. The watchdog of the worker pool ends them.
"""

from ladder.receipts import Receipt, check_communication, check_reduction, judge
from ladder.rungs.cuda_graphs import kinds_captured

title = "captured all-reduce"
change = {"reduce": "flat", "cuda_graphs": True, "adam": "capturable", "whole_step_graph": True}
needs = ("ranks", "cuda", "cuda_graphs")
rests_on = ("flat_reduce",)


def receipt(seen: dict) -> Receipt:
    """Check that every kind of step is a graph, that a step is one replay, and that its kernels hold NCCL's."""
    replays = seen["graphs"]["replays"]
    return judge(
        *check_reduction(seen),
        kinds_captured(seen["graphs"]),
        (
            None if replays is None else abs(replays - 1) < 0.01,
            "graph replays a step: " + ("not profiled" if replays is None else f"{replays:.2f}"),
        ),
        check_communication(seen),
    )
