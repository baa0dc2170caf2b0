"""Rounds of fresh worker processes of several checkouts: every program once a round, those of a rung side by side.

Which rung comes first, and in which order the programs of a rung are visited, is drawn anew for each round from (seed,
round): what changes slowly, a temperature say, favours none of them, and hardly differs between neighbours.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder import machine, record
from ladder.errors import UserError
from ladder.pool import Pool, Worker, WorkerFailure, device_lock
from ladder.visiting import Visits

MOST_AHEAD = 12  # idle workers that have imported torch, about half a GB each


@dataclass(frozen=True)
class Program:
    """What a worker is to run: a recipe, by the packages in the folder `code`."""

    name: str
    rung: str
    side: str
    workload: dict[str, Any]
    recipe: dict[str, Any]
    code: Path


@dataclass(frozen=True)
class Visited:
    """What came of a visit: "ok" and its record (`ladder.record.new_round`), or the status and reason of a failure."""

    program: Program
    status: str
    reason: str | None
    round: dict[str, Any] | None = None
    recipe: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    choices: list[dict[str, Any]] | None = None


class Interleaved:
    """Makes the rounds. `torch` False and `timeouts` are for code of tests."""

    def __init__(
        self,
        device: str,
        *,
        cycles: int,
        seed: int,
        settle: bool = True,
        torch: bool = True,
        timeouts: dict[str, float] | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self.device, self.cycles, self.seed, self.settle = device, cycles, seed, settle
        self.torch, self.timeouts, self.on_wait = torch, timeouts, on_wait
        self.visits = Visits(device, machine.probe().get("uuid") if device == "cuda" else None)
        self._pools: dict[Path, Pool] = {}
        self._stack = contextlib.ExitStack()
        self._accepted: dict[str, list[dict[str, Any]]] = {}

    def order(self, number: int, programs: Sequence[Program]) -> list[Program]:
        """Random, and a function of (seed, round): rungs, and inside each rung its programs."""
        draw = random.Random(f"{self.seed} {number}")
        blocks = [list(block) for _, block in itertools.groupby(programs, key=lambda program: program.rung)]
        draw.shuffle(blocks)
        for block in blocks:
            draw.shuffle(block)
        return [program for block in blocks for program in block]

    def round(
        self,
        number: int,
        programs: Sequence[Program],
        is_due: Callable[[Program], bool] = lambda program: True,
    ) -> Iterator[Visited]:
        """Visit every program (given rung by rung) that is due when its turn comes; yields as they are done."""
        ordered = self.order(number, programs)
        self._start_ahead(ordered)
        self.visits.look_around()
        for program in ordered:
            if is_due(program):
                yield self._visit(program, number)

    def close(self) -> None:
        self._stack.close()
        self.visits.close()

    def _start_ahead(self, programs: Sequence[Program]) -> None:
        """Imports of a round's workers happen together, before anything is timed."""
        codes = [program.code for program in programs]
        most = max(1, MOST_AHEAD // max(1, len(set(codes))))
        for code in dict.fromkeys(codes):
            self._pool(code).start_ahead(min(most, codes.count(code)))

    def _pool(self, code: Path) -> Pool:
        if code not in self._pools:
            pool = Pool(code=code, torch=self.torch, timeouts=self.timeouts)
            self._pools[code] = self._stack.enter_context(pool)
        return self._pools[code]

    def _visit(self, program: Program, number: int) -> Visited:
        with device_lock(machine.device_key(self.device), self.on_wait):
            worker = self._pool(program.code).take()
            try:
                return self._timed(worker, program, number)
            except WorkerFailure as failure:
                # A commit from before a field or value of a recipe existed refuses it: it cannot do this rung.
                refused = failure.reason.startswith("build: ConfigError")
                return Visited(program, "n/a" if refused else failure.status, failure.reason)
            finally:
                worker.close()

    def _timed(self, worker: Worker, program: Program, number: int) -> Visited:
        built = worker.call(
            "build", workload=program.workload, recipe=program.recipe, device=self.device, seed=self.seed
        )
        if problem := self.visits.check_gpu(built.get("gpu_uuid")):
            raise UserError(problem)
        recipe = built["recipe"]
        if any(recipe.get(key) != value for key, value in program.recipe.items()):
            return Visited(program, "n/a", "this commit gives the recipe another meaning")
        prepared = worker.call("prepare") | {"start_s": worker.start_s, "build_s": built.get("build_s")}
        accepted = self._accepted.setdefault(program.name, [])
        others = itertools.chain.from_iterable(self._accepted.values())
        made = self.visits.visit(
            worker,
            number,
            prepared,
            accepted,
            others,
            cycles=self.cycles,
            settle_s=record.SETTLE_S if self.settle else 0,
            settle_cycles=record.SETTLE_CYCLES if self.settle else 0,
            main=False,
        )
        accepted.append(made)
        choices = worker.call("choices")["choices"]  # after timing
        return Visited(program, "ok", None, made, recipe, built["settings"], choices)
