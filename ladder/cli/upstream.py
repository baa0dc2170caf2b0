"""Options of `ladder upstream`, and the files that it writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ladder.base import files, locks, text
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.progress import First
from ladder.base.records import build, plain
from ladder.cli import options
from ladder.images import for_workload
from ladder.plan import needs

if TYPE_CHECKING:
    from ladder.results.types import Plain
    from ladder.studies.upstream.measure import Plan
    from ladder.studies.upstream.record import Result

OUT = ROOT / "results" / "upstream"


@click.command(
    epilog="""\b
Examples:
  git clone https://github.com/NVlabs/stylegan3 ../stylegan3
  ladder upstream ../stylegan3                    its step and ours, in turn, five generations
  ladder upstream ../stylegan3 -w article-b32
  ladder upstream ../stylegan3 --resume results/upstream/MACHINE-article-partial.json     the generations that it lacks
  ladder upstream ../stylegan3 --patched          one more contender: the clone with our ops
  ladder upstream ../stylegan3 --json > upstream.json"""
)
@click.argument("clone", type=options.FOLDER)
@options.workload_option("article on a GPU, tiny on the CPU")
@options.ladder_option("full", "The ladder whose top is measured.")
@options.rounds_option(
    1, "Generations: fresh processes of each side, including those of --resume. [default: 5; CPU: 1]"
)
@click.option(
    "--cycles",
    type=options.IntRange(1, 1000),
    help="Timed 16-step cycles of each process. [default: 2; CPU: 1]",
)
@click.option(
    "--inspect/--no-inspect",
    default=True,
    show_default=True,
    help="Check parity and receipts of our step before it is timed.",
)
@click.option(
    "--patched",
    is_flag=True,
    help="Also measure a copy of the clone with the files of `ladder export --like nvidia` in place of its own.",
)
@options.data_option
@click.option(
    "--resume",
    metavar="FILE",
    type=options.FILE,
    help="Continue the run of this file: measure the missing generations. The workload is the file's.",
)
@options.seed_option("weights, latents, and the order of images and visits")
@options.device_option
@options.out_option("results/upstream")
@options.json_option
def upstream(
    clone: Path, workload: str | None, ladder_name: str, rounds: int | None, cycles: int | None, inspect: bool,
    patched: bool, data: str | None, resume: Path | None, seed: int, device: str | None, out: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Time NVIDIA's own StyleGAN2 beside the top of a ladder.

    CLONE is a clone of https://github.com/NVlabs/stylegan3. It belongs to NVIDIA under NVIDIA's licence and is not
    part of this project. Its networks, losses and CUDA ops run as configuration `stylegan2` without augmentation, at
    the workload's widths. Its fresh processes take turns with ours.

    With --patched, a temporary copy of CLONE runs with this project's ops, and nothing else is changed. It is timed if
    the gradients of each phase are as near to FP64 as those of CLONE.

    Exit status: 0 if both have a number. 1 if one has none. 2 if the request is impossible. 130 if interrupted.
    """
    from ladder.machine import environment, system
    from ladder.plan import catalog
    from ladder.publish.export import drop_in
    from ladder.report import output as ending
    from ladder.results.combine import resuming
    from ladder.results.types import head
    from ladder.studies.upstream import measure as measuring
    from ladder.studies.upstream import report, source
    from ladder.studies.upstream import resume as taking_up

    source.networks_of(clone)
    drop_in.refuse_patched(clone)
    patch = _patch(clone) if patched else {}
    before = _before(resume)
    chosen = system.choose_device(device)
    environment.refuse(chosen)
    source.refuse_unbuildable(chosen)
    folder = out or (resume.parent if resume else OUT)
    if before and workload is None:
        workload = before.workload["name"]
        if workload not in catalog.workloads():
            raise UserError(f"{resume}: --resume: its workload is a file of yours; name it with --workload")
    if before:
        own = catalog.load_workload(workload)[1]["data"]
        resuming.ask_for_images(resume, head(before), data, None if own is None else str(own))
    files.refuse_unwritable(folder)
    cpu = chosen == "cpu"
    rounds = rounds or (1 if cpu else 5)
    steps = "NVIDIA's step, the patched one" if patched else "NVIDIA's step"
    said = f"{steps} and {{}}, {text.counted(rounds, 'generation')}"
    plan, photographs, first = _plan(clone, workload, ladder_name, chosen, data, said, as_json)
    asked = replace(
        plan,
        rounds=rounds,
        cycles=cycles or (1 if cpu else 2),
        seed=seed,
        inspect=inspect,
        **patch,
    )

    def tell(line: str) -> None:
        click.echo(line, err=True)

    facts = system.facts(chosen)
    paths: list[Path] = []

    def save(result: Result) -> None:
        paths[:] = write(result, folder)

    result = measuring.new_result(asked, facts, photographs)
    with locks.folder_lock(folder, text.slug(facts["name"])):
        if resume:  # read again under the lock: another run may have continued it
            result = taking_up.take_up(resume, _before(resume), result)
        first()
        environment.tell(as_json)
        result = measuring.measure(asked, result, tell, save)
    found = plain(result)
    ending.end(found, report.text(result), paths, as_json, found["programs"], resumes=True)


def _patch(clone: Path) -> dict[str, Any]:
    """Return the files of the patched contender and their digest. Raises UserError for a clone that lacks one."""
    from ladder.cli.export import origin
    from ladder.publish.export import drop_in
    from ladder.studies.upstream import patched

    texts = drop_in.contents(origin())
    patched.refuse(clone, texts)
    return {"patch": texts, "patch_digest": drop_in.digest_of(texts)}


def _before(resume: Path | None) -> Result | None:
    from ladder.results import loading
    from ladder.studies.upstream import record, schema

    return build(record.Result, loading.load_kind(resume, schema.KIND)) if resume else None


def _plan(
    clone: Path, workload: str | None, ladder_name: str, device: str, data: str | None, said: str, quiet: bool
) -> tuple[Plan, str | None, First]:
    """Return what both sides train and the recipe of our top, the source of the images, and the first line.

    The first line is `said` with the name of our top, behind workload and device.
    """
    from ladder.machine import system
    from ladder.plan import catalog
    from ladder.studies.upstream import step
    from ladder.studies.upstream.measure import Plan

    name, fields = catalog.load_workload(workload or for_workload.DEFAULT_WORKLOAD[device])
    step.refuse(fields)
    able = needs.possible(system.capabilities(device), fields)
    climbed = [
        each for each in catalog.climb(catalog.load_ladder(ladder_name), able) if each.recipe is not None
    ]
    if not climbed:
        raise UserError(f"ladder {ladder_name}: none of its rungs runs here")
    first = First(f"{name} on {device}: {said.format(climbed[-1].name)}", quiet)
    pictures = for_workload.prepare_images(data or fields["data"], fields, quiet, first)
    plan = Plan(
        folder=clone.resolve(),
        name=name,
        workload=fields | {"data": pictures.path},
        rung=climbed[-1].name,
        recipe=climbed[-1].recipe,
        weights=weights(fields),
        device=device,
    )
    return plan, pictures.source, first


def weights(fields: Plain) -> dict[str, int]:
    """Return the number of weights of our networks. The networks live on the meta device, without memory."""
    import torch

    from stylegan_lite.config import Recipe, Workload
    from stylegan_lite.networks import Discriminator, Generator

    workload, recipe = Workload.from_dict(fields), Recipe.from_dict({})
    with torch.device("meta"):
        G, D = Generator(workload, recipe), Discriminator(workload, recipe)
    return {
        name: sum(each.numel() for each in held)
        for name, held in (("G", G.parameters()), ("D", D.parameters()))
    }


def write(result: Result, folder: Path) -> list[Path]:
    """Write the result as JSON and Markdown, and return the files."""
    from ladder.results import store
    from ladder.studies.upstream import report

    return store.save(plain(result), folder, {"md": report.markdown(result)})
