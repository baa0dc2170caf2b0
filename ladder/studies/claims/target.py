"""The process that Nsight Compute watches: `python -m ladder.studies.claims.target [EXPERIMENT...]`.

It calls each contender once. Everything is built and warmed up before the profiler is switched on, for one call
behind a marker at a time. The last experiment is every op of `kernels/`, at the largest shapes of the workloads.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ladder.studies.claims import experiments
from ladder.studies.kernelbench.timing import Call

if TYPE_CHECKING:
    from ladder.studies.kernelbench.cases.registry import Case

DEVICE, OPS = "cuda", "ops"
Ready = Callable[[], Call]


def everything(names: list[str]) -> Iterator[tuple[str, Ready]]:
    """Yield ("EXPERIMENT: CONTENDER", maker of its call)."""
    setting = experiments.setting(DEVICE, False)
    for experiment in experiments.all_experiments():
        if not names or experiment.name in names:
            for name, make in experiment.contenders.items():
                yield f"{experiment.name}: {name}", functools.partial(make, setting)
    if not names or OPS in names:
        yield from ops()


def _op(case: Case, direction: str) -> Call:
    from ladder.studies.kernelbench.calls import call_of

    return call_of(case, direction, case.fused(), DEVICE)


def ops() -> Iterator[tuple[str, Ready]]:
    """Yield every timed op at its largest shape, in the setting of the ladder's top, in each direction."""
    from ladder.studies.claims.stepping import largest_cases

    for case in largest_cases(DEVICE):
        for direction in case.directions:
            yield f"{OPS}: {case.op}, {direction}", functools.partial(_op, case, direction)


def main(names: list[str]) -> int:
    import torch

    from ladder.studies.claims.small_kernels import claim_marker_kernel

    x = torch.zeros(1, device=DEVICE)
    claim_marker_kernel[(1,)](x, num_warps=1)
    profiler = torch.cuda.cudart()
    for number, (name, ready) in enumerate(everything(names), start=1):
        try:
            torch.manual_seed(0)
            call = ready()
            call()
        except Exception:
            continue  # the timing process reports the reason
        torch.cuda.synchronize()
        print(f"claim {number}: {name}", flush=True)
        profiler.cudaProfilerStart()
        claim_marker_kernel[(number,)](x, num_warps=1)
        call()
        torch.cuda.synchronize()
        profiler.cudaProfilerStop()
        del call
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
