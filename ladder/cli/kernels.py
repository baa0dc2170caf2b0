"""Options of `ladder kernels`, and the files that it writes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ladder.base import files, locks, text
from ladder.base.errors import UserError
from ladder.base.progress import First
from ladder.base.records import plain
from ladder.base.starting import near
from ladder.cli import options
from ladder.studies.kernelbench.measure import MINUTES, ORDERS, OUT, Asked, lay_out, measure, write

if TYPE_CHECKING:
    from ladder.studies.kernelbench.schema import Row


@click.command(
    epilog="""\b
Examples:
  ladder kernels                               every op at the shapes of article, article-b32 and adain-256
  ladder kernels --quick                       two resolutions, three repeats; not to be quoted
  ladder kernels --op bias_act --op modulate   these ops only
  ladder kernels -w stylegan2-1024 --minutes 10
  ladder kernels --resume results/kernels/MACHINE-partial.json --minutes 5     the cases that it lacks
  ladder kernels --json > kernels.json"""
)
@click.option(
    "--op", "ops", metavar="OP", multiple=True, help="Only this op; may be repeated. [default: all]"
)
@click.option(
    "-w", "--workload", "names", metavar="NAME|FILE", multiple=True,
    help="Use the shapes of this workload; may be repeated. [default: article, article-b32, adain-256]",
)  # fmt: skip
@click.option(
    "--quick", is_flag=True, help="Fewer shapes and repeats. The result is marked as not to be quoted."
)
@click.option(
    "--minutes",
    type=options.FloatRange(0, min_open=True),
    help="Approximate duration. Repeats are fitted to it; if it is short, the least important shapes are left out."
    " [default: 4]",
)
@click.option(
    "--first", type=click.Choice(ORDERS), default=ORDERS[0], show_default=True,
    help="Cases to measure first: bias_act, modulate and upfirdn2d at 128x128 and 256x256, batch 8 and 32; or the"
    " cases with the most work.",
)  # fmt: skip
@click.option(
    "--resume", metavar="FILE", type=options.FILE,
    help="Continue the run of this file: measure the missing cases. Ops, shapes and seed are the file's.",
)  # fmt: skip
@options.seed_option("the inputs", default=None)
@options.device_option
@options.out_option("results/kernels")
@options.json_option
def kernels(
    ops: tuple[str, ...],
    names: tuple[str, ...],
    quick: bool,
    minutes: float | None,
    first: str,
    resume: Path | None,
    seed: int | None,
    device: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Time the fused ops against plain PyTorch and torch.compile.

    Forward, backward and double backward are timed with cold and hot L2 cache. The yardstick is a copy of the same
    number of bytes. Option `--device cpu` runs tiny shapes in Triton's interpreter. It shows that the code works;
    its times mean nothing.

    Exit status: 0 if no op failed. 1 if one did. 2 if the request is impossible. 130 if interrupted.
    """
    from ladder.machine import environment, system

    chosen = system.choose_device(device)
    environment.refuse(chosen)
    if chosen == "cpu" and device != "cpu":
        raise UserError("kernels are timed on a CUDA GPU, and there is none; --device cpu is a smoke test")
    if chosen == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it at import, further down
    elif reason := system.capabilities(chosen)["triton"]:
        raise UserError(f"the ops need Triton: {reason}")
    folder = out or OUT
    files.refuse_unwritable(folder)
    asked = Asked(chosen, ops, names, quick, seed, minutes or MINUTES, first, resume)
    from ladder.report import output as ending
    from ladder.studies.kernelbench import verdicts as kernelverdicts

    with locks.folder_lock(folder, text.slug(system.facts(chosen)["name"])):
        job = lay_out(asked)
        cases = text.counted(len(job.due), "case")
        First(f"kernels: {cases}, at most about {job.asked.minutes:g} min", as_json)()
        environment.print_conditions(as_json)
        with locks.device_lock(
            system.device_key(chosen)
        ):  # also while the files are written: the context stays
            result = measure(job, as_json, folder)
            paths = write(result, folder)
    if as_json:
        click.echo(json.dumps(plain(result), indent=1, allow_nan=False))
    else:
        from ladder.studies.kernelbench import report as kernelreport

        kernelreport.print_table(result)
    if left := len(kernelverdicts.unreached(result.rows)):
        click.echo(f"{left} cases had no time; measure them with --resume {near(paths[0])}", err=True)
    failed = any(_failed(row) for row in result.rows)
    again = bool(left) or failed or not result.complete
    ending.say_files(paths, as_json, again, drop=("ops", "names", "quick", "seed"))
    if not result.complete:
        sys.exit(130)
    if failed:
        sys.exit(1)


def _failed(row: Row) -> bool:
    """Return whether our op has no number although there was time for one."""
    from ladder.base.text import NO_TIME

    return row.reasons.get("ours", NO_TIME) != NO_TIME
