"""Options of `ladder precision`, and the files that it writes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ladder.base import files, locks, text
from ladder.base.progress import First
from ladder.base.records import plain
from ladder.cli import options
from ladder.images import for_workload

if TYPE_CHECKING:
    from ladder.results.types import Plain

SMOKE = {
    "resolution": 8,
    "channel_base": 128,
    "channel_max": 16,
    "z_dim": 16,
    "w_dim": 16,
    "mapping_layers": 2,
}


@click.command(
    epilog="""\b
Examples:
  ladder precision                            everything, of the article's workload
  ladder precision --only fp32,fp16 --on baseline
  ladder precision --no-parity --batch-seconds 0 --steps 0      the times alone
  ladder precision --minutes 9                a part, then the rest of it:
  ladder precision --resume results/precision/MACHINE-partial.json
  ladder precision -w article-b32 --json > precision.json"""
)
@options.workload_option("article on a GPU, a smoke test at 8x8 on the CPU")
@click.option(
    "--only", metavar="A,B,...", help="Precisions, of fp32, tf32, bf16, fp16 and fp8. [default: all]"
)
@click.option(
    "--on", "bases", type=click.Choice(["baseline", "top", "both"]), default="both", show_default=True,
    help="Measure the baseline in each precision, or the top of the ladder.",
)  # fmt: skip
@options.ladder_option("full", "The ladder whose top is measured.")
@options.rounds_option(1, "Fresh processes of each row, one after another. [default: 3; CPU: 1]")
@click.option(
    "--cycles", type=options.IntRange(1, 1000), help="Timed cycles of each process. [default: 2; CPU: 1]"
)
@click.option(
    "--parity/--no-parity",
    default=True,
    show_default=True,
    help="Compare each row with FP64 before it is timed.",
)
@click.option(
    "--batch-seconds", type=options.FloatRange(0), metavar="SECONDS",
    help="Seconds for each row's search for the largest batch; 0: no search. [default: 75; CPU: 0]",
)  # fmt: skip
@click.option(
    "--batch-of", type=click.Choice(["baseline", "top", "both"]), default="baseline", show_default=True,
    help="Rows whose largest batch is searched.",
)  # fmt: skip
@click.option(
    "--most",
    type=options.IntRange(1, 2**15),
    help="Largest batch that is tried.",
    default=4096,
    show_default=True,
)
@click.option(
    "--steps", type=options.IntRange(0), help="Steps of the FP16 training that records loss scales; 0: no training."
    " [default: 4000; CPU: 32]",
)  # fmt: skip
@click.option(
    "--minutes",
    type=options.FloatRange(0, min_open=True),
    help="Begin nothing new after this time; continue with --resume. [default: no limit]",
)
@options.resume_option
@options.data_option
@options.seed_option("weights, latents, and the order of images and rows")
@options.device_option
@options.out_option("results/precision")
@options.json_option
def precision(
    workload: str | None, only: str | None, bases: str, ladder_name: str, rounds: int | None, cycles: int | None,
    parity: bool, batch_seconds: float | None, batch_of: str, most: int, steps: int | None,
    minutes: float | None, resume: Path | None, data: str | None, seed: int, device: str | None,
    out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare FP32, TF32, BF16 and FP16: time, memory and parity.

    The largest batch that fits is searched as well. FP16 trains with one loss scale for G and one for D, whose history
    is recorded and drawn. FP8 is tried in the fully connected layers. Each of the article's claims (twice the
    throughput, half the memory, twice the batch) gets a line.

    Exit status: 0 if every row that can run here has a number. 1 if one has none. 2 if the request is impossible. 130
    if it was interrupted or the time was over.
    """
    from ladder.machine import environment, system
    from ladder.plan import catalog
    from ladder.report import output as ending
    from ladder.results import store as results
    from ladder.studies.precision import measure
    from ladder.studies.precision import plan as measuring
    from stylegan_lite.config import Workload

    names = measuring.ask(only)
    chosen = system.choose_device(device)
    environment.refuse(chosen)
    cpu = chosen == "cpu"
    if cpu and workload is None:  # FP16 is slow on CPUs without FP16 instructions
        name, fields = "small", Workload.from_dict(SMOKE | {"batch": 4}).to_dict()
    else:
        name, fields = catalog.load_workload(workload or "article")
    if batch_seconds is None:
        batch_seconds = 0.0 if cpu else 75.0
    _refuse_idle_options(names, bases, batch_of, batch_seconds, steps)
    folder = out or measure.OUT
    files.refuse_unwritable(folder)
    if resume is not None:
        measure.load(resume)  # refuses it before images are made
    facts = system.facts(chosen)
    rounds = rounds or (1 if cpu else results.FEWEST_ROUNDS)
    rows = f"{text.counted(len(names), 'precision')} on {' and '.join(_of(bases))}"
    said = (
        f"{name} on {chosen}: {rows}, {text.counted(rounds, 'generation')}; a line for each part that begins"
    )
    first = First(said, as_json)
    plan = measuring.Plan(
        fields,
        chosen,
        names,
        _of(bases),
        ladder_name,
        rounds,
        cycles or (1 if cpu else 2),
        seed,
        parity,
        batch_seconds,
        _of(batch_of),
        most,
        facts["gpu_memory_gb"],
        steps if steps is not None else (32 if cpu else 4000),
        {"loss_scale_interval": 8} if cpu else {},
    )
    measuring.rows(plan)  # refuses the ladder before images are made
    plan = replace(plan, workload=fields | {"data": _images(data, fields, cpu, first)})
    with locks.folder_lock(folder, text.slug(facts["name"])):
        base = measure.new_result(plan, name, facts)
        if resume is not None:
            base = measure.continued(resume, base)
        first()
        environment.print_conditions(as_json)
        result = measure.run(plan, base, lambda line: click.echo(line, err=True), minutes, folder)
        paths = measure.write(result, folder)
    if as_json:
        click.echo(json.dumps(plain(result), indent=1, allow_nan=False))
    else:
        from ladder.studies.precision import report as precisionreport

        click.echo(precisionreport.text(result))
    broken = [row.status for row in result.rows if row.status not in ("ok", "n/a")]
    again = not result.complete or any(status != "failed: parity" for status in broken)
    ending.say_files(paths, as_json, again)
    if not result.complete:
        sys.exit(130)
    if broken:
        sys.exit(1)


def _refuse_idle_options(
    names: tuple[str, ...], bases: str, batch_of: str, batch_seconds: float, steps: int | None
) -> None:
    """Raise `UserError` for an option that none of the rows reads. A zero asks for nothing, which is what it gets."""
    if "fp16" not in names and steps:
        options.refuse_idle(
            "is for FP16's recorded training, and --only leaves FP16 out: leave out --steps, or add fp16",
            "steps",
        )
    if bases == "baseline":
        options.refuse_idle("is for --on top", "ladder_name")
    if not batch_seconds:
        options.refuse_idle(
            "is for the search of the largest batch: give --batch-seconds", "most", "batch_of"
        )
    elif not {*_of(bases)} & {*_of(batch_of)}:
        searched = ("batch_seconds", "batch_of", "most")
        options.refuse_idle(f"searches no row: --on is {bases}, and --batch-of {batch_of}", *searched)


def _of(bases: str) -> tuple[str, ...]:
    return ("baseline", "top") if bases == "both" else (bases,)


def _images(data: str | None, fields: Plain, cpu: bool, first: First) -> str | None:
    """Return the folder of images for the recorded training, or None for random images on a CPU.

    The images are those of the user, else the sample photographs.
    """
    wanted = data or fields["data"]
    if cpu and wanted is None:
        return None
    return for_workload.prepare_images(wanted, fields, first.quiet, first).path
