"""How a command ends that fills one result: what it prints at last, where, and its exit status."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ladder.base import starting
from ladder.base.starting import near
from ladder.base.text import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE = 120  # columns of what is no terminal


def console() -> Console:
    """Return rich's console. Only a terminal gets colours, whatever FORCE_COLOR says.

    A pipe and a file have as many columns as COLUMNS says, else 120.
    """
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    width = shutil.get_terminal_size((PIPE, 0)).columns
    return Console(highlight=False, width=width, no_color=True, force_terminal=False)


def say_line(console: Console, line: str, style: str) -> None:
    """Print a line. A terminal breaks it between words, and in a pipe or a file it stays one line."""
    from rich.text import Text

    console.print(Text(line, style=style), soft_wrap=not console.is_terminal)


def say_table(console: Console, table: Table) -> None:
    """Print a table. Only a terminal cuts one that is too wide."""
    if not console.is_terminal:
        wide = console.measure(table, options=console.options.update(width=10_000)).maximum
        console.width = max(console.width, wide)
    console.print(table)


def say_left_out(console: Console, columns: int) -> None:
    """Print where the columns of a table are that had no room."""
    if columns:
        left_out = counted(columns, "column")
        where = "a wider terminal, COLUMNS=400 in a pipe, or Markdown has them"
        say_line(console, f"{left_out} left out for the width; {where}", "dim")


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
