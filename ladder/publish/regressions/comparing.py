"""`ladder bench-compare`: two commits measured on one device, interleaved, and judged rung by rung.

`measure` resolves the user's options into a `Plan` and measures it; `reread` judges a file again. Everything that
times, and the recipes of the rungs, come from the working tree; from each commit come `kernels/` and `stylegan_lite/`
alone. The result file is written after every visit, so nothing finished is ever lost.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ladder.base import files, git, locks
from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.stopping import stop_on_sigterm
from ladder.core.records import Fields, read_record, write_record
from ladder.engine.outcomes import Program, Visited
from ladder.engine.rounds import Interleaved
from ladder.images import for_workload
from ladder.machine import environment, system
from ladder.plan import catalog, needs
from ladder.publish.regressions import checkouts, judging, known, report, schema
from ladder.publish.regressions.judging import BASE, HEAD, LEAST_ROUNDS, MOST_ROUNDS, TWIN
from ladder.publish.regressions.schema import ENGINE, KIND, PARTS, Compared, Judged
from ladder.results import code_digest, derive, record
from ladder.results import store as results
from ladder.results.file import KernelProfile, Machine, Round
from ladder.results.run import RunGpu
from ladder.stats import estimates
from ladder.stats import rounds_budget as budget

OUT = ROOT / "results" / "compare"
Tell = Callable[[str], None]
Settle = Callable[[Judged], Judged]  # marks the accepted slowdowns


@dataclass(frozen=True)
class Request:
    """The options of `ladder bench-compare`; None stands for the default."""

    base: str
    head: str
    rungs: list[str] | None
    ladder: str
    workload: str | None
    rounds: int | None
    budget: float | None  # minutes
    seed: int
    device: str | None
    out: Path


@dataclass(frozen=True)
class Rung:
    """One question: which of two commits runs this recipe faster? `skipped` says why it cannot be put here."""

    name: str
    title: str
    workload: Fields
    recipe: Fields | None
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
    cycles: int = 2
    seed: int = 0
    budget_s: float = 60 * budget.MINUTES
    torch: bool = True
    timeouts: dict[str, float] | None = None


@dataclass(frozen=True)
class Plan:
    """What is compared, and how. `workload` is the publishable form."""

    machine: Machine
    workload: Fields
    rungs: Sequence[Rung]
    base: Side
    head: Side
    options: Options


def plan_rungs(
    ladder_name: str, rungs: list[str] | None, capabilities: dict[str, str | None], workload: Fields
) -> list[Rung]:
    """Return the rungs to compare: the named ones, else the lowest and the highest that this machine can do.

    Raises:
        UserError: none can run here.
    """
    ladder = catalog.load_ladder(ladder_name)
    planned = catalog.climb(ladder, needs.possible(capabilities, workload), rungs)
    able = [each for each in planned if each.skipped is None]
    if not able:
        raise UserError(f"none of these rungs can run here: {planned[0].name}: {planned[0].skipped}")
    if rungs is None:
        planned = able[:1] + able[-1:] * (len(able) > 1)
    return [Rung(p.name, p.title, workload, p.recipe, p.skipped) for p in planned]


def measure(request: Request, tell: Tell, root: Path = ROOT) -> tuple[Judged, Path]:
    """Measure two commits; return the result and its file. Raises `UserError` before anything is measured."""
    if request.budget is not None and request.rounds is not None:
        raise UserError("--budget fits the number of generations: leave out --generations")
    base_commit = checkouts.commit_of(request.base, "BASE", root)
    head_commit = checkouts.commit_of(request.head, "HEAD", root)
    entries = known.read_entries(root / known.FILE.relative_to(ROOT))
    device = system.choose_device(request.device)
    environment.refuse(device)
    files.refuse_unwritable(request.out)
    lines = environment.describe_variables(environment.read_variables())
    name, workload = catalog.load_workload(request.workload or for_workload.DEFAULT_WORKLOAD[device])
    if workload["data"] is not None:
        raise UserError(f"--workload {name}: its images are yours; comparisons use the sample photographs")
    plan_rungs(request.ladder, request.rungs, system.capabilities(device), workload)  # before anything slow
    pictures = for_workload.prepare_images(None, workload, quiet=True)
    there = {**workload, "data": pictures.path}
    rungs = plan_rungs(request.ladder, request.rungs, system.capabilities(device), there)
    if git.changes(root, checkouts.PACKAGES):
        lines += ["uncommitted changes in kernels/ or stylegan_lite/ are not measured: commits are"]
    lines += known.list_idle(entries, root)
    in_force = known.list_in_force(entries, base_commit, head_commit, root)
    many = (
        texts.counted(request.rounds, "generation")
        if request.rounds
        else f"{LEAST_ROUNDS} to {MOST_ROUNDS} generations"
    )
    lines += [f"{name} on {device}: {' and '.join(each.name for each in rungs)} of two commits, {many}"]
    options = Options(
        rounds=request.rounds,
        seed=request.seed,
        budget_s=60 * (request.budget or budget.MINUTES),
        torch=device == "cuda",
    )
    with checkouts.checked_out([base_commit, head_commit], root) as (base, head):
        plan = Plan(
            read_record(Machine, texts.fit(system.facts(device))),
            {"name": name, **workload, "data": pictures.source},
            rungs,
            Side(base_commit, request.base, base),
            Side(head_commit, request.head, head),
            options,
        )
        return run(plan, request.out, tell, lambda result: known.mark(result, in_force), lines)


def reread(path: Path, base: str | None, head: str | None, root: Path = ROOT) -> Judged:
    """Return the comparison of a file, validated and judged; `base` and `head` must be its commits.

    Accepted slowdowns are looked up in this checkout.
    """
    result = judging.load(path)
    for side, commit, name in ((BASE, result.base.commit, base), (HEAD, result.head.commit, head)):
        if name is None:
            continue
        expected = (
            name if re.fullmatch("[0-9a-f]{40}", name) else checkouts.commit_of(name, side.upper(), root)
        )
        if commit != expected:
            raise UserError(
                f"{path.name}: its {side.upper()} is commit {commit[:10]}, expected {expected[:10]}"
            )
    commits = result.base.commit, result.head.commit
    return known.mark(
        result, known.list_in_force(known.read_entries(root / known.FILE.relative_to(ROOT)), *commits, root)
    )


def begin(plan: Plan) -> Compared:
    """Return a comparison that has not begun."""
    header = record.header(KIND, write_record(plan.machine), plan.workload)
    engine = header.pop(code_digest.KEY)
    harness = {key: header.pop(key) for key in ("commit", "dirty")}
    harness["measured_code"] = {part: engine[part] for part in ENGINE}
    fixed, programs = plan.options.rounds is not None, []
    for rung in plan.rungs:
        for side in judging.SIDES if not rung.skipped else ():
            programs.append(
                {"rung": rung.name, "side": side, "status": "n/a", "recipe": rung.recipe, "rounds": []}
            )
    stored = {
        **header,
        "schema": 2,
        "base": _describe_side(plan.base),
        "head": _describe_side(plan.head),
        "harness": harness,
        "protocol": {
            "fixed": fixed,
            "budget_s": None if fixed else plan.options.budget_s,
            "rounds": 0,
            "cycles": plan.options.cycles,
            "cycle_steps": record.CYCLE_STEPS,
            "seed": plan.options.seed,
        },
        "rungs": [{"name": each.name, "title": each.title, "skipped": each.skipped} for each in plan.rungs],
        "programs": programs,
    }
    return read_record(Compared, texts.fit(stored))


def _describe_side(side: Side) -> dict[str, Any]:
    digests = code_digest.digests(code=side.code)
    return {
        "commit": side.commit,
        "name": texts.display(side.name),
        "measured_code": {part: digests[part] for part in PARTS},
    }


def new_path(out: Path, result: Compared) -> Path:
    """Return `out`/<machine>/<workload>-<base>-<head>-<UTC time>.json, with a number where that file exists."""
    commits = [side.commit[:8] for side in (result.base, result.head)]
    stem = "-".join([texts.slug(str(result.workload["name"])), *commits, texts.stamp(result.started)])
    return results.unused(Path(out) / texts.slug(result.machine.name) / f"{stem}.json")


class Comparison:
    """One comparison in progress: the growing result, and its file. Every visit is saved when it is done."""

    def __init__(
        self,
        plan: Plan,
        result: Compared,
        path: Path,
        tell: Tell = lambda text: None,
        settle_known: Settle = lambda result: result,
    ) -> None:
        self.result, self.path, self.options, self.tell = result, path, plan.options, tell
        self.settle_known = settle_known
        code = {BASE: plan.base.code, TWIN: plan.base.code, HEAD: plan.head.code}
        self.programs = [
            Program(f"{r.name} {side}", r.name, side, r.workload, r.recipe or {}, code[side])
            for r in plan.rungs
            if not r.skipped
            for side in judging.SIDES
        ]
        self.measured: dict[tuple[str, str], schema.Program] = {
            (each.rung, each.side): each for each in result.programs
        }
        self.begin = time.monotonic()

    def judge(self) -> Judged:
        """Return the comparison so far, with its verdicts."""
        return self.settle_known(judging.judge(self.result))

    def run(self) -> Judged:
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
            pass
        finally:
            self.save(rounds)
            rounds.close()
        return self.judge()

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
            rounds_ = [*each.rounds, read_record(Round, texts.fit(visited.round))]
            counted = [one for one in rounds_ if not one.alloc_retries]
            if visited.profile and not each.profile and visited.program.side != TWIN:
                each = replace(each, profile=read_record(KernelProfile, texts.fit(visited.profile)))
            choices = read_record(list[schema.Choice], texts.fit(visited.choices or []))
            each = replace(
                each,
                status="ok" if counted else "invalid",
                reason=None if counted else derive.void_memory(rounds_[-1].alloc_retries or None),
                recipe=visited.recipe,
                settings=visited.settings,
                choices=None if visited.choices is None else choices,
                rounds=rounds_,
            )
            self.tell(f"{where}: {estimates.median(rounds_[-1].samples_ms):.1f} ms")
        self.measured[key] = each
        self.save(rounds)

    def save(self, rounds: Interleaved) -> None:
        """Write what was measured so far."""
        programs = list(self.measured.values())
        gpu = rounds.visits.summary(write_record(programs))
        self.result = replace(
            self.result,
            seconds=round(time.monotonic() - self.begin, 1),
            programs=programs,
            gpu=read_record(RunGpu, texts.fit(gpu)) if gpu else None,
        )
        results.write(self.path, write_record(self.result))

    def progress(self, done: int) -> str:
        spent = (time.monotonic() - self.begin) / 60
        words = [f"{r.name} {report.describe_verdicts(r)}" for r in self.judge().rungs if not r.skipped]
        verdicts = "" if done < LEAST_ROUNDS else ": " + "; ".join(words)
        return f"generation {done} of {self.options.rounds or LEAST_ROUNDS}, {spent:.1f} minutes{verdicts}"


def run(
    plan: Plan,
    out: Path,
    tell: Tell = lambda text: None,
    settle_known: Settle = lambda result: result,
    first: Sequence[str] = (),
) -> tuple[Judged, Path]:
    """Measure and write; return the result and its file. Raises `UserError` where the file cannot be written.

    The lines `first` are told once nothing can be refused any more.
    """
    with locks.folder_lock(Path(out) / texts.slug(plan.machine.name)):
        for line in first:
            tell(line)
        result = begin(plan)
        path = new_path(out, result)
        return Comparison(plan, result, path, tell, settle_known).run(), path
