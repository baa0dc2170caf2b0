"""The command `ladder recommend`: what to switch on, from stored results. It measures nothing."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ladder.core import files, options, starting
from ladder.core.errors import UserError
from ladder.core.paths import ROOT

RESULTS = ROOT / "results" / "ladder"


@click.command(
    epilog="""\b
Examples:
  ladder recommend                                      this machine's result, or the nearest one that is stored
  ladder recommend -w article --price 2.5/h             with the money that a whole training costs
  ladder recommend RESULT.json --images 5M              from one file, for a shorter training
  ladder recommend --recipe best.yaml                   then `ladder train --recipe best.yaml --out runs/best`"""
)
@click.argument("path", metavar="[FILE]", required=False, type=options.FILE)
@click.option(
    "-w", "--workload", metavar="NAME|FILE", help="Look for results of this workload alone. [default: any]"
)
@click.option(
    "--images",
    metavar="NUMBER",
    default="25M",
    show_default=True,
    help="Images of the whole training: 25M, 200k or 1000000.",
)
@click.option(
    "--price", metavar="PRICE/h", help="The price of an hour of this machine, in any currency: 2.5/h."
)
@click.option(
    "--recipe", metavar="FILE", type=options.FILE, help="Write the recommended recipe to this YAML file."
)
@click.option("--markdown", metavar="FILE", type=options.FILE, help="Write the recommendation to this file.")
@options.json_option
def recommend(
    path: Path | None,
    workload: str | None,
    images: str,
    price: str | None,
    recipe: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Say which rungs to adopt, from stored results.

    Each rung gets a word, why, and what it saves:

    \b
    ADOPT:          it helps.
    SKIP:           it costs time.
    NO DIFFERENCE:  the run rules out a difference of 5% or more.
    undecided:      the run cannot tell; a command that can is named.
    BROKEN:         it has no valid time, since it failed, lost parity,
                    showed no receipt or ran out of memory.

    Nothing is measured. The advice comes from a stored leave-one-out run where there is one, else from the staircase.
    Without FILE it is of this machine's newest result that may be quoted, or else of its newest. If this machine has
    none, it is of another machine with the same GPU, then with any GPU. The first line names the machine.
    """
    from ladder.plan import catalog
    from ladder.report import advising, tables
    from ladder.report import recommend as recommending
    from ladder.results.combine import nearest

    number = recommending.images_of(images)
    hourly = None if price is None else recommending.price_of(price)
    if path is not None and workload is not None:
        raise UserError("a FILE has its workload: leave out --workload")
    if recipe is not None and recipe.suffix not in (".yaml", ".yml"):
        raise UserError(f"--recipe {recipe}: a recipe's file ends in .yaml")
    tables.refuse_outputs([*filter(None, (recipe, markdown))], [path] if path else [])
    chosen = (
        nearest.of_file(path)
        if path
        else nearest.find(RESULTS, catalog.load_workload(workload) if workload else None)
    )
    found_in = {advising.STAIRCASE: chosen.staircase, advising.LEFT_OUT: chosen.left_out}
    named = {kind: starting.shorten_path(each[0]) for kind, each in found_in.items() if each}
    sources = advising.Sources(
        chosen.staircase[1] if chosen.staircase else None,
        chosen.left_out[1] if chosen.left_out else None,
        named if chosen.here else {},
    )
    made = recommending.recommend(sources, number, hourly)
    if recipe is not None:
        if made.recipe is None:
            raise UserError(f"--recipe: {recommending.NO_RECIPE}")
        files.write_file(recipe, recommending.recipe_yaml(made, chosen.whose))
    if markdown is not None:
        files.write_file(markdown, recommending.render_advice(made, chosen.whose))
    if as_json:
        click.echo(json.dumps(recommending.write_data(made, chosen.whose, named), indent=1, allow_nan=False))
    else:
        other_code = str(starting.shorten_path(chosen.other_code)) if chosen.other_code else None
        click.echo(starting.name_program(recommending.render_terminal(made, chosen.whose, named, other_code)))
    for written in filter(None, (recipe, markdown)):
        click.echo(starting.shorten_path(written), err=as_json)
