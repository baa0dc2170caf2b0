"""The commands that take trained weights or fused ops elsewhere: `ladder sample`, `convert` and `export`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from ladder.core import files, options
from ladder.core.errors import UserError
from ladder.core.starting import format_command, shorten_path
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
@click.option("--truncation", type=options.FloatRange(0, 1), default=1.0, show_default=True,
              help="Below 1, latents move towards their average.")  # fmt: skip
@options.device_option
def sample(path: Path, out: Path, seeds: str, truncation: float, device: str | None) -> None:
    """Write images of a checkpoint's averaged generator.

    Each seed gets a PNG, and the first ones a grid. CHECKPOINT is a file of `ladder train` or `ladder convert`. For
    NVIDIA's weights a seed gives the image that NVIDIA's gen_images.py gives for it.
    """
    from ladder.machine import system
    from ladder.training import sample as sampling

    numbers = sampling.parse_seeds(seeds)
    device = system.choose_device(device)
    files.refuse_unwritable(out)
    with system.hold_untimed(device):
        paths = sampling.draw_images(path, out, numbers, truncation=truncation, device=device)
    click.echo(f"{shorten_path(paths[-1])}, and {format_count(len(numbers), 'image')} beside it")


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
    w, name = converted.workload, shorten_path(target)
    what = "a checkpoint" if converted.is_checkpoint else "state dicts for NVIDIA's classes"
    click.echo(f"{name}: {what}, {w.resolution}x{w.resolution}, channel_base {w.channel_base}")
    if converted.is_checkpoint:
        click.echo(f"go on: {format_command('train', '--from', name, '--data', 'PATH', '--out', 'DIR')}")


@click.command(
    epilog="""\b
Examples:
  ladder export --list                                                the ops that can be exported
  ladder export out --ops conv2d --package gradfix                    out/gradfix: convolutions for R1 and path length
  ladder export out --ops conv2d,bias_act,upfirdn2d --package fast    out/fast: three ops
  ladder export out --ops all --package fast                          all ops
  cd out; python -m fast.test_ops                                     check the exported package
  ladder export out --like nvidia; cp -r out/torch_utils CLONE/       fused ops in a clone of stylegan3 or R3GAN"""
)
@click.argument("folder", metavar="DIR", required=False, type=options.ANY)
@click.option("--ops", metavar="A,B,...", help='The ops to export, or "all". [required for a package]')
@click.option("--package", metavar="NAME",
              help="The name under which Python will import the package. [required for it]")  # fmt: skip
@click.option("--like", type=click.Choice(["nvidia"]),
              help="Write drop-in files for a clone of NVIDIA's stylegan3 or stylegan2-ada-pytorch, or of R3GAN,"
              " instead of a package.")  # fmt: skip
@click.option("--list", "listed", is_flag=True, help="Print each op with one line, and nothing else.")
def export(folder: Path | None, ops: str | None, package: str | None, like: str | None, listed: bool) -> None:
    """Write fused ops as a Python package for your own code.

    The package needs only torch and triton. DIR/NAME gets the kernels, their gradients, the plain-PyTorch references
    and the tables of tiles. It also gets the licence, a page on how to call each op, and a test. DIR must be new or
    empty. On a CPU, and wherever a fused op cannot run, an exported op is plain PyTorch. Several packages can be
    imported into one process.

    --like nvidia writes DIR/torch_utils instead. Its files replace those of the same names in a clone, whose
    training then starts with today's PyTorch.
    """
    from ladder.publish.export import drop_in
    from ladder.publish.export import package as exporting

    if listed:
        if folder or ops or package or like:
            raise UserError("--list names all ops: leave out everything else")
        for name, function in exporting.list_ops().items():
            click.echo(f"{name:<21} {exporting.summarize_op(function)}")
    elif like:
        if folder is None or ops or package:
            raise UserError(f"--like {like} needs DIR and nothing else: the ops and their names are {like}'s")
        written = drop_in.export(exporting.read_origin(), folder)
        place = shlex.quote(shorten_path(folder / drop_in.TOP))
        click.echo(f"{place}: {len(drop_in.REPLACED)} drop-in ops, {len(written)} in all")
        click.echo(f"use them: cp -r {place} CLONE/")
        click.echo(f"undo it: cd CLONE; {drop_in.UNDO}")
    elif folder is None or ops is None or package is None:
        raise UserError("ladder export needs DIR, --ops A,B,... and --package NAME; --list names the ops")
    else:
        chosen = exporting.choose_ops(options.split_names(ops) or [])
        written = exporting.export(exporting.read_origin(), folder, chosen, package)
        click.echo(
            f"{shorten_path(folder / package)}: {format_count(len(chosen), 'op')} in {len(written)} files"
        )
        click.echo(f"check it: cd {shlex.quote(shorten_path(folder))}; python -m {package}.test_ops")
