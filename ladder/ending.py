"""How a command ends that fills one result: its files while it grows, what it prints at last, and its exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from ladder import report, results


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
    stem = "-".join(results.slug(word) for word in (result["machine"]["name"], result["workload"]["name"]))
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
    report.write_json(path, results.fit(result))
    paths = [path, *(path.with_suffix(f".{suffix}") for suffix in pages)]
    for page, text in zip(paths[1:], pages.values(), strict=True):
        report.write(page, text)
    if render is not None:
        paths += report.try_draw(path.with_name(f"{path.stem}{picture}"), render)
    if result["complete"] and parts.exists():
        for each in paths:
            each.with_name(each.name.replace(path.stem, parts.stem, 1)).unlink(missing_ok=True)
    return paths


def end(
    result: dict[str, Any], text: str, paths: Iterable[Path], as_json: bool, parts: Iterable[dict[str, Any]]
) -> None:
    """Print the result, or its text and the files. Exits with 130 if it was interrupted, 1 if a part is not ok."""
    click.echo(json.dumps(result, indent=1, allow_nan=False) if as_json else text)
    if not as_json:
        for path in paths:
            click.echo(path)
    if not result["complete"]:
        sys.exit(130)
    if any(part["status"] != "ok" for part in parts):
        sys.exit(1)
