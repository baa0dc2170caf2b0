"""Options of `ladder sample`. `ladder.training.sample` does the work."""

from __future__ import annotations

from pathlib import Path

import click

from ladder.core import files, options
from ladder.core.starting import shorten_path
from ladder.core.text import format_count


@click.command(
    epilog="""\b
Examples:
  ladder sample runs/photos/checkpoint.pt --out samples                  seeds 0 to 31
  ladder sample ffhq.pt --out faces --seeds 85,265,1000-1023 --truncation 0.7"""
)
@click.argument("path", metavar="CHECKPOINT", type=options.FILE)
@click.option("--out", metavar="DIR", type=options.FOLDER, required=True, help="The images go here.")
@click.option(
    "--seeds", metavar="A,B-C,...", default="0-31", show_default=True, help="A seed for each image."
)
@click.option(
    "--truncation",
    type=options.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Below 1, latents move towards their average.",
)
@options.device_option
def sample(path: Path, out: Path, seeds: str, truncation: float, device: str | None) -> None:
    """Write images of a checkpoint's averaged generator.

    Each seed gets a PNG, and the first ones a grid. CHECKPOINT is a file of `ladder train` or `ladder convert`. For
    NVIDIA's weights a seed gives the image that NVIDIA's gen_images.py gives for it.
    """
    from ladder.machine import system
    from ladder.training import sample as sampling

    chosen = sampling.parse_seeds(seeds)
    device = system.choose_device(device)
    files.refuse_unwritable(out)
    with system.hold_untimed(device):
        paths = sampling.draw_images(path, out, chosen, truncation=truncation, device=device)
    click.echo(f"{shorten_path(paths[-1])}, and {format_count(len(chosen), 'image')} beside it")
