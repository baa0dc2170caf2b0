"""The work behind `ladder run`: from a request to a result, its tables and its charts."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ladder.base import files, progress
from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.plain import Fields
from ladder.base.starting import near
from ladder.cli import duration
from ladder.core.job import Job, RunPlan
from ladder.engine import run as measure
from ladder.engine.pool import Pool
from ladder.images.for_workload import DEFAULT_WORKLOAD, prepare_images
from ladder.machine import environment, system
from ladder.machine.threads import QUIET
from ladder.plan import catalog, modes, needs
from ladder.results import identity, loading
from ladder.results.combine import resuming
from ladder.results.run import Result
from ladder.stats import rounds_budget as budget
from stylegan_lite.config import Recipe, Workload

ARTICLE = "article"  # the ladder that studies stand on


@dataclass(frozen=True)
class Request:
    """The options of one `ladder run`.

    An option that was not given is None: the default holds, or with ``resume`` the value of that file.
    """

    workload: str | None
    ladder: str | None
    rungs: list[str] | None
    budget: float | None  # minutes
    rounds: int | None
    cycles: int | None
    seed: int | None
    quick: bool
    mode: str | None
    resume: Path | None
    data: str | None
    device: str | None
    out: Path
    recipe: str | None = None
    gpu_memory: float | None = None  # GiB of a smaller card to simulate


def run(request: Request, quiet: bool = False, on_file: Callable[[Path], None] | None = None) -> Result:
    """Measure a ladder, write the result and its tables and charts, and print the table unless ``quiet``.

    Return the result. ``on_file`` is called with the path of its file as soon as that exists.

    Raises:
        UserError: the request is impossible; nothing was measured.
    """
    if request.budget is not None and (request.rounds is not None or request.quick):
        raise UserError("--budget fits the number of generations: leave out --generations and --quick")
    refuse_together(request)
    if request.resume is not None:
        request = continued(request)
    if request.workload is not None:
        catalog.load_workload(request.workload)  # report a mistyped name before anything slow
    ladder = catalog.load_ladder(request.ladder or ARTICLE)
    with Pool() as importing:  # while images are made and torch is asked for its GPU
        job, first = resolve_job(request, ladder, quiet)
        path = measure_job(job, first, importing, on_file)
    from ladder.report import tables
    from ladder.studies import host

    result = loading.load_run(path)
    shown = host.attach_host(tables.with_top(result, tables.readable(path.parent)), ROOT / "results" / "host")
    publish(shown, path, quiet)
    return result


def resolve_job(request: Request, ladder: catalog.Ladder, quiet: bool) -> tuple[Job, progress.First]:
    """Return the job that a request asks for on this machine, its images made, and the first line to print.

    Raises:
        UserError: the request cannot be measured here.
    """
    device = system.choose_device(request.device)
    environment.refuse(device)
    refuse_memory(request.gpu_memory, device)
    name, workload = catalog.load_workload(request.workload or DEFAULT_WORKLOAD[device])
    there = needs.possible(system.capabilities(device), workload)
    mode, ladder, planned = laid_out(request, ladder, there, workload, device)
    request = with_defaults(request, mode)
    if all(rung.skipped for rung in planned):
        raise UserError(f"none of these rungs can run here: {planned[0].name}: {planned[0].skipped}")
    folder = request.resume.parent if request.resume else of_machine(request.out, device)
    files.refuse_unwritable(folder)
    able = sum(rung.recipe is not None for rung in planned)
    share = duration.EAGER if mode == modes.MISTAKES else 1.0
    planned_run = duration.PlannedRun(
        folder, name, device, able, request.quick, request.rounds, request.budget, share
    )
    first = progress.First(duration.render_first_line(planned_run, request.resume), quiet)
    if warning := system.torch_warning():
        first.note(f"warning: {warning}")
    pictures = prepare_images(request.data or workload["data"], workload, quiet, first)
    job = Job(
        device=device,
        name=name,
        workload={**workload, "data": pictures.path},
        source=pictures.source,
        machine=system.facts(device),
        options=RunPlan(
            ladder=ladder,
            planned=planned,
            mode=mode,
            rounds=request.rounds,
            cycles=request.cycles,
            seed=request.seed or 0,
            quick=request.quick,
            gpu_memory_gb=request.gpu_memory,
            images=identity.of_images(pictures.path),
        ),
        out=request.out,
        resume=request.resume,
        minutes=request.budget or budget.MINUTES,
        quiet=quiet,
    )
    return job, first


def measure_job(
    job: Job, first: progress.First, importing: Pool, on_file: Callable[[Path], None] | None = None
) -> Path:
    """Measure with a pool that has begun to import, show progress, and return the result's file."""
    quiet, written = first.quiet, list[Path]()
    tables: list[str] = []  # that were shown: a resumed run passes generations that it has already
    with progress.ladder_progress(f"{job.name} on {job.device}", quiet) as show_event:

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "start":  # no refusal can come after this event
                first()
                environment.print_conditions(quiet, without=QUIET)
                if on_file is not None:
                    on_file(Path(event["path"]))
            written[:] = [Path(event["path"])] if "path" in event else written
            show_event(event)
            if event["event"] == "round" and not quiet:
                show_interim(written[0], tables)

        measure.run_ladder(job, on_event, importing)
    return written[0]


def refuse_memory(asked: float | None, device: str) -> None:
    """Raise `UserError`, one line, for a card that cannot be simulated: this one is no larger, or there is none."""
    if asked is None:
        return
    if device != "cuda":
        raise UserError("--gpu-memory simulates a smaller GPU, and this run is on the CPU: leave it out")
    if (has := system.facts(device)["gpu_memory_gb"]) and asked >= has:
        raise UserError(f"--gpu-memory {asked:g}: this GPU has {has:g} GiB: give less, or leave it out")


def refuse_together(request: Request) -> None:
    """Raise `UserError`, one line, for options that contradict each other."""
    if request.recipe is not None and (request.mode or request.rungs):
        raise UserError("--recipe measures that recipe beside the baseline: leave out --mode and --rungs")
    if request.mode in modes.STUDIES and request.ladder not in (None, ARTICLE):
        raise UserError(f"--mode {request.mode} stands on the article's ladder: leave out --ladder")


def laid_out(
    request: Request,
    ladder: catalog.Ladder,
    there: dict[str, str | None],
    workload: Fields,
    device: str,
) -> tuple[str, catalog.Ladder, list[catalog.Planned]]:
    """Return the mode of a run, the ladder that its result names, and its entries.

    Raises:
        UserError: a name is unknown, or the recipe cannot run here.
    """
    if request.recipe is None:
        mode = request.mode or modes.CUMULATIVE
        planned = modes.plan(mode, ladder, there, request.rungs, workload)
        return mode, modes.ladder_of(mode, ladder), planned
    fields = choose_recipe(request.recipe, ladder, there, device)
    Recipe.from_dict(fields, where=request.recipe).refuse_for(Workload.from_dict(workload), request.recipe)
    return modes.RECIPE, *modes.beside_baseline(fields, ladder, Path(request.recipe).stem)


def with_defaults(request: Request, mode: str) -> Request:
    """Return the request with the budget of its mode, if nothing else says how long to measure."""
    given = request.quick or request.rounds is not None or request.budget is not None
    if mode != modes.MISTAKES or given:
        return request
    return dataclasses.replace(request, budget=budget.MISTAKES_MINUTES)


def show_interim(path: Path, before: list[str]) -> None:
    """Print the table of the rounds so far on stderr, from the file of a run that goes on. Once each, by `before`."""
    from ladder.report import tables

    with contextlib.suppress(UserError):
        lines = tables.interim(loading.load_run(path), shutil.get_terminal_size((110, 24)).columns)
        if (table := "\n".join(lines)) not in before:
            before.append(table)
            click.echo(table, err=True)


def continued(request: Request) -> Request:
    """Return the request that continues `request.resume`, with the file's value for every option not given.

    Raises:
        UserError: an option contradicts the file, which would make it a different run.
    """
    path = Path(request.resume or "")
    run = resuming.load(path)
    protocol, names, named_workload = run.protocol, run.ladder.rungs, str(run.workload["name"])
    if request.workload is None and named_workload not in catalog.workloads():
        raise UserError(f"{path}: --resume: its workload is a file of yours; name it with --workload")
    own = None if request.workload is None else catalog.load_workload(request.workload)[1]["data"]
    resuming.ask_for_images(path, run, request.data, None if own is None else str(own))
    if protocol.mode == modes.RECIPE and request.recipe is None:
        raise UserError(f"{path}: --resume: name its recipe with --recipe")
    said: dict[str, Any] = {
        "mode": None if protocol.mode == modes.RECIPE else protocol.mode,
        "seed": protocol.seed,
        "cycles": protocol.cycles,
        "device": run.machine.device,
        "gpu_memory": protocol.gpu_memory_limit_gb,
        "rungs": None if request.recipe else [name for name in names if name != modes.ALL],
    }
    for key, value in said.items():
        if getattr(request, key) not in (None, value):
            option = key.replace("_", "-")
            raise UserError(f"{path}: --resume: that run has another --{option}; leave it out")
    if request.quick and not protocol.quick:
        raise UserError(f"{path}: --resume: that run is not a quick one; leave out --quick")
    if request.budget is not None and protocol.fixed:
        raise UserError(
            f"{path}: --resume: that run has a fixed number of generations: give --generations, no --budget"
        )
    ladder, named = run.ladder.name, protocol.mode not in (modes.RECIPE, *modes.STUDIES)
    if named and request.ladder is not None:
        if catalog.load_ladder(request.ladder).name != ladder:
            raise UserError(f"{path}: --resume: that run has another --ladder; leave it out")
    elif named and ladder not in catalog.ladders():
        raise UserError(f"{path}: --resume: its ladder is a file of yours, or gone; name it with --ladder")
    said["workload"] = request.workload or named_workload
    said["ladder"] = ladder if ladder in catalog.ladders() else request.ladder
    return dataclasses.replace(request, **said, quick=protocol.quick)


def publish(result: Result, path: Path, quiet: bool) -> None:
    """Write chart, Markdown and CSV beside the result file ``path``, under its name, and print the table.

    The result is already stored. A file that cannot be written is one line on stderr, and the others follow. The
    table is printed last, because standard output may be a closed pipe.
    """
    from ladder.publish import gallery
    from ladder.report import tables

    stem, made = path.with_suffix(""), []
    for write in (gallery.write_tables, gallery.write_charts):
        try:
            made += write(result, stem)
        except UserError as error:
            click.echo(f"ladder: {error}", err=True)
    if not quiet:
        tables.print_table(result)
    if made and not quiet:
        click.echo(f"{near(stem)}{', '.join(each.suffix for each in made)}")


def choose_recipe(
    recipe: str | None, ladder: catalog.Ladder, capabilities: dict[str, str | None], device: str
) -> dict[str, Any]:
    """Return the recipe of a rung (with all below it), of a YAML file, or of the highest rung that runs here."""
    planned = catalog.climb(ladder, capabilities)
    if recipe is None:
        return next((rung.recipe for rung in reversed(planned) if rung.recipe is not None), {})
    for rung in planned:
        if rung.name == recipe:
            if rung.recipe is None:
                raise UserError(f"--recipe {recipe}: {rung.skipped}")
            return rung.recipe
    if where := catalog.holding(recipe):
        raise UserError(f"--recipe {recipe}: not in ladder {ladder.name}{where}")
    fields = catalog.load_recipe(recipe, [rung.name for rung in planned])
    Recipe.from_dict(fields, where=recipe).refuse_on(device, where=recipe)
    return fields


def of_machine(out: Path, device: str) -> Path:
    """Return the folder of this machine's results."""
    return out / texts.slug(system.facts(device)["name"])
