"""`ladder bench-compare`: two commits measured on one device, interleaved, and judged rung by rung.

`measure` resolves the user's options into a `Job` and measures it; `reread` judges a file again. Everything that
times, and the recipes of the rungs, come from the working tree; from each commit come `kernels/` and `stylegan_lite/`
alone. The result file is written after every visit, so nothing finished is ever lost.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from ladder.base import files, git, locks
from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.stopping import stop_on_sigterm
from ladder.core.job import Job, Planned
from ladder.core.records import Fields, read_record, write_record
from ladder.engine.outcomes import Program, Visited
from ladder.engine.rounds import Interleaved
from ladder.images import for_workload
from ladder.machine import environment, system
from ladder.plan import catalog, needs
from ladder.publish.regressions import checkouts, judging, known, schema
from ladder.publish.regressions.judging import BASE, HEAD, LEAST_ROUNDS, MOST_ROUNDS, SIDES, TWIN
from ladder.publish.regressions.schema import Compared, Judged
from ladder.results import code_digest, derive, record
from ladder.results import store as results
from ladder.results.file import KernelProfile, Round
from ladder.results.run import RunGpu
from ladder.stats import estimates
from ladder.stats import rounds_budget as budget

OUT = ROOT / "results" / "compare"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """The options of `ladder bench-compare`; None stands for the default. `budget` are minutes."""

    base: str | None = None
    head: str | None = None
    rungs: list[str] | None = None
    ladder_name: str = "full"
    workload: str | None = None
    rounds: int | None = None
    budget: float | None = None
    seed: int = 0
    device: str | None = None
    out: Path | None = None


@dataclass(frozen=True)
class Side:
    """A commit, what the user called it, and the folder that its packages are in."""

    commit: str
    name: str
    code: Path


@dataclass(frozen=True)
class Plan:
    """The options of a job. `rounds` None: 3, and up to 12 as far as the minutes allow and intervals are wide."""

    rungs: Sequence[Planned]
    base: Side
    head: Side
    rounds: int | None = None
    cycles: int = 2
    seed: int = 0
    torch: bool = True


def plan_rungs(request: Request, device: str, workload: Fields) -> list[catalog.Planned]:
    """Return the rungs to compare: the named ones, else the lowest and the highest that this machine can do.

    Raises:
        UserError: none can run here.
    """
    able_to = needs.possible(system.capabilities(device), workload)
    planned = catalog.climb(catalog.load_ladder(request.ladder_name), able_to, request.rungs)
    able = [each for each in planned if each.skipped is None]
    if not able:
        raise UserError(f"none of these rungs can run here: {planned[0].name}: {planned[0].skipped}")
    return planned if request.rungs is not None else able[:1] + able[1:][-1:]


def measure(request: Request, tell: Tell, root: Path = ROOT) -> tuple[Judged, Path]:
    """Measure two commits; return the result and its file. Raises `UserError` before anything is measured."""
    if request.budget is not None and request.rounds is not None:
        raise UserError("--budget fits the number of generations: leave out --generations")
    names = request.base or "main", request.head or "HEAD"
    commits = [
        checkouts.commit_of(name, side, root) for name, side in zip(names, ("BASE", "HEAD"), strict=True)
    ]
    entries = known.read_entries(root / known.FILE.relative_to(ROOT))
    device = system.choose_device(request.device)
    environment.refuse(device)
    out = request.out or OUT
    files.refuse_unwritable(out)
    name, workload = catalog.load_workload(request.workload or for_workload.DEFAULT_WORKLOAD[device])
    if workload["data"] is not None:
        raise UserError(f"--workload {name}: its images are yours; comparisons use the sample photographs")
    rungs = plan_rungs(request, device, workload)
    lines = environment.describe_variables(environment.read_variables())
    if git.changes(root, checkouts.PACKAGES):
        lines += ["uncommitted changes in kernels/ or stylegan_lite/ are not measured: commits are"]
    many = request.rounds or f"{LEAST_ROUNDS} to {MOST_ROUNDS}"
    lines += known.list_idle(entries, root)
    lines += [f"{name} on {device}: {' and '.join(r.name for r in rungs)} of two commits, {many} generations"]
    pictures = for_workload.prepare_images(None, workload, quiet=True)
    in_force = known.list_in_force(entries, commits[0], commits[1], root)
    with checkouts.checked_out(commits, root) as folders:
        base, head = (Side(*each) for each in zip(commits, names, folders, strict=True))
        plan = Plan(rungs, base, head, request.rounds, seed=request.seed, torch=device == "cuda")
        minutes = request.budget or budget.MINUTES
        trained, facts = {**workload, "data": pictures.path}, system.facts(device)
        job = Job(device, name, trained, pictures.source, facts, plan, out, minutes=minutes)
        result, path = run(job, tell, lines)
    return known.mark(result, in_force), path


def reread(path: Path, base: str | None, head: str | None, root: Path = ROOT) -> Judged:
    """Return the comparison of a file, validated and judged; `base` and `head`, if named, must be its commits.

    Accepted slowdowns are looked up in this checkout.
    """
    result = judging.load(path)
    for side, measured, name in (("BASE", result.base, base), ("HEAD", result.head, head)):
        is_full = name is None or re.fullmatch("[0-9a-f]{40}", name)  # this clone may lack it
        if (name if is_full else checkouts.commit_of(str(name), side, root)) not in (None, measured.commit):
            raise UserError(f"{path.name}: its {side} is commit {measured.commit[:10]}, not {name}")
    entries = known.read_entries(root / known.FILE.relative_to(ROOT))
    return known.mark(result, known.list_in_force(entries, result.base.commit, result.head.commit, root))


def start_file(job: Job) -> Compared:
    """Return a comparison that has not begun."""
    plan: Plan = job.options
    header = record.make_header(
        schema.KIND, job.machine, {"name": job.name, **job.workload, "data": job.source}
    )
    engine = header.pop(code_digest.KEY)
    harness = {key: header.pop(key) for key in ("commit", "dirty")}
    harness["measured_code"] = {part: engine[part] for part in ("rungs", "engine")}
    sides = {}
    for key, side in (("base", plan.base), ("head", plan.head)):
        digests = code_digest.digests(code=side.code)
        code = {part: digests[part] for part in checkouts.PACKAGES}
        sides[key] = {"commit": side.commit, "name": side.name, "measured_code": code}
    fixed = plan.rounds is not None
    protocol = {
        "fixed": fixed,
        "budget_s": None if fixed or job.minutes is None else 60 * job.minutes,
        "rounds": 0,
        "cycles": plan.cycles,
        "cycle_steps": record.CYCLE_STEPS,
        "seed": plan.seed,
    }
    programs = [
        {"rung": rung.name, "side": side, "status": "n/a", "recipe": rung.recipe, "rounds": []}
        for rung in plan.rungs
        if not rung.skipped
        for side in SIDES
    ]
    rungs = [{"name": each.name, "title": each.title, "skipped": each.skipped} for each in plan.rungs]
    first = {**header, **sides, "harness": harness, "protocol": protocol}
    return read_record(Compared, texts.fit({**first, "rungs": rungs, "programs": programs}))


def run(job: Job, tell: Tell = lambda text: None, first: Sequence[str] = ()) -> tuple[Judged, Path]:
    """Measure and write; return the result and its file. An interrupted one has "complete" false.

    The lines `first` are for the user, once nothing can be refused any more.

    Raises:
        UserError: the file cannot be written.
    """
    plan: Plan = job.options
    code = {BASE: plan.base.code, TWIN: plan.base.code, HEAD: plan.head.code}
    programs = [
        Program(f"{rung.name} {side}", rung.name, side, job.workload, rung.recipe or {}, code[side])
        for rung in plan.rungs
        if not rung.skipped
        for side in SIDES
    ]
    folder = job.out / texts.slug(job.machine["name"])
    with locks.folder_lock(folder):
        for line in first:
            tell(line)
        result, begin = start_file(job), time.monotonic()
        stem = [texts.slug(job.name), plan.base.commit[:8], plan.head.commit[:8], texts.stamp(result.started)]
        path = results.unused(folder / f"{'-'.join(stem)}.json")
        measured = {f"{each.rung} {each.side}": each for each in result.programs}
        rounds = Interleaved(
            job.device,
            cycles=plan.cycles,
            seed=plan.seed,
            torch=plan.torch,
            on_wait=lambda: tell("waiting for another run on this device"),
        )

        def save(number: int, complete: bool = False) -> Compared:
            stored = list(measured.values())
            gpu = rounds.visits.summary(write_record(stored))
            current = replace(
                result,
                protocol=replace(result.protocol, rounds=number),
                complete=complete,
                seconds=round(time.monotonic() - begin, 1),
                programs=stored,
                gpu=read_record(RunGpu, texts.fit(gpu)) if gpu else None,
            )
            results.write(path, write_record(current))
            return current

        def is_due(program: Program) -> bool:
            return is_alive(measured, program.rung, program.side)

        number, longest_s = 0, 0.0
        try:
            with stop_on_sigterm():
                while due := [program for program in programs if is_due(program)]:
                    now = time.monotonic()
                    left_s = begin + 60 * (job.minutes or budget.MINUTES) - now - longest_s
                    alive = sorted({program.rung for program in due})
                    if number >= (plan.rounds or LEAST_ROUNDS) and (
                        plan.rounds is not None
                        or left_s < 0
                        or number >= MOST_ROUNDS
                        or not judging.wants_rounds(result, alive)
                    ):
                        break
                    with contextlib.closing(rounds.round(number, due, is_due)) as visits:
                        for visited in visits:
                            name = visited.program.name
                            each = measured[name] = enter_visit(measured[name], visited)
                            tell(
                                f"{name}: {each.reason or f'{estimates.median(each.rounds[-1].samples_ms):.1f} ms'}"
                            )
                            save(number)
                    longest_s, number = max(longest_s, time.monotonic() - now), number + 1
                    result = save(number)
                    tell(f"generation {number}, {(time.monotonic() - begin) / 60:.1f} minutes")
            result = save(number, complete=True)
        except KeyboardInterrupt:
            result = save(number)
        finally:
            rounds.close()
    return judging.judge(result), path


def is_alive(measured: Mapping[str, schema.Program], rung: str, side: str) -> bool:
    """Return whether a program is to be visited: every program of its rung is still in the run.

    BASE is visited once even where HEAD failed first: only a rung that BASE can do is broken.
    """
    out = [each for each in SIDES if measured[f"{rung} {each}"].reason]
    return not out or (out == [HEAD] and side == BASE and not measured[f"{rung} {BASE}"].rounds)


def enter_visit(program: schema.Program, visited: Visited) -> schema.Program:
    """Return a program with the outcome of one more visit. The first profile stays; BASE again needs none."""
    if visited.round is None:
        reason = texts.display(visited.reason or "no reason was given")
        return replace(program, status=visited.status, reason=reason)
    rounds = [*program.rounds, read_record(Round, texts.fit(visited.round))]
    void = all(each.alloc_retries for each in rounds)
    profile, choices = program.profile, visited.choices
    if visited.profile and not profile and program.side != TWIN:
        profile = read_record(KernelProfile, texts.fit(visited.profile))
    return replace(
        program,
        status="invalid" if void else "ok",
        reason=derive.void_memory(rounds[-1].alloc_retries or None) if void else None,
        recipe=visited.recipe,
        settings=visited.settings,
        choices=None if choices is None else read_record(list[schema.Choice], texts.fit(choices)),
        rounds=rounds,
        profile=profile,
    )
