"""`ladder bench-compare`: two commits measured on one device, interleaved, and judged rung by rung.

Everything that times, and the recipes of the rungs, come from the working tree; from each commit come `kernels/` and
`stylegan_lite/` alone. The result file is written after every visit, so nothing finished is ever lost.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.base import git, locks
from ladder.base import protocol as protocols
from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.stopping import stop_on_sigterm
from ladder.engine.outcomes import Program, Visited
from ladder.engine.rounds import Interleaved
from ladder.machine import environment
from ladder.publish.regressions import judging
from ladder.publish.regressions.judging import BASE, HEAD, LEAST_ROUNDS, MOST_ROUNDS, TWIN
from ladder.results import code_digest, record
from ladder.results import store as results
from ladder.stats import estimates

KIND, SCHEMA = "compare", 1
MINUTES, CYCLES = 10.0, 2
PARTS = ("kernels", "stylegan_lite")
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Rung:
    """One question: which of two commits runs this recipe faster? `skipped` says why it cannot be put here."""

    name: str
    title: str
    workload: dict[str, Any]
    recipe: dict[str, Any] | None
    skipped: str | None = None


@dataclass(frozen=True)
class Side:
    """A commit, what the user called it, and the folder that its packages are in."""

    commit: str
    name: str
    code: Path


@dataclass(frozen=True)
class Options:
    """How to measure. `rounds` None: 5, and up to 12 as far as `budget_s` allows and intervals are wide."""

    rounds: int | None = None
    cycles: int = CYCLES
    seed: int = 0
    budget_s: float = 60 * MINUTES
    settle: bool = True
    torch: bool = True
    timeouts: dict[str, float] | None = None


def new_result(
    facts: dict[str, Any],
    workload: dict[str, Any],
    rungs: Sequence[Rung],
    base: Side,
    head: Side,
    options: Options,
) -> dict[str, Any]:
    """Return a comparison that has not begun; `workload` is the publishable form."""
    commit, dirty = git.commit_of(ROOT)
    engine = code_digest.digests()
    sides = {}
    for key, side in ((BASE, base), (HEAD, head)):
        digests = code_digest.digests(code=side.code)
        code = {part: digests[part] for part in PARTS}
        sides[key] = {"commit": side.commit, "name": texts.display(side.name), code_digest.KEY: code}
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "machine": facts,
        "workload": workload,
        **record.conditions(),
        **sides,
        "harness": {
            "commit": commit,
            "dirty": dirty,
            code_digest.KEY: {part: engine[part] for part in ("rungs", "engine")},
        },
        "protocol": {
            "fixed": options.rounds is not None,
            "budget_s": None if options.rounds is not None else options.budget_s,
            "rounds": 0,
            "cycles": options.cycles,
            "cycle_steps": record.CYCLE_STEPS,
            "seed": options.seed,
            "settle_s": protocols.SETTLE_S if options.settle else 0.0,
            "settle_cycles": protocols.SETTLE_CYCLES if options.settle else 0,
        },
        "complete": False,
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "rungs": [{"name": r.name, "title": r.title, "skipped": r.skipped, "known": None} for r in rungs],
        "programs": [
            {"rung": r.name, "side": side, "status": "n/a", "reason": None, "recipe": r.recipe, "settings": None,
             "choices": None, "rounds": []}
            for r in rungs if not r.skipped for side in judging.SIDES
        ],
        "gpu": None,
        "notes": _notes(sides) + environment.said(environment.recorded()),
    }  # fmt: skip


def _notes(sides: dict[str, dict[str, Any]]) -> list[str]:
    if sides[BASE]["commit"] == sides[HEAD]["commit"]:
        return ["BASE and HEAD are one commit: whatever differs is noise"]
    if sides[BASE][code_digest.KEY] == sides[HEAD][code_digest.KEY]:
        return ["kernels and stylegan_lite are the same in both commits: whatever differs is noise"]
    return []


def new_path(out: Path, result: dict[str, Any]) -> Path:
    """Return `out`/<machine>/<workload>-<base>-<head>-<UTC time>.json, with a number where that file exists."""
    stamp = re.sub(r"[-:]|\+00:00$", "", result["started"]) + "Z"
    commits = [result[side]["commit"][:8] for side in (BASE, HEAD)]
    stem = "-".join([texts.slug(result["workload"]["name"]), *commits, stamp])
    folder = Path(out) / texts.slug(result["machine"]["name"])
    path, number = folder / f"{stem}.json", 2
    while path.exists():
        path, number = folder / f"{stem}-{number}.json", number + 1
    return path


class Comparison:
    """One comparison in progress: the growing result, and its file. Every visit is saved when it is done."""

    def __init__(
        self,
        result: dict[str, Any],
        rungs: Sequence[Rung],
        base: Side,
        head: Side,
        path: Path,
        options: Options,
        tell: Tell = lambda text: None,
        settle_known: Callable[[dict[str, Any]], None] = lambda result: None,
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
        self.records = {(each["rung"], each["side"]): each for each in result["programs"]}
        self.begin = time.monotonic()

    def run(self) -> dict[str, Any]:
        """Measure; return the result. An interrupted one has "complete" false."""
        protocol = self.result["protocol"]
        rounds = Interleaved(
            self.result["machine"]["device"],
            cycles=self.options.cycles,
            seed=self.options.seed,
            settle=self.options.settle,
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
                    protocol["rounds"] = number
                    self.tell(self.progress(number))
            self.result["complete"] = True
        except KeyboardInterrupt:
            self.result["notes"].append("interrupted: what was finished is kept")
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
        sides = {side: self.records[program.rung, side] for side in judging.SIDES}
        out = [side for side, each in sides.items() if each["reason"]]
        return not out or (out == [HEAD] and program.side == BASE and not sides[BASE]["rounds"])

    def goes_on(self, done: int, round_s: float) -> bool:
        """Return whether there is another round: five in any case, more within the budget while they are worth it."""
        if not self.due():
            return False
        if self.options.rounds is not None:
            return done < self.options.rounds
        if done < LEAST_ROUNDS:
            return True
        fits = time.monotonic() - self.begin + round_s <= self.options.budget_s
        alive = {program.rung for program in self.due()}
        wanted = judging.wants_rounds([judging.times_of(self.result, rung) for rung in sorted(alive)])
        return fits and done < MOST_ROUNDS and wanted

    def take(self, visited: Visited, rounds: Interleaved) -> None:
        """Keep the outcome of a visit, and write the file."""
        each = self.records[visited.program.rung, visited.program.side]
        if visited.round is None:
            each.update(status=visited.status, reason=texts.display(visited.reason or "no reason was given"))
            self.tell(f"{visited.program.rung}, {visited.program.side}: {each['status']}: {each['reason']}")
        else:
            each["rounds"].append(visited.round)
            each.update(
                status="ok", recipe=visited.recipe, settings=visited.settings, choices=visited.choices
            )
            record.settle_status(each)
            step_ms = estimates.median(visited.round["samples_ms"])
            self.tell(f"{visited.program.rung}, {visited.program.side}: {step_ms:.1f} ms")
        self.save(rounds)

    def save(self, rounds: Interleaved) -> None:
        """Bring everything derived up to date and write the file."""
        self.result["seconds"] = round(time.monotonic() - self.begin, 1)
        self.result["gpu"] = rounds.visits.summary(self.result["programs"])
        judging.judge(self.result)
        self.settle_known(self.result)
        try:
            results.write(self.path, self.result)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def progress(self, done: int) -> str:
        spent = (time.monotonic() - self.begin) / 60
        words = {r["name"]: r["verdict"] or r["reason"] for r in self.result["rungs"] if not r["skipped"]}
        said = (
            "" if done < LEAST_ROUNDS else ": " + ", ".join(f"{name} {word}" for name, word in words.items())
        )
        return f"round {done} of {self.options.rounds or LEAST_ROUNDS}, {spent:.1f} minutes{said}"


def run(
    facts: dict[str, Any],
    workload: dict[str, Any],
    rungs: Sequence[Rung],
    base: Side,
    head: Side,
    out: Path,
    options: Options,
    tell: Tell = lambda text: None,
    settle_known: Callable[[dict[str, Any]], None] = lambda result: None,
) -> tuple[dict[str, Any], Path]:
    """Measure and write; return the result and its file. Raises `UserError` where the file cannot be written."""
    with locks.folder_lock(Path(out) / texts.slug(facts["name"])):
        result = new_result(facts, workload, rungs, base, head, options)
        path = new_path(out, result)
        return Comparison(result, rungs, base, head, path, options, tell, settle_known).run(), path
