"""Options of `ladder sustain`, and the files that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ladder.base import files, locks, text
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.progress import First
from ladder.base.records import plain
from ladder.cli import options
from ladder.images import for_workload
from ladder.plan import needs
from stylegan_lite.config import suggestion

if TYPE_CHECKING:
    from ladder.studies.sustain.measure import Plan
    from ladder.studies.sustain.record import Result

OUT = ROOT / "results" / "sustained"


@click.command(
    epilog="""\b
Examples:
  ladder sustain                            the highest rung of full, one minute
  ladder sustain baseline graph_fills -w article-b32
  ladder sustain --seconds 600              ten minutes"""
)
@click.argument("rungs", nargs=-1, metavar="[RUNG]...")
@options.workload_option("article on a GPU, tiny on the CPU")
@options.ladder_option("full", "The ladder of the rungs.")
@click.option(
    "--seconds",
    type=options.FloatRange(1, 86400),
    default=60.0,
    show_default=True,
    help="Seconds for each rung.",
)
@options.data_option
@options.seed_option("weights, latents and the order of images")
@options.device_option
@options.out_option("results/sustained")
@options.json_option
def sustain(
    rungs: tuple[str, ...], workload: str | None, ladder_name: str, seconds: float, data: str | None, seed: int,
    device: str | None, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Run a rung for a minute and see whether its speed lasts.

    A visit of `ladder run` takes seconds. A GPU may reach its power limit later and lower its clock, and a training
    runs at that clock. Each RUNG (with all below it; default: the highest) runs in one process. The step time is
    reported every two seconds, with clock, power and temperature.

    Exit status: 0 if every rung has a number. 1 if a rung has none. 2 if the request is impossible. 130 if
    interrupted.
    """
    from ladder.machine import environment, system
    from ladder.report import output as ending
    from ladder.studies.sustain import measure as sustaining
    from ladder.studies.sustain import report

    chosen = system.choose_device(device)
    environment.refuse(chosen)
    folder = out or OUT
    files.refuse_unwritable(folder)
    asked, photographs, first = _plan(rungs, workload, ladder_name, chosen, data, seconds, seed, as_json)
    paths: list[Path] = []

    def save(result: Result) -> None:
        paths[:] = write(result, folder)

    result = sustaining.new_result(asked, system.facts(chosen), photographs)
    with locks.folder_lock(folder, text.slug(result.machine.name)):
        first()
        environment.tell(as_json)
        result = sustaining.measure(asked, result, lambda line: click.echo(line, err=True), save)
    found = plain(result)
    ending.end(found, report.text(result), paths, as_json, found["rungs"])


def _plan(
    rungs: tuple[str, ...], workload: str | None, ladder_name: str, device: str, data: str | None,
    seconds: float, seed: int, quiet: bool,
) -> tuple[Plan, str | None, First]:  # fmt: skip
    """Return the rungs' recipes on this workload, the source of the images, and the first line."""
    from ladder.machine import system
    from ladder.plan import catalog
    from ladder.studies.sustain.measure import Plan

    name, fields = catalog.load_workload(workload or for_workload.DEFAULT_WORKLOAD[device])
    able = needs.possible(system.capabilities(device), fields)
    climbed = {each.name: each for each in catalog.climb(catalog.load_ladder(ladder_name), able)}
    runs = [each.name for each in climbed.values() if each.recipe is not None]
    if not runs:
        raise UserError(f"ladder {ladder_name}: none of its rungs runs here")
    for rung in rungs:
        if rung not in climbed:
            has = suggestion(rung, climbed, "its rungs")
            raise UserError(f"ladder {ladder_name} has no rung {rung!r}{has}")
        if rung not in runs:
            raise UserError(f"rung {rung} cannot run here: {climbed[rung].skipped}")
    recipes = {rung: climbed[rung].recipe for rung in dict.fromkeys(rungs or runs[-1:])}
    first = First(f"{name} on {device}: {', '.join(recipes)}, {seconds:g} s each once it is prepared", quiet)
    pictures = for_workload.prepare_images(data or fields["data"], fields, quiet, first)
    plan = Plan(name, fields | {"data": pictures.path}, recipes, device, seconds, seed)
    return plan, pictures.source, first


def write(result: Result, folder: Path) -> list[Path]:
    """Write the result as JSON, Markdown and charts, and return the files."""
    from ladder.results import store
    from ladder.studies.sustain import chart as sustainedchart
    from ladder.studies.sustain import report

    pages = {"md": report.markdown(result)}
    return store.save(plain(result), folder, pages, lambda kind: sustainedchart.render(result, kind))
