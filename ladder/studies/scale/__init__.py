"""`ladder scale`: how a step scales over the GPUs of this machine, by the way in which gradients are averaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.core.job import Job
from ladder.core.options import whole_numbers
from ladder.core.records import Fields, write_whole
from ladder.results import plausible, publishable
from ladder.results import store as results
from ladder.show.table import Table
from ladder.studies import frame
from ladder.studies.frame import Session, Study
from ladder.studies.scale import report
from ladder.studies.scale.record import (
    FEW_OF,
    STAYS,
    STRONG,
    TOP,
    WAYS,
    WEAK,
    Case,
    File,
    Observed,
    Options,
    Protocol,
    Scaled,
    derive_points,
    derive_proofs,
    list_short,
)

MOST = 64  # GPUs, or ranks on a CPU


# --- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One way. Its recipe has no number of ranks yet; alone it is the same recipe without a reduction."""

    name: str
    recipe: Fields | None  # absent if this machine cannot run it
    skipped: str | None = None

    def on(self, gpus: int) -> Fields:
        """Return the recipe on so many GPUs."""
        recipe = dict(self.recipe or {})
        if gpus == 1:
            recipe.pop("reduce", None)
            return recipe
        return recipe | {"ranks": gpus}


def load_ways(names: Iterable[str], able: Mapping[str, str | None]) -> list[Way]:
    """Return the ways of these names (all, if none is named) on a machine with these capabilities."""
    from ladder.plan import catalog
    from ladder.plan.needs import RANKS
    from stylegan_lite.config import suggestion

    ways = []
    for name in dict.fromkeys([*names] or WAYS):
        if name not in WAYS:
            raise UserError(f"no way {name!r}{suggestion(name, WAYS)}")
        ladder_name, rung, over = WAYS[name]
        ladder = catalog.load_ladder(ladder_name)
        climbed = {each.name: each for each in catalog.climb(ladder, {**able, RANKS: None})}
        found = climbed[ladder.rungs[-1].name if rung == TOP else rung]
        ways.append(Way(name, None if found.recipe is None else found.recipe | over, found.skipped))
    return ways


def count_gpus(option: str | None, there: int | None) -> list[int]:
    """Return the numbers of GPUs to measure. `there` is how many the machine has, None for ranks on a CPU."""
    numbers = whole_numbers("--gpus", option, MOST)
    if numbers is None:
        most = 2 if there is None else there
        return sorted({*(2**k for k in range(10) if 2**k <= most), most})
    numbers.sort()
    if there is not None and numbers[-1] > there:
        raise UserError(f"--gpus {numbers[-1]}: torch sees {there} here")
    return numbers


def list_points(
    ways: Iterable[Way], workload: Fields, gpus: Iterable[int], scalings: Iterable[str], total: int
) -> list[Case]:
    """Return the points of all ways: weak ones with the workload's batch on each GPU, strong ones with `total`."""
    return [
        Case(
            kind="point", way=way.name, scaling=cast(Any, scaling), gpus=n, batch=batch, recipe=way.on(n),
            problem=find_problem(way, workload | {"batch": batch}, n),
        )
        for way in ways
        for scaling in (WEAK, STRONG)
        for n in (gpus if scaling in scalings else ())
        for batch in [int(workload["batch"] or 1) * n if scaling == WEAK else total]
    ]  # fmt: skip


def find_problem(way: Way, workload: Fields, gpus: int) -> str | None:
    """Return why a way cannot train the workload, whose batch is the total, on so many GPUs; or None."""
    from stylegan_lite import shares
    from stylegan_lite.config import Recipe, Workload

    why = way.skipped
    if way.recipe is not None:
        recipe, asked = Recipe.from_dict(way.on(gpus)), Workload.from_dict(workload | {"data": None})
        why = shares.problem_with(recipe, asked)
    return None if why is None else texts.display(why)


def name_case(case: Case) -> str:
    """Return the key of a case."""
    if case.kind == "proof":
        return f"proof of {case.way} on {case.gpus}"
    return f"{case.way}, {case.scaling}, {case.gpus}"


# --- the study --------------------------------------------------------------------------------------------------------


class Scale(Study[Options, Case, Observed]):
    """Process groups of each way and number of GPUs, in generations."""

    name, kind, folder = "scale", "scaled", "scaled"
    help = """Measure how a step scales over the GPUs of this machine.

    Each WAY is one way to share a batch and to average gradients. All are measured if none is named:

    \b
    data_parallel:  nn.DataParallel, one process for all GPUs
    ddp:            DistributedDataParallel, beside the backward pass
    flat:           one all-reduce of all gradients before the update
    captured:       flat, inside the CUDA graph of the whole step
    flat-top:       flat, with the rungs of `full`, without CUDA graphs
    top:            captured, with the rungs of `full`

    The rungs of `full` are those up to `fused_modulation`, as in the ladder `distributed`.

    Each way runs as one process group for each number of GPUs, and alone on one GPU without a reduction. Efficiency,
    exposed communication and memory are reported. If a rank dies or hangs, its whole group ends, and the rank is named.
    No generation begins that would end after the --budget.

    Exit status: 0 if every point that can run here has a number. 1 if one has none, or lacks a generation. 2 if the
    request is impossible. 130 if interrupted or the budget was over.
    """
    examples = """
ladder scale                                    every way on 1, 2, ... all GPUs of this machine
ladder scale top ddp -w article-b32 --gpus 1,2 --scaling weak
ladder scale top -w article --scaling strong --total 16
ladder scale flat ddp --device cpu --gpus 1,2   ranks on the CPU, over gloo: a try-out
ladder scale --resume results/scaled/MACHINE-article-b32-top-ddp-weak-partial.json
"""
    extendable, answers = ("generations", "no_proof"), ("ok", "n/a")

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        from stylegan_lite.config import ConfigError

        points = [case for case in (file.cases if file else {}).values() if case.kind == "point"]
        if unknown := [case.way for case in points if case.way not in WAYS]:
            raise UserError(f"{job.resume}: --resume: no way {unknown[0]!r} is known here")
        try:
            points = points or self._plan_points(job)
        except ConfigError as error:
            raise UserError(f"--total: {error}") from None
        able = [case for case in points if case.problem is None]
        if not able:
            raise UserError(f"none of these ways runs here: {points[0].way}: {points[0].problem}")
        most = {case.way: case for case in sorted(able, key=lambda case: case.gpus) if case.gpus > 1}
        # One group a GPU, and path length for each: the reference in FP64 of the total batch stays small.
        share = max(
            int(job.workload.get(key) or least) for key, least in (("mbstd_group", 4), ("pl_batch_shrink", 2))
        )
        proofs = [
            msgspec.structs.replace(case, kind="proof", scaling=None, batch=case.gpus * share)
            for case in ({} if job.options.no_proof else most).values()
        ]
        return {name_case(case): case for case in [*points, *proofs]}

    def _plan_points(self, job: Job) -> list[Case]:
        from ladder.machine import system
        from ladder.plan import needs

        options, workload = job.options, job.workload
        gpus = count_gpus(options.gpus, len(system.gpu_uuids()) if job.device == "cuda" else None)
        ways = load_ways(options.ways, needs.possible(system.capabilities(job.device), workload))
        scalings = (WEAK, STRONG) if options.scaling == "both" else (options.scaling,)
        if options.total is not None and STRONG not in scalings:
            raise UserError(
                "--total is for --scaling strong, and you gave weak: leave out --total, or take strong"
            )
        total = options.total or int(workload["batch"]) * gpus[-1]
        return list_points(ways, workload, gpus, scalings, total)

    def announce(self, job: Job, cases: Mapping[str, Case]) -> str:
        names = ", ".join(dict.fromkeys(case.way for case in cases.values()))
        gpus = ", ".join(map(str, sorted({case.gpus for case in cases.values()})))
        return f"{job.name} on {job.device}: {names} on {gpus}"

    def observe_all(self, session: Session) -> None:
        from ladder.studies.scale import measure

        measure.observe_points(session)

    def pick_kept(self, file: File) -> dict[str, Observed]:
        """Return what a resumed run keeps: whole generations of a way and scaling, and what would end the same way.

        A run that was stopped may have kept one number of GPUs and not yet the others. A point that failed has none.
        """
        generations: dict[tuple[str, str | None], set[int]] = {}
        for key, case in file.cases.items():
            each = file.observed.get(key, Observed())
            if case.kind == "point" and case.problem is None and each.status == "ok":
                numbers = {run.generation for run in each.runs}
                generations[case.series] = generations.get(case.series, numbers) & numbers
        kept = {}
        for key, each in file.observed.items():
            case = file.cases[key]
            runs = [run for run in each.runs if run.generation in generations[case.series]]
            if runs or each.status in (*STAYS, "n/a") or (case.kind == "proof" and each.status == "ok"):
                kept[key] = msgspec.structs.replace(each, runs=runs)
        return kept

    def has_answers(self, file: File) -> bool:
        return super().has_answers(file) and not any(
            0 < len(each.runs) < file.options.generations for each in file.observed.values()
        )

    def derive(self, file: File) -> Scaled:
        return Scaled(
            protocol=Protocol(
                generations=file.options.generations,
                visits=file.options.visits,
                seed=file.options.seed,
                backend="nccl" if file.machine.device == "cuda" else "gloo",
                notes=frame.list_cautions(self, file),
            ),
            proofs=derive_proofs(file),
            points=derive_points(file),
            merged=file.merged,
        )

    def list_problems(self, file: File) -> Iterable[str]:
        points = {key: case for key, case in file.cases.items() if case.kind == "point"}
        totals = {case.batch for case in points.values() if case.scaling == STRONG}
        if len(totals) > 1:
            yield f"strong scaling: total batches {' and '.join(map(str, sorted(totals)))}, expected one"
        if len({(*case.series, case.gpus) for case in points.values()}) < len(points):
            yield "cases: a point is there twice"
        workload = file.workload or {}
        for key, case in points.items():
            weak = int(workload["batch"] or 1) * case.gpus
            if case.scaling == WEAK and case.batch != weak:
                yield f"{key} GPUs: batch {case.batch}, expected {weak}, the workload's on each"
            if (each := file.observed.get(key)) is None:
                continue
            if (each.status == "ok") != bool(each.runs):
                yield f"{key} GPUs: {each.status} {'with' if each.runs else 'without'} a run"
            if len({run.generation for run in each.runs}) < len(each.runs):
                yield f"{key} GPUs: a generation is there twice"
            share = workload | {"batch": max(1, case.batch // case.gpus)}
            least = plausible.floor_ms(write_whole(file.machine), share)
            if least and any(ms < least[0] for run in each.runs for ms in run.samples_ms):
                yield f"{key} GPUs: faster than these GPUs can compute"

    def is_interrupted(self, file: File) -> bool:
        """Ways that lack generations are named: other ways of a result that was stopped are whole."""
        return not file.is_complete and not list_short(derive_points(file))

    def list_cautions(self, file: File) -> list[str]:
        from ladder.machine import neighbours

        points = derive_points(file)
        proved = {proof.way for proof in derive_proofs(file) if proof.status == "ok"}
        lines = [] if any(point.runs for point in points) else [results.few()]
        if few := list_short(points):
            lines.append(f"{FEW_OF}{', '.join(few)}: not to be quoted")
        if unproved := sorted({point.way for point in points if point.gpus > 1 and point.runs} - proved):
            lines.append(f"parity and receipts of {', '.join(unproved)} were not seen here")
        lines += neighbours.list_marks(
            {neighbours.KEY: run.others_cpu} for point in points for run in point.runs
        )
        hosts = {(run.cpu, run.cores) for run in file.merged or []}
        return [*lines, *([publishable.HOSTS] if len(hosts) > 1 else [])]

    def name_file(self, file: File) -> list[str]:
        """Return the words of the name, the ways unless all are there: runs of other ways do not replace each other."""
        points = [case for case in file.cases.values() if case.kind == "point"]
        ways = list(dict.fromkeys(case.way for case in points))
        scalings = sorted({case.scaling or "" for case in points})
        return [*super().name_file(file), *(ways if len(ways) < len(WAYS) else []), *scalings]

    def summarize(self, file: File) -> list[str]:
        facts, work, found = file.machine, file.workload or {}, self.derive(file)
        rules = found.protocol
        is_alone = all(found.find_fewest(point).gpus == 1 for point in found.points if point.runs)
        return [
            f"Several {report.name_ranks(file)}: {facts.gpu or facts.cpu}",
            f"Workload {work['name']}: {work['resolution']}x{work['resolution']}, R1 and path length included."
            f" {report.describe_generations(found)}, of {rules.visits} visits each, over {rules.backend}."
            f" PyTorch {facts.torch}, commit {(file.commit or 'unknown')[:12]}{' with changes' if file.dirty else ''}.",
            "A sample is the slowest rank's 16-step cycle. Efficiency is images a second and GPU, relative to the same"
            f" way on the fewest GPUs{', which has no reduction' if is_alone else ''}. Its generations are paired and"
            " their median counts: under noise the medians beside it do not tell it. Communication is profiled. It is"
            " the least of all ranks, and what is exposed the most of all: a rank that waits for another waits inside"
            " NCCL's kernel.",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        yield report.make_table(file, self.derive(file))
        if derive_proofs(file):
            yield report.make_proofs_table(file)

    def draw(self, file: File, kind: str) -> bytes:
        from ladder.report import drawing

        return drawing.save(lambda: report.draw_figure(file, self.derive(file)), kind)


STUDY = Scale()
