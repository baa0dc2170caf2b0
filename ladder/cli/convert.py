"""Options of `ladder convert`. `ladder.training.nvidia` does the work."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ladder.core import options
from ladder.core.errors import UserError
from ladder.core.starting import format_command, shorten_path


@click.command(
    epilog="""\b
Examples:
  ladder convert network-snapshot.pkl ffhq.pt               NVIDIA's networks, for `ladder train --from ffhq.pt`
  ladder convert runs/photos/checkpoint.pt for_nvidia.pt    state dicts that NVIDIA's classes load"""
)
@click.argument("source", metavar="IN", type=options.FILE)
@click.argument("target", metavar="OUT", type=options.FILE)
def convert(source: Path, target: Path) -> None:
    """Convert NVIDIA's StyleGAN2 weights to a checkpoint, or back.

    The kind of IN decides the direction. If IN has NVIDIA's weights, OUT becomes a checkpoint for `ladder train
    --from` and `ladder sample`. If IN is a checkpoint of `ladder train`, OUT gets state dicts under NVIDIA's names.
    OUT must not exist.

    NVIDIA's weights are a network pickle of stylegan2-ada-pytorch or stylegan3 (--cfg=stylegan2), or a file of
    torch.save with the state dicts G, D and G_ema. Nothing in a pickle is run: it may name a few harmless things, and
    anything else is refused.
    """
    if os.path.lexists(target):
        raise UserError(f"{target}: is there already: give another OUT")
    if not target.absolute().parent.is_dir():
        raise UserError(f"{target}: no such folder as {shorten_path(target.absolute().parent)}")
    from ladder.training import checkpoint
    from ladder.training.nvidia import convert as converting

    converted = converting.convert_file(source)
    checkpoint.write_checkpoint(target, converted.content)
    for note in converted.notes:
        click.echo(f"note: {note}", err=True)
    what = "a checkpoint" if converted.is_checkpoint else "state dicts for NVIDIA's classes"
    w = converted.workload
    bound = "no clamp" if w.conv_clamp is None else f"conv_clamp {w.conv_clamp:g}"
    click.echo(
        f"{shorten_path(target)}: {what}, {w.resolution}x{w.resolution}, channel_base {w.channel_base}, {bound}"
    )
    if converted.is_checkpoint:
        click.echo(
            f"go on: {format_command('train', '--from', shorten_path(target), '--data', 'PATH', '--out', 'DIR')}"
        )
