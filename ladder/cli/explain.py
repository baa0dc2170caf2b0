"""The command `ladder explain`: what the difference of two rungs, or of two results, consists of."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ladder.core import files, options
from ladder.core.paths import ROOT
from ladder.core.text import clean_line

RESULTS = ROOT / "results" / "ladder"


@click.command(
    epilog="""\b
Examples:
  ladder explain data_loading fused_act                     two rungs of the best result of this machine
  ladder explain baseline fused_act -w article-b32          of the best result of a workload
  ladder explain bf16 fused_act RESULT.json --markdown explained.md
  ladder explain a.json b.json                              the tops of two results
  ladder explain a.json:fused_act b.json:fused_act --json   a rung of each"""
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.argument("file", metavar="[FILE]", required=False, type=options.FILE)
@click.option(
    "-w",
    "--workload",
    metavar="NAME|FILE",
    help="The workload of the stored results to choose from. [default: any]",
)
@click.option("--markdown", metavar="FILE", type=options.FILE, help="Write the explanation to this file.")
@options.json_option
def explain(
    before: str, after: str, file: Path | None, workload: str | None, markdown: Path | None, as_json: bool
) -> None:
    """Explain from stored profiles why B takes another time than A.

    No GPU is needed. A and B are rungs of one result, or two result files; a file stands for its top, and FILE:RUNG
    for a rung. Without FILE, the best stored result with both profiles is read, of this machine if it has one. The
    table has milliseconds and launches by category of kernels. A difference below the noise floor is told as "no
    difference", an open verdict as "not decided"; neither is explained. A run on a GPU stores a profile of each rung.
    Two commits are measured and explained by `ladder bench-compare`.
    """
    from ladder.report import explain as explaining
    from ladder.report import output, tables
    from ladder.results import ranking

    pair = explaining.find_sides(before, after, file, workload, RESULTS)
    if markdown is not None:
        tables.refuse_outputs([markdown], [each.path for each in pair])
    if file is None and explaining.split_name(before)[0] is None:
        machine, here = pair[0].result.machine, ranking.machines_here()
        if machine.name not in here:
            whose = clean_line(machine.gpu or machine.cpu)
            click.echo(f"no profile of both on this machine ({here[0]}) yet: this is {whose}'s", err=True)
    found = explaining.explain(*pair)
    if as_json:
        click.echo(json.dumps(explaining.write_data(found), indent=1, allow_nan=False))
    else:
        click.echo(explaining.render_terminal(found, output.measure_width()))
    if markdown is not None:
        files.write_file(markdown, explaining.render_page(found))
