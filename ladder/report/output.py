"""How a command ends that fills one result: its files while it grows, what it prints at last, and its exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ladder.base import files, starting
from ladder.base import text as texts
from ladder.base.starting import near
from ladder.results import store as results


def write(
    result: dict[str, Any],
    folder: Path,
    pages: Mapping[str, str],
    render: Callable[[str], bytes] | None = None,
) -> list[Path]:
    """Write `<machine>-<workload>.json`, the pages by suffix, and the pictures that `render` makes as "png" and "svg".

    They are "-partial" until the result is complete, and then the partial files that led to it go. Files of another
    host or commit stay (`results.place`). A picture that cannot be drawn is a line on stderr.
    """
    stem = "-".join(texts.slug(word) for word in (result["machine"]["name"], result["workload"]["name"]))
    return write_named(result, folder, stem, pages, render)


def write_named(
    result: dict[str, Any],
    folder: Path,
    stem: str,
    pages: Mapping[str, str],
    render: Callable[[str], bytes] | None = None,
    picture: str = "",
) -> list[Path]:
    """Write as `write` does, under ``stem``; ``picture`` is appended to the names of the pictures."""
    parts = results.place(folder / f"{stem}-partial.json", result)
    path = results.place(folder / f"{stem}.json", result) if result["complete"] else parts
    files.write_json(path, texts.fit(result))
    paths = [path, *(path.with_suffix(f".{suffix}") for suffix in pages)]
    for page, text in zip(paths[1:], pages.values(), strict=True):
        files.write(page, text)
    if render is not None:
        paths += files.try_draw(path.with_name(f"{path.stem}{picture}"), render)
    if result["complete"] and parts.exists():
        for each in paths:
            each.with_name(each.name.replace(path.stem, parts.stem, 1)).unlink(missing_ok=True)
    return paths


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
