"""`ladder doctor --roofline`: how far a step is from the speed of light of this GPU, and where the distance lies.

The speed of light is a workload's convolution FLOPs and its necessary bytes (`floors`), both at the highest rates
recorded for this GPU (`derive`). Beside it stand the timed phases and the kernel families of a traced cycle (`step`).

With `--gpu NAME` nothing is measured: the floor is computed from recorded rates, on any machine. The option `--again
FILE` computes the floors of an earlier result anew. docs/profile.md explains what counts and what does not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from ladder.base import git
from ladder.base.errors import UserError
from ladder.base.locks import device_lock
from ladder.base.paths import ROOT
from ladder.base.text import slug
from ladder.core.job import Job
from ladder.core.records import Fields, write_whole
from ladder.plan import catalog, needs
from ladder.results import plausible
from ladder.results import record as records
from ladder.results.parts import OVERLAP
from ladder.show.table import Column, Table, render_text
from ladder.studies import frame
from ladder.studies.frame import RungCase, Session, Study
from ladder.studies.roofline import derive
from ladder.studies.roofline.derive import Rates, read_copies, read_facts
from ladder.studies.roofline.record import (
    CONVOLUTIONS,
    COPY,
    KINDS,
    OTHERS,
    File,
    Group,
    Measured,
    Observed,
    Options,
    Roofline,
    Today,
    parse_op,
)

OUT = ROOT / "results" / "roofline"
MOST_FAMILIES = 24
UNSEEN_MS = 0.005  # shown as 0.00
MOST_COPIED = 2e13  # bytes/s: more than twice what the fastest memory of a GPU reads and writes
ROUNDED = 1.001  # a sum of parts may be larger than its whole by so much
TITLES = {
    COPY: "copy, TB/s",
    "matmul bf16": "matmul BF16, TFLOP/s",
    "matmul tf32": "matmul TF32, TFLOP/s",
    "matmul fp32": "matmul FP32, TFLOP/s",
}


class RooflineStudy(Study[Options, RungCase, Observed]):
    """The step of one rung, and the rates of the GPU that bound it."""

    name, kind, folder = "roofline", "roofline", "roofline"
    help, examples = "Show how far a step is from this GPU's limit.", ""  # `ladder doctor` has the command
    default_workload = {"cuda": "article", "cpu": "article"}
    uses_images = False

    def list_cases(self, job: Job, file: File | None) -> dict[str, RungCase]:
        from ladder.machine import system

        if file is not None and file.cases:
            return file.cases
        return plan_rung(job.options, job.name, job.workload, system.capabilities(job.device))

    def announce(self, job: Job, cases: Any) -> str:
        return f"{', '.join(cases)} on {job.name}: its distance from the limit of this GPU"

    def observe(self, session: Session, key: str, case: RungCase) -> Observed:
        """Time the step, trace it, then measure the ceilings: their cuDNN algorithms stay out of the step."""
        from ladder.studies.roofline import ceilings, floors, step

        job, layout = session.job, derive.layout_of(case.recipe)
        work = floors.count_work(job.workload, str(case.recipe["precision"]), layout)
        timed = step.observe_step(job.workload, case.recipe)
        today = ceilings.measure(derive.weigh_ops(work, job.workload), layout, tell=_show_progress)
        rates = load_rates(job.machine["name"], job.out)
        return Observed(work=work, step=timed, today=today, recorded=_keep_higher(rates, today))

    def derive(self, file: File) -> Roofline:
        return derive.derive_roofline(file)

    def list_problems(self, file: File) -> Iterable[str]:
        work = file.workload or {}
        if len(file.cases) > 1:
            yield "cases: more than one rung"
        if not all(isinstance(n := work.get(key), int) and n > 0 for key in ("pl_interval", "r1_interval")):
            yield "workload: without the intervals of its lazy phases"
        if not all(isinstance(case.recipe.get("precision"), str) for case in file.cases.values()):
            yield "cases: a recipe without a precision"
        least = plausible.floor_ms(write_whole(file.machine), work)
        for key, each in file.observed.items():
            if each.work is None or each.step is None or each.today is None:
                if each.status == "ok":
                    yield f"{key}: ok without a measurement"
                continue
            if least and each.step.step_ms < least[0]:
                yield "step_ms: faster than this GPU can compute"
            if each.step.busy_ms > ROUNDED * sum(row.us for row in each.step.families) / 1000:
                yield "busy_ms: longer than all kernels"
            for phase, amounts in each.work.items():
                if not sum(amounts.bytes.values()):
                    yield f"work.{phase}: it moves nothing"
                if bad := [name for name in amounts.convolutions if min(parse_op(name).result) < 1]:
                    yield f"work.{phase}: {bad[0]} has no result"
            yield from _list_impossible_rates(file, each)
            try:
                self.derive(file)
            except UserError as error:
                yield str(error)

    def list_cautions(self, file: File) -> list[str]:
        measured = self.derive(file).measured
        return [
            f"no floor: {name} took less" for name in derive.list_below(measured.groups if measured else {})
        ]

    def summarize(self, file: File) -> list[str]:
        result = self.derive(file)
        title = write_title(file.workload or {}, result)
        sentences = write_sentences(file.workload or {}, result)
        if result.floors_commit is not None:
            before, after = ((each or "unknown")[:10] for each in (file.commit, result.floors_commit))
            sentences.append(f"Measured at commit {before}; floors as commit {after} computes them.")
        return [title, f"{title}.", *sentences] if result.measured is None else [title, " ".join(sentences)]

    def list_tables(self, file: File) -> Iterable[Table]:
        return list_tables(self.derive(file))

    def name_file(self, file: File) -> list[str]:
        return [name for name in derive.list_names(file) if name]


STUDY = RooflineStudy()


def _list_impossible_rates(file: File, each: Observed) -> Iterator[str]:
    peak = plausible.peak(write_whole(file.machine)) * 1e12 * plausible.BOOST
    stored = {key: rate.value for key, rate in each.recorded.items()}
    for name, value in [*(each.today.rates if each.today else {}).items(), *stored.items()]:
        if name == COPY:
            most = MOST_COPIED
        elif name.startswith("step of"):  # caches are no memory
            continue
        else:
            most = peak * (1 if name.startswith("matmul") else plausible.WINOGRAD)
        if value > most:
            yield f"{name}: {value:.3g} a second is more than this GPU can do"


# --- the command ------------------------------------------------------------------------------------------------------


def measure_distance(options: Options, workload: str | None, device: str | None, as_json: bool) -> int:
    """Measure the step of a rung beside its floor, write the result, and return the exit status.

    Raises:
        UserError: no GPU to measure, or no such rung here; one line.
    """
    from ladder.machine import environment, system

    if (device := system.choose_device(device)) != "cuda":
        gpus = ", ".join(list_gpus(OUT))
        raise UserError(
            f"--roofline measures a GPU, and none is used here; for the floor alone: --gpu NAME ({gpus})"
        )
    environment.refuse(device)
    request = frame.Request(workload, device, None, OUT, None, None, as_json)
    job = frame.resolve_job(STUDY, options, request, system.facts(device))
    with device_lock(system.device_key(device)):  # until the files are there: the context stays as long
        return frame.run_study(STUDY, job)


def show_floor(options: Options, workload: str | None, gpu: str, as_json: bool) -> None:
    """Print the floor of a rung on a GPU by its recorded rates.

    Raises:
        UserError: no recorded rates of ``gpu``, or no such rung; one line.
    """
    from ladder.studies.roofline import floors

    name, fields = catalog.load_workload(workload or "article")
    rates = choose_rates(gpu, OUT)  # first: counting the work takes seconds
    cases = plan_rung(options, name, fields, dict.fromkeys(needs.NEEDS))
    ((rung, case),) = cases.items()
    layout, ladder = derive.layout_of(case.recipe), catalog.load_ladder(options.ladder).name
    base = Roofline(ladder=ladder, rung=rung, recipe=case.recipe, layout=layout, gpu=rates.gpu)
    work = floors.count_work(fields, str(case.recipe["precision"]), layout)
    result, named = derive.derive_floor(base, work, fields, rates), {"name": name, **fields, "data": None}
    if as_json:
        header = records.header("roofline", None, named) | {"complete": True}
        click.echo(json.dumps(header | write_whole(result), indent=1, allow_nan=False))
    else:
        parts = [write_title(named, result), *map(render_text, list_tables(result))]
        click.echo("\n\n".join([*parts, *write_sentences(named, result)]))


def count_again(path: Path, as_json: bool) -> None:
    """Rewrite a result with floors computed anew, from all rates on record and its own trace.

    The measured numbers stay, and so do the measurement's machine and commit.

    Raises:
        UserError: the file holds no measured roofline; one line.
    """
    from ladder.studies.roofline import floors

    try:
        file = frame.read_file(STUDY, path)
    except UserError as error:
        raise UserError(f"--again: {error}") from None
    before = STUDY.derive(file)
    each = file.observed.get(before.rung)
    if each is None or each.today is None or before.recorded is None or file.workload is None:
        raise UserError(f"--again: {path}: nothing was measured")
    fields = {key: value for key, value in file.workload.items() if key != "name"}
    rates = load_rates(before.gpu, OUT)
    rates.join(each.recorded)
    rates.add(before.recorded, path.name)
    each = msgspec.structs.replace(
        each,
        work=floors.count_work(fields, str(before.recipe["precision"]), before.layout),
        recorded=_keep_higher(rates, each.today),
        floors_commit=git.commit_of(ROOT)[0],
    )
    file = msgspec.structs.replace(file, observed={before.rung: each})
    frame.show_result(STUDY, file, frame.write_file(STUDY, file, path, pages=True), as_json)


def plan_rung(
    options: Options, name: str, workload: Fields, capabilities: Mapping[str, str | None]
) -> dict[str, RungCase]:
    """Return a rung with its whole recipe. If none is named, it is the highest that can run.

    Raises:
        UserError: no such rung, it cannot run here, or no rate of the workload's convolutions is known.
    """
    from stylegan_lite.config import Recipe

    if (cheaper := workload.get("convolution", "full")) != "full":
        raise UserError(f"--roofline: {name} has convolution: {cheaper}, and no rate of its groups is known")
    able = needs.possible(dict(capabilities), workload)
    rungs = None if options.rung is None else [options.rung]
    planned = catalog.climb(catalog.load_ladder(options.ladder), able, rungs)
    possible = [each for each in planned if each.skipped is None]
    if not possible:
        raise UserError(f"{planned[-1].name} cannot run here: {planned[-1].skipped}")
    return {possible[-1].name: RungCase(Recipe.from_dict(possible[-1].recipe or {}).to_dict())}


def _show_progress(line: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{line[:100]}", nl=False, err=True)


# --- rates on record --------------------------------------------------------------------------------------------------


def load_rates(gpu: str, folder: Path) -> Rates:
    """Return the rates of a GPU in a folder's results and in the tunings beside it, without the committed facts."""
    rates = Rates(gpu)
    for path, file in _read_files(folder, f"{gpu}-*.json"):
        if file.machine.name == gpu:
            rates.add(STUDY.derive(file).recorded or {}, path.name)
    for path in sorted((folder.parent / "kernels").glob("*-tuning.json")):
        rates.add(read_copies(path, gpu), path.name)
    return rates


def _read_files(folder: Path, pattern: str) -> Iterator[tuple[Path, File]]:
    """Yield the readable rooflines of a folder."""
    for path in sorted(folder.glob(pattern)):
        try:
            yield path, frame.read_file(STUDY, path)
        except UserError:
            continue


def list_gpus(folder: Path) -> list[str]:
    """Return the GPUs whose floor can be computed from recorded rates."""
    return sorted({*read_facts(), *(file.machine.name for _, file in _read_files(folder, "*.json"))})


def choose_rates(gpu: str, folder: Path) -> Rates:
    """Return all rates of a GPU that a user names: "nvidia-h200", "NVIDIA H200" or "H200"."""
    names = list_gpus(folder)
    for name in (slug(gpu), f"nvidia-{slug(gpu)}"):
        if name in names:
            rates = load_rates(name, folder)
            rates.add_facts()
            return rates
    raise UserError(f"--gpu: no rates are recorded of {gpu!r}; there are: {', '.join(names) or 'none'}")


def _keep_higher(rates: Rates, today: Today) -> dict[str, Any]:
    """Return the rates on record above those of the day."""
    return {key: rate for key, rate in rates.known.items() if rate.value > today.rates.get(key, 0.0)}


# --- sentences and tables ---------------------------------------------------------------------------------------------


def write_title(workload: Fields, result: Roofline) -> str:
    of_ladder = f" of ladder {result.ladder}" if result.ladder else ""
    size = f"{workload.get('resolution')}x{workload.get('resolution')}, batch {workload.get('batch')}"
    precision = str(result.recipe["precision"]).upper()
    return (
        f"Roofline of {workload['name']} ({size}), rung {result.rung}{of_ladder}, {precision} {result.layout}, on"
        f" {result.gpu}"
    )


def write_sentences(workload: Fields, result: Roofline) -> list[str]:
    """Return what a reader needs beside the tables."""
    lines = []
    total = sum(row.flops for row in result.convolutions)
    unknown = sum(row.flops for row in result.convolutions if row.source.startswith("not measured"))
    if (measured := result.measured) is None:
        lines.append("Nothing was measured here: floors from recorded rates.")
    else:
        lines.append(
            f"A step of {result.rung} on {workload['name']} takes {measured.step_ms:.2f} ms,"
            f" {measured.times_light:.2f} times the floor ({result.step['light_ms']:.2f} ms);"
            f" {measured.distance_ms:.2f} ms lie between."
        )
        lines += _write_score(workload, result, measured.step_ms)
        lines += [
            f"In a traced step ({low.source}) {part} took {low.ms:.2f} ms where the ceilings alone ask for"
            f" {low.alone_ms:.2f}: that is their floor."
            for part, low in result.in_step.items()
        ]
        if measured.phases_ms and result.recipe.get("whole_step_graph") is True:
            lines.append("Phases were timed in a second step, in which each is a graph of its own.")
        if result.today and (skipped := result.today.skipped):
            lines.append(f"Not measured today: {len(skipped)} shapes ({next(iter(skipped.values()))}).")
    if unknown:
        lines.append(
            f"{unknown / total:.0%} of the convolutions' FLOPs are of shapes that nobody has measured: they take the"
            " highest rate of their kind, so the floor can be too low, not too high."
        )
    return lines


def _write_score(workload: Fields, result: Roofline, step_ms: float) -> list[str]:
    """Return the sentence on the speed-of-light score; none for a machine and workload without frozen times."""
    if (known := derive.find_frozen(result.gpu, workload)) is None:
        return []
    light_ms = result.step["light_ms"]
    fixed, today = (derive.derive_score(step_ms, known.base_ms, ms) for ms in (known.floor_ms, light_ms))
    score = "none, the step is below the floor" if fixed is None else f"{fixed:.3f}"
    return [
        f"Speed-of-light score: {score} (1 at the floor, 0.5 at the base), by the floor of {known.floor_ms:.2f} ms"
        f" frozen on {known.since} and a base of {known.base_ms:.2f} ms;"
        f" {'none' if today is None else f'{today:.3f}'} by today's floor of {light_ms:.2f} ms."
    ]


def list_tables(result: Roofline) -> list[Table]:
    """Return ceilings, phases and bytes, and with a measured step its groups and its heaviest families of kernels."""
    if not result.phases:
        return []
    tables = [_list_ceilings(result), _list_phases(result), _list_bytes(result)]
    if (measured := result.measured) is None:
        return tables
    of_distance = Column("of the distance", "share")
    columns = [Column("a step's time"), Column("ms", "ms"), Column("floor ms", "ms"), of_distance]
    rows = [[name, each.ms, each.floor_ms, each.of_distance] for name, each in divide_step(measured).items()]
    kernels = [Column("kernels"), Column("us a step", "count"), Column("kernels a step", "count", 1)]
    kernels += [Column("of the step", "share"), of_distance, Column("heaviest", priority=2)]
    heaviest = [
        [row.family, row.us, row.kernels, row.of_step, row.of_distance, row.heaviest]
        for row in measured.families[:MOST_FAMILIES]
    ]
    return [*tables, Table(columns, rows), Table(kernels, heaviest)]


def _list_ceilings(result: Roofline) -> Table:
    """Return the highest rates and today's. Convolutions show their unweighted range over shapes."""
    today = result.today.rates if result.today else {}
    columns = [Column("ceiling"), Column("highest", "amount"), Column("recorded by", priority=2)]
    columns.append(Column("today", "amount", 1))
    rows: list[list[Any]] = [
        [TITLES[key], rate.value / 1e12, rate.source, today[key] / 1e12 if key in today else None]
        for key, rate in result.ceilings.items()
    ]
    for kind in KINDS:
        if mine := [row for row in result.convolutions if row.name.startswith(f"{kind}, ")]:
            total = sum(row.flops for row in mine)
            heavy = [row for row in mine if row.flops >= 0.01 * total]
            known = sum(row.flops for row in mine if not row.source.startswith("not measured"))
            highest = _write_range([row.rate for row in heavy])
            now = _write_range([today[row.name] for row in heavy if row.name in today])
            share = f"{known / total:.0%} of the FLOPs measured"
            rows.append([f"convolution {kind}, TFLOP/s", highest, share, now])
    return Table(columns, rows)


def _write_range(values: list[float]) -> str | None:
    return f"{min(values) / 1e12:.0f} to {max(values) / 1e12:.0f}" if values else None


def _list_phases(result: Roofline) -> Table:
    measured = result.measured
    times: dict[str, float] = dict(measured.phases_ms) if measured else {}  # type: ignore[arg-type]
    if measured:
        times["step"] = measured.step_ms
    columns = [Column("phase"), Column("TFLOP", "amount", 3), Column("convolutions ms", "ms", 2)]
    columns += [Column("bytes ms", "ms", 2), Column("matmuls ms", "ms", 2), Column("light ms", "ms")]
    columns += [
        Column("at matmul rate ms", "ms", 3),
        Column("measured ms", "ms"),
        Column("x light", "factor"),
    ]
    keys = ("convolutions_ms", "bytes_ms", "matmul_ms", "light_ms", "peak_ms")
    rows = [
        [
            name, each["flops"] / 1e12, *(each[key] for key in keys), times.get(name),
            times[name] / each["light_ms"] if name in times and each["light_ms"] else None,
        ]
        for name, each in {**result.phases, "step": result.step}.items()
    ]  # fmt: skip
    table = Table(columns, rows)
    return table if measured else table.drop_empty()


def _list_bytes(result: Roofline) -> Table:
    """Return the step's bytes by purpose."""
    rows = [
        [name.removesuffix("_bytes").replace("_", " "), value / 1e6]
        for name, value in result.step.items()
        if name.endswith("_bytes")
    ]
    columns = [Column("bytes for"), Column("MB a step", "count")]
    return Table(columns, [*rows, ["all", result.step["bytes"] / 1e6]])


def divide_step(measured: Measured) -> dict[str, Group]:
    """Return the groups, and below zero what ran at the same time as another kernel: each instant counts once.

    A group holds all milliseconds of its kernels. On parallel streams they are more than the step has.
    """
    groups = dict(measured.groups)
    twice = sum(groups[name].ms for name in (CONVOLUTIONS, OTHERS)) - measured.busy_ms
    if twice > UNSEEN_MS:
        gap = measured.distance_ms
        groups[OVERLAP] = Group(-twice, 0.0, -twice / gap if gap else None)
    return groups
