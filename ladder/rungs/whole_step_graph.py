"""Replay a whole step, all its phases, with a single launch.

Change. Each kind of step has one graph, instead of one for each phase. The kinds are G_main with D_main and the moving
average, the same with path length between them, and the same with R1 behind it. Phases keep their order, because it is
part of the algorithm, so the lazy ones are inside a step's graph and not beside it. All graphs share one memory pool.
Two kernels for each phase still draw the random numbers before the replay. So parity can load random numbers of its own
into the very graph that is timed. Code: `stylegan_lite/step/preparing.py`.

Why it should help. Between two replays the GPU runs dry for some microseconds. The CPU does less for each step: one
replay instead of 2.3. And work done once a step (a weight's cast, say) can be shared by the phases of a step.

When it does not. A replay costs tens of microseconds of CPU time, which it spends while the GPU computes. If the step
takes ten milliseconds, there is next to nothing to gain: an H100 and an H200 showed no difference. Capture takes
longer, as the main phases are captured once for each kind of step.
"""

from ladder.receipts import Receipt, judge, pair_of
from ladder.rungs.cuda_graphs import kinds_captured

title = "whole-step graph"
change = {"whole_step_graph": True}
needs = ("cuda", "cuda_graphs")


def receipt(seen: dict) -> Receipt:
    """Check that every graph holds a whole step, that every kind of step has one, and that a step is one replay."""
    found = seen["graphs"]
    whole = [name for name in found["captured"] if {*pair_of(seen)["always"]} <= set(name.split("+"))]
    replays = found["replays"]
    return judge(
        (
            bool(whole) and len(whole) == len(found["captured"]),
            f"graphs that hold a whole step: {len(whole)} of {len(found['captured'])}",
        ),
        kinds_captured(found),
        (
            None if replays is None else abs(replays - 1) < 0.01,
            "graph replays a step: " + ("not profiled" if replays is None else f"{replays:.2f}"),
        ),
    )
