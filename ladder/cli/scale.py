"""Options of `ladder scale`, and the files that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ladder.base import files, locks, text
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.records import plain
from ladder.cli import options
from ladder.images import for_workload
from ladder.plan import needs

if TYPE_CHECKING:
    from ladder.studies.scale.measure import Plan
    from ladder.studies.scale.record import Result

OUT = ROOT / "results" / "scaled"
MOST = 64  # GPUs, or ranks on a CPU


@click.command(
    epilog="""\b
Examples:
  ladder scale                                    every way on 1, 2, ... all GPUs of this machine
  ladder scale top ddp -w article-b32 --gpus 1,2 --scaling weak
  ladder scale top -w article --scaling strong --total 16
  ladder scale flat ddp --device cpu --gpus 1,2   ranks on the CPU, over gloo: a try-out"""
)
@click.argument("ways", nargs=-1, metavar="[WAY]...")
@options.workload_option("article on a GPU, tiny on the CPU")
@click.option(
    "--gpus", metavar="N,N,...", help="Numbers of GPUs, or of ranks on a CPU. [default: 1, 2, 4, ... all]"
)
@click.option(
    "--scaling",
    type=click.Choice(["weak", "strong", "both"]),
    default="both",
    show_default=True,
    help="weak: the workload's batch on each GPU. strong: one total batch on any number.",
)
@click.option(
    "--total",
    type=click.IntRange(1, 2**16),
    help="Total batch of strong scaling. [default: that of weak scaling on the most GPUs]",
)
@click.option(
    "--generations",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Fresh process groups of each point.",
)
@click.option(
    "--visits",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Timed 16-step cycles of a group.",
)
@click.option(
    "--budget",
    metavar="MINUTES",
    type=options.FloatRange(0, min_open=True),
    help="Begin no generation that would end later. [default: none]",
)
@click.option("--no-proof", is_flag=True, help="Leave out receipts and parity; the result says so.")
@options.data_option
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@options.device_option
@click.option("--out", metavar="DIR", type=options.FOLDER, help="[default: results/scaled]")
@options.json_option
def scale(
    ways: tuple[str, ...], workload: str | None, gpus: str | None, scaling: str, total: int | None, generations: int,
    visits: int, budget: float | None, no_proof: bool, data: str | None, seed: int, device: str | None,
    out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure how a step scales over the GPUs of this machine.

    Each WAY (data_parallel, ddp, flat, captured, flat-top, top; default: all) is a rung of a distributed ladder. It
    runs as one process group for each number of GPUs, and alone on one GPU without a reduction. Efficiency, exposed
    communication and memory are reported. If a rank dies or hangs, its whole group ends, and the rank is named.

    Exit status: 0 if every point has a number. 1 if a point has none. 2 if the request is impossible. 130 if
    interrupted.
    """
    from ladder.base.progress import First
    from ladder.machine import environment, system
    from ladder.report import output as ending
    from ladder.studies.scale import measure as scaling_
    from ladder.studies.scale import report

    chosen = system.choose_device(device)
    environment.refuse(chosen)
    folder = out or OUT
    files.refuse_unwritable(folder)
    counts = numbers(gpus, len(system.gpu_uuids()) if chosen == "cuda" else None)
    scalings = ("weak", "strong") if scaling == "both" else (scaling,)
    asked, photographs = _plan(ways, workload, chosen, counts, scalings, total, data, as_json,
                               generations=generations, visits=visits, seed=seed, proves=not no_proof,
                               budget_s=None if budget is None else 60 * budget)  # fmt: skip
    paths: list[Path] = []

    def save(result: Result) -> None:
        paths[:] = write(result, folder)

    names = ", ".join(dict.fromkeys(each.way.name for each in asked.points))
    First(f"{asked.name} on {chosen}: {names} on {', '.join(map(str, counts))}", as_json)()
    result = scaling_.new_result(asked, system.facts(chosen), photographs)
    environment.tell(as_json)
    with locks.folder_lock(folder, text.slug(result.machine.name)):
        result = scaling_.measure(asked, result, lambda line: click.echo(line, err=True), save)
    found = plain(result)
    ending.end(
        found, report.text(result), paths, as_json, [p for p in found["points"] if p["status"] != "n/a"]
    )


def numbers(asked: str | None, there: int | None) -> list[int]:
    """Return the numbers of GPUs to measure. `there` is how many the machine has, None for ranks on a CPU."""
    if asked is None:
        most = 2 if there is None else there
        return sorted({*(2**k for k in range(10) if 2**k <= most), most})
    try:
        found = sorted({int(part) for part in asked.split(",")})
    except ValueError:
        raise UserError(
            f"--gpus: expected numbers with commas between them, such as 1,2, got {asked!r}"
        ) from None
    if found[0] < 1 or found[-1] > MOST:
        raise UserError(f"--gpus: each number must be 1 to {MOST}, got {asked}")
    if there is not None and found[-1] > there:
        raise UserError(f"--gpus {found[-1]}: torch sees {there} here")
    return found


def _plan(
    ways: tuple[str, ...], workload: str | None, device: str, counts: list[int], scalings: tuple[str, ...],
    total: int | None, data: str | None, quiet: bool, **more: Any,
) -> tuple[Plan, str | None]:  # fmt: skip
    """Return what to measure, and the source of the images."""
    from ladder.machine import system
    from ladder.plan import catalog
    from ladder.studies.scale import ways as known
    from ladder.studies.scale.measure import Plan
    from stylegan_lite.config import ConfigError

    name, fields = catalog.load_workload(workload or for_workload.DEFAULT_WORKLOAD[device])
    able = needs.possible(system.capabilities(device), fields)
    found = known.load(ways, able)
    try:
        points = known.points(found, fields, counts, scalings, total or int(fields["batch"]) * counts[-1])
    except ConfigError as error:
        raise UserError(f"--total: {error}") from None
    if not any(point.problem is None for point in points):
        raise UserError(f"none of these ways runs here: {points[0].way.name}: {points[0].problem}")
    pictures = for_workload.prepare_images(data or fields["data"], fields, quiet)
    return Plan(name, fields | {"data": pictures.path}, points, device, **more), pictures.source


def write(result: Result, folder: Path) -> list[Path]:
    """Write the result as JSON, Markdown and charts, and return the files.

    Their name tells the ways, unless all were asked for: two runs of other ways do not replace each other.
    """
    from ladder.results import store
    from ladder.studies.scale import chart, report
    from ladder.studies.scale.ways import WAYS

    scalings = sorted({point.scaling for point in result.points})
    ways = list(dict.fromkeys(point.way for point in result.points))
    about = [
        result.machine.name,
        result.workload["name"],
        *(ways if len(ways) < len(WAYS) else []),
        *scalings,
    ]
    stem = "-".join(text.slug(part) for part in about)
    pages = {"md": report.markdown(result)}
    return store.save(plain(result), folder, pages, lambda kind: chart.render(result, kind), stem=stem)
