"""The recording of every Triton kernel of the workloads: one step of the ladder's top, watched during its preparation.

A captured graph replays kernels that its warm-up launched before, and the warm-up is watched. Kernels that this step
lacks are launched by `ladder.studies.kernelbench.cases.small_calls`, so that each has a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ladder.base.errors import describe, raise_if_environment
from ladder.engine import in_process
from ladder.plan import needs
from ladder.studies.claims.hardware.resources import Kernels
from ladder.studies.kernelbench import measure as session

if TYPE_CHECKING:
    from ladder.studies.kernelbench.cases.registry import Case

STEP, OPS, ALSO = "step", "ops", "calls"
SMOKE_OPS = 2


def watch(kernels: Kernels, device: str, smoke: bool) -> list[str]:
    """Fill `kernels` from a step of `article`, from timed ops and from single calls. Return notes of failures.

    The step has all rungs of `full`; the ops are those of `ladder kernels`. Each source adds only the kernels that
    the sources before it lack. A smoke test has a few ops alone: without CUDA no rung launches a kernel, and the
    interpreter is slow.
    """
    notes = []
    known: set[str] = set()
    for what, run in ((OPS, _ops),) if smoke else ((STEP, _step), (OPS, _ops), (ALSO, _calls)):
        try:
            with kernels.listening(what):
                run(device, smoke)
        except Exception as error:
            raise_if_environment(error)
            notes.append(f"kernels of the {what}: {describe(error)}")
        for key in [key for key, row in kernels.seen.items() if row.source == what and row.kernel in known]:
            del kernels.seen[key]
        known |= {row.kernel for row in kernels.seen.values()}
    return notes


def largest_cases(device: str) -> list[Case]:
    """Return the case with the most work of each timed op, in the setting of the ladder's top."""
    from ladder.studies.kernelbench.cases import registry as kernelcases

    workloads = session._workloads(device, (), ("article", "adain-256"))
    found: dict[str, Case] = {}
    for case in kernelcases.cases(workloads, quick=True):
        found.setdefault(case.op, case)  # cases are sorted by descending work
    return list(found.values())


def _ops(device: str, smoke: bool) -> None:
    from ladder.studies.kernelbench.calls import call_of

    for case in largest_cases(device)[: SMOKE_OPS if smoke else None]:
        if case.entry.needs:  # CUDA C++ has its own rows
            continue
        for direction in case.directions[: 1 if smoke else None]:
            call_of(case, direction, case.fused(), device)()


def _step(device: str, smoke: bool) -> None:
    from ladder.machine import system
    from ladder.plan import catalog

    _, fields = catalog.load_workload("article")
    ladder = catalog.load_ladder("full")
    possible = needs.possible(system.capabilities(device), fields)
    recipe = [each.recipe for each in catalog.climb(ladder, possible) if each.recipe is not None][-1]
    with in_process.prepared(fields, recipe, device) as (step, _):
        step.cycle()


def _calls(device: str, smoke: bool) -> None:
    import torch

    from ladder.studies.kernelbench.cases.small_calls import calls, differentiate_twice

    x = torch.randn((8, 64, 256, 256), device=device, dtype=torch.bfloat16).contiguous(
        memory_format=torch.channels_last
    )
    for call in calls(x):
        differentiate_twice(call.function, call.inputs)
    torch.cuda.synchronize()
