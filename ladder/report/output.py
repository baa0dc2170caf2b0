"""How a command ends that fills one result: what it prints at last, where, and its exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ladder.base import starting
from ladder.base.starting import near

if TYPE_CHECKING:
    from rich.console import Console


def console(room: int) -> Console:
    """Return rich's console. Only a terminal gets colours, whatever FORCE_COLOR says; a pipe has `room` columns."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=room, no_color=True, force_terminal=False)


def end(
    result: dict[str, Any],
    text: str,
    paths: Iterable[Path],
    as_json: bool,
    parts: Iterable[dict[str, Any]],
    resumes: bool = False,
) -> None:
    """Print the result, or its text and the files. Exits with 130 if it was interrupted, 1 if a part is not ok.

    ``resumes``: the command has --resume, which tries the parts again that failed.
    """
    click.echo(json.dumps(result, indent=1, allow_nan=False) if as_json else text)
    broken = any(part["status"] != "ok" for part in parts)
    say_files(paths, as_json, resumes and (broken or not result["complete"]))
    if not result["complete"]:
        sys.exit(130)
    if broken:
        sys.exit(1)


def say_files(paths: Iterable[Path], as_json: bool, again: bool = False, drop: Collection[str] = ()) -> None:
    """Print what is made of a result, then, last, its file; see `say_where`. The first path is that file."""
    first, *others = [*paths] or [None]
    for path in others if not as_json else ():
        click.echo(near(path))
    say_where(first, as_json, again, drop)


def say_where(path: Path | None, as_json: bool, again: bool = False, drop: Collection[str] = ()) -> None:
    """Print where a result is and, if `again`, the command that goes on with it: on stderr beside JSON."""
    if path is None:
        return
    click.echo(f"result: {near(path)}", err=as_json)
    if again:
        click.echo(f"go on:  {resuming_command(path, drop)}", err=as_json)


def resuming_command(path: Path, drop: Collection[str] = ()) -> str:
    """Return the running command once more, with `--resume`; without the options in `drop`, which the file holds."""
    context = click.get_current_context()
    words: list[str] = []
    for parameter in context.command.params:
        name, value = parameter.name or "", context.params.get(parameter.name or "")
        source = context.get_parameter_source(name)
        if source != ParameterSource.COMMANDLINE or name in ("resume", "as_json", *drop):
            continue
        words += _spelled(parameter, value)
    return starting.command(context.command.name, "--resume", near(path), *words)


def _spelled(parameter: click.Parameter, value: Any) -> list[str]:
    """Return an option or an argument as it is typed."""
    values = value if isinstance(value, tuple) else (value,)
    if isinstance(parameter, click.Argument):
        return [str(each) for each in values]
    option = next(each for each in parameter.opts if each.startswith("--"))
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return [option if value else parameter.secondary_opts[0]]
    return [word for each in values for word in (option, str(each))]
