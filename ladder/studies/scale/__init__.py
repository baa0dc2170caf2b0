"""`ladder scale`: how a step scales over the GPUs of this machine, by the way in which gradients are averaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.options import whole_numbers
from ladder.core.records import write_record
from ladder.engine import models
from ladder.machine import neighbours
from ladder.report import drawing
from ladder.results import publishable, sources
from ladder.results import store as results
from ladder.results.combine import merging
from ladder.show.table import Column, Table
from ladder.show.themes import LIGHT
from ladder.studies import frame
from ladder.studies.base import Session, Study
from ladder.studies.scale import record
from ladder.studies.scale.record import STRONG, WAYS, WEAK, Case, File, Observed, Options

MOST = 64  # GPUs, or ranks on a CPU
REFUSED = ("not engaged", "failed: parity")
TOO_FEW = "too few generations"
TITLES = {WEAK: "weak: a fixed batch on each GPU", STRONG: "strong: a fixed total batch"}


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
ladder scale flat ddp --model my_pair.py        your own networks; the setting `batch` of their function is changed
ladder scale flat ddp --device cpu --gpus 1,2   ranks on the CPU, over gloo: a try-out
ladder scale --resume results/scaled/MACHINE-article-b32-top-ddp-weak-partial.json
"""
    extendable, answers, takes_pairs = ("generations", "no_proof"), ("ok", "n/a"), True

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        points = [case for case in (file.cases if file else {}).values() if case.kind == "point"]
        points = points or plan_points(job)
        able = [case for case in points if case.problem is None]
        if not able:
            raise UserError(f"none of these ways runs here: {points[0].way}: {points[0].problem}")
        most = {case.way: case for case in sorted(able, key=lambda case: case.gpus) if case.gpus > 1}
        # One group a GPU, and path length for each: the reference in FP64 of the total batch stays small.
        share = max(int(job.workload.get("mbstd_group") or 4), int(job.workload.get("pl_batch_shrink") or 2))
        # Parts of a batch with running statistics of their own are another algorithm: there is nothing to be equal to.
        is_other = job.facts is not None and job.facts["split"]
        proved = [] if job.options.no_proof or is_other else most.values()
        proofs = [replace(each, kind="proof", scaling=None, batch=each.gpus * share) for each in proved]
        return {case.key: case for case in [*points, *proofs]}

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
        whole: dict[tuple[str, str | None], set[int]] = {}
        for key, case in file.cases.items():
            each = file.observed.get(key, Observed())
            if case.kind == "point" and case.problem is None and each.status == "ok":
                numbers = {run.generation for run in each.runs}
                whole[case.series] = whole.get(case.series, numbers) & numbers
        kept = {}
        for key, each in file.observed.items():
            runs = [run for run in each.runs if run.generation in whole[file.cases[key].series]]
            is_proof = file.cases[key].kind == "proof" and each.status == "ok"
            if runs or is_proof or each.status in (*record.STAYS, "n/a"):
                kept[key] = replace(each, runs=runs)
        return kept

    def has_answers(self, file: File) -> bool:
        lengths = [len(each.runs) for each in file.observed.values()]
        return super().has_answers(file) and not any(0 < n < file.options.generations for n in lengths)

    def derive(self, file: File) -> Any:
        proofs = [
            {"way": case.way, "gpus": case.gpus, "batch": case.batch, "status": each.status, "reason": each.reason,
             "parity": each.verdict, "lines": each.lines}
            for case, each in list_proofs(file)
        ]  # fmt: skip
        options = file.options
        protocol = {
            "generations": options.generations, "visits": options.visits, "seed": options.seed,
            "backend": name_backend(file), "notes": frame.list_cautions(self, file),
        }  # fmt: skip
        points = record.derive_points(file)
        return {"protocol": protocol, "proofs": proofs, "points": points, "merged": file.merged}

    def list_problems(self, file: File) -> Iterable[str]:
        points = {key: case for key, case in file.cases.items() if case.kind == "point"}
        if len({case.batch for case in points.values() if case.scaling == STRONG}) > 1:
            yield "strong scaling: more than one total batch"
        if len({(*case.series, case.gpus) for case in points.values()}) < len(points):
            yield "cases: a point is there twice"
        for key, case in points.items():
            weak = int((file.workload or {})["batch"] or 1) * case.gpus
            if case.scaling == WEAK and case.batch != weak:
                yield f"{key}: batch {case.batch}, expected {weak}, the workload's on each GPU"
            each = file.observed.get(key, Observed(status="n/a"))
            if (each.status == "ok") != bool(each.runs):
                yield f"{key}: {each.status} {'with' if each.runs else 'without'} a run"
            if len({run.generation for run in each.runs}) < len(each.runs):
                yield f"{key}: a generation is there twice"
            for late in (late for run in each.runs for late in run.late):
                if late.rank >= case.gpus or late.idle_ms > late.waited_ms:
                    yield f"{key}: rank {late.rank} of {case.gpus}, idle {late.idle_ms:g} of {late.waited_ms:g} ms"

    def is_interrupted(self, file: File) -> bool:
        """Ways that lack generations are named: other ways of a result that was stopped are whole."""
        return not file.is_complete and not record.list_short(record.derive_points(file))

    def list_cautions(self, file: File) -> list[str]:
        points = record.derive_points(file)
        proved = {case.way for case, each in list_proofs(file) if each.status == "ok"}
        lines = [] if any(point.runs for point in points) else [results.few()]
        if short := record.list_short(points):
            few = f"fewer than {results.FEWEST_ROUNDS} generations of"
            lines.append(f"{few} {', '.join(short)}: not to be quoted")
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
        return [
            f"Several {name_ranks(file)}: {file.machine.gpu or file.machine.cpu}",
            f"Workload {frame.describe_workload(file)}, all phases included."
            f" {describe_generations(file)}, of {file.options.visits} visits each, over"
            f" {name_backend(file)}."
            f" {frame.describe_software(file)}",
            "A sample is the slowest rank's 16-step cycle. Efficiency is images a second and GPU, relative to the same"
            " way on the fewest GPUs: the median over generations, each paired. Communication is profiled: the least of"
            " all ranks, and of what is exposed the most, waiting for another rank included.",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        yield make_table(file)
        if late := make_late_table(file):
            yield late
        rows = []
        for case, each in list_proofs(file):
            result = f"{each.describe_parity()}; engaged"
            if each.status != "ok":
                result = f"{each.status}: {each.reason}"
            rows.append(
                [f"{case.way} on {case.gpus} {name_ranks(file)}", case.batch, result, "; ".join(each.lines)]
            )
        titles = [Column("proof"), Column("batch", "count"), Column("result"), Column("receipt", priority=1)]
        if rows:
            yield Table(titles, rows)

    def draw(self, file: File, kind: str) -> bytes:
        return drawing.save(lambda: draw_figure(file, record.derive_points(file)), kind)


STUDY = Scale()


def plan_points(job: Job) -> list[Case]:
    """Return the points of a request. Raises UserError."""
    from ladder.machine import system
    from ladder.plan import needs
    from stylegan_lite.config import ConfigError

    options, workload = job.options, job.workload
    models.refuse_fixed(job, "batch")
    gpus = count_gpus(options.gpus, len(system.gpu_uuids()) if job.device == "cuda" else None)
    able = needs.list_able(job.device, workload, job.facts)
    scalings = (WEAK, STRONG) if options.scaling == "both" else (options.scaling,)
    if options.total is not None and STRONG not in scalings:
        raise UserError("--total is for --scaling strong: leave it out with weak")
    total = options.total or int(workload["batch"]) * gpus[-1]
    try:
        return record.list_points(options.ways, able, workload, gpus, scalings, total)
    except ConfigError as error:
        raise UserError(f"--total: {error}") from None


def count_gpus(option: str | None, there: int | None) -> list[int]:
    """Return the numbers of GPUs to measure. `there` is how many the machine has, None for ranks on a CPU."""
    numbers = whole_numbers("--gpus", option, MOST)
    if numbers is None:
        most = 2 if there is None else there
        return sorted({*(2**k for k in range(10) if 2**k <= most), most})
    if there is not None and max(numbers) > there:
        raise UserError(f"--gpus {max(numbers)}: torch sees {there} here")
    return sorted(numbers)


def list_proofs(file: File) -> list[tuple[Case, Observed]]:
    """Return the proofs of ways that were seen."""
    proofs = {key: case for key, case in file.cases.items() if case.kind == "proof"}
    return [(case, file.observed[key]) for key, case in proofs.items() if key in file.observed]


def name_ranks(file: File) -> str:
    """Return what a point has a number of: GPUs, or ranks that share a CPU."""
    return "GPUs" if file.machine.gpu else "ranks"


def name_backend(file: File) -> str:
    """Return what the ranks talk over."""
    return "nccl" if file.machine.device == "cuda" else "gloo"


def describe_generations(file: File) -> str:
    """Return how many generations the points have, in words."""
    counts = sorted({len(each.runs) for each in file.observed.values() if each.runs}) or [0]
    span = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{span} generations" + (f" in {len(file.merged)} runs" if file.merged else "")


def make_table(file: File) -> Table:
    """Return a row for each point."""
    columns = [
        Column("way"), Column("scaling"), Column(name_ranks(file), "count"), Column("batch", "count", 3),
        Column("ms/step", "ms"), Column("images/s", "amount", 2), Column("efficiency", "share"),
        Column("95% interval", "shares", 1), Column("communication ms", "ratio", 5), Column("exposed ms", "ratio", 4),
        Column("GiB reserved", "gib", 6),
    ]  # fmt: skip
    points, rows = record.derive_points(file), []
    for point in points:
        few = record.is_short(point, points)
        row: list[Any] = [point.way, point.scaling, point.gpus, point.batch]
        if point.step_ms is None or point.status != "ok":
            row += [f"{point.status}: {point.reason}", *[None] * 6]
        else:
            interval = None if point.low is None else (point.low, point.high)
            row += [point.step_ms, point.images_per_s, record.find_efficiency(point, points)]
            between = [None, None] if point.late else [point.comm_ms, point.exposed_ms]
            row += [TOO_FEW if few else interval, *between, point.peak_bytes]
        rows.append(row)
    split = any(point.late for point in points) and all(row[8] is None for row in rows)
    return Table(columns, rows).drop_columns(["communication ms", "exposed ms"] if split else [])


def make_late_table(file: File) -> Table | None:
    """Return transfer and waiting apart, and who came last; None of files that do not hold it."""
    columns = [
        Column("way"), Column("scaling"), Column(name_ranks(file), "count"), Column("transfer ms", "ratio"),
        Column("waiting ms", "ratio"), Column("exposed ms", "ratio", 2), Column("latest rank"),
        Column("waited for it ms", "ratio"),
        Column("its GPU meanwhile", priority=1),
    ]  # fmt: skip
    rows = []
    for point in record.derive_points(file):
        if point.late:
            latest, waiting = point.late[0], sum(each.waited_ms for each in point.late)
            row = [point.way, point.scaling, point.gpus, point.transfer_ms, waiting, point.exposed_ms]
            rows.append([*row, f"rank {latest.rank}", latest.waited_ms, describe_meanwhile(latest)])
    return Table(columns, rows) if rows else None


def describe_meanwhile(late: record.Late) -> str:
    """Return in words what a rank's GPU did while others waited for it."""
    idle = late.idle_ms / late.waited_ms if late.waited_ms else 0.0
    words = [f"{idle:.0%} idle"] if idle > 0.005 else []
    return "; ".join([*words, *([f"most work: {late.busiest}"] if late.busiest else [])])


def draw_figure(file: File, points: list[record.Point]) -> Any:
    """Return the figure: efficiency over the number of GPUs, weak and strong scaling side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 5.2))
    shown = [each for each in points if record.find_efficiency(each, points) is not None]
    scalings = [each for each in (WEAK, STRONG) if any(point.scaling == each for point in shown)] or [WEAK]
    grid = figure.add_gridspec(1, len(scalings), left=0.08, right=0.97, top=0.74, bottom=0.17, wspace=0.15)
    ways = list(dict.fromkeys(point.way for point in shown))
    gpus = sorted({point.gpus for point in shown})
    colors = (LIGHT.busy, LIGHT.article, LIGHT.ink, LIGHT.muted)
    for cell, scaling in zip(grid, scalings, strict=True):
        axes = figure.add_subplot(cell)
        axes.axhline(1.0, color=LIGHT.grid, linewidth=1.2)
        top = 1.05
        for number, way in enumerate(ways):
            mine = [point for point in shown if (point.way, point.scaling) == (way, scaling)]
            values = [point.efficiency or 0.0 for point in mine]
            lows = [point.low or value for point, value in zip(mine, values, strict=True)]
            highs = [point.high or value for point, value in zip(mine, values, strict=True)]
            error = [[max(0.0, v - low) for v, low in zip(values, lows, strict=True)],
                     [max(0.0, high - v) for v, high in zip(values, highs, strict=True)]]  # fmt: skip
            few = any(record.is_short(point, points) for point in mine)  # hollow: not to be quoted
            axes.errorbar(
                [gpus.index(point.gpus) for point in mine], values, yerr=error, marker="o", markersize=4, capsize=3,
                label=f"{way} ({TOO_FEW})" if few else way, color=colors[number % 4],
                markerfacecolor="white" if few else None, linestyle=("-", "--")[number // 4 % 2],
            )  # fmt: skip
            top = max([top, *highs])
        if not ways:
            axes.text(
                0.5, 0.5, "no way was measured on two numbers of GPUs", transform=axes.transAxes, ha="center"
            )
        axes.set_xticks(range(len(gpus)), [str(n) for n in gpus])
        axes.set_ylim(0, top * 1.02)
        axes.set_xlabel(name_ranks(file), color=LIGHT.muted)
        axes.set_title(TITLES[scaling], loc="left", fontsize=9.5, color=LIGHT.ink)
        drawing.clear_axes(axes)
    figure.axes[0].set_ylabel("efficiency", color=LIGHT.muted)
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="upper left", bbox_to_anchor=(0.012, 0.915), ncols=3, frameon=False)
    under = f"{frame.describe_workload(file)}, {describe_generations(file)}"
    under = f"{under}, PyTorch {file.machine.torch}. Higher is better."
    frame.draw_heading(STUDY, file, figure, "does it scale?", under)
    return figure


# --- several runs as one result ---------------------------------------------------------------------------------------


def join(runs: Sequence[tuple[Path, File]], anyway: bool = False) -> File:
    """Return the result of all runs in these files; one file is returned as it is.

    Points of one generation are compared with each other. So every generation gets a new number, the same for all
    points of it. Samples stay.

    Raises:
        UserError: the files do not belong together, or hold the same run; one line.
    """
    runs = sorted(runs, key=lambda each: each[1].started[:19])
    if len(runs) == 1:
        return runs[0][1]
    merging.refuse_the_same(runs, _list_visits)  # type: ignore[arg-type]
    for index, (path, file) in enumerate(runs):
        if not any(each.runs for each in file.observed.values()):
            raise UserError(f"{path}: nothing was measured in it")
        for earlier_path, earlier in runs[:index]:
            merging.refuse_others(earlier_path, path, partial(list_differences, earlier, file), anyway)
    joined = _join([file for _, file in runs])
    try:
        return frame.decode_file(STUDY, write_record(joined))
    except UserError as error:
        raise UserError(f"these cannot be one result: {error}") from None


def _list_visits(file: File) -> set[tuple[Any, ...]]:
    """Return every run by its point and samples. Two clocks do not agree to the last digit by chance."""
    observed = file.observed.items()
    return {(key, file.cases[key].batch, *run.samples_ms) for key, each in observed for run in each.runs}


def list_differences(first: File, other: File, anyway: bool = False) -> list[str]:
    """Return why points of the two cannot stand side by side: each difference with both values."""

    def is_timed(file: File, key: str) -> bool:
        return key in file.observed and bool(file.observed[key].runs)

    pair = first, other
    lines = merging.list_origin_differences(*pair, anyway)  # type: ignore[arg-type]
    visits = [each.options.visits for each in pair]
    lines += [f"visits: {visits[0]} and {visits[1]}"] if visits[0] != visits[1] else []
    totals = [{case.batch for case in each.cases.values() if case.scaling == STRONG} for each in pair]
    if all(totals) and totals[0] != totals[1]:
        lines.append(f"total batch of strong scaling: {' and '.join(str(min(each)) for each in totals)}")
    for key in first.cases:
        recipes = [each.cases[key].recipe for each in pair if is_timed(each, key)]
        if len(recipes) == 2 and (
            names := [k for k in recipes[0] | recipes[1] if recipes[0].get(k) != recipes[1].get(k)]
        ):
            lines.append(f"recipe of {key}: {', '.join(names)}")
    for own, theirs in (pair, pair[::-1]):
        ways = {case.way for key, case in theirs.cases.items() if case.gpus > 1 and is_timed(theirs, key)}
        for key, each in own.observed.items():
            case = own.cases[key]
            if case.kind == "proof" and each.status in REFUSED and case.way in ways:
                lines.append(f"{case.way}: {each.status} and timed")
    return lines


def _join(files: Sequence[File]) -> File:
    """Return one result around the points of all, oldest first."""
    newest, first = files[-1], 0
    cases: dict[str, Case] = {}
    observed: dict[str, Observed] = {}
    for file in files:
        for key, case in file.cases.items():
            cases.setdefault(key, case)
            if (each := file.observed.get(key)) is None:
                continue
            runs = [replace(run, generation=first + run.generation) for run in each.runs]
            before = observed.get(key, Observed(status="n/a"))
            # Where runs differ: a number, else why there is none. Of proofs one that is ok, else the newest.
            chosen = each if each.status == "ok" or before.status != "ok" else before
            observed[key] = replace(chosen, runs=[*before.runs, *runs], stopped=None)
        first += record.find_end(file)
    for key, each in observed.items():  # a whole run has so many
        if 0 < len(each.runs) < results.FEWEST_ROUNDS:
            observed[key] = replace(each, stopped=True)
    points = [case for case in cases.values() if case.kind == "point"]
    options = replace(
        newest.options,
        ways=list(dict.fromkeys(case.way for case in points)),
        gpus=",".join(map(str, sorted({case.gpus for case in points}))),
        generations=max(file.options.generations for file in files),
    )
    return replace(
        newest,
        cases=cases,
        observed=observed,
        merged=[
            run for file in files for run in file.merged or [sources.as_merged(file, record.find_end(file))]
        ],
        options=options,
        dirty=True if any(file.dirty for file in files) else newest.dirty,
        seconds=round(sum(file.seconds for file in files), 1),
        **sources.join_commits(files),
    )
