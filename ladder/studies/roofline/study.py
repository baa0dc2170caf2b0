"""`ladder doctor --roofline`: how far a step is from the speed of light of this GPU, and where the distance lies.

The speed of light is a workload's convolution FLOPs and its necessary bytes (`floors`), both at the highest rates
recorded for this GPU (`derive`). Beside it stand the timed phases and the kernel families of a traced cycle
(`measure`). docs/profile.md explains what counts and what does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from ladder.core import git
from ladder.core.errors import UserError
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
from ladder.studies.roofline.derive import File, Observed, Options, Rates, Roofline

OUT = ROOT / "results" / "roofline"
MOST_FAMILIES = 24
TITLES = {
    derive.COPY: "copy, TB/s",
    "matmul bf16": "matmul BF16, TFLOP/s",
    "matmul tf32": "matmul TF32, TFLOP/s",
    "matmul fp32": "matmul FP32, TFLOP/s",
}
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
        work, machine = file.workload or {}, write_whole(file.machine)
        if len(file.cases) != 1:
            yield "cases: not one rung"
        if not all(isinstance(n := work.get(key), int) and n > 0 for key in ("pl_interval", "r1_interval")):
            yield "workload: without the intervals of its lazy phases"
        if not all(isinstance(case.recipe.get("precision"), str) for case in file.cases.values()):
            yield "cases: a recipe without a precision"
        least = plausible.floor_ms(machine, work)
        peak = plausible.peak(machine) * 1e12 * plausible.BOOST
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
                for name in amounts.convolutions:
                    if min(derive.parse_op(name).result) < 1:
                        yield f"work.{phase}: {name} has no result"
            stored = [(name, rate.value) for name, rate in each.recorded.items()]
            for name, value in [*each.today.rates.items(), *stored]:
                most = peak * (1 if name.startswith("matmul") else plausible.WINOGRAD)
                if name.startswith("step of"):
                    continue  # caches are no memory
                if value > (MOST_COPIED if name == derive.COPY else most):
                    yield f"{name}: {value:.3g} a second is more than this GPU can do"
            try:
                self.derive(file)
            except UserError as error:
                yield str(error)

    def list_cautions(self, file: File) -> list[str]:
        measured = self.derive(file).measured
        groups = measured["groups"] if measured else {}
        below = [name for name, each in groups.items() if each["ms"] < each["floor_ms"] * (1 - 1e-9)]
        return [f"no floor: {name} took less" for name in below]

    def summarize(self, file: File) -> list[str]:
        result, workload = self.derive(file), file.workload or {}
        return [write_title(workload, result), " ".join(write_sentences(workload, result))]

    def list_tables(self, file: File) -> Iterable[Table]:
        return list_tables(self.derive(file))

    def name_file(self, file: File) -> list[str]:
        return [name for name in derive.list_names(file) if name]


STUDY = RooflineStudy()


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
    environment.refuse_variables(device)
    request = frame.Request(workload, device, out=OUT, as_json=as_json)
    job = frame.resolve_job(STUDY, options, request, system.describe_machine(device))
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
    ((rung, case),) = plan_rung(options, name, fields, dict.fromkeys(needs.NEEDS)).items()
    layout, ladder = derive.layout_of(case.recipe), catalog.load_ladder(options.ladder).name
    base = Roofline(ladder=ladder, rung=rung, recipe=case.recipe, layout=layout, gpu=rates.gpu)
    work = floors.count_work(fields, str(case.recipe["precision"]), layout)
    result, named = derive.derive_floor(base, work, fields, rates), {"name": name, **fields, "data": None}
    if as_json:
        header = records.make_header("roofline", None, named) | {"complete": True}
        click.echo(json.dumps(header | write_whole(result), indent=1, allow_nan=False))
    else:
        tables = map(render_text, list_tables(result))
        click.echo("\n\n".join([write_title(named, result), *tables, *write_sentences(named, result)]))


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
    if before.today is None or before.recorded is None or file.workload is None:
        raise UserError(f"--again: {path}: nothing was measured")
    fields = {key: value for key, value in file.workload.items() if key != "name"}
    each = file.observed[before.rung]
    rates = load_rates(before.gpu, OUT)
    rates.join(each.recorded)
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
    """Return a rung with its whole recipe. If none is named, it is the highest that can run.

    Raises:
        UserError: no such rung, it cannot run here, or no rate of the workload's convolutions is known.
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


# --- rates on record --------------------------------------------------------------------------------------------------


def load_rates(gpu: str, folder: Path) -> Rates:
    """Return the rates of a GPU in a folder's results and in the tunings beside it."""
    rates = Rates(gpu)
    for path, file in _read_files(folder, f"{gpu}-*.json"):
        if file.machine.name == gpu:
            rates.add(STUDY.derive(file).recorded or {}, path.name)
    for path in sorted((folder.parent / "kernels").glob("*-tuning.json")):
        rates.add(derive.read_copies(path, gpu), path.name)
    return rates


def _read_files(folder: Path, pattern: str) -> list[tuple[Path, File]]:
    """Return the readable rooflines of a folder."""
    files = []
    for path in sorted(folder.glob(pattern)):
        try:
            files.append((path, frame.read_file(STUDY, path)))
        except UserError:
            continue
    return files


def list_gpus(folder: Path) -> list[str]:
    """Return the GPUs whose floor can be computed from recorded rates."""
    return sorted({file.machine.name for _, file in _read_files(folder, "*.json")})


def choose_rates(gpu: str, folder: Path) -> Rates:
    """Return all rates of a GPU that a user names: "nvidia-h200", "NVIDIA H200" or "H200"."""
    names = list_gpus(folder)
    for name in (make_slug(gpu), f"nvidia-{make_slug(gpu)}"):
        if name in names:
            return load_rates(name, folder)
    raise UserError(f"--gpu: no rates are recorded of {gpu!r}; there are: {', '.join(names)}")


def _pick_higher(rates: Rates, today: derive.Today) -> dict[str, Any]:
    """Return the rates on record above those of the day."""
    return {key: rate for key, rate in rates.known.items() if rate.value > today.rates.get(key, 0.0)}


# --- sentences and tables ---------------------------------------------------------------------------------------------


def write_title(workload: Fields, result: Roofline) -> str:
    size = f"{workload.get('resolution')}x{workload.get('resolution')}, batch {workload.get('batch')}"
    rung = f"{result.rung} of ladder {result.ladder}" if result.ladder else result.rung
    precision = str(result.recipe["precision"]).upper()
    return (
        f"Roofline of {workload['name']} ({size}), rung {rung}, {precision} {result.layout}, on {result.gpu}"
    )


def write_sentences(workload: Fields, result: Roofline) -> list[str]:
    """Return what a reader needs beside the tables."""
    lines = []
    light_ms = result.step.get("light_ms")
    if (measured := result.measured) is None:
        lines.append("Nothing was measured: floors from recorded rates.")
    else:
        step_ms, times, gap = (measured[key] for key in ("step_ms", "times_light", "distance_ms"))
        lines.append(
            f"A step of {result.rung} on {workload['name']} takes {step_ms:.2f} ms, {times:.2f} times the floor"
            f" ({light_ms:.2f} ms); {gap:.2f} ms lie between."
        )
        if known := derive.find_frozen(result.gpu, workload):
            floors = known.floor_ms, light_ms
            scores = [derive.derive_score(step_ms, known.base_ms, floor) for floor in floors]
            frozen, today = ("none" if score is None else f"{score:.3f}" for score in scores)
            lines.append(
                f"Speed-of-light score: {frozen} by the floor of {known.floor_ms:.2f} ms frozen on {known.since} and a"
                f" base of {known.base_ms:.2f} ms; {today} by today's floor."
            )
        if result.today and (skipped := result.today.skipped):
            lines.append(f"Not measured today: {len(skipped)} shapes ({next(iter(skipped.values()))}).")
        if result.floors_commit:
            lines.append(f"Floors as commit {result.floors_commit[:10]} computes them.")
    total = sum(row["flops"] for row in result.convolutions)
    if unknown := sum_unmeasured(result.convolutions):
        lines.append(
            f"{unknown / total:.0%} of the convolutions' FLOPs are of shapes without a measurement: they take the"
            " highest rate of their kind, so the floor can be too low, not too high."
        )
    return lines


def list_tables(result: Roofline) -> list[Table]:
    """Return ceilings, phases and bytes, and with a measured step its groups and its heaviest families of kernels."""
    if not result.phases:
        return []
    measured, distance = result.measured, Column("of the distance", "share")
    took: dict[str, float] = {}
    if measured:
        took = {**measured["phases_ms"], "step": measured["step_ms"]}  # type: ignore[dict-item]
    keys = {
        "convolutions": "convolutions_ms",
        "bytes": "bytes_ms",
        "matmuls": "matmul_ms",
        "light": "light_ms",
    }
    phases = [Column("phase"), Column("TFLOP", "amount", 3)]
    phases += [Column(f"{key} ms", "ms", 0 if key == "light" else 2) for key in keys]
    phases += [Column("at matmul rate ms", "ms", 3), Column("measured ms", "ms"), Column("x light", "factor")]
    rows: list[list[Any]] = []
    for name, each in {**result.phases, "step": result.step}.items():
        ms = took.get(name)
        limits = [each[key] for key in (*keys.values(), "peak_ms")]
        rows.append([name, each["flops"] / 1e12, *limits, ms, ms and ms / each["light_ms"]])
    tables = [_list_ceilings(result), Table(phases, rows).drop_empty()]
    rows = [
        [name.removesuffix("_bytes").replace("_", " ") if "_" in name else "all", value / 1e6]
        for name, value in result.step.items()
        if name.endswith("bytes")
    ]
    tables.append(Table([Column("bytes for"), Column("MB a step", "count")], rows))
    if measured is None:
        return tables
    columns = [Column("a step's time"), Column("ms", "ms"), Column("floor ms", "ms"), distance]
    keys_of = ("ms", "floor_ms", "of_distance")
    rows = [[name, *(each[key] for key in keys_of)] for name, each in measured["groups"].items()]
    took_both = sum(measured["groups"][name]["ms"] for name in (derive.CONVOLUTIONS, derive.OTHERS))
    if (
        twice := took_both - measured["busy_ms"]
    ) > UNSEEN_MS:  # on parallel streams: each instant counts once
        gap = measured["distance_ms"]
        rows.append([OVERLAP, -twice, 0.0, -twice / gap if gap else None])
    tables.append(Table(columns, rows))
    columns = [Column("kernels"), Column("us a step", "count"), Column("kernels a step", "count", 1)]
    columns += [Column("of the step", "share"), distance, Column("heaviest", priority=2)]
    rows = [
        [row[key] for key in ("family", "us", "kernels", "of_step", "of_distance", "heaviest")]
        for row in measured["families"][:MOST_FAMILIES]
    ]
    return [*tables, Table(columns, rows)]


def _list_ceilings(result: Roofline) -> Table:
    """Return the highest rates and today's. Convolutions show their unweighted range over shapes."""
    today = result.today.rates if result.today else {}
    tera = {key: value / 1e12 for key, value in today.items()}
    columns = [Column("ceiling"), Column("highest", "amount"), Column("recorded by", priority=2)]
    rows = [
        [TITLES[key], rate.value / 1e12, rate.source, tera.get(key)] for key, rate in result.ceilings.items()
    ]
    for kind in derive.KINDS:
        own = [row for row in result.convolutions if row["name"].startswith(f"{kind}, ")]
        total = sum(row["flops"] for row in own)
        heavy = [row for row in own if row["flops"] >= 0.01 * total]
        if heavy:
            share = 1 - sum_unmeasured(own) / total
            highest = [row["rate"] / 1e12 for row in heavy]
            now = [tera[row["name"]] for row in heavy if row["name"] in tera]
            spans = [f"{min(rates):.0f} to {max(rates):.0f}" if rates else None for rates in (highest, now)]
            rows.append(
                [f"convolution {kind}, TFLOP/s", spans[0], f"{share:.0%} of the FLOPs measured", spans[1]]
            )
    return Table([*columns, Column("today", "amount", 1)], rows)


def sum_unmeasured(convolutions: list[derive.Row]) -> float:
    """Return the FLOPs of the shapes that were not measured."""
    return sum(row["flops"] for row in convolutions if row["source"].startswith("not measured"))
