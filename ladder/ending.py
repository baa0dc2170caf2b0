"""How a command ends that fills one result: its files while it grows, what it prints at last, and its exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from ladder import report, results


def write(result: dict[str, Any], folder: Path, pages: Mapping[str, str | bytes]) -> list[Path]:
    """`<machine>-<workload>.json` and the pages, by suffix, each file whole or not at all.

    They are "-partial" until the result is complete, and then the partial files that led to it go.
    """
    stem = "-".join(results.slug(word) for word in (result["machine"]["name"], result["workload"]["name"]))
    ending = "" if result["complete"] else "-partial"
    paths = [folder / f"{stem}{ending}.{suffix}" for suffix in ("json", *pages)]
    report.write_json(paths[0], result)
    for path, page in zip(paths[1:], pages.values(), strict=True):
        report.write(path, page)
    for path in paths if result["complete"] else ():
        (folder / f"{stem}-partial{path.suffix}").unlink(missing_ok=True)
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
