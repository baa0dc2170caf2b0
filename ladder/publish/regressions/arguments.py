"""The way of `ladder bench-compare` from the user's options to a comparison, measured now or read from a file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ladder.base import files, git
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.text import counted
from ladder.images import for_workload
from ladder.machine import environment, system
from ladder.plan import catalog, needs
from ladder.publish.regressions import checkouts, comparing, judging, known
from ladder.publish.regressions.judging import BASE, HEAD, LEAST_ROUNDS, MOST_ROUNDS
from ladder.publish.regressions.schema import Compared
from ladder.results.file import Machine
from ladder.results.types import Plain, build
from ladder.stats import rounds_budget as budget

OUT = ROOT / "results" / "compare"
Tell = Callable[[str], None]


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


def plan(
    ladder_name: str, rungs: list[str] | None, capabilities: dict[str, str | None], workload: Plain
) -> list[comparing.Rung]:
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
    return [comparing.Rung(p.name, p.title, workload, p.recipe, p.skipped) for p in planned]


def measure(request: Request, tell: Tell, root: Path = ROOT) -> tuple[Compared, Path]:
    """Measure two commits; return the result and its file. Raises `UserError` before anything is measured."""
    if request.budget is not None and request.rounds is not None:
        raise UserError("--budget fits the number of generations: leave out --generations")
    base_commit = checkouts.commit_of(request.base, "BASE", root)
    head_commit = checkouts.commit_of(request.head, "HEAD", root)
    entries = known.read(root / known.FILE.relative_to(ROOT))
    device = system.choose_device(request.device)
    environment.refuse(device)
    files.refuse_unwritable(request.out)
    said = environment.said(environment.recorded())
    name, workload = catalog.load_workload(request.workload or for_workload.DEFAULT_WORKLOAD[device])
    if workload["data"] is not None:
        raise UserError(f"--workload {name}: its images are yours; comparisons use the sample photographs")
    plan(request.ladder, request.rungs, system.capabilities(device), workload)  # before anything slow
    pictures = for_workload.prepare_images(None, workload, quiet=True)
    there = {**workload, "data": pictures.path}
    rungs = plan(request.ladder, request.rungs, system.capabilities(device), there)
    if git.changes(root, checkouts.PACKAGES):
        said += ["uncommitted changes in kernels/ or stylegan_lite/ are not measured: commits are"]
    said += known.idle(entries, root)
    in_force = known.between(entries, base_commit, head_commit, root)
    many = (
        counted(request.rounds, "generation")
        if request.rounds
        else f"{LEAST_ROUNDS} to {MOST_ROUNDS} generations"
    )
    said += [f"{name} on {device}: {' and '.join(each.name for each in rungs)} of two commits, {many}"]
    options = comparing.Options(
        rounds=request.rounds,
        seed=request.seed,
        budget_s=60 * (request.budget or budget.MINUTES),
        torch=device == "cuda",
    )
    with checkouts.checked_out([base_commit, head_commit], root) as (base, head):
        return comparing.run(
            build(Machine, system.facts(device)),
            {"name": name, **workload, "data": pictures.source},
            rungs,
            comparing.Side(base_commit, request.base, base),
            comparing.Side(head_commit, request.head, head),
            request.out,
            options,
            tell,
            lambda result: known.mark(result, in_force),
            said,
        )


def reread(path: Path, base: str | None, head: str | None, root: Path = ROOT) -> Compared:
    """Return the comparison of a file, validated and judged anew; `base` and `head` must be its commits.

    Accepted slowdowns are looked up in this checkout, whatever the file says.
    """
    result = judging.load(path)
    for side, seen, name in ((BASE, result.base.commit, base), (HEAD, result.head.commit, head)):
        if name is None:
            continue
        commit = name if re.fullmatch("[0-9a-f]{40}", name) else checkouts.commit_of(name, side.upper(), root)
        if seen != commit:
            raise UserError(f"{path.name}: its {side.upper()} is commit {seen[:10]}, expected {commit[:10]}")
    commits = result.base.commit, result.head.commit
    return known.mark(result, known.between(known.read(root / known.FILE.relative_to(ROOT)), *commits, root))
