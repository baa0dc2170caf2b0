"""Options of `ladder map`, and the files that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ladder.base import files, locks, text
from ladder.base.paths import ROOT
from ladder.base.records import plain
from ladder.cli import expecting, options
from ladder.images import for_workload

if TYPE_CHECKING:
    from ladder.studies.map.plan import Plan
    from ladder.studies.map.record import Result

OUT = ROOT / "results" / "map"


@click.command(
    name="map",
    epilog="""\b
Examples:
  ladder map                                    20 cells, four recipes in each
  ladder map --rung bf16 --rung fused_act       another pair of rungs
  ladder map --resolutions 32,256 --batches 8   a corner of the map
  ladder map --budget 15                        a part, then the rest of it:
  ladder map --resume results/map/MACHINE-article-article-partial.json
  ladder map --resolutions 8,16,32,64,128,256 --batches 8,16,32,64,128   the sizes of a training that grows""",
)
@options.workload_option("article on a GPU, tiny on the CPU")
@options.ladder_option()
@click.option(
    "--rung", "rungs", multiple=True, metavar="RUNG",
    help="A rung whose gain is mapped; give two. [default: cuda_graphs and channels_last]",
)  # fmt: skip
@click.option(
    "--resolutions", metavar="A,B,...", help="Resolutions of the cells. [default: 32,64,128,256; CPU: 16,32]"
)
@click.option("--batches", metavar="A,B,...", help="Batches of the cells. [default: 4,8,16,32,64; CPU: 4,8]")
@click.option(
    "--budget", metavar="MINUTES", type=options.FloatRange(0, min_open=True),
    help="Begin nothing new after this time; continue with --resume. [default: no limit]",
)  # fmt: skip
@options.resume_option
@options.seed_option("weights, latents and the order of images")
@options.device_option
@options.out_option("results/map")
@options.json_option
def map_(
    workload: str | None, ladder_name: str, rungs: tuple[str, ...], resolutions: str | None, batches: str | None,
    budget: float | None, resume: Path | None, seed: int, device: str | None, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Map where two rungs matter, over batches and resolutions.

    Every cell runs the top of the ladder, the ladder without one rung, without the other, and without both, each in a
    fresh process. The heat maps show where CUDA graphs stop mattering and where channels_last begins to. They also
    test the article's policy: CUDA graphs and NCHW up to 32x32, channels_last without graphs above. Running out of
    memory is a cell's value. On a CPU there is wall time alone.

    Exit status: 0 if every row has a time or ran out of memory. 1 if one failed. 2 if the request is impossible. 130
    if it was interrupted or the time was over.
    """
    from ladder.base.progress import First
    from ladder.engine import sitting
    from ladder.machine import environment, system
    from ladder.report import output as ending
    from ladder.studies.map import measure, report

    chosen = system.choose_device(device)
    environment.refuse(chosen)
    folder = out or OUT
    files.refuse_unwritable(folder)
    plan = _plan(workload, ladder_name, rungs, (resolutions, batches), chosen, seed, budget)
    result = measure.new_result(plan, system.facts(chosen))
    paths: list[Path] = []

    def save(found: Result) -> None:
        paths[:] = write(found, folder, whole=found.complete)

    with locks.folder_lock(folder, text.slug(result.machine.name)), sitting.kept(paths):
        if resume is not None:
            result = measure.continued(resume, result)
        count = len(measure.missing(plan, result))
        usual = plan.name == expecting.USUAL[chosen]
        about = expecting.words(count * measure.SECONDS[chosen] / 60 if usual else None)
        cells, rows = text.counted(len(plan.cells), "cell"), text.counted(count, "row")
        said = f"{plan.name} on {chosen}: {cells}, {rows}, {about}"
        First(f"{said}, at most {budget:g}" if budget else said, as_json)()
        environment.tell(as_json)
        result = measure.measure(plan, result, lambda line: click.echo(line, err=True), save)
        if not result.complete:
            paths[:] = write(result, folder)
    made = plain(result)
    parts = [row for row in made["rows"] if row["status"] != "oom"]
    ending.end(made, report.text(result), paths, as_json, parts, resumes=True)


def _plan(
    workload: str | None, ladder: str, rungs: tuple[str, ...], sizes: tuple[str | None, str | None],
    device: str, seed: int, minutes: float | None,
) -> Plan:  # fmt: skip
    """Return the plan of the options. Raises UserError for options that contradict each other."""
    from ladder.plan import catalog
    from ladder.studies.map import plan as planning

    name, fields = catalog.load_workload(workload or for_workload.DEFAULT_WORKLOAD[device])
    fields = fields | {"data": None}
    cells = planning.grid(
        options.whole_numbers("--resolutions", sizes[0], 65536) or planning.RESOLUTIONS[device],
        options.whole_numbers("--batches", sizes[1], 65536) or planning.BATCHES[device],
    )
    return planning.make(name, fields, device, ladder, rungs, cells, seed=seed, minutes=minutes)


def write(result: Result, folder: Path, whole: bool = True) -> list[Path]:
    """Write the result as JSON, and if it is ``whole`` with Markdown and charts. Return the files."""
    from ladder.results import store
    from ladder.studies.map import chart, report
    from ladder.studies.map.plan import PAIR

    rules = result.protocol
    names = [result.machine.name, result.workload["name"], rules.ladder]
    names += rules.rungs if tuple(rules.rungs) != PAIR else []
    pages = {"md": report.markdown(result)} if whole else None
    render = (lambda kind: chart.render(result, kind)) if whole else None
    return store.save(plain(result), folder, pages, render, stem="-".join(map(text.slug, names)))
