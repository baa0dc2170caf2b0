"""Options of `ladder export`. `ladder.publish.export` does the work."""

from __future__ import annotations

from pathlib import Path

import click

from ladder.base import git
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.starting import near
from ladder.cli import options
from ladder.cli.version import version


@click.command(
    epilog="""\b
Examples:
  ladder export --list                                                the ops that can be exported
  ladder export out --ops conv2d --package gradfix                    out/gradfix: convolutions for R1 and path length
  ladder export out --ops conv2d,bias_act,upfirdn2d --package fast    out/fast: three ops
  ladder export out --ops all --package fast                          all ops
  cd out; python -m fast.test_ops                                     check the exported package"""
)
@click.argument("folder", metavar="DIR", required=False, type=options.ANY)
@click.option("--ops", metavar="A,B,...", help='The ops to export, or "all".')
@click.option("--package", metavar="NAME", help="The name under which Python will import the package.")
@click.option("--list", "listed", is_flag=True, help="Print each op with one line, and nothing else.")
def export(folder: Path | None, ops: str | None, package: str | None, listed: bool) -> None:
    """Write some of the fused ops as a Python package that needs only torch and triton.

    DIR/NAME gets the kernels, their gradients, the plain-PyTorch references and the tables of tiles. It also gets the
    licence, a page on how to call each op, and a test. DIR must be new or empty. On a CPU, and wherever a fused op
    cannot run, an exported op is plain PyTorch. Several packages can be imported into one process.
    """
    from ladder.publish.export import package as exporting
    from ladder.publish.export import page

    if listed:
        if folder or ops or package:
            raise UserError("--list names all ops: leave out everything else")
        for name, said in page.summaries(ROOT).items():
            click.echo(f"{name:<21} {said}")
        return
    if folder is None or ops is None or package is None:
        raise UserError("ladder export needs DIR, --ops A,B,... and --package NAME; --list names the ops")
    chosen = exporting.chosen(ROOT, options.names(ops) or [])
    commit, dirty = git.commit_of(ROOT)
    origin = page.Origin(
        root=ROOT, version=version(), commit=f"{commit} (dirty)" if commit and dirty else commit
    )
    written = exporting.export(origin, folder, chosen, package)
    click.echo(f"{near(folder / package)}: {len(chosen)} op{'s' * (len(chosen) > 1)} in {len(written)} files")
    click.echo(f"check it: cd {near(folder)}; python -m {package}.test_ops")
