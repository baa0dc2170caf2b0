"""The commands `ladder bench-compare` and `ladder history`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from ladder.base import files
from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.core import options


@click.command(
    "bench-compare",
    epilog="""\b
Examples:
  ladder bench-compare                                  main and HEAD: the lowest and the highest rung
  ladder bench-compare --base v1 --head v2 --rungs baseline,bf16,cuda_graphs
  ladder bench-compare --head $(git stash create)       the working tree as it is
  ladder bench-compare --report results/compare/MACHINE/FILE.json --markdown comment.md""",
)
@click.option("--base", metavar="COMMIT", help="The commit to compare with. [default: main]")
@click.option("--head", metavar="COMMIT", help="The commit that may be slower. [default: HEAD]")
@click.option(
    "--rungs", metavar="A,B,...", callback=lambda context, option, value: options.names(value),
    help="Rungs to measure. [default: the lowest and the highest that run here]",
)  # fmt: skip
@options.ladder_option("full", "The ladder of the rungs.")
@options.workload_option("article on a GPU, tiny on the CPU")
@options.rounds_option(3, "Exact number of generations. [default: 3 to 12, as the budget allows]")
@click.option(
    "--budget",
    metavar="MINUTES",
    type=options.FloatRange(0, min_open=True),
    help="No generation after the third begins later than this. [default: 10]",
)
@options.seed_option("weights, latents, and the order of images and visits")
@options.device_option
@options.out_option("results/compare")
@click.option(
    "--report", "report_of", metavar="FILE", type=options.FILE, help="Measure nothing; judge this file again."
)
@click.option(
    "--markdown", metavar="FILE", type=options.FILE, help="Write the table to this file, for a pull request."
)
@options.json_option
def bench_compare(report_of: Path | None, markdown: Path | None, as_json: bool, **values: Any) -> None:
    """Say whether commit HEAD is slower than BASE, timed in turn.

    A generation has two processes of BASE and one of HEAD for every rung, all alive together and visited in turn. The
    two processes of BASE differ only by noise, and a smaller difference counts as none. On a GPU wall time and GPU time
    are judged apart, and the last line says which of them is slower. Only kernels/ and stylegan_lite/ come from the
    commits; the measuring code is that of the working tree. `ladder compare` compares two stored results instead.

    Exit status: 0 if HEAD is as fast, faster or undecided. 1 if HEAD is slower, or fails where BASE runs. 2 if the
    request is impossible or nothing was measured. 130 if interrupted.
    """
    from ladder.publish.regressions import comparing, judging, report
    from ladder.report import output, tables

    request = comparing.Request(**values)
    if markdown is not None:
        tables.refuse_outputs([markdown], [report_of] if report_of else [])
    if report_of is not None:
        idle = ("rungs", "ladder_name", "workload", "rounds", "budget", "seed", "device", "out")
        options.refuse_idle("has no effect: --report measures nothing", *idle)
        result = comparing.reread(report_of, request.base, request.head)
        report.show_result(result, as_json, markdown)
    else:
        result, path = comparing.measure(request, print_line)
        files.write(path.with_suffix(".md"), report.render_markdown(result))
        report.show_result(result, as_json, markdown)
        output.say_where(path, as_json)
        if not result.complete:
            sys.exit(130)
    sys.exit(judging.find_status(result))


def print_line(line: str) -> None:
    click.echo(texts.printable(line), err=True)


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
    from ladder.publish.regressions import checkouts, comparing, known
    from ladder.report import tables

    if budget is not None and not confirm:
        raise UserError("--budget is for --confirm")
    if issues is not None:
        tables.refuse_outputs([issues], [])
    if compared is not None and not compared.is_dir():
        raise UserError(f"--compared {compared}: no such folder")
    checkouts.commit_of(branch, "--branch")
    entries = known.read_entries()
    where = folder or ROOT / "results" / "asv", compared or comparing.OUT

    def look() -> tuple[list[screening.Step], list[str]]:
        return screening.screen_accepted(*where, entries, branch, threshold / 100)

    steps, lines = look()
    if confirm and nightly.confirm_steps(steps, confirm, where[1], budget, print_line):
        steps, lines = look()
    lines += known.list_idle(entries)
    if issues is not None:
        files.write(issues, json.dumps(nightly.write_issues(steps), indent=1) + "\n")
    if as_json:
        listed = {"steps": [screening.write_step(step) for step in steps], "notes": lines}
        click.echo(json.dumps(listed, indent=1, allow_nan=False))
    else:
        click.echo(screening.render_text(steps, lines))
    sys.exit(any(step.status == screening.CONFIRMED for step in steps))
