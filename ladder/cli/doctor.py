"""Options of `ladder doctor`, and the check that each one selects.

Without a flag the command examines the machine; each flag selects one measurement or simulation instead. An option
of another check is refused, because it would have no effect.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click

from ladder.base import files
from ladder.base.paths import ROOT
from ladder.cli import options
from ladder.plan import catalog

ROOFLINE = "--roofline"
ALONE = "doctor without another check"
WRITES = {ROOFLINE: "roofline"}  # folder of results
# The checks that read an option, where not all do.
READERS = {
    **dict.fromkeys(("workload", "rung", "gpu", "again"), (ROOFLINE,)),
    "ladder_name": (ROOFLINE, ALONE),
    "as_json": (ROOFLINE, ALONE),
}


@click.command(
    epilog="""\b
Examples:
  ladder doctor                                 this machine, the rungs that can run here, what is missing
  ladder doctor --ladder full                   the same for all rungs of `full`
  ladder doctor --roofline --gpu nvidia-h200    the limit of a GPU whose rates are stored, on any machine"""
)
@options.device_option
@options.ladder_option(None, "The ladder whose rungs are used. [default: article; with --roofline full]")
@click.option(
    "--roofline",
    is_flag=True,
    help="Show how far a step is from this GPU's limit, and what lies between; writes results/roofline.",
)
@click.option(
    "-w", "--workload", metavar="NAME|FILE", help="With --roofline: the workload. [default: article]"
)
@click.option(
    "--rung", metavar="RUNG", help="With --roofline: this rung, with all below it. [default: the highest]"
)
@click.option(
    "--gpu", metavar="NAME", help="With --roofline: only the floor, from recorded rates of this GPU."
)
@click.option(
    "--again",
    type=options.FILE,
    metavar="FILE",
    help="With --roofline: compute the floors of this result again from all recorded rates, and rewrite the file.",
)
@options.json_option
def doctor(
    device: str | None,
    ladder_name: str | None,
    roofline: bool,
    workload: str | None,
    rung: str | None,
    gpu: str | None,
    again: Path | None,
    as_json: bool,
) -> None:
    """Say which rungs can run here, and how far the roofline is.

    Without a flag it says what this machine has, which rungs it can run, and how to get what is missing.
    `--roofline` shows how far a step is from this GPU's limit, and why.

    Exit status: 0 if a ladder can run here, 2 if not.
    """
    from ladder.cli import examine as examining

    asked = {ROOFLINE: roofline}
    for name, checks in READERS.items():
        if not any(asked.get(check, not any(asked.values())) for check in checks):
            options.refuse_idle(f"is for {', '.join(checks)}", name)
    if again is not None:
        names = ("workload", "ladder_name", "rung", "gpu", "device")
        options.refuse_idle("has no effect: --again takes all from its file", *names)
    if gpu is not None:
        options.refuse_idle("has no effect: --gpu measures nothing", "device")
    if gpu is None and again is None:
        files.refuse_unwritable(*(ROOT / "results" / WRITES[name] for name, given in asked.items() if given))
    if roofline:
        from ladder.studies.roofline import study

        options_ = study.Options(rung=rung, ladder=ladder_name or "full")
        if again is not None:
            study.count_again(again, as_json)
        elif gpu is not None:
            study.show_floor(options_, workload, gpu, as_json)
        else:
            sys.exit(study.measure_distance(options_, workload, device, as_json))
        return
    found = examining.examine(device, catalog.load_ladder(ladder_name or "article"))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=1))
    else:
        examining.print_findings(found)
    if found.blocked:
        sys.exit(2)
