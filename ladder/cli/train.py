"""Options of `ladder train`, and of `--canary`, which compares rungs. `ladder.cli.training` does the work."""

from __future__ import annotations

import sys
from typing import Any

import click

from ladder.base.errors import UserError
from ladder.core import options


@click.command(
    epilog="""\b
Examples:
  ladder train --workload tiny --steps 500 --out runs/tiny
  ladder train --workload article --data photos/ --recipe fused_act --steps 20000 --out runs/photos
  ladder train --workload tiny --steps 1000 --out runs/tiny --resume runs/tiny/checkpoint.pt
  ladder train --from ffhq.pt --data photos/ --steps 20000 --out runs/photos    networks of `ladder convert`
  torchrun --nproc-per-node 2 -m ladder train --workload article-b32 --out runs/two   two GPUs, 16 images each
  ladder train --canary --steps 500             does any rung train worse than the baseline? (tiny, 3 seeds)"""
)
@options.workload_option("article on a GPU, tiny on the CPU")
@options.data_option
@click.option(
    "--recipe",
    metavar="RUNG|FILE",
    help="A rung (with all below it) or a YAML file of recipe fields."
    " [default: the highest rung this machine can do]",
)
@options.ladder_option()
@click.option(
    "--steps", type=options.IntRange(1), default=500, show_default=True, help="Step to train up to."
)
@click.option(
    "--out",
    metavar="DIR",
    type=options.FOLDER,
    help="Sample grids, loss log and checkpoint go here. [required; default with --canary: results/canary]",
)
@click.option(
    "--resume",
    metavar="FILE",
    type=options.FILE,
    help="Continue from a checkpoint exactly as if the training had not stopped.",
)
@click.option(
    "--from",
    "start",
    metavar="FILE",
    type=options.FILE,
    help="Begin a new training with the networks of a checkpoint, and with its workload if none is named.",
)
@click.option(
    "--sample-every",
    type=options.IntRange(1),
    default=250,
    help="Steps between sample grids and between checkpoints. [default: 250]",
)
@click.option(
    "--log-every",
    type=options.IntRange(1),
    default=16,
    help="Steps between lines of the loss log. [default: 16, a cycle]",
)
@click.option(
    "--truncation",
    type=options.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Truncation of the sample grids: below 1, latents move towards their average.",
)
@options.seed_option(
    "weights, latents and the order of images; --resume goes on with the checkpoint's", default=None
)
@click.option(
    "--canary",
    is_flag=True,
    help="Train every rung from several seeds and compare its samples' distance to the data with the baseline's.",
)
@click.option(
    "--seeds",
    type=options.IntRange(2, 100),
    default=3,
    show_default=True,
    help="Trainings of each rung in the canary.",
)
@click.option(
    "--jobs",
    type=options.IntRange(1, 64),
    help="Parallel trainings of the canary. [default: 1 on the CPU, up to 4 on a GPU]",
)
@options.device_option
@options.json_option
def train(**values: Any) -> None:
    """Train a model: sample grids, a loss log and a checkpoint.

    The grids are PNG files of the averaged generator (EMA). A training goes on from its checkpoint with --resume. NaN
    or infinity in a loss stops the training with exit status 1; the message names phase and step.
    """
    from ladder.cli import training

    request = training.Request(**values)
    if request.canary:
        options.refuse_idle(
            "is for a single training: leave it out of --canary",
            *("seed", "sample_every", "log_every", "truncation"),
        )
        if request.resume is not None or request.recipe is not None or request.start is not None:
            raise UserError(
                "--canary trains every rung from the start: leave out --resume, --from and --recipe"
            )
        sys.exit(training.run_canary(request))
    options.refuse_idle("is for --canary", "seeds", "jobs")
    if request.resume is not None and request.start is not None:
        raise UserError("--from begins a training and --resume goes on with one: give one of them")
    if request.out is None:
        raise UserError("give --out DIR: sample grids, loss log and checkpoint go there")
    sys.exit(training.run_training(request))
