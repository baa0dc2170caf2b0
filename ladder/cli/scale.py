"""Options of `ladder scale`, and the files that it writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ladder.base import files, locks, text
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.progress import First
from ladder.base.records import build, plain
from ladder.cli import options
from ladder.images import for_workload
from ladder.plan import needs

if TYPE_CHECKING:
    from ladder.results.types import Plain
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
  ladder scale flat ddp --device cpu --gpus 1,2   ranks on the CPU, over gloo: a try-out
  ladder scale --resume results/scaled/MACHINE-article-b32-top-ddp-weak-partial.json"""
)
@click.argument("ways", nargs=-1, metavar="[WAY]...")
@options.workload_option("article on a GPU, tiny on the CPU")
@click.option(
    "--gpus", metavar="N,N,...", help="Numbers of GPUs, or of ranks on a CPU. [default: 1, 2, 4, ... all]"
)
@click.option(
    "--scaling",
    type=click.Choice(["weak", "strong", "both"]),
    help="weak: the workload's batch on each GPU. strong: one total batch on any number. [default: both]",
)
@click.option(
    "--total",
    type=options.IntRange(1, 2**16),
    help="Total batch of strong scaling. [default: that of weak scaling on the most GPUs]",
)
@click.option(
    "--generations",
    type=options.IntRange(1, 100),
    help="Generations: fresh process groups of each point, including those of --resume. [default: 3]",
)
@click.option(
    "--visits",
    type=options.IntRange(1, 1000),
    help="Timed 16-step cycles of a group. [default: 3]",
)
@click.option(
    "--budget",
    metavar="MINUTES",
    type=options.FloatRange(0, min_open=True),
    help="Begin no generation that would end later; continue with --resume. [default: no limit]",
)
@click.option("--no-proof", is_flag=True, help="Leave out receipts and parity; the result says so.")
@options.data_option
@options.resume_option
@options.seed_option("weights, latents, and the order of images and visits", default=None)
@options.device_option
@options.out_option("results/scaled")
@options.json_option
def scale(
    ways: tuple[str, ...], workload: str | None, gpus: str | None, scaling: str | None, total: int | None,
    generations: int | None, visits: int | None, budget: float | None, no_proof: bool, data: str | None,
    resume: Path | None, seed: int | None, device: str | None, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure how a step scales over the GPUs of this machine.

    Each WAY is one way to share a batch and to average gradients. All are measured if none is named:

    \b
    data_parallel:  nn.DataParallel, one process for all GPUs
    ddp:            DistributedDataParallel, beside the backward pass
    flat:           one all-reduce of all gradients before the update
    captured:       flat, inside the CUDA graph of the whole step
    flat-top:       flat, with the rungs of `full`, without CUDA graphs
    top:            captured, with the rungs of `full`

    The rungs of `full` are those up to `fused_modulation`, as in the ladder `distributed`.

    Each way runs as one process group for each number of GPUs, and alone on one GPU without a reduction. Efficiency,
    exposed communication and memory are reported. If a rank dies or hangs, its whole group ends, and the rank is named.

    Exit status: 0 if every point that can run here has a number. 1 if one has none, or lacks a generation. 2 if the
    request is impossible. 130 if interrupted or the budget was over.
    """
    from ladder.engine import sitting
    from ladder.machine import environment, system
    from ladder.report import output as ending
    from ladder.studies.scale import measure as scaling_
    from ladder.studies.scale import report
    from ladder.studies.scale import resume as taking_up

    request = Request(ways, workload, gpus, scaling, total, generations, visits, seed, data, device)
    before = None if resume is None else load(resume)
    if resume is not None and before is not None:
        request = continued(resume, before, request)
    chosen = system.choose_device(request.device)
    environment.refuse(chosen)
    folder = out or (OUT if resume is None else resume.parent)
    files.refuse_unwritable(folder)
    counts = numbers(request.gpus, len(system.gpu_uuids()) if chosen == "cuda" else None)
    asked, photographs, first = _plan(request, before, chosen, counts, as_json, proves=not no_proof,
                               budget_s=None if budget is None else 60 * budget)  # fmt: skip
    paths: list[Path] = []

    def save(result: Result) -> None:
        paths[:] = write(result, folder)

    result = scaling_.new_result(asked, system.facts(chosen), photographs)
    with locks.folder_lock(folder, text.slug(result.machine.name)), sitting.kept(paths):
        if resume is not None:  # read again under the lock: another run may have continued it
            result = taking_up.take_up(resume, load(resume), result)
        first()
        environment.tell(as_json)
        result = scaling_.measure(asked, result, lambda line: click.echo(line, err=True), save)
    found, parts, most = plain(result), [], result.protocol.generations
    for point in found["points"]:
        few = result.complete and 0 < (there := len(point["runs"])) < most
        if few:  # a rank died in a later generation, and the number stands on fewer
            named = f"{point['way']}, {point['scaling']}, {point['gpus']}"
            click.echo(f"{named}: {there} of {most} generations, a later one failed", err=True)
        if point["status"] != "n/a":
            parts.append(point | {"status": "failed"} if few else point)
    ending.end(found, report.text(result), paths, as_json, parts, resumes=True)


@dataclass(frozen=True)
class Request:
    """The options of one `ladder scale`. One that was not given is None: the default holds, or that file's value."""

    ways: tuple[str, ...]
    workload: str | None
    gpus: str | None
    scaling: str | None
    total: int | None
    generations: int | None
    visits: int | None
    seed: int | None
    data: str | None
    device: str | None


def load(path: Path) -> Result:
    """Return the result in a file of `ladder scale`. Raises UserError, one line."""
    from ladder.results import loading
    from ladder.studies.scale import record, schema

    return build(record.Result, loading.load_kind(path, schema.KIND))


def continued(path: Path, before: Result, request: Request) -> Request:
    """Return the request that goes on with a file, with the file's value for every option not given.

    Raises:
        UserError: an option contradicts the file, which would make it a different run.
    """
    from ladder.plan import catalog
    from ladder.results.combine import resuming
    from ladder.results.types import head
    from ladder.studies.scale.record import STRONG
    from ladder.studies.scale.ways import WAYS

    name, points = before.workload["name"], before.points
    if request.workload is None and name not in catalog.workloads():
        raise UserError(f"{path}: --resume: its workload is a file of yours; name it with --workload")
    own = catalog.load_workload(request.workload or name)[1]["data"]
    resuming.ask_for_images(path, head(before), request.data, None if own is None else str(own))
    scalings = sorted({point.scaling for point in points})
    said: Plain = {
        "gpus": sorted({point.gpus for point in points}),
        "scaling": scalings[0] if len(scalings) == 1 else "both",
        "visits": before.protocol.visits,
        "seed": before.protocol.seed,
        "device": before.machine.device,
    }
    if STRONG in scalings:
        said["total"] = next(point.batch for point in points if point.scaling == STRONG)
    given = {**vars(request), "gpus": None if request.gpus is None else numbers(request.gpus, None)}
    for key, value in said.items():
        if given[key] not in (None, value):
            raise UserError(f"{path}: --resume: that run has another --{key}; leave it out")
    ways = tuple(dict.fromkeys(point.way for point in points))
    if unknown := [way for way in ways if way not in WAYS]:
        raise UserError(f"{path}: --resume: no way {unknown[0]!r} is known here")
    if request.ways and {*request.ways} != {*ways}:
        raise UserError(f"{path}: --resume: that run has other ways, {', '.join(ways)}; leave yours out")
    said |= {"gpus": ",".join(map(str, said["gpus"])), "ways": ways, "workload": request.workload or name}
    return replace(request, **said, generations=request.generations or before.protocol.generations)


def numbers(asked: str | None, there: int | None) -> list[int]:
    """Return the numbers of GPUs to measure. `there` is how many the machine has, None for ranks on a CPU."""
    found = options.whole_numbers("--gpus", asked, MOST)
    if found is None:
        most = 2 if there is None else there
        return sorted({*(2**k for k in range(10) if 2**k <= most), most})
    found.sort()
    if there is not None and found[-1] > there:
        raise UserError(f"--gpus {found[-1]}: torch sees {there} here")
    return found


def _plan(
    request: Request, before: Result | None, device: str, counts: list[int], quiet: bool, **more: Any
) -> tuple[Plan, str | None, First]:
    """Return what to measure, the source of the images, and the first line.

    A file that is gone on with says which points.
    """
    from ladder.machine import system
    from ladder.plan import catalog
    from ladder.studies.scale import ways as known
    from ladder.studies.scale.measure import Plan
    from stylegan_lite.config import ConfigError

    name, fields = catalog.load_workload(request.workload or for_workload.DEFAULT_WORKLOAD[device])
    able = needs.possible(system.capabilities(device), fields)
    found = known.load(request.ways, able)
    scalings = ("weak", "strong") if request.scaling in (None, "both") else (request.scaling,)
    if request.total is not None and "strong" not in scalings:
        raise UserError(
            "--total is for --scaling strong, and you gave weak: leave out --total, or take strong"
        )
    try:
        if before is None:
            total = request.total or int(fields["batch"]) * counts[-1]
            points = known.points(found, fields, counts, scalings, total)
        else:
            points = known.again(found, fields, before.points)
    except ConfigError as error:
        raise UserError(f"--total: {error}") from None
    if not any(point.problem is None for point in points):
        raise UserError(f"none of these ways runs here: {points[0].way.name}: {points[0].problem}")
    names = ", ".join(dict.fromkeys(each.way.name for each in points))
    first = First(f"{name} on {device}: {names} on {', '.join(map(str, counts))}", quiet)
    pictures = for_workload.prepare_images(request.data or fields["data"], fields, quiet, first)
    rules = request.generations or 3, request.visits or 3, request.seed or 0
    plan = Plan(name, fields | {"data": pictures.path}, points, device, *rules, **more)
    return plan, pictures.source, first


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


def write_pages(result: Result, path: Path) -> list[Path]:
    """Write Markdown and charts beside a merged result's file, and return them."""
    from ladder.studies.scale import chart, report

    page = path.with_suffix(".md")
    files.write(page, report.markdown(result))
    return [page, *files.try_draw(path.with_suffix(""), lambda kind: chart.render(result, kind))]
