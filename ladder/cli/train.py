"""`ladder train`: a training in one process or on several ranks, and the canary, which compares rungs."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import click
from msgspec import Meta

from ladder.core import files, locks
from ladder.core import options as shared
from ladder.core.errors import UserError
from ladder.core.options import Seed, declare_option, make_command
from ladder.core.plain import Fields
from ladder.core.records import Record
from ladder.core.starting import shorten_path
from ladder.core.text import format_count

if TYPE_CHECKING:
    from ladder.core.events import Event
    from ladder.training.checkpoint import Origin
    from ladder.training.ranks import Ranks
    from ladder.training.train import Settings, Summary

HELP = """Train a model: sample grids, a loss log and a checkpoint.

    The grids are PNG files of the averaged generator (EMA). A training goes on from its checkpoint with --resume. NaN
    or infinity in a loss stops the training with exit status 1; the message names phase and step.
    """
EXAMPLES = """
ladder train --workload tiny --steps 500 --out runs/tiny
ladder train --workload article --data photos/ --recipe fused_act --steps 20000 --out runs/photos
ladder train --workload tiny --steps 1000 --out runs/tiny --resume runs/tiny/checkpoint.pt
ladder train --from ffhq.pt --data photos/ --steps 20000 --out runs/photos    networks of `ladder convert`
torchrun --nproc-per-node 2 -m ladder train --workload article-b32 --out runs/two   two GPUs, 16 images each
ladder train --canary --steps 500             does any rung train worse than the baseline? (tiny, 3 seeds)
"""
Steps = Annotated[int, Meta(ge=1)]


class Options(Record):
    """The options of one `ladder train`. One that was not given is None: its default depends on the others."""

    recipe: Annotated[
        str | None,
        declare_option(
            "A rung (with all below it) or a YAML file of recipe fields. [default: the highest rung this machine"
            " can do]",
            metavar="RUNG|FILE",
        ),
    ] = None
    ladder: Annotated[str, declare_option("The ladder whose rungs are used.", metavar="NAME|FILE")] = (
        "article"
    )
    steps: Annotated[Steps, declare_option("Step to train up to.")] = 500
    resume: Annotated[
        Path | None,
        declare_option(
            "Continue from a checkpoint exactly as if the training had not stopped.", metavar="FILE"
        ),
    ] = None
    sample_every: Annotated[Steps, declare_option("Steps between sample grids and between checkpoints.")] = (
        250
    )
    log_every: Annotated[Steps, declare_option("Steps between lines of the loss log: 16 are a cycle.")] = 16
    truncation: Annotated[
        Annotated[float, Meta(ge=0, le=1)],
        declare_option("Truncation of the sample grids: below 1, latents move towards their average."),
    ] = 1.0
    seed: Annotated[
        Seed | None,
        declare_option("Seed for weights, latents and the order of images; --resume goes on with the checkpoint's."
               " [default: 0]"),
    ] = None  # fmt: skip
    canary: Annotated[
        bool,
        declare_option(
            "Train every rung from several seeds; compare its samples' distance to the data with the baseline's."
        ),
    ] = False  # fmt: skip
    seeds: Annotated[
        Annotated[int, Meta(ge=2, le=100)], declare_option("Trainings of each rung in the canary.")
    ] = 3
    jobs: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        declare_option("Parallel trainings of the canary. [default: 1 on the CPU, up to 4 on a GPU]"),
    ] = None


@dataclass(frozen=True)
class Request:
    """One `ladder train`: its own options, and those that other commands have, too."""

    own: Options
    workload: str | None
    data: str | None
    out: Path | None
    start: Path | None  # --from
    device: str | None
    as_json: bool


def call(own: Options, **values: Any) -> None:
    """Train, and end with the exit status."""
    request = Request(own, **values)
    if own.canary:
        shared.refuse_idle(
            "is for a single training: leave it out of --canary",
            *("seed", "sample_every", "log_every", "truncation"),
        )
        if own.recipe is not None or request.start is not None:
            raise UserError("--canary trains every rung from the start: leave out --from and --recipe")
        from ladder.studies import canary, frame

        options = canary.Options(own.ladder, own.steps, own.seeds, own.jobs)
        place = (request.workload, request.device, request.data, request.out, own.resume)
        sys.exit(frame.run_request(canary.STUDY, options, frame.Request(*place, as_json=request.as_json)))
    shared.refuse_idle("is for --canary", "seeds", "jobs")
    if own.resume is not None and request.start is not None:
        raise UserError("--from begins a training and --resume goes on with one: give one of them")
    if request.out is None:
        raise UserError("give --out DIR: sample grids, loss log and checkpoint go there")
    sys.exit(run_training(request))


def run_training(request: Request) -> int:
    """Train, print where the files are, and return the exit status.

    Raises:
        UserError: the request is impossible.
        KeyboardInterrupt: stopped after a step, with a checkpoint.
    """
    from ladder.report import output
    from ladder.training.losslog import Diverged

    out = cast(Path, request.out)
    try:
        summary = _train(request)
    except Diverged as error:
        click.echo(f"ladder: {error}", err=True)
        return 1
    except KeyboardInterrupt:  # raised after the current step and its checkpoint
        path = out / "checkpoint.pt"
        output.say_where(path if path.exists() else None, request.as_json, again=True)
        raise
    if summary is None:  # a rank that writes nothing
        return 0
    if request.as_json:
        click.echo(json.dumps(summary, indent=1))
    else:
        done = f"{format_count(summary['step'], 'step')}, {format_count(summary['images'], 'image')}"
        samples = shorten_path(out / summary["files"]["samples"])
        click.echo(f"{done}, {summary['seconds']:.0f} s of training: {samples}")
    output.say_where(out / summary["files"]["checkpoint"], request.as_json)
    return 0


def _train(request: Request) -> Summary | None:
    """Train and return the summary, None on a rank that writes nothing.

    Without a named workload, that of the checkpoint to begin with or to resume is taken.
    """
    from ladder.cli.climb import choose_recipe
    from ladder.images.for_workload import DEFAULT_WORKLOAD
    from ladder.machine import system
    from ladder.plan import catalog, needs
    from stylegan_lite.config import Recipe, Workload

    own = request.own
    if request.workload is not None:
        catalog.load_workload(request.workload)
    ladder = catalog.load_ladder(own.ladder)
    device = system.choose_device(request.device)
    from ladder.training.ranks import join_ranks  # this imports torch
    from ladder.training.train import Settings
    from stylegan_lite import ranks as step_ranks

    origin = _read_origin(request)
    if origin is not None and request.workload is None:
        name, workload = origin.path.name, origin.workload.to_dict()
    else:
        name = request.workload or DEFAULT_WORKLOAD[device]
        _, workload = catalog.load_workload(name)
    if request.start is not None:
        origin.refuse_other(workload)
    settings = Settings(
        request.out, device, own.steps, own.seed or 0, own.resume, origin if request.start else None,
        own.sample_every, own.log_every, truncation=own.truncation,
    )  # fmt: skip
    able = needs.join_capabilities(system.list_capabilities(device), workload)
    recipe = choose_recipe(own.recipe, ladder, able, device)
    with join_ranks(device) as ranks:
        if ranks is not None:
            if request.start is not None:
                raise UserError(
                    "--from: begin with one process; its checkpoint goes on under torchrun with --resume"
                )
            recipe = ranks.adapt_recipe(recipe)
        checked = Recipe.from_dict(recipe)
        where = f"--recipe {own.recipe}" if own.recipe else "recipe"
        checked.refuse_for(Workload.from_dict({**workload, "data": None}), where)
        if ranks is None:
            step_ranks.Ranks(checked)  # refuses a recipe of several without torchrun
        workload = workload | {"data": request.data or workload["data"]}
        return _train_here(ranks, name, workload, recipe, settings, request.as_json)


def _read_origin(request: Request) -> Origin | None:
    """Return the checkpoint that the training begins with or resumes."""
    from ladder.training import checkpoint

    path = request.start or request.own.resume
    if path is None:
        return None
    origin = checkpoint.read_origin(path)
    if request.start is None:
        checkpoint.refuse_converted(path, origin.content)
        seed = origin.content["seed"]
        if request.own.seed not in (None, seed):
            raise UserError(f"{path}: --resume: that training has --seed {seed}: leave yours out")
    return origin


def _train_here(
    ranks: Ranks | None, name: str, workload: Fields, recipe: Fields, settings: Settings, quiet: bool
) -> Summary | None:
    """Train in this process, alone or as one of several ranks. Only the one that writes has a summary."""
    from ladder.core import progress
    from ladder.core.stopping import stop_on_sigterm
    from ladder.images import for_workload
    from ladder.machine import system
    from ladder.training import checkpoint
    from ladder.training.train import follow_training, train_model

    is_writer = ranks is None or ranks.is_writer
    if is_writer:  # before images are made
        files.refuse_unwritable(settings.out)
        if settings.resume is None:
            with locks.folder_lock(settings.out):  # a log that is being written is no remainder
                checkpoint.refuse_occupied(settings.out)
    several = "" if ranks is None else f", {ranks.size} ranks"
    line = f"training: {name} on {settings.device}{several}, up to step {settings.steps}"
    first = progress.First(line, quiet or not is_writer)
    prepare = functools.partial(for_workload.prepare_images, workload["data"], workload, first.quiet, first)
    images = prepare() if ranks is None else ranks.run_in_turn(prepare)
    with stop_on_sigterm():
        if ranks is not None and not is_writer:
            follow_training(workload, recipe, images, settings, ranks)
            return None
        with (
            system.hold_untimed(settings.device, int(recipe.get("ranks", 1)) if ranks is None else 1),
            progress.training_progress(settings.steps, first.quiet) as draw,
        ):

            def on_event(event: Event) -> None:
                if event["event"] == "checked":  # no refusal can come any more
                    first()
                draw(event)

            return train_model(workload, recipe, images, settings, on_event, ranks)


out_option = click.option(
    "--out",
    metavar="DIR",
    type=shared.FOLDER,
    help="Sample grids, loss log and checkpoint go here. [required; default with --canary: results/canary]",
)
from_option = click.option(
    "--from",
    "start",
    metavar="FILE",
    type=shared.FILE,
    help="Begin a new training with the networks of a checkpoint, and with its workload if none is named.",
)

train = make_command(
    "train", Options, call, HELP, EXAMPLES,
    [shared.workload_option("article on a GPU, tiny on the CPU"), shared.data_option, out_option, from_option,
     shared.device_option, shared.json_option],
)  # fmt: skip
