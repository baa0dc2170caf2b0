"""Options of `ladder noise`, and the files that it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ladder.base import files, locks, progress, text
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.records import plain
from ladder.cli import options
from ladder.images import for_workload
from stylegan_lite.config import suggestion

if TYPE_CHECKING:
    from ladder.studies.noise.measure import Plan
    from ladder.studies.noise.record import Result

OUT = ROOT / "results" / "noise"
MINUTES = 2.0


@click.command(
    epilog="""\b
Examples:
  ladder noise                              the article's highest rung here, two minutes
  ladder noise baseline -w article-b32      an eager rung: the host sets its pace
  ladder noise --lock-clocks                with a locked clock, where that is permitted"""
)
@click.argument("rung", metavar="[RUNG]", required=False)
@options.workload_option("article on a GPU, tiny on the CPU")
@options.ladder_option()
@click.option(
    "--minutes",
    type=options.FloatRange(0, 1440, min_open=True),
    default=MINUTES,
    show_default=True,
    help="Time to measure; three generations at least.",
)
@click.option("--lock-clocks", is_flag=True, help="Lock the GPU's SM clock meanwhile, if this user may.")
@options.data_option
@options.seed_option("weights, latents, and the order of images and visits")
@options.device_option
@options.out_option("results/noise")
@options.json_option
def noise(
    rung: str | None, workload: str | None, ladder_name: str, minutes: float, lock_clocks: bool, data: str | None,
    seed: int, device: str | None, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure the smallest change that this machine can show.

    Two copies of RUNG (default: the highest that runs here) run as in `ladder run`. They differ by nothing, so their
    difference is noise. The table says from which difference on a change is seen, in the step's time and in GPU time.
    The lines under it say whether clocks, neighbours or the host set that limit.

    Exit status: 0 if done. 1 if there is no number. 2 if the request is impossible. 130 if interrupted.
    """
    from ladder.machine import environment, system
    from ladder.report import output as ending
    from ladder.studies.noise import measure, report

    chosen = system.choose_device(device)
    environment.refuse(chosen)
    folder = out or OUT
    files.refuse_unwritable(folder)
    plan, source, first = _plan(
        rung, workload, ladder_name, chosen, data, minutes, lock_clocks, seed, as_json
    )
    with (
        locks.folder_lock(folder, text.slug(system.facts(chosen)["name"])),
        progress.ladder_progress(f"{plan.rung} twice on {chosen}", as_json) as on_event,
    ):
        first()
        environment.tell(as_json)
        result = measure.measure(plan, source, on_event)
        paths = write(result, folder)
    click.echo(json.dumps(plain(result), indent=1, allow_nan=False) if as_json else report.text(result))
    ending.say_files(paths, as_json)
    if not result.complete:
        sys.exit(130)
    if result.wall.resolution is None:
        sys.exit(1)


def _plan(
    rung: str | None, workload: str | None, ladder_name: str, device: str, data: str | None,
    minutes: float, lock: bool, seed: int, quiet: bool,
) -> tuple[Plan, str | None, progress.First]:  # fmt: skip
    """Return the plan of the rung, by default the highest here, the source of its images, and the first line."""
    from ladder.machine import system
    from ladder.plan import catalog, modes, needs
    from ladder.studies.noise.measure import Plan

    name, fields = catalog.load_workload(workload or for_workload.DEFAULT_WORKLOAD[device])
    ladder = catalog.load_ladder(ladder_name)
    able = needs.possible(system.capabilities(device), fields)
    if rung is None:
        runs = [each.name for each in catalog.climb(ladder, able) if each.recipe is not None]
        if not runs:
            raise UserError(f"ladder {ladder_name}: none of its rungs runs here")
        rung = runs[-1]
    if rung not in (has := [each.name for each in ladder.rungs]):
        raise UserError(f"ladder {ladder.name} has no rung {rung!r}{suggestion(rung, has, 'its rungs')}")
    planned = modes.plan(modes.CUMULATIVE, ladder, able, [rung])
    if planned[-1].recipe is None:
        raise UserError(f"rung {rung} cannot run here: {planned[-1].skipped}")
    first = progress.First(f"{rung} twice on {name}, {device}: about {minutes:g} min", quiet)
    pictures = for_workload.prepare_images(data or fields["data"], fields, quiet, first)
    fields = fields | {"data": pictures.path}
    return Plan(name, fields, ladder, planned, device, minutes, lock, seed), pictures.source, first


def write(result: Result, folder: Path) -> list[Path]:
    """Write the result as JSON and Markdown, and return the files."""
    from ladder.results import store
    from ladder.studies.noise import report

    words = (result.machine.name, result.workload["name"], result.rung)
    stem = "-".join(text.slug(word) for word in words)
    return store.save(plain(result), folder, {"md": report.markdown(result)}, stem=stem, exact=True)
