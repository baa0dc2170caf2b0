"""What a command that fills one result prints at last: its files, and the command that goes on with it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

import click
from click.core import ParameterSource

from ladder.core import starting
from ladder.core.starting import shorten_path
from ladder.show.table import PIPE_WIDTH


def measure_width() -> int:
    """Return the columns of the terminal; of a pipe and a file as many as COLUMNS says, else 120."""
    return shutil.get_terminal_size((PIPE_WIDTH, 0)).columns


def say_files(paths: Iterable[Path], as_json: bool, again: bool = False, drop: Collection[str] = ()) -> None:
    """Print what is made of a result, then, last, its file; see `say_where`. The first path is that file."""
    first, *others = [*paths] or [None]
    for path in others if not as_json else ():
        click.echo(shorten_path(path))
    say_where(first, as_json, again, drop)


def say_where(path: Path | None, as_json: bool, again: bool = False, drop: Collection[str] = ()) -> None:
    """Print where a result is and, if `again`, the command that goes on with it: on stderr beside JSON."""
    if path is None:
        return
    click.echo(f"result: {shorten_path(path)}", err=as_json)
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
        values = value if isinstance(value, tuple) else (value,)
        option = next((each for each in parameter.opts if each.startswith("--")), "")
        if isinstance(parameter, click.Option) and parameter.is_flag:
            words.append(option if value else parameter.secondary_opts[0])
        else:
            words += [word for each in values for word in (option, str(each)) if word]
    return starting.format_command(context.command.name, "--resume", shorten_path(path), *words)
