"""Rounds of fresh worker processes of several checkouts: every program once a round, a rung's programs in a row.

The order of rungs, and of the programs of a rung, is drawn anew for each round from (seed, round). So slow changes, a
temperature say, favour no program and hardly differ between neighbours. On a GPU a few are prepared side by side and
then timed one by one, as in a run (`ladder.engine.lanes`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.base import protocol
from ladder.base.errors import UserError
from ladder.base.locks import device_lock
from ladder.engine import lanes
from ladder.engine import run as measure
from ladder.engine.pool import Pool, Worker, WorkerFailure
from ladder.engine.visit import Visits
from ladder.machine import system
from ladder.machine.threads import share


@dataclass(frozen=True)
class Program:
    """A worker's task: a recipe, by the packages in the folder `code`."""

    name: str
    rung: str
    side: str
    workload: dict[str, Any]
    recipe: dict[str, Any]
    code: Path


@dataclass(frozen=True)
class Visited:
    """The outcome of a visit: "ok" and its record (`record.new_round`), or a failure's status and reason."""

    program: Program
    status: str
    reason: str | None
    round: dict[str, Any] | None = None
    recipe: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    choices: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Prepared:
    """A worker's replies to building and preparing."""

    built: dict[str, Any]
    spent: dict[str, Any] | None


class Interleaved:
    """The maker of the rounds. `torch` False and `timeouts` are for code of tests."""

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
        gpu = system.probe() if device == "cuda" else {}
        self.visits, self.memory = Visits(device, gpu.get("uuid")), float(gpu.get("memory") or 0)
        self._pools: dict[Path, Pool] = {}
        self._stack = contextlib.ExitStack()
        self._accepted: dict[str, list[dict[str, Any]]] = {}

    def order(self, number: int, programs: Sequence[Program]) -> list[Program]:
        """Return the rungs in random order, and inside each rung its programs; a function of (seed, round)."""
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
    ) -> Generator[Visited, None, None]:
        """Visit every program (given rung by rung) that is due when its turn comes.

        Yield each outcome as it is done.
        """
        left = self.order(number, programs)
        self._start_ahead(left)
        self.visits.look_around()
        while left:
            size = self._lanes(left)
            group, left = [program for program in left[:size] if is_due(program)], left[size:]
            if len(group) > 1:
                yield from self._group(group, number, is_due)
            elif group:
                yield self._visit(group[0], number)

    def close(self) -> None:
        self._stack.close()
        self.visits.close()

    def _start_ahead(self, programs: Sequence[Program]) -> None:
        """Start a round's workers together, so that they import before anything is timed."""
        codes = [program.code for program in programs]
        most = max(1, lanes.MOST_AHEAD // max(1, len(set(codes))))
        for code in dict.fromkeys(codes):
            self._pool(code).start_ahead(min(most, codes.count(code)))

    def _pool(self, code: Path) -> Pool:
        if code not in self._pools:
            pool = Pool(code=code, torch=self.torch, timeouts=self.timeouts)
            self._pools[code] = self._stack.enter_context(pool)
        return self._pools[code]

    def _lanes(self, programs: Sequence[Program]) -> int:
        """Return how many of the first programs are prepared side by side: one until a program's memory is known."""
        rounds = itertools.chain.from_iterable(self._accepted.values())
        peaks = [each["peak_reserved_bytes"] for each in rounds if each.get("peak_reserved_bytes")]
        most = lanes.fitting(measure.PREPARED.get(self.device, 1), self.memory, os.cpu_count() or 1, peaks)
        alike = itertools.takewhile(lambda program: not lanes.chooses(program.recipe), programs[:most])
        return max(1, len(list(alike)))

    def _group(
        self, programs: Sequence[Program], number: int, is_due: Callable[[Program], bool]
    ) -> Iterator[Visited]:
        """Prepare programs side by side and time them one by one.

        A program whose failure others may have caused is visited again, alone.
        """
        ready: dict[str, tuple[Worker, Prepared]] = {}
        failed: dict[str, WorkerFailure] = {}
        held = share(len(programs))
        jobs = [functools.partial(self._prepare_beside, each, ready, failed, held) for each in programs]
        try:
            with device_lock(system.device_key(self.device), self.on_wait):
                lanes.each(jobs, len(jobs), self._kill)
                beside = len(ready) - 1
                for program in programs:
                    if program.name in failed or not is_due(program):
                        continue
                    alive = {worker.pid for worker, _ in ready.values()}
                    worker, prepared = ready.pop(program.name)
                    try:
                        visited = self._timed(worker, program, number, prepared, alive, beside)
                    except WorkerFailure as failure:
                        failed[program.name] = failure
                        continue
                    finally:
                        worker.close()
                    yield visited
        finally:
            for worker, _ in ready.values():
                worker.close()
        for program in programs:
            failure = failed.get(program.name)
            if failure and is_due(program):
                unsure = lanes.is_unsure(failure)
                yield self._visit(program, number) if unsure else self._failed(program, failure)

    def _prepare_beside(
        self,
        program: Program,
        ready: dict[str, tuple[Worker, Prepared]],
        failed: dict[str, WorkerFailure],
        held: int | None,
    ) -> None:
        worker = self._pool(program.code).take()
        try:
            ready[program.name] = worker, self._prepared(worker, program, held)
        except WorkerFailure as failure:
            worker.close()
            failed[program.name] = failure
        except BaseException:
            worker.close()
            raise

    def _kill(self) -> None:
        for pool in self._pools.values():
            pool.kill()

    def _visit(self, program: Program, number: int) -> Visited:
        with device_lock(system.device_key(self.device), self.on_wait):
            worker = self._pool(program.code).take()
            try:
                return self._timed(worker, program, number, self._prepared(worker, program))
            except WorkerFailure as failure:
                return self._failed(program, failure)
            finally:
                worker.close()

    def _failed(self, program: Program, failure: WorkerFailure) -> Visited:
        # A commit from before a field or value of a recipe existed refuses it: it cannot do this rung.
        refused = failure.reason.startswith("build: ConfigError")
        return Visited(program, "n/a" if refused else failure.status, failure.reason)

    def _prepared(self, worker: Worker, program: Program, threads: int | None = None) -> Prepared:
        """Build and prepare a program, on so many CPU threads.

        `spent` is None if the commit understands the recipe otherwise.
        """
        held = {"threads": threads} if threads else {}
        asked = {"workload": program.workload, "recipe": program.recipe, "seed": self.seed} | held
        built = worker.call("build", device=self.device, **asked)
        if problem := self.visits.check_gpu(built.get("gpu_uuid")):
            raise UserError(problem)
        recipe = built["recipe"]
        if any(recipe.get(key) != value for key, value in program.recipe.items()):
            return Prepared(built, None)
        spent = worker.call("prepare") | {"start_s": worker.start_s, "build_s": built.get("build_s")}
        return Prepared(built, spent)

    def _timed(
        self,
        worker: Worker,
        program: Program,
        number: int,
        prepared: Prepared,
        alive: set[int] | None = None,
        beside: int = 0,
    ) -> Visited:
        """Time a prepared program and return the outcome.

        `alive` are the workers that hold a context, if others do. `beside` is how many were prepared with it.
        """
        if prepared.spent is None:
            return Visited(program, "n/a", "this commit gives the recipe another meaning")
        accepted = self._accepted.setdefault(program.name, [])
        others = itertools.chain.from_iterable(self._accepted.values())
        made = self.visits.visit(
            worker,
            number,
            prepared.spent | {"beside": beside},
            accepted,
            others,
            alive=alive,
            cycles=self.cycles,
            settle_s=protocol.SETTLE_S if self.settle else 0,
            settle_cycles=protocol.SETTLE_CYCLES if self.settle else 0,
            main=False,
        )
        accepted.append(made)
        choices = worker.call("choices")["choices"]  # after timing
        built = prepared.built
        return Visited(program, "ok", None, made, built["recipe"], built["settings"], choices)
