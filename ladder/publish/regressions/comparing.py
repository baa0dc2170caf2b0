"""`ladder bench-compare`: two commits measured on one device, interleaved, and judged rung by rung.

Everything that times, and the recipes of the rungs, come from the working tree; from each commit come `kernels/` and
`stylegan_lite/` alone. The result file is written after every visit, so nothing finished is ever lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ladder.base import locks
from ladder.base import text as texts
from ladder.base.records import ABSENT, build, plain
from ladder.base.stopping import stop_on_sigterm
from ladder.engine.outcomes import Program, Visited
from ladder.engine.rounds import Interleaved
from ladder.machine import environment
from ladder.publish.regressions import judging, report
from ladder.publish.regressions.judging import BASE, HEAD, LEAST_ROUNDS, MOST_ROUNDS, TWIN
from ladder.publish.regressions.schema import (
    ENGINE,
    KIND,
    PARTS,
    Commit,
    Compared,
    Harness,
    Protocol,
    new_rung,
)
from ladder.publish.regressions.schema import Program as Measured
from ladder.results import code_digest, derive, record
from ladder.results import store as results
from ladder.results.file import KernelProfile, Machine, Round
from ladder.results.run import RunGpu
from ladder.results.types import Plain
from ladder.stats import estimates

MINUTES, CYCLES = 10.0, 2
Tell = Callable[[str], None]
Settle = Callable[[Compared], Compared]  # marks the accepted slowdowns


@dataclass(frozen=True)
class Rung:
    """One question: which of two commits runs this recipe faster? `skipped` says why it cannot be put here."""

    name: str
    title: str
    workload: Plain
    recipe: Plain | None
    skipped: str | None = None


@dataclass(frozen=True)
class Side:
    """A commit, what the user called it, and the folder that its packages are in."""

    commit: str
    name: str
    code: Path


@dataclass(frozen=True)
class Options:
    """How to measure. `rounds` None: 3, and up to 12 as far as `budget_s` allows and intervals are wide."""

    rounds: int | None = None
    cycles: int = CYCLES
    seed: int = 0
    budget_s: float = 60 * MINUTES
    torch: bool = True
    timeouts: dict[str, float] | None = None


def new_result(
    machine: Machine,
    workload: Plain,
    rungs: Sequence[Rung],
    base: Side,
    head: Side,
    options: Options,
) -> Compared:
    """Return a comparison that has not begun; `workload` is the publishable form."""
    made = record.header(KIND, plain(machine), workload)
    engine = made.pop(code_digest.KEY)
    ran = {key: made.pop(key) for key in ("commit", "dirty")}
    sides = [_commit(base), _commit(head)]
    fixed = options.rounds is not None
    return Compared(
        **made | {"machine": machine},
        base=sides[0],
        head=sides[1],
        harness=Harness(**ran, measured_code={part: engine[part] for part in ENGINE}),
        protocol=Protocol(
            fixed=fixed,
            budget_s=None if fixed else options.budget_s,
            rounds=0,
            cycles=options.cycles,
            cycle_steps=record.CYCLE_STEPS,
            seed=options.seed,
            settle_s=ABSENT,
            settle_cycles=ABSENT,
        ),
        rungs=[new_rung(each.name, each.title, each.skipped) for each in rungs],
        programs=[
            Measured(
                rung=each.name, side=side, status="n/a", reason=None, recipe=each.recipe, settings=None,
                choices=None, rounds=[], profile=ABSENT,
            )
            for each in rungs if not each.skipped for side in judging.SIDES
        ],
        gpu=None,
        notes=_notes(*sides) + environment.said(environment.recorded()),
    )  # fmt: skip


def _commit(side: Side) -> Commit:
    digests = code_digest.digests(code=side.code)
    code = {part: digests[part] for part in PARTS}
    return Commit(commit=side.commit, name=texts.display(side.name), measured_code=code)


def _notes(base: Commit, head: Commit) -> list[str]:
    if base.commit == head.commit:
        return ["BASE and HEAD are one commit: whatever differs is noise"]
    if base.measured_code == head.measured_code:
        return ["kernels and stylegan_lite are the same in both commits: whatever differs is noise"]
    return []


def new_path(out: Path, result: Compared) -> Path:
    """Return `out`/<machine>/<workload>-<base>-<head>-<UTC time>.json, with a number where that file exists."""
    commits = [side.commit[:8] for side in (result.base, result.head)]
    stem = "-".join([texts.slug(result.workload["name"]), *commits, texts.stamp(result.started)])
    return results.unused(Path(out) / texts.slug(result.machine.name) / f"{stem}.json")


class Comparison:
    """One comparison in progress: the growing result, and its file. Every visit is saved when it is done."""

    def __init__(
        self,
        result: Compared,
        rungs: Sequence[Rung],
        base: Side,
        head: Side,
        path: Path,
        options: Options,
        tell: Tell = lambda text: None,
        settle_known: Settle = lambda result: result,
    ) -> None:
        self.result, self.path, self.options, self.tell = result, path, options, tell
        self.settle_known = settle_known
        code = {BASE: base.code, TWIN: base.code, HEAD: head.code}
        self.programs = [
            Program(f"{r.name} {side}", r.name, side, r.workload, r.recipe or {}, code[side])
            for r in rungs
            if not r.skipped
            for side in judging.SIDES
        ]
        self.measured = {(each.rung, each.side): each for each in result.programs}
        self.begin = time.monotonic()

    def run(self) -> Compared:
        """Measure; return the result. An interrupted one has "complete" false."""
        rounds = Interleaved(
            self.result.machine.device,
            cycles=self.options.cycles,
            seed=self.options.seed,
            torch=self.options.torch,
            timeouts=self.options.timeouts,
            on_wait=lambda: self.tell("waiting for another run on this device"),
        )
        try:
            with stop_on_sigterm():
                number, round_s = 0, 0.0
                while self.goes_on(number, round_s):
                    begin = time.monotonic()
                    with contextlib.closing(rounds.round(number, self.due(), self.is_due)) as visits:
                        for visited in visits:
                            self.take(visited, rounds)
                    round_s, number = max(round_s, time.monotonic() - begin), number + 1
                    protocol = replace(self.result.protocol, rounds=number)
                    self.result = replace(self.result, protocol=protocol)
                    self.tell(self.progress(number))
            self.result = replace(self.result, complete=True)
        except KeyboardInterrupt:
            notes = [*self.result.notes, "interrupted: what was finished is kept"]
            self.result = replace(self.result, notes=notes)
        finally:
            self.save(rounds)
            rounds.close()
        return self.result

    def due(self) -> list[Program]:
        return [program for program in self.programs if self.is_due(program)]

    def is_due(self, program: Program) -> bool:
        """Return whether every program of this rung is still in the run: alone none of them says anything.

        BASE is visited once even where HEAD failed first: only a rung that BASE can do is broken.
        """
        sides = {side: self.measured[program.rung, side] for side in judging.SIDES}
        out = [side for side, each in sides.items() if each.reason]
        return not out or (out == [HEAD] and program.side == BASE and not sides[BASE].rounds)

    def goes_on(self, done: int, round_s: float) -> bool:
        """Return whether there is another round: three in any case, more within the budget while they are worth it."""
        if not self.due():
            return False
        if self.options.rounds is not None:
            return done < self.options.rounds
        if done < LEAST_ROUNDS:
            return True
        fits = time.monotonic() - self.begin + round_s <= self.options.budget_s
        alive = {program.rung for program in self.due()}
        return fits and done < MOST_ROUNDS and judging.wants_rounds(self.result, sorted(alive))

    def take(self, visited: Visited, rounds: Interleaved) -> None:
        """Keep the outcome of a visit, and write the file."""
        key = visited.program.rung, visited.program.side
        each, where = self.measured[key], ", ".join(key)
        if visited.round is None:
            reason = texts.display(visited.reason or "no reason was given")
            each = replace(each, status=visited.status, reason=reason)
            self.tell(f"{where}: {each.status}: {each.reason}")
        else:
            rounds_ = [*each.rounds, build(Round, visited.round)]
            counted = [seen for seen in rounds_ if not seen.alloc_retries]
            if visited.profile and not each.profile and visited.program.side != TWIN:
                each = replace(each, profile=build(KernelProfile, visited.profile))
            each = replace(
                each,
                status="ok" if counted else "invalid",
                reason=None if counted else derive.void_memory(rounds_[-1].alloc_retries or None),
                recipe=visited.recipe,
                settings=visited.settings,
                choices=visited.choices,
                rounds=rounds_,
            )
            self.tell(f"{where}: {estimates.median(rounds_[-1].samples_ms):.1f} ms")
        self.measured[key] = each
        self.save(rounds)

    def save(self, rounds: Interleaved) -> None:
        """Bring everything derived up to date and write the file."""
        programs = list(self.measured.values())
        gpu = rounds.visits.summary(plain(programs))
        result = replace(
            self.result,
            seconds=round(time.monotonic() - self.begin, 1),
            programs=programs,
            gpu=build(RunGpu, gpu) if gpu else None,
        )
        self.result = self.settle_known(judging.judge(result))
        results.write(self.path, plain(self.result))

    def progress(self, done: int) -> str:
        spent = (time.monotonic() - self.begin) / 60
        words = [f"{r.name} {report.said(r)}" for r in self.result.rungs if not r.skipped]
        said = "" if done < LEAST_ROUNDS else ": " + "; ".join(words)
        return f"generation {done} of {self.options.rounds or LEAST_ROUNDS}, {spent:.1f} minutes{said}"


def run(
    machine: Machine,
    workload: Plain,
    rungs: Sequence[Rung],
    base: Side,
    head: Side,
    out: Path,
    options: Options,
    tell: Tell = lambda text: None,
    settle_known: Settle = lambda result: result,
    first: Sequence[str] = (),
) -> tuple[Compared, Path]:
    """Measure and write; return the result and its file. Raises `UserError` where the file cannot be written.

    The lines `first` are told once nothing can be refused any more.
    """
    with locks.folder_lock(Path(out) / texts.slug(machine.name)):
        for line in first:
            tell(line)
        result = new_result(machine, workload, rungs, base, head, options)
        path = new_path(out, result)
        return Comparison(result, rungs, base, head, path, options, tell, settle_known).run(), path
