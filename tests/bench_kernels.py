"""Every op of kernels/ as a pytest-benchmark: `make bench-kernels`. The cases are asv's, by the same names.

A round is a CUDA graph of as many calls as last some milliseconds, and the number is one call's share of it. Most calls
are so short that a launch by the CPU would hide them. The L2 cache is cold. `ladder kernels`
compares ops with alternatives; this suite leaves a file that `pytest-benchmark compare` sets beside another one.
Without a GPU it is a smoke test at tiny sizes in Triton's interpreter, and its file says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benches.kernels import CASES, DIRECTIONS
from ladder.core.errors import Missing
from ladder.studies.kernelbench import bench as kernelcalls
from ladder.studies.kernelbench import cases as kernelcases
from ladder.studies.kernelbench.cases import Case
from ladder.studies.kernelbench.timing import COLD, SMOKE, Cpu, Cuda, Rules, Timer

ROUNDS = 20
TINY = {"N": 2, "C": 4, "H": 5, "W": 5, "R": 4, "O": 4, "I": 4, "K": 36}
GPU = torch.cuda.is_available()


class PerCall:
    """A clock that waits for the GPU, and counts in calls: a round of n calls lasts an n-th on it."""

    __name__ = "seconds of a call"
    calls = 1

    def __call__(self) -> float:
        if GPU:
            torch.cuda.synchronize()
        return time.perf_counter() / self.calls


CLOCK = PerCall()


def tiny(case: Case) -> Case:
    """The same op where the interpreter is done in a moment."""
    sizes = dict(TINY)
    if case.op == "minibatch_std":
        sizes["N"] = 8  # two parts of a group
    if case.op.startswith(("fork_", "upfirdn2d down")):
        sizes |= {"H": 4, "W": 4}
    return Case(case.op, tuple((k, sizes[k]) for k, _ in case.sizes), "fp32", case.entry.settings[-1][1])


def pairs() -> list[tuple[str, str]]:
    """(name of a case, direction). Without a GPU the first case of each op stands for all of its shapes, and what is
    CUDA C++ is not there.
    """
    found, seen = [], set()
    for name in CASES:
        case = kernelcases.parse_case(name)
        if GPU or (case.op not in seen and not case.entry.needs):
            found += [(name, d) for d in DIRECTIONS if d in case.directions]
        seen.add(case.op)
    return found


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> Any:
    """The GPU, on whose one stream everything runs, with the kernels of all that was asked for compiled."""
    found = Cuda() if GPU else Cpu()
    if GPU:
        asked = [item.callspec.params["name"] for item in request.session.items if hasattr(item, "callspec")]
        kernelcalls.compile_ours([kernelcases.parse_case(name) for name in dict.fromkeys(asked)], found)
    with found.running():
        yield found


@pytest.mark.timeout(600)
@pytest.mark.benchmark(timer=CLOCK, warmup=False)
@pytest.mark.parametrize(("name", "direction"), pairs(), ids=lambda text: text.replace(" ", "-"))
def test_op(name: str, direction: str, device: Any, benchmark: Any) -> None:
    case = kernelcases.parse_case(name)
    case = case if GPU else tiny(case)
    try:
        replay, calls = prepared(case, direction, device)
    except Missing as reason:  # no CUDA compiler
        pytest.skip(str(reason))
    benchmark.group = direction
    benchmark.extra_info.update({"ran": case.name, "direction": direction, "calls": calls, "l2": COLD})
    CLOCK.calls = calls
    benchmark.pedantic(replay, rounds=ROUNDS if GPU else 2, warmup_rounds=1 if GPU else 0)
    device.forget()


def prepared(case: Case, direction: str, device: Any) -> tuple[Callable[[], Any], int]:
    """Return what a round runs and its number of calls: enough, over enough buffers, as `ladder kernels` finds."""
    timer = Timer(device, Rules(replays=1) if GPU else SMOKE)  # a round is one replay, of 5 ms
    torch.manual_seed(0)
    moved = case.bytes(case.tensors(device.name), "backward" if direction != "forward" else direction)
    function = case.fused()
    sets = timer.sets(moved, COLD)
    made = [kernelcalls.call_of(case, direction, function, device.name) for _ in range(sets)]
    for call in {made[0], made[-1]}:
        call()
    device.synchronize()
    _, count = timer.graph(made)
    count = -(-count // sets) * sets
    kept: dict[int, Any] = {}  # as in `Timer`: results live until their set comes round again

    def body() -> None:
        for i in range(count):
            kept.pop(i % sets, None)
            kept[i % sets] = made[i % sets]()

    graph = device.capture(body)
    kept.clear()

    def replay() -> None:
        graph.replay()  # what it writes to, and reads, lives as long as the round's function: with `made`

    replay.needs = made
    return replay, count
