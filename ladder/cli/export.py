"""Options of `ladder export`. `ladder.publish.export` does the work."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ladder.core import options
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.starting import shorten_path
from ladder.core.text import format_count


@click.command(
    epilog="""\b
Examples:
  ladder export --list                                                the ops that can be exported
  ladder export out --ops conv2d --package gradfix                    out/gradfix: convolutions for R1 and path length
  ladder export out --ops conv2d,bias_act,upfirdn2d --package fast    out/fast: three ops
  ladder export out --ops all --package fast                          all ops
  cd out; python -m fast.test_ops                                     check the exported package
  ladder export out --like nvidia; cp -r out/torch_utils CLONE/       fused ops in a clone of NVIDIA's stylegan3"""
)
@click.argument("folder", metavar="DIR", required=False, type=options.ANY)
@click.option("--ops", metavar="A,B,...", help='The ops to export, or "all". [required for a package]')
@click.option(
    "--package", metavar="NAME", help="The name under which Python will import the package. [required for it]"
)
@click.option(
    "--like",
    type=click.Choice(["nvidia"]),
    help="Write drop-in files for a clone of NVIDIA's stylegan3 or stylegan2-ada-pytorch, instead of a package.",
)
@click.option("--list", "listed", is_flag=True, help="Print each op with one line, and nothing else.")
def export(folder: Path | None, ops: str | None, package: str | None, like: str | None, listed: bool) -> None:
    """Write fused ops as a Python package for your own code.

    The package needs only torch and triton. DIR/NAME gets the kernels, their gradients, the plain-PyTorch references
    and the tables of tiles. It also gets the licence, a page on how to call each op, and a test. DIR must be new or
    empty. On a CPU, and wherever a fused op cannot run, an exported op is plain PyTorch. Several packages can be
    imported into one process.

    --like nvidia writes DIR/torch_utils instead. Its files replace those of the same names in NVIDIA's repositories.
    """
    from ladder.publish.export import drop_in
    from ladder.publish.export import package as exporting

    if listed:
        if folder or ops or package or like:
            raise UserError("--list names all ops: leave out everything else")
        for name, said in exporting.summarize_ops(ROOT).items():
            click.echo(f"{name:<21} {said}")
        return
    if like:
        if folder is None or ops or package:
            raise UserError(f"--like {like} needs DIR and nothing else: the ops and their names are {like}'s")
        written = drop_in.export(exporting.read_origin(), folder)
        click.echo(
            f"{shorten_path(folder / drop_in.TOP)}: {len(drop_in.REPLACED)} drop-in files, {len(written)} in all"
        )
        click.echo(f"use them: cp -r {shlex.quote(shorten_path(folder / drop_in.TOP))} CLONE/")
        return
    if folder is None or ops is None or package is None:
        raise UserError("ladder export needs DIR, --ops A,B,... and --package NAME; --list names the ops")
    chosen = exporting.choose_ops(ROOT, options.split_names(ops) or [])
    written = exporting.export(exporting.read_origin(), folder, chosen, package)
    click.echo(f"{shorten_path(folder / package)}: {format_count(len(chosen), 'op')} in {len(written)} files")
    click.echo(f"check it: cd {shlex.quote(shorten_path(folder))}; python -m {package}.test_ops")
