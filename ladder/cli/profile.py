"""Options of `ladder profile`, and the files that it writes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ladder.base import files, locks, text
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.progress import First
from ladder.base.records import plain
from ladder.base.stopping import stop_on_sigterm
from ladder.cli import options
from ladder.images import for_workload

if TYPE_CHECKING:
    from ladder.studies.profile.measure import Plan
    from ladder.studies.profile.record import Result

GB = 2**30
OUT = ROOT / "results" / "profile"
QUIET = "KINETO_LOG_LEVEL"  # the profiler prints its beginning and end on stderr


@click.command(
    epilog="""\b
Examples:
  ladder profile fused_act                         categories, phases, layers, memory
  ladder profile baseline -w article-b32           on another workload
  ladder profile fused_act --trace step.json.gz    and a trace for ui.perfetto.dev
  ladder profile fused_act --largest-batch         and the largest batch that fits
  ladder profile fused_act --ncu                   and counters of the heaviest kernels (Nsight Compute)
  ladder profile fused_act --nsys step.nsys-rep    and a report of Nsight Systems"""
)
@click.argument("rung", metavar="RUNG")
@options.workload_option("article on a GPU, tiny on the CPU")
@options.ladder_option(None, "The ladder of the rung. [default: article, or full if article lacks it]")
@click.option(
    "--trace",
    metavar="FILE",
    type=options.FILE,
    help="Write one step of each kind as a Chrome trace: .json.gz or .json.",
)
@click.option(
    "--largest-batch", is_flag=True, help="Also search the largest batch that fits; up to three minutes."
)
@click.option("--ncu", is_flag=True, help="Also count in the heaviest kernels with Nsight Compute; minutes.")
@click.option("--nsys", metavar="FILE", type=options.FILE, help="Also write a report of Nsight Systems.")
@options.data_option
@options.seed_option("weights, latents and the order of images")
@options.device_option
@options.out_option("results/profile")
@options.json_option
def profile(
    rung: str, workload: str | None, ladder_name: str | None, trace: Path | None, largest_batch: bool, ncu: bool,
    nsys: Path | None, data: str | None, seed: int, device: str | None, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Show what a step of RUNG consists of: work and memory.

    The work is shown by category, phase and layer. One process runs the rung with all below it, and traces one cycle
    of 16 steps. On a CPU the own time of PyTorch's operators stands for kernels. The figures are those of one process,
    so compare rungs with `ladder run`, and explain their difference with `ladder explain`.

    Exit status: 0 if done. 2 if the request is impossible, or a tool is missing. 130 if interrupted.
    """
    os.environ.setdefault(QUIET, "99")
    from ladder.machine import environment, system
    from ladder.report import output as ending
    from ladder.studies.profile import measure, report, tracefile
    from ladder.studies.profile import nsys as systems

    _refuse_names(("--trace", trace, tracefile.SUFFIXES), ("--nsys", nsys, (systems.SUFFIX,)))
    counter, recorder = _tools(ncu, nsys)
    chosen = system.choose_device(device)
    environment.refuse(chosen)
    if chosen == "cpu" and (ncu or nsys):
        raise UserError("--ncu and --nsys look into a GPU, and none is used here")
    folder = out or OUT
    files.refuse_unwritable(folder)
    asked, photographs, first = _plan(rung, workload, ladder_name, chosen, data, seed, as_json)

    def tell(line: str) -> None:
        click.echo(f"{rung}: {line}", err=True)

    with contextlib.ExitStack() as held:
        held.enter_context(stop_on_sigterm())
        held.enter_context(locks.folder_lock(folder, text.slug(system.facts(chosen)["name"])))
        first()
        environment.tell(as_json)
        waiting = "waits for another run on this GPU"
        held.enter_context(locks.device_lock(system.device_key(chosen), lambda: tell(waiting)))
        result = measure.profile(asked, photographs, folder, tell, trace)
        paths = write(result, folder)
        if largest_batch:
            result = _with_largest(result, asked, tell)
            paths = write(result, folder)
        if counter:
            result = _with_counters(result, asked, counter, tell)
            paths = write(result, folder)
        if nsys is not None and recorder is not None:
            systems.record(recorder, nsys, asked.workload, asked.recipe, tell)
    click.echo(json.dumps(plain(result), indent=1, allow_nan=False) if as_json else report.text(result))
    ending.say_files(paths, as_json)


def _refuse_names(*asked: tuple[str, Path | None, tuple[str, ...]]) -> None:
    """Raise UserError if a file that an option asks for cannot have its name, or cannot be written."""
    for option, path, suffixes in asked:
        if path is None:
            continue
        if not path.name.endswith(suffixes):
            raise UserError(f"{option} {path}: the name of its file ends in {' or '.join(suffixes)}")
        files.refuse_unwritable(path.parent)


def _tools(ncu: bool, nsys: Path | None) -> tuple[str | None, str | None]:
    """Return the paths of `ncu` and `nsys`, as far as they are asked for. UserError if one is missing."""
    from ladder.studies.profile import counters
    from ladder.studies.profile import nsys as systems

    try:
        counter = counters.find_ncu() if ncu else None
    except counters.Refused as error:
        raise UserError(f"--ncu: {error}") from None
    return counter, systems.program() if nsys is not None else None


def _plan(
    rung: str, workload: str | None, ladder: str | None, device: str, data: str | None, seed: int, quiet: bool
) -> tuple[Plan, str | None, First]:
    """Return the plan of the rung, the source of its images, and the first line."""
    from ladder.plan import catalog
    from ladder.studies.profile import measure

    name, fields = catalog.load_workload(workload or for_workload.DEFAULT_WORKLOAD[device])
    measure.plan(rung, ladder, name, fields, device, None, seed)  # refuses before images are made
    first = First(f"{rung}: profile on {name}, {device}", quiet)
    pictures = for_workload.prepare_images(data or fields["data"], fields, quiet, first)
    return measure.plan(rung, ladder, name, fields, device, pictures.path, seed), pictures.source, first


def _with_largest(result: Result, asked: Plan, tell: Callable[[str], None]) -> Result:
    """Return the result with the largest batch that fits."""
    from ladder.studies.profile import largest

    begin = time.monotonic()
    sizes = [each or 0 for each in (result.memory.peak_reserved, result.memory.device_used)]
    memory_gb = result.machine.gpu_memory_gb
    found = largest.find(asked, tell, max(sizes), memory_gb and memory_gb * GB)
    return _longer(result, begin, largest=found)


def _with_counters(result: Result, asked: Plan, ncu: str, tell: Callable[[str], None]) -> Result:
    """Return the result with Nsight Compute's counters. UserError if it may not count; the profile is kept."""
    import torch

    from ladder.studies.profile import counted, counters

    begin = time.monotonic()
    heaviest = result.heaviest or []
    tell(f"Nsight Compute counts in the heaviest kernels, in {', '.join(counted.phases(heaviest))}")
    sms = torch.cuda.get_device_properties(asked.device).multi_processor_count
    try:
        found = counted.count(heaviest, asked.workload, asked.recipe, ncu, sms)
    except counters.Refused as error:
        raise UserError(f"--ncu: {error}; the profile without counters is stored") from None
    return _longer(result, begin, counters=found)


def _longer(result: Result, begin: float, **more: Any) -> Result:
    """Return the result with more fields, and with the seconds that they took."""
    return dataclasses.replace(result, seconds=round(result.seconds + time.monotonic() - begin, 1), **more)


def write(result: Result, folder: Path) -> list[Path]:
    """Write the result as JSON and Markdown, and return the files."""
    from ladder.results import store
    from ladder.studies.profile import report

    words = [result.machine.name, result.workload["name"]]
    words += [result.ladder] * (result.ladder not in ("article", "full"))
    stem = "-".join(text.slug(word) for word in (*words, result.rung))
    return store.save(plain(result), folder, {"md": report.markdown(result)}, stem=stem, exact=True)
