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
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.starting import near
from ladder.cli import options
from ladder.plan import catalog

PARITY, ROOFLINE, SPELLINGS = "--parity-trial", "--roofline", "--spellings"
ALONE = "doctor without another check"
WRITES = {
    PARITY: "parity",
    ROOFLINE: "roofline",
    SPELLINGS: "spellings",
}  # folder of results
# The checks that read an option, where not all do.
READERS = {
    "workloads": (PARITY, ROOFLINE),
    **dict.fromkeys(("rung", "gpu", "again"), (ROOFLINE,)),
    "ladder_name": (ROOFLINE, ALONE),
    "as_json": (PARITY, ROOFLINE, ALONE),
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
    "--spellings",
    "spellings_of",
    metavar="WORKLOAD",
    help="Time every plain-PyTorch spelling of modulation, resampling and norm; writes results/spellings.",
)
@click.option(
    "--parity-trial",
    "parity_trial",
    is_flag=True,
    help="Judge each plain-PyTorch spelling by the others, to test parity's factor; writes results/parity.",
)
@click.option(
    "--roofline",
    is_flag=True,
    help="Show how far a step is from this GPU's limit, and what lies between; writes results/roofline.",
)
@click.option(
    "-w",
    "--workload",
    "workloads",
    metavar="NAME|FILE",
    multiple=True,
    help="The workload of --roofline or of --parity-trial; the latter takes several. [default: article;"
    " --parity-trial: article and adain-256 on a GPU, tiny on the CPU]",
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
    spellings_of: str | None,
    parity_trial: bool,
    roofline: bool,
    workloads: tuple[str, ...],
    rung: str | None,
    gpu: str | None,
    again: Path | None,
    as_json: bool,
) -> None:
    """Say which rungs can run here, and how far the roofline is.

    Without a flag it says what this machine has, which rungs it can run, and how to get what is missing. Three
    flags run another check instead. `--roofline` shows how far a step is from this GPU's limit, and why.
    `--spellings` finds the fastest plain-PyTorch spellings for the baseline. `--parity-trial` tests that parity accepts
    correct code.

    Exit status: 0 if a ladder can run here, 2 if not. With --parity-trial 1 if correct code would fail.
    """
    from ladder.cli import examine as examining

    asked = {
        PARITY: parity_trial,
        ROOFLINE: roofline,
        SPELLINGS: spellings_of is not None,
    }
    if sum(asked.values()) > 1:
        raise UserError("give only one of --parity-trial, --roofline and --spellings")
    for name, checks in READERS.items():
        if not any(asked.get(check, not any(asked.values())) for check in checks):
            options.refuse_idle(f"is for {', '.join(checks)}", name)
    if again is not None:
        names = ("workloads", "ladder_name", "rung", "gpu", "device")
        options.refuse_idle("has no effect: --again takes all from its file", *names)
    if gpu is not None:
        options.refuse_idle("has no effect: --gpu measures nothing", "device")
    if roofline and len(workloads) > 1:
        raise UserError("--roofline is of one --workload")
    if gpu is None and again is None:
        files.refuse_unwritable(*(ROOT / "results" / WRITES[name] for name, given in asked.items() if given))
    if parity_trial:
        sys.exit(_try_parity(workloads, device, as_json))
    if roofline:
        from ladder.studies.roofline import command as rooflines

        workload = workloads[0] if workloads else None
        rooflines.command(workload, rung, ladder_name, device, gpu, as_json, again)
        return
    if spellings_of is not None:
        from ladder import spellings
        from ladder.machine import system

        name, workload = catalog.load_workload(spellings_of)
        for path in spellings.measure(name, workload, system.choose_device(device)):
            click.echo(near(path))
        return
    found = examining.examine(device, catalog.load_ladder(ladder_name or "article"))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=1))
    else:
        examining.print_findings(found)
    if found.blocked:
        sys.exit(2)


def _try_parity(workloads: tuple[str, ...], device: str | None, as_json: bool) -> int:
    """Run the trial of parity, print it, and return the exit status."""
    from ladder.machine import system
    from ladder.parity import trial as paritytrial

    chosen = system.choose_device(device)
    with system.untimed(chosen):
        found, path = paritytrial.run(workloads, chosen, tell=lambda line: click.echo(line, err=True))
    click.echo(json.dumps(found, indent=1) if as_json else f"{paritytrial.text(found)}; {near(path)}")
    return 1 if found["worst"] > found["factor"] else 0
