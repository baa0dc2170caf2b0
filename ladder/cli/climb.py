"""The work behind `ladder run`: from a request to a result, its tables and its charts."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from ladder.cli import duration
from ladder.cli.request import RESULTS, Request
from ladder.core import files, progress
from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.core.job import Job, RunPlan
from ladder.core.paths import ROOT
from ladder.core.plain import Fields
from ladder.core.starting import shorten_path
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


def run(request: Request, quiet: bool = False, on_file: Callable[[Path], None] | None = None) -> Result:
    """Measure a ladder, write the result and its tables and charts, and print the table unless ``quiet``.

    Return the result. ``on_file`` is called with the path of its file as soon as that exists.

    Raises:
        UserError: the request is impossible; nothing was measured.
    """
    from ladder.publish import gallery
    from ladder.report import tables
    from ladder.studies import host

    if request.budget is not None and (request.rounds is not None or request.quick):
        raise UserError("--budget fits the number of generations: leave out --generations and --quick")
    if request.recipe is not None and (request.mode or request.rungs):
        raise UserError("--recipe measures that recipe beside the baseline: leave out --mode and --rungs")
    if request.mode in modes.STUDIES and request.ladder not in (None, ARTICLE):
        raise UserError(f"--mode {request.mode} stands on the article's ladder: leave out --ladder")
    if request.resume is not None:
        request = continue_request(request)
    if request.workload is not None:
        catalog.load_workload(request.workload)  # report a mistyped name before anything slow
    ladder = catalog.load_ladder(request.ladder or ARTICLE)
    with Pool() as importing:  # while images are made and torch is asked for its GPU
        job, first = resolve_job(request, ladder, quiet)
        path = measure_job(job, first, importing, on_file)
    result = loading.load_run(path)
    shown = host.attach_host(tables.with_top(result, tables.readable(path.parent)), ROOT / "results" / "host")
    stem, written = path.with_suffix(""), list[Path]()
    for write in (gallery.write_tables, gallery.write_charts):  # the result is stored whatever fails here
        try:
            written += write(shown, stem)
        except UserError as error:
            click.echo(f"ladder: {error}", err=True)
    if not quiet:
        tables.print_table(shown)
        if written:
            click.echo(f"{shorten_path(stem)}{', '.join(each.suffix for each in written)}")
    return result


def resolve_job(request: Request, ladder: catalog.Ladder, quiet: bool) -> tuple[Job, progress.First]:
    """Return the job that a request asks for on this machine, its images made, and the first line to print.

    Raises:
        UserError: the request cannot be measured here.
    """
    device = system.choose_device(request.device)
    environment.refuse_variables(device)
    refuse_memory(request.gpu_memory, device)
    name, workload = catalog.load_workload(request.workload or DEFAULT_WORKLOAD[device])
    able = needs.join_capabilities(system.list_capabilities(device), workload)
    mode, ladder, planned = plan_run(request, ladder, able, workload, device)
    if all(rung.skipped for rung in planned):
        raise UserError(f"none of these rungs can run here: {planned[0].name}: {planned[0].skipped}")
    minutes = choose_minutes(request, mode)
    out = request.out or RESULTS
    folder = request.resume.parent if request.resume else of_machine(out, device)
    files.refuse_unwritable(folder)
    rungs = sum(rung.recipe is not None for rung in planned)
    share = duration.EAGER if mode == modes.MISTAKES else 1.0
    run = duration.PlannedRun(folder, name, device, rungs, request.quick, request.rounds, minutes, share)
    first = progress.First(duration.render_first_line(run, request.resume), quiet)
    if warning := system.torch_warning():
        first.note(f"warning: {warning}")
    pictures = prepare_images(request.data or workload["data"], workload, quiet, first)
    plan = RunPlan(
        ladder=ladder,
        planned=planned,
        mode=mode,
        rounds=request.rounds,
        cycles=request.cycles,
        seed=request.seed or 0,
        quick=request.quick,
        gpu_memory_gb=request.gpu_memory,
        images=identity.of_images(pictures.path),
    )
    trained, facts = {**workload, "data": pictures.path}, system.describe_machine(device)
    minutes = minutes or budget.MINUTES
    return Job(
        device, name, trained, pictures.source, facts, plan, out, request.resume, minutes, quiet
    ), first


def measure_job(
    job: Job, first: progress.First, importing: Pool, on_file: Callable[[Path], None] | None = None
) -> Path:
    """Measure with a pool that has begun to import, show progress, and return the result's file."""
    from ladder.report import tables

    quiet, written, shown = first.quiet, list[Path](), list[str]()
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
                with contextlib.suppress(UserError):
                    width = shutil.get_terminal_size((110, 24)).columns
                    table = "\n".join(tables.interim(loading.load_run(written[0]), width))
                    if table not in shown:  # a resumed run passes generations that it has already
                        shown.append(table)
                        click.echo(table, err=True)

        measure.run_ladder(job, on_event, importing)
    return written[0]


def refuse_memory(limit: float | None, device: str) -> None:
    """Raise `UserError`, one line, for a card that cannot be simulated: this one is no larger, or there is none."""
    if limit is None:
        return
    if device != "cuda":
        raise UserError("--gpu-memory simulates a smaller GPU, and this run is on the CPU: leave it out")
    if (has := system.describe_machine(device)["gpu_memory_gb"]) and limit >= has:
        raise UserError(f"--gpu-memory {limit:g}: this GPU has {has:g} GiB: give less, or leave it out")


def choose_minutes(request: Request, mode: str) -> float | None:
    """Return the budget of a request: of mistakes one of their own, if nothing else limits the measurement."""
    if mode == modes.MISTAKES and not request.quick and request.rounds is None and request.budget is None:
        return budget.MISTAKES_MINUTES
    return request.budget


def plan_run(
    request: Request, ladder: catalog.Ladder, able: dict[str, str | None], workload: Fields, device: str
) -> tuple[str, catalog.Ladder, list[catalog.Planned]]:
    """Return the mode of a run, the ladder that its result names, and its entries.

    Raises:
        UserError: a name is unknown, or the recipe cannot run here.
    """
    if request.recipe is None:
        mode = request.mode or modes.CUMULATIVE
        planned = modes.plan_run(mode, ladder, able, request.rungs, workload)
        return mode, modes.ladder_of(mode, ladder), planned
    fields = choose_recipe(request.recipe, ladder, able, device)
    Recipe.from_dict(fields, where=request.recipe).refuse_for(Workload.from_dict(workload), request.recipe)
    return modes.RECIPE, *modes.beside_baseline(fields, ladder, Path(request.recipe).stem)


def continue_request(request: Request) -> Request:
    """Return the request that continues `request.resume`, with the file's value for every option not given.

    Raises:
        UserError: an option contradicts the file, which would make it a different run.
    """
    path = Path(request.resume or "")
    run = resuming.load(path)
    protocol, ladder, where = run.protocol, run.ladder.name, f"{path}: --resume:"
    workload = str(run.workload["name"])
    if request.workload is None and workload not in catalog.list_workloads():
        raise UserError(f"{where} its workload is a file of yours; name it with --workload")
    if protocol.mode == modes.RECIPE and request.recipe is None:
        raise UserError(f"{where} name its recipe with --recipe")
    stored: dict[str, Any] = {
        "mode": None if protocol.mode == modes.RECIPE else protocol.mode,
        "seed": protocol.seed,
        "cycles": protocol.cycles,
        "device": run.machine.device,
        "gpu_memory": protocol.gpu_memory_limit_gb,
        "rungs": None if request.recipe else [name for name in run.ladder.rungs if name != modes.ALL],
    }
    for key, value in stored.items():
        if getattr(request, key) not in (None, value):
            raise UserError(f"{where} that run has another --{key.replace('_', '-')}; leave it out")
    if request.quick and not protocol.quick:
        raise UserError(f"{where} that run is not a quick one; leave out --quick")
    if request.budget is not None and protocol.fixed:
        raise UserError(
            f"{where} that run has a fixed number of generations: give --generations, no --budget"
        )
    is_known = ladder in catalog.list_ladders()
    if protocol.mode not in (modes.RECIPE, *modes.STUDIES):
        if request.ladder is None and not is_known:
            raise UserError(f"{where} its ladder is a file of yours, or gone; name it with --ladder")
        if request.ladder is not None and catalog.load_ladder(request.ladder).name != ladder:
            raise UserError(f"{where} that run has another --ladder; leave it out")
    stored["workload"] = request.workload or workload
    stored["ladder"] = ladder if is_known else request.ladder
    return replace(request, **stored, quick=protocol.quick)


def choose_recipe(
    recipe: str | None, ladder: catalog.Ladder, able: dict[str, str | None], device: str
) -> dict[str, Any]:
    """Return the recipe of a rung (with all below it), of a YAML file, or of the highest rung that runs here."""
    planned = catalog.plan_climb(ladder, able)
    if recipe is None:
        return next((rung.recipe for rung in reversed(planned) if rung.recipe is not None), {})
    for rung in planned:
        if rung.name == recipe:
            if rung.recipe is None:
                raise UserError(f"--recipe {recipe}: {rung.skipped}")
            return rung.recipe
    if where := catalog.find_holder(recipe):
        raise UserError(f"--recipe {recipe}: not in ladder {ladder.name}{where}")
    fields = catalog.load_recipe(recipe, [rung.name for rung in planned])
    Recipe.from_dict(fields, where=recipe).refuse_on(device, where=recipe)
    return fields


def of_machine(out: Path, device: str) -> Path:
    """Return the folder of this machine's results."""
    return out / texts.make_slug(system.describe_machine(device)["name"])
