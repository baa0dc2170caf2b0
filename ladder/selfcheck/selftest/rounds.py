"""Rounds of fresh workers for the self-test on a device: every program once a round, in random order.

As a run does, but for one thing: the workers of a round import and build their steps (which starts CUDA) together,
before the first of them is prepared, since there are many and their steps are short. What tunes, captures, warms up or
is timed has the device for itself.
"""

import contextlib
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.base import protocol
from ladder.engine.pool import Worker, WorkerFailure
from ladder.engine.visit import Visits
from ladder.machine import system

MOST_AHEAD = 16  # workers with a built step
RAM_GB, GPU_GB = 3, 4  # what one may hold


@dataclass(frozen=True)
class Program:
    """What a worker is to run; `code` None is the checkout that this file belongs to."""

    name: str
    group: str
    workload: dict[str, Any]
    recipe: dict[str, Any]
    code: Path | None = None


@dataclass(frozen=True)
class Visit:
    """What came of one: a record of it (`ladder.results.record.new_round`), or why there is none."""

    program: Program
    built: dict[str, Any]  # "recipe" and "settings" in force, as the worker says
    record: dict[str, Any] | None
    reason: str | None


def most_ahead(facts: dict[str, Any]) -> int:
    """How many workers with a built step this machine holds at once."""
    fitting = [MOST_AHEAD, facts["cores"], int(facts["ram_gb"] // RAM_GB)]
    if facts["gpu_memory_gb"]:
        fitting.append(int(facts["gpu_memory_gb"] // GPU_GB))
    return max(1, min(fitting))


class Visitor:
    """Makes the rounds. `nvml` stands in for pynvml in tests."""

    def __init__(
        self, facts: dict[str, Any], *, cycles: int, seed: int, torch: bool = True, nvml: Any = None
    ) -> None:
        self.device, self.cycles, self.seed, self.torch = facts["device"], cycles, seed, torch
        self.ahead = most_ahead(facts)
        uuid = system.probe().get("uuid") if self.device == "cuda" else None
        self.visits = Visits(self.device, uuid, nvml=nvml)
        self.accepted: dict[str, list[dict[str, Any]]] = {}  # visits of each group

    def order(self, number: int, programs: Sequence[Program]) -> list[Program]:
        """Random, and a function of (seed, round)."""
        shuffled = list(programs)
        random.Random(f"{self.seed} {number}").shuffle(shuffled)
        return shuffled

    def round(self, number: int, programs: Sequence[Program]) -> Iterator[Visit]:
        """Visit every program; yields as they are done."""
        shuffled = self.order(number, programs)
        self.visits.look_around()
        for first in range(0, len(shuffled), self.ahead):
            yield from self._batch(number, shuffled[first : first + self.ahead])

    def close(self) -> None:
        self.visits.close()

    def _batch(self, number: int, programs: list[Program]) -> Iterator[Visit]:
        with contextlib.ExitStack() as stack:
            workers = [Worker(code=program.code, torch=self.torch) for program in programs]
            for worker in workers:
                stack.callback(worker.kill)
            with ThreadPoolExecutor(len(workers)) as threads:
                built = list(threads.map(self._build, workers, programs))
            alive = {w.pid for w, seen in zip(workers, built, strict=True) if isinstance(seen, dict)}
            for worker, program, seen in zip(workers, programs, built, strict=True):
                if isinstance(seen, WorkerFailure):
                    yield Visit(program, {}, None, seen.reason)
                    continue
                made, reason = None, None
                try:
                    made = self._visit(worker, program, number, alive)
                except WorkerFailure as failure:
                    reason = failure.reason
                alive.discard(worker.pid)
                worker.close()
                yield Visit(program, seen, made, reason)

    def _build(self, worker: Worker, program: Program) -> dict[str, Any] | WorkerFailure:
        try:
            seen = worker.call(
                "build",
                workload=program.workload,
                recipe=program.recipe,
                device=self.device,
                seed=self.seed,
            )
        except WorkerFailure as failure:
            return failure
        return {"recipe": seen["recipe"], "settings": seen["settings"]}

    def _visit(self, worker: Worker, program: Program, number: int, alive: set[int]) -> dict[str, Any]:
        """Prepare and time, as a run visits a rung. All copies of a group share what is usual of its state."""
        accepted = self.accepted.setdefault(program.group, [])
        made = self.visits.visit(
            worker,
            number,
            worker.call("prepare"),
            accepted,
            (),
            alive=alive,
            cycles=self.cycles,
            settle_s=protocol.SETTLE_S,
            settle_cycles=protocol.SETTLE_CYCLES,
            main=False,
        )
        accepted.append(made)
        return made
