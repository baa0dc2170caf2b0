"""The work behind `ladder train`: a training in one process or on several ranks, and canaries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ladder.base import files, locks, progress
from ladder.base.errors import UserError
from ladder.base.events import Event
from ladder.base.plain import Fields
from ladder.base.text import counted
from ladder.cli.climb import choose_recipe, of_machine
from ladder.images.for_workload import DEFAULT_WORKLOAD, prepare_images
from ladder.machine import system
from ladder.plan import catalog, needs
from ladder.report import output as ending
from stylegan_lite.config import Recipe, Workload

if TYPE_CHECKING:
    from ladder.images.prepare import ImageSet
    from ladder.training.canary import Canary
    from ladder.training.origin import Origin
    from ladder.training.ranks import Ranks
    from ladder.training.train import Summary


def train(
    workload_name: str | None,
    ladder_name: str,
    recipe: str | None,
    data: str | None,
    device: str | None,
    quiet: bool,
    start: Path | None = None,
    **options: Any,
) -> Summary | None:
    """Train, and return the summary. ``options`` are those of ``ladder.training.train.train``.

    ``start`` is a checkpoint whose networks are taken. Without ``workload_name`` the workload of that checkpoint is
    taken, or of the one to resume. Under torchrun this process is one of several ranks, and those that write nothing
    return None.

    Raises:
        UserError: the request is impossible.
        losslog.Diverged: a loss or weight became NaN or infinite; the message names phase and step.
    """
    if workload_name is not None:
        catalog.load_workload(workload_name)
    ladder = catalog.load_ladder(ladder_name)
    device = system.choose_device(device)
    source = start or options.get("resume")
    held = _origin(source, start is None) if source else None
    name = workload_name or (source.name if source else DEFAULT_WORKLOAD[device])
    if held is not None and workload_name is None:
        workload = held.workload.to_dict()
    else:
        _, workload = catalog.load_workload(name)
    seed = options.get("seed")
    if held is not None and start is None and seed not in (None, held.content["seed"]):
        raise UserError(
            f"{source}: --resume: that training has --seed {held.content['seed']}: leave yours out"
        )
    options["seed"] = seed or 0
    if held is not None and start is not None:
        held.refuse_other(workload)
        options |= {"origin": held}
    there = needs.possible(system.capabilities(device), workload)
    chosen = choose_recipe(recipe, ladder, there, device)
    from ladder.training import ranks as training_ranks
    from stylegan_lite.ranks import Ranks

    with training_ranks.joined(device) as ranks:
        if ranks is not None:
            if start is not None:
                raise UserError(
                    "--from: begin with one process; its checkpoint goes on under torchrun with --resume"
                )
            chosen = ranks.recipe(chosen)
        asked = Recipe.from_dict(chosen)
        asked.refuse_for(
            Workload.from_dict({**workload, "data": None}), f"--recipe {recipe}" if recipe else "recipe"
        )
        if ranks is not None:
            return _on_ranks(ranks, name, workload, chosen, data or workload["data"], device, quiet, options)
        Ranks(asked)  # refuses a recipe of several without torchrun
        _refuse_folder(options)
        first = progress.First(f"training: {name} on {device}, up to step {options['steps']}", quiet)
        pictures = prepare_images(data or workload["data"], workload, quiet, first)
        return _trained(workload, chosen, pictures, device, first, options)


def _origin(path: Path, resumed: bool) -> Origin:
    from ladder.training import checkpoint, origin  # these import torch

    found = origin.read(path)
    if resumed:
        checkpoint.refuse_converted(path, found.content)
    return found


def _refuse_folder(options: dict[str, Any]) -> None:
    """Refuse a folder that cannot be written, or that holds a training already, before images are made.

    A training that runs there holds the lock. Its log must not be taken for what a dead one left, to be deleted.
    """
    from ladder.training import folder

    files.refuse_unwritable(options["out"])
    if options.get("resume") is None:
        with locks.folder_lock(options["out"]):
            folder.refuse_occupied(options["out"])


def _trained(
    workload: Fields,
    recipe: Fields,
    pictures: ImageSet,
    device: str,
    first: progress.First,
    options: dict[str, Any],
) -> Summary:
    from ladder.base.stopping import stop_on_sigterm
    from ladder.training.train import train as training

    count = 1 if "ranks" in options else int(recipe.get("ranks", 1))
    with (
        stop_on_sigterm(),
        system.untimed(device, count),
        progress.training_progress(options["steps"], first.quiet) as shown,
    ):

        def on_event(event: Event) -> None:
            if event["event"] == "checked":  # no refusal can come after this event
                first()
            shown(event)

        return training(workload, recipe, pictures, device=device, on_event=on_event, **options)


def _on_ranks(
    ranks: Ranks, name: str, workload: Fields, recipe: Fields, data: Any, device: str, quiet: bool,
    options: dict[str, Any],
) -> Summary | None:  # fmt: skip
    """Train as one of several ranks. Only the one that writes has a summary."""
    quiet = quiet or not ranks.writes
    if ranks.writes:
        _refuse_folder(options)
    said = f"training: {name} on {device}, {ranks.size} ranks, up to step {options['steps']}"
    first = progress.First(said, quiet)
    pictures = ranks.in_turn(lambda: prepare_images(data, workload, quiet, first))
    if ranks.writes:
        return _trained(workload, recipe, pictures, device, first, options | {"ranks": ranks})
    from ladder.base.stopping import stop_on_sigterm
    from ladder.training.following import follow

    shared = {key: options[key] for key in ("steps", "seed", "resume") if key in options}
    with stop_on_sigterm():
        follow(workload, recipe, pictures, ranks, device=device, **shared)
    return None


def canary(
    workload_name: str | None,
    ladder_name: str,
    data: str | None,
    device: str | None,
    quiet: bool,
    *,
    steps: int,
    seeds: int,
    jobs: int | None,
    out: Path | None,
) -> Canary:
    """Train every rung of a ladder from several seeds (``ladder.training.canary``), by default on ``tiny``.

    Raises:
        UserError: the request is impossible.
    """
    ladder = catalog.load_ladder(ladder_name)
    device = system.choose_device(device)
    name, workload = catalog.load_workload(workload_name or "tiny")
    from ladder.training import canary as canaries

    out = out or canaries.OUT
    files.refuse_unwritable(of_machine(out, device))
    planned = catalog.climb(ladder, needs.possible(system.capabilities(device), workload))
    number = seeds * sum(rung.recipe is not None for rung in planned)
    many = counted(number, "training")
    first = progress.First(f"canary: {name} on {device}, {many} of {counted(steps, 'step')}", quiet)
    pictures = prepare_images(data or workload["data"], workload, quiet, first)

    paths: list[Path] = []

    def tell(event: Event) -> None:
        if event["event"] == "start":
            first()
        elif event["event"] == "end":
            paths.append(Path(event["path"]))
        elif not quiet:
            found = "broke" if event["distance"] is None else f"{event['distance']:.1f}"
            click.echo(
                f"{event['done']}/{event['total']} {event['rung']}, seed {event['seed']}: {found}", err=True
            )

    result = canaries.run(
        name,
        workload,
        ladder.name,
        planned,
        pictures,
        device,
        steps=steps,
        seeds=seeds,
        jobs=jobs,
        out=out,
        on_event=tell,
    )
    if not quiet:
        click.echo(canaries.table(result))
    ending.say_where(paths[-1] if paths else None, quiet)
    return result
