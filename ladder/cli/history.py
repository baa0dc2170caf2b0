"""The command `ladder history`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from ladder.core import files, options
from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.core.paths import ROOT


def print_line(line: str) -> None:
    click.echo(texts.escape_controls(line), err=True)


@click.command(
    epilog="""\b
Examples:
  ladder history                      what became slower, on every machine with results
  ladder history --confirm 2          measure the two largest candidates of this machine
  ladder history --threshold 0.5      smaller steps too, in percent"""
)
@click.option(
    "--results",
    "folder",
    metavar="DIR",
    type=options.FOLDER,
    help="Folder of asv's results. [default: results/asv]",
)
@click.option(
    "--compared",
    metavar="DIR",
    type=options.FOLDER,
    help="Folder of bench-compare's results. [default: results/compare]",
)
@click.option("--branch", default="HEAD", show_default=True, help="Branch whose commits form the history.")
@click.option(
    "--threshold", metavar="PERCENT", type=options.FloatRange(0, 100), default=1.0, show_default=True,
    help="Steps below this are left out.",
)  # fmt: skip
@click.option(
    "--confirm",
    metavar="N",
    type=options.IntRange(0, 20),
    default=0,
    help="Measure up to N candidates side by side. [default: none]",
)
@click.option(
    "--budget",
    metavar="MINUTES",
    type=options.FloatRange(0, min_open=True),
    help="Minutes for each candidate. [default: 10]",
)
@click.option(
    "--issues",
    metavar="FILE",
    type=options.FILE,
    help="Write an issue for each confirmed regression to this file, as JSON.",
)
@options.json_option
def history(
    folder: Path | None,
    compared: Path | None,
    branch: str,
    threshold: float,
    confirm: int,
    budget: float | None,
    issues: Path | None,
    as_json: bool,
) -> None:
    """List lasting slowdowns in asv's history.

    A step of more than 1% that lasts is a candidate. `bench-compare` of the two commits around it confirms or refutes
    it. A step at a change of the driver is only labelled. benches/known-regressions.yaml silences accepted slowdowns.

    Exit status: 1 if a regression is confirmed, 2 if the request is impossible.
    """
    from ladder.publish.history import issues as nightly
    from ladder.publish.history import screening
    from ladder.report import tables
    from ladder.studies.commits import checkouts, known

    if budget is not None and not confirm:
        raise UserError("--budget is for --confirm")
    if issues is not None:
        tables.refuse_outputs([issues], [])
    if compared is not None and not compared.is_dir():
        raise UserError(f"--compared {compared}: no such folder")
    checkouts.commit_of(branch, "--branch")
    entries = known.read_entries()
    where = folder or ROOT / "results" / "asv", compared or ROOT / "results" / "compare"

    def look() -> tuple[list[screening.Step], list[str]]:
        return screening.screen_accepted(*where, entries, branch, threshold / 100)

    steps, lines = look()
    if confirm and nightly.confirm_steps(steps, confirm, where[1], budget, print_line):
        steps, lines = look()
    lines += known.list_idle(entries)
    if issues is not None:
        files.write_file(issues, json.dumps(nightly.write_issues(steps), indent=1) + "\n")
    if as_json:
        listed = {"steps": [screening.write_step(step) for step in steps], "notes": lines}
        click.echo(json.dumps(listed, indent=1, allow_nan=False))
    else:
        click.echo(screening.render_text(steps, lines))
    sys.exit(any(step.status == screening.CONFIRMED for step in steps))
