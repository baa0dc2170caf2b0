"""The measurement behind `ladder kernels --claims`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from ladder.base import locks, text
from ladder.base.records import plain


def command(device: str, minutes: float, seed: int, quick: bool, out: Path | None, as_json: bool) -> None:
    """Measure all claims, print the table and write the files.

    The process exits with status 130 after an interruption, and with 1 if no claim has a number.
    """
    from ladder.base import files
    from ladder.base.progress import First, kernels_progress
    from ladder.machine import system
    from ladder.report import output as ending
    from ladder.studies.claims import report, run

    folder = out or run.OUT
    files.refuse_unwritable(folder)
    with locks.folder_lock(folder, text.slug(system.facts(device)["name"])):
        First(f"claims: every claim about kernels on {device}, about {minutes:g} min", as_json)()
        with run.locked(device), kernels_progress(as_json, str) as on_event:
            result = run.measure(
                device, minutes=minutes, seed=seed, quick=quick, count=not quick, on_event=on_event
            )
            paths = run.write(result, folder)
    if as_json:
        click.echo(json.dumps(plain(result), indent=1, allow_nan=False))
    else:
        report.print_table(result)
    ending.say_files(paths, as_json)
    if not result.complete:
        sys.exit(130)
    if not any(claim.ours for claim in result.claims):
        sys.exit(1)
