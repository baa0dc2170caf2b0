"""`ladder doctor --roofline`: how far a step is from the speed of light of this GPU, and where the distance lies.

The speed of light is a workload's convolution FLOPs and its necessary bytes (`floors`), both at the highest rates
recorded for this GPU (`derive`). Beside it stand the timed phases and the kernel families of a traced cycle
(`measure`). docs/profile.md explains what counts and what does not.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from ladder.core import git
from ladder.core.errors import UserError, format_error
from ladder.core.job import Job
from ladder.core.locks import device_lock
from ladder.core.paths import ROOT
from ladder.core.records import Fields, write_whole
from ladder.core.text import make_slug
from ladder.plan import catalog, needs
from ladder.results import plausible
from ladder.results import record as records
from ladder.results.parts import OVERLAP
from ladder.show.table import Column, Table, render_text
from ladder.studies import frame
from ladder.studies.frame import RungCase, Session, Study
from ladder.studies.roofline import derive
from ladder.studies.roofline.derive import File, Observed, Options, Rate, Rates, Roofline

OUT = ROOT / "results" / "roofline"
MOST_FAMILIES = 24
UNSEEN_MS = 0.005  # shown as 0.00
MOST_COPIED = 2e13  # bytes/s: more than twice what the fastest memory of a GPU reads and writes
ROUNDED = 1.001  # a sum of parts may be larger than its whole by so much


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
        return plan_rung(job.options, job.name, job.workload, system.list_capabilities(job.device))

    def announce(self, job: Job, cases: Any) -> str:
        return f"{', '.join(cases)} on {job.name}: its distance from the limit of this GPU"

    def observe(self, session: Session, key: str, case: RungCase) -> Observed:
        """Time the step, trace it, then measure the ceilings: their cuDNN algorithms stay out of the step."""
        from ladder.studies.roofline import floors, measure

        job, layout = session.job, derive.layout_of(case.recipe)
        work = floors.count_work(job.workload, str(case.recipe["precision"]), layout)
        timed = measure.observe_step(job.workload, case.recipe)
        today = measure.measure_rates(derive.weigh_ops(work, job.workload), layout)
        rates = load_rates(job.machine["name"], job.out)
        return Observed(work=work, step=timed, today=today, recorded=_pick_higher(rates, today))

    def derive(self, file: File) -> Roofline:
        return derive.derive_roofline(file)

    def list_problems(self, file: File) -> Iterable[str]:
        try:
            self.derive(file)
        except UserError as error:
            yield str(error)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            yield f"no floor follows from its cases, workload and work ({format_error(error)})"
        peak = plausible.peak(write_whole(file.machine)) * 1e12 * plausible.BOOST
        for each in file.observed.values():
            if each.step is None or each.today is None:
                continue
            if each.step.busy_ms > ROUNDED * sum(row.us for row in each.step.families) / 1000:
                yield "busy_ms: longer than all kernels"
            stored = [(name, rate.value) for name, rate in each.recorded.items()]
            for name, value in [*each.today.rates.items(), *stored]:
                most = peak * (1 if name.startswith("matmul") else plausible.WINOGRAD)
                most = MOST_COPIED if name == derive.COPY else most
                if value > most and not name.startswith("step of"):  # caches are no memory
                    yield f"{name}: {value:.3g} a second is more than this GPU can do"

    def list_cautions(self, file: File) -> list[str]:
        measured = self.derive(file).measured
        groups = measured.groups if measured else {}
        below = [name for name, each in groups.items() if each.ms < each.floor_ms * (1 - 1e-9)]
        return [f"no floor: {name} took less" for name in below]

    def summarize(self, file: File) -> list[str]:
        return write_summary(file.workload or {}, self.derive(file))

    def list_tables(self, file: File) -> Iterable[Table]:
        return list_tables(self.derive(file))

    def name_file(self, file: File) -> list[str]:
        return [name for name in derive.list_names(file) if name]


STUDY = RooflineStudy()


def measure_distance(options: Options, workload: str | None, device: str | None, as_json: bool) -> int:
    """Measure the step of a rung beside its floor, write the result, and return the exit status."""
    from ladder.machine import environment, system

    if (device := system.choose_device(device)) != "cuda":
        raise UserError("--roofline measures a GPU, and none is used here; for the floor alone: --gpu NAME")
    environment.refuse_variables(device)
    request = frame.Request(workload, device, out=OUT, as_json=as_json)
    job = frame.resolve_job(STUDY, options, request, system.describe_machine(device))
    with device_lock(system.device_key(device)):  # until the files are there: the context stays as long
        return frame.run_study(STUDY, job)


def show_floor(options: Options, workload: str | None, gpu: str, as_json: bool) -> None:
    """Print the floor of a rung on a GPU by its recorded rates. Raises UserError if there are none, in one line."""
    from ladder.studies.roofline import floors

    name, fields = catalog.load_workload(workload or "article")
    rates = choose_rates(gpu, OUT)  # first: counting the work takes seconds
    ((rung, case),) = plan_rung(options, name, fields, dict.fromkeys(needs.NEEDS)).items()
    layout, ladder = derive.layout_of(case.recipe), catalog.load_ladder(options.ladder).name
    base = Roofline(ladder=ladder, rung=rung, recipe=case.recipe, layout=layout, gpu=rates.gpu)
    work = floors.count_work(fields, str(case.recipe["precision"]), layout)
    result, trained = derive.derive_floor(base, work, fields, rates), {"name": name, **fields, "data": None}
    if as_json:
        header = records.make_header("roofline", None, trained) | {"complete": True}
        click.echo(json.dumps(header | write_whole(result), indent=1, allow_nan=False))
    else:
        title, sentences = write_summary(trained, result)
        click.echo("\n\n".join([title, *map(render_text, list_tables(result)), sentences]))


def count_again(path: Path, as_json: bool) -> None:
    """Rewrite a result with floors computed anew, from all rates on record and its own trace.

    The measured numbers stay, and so do the measurement's machine and commit. Raises UserError if nothing was measured.
    """
    from ladder.studies.roofline import floors

    try:
        file = frame.read_file(STUDY, path)
    except UserError as error:
        raise UserError(f"--again: {error}") from None
    before = STUDY.derive(file)
    if before.today is None or before.recorded is None or file.workload is None:
        raise UserError(f"--again: {path}: nothing was measured")
    fields = {key: value for key, value in file.workload.items() if key != "name"}
    each = file.observed[before.rung]
    rates = load_rates(before.gpu, OUT)
    rates.add(each.recorded)
    rates.add(before.recorded, path.name)
    each = msgspec.structs.replace(
        each,
        work=floors.count_work(fields, str(before.recipe["precision"]), before.layout),
        recorded=_pick_higher(rates, before.today),
        floors_commit=git.commit_of(ROOT)[0],
    )
    file = msgspec.structs.replace(file, observed={before.rung: each})
    frame.show_result(STUDY, file, frame.write_file(STUDY, file, path, pages=True), as_json)


def plan_rung(
    options: Options, name: str, workload: Fields, capabilities: Mapping[str, str | None]
) -> dict[str, RungCase]:
    """Return a rung with its whole recipe; if none is named, the highest that can run.

    Raises UserError if it cannot run here, or no rate of the workload's convolutions is known.
    """
    from stylegan_lite.config import Recipe

    if (cheaper := workload.get("convolution", "full")) != "full":
        raise UserError(f"--roofline: {name} has convolution: {cheaper}, and no rate of its groups is known")
    able = needs.join_capabilities(dict(capabilities), workload)
    rungs = None if options.rung is None else [options.rung]
    planned = catalog.plan_climb(catalog.load_ladder(options.ladder), able, rungs)
    possible = [each for each in planned if each.skipped is None]
    if not possible:
        raise UserError(f"{planned[-1].name} cannot run here: {planned[-1].skipped}")
    return {possible[-1].name: RungCase(Recipe.from_dict(possible[-1].recipe or {}).to_dict())}


def load_rates(gpu: str, folder: Path) -> Rates:
    """Return the rates of a GPU in a folder's results and in the tunings beside it."""
    rates = Rates(gpu)
    for path, file in read_files(folder).items():
        if file.machine.name == gpu:
            rates.add(STUDY.derive(file).recorded or {}, path.name)
    for path in sorted((folder.parent / "kernels").glob("*-tuning.json")):
        rates.add(derive.read_copies(path, gpu), path.name)
    return rates


def read_files(folder: Path) -> dict[Path, File]:
    """Return the readable rooflines of a folder by their paths."""
    files = {}
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(UserError):
            files[path] = frame.read_file(STUDY, path)
    return files


def choose_rates(gpu: str, folder: Path) -> Rates:
    """Return all rates of a GPU that a user names: "nvidia-h200", "NVIDIA H200" or "H200"."""
    names = {file.machine.name for file in read_files(folder).values()}
    for name in (make_slug(gpu), f"nvidia-{make_slug(gpu)}"):
        if name in names:
            return load_rates(name, folder)
    raise UserError(f"--gpu: no rates are recorded of {gpu!r}; there are: {', '.join(sorted(names))}")


def _pick_higher(rates: Rates, today: derive.Today) -> dict[str, Rate]:
    """Return the rates on record above those of the day."""
    return {key: rate for key, rate in rates.known.items() if rate.value > today.rates.get(key, 0.0)}


def write_summary(workload: Fields, result: Roofline) -> list[str]:
    """Return the title of the page, and what a reader needs beside the tables."""
    side, light_ms = workload.get("resolution"), result.step.get("light_ms", 0.0)
    title = (
        f"Roofline of {workload['name']} ({side}x{side}, batch {workload.get('batch')}), rung {result.rung} of ladder"
        f" {result.ladder}, {str(result.recipe['precision']).upper()} {result.layout}, on {result.gpu}"
    )
    if (measured := result.measured) is None:
        return [title, "Nothing was measured: floors from recorded rates."]
    text = (
        f"A step of {result.rung} on {workload['name']} takes {measured.step_ms:.2f} ms, {measured.times_light:.2f}"
        f" times the floor ({light_ms:.2f} ms); {measured.distance_ms:.2f} ms lie between."
    )
    if known := derive.find_frozen(result.gpu, workload):
        scores = [
            derive.derive_score(measured.step_ms, known.base_ms, ms) for ms in (known.floor_ms, light_ms)
        ]
        frozen, today = ("none" if score is None else f"{score:.3f}" for score in scores)
        text += (
            f" Speed-of-light score: {frozen} by the floor of {known.floor_ms:.2f} ms frozen on {known.since} and a"
            f" base of {known.base_ms:.2f} ms; {today} by today's floor."
        )
    return [title, text]


def list_tables(result: Roofline) -> list[Table]:
    """Return ceilings, phases and bytes, and with a measured step its groups and its heaviest families of kernels."""
    if not result.phases:
        return []
    measured, distance = result.measured, Column("of the distance", "share")
    ended: dict[str, float] = {**measured.phases_ms, "step": measured.step_ms} if measured else {}  # type: ignore[dict-item]
    keys = ("convolutions_ms", "bytes_ms", "matmul_ms", "light_ms", "peak_ms")
    phases: list[list[Any]] = []
    for name, each in {**result.phases, "step": result.step}.items():
        ms = ended.get(name)
        phases.append(
            [name, each["flops"] / 1e12, *(each[key] for key in keys), ms, ms and ms / each["light_ms"]]
        )
    moved = [
        [name.removesuffix("_bytes").replace("_", " ") if "_" in name else "all", value / 1e6]
        for name, value in result.step.items()
        if name.endswith("bytes")
    ]
    tables = [
        _list_ceilings(result),
        Table(
            [
                Column("phase"), Column("TFLOP", "amount", 3), Column("convolutions ms", "ms", 2),
                Column("bytes ms", "ms", 2), Column("matmuls ms", "ms", 2), Column("light ms", "ms"),
                Column("at matmul rate ms", "ms", 3), Column("measured ms", "ms"), Column("x light", "factor"),
            ],
            phases,
        ).drop_empty(),
        Table([Column("bytes for"), Column("MB a step", "count")], moved),
    ]  # fmt: skip
    if measured is None:
        return tables
    rows: list[list[Any]] = [[name, *msgspec.structs.astuple(each)] for name, each in measured.groups.items()]
    twice = rows[0][1] + rows[1][1] - measured.busy_ms
    if twice > UNSEEN_MS:  # on parallel streams: each instant counts once
        rows.append([OVERLAP, -twice, 0.0, -twice / measured.distance_ms if measured.distance_ms else None])
    kernels = [Column("kernels"), Column("us a step", "count"), Column("kernels a step", "count", 1)]
    kernels += [Column("of the step", "share"), distance, Column("heaviest", priority=2)]
    fields = ("family", "us", "kernels", "of_step", "of_distance", "heaviest")
    families = [[getattr(row, field) for field in fields] for row in measured.families[:MOST_FAMILIES]]
    groups = [Column("a step's time"), Column("ms", "ms"), Column("floor ms", "ms"), distance]
    return [*tables, Table(groups, rows), Table(kernels, families)]


def _list_ceilings(result: Roofline) -> Table:
    """Return the highest rates and today's in 1e12 a second; those of convolutions are weighted by their FLOPs."""
    today = result.today.rates if result.today else {}
    rows: list[list[Any]] = [
        [name, rate.value / 1e12, rate.source, today.get(name, 0) / 1e12 or None]
        for name, rate in result.ceilings.items()
    ]
    for kind in derive.KINDS:
        own = [row for row in result.convolutions if row.name.startswith(f"{kind}, ")]
        known = [row for row in own if not row.source.startswith("not measured")]
        total = sum(row.flops for row in own)
        seconds = sum(row.flops / row.rate for row in own)
        measured = f"{sum(row.flops for row in known) / total:.0%} of the FLOPs measured"
        rows.append([f"convolutions, {kind}", total / seconds / 1e12, measured, None])
    columns = [Column("ceiling"), Column("TFLOP/s, TB/s", "amount"), Column("recorded by", priority=2)]
    note = "a shape that was not measured has the highest rate of its kind: the floor can be too low, not too high"
    return Table([*columns, Column("today", "amount", 1)], rows, notes=[note])
