"""The work behind `ladder train`: a training in one process or on several ranks, and canaries."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ladder.base import files, locks, progress
from ladder.base.errors import UserError
from ladder.base.events import Event, OnEvent
from ladder.base.plain import Fields
from ladder.base.starting import near
from ladder.base.stopping import stop_on_sigterm
from ladder.base.text import counted
from ladder.cli.climb import choose_recipe, of_machine
from ladder.core.job import Job
from ladder.images.for_workload import DEFAULT_WORKLOAD, prepare_images
from ladder.machine import system
from ladder.plan import catalog, needs
from ladder.report import output
from stylegan_lite.config import Recipe, Workload

if TYPE_CHECKING:
    from ladder.training.origin import Origin
    from ladder.training.ranks import Ranks
    from ladder.training.train import Settings, Summary


@dataclass(frozen=True)
class Request:
    """The options of one `ladder train`. One that was not given is None: its default depends on the others."""

    workload: str | None
    data: str | None
    recipe: str | None
    ladder_name: str
    steps: int
    out: Path | None
    resume: Path | None
    start: Path | None
    sample_every: int
    log_every: int
    truncation: float
    seed: int | None
    canary: bool
    seeds: int
    jobs: int | None
    device: str | None
    as_json: bool


def run_training(request: Request) -> int:
    """Train, print where the files are, and return the exit status.

    Raises:
        UserError: the request is impossible.
        KeyboardInterrupt: stopped after a step, with a checkpoint.
    """
    from ladder.training.losslog import Diverged

    try:
        summary = _train(request)
    except Diverged as error:
        click.echo(f"ladder: {error}", err=True)
        return 1
    except KeyboardInterrupt:  # raised after the current step and its checkpoint
        path = request.out / "checkpoint.pt"
        output.say_where(path if path.exists() else None, request.as_json, again=True)
        raise
    if summary is None:  # a rank that writes nothing
        return 0
    if request.as_json:
        click.echo(json.dumps(summary, indent=1))
    else:
        done = f"{counted(summary['step'], 'step')}, {counted(summary['images'], 'image')}"
        samples = near(request.out / summary["files"]["samples"])
        click.echo(f"{done}, {summary['seconds']:.0f} s of training: {samples}")
    output.say_where(request.out / summary["files"]["checkpoint"], request.as_json)
    return 0


def _train(request: Request) -> Summary | None:
    """Train and return the summary, None on a rank that writes nothing.

    Without a named workload, that of the checkpoint to begin with or to resume is taken.
    """
    if request.workload is not None:
        catalog.load_workload(request.workload)
    ladder = catalog.load_ladder(request.ladder_name)
    device = system.choose_device(request.device)
    from ladder.training import ranks as training_ranks  # this imports torch
    from ladder.training.train import Settings
    from stylegan_lite.ranks import Ranks

    origin = _read_origin(request)
    source = request.start or request.resume
    name = request.workload or (source.name if source else DEFAULT_WORKLOAD[device])
    if origin is not None and request.workload is None:
        workload = origin.workload.to_dict()
    else:
        _, workload = catalog.load_workload(name)
    if request.start is not None:
        origin.refuse_other(workload)
    settings = Settings(
        request.out, device, request.steps, request.seed or 0, request.resume,
        None if request.start is None else origin,
        request.sample_every, request.log_every, truncation=request.truncation,
    )  # fmt: skip
    recipe = choose_recipe(
        request.recipe, ladder, needs.possible(system.capabilities(device), workload), device
    )
    with training_ranks.join_ranks(device) as ranks:
        if ranks is not None:
            if request.start is not None:
                raise UserError(
                    "--from: begin with one process; its checkpoint goes on under torchrun with --resume"
                )
            recipe = ranks.adapt_recipe(recipe)
        checked = Recipe.from_dict(recipe)
        where = f"--recipe {request.recipe}" if request.recipe else "recipe"
        checked.refuse_for(Workload.from_dict({**workload, "data": None}), where)
        workload = workload | {"data": request.data or workload["data"]}
        if ranks is not None:
            return _train_ranks(ranks, name, workload, recipe, settings, request.as_json)
        Ranks(checked)  # refuses a recipe of several without torchrun
        return _train_here(name, workload, recipe, settings, request.as_json)


def _read_origin(request: Request) -> Origin | None:
    """Return the checkpoint that the training begins with or resumes."""
    from ladder.training import checkpoint, origin

    path = request.start or request.resume
    if path is None:
        return None
    source = origin.read_origin(path)
    if request.start is None:
        checkpoint.refuse_converted(path, source.content)
        seed = source.content["seed"]
        if request.seed not in (None, seed):
            raise UserError(f"{path}: --resume: that training has --seed {seed}: leave yours out")
    return source


def _train_here(name: str, workload: Fields, recipe: Fields, settings: Settings, quiet: bool) -> Summary:
    """Train in this process alone."""
    from ladder.training.train import train

    _refuse_folder(settings)
    first = progress.First(f"training: {name} on {settings.device}, up to step {settings.steps}", quiet)
    images = prepare_images(workload["data"], workload, quiet, first)
    with (
        stop_on_sigterm(),
        system.untimed(settings.device, int(recipe.get("ranks", 1))),
        _show_progress(settings, first) as on_event,
    ):
        return train(workload, recipe, images, settings, on_event)


def _train_ranks(
    ranks: Ranks, name: str, workload: Fields, recipe: Fields, settings: Settings, quiet: bool
) -> Summary | None:
    """Train as one of several ranks. Only the one that writes has a summary."""
    from ladder.training.train import follow, train

    quiet = quiet or not ranks.is_writer
    if ranks.is_writer:
        _refuse_folder(settings)
    line = f"training: {name} on {settings.device}, {ranks.size} ranks, up to step {settings.steps}"
    first = progress.First(line, quiet)
    images = ranks.run_in_turn(lambda: prepare_images(workload["data"], workload, quiet, first))
    with stop_on_sigterm():
        if not ranks.is_writer:
            follow(workload, recipe, images, settings, ranks)
            return None
        with system.untimed(settings.device), _show_progress(settings, first) as on_event:
            return train(workload, recipe, images, settings, on_event, ranks)


@contextlib.contextmanager
def _show_progress(settings: Settings, first: progress.First) -> Iterator[OnEvent]:
    """Yield the callback that prints the first line once no refusal can come, then draws the progress."""
    with progress.training_progress(settings.steps, first.quiet) as draw:

        def on_event(event: Event) -> None:
            if event["event"] == "checked":
                first()
            draw(event)

        yield on_event


def _refuse_folder(settings: Settings) -> None:
    """Refuse a folder that cannot be written, or that holds a training already, before images are made.

    A training that runs there holds the lock. Its log must not be taken for what a dead one left, to be deleted.
    """
    from ladder.training import folder

    files.refuse_unwritable(settings.out)
    if settings.resume is None:
        with locks.folder_lock(settings.out):
            folder.refuse_occupied(settings.out)


def run_canary(request: Request) -> int:
    """Train every rung of a ladder from several seeds, by default on `tiny`; return the exit status.

    Raises:
        UserError: the request is impossible.
    """
    ladder = catalog.load_ladder(request.ladder_name)
    device, quiet = system.choose_device(request.device), request.as_json
    name, workload = catalog.load_workload(request.workload or "tiny")
    from ladder.training import canary, canary_file

    out = request.out or canary.OUT
    files.refuse_unwritable(of_machine(out, device))
    planned = catalog.climb(ladder, needs.possible(system.capabilities(device), workload))
    many = counted(request.seeds * sum(rung.recipe is not None for rung in planned), "training")
    first = progress.First(f"canary: {name} on {device}, {many} of {counted(request.steps, 'step')}", quiet)
    images = prepare_images(request.data or workload["data"], workload, quiet, first)
    paths: list[Path] = []

    def on_event(event: Event) -> None:
        if event["event"] == "start":
            first()
        elif event["event"] == "end":
            paths.append(Path(event["path"]))
        elif not quiet:
            distance = "broke" if event["distance"] is None else f"{event['distance']:.1f}"
            click.echo(
                f"{event['done']}/{event['total']} {event['rung']}, seed {event['seed']}: {distance}",
                err=True,
            )

    chosen = canary.Options(ladder.name, request.steps, request.seeds, request.jobs)
    job = Job(device, name, workload, images.source, system.facts(device), chosen, out)
    file = canary.run(job, planned, images, on_event)
    if quiet:
        click.echo(json.dumps(canary_file.write_derived(file), indent=1, allow_nan=False))
    else:
        click.echo(canary_file.render_terminal(file, output.measure_width()))
    output.say_where(paths[-1], quiet)
    if not file.is_complete:
        return 130
    return 1 if any(file.judge(rung) in ("worse", "broke") for rung in file.rungs) else 0
