"""The option `ladder --version`: the version of the code, and of the torch that it would measure with."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import click

from ladder.core import git
from ladder.core.errors import format_error
from ladder.core.starting import ROOT, read_version


def list_versions() -> dict[str, str | None]:
    """Return the versions of this project, torch, CUDA and cuDNN. Only a CUDA build of torch is imported: seconds."""
    commit, dirty = git.commit_of(ROOT)
    code = "unknown" if commit is None else commit[:12] + (" (dirty)" if dirty else "")
    versions: dict[str, str | None] = {"ladder": read_version(), "commit": code}
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {**versions, "torch": "not installed", "CUDA": None, "cuDNN": None}
    built = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    cudnn = built["cuda"] and _read_cudnn()
    return {**versions, "torch": built["__version__"], "CUDA": built["cuda"], "cuDNN": cudnn}


def _read_cudnn() -> str | None:
    from ladder.machine import system

    try:
        import torch

        return system.dotted_cudnn(torch.backends.cudnn.version())
    except Exception as error:  # a library that does not load must not hide the other lines
        return f"unknown: {format_error(error)}"


def _print(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        click.echo("\n".join(f"{name} {version or 'none'}" for name, version in list_versions().items()))
        ctx.exit()


version_option = click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print,
    help="Print the versions of this project, its commit, torch, CUDA and cuDNN.",
)
