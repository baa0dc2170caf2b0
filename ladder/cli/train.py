"""`ladder train`: a training in one process or on several ranks."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
from msgspec import Meta

from ladder.core import files, locks, progress
from ladder.core import options as shared
from ladder.core.errors import UserError
from ladder.core.options import Seed, declare_option, make_command
from ladder.core.records import Record
from ladder.core.starting import shorten_path
from ladder.core.text import format_count
from ladder.plan import catalog, needs

if TYPE_CHECKING:
    from ladder.core.events import Event
    from ladder.training.checkpoint import Origin
    from ladder.training.train import Summary

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
"""
Steps = Annotated[int, Meta(ge=1)]


class Options(Record):
    """The options of one `ladder train`. One that was not given is None: its default depends on the others."""

    # fmt: off
    recipe: Annotated[str | None, declare_option(
        "A rung (with all below it) or a YAML file of recipe fields. [default: the highest rung this machine can do]",
        metavar="RUNG|FILE")] = None
    ladder: Annotated[str, declare_option("The ladder whose rungs are used.", metavar="NAME|FILE")] = "article"
    steps: Annotated[Steps, declare_option("Step to train up to.")] = 500
    resume: Annotated[Path | None, declare_option(
        "Continue from a checkpoint exactly as if the training had not stopped.", metavar="FILE")] = None
    sample_every: Annotated[Steps, declare_option("Steps between sample grids and between checkpoints.")] = 250
    log_every: Annotated[Steps, declare_option("Steps between lines of the loss log: 16 are a cycle.")] = 16
    truncation: Annotated[Annotated[float, Meta(ge=0, le=1)], declare_option(
        "Truncation of the sample grids: below 1, latents move towards their average.")] = 1.0
    seed: Annotated[Seed | None, declare_option(
        "Seed for weights, latents and the order of images; --resume goes on with the checkpoint's. [default: 0]",
        )] = None
    # fmt: on


def call(
    own: Options, workload: str | None, data: str | None, out: Path | None, start: Path | None,
    device: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Train, print where the files are, and end with the exit status."""
    from ladder.report import output

    if own.resume is not None and start is not None:
        raise UserError("--from begins a training and --resume goes on with one: give one of them")
    if out is None:
        raise UserError("give --out DIR: sample grids, loss log and checkpoint go there")
    from ladder.training.losslog import Diverged

    try:
        summary = run_training(own, workload, data, out, start, device, as_json)
    except Diverged as error:
        click.echo(f"ladder: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:  # raised after the current step and its checkpoint
        path = out / "checkpoint.pt"
        output.say_where(path if path.exists() else None, as_json, again=True)
        raise
    if summary is None:  # a rank that writes nothing
        return
    if as_json:
        click.echo(json.dumps(summary, indent=1))
    else:
        done = f"{format_count(summary['step'], 'step')}, {format_count(summary['images'], 'image')}"
        samples = shorten_path(out / summary["files"]["samples"])
        click.echo(f"{done}, {summary['seconds']:.0f} s of training: {samples}")
    output.say_where(out / summary["files"]["checkpoint"], as_json)


def read_origin(own: Options, start: Path | None) -> Origin | None:
    """Return the checkpoint that the training begins with (`start`) or resumes."""
    path = start or own.resume
    if path is None:
        return None
    from ladder.training import checkpoint

    origin = checkpoint.read_origin(path)
    if start is None:
        checkpoint.refuse_converted(path, origin.content)
        seed = origin.content["seed"]
        if own.seed not in (None, seed):
            raise UserError(f"{path}: --resume: that training has --seed {seed}: leave yours out")
    return origin


def run_training(
    own: Options, workload_name: str | None, data: str | None, out: Path, start: Path | None,
    device: str | None, quiet: bool,
) -> Summary | None:  # fmt: skip
    """Train in this process, alone or as one of several ranks; return the summary, None on a rank that writes nothing.

    Without a named workload, that of the checkpoint to begin with or to resume is taken.

    Raises:
        UserError: the request is impossible.
        Diverged: a loss is NaN or infinite.
        KeyboardInterrupt: stopped after a step, with a checkpoint.
    """
    from ladder.cli.climb import choose_recipe
    from ladder.core.stopping import stop_on_sigterm
    from ladder.images import for_workload
    from ladder.machine import system
    from stylegan_lite.config import Recipe, Workload
    from stylegan_lite.step import ranks as step_ranks

    if workload_name is not None:
        catalog.load_workload(workload_name)
    ladder = catalog.load_ladder(own.ladder)
    device = system.choose_device(device)
    from ladder.training import checkpoint  # this imports torch
    from ladder.training.ranks import join_ranks
    from ladder.training.train import Settings, follow_training, train_model

    origin = read_origin(own, start)
    name = workload_name or for_workload.DEFAULT_WORKLOAD[device]
    if origin is not None and workload_name is None:
        name, workload = origin.path.name, origin.workload.to_dict()
    else:
        workload = catalog.load_workload(name)[1]
    if start is not None:
        origin.refuse_other(workload)
    settings = Settings(
        out, device, own.steps, own.seed or 0, own.resume, origin if start else None,
        own.sample_every, own.log_every, truncation=own.truncation,
    )  # fmt: skip
    able = needs.join_capabilities(system.list_capabilities(device), workload)
    recipe = choose_recipe(own.recipe, ladder, able, device)
    with join_ranks(device) as ranks:
        if ranks is not None:
            if start is not None:
                raise UserError(
                    "--from: begin with one process; its checkpoint goes on under torchrun with --resume"
                )
            recipe = ranks.adapt_recipe(recipe)
        checked = Recipe.from_dict(recipe)
        where = f"--recipe {own.recipe}" if own.recipe else "recipe"
        checked.refuse_for(Workload.from_dict({**workload, "data": None}), where)
        if ranks is None:
            step_ranks.Ranks(checked)  # refuses a recipe of several without torchrun
        is_writer = ranks is None or ranks.is_writer
        if is_writer:  # before images are made
            files.refuse_unwritable(out, images=data or workload["data"])
            if own.resume is None:
                with locks.folder_lock(out):  # a log that is being written is no remainder
                    checkpoint.refuse_occupied(out)
        several = "" if ranks is None else f", {ranks.size} ranks"
        line = f"training: {name} on {device}{several}, up to step {own.steps}"
        first = progress.First(line, quiet or not is_writer)
        pictures, workload = data or workload["data"], workload | {"data": data or workload["data"]}
        prepare = functools.partial(for_workload.prepare_images, pictures, workload, first.quiet, first)
        images = prepare() if ranks is None else ranks.run_in_turn(prepare)
        with stop_on_sigterm():
            if ranks is not None and not is_writer:
                follow_training(workload, recipe, images, settings, ranks)
                return None
            count = int(recipe.get("ranks", 1)) if ranks is None else 1
            with (
                system.hold_untimed(device, count),
                progress.training_progress(own.steps, first.quiet) as draw,
            ):

                def on_event(event: Event) -> None:
                    if event["event"] == "checked":  # no refusal can come any more
                        first()
                    draw(event)

                return train_model(workload, recipe, images, settings, on_event, ranks)


out_option = click.option(
    "--out", metavar="DIR", type=shared.FOLDER,
    help="Sample grids, loss log and checkpoint go here. [required]",
)  # fmt: skip
from_option = click.option(
    "--from", "start", metavar="FILE", type=shared.FILE,
    help="Begin a new training with the networks of a checkpoint, and with its workload if none is named.",
)  # fmt: skip
train = make_command(
    "train", Options, call, HELP, EXAMPLES,
    [shared.workload_option("article on a GPU, tiny on the CPU"), shared.data_option, out_option, from_option,
     shared.device_option, shared.json_option],
)  # fmt: skip
