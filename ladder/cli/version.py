"""The option `ladder --version`: the version of the code, and of the torch that it would measure with."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import click

from ladder.base import git
from ladder.base.errors import describe
from ladder.base.starting import ROOT, read_version


def lines() -> list[str]:
    """Return one line each for version, commit, torch, CUDA and cuDNN. No CUDA context is created."""

    commit, dirty = git.commit_of(ROOT)
    code = "unknown" if commit is None else commit[:12] + (" (dirty)" if dirty else "")
    shown = {"ladder": read_version(), "commit": code, **_torch()}
    return [f"{name} {value or 'none'}" for name, value in shown.items()]


def _torch() -> dict[str, str | None]:
    """Return the versions of torch and its libraries.

    Only a CUDA build of torch is imported, because the import takes seconds.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {"torch": "not installed", "CUDA": None, "cuDNN": None}
    built = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    return {"torch": built["__version__"], "CUDA": built["cuda"], "cuDNN": built["cuda"] and _cudnn()}


def _cudnn() -> str | None:
    from ladder.machine import system

    try:
        import torch

        return system.dotted_cudnn(torch.backends.cudnn.version())
    except Exception as error:  # a library that does not load must not hide the other lines
        return f"cannot be asked: {describe(error)}"


def _print(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo("\n".join(lines()))
        ctx.exit()


version_option = click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print,
    help="Print the versions of this project, its commit, torch, CUDA and cuDNN.",
)
