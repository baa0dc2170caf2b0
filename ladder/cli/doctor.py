"""The command `ladder doctor`: machine, packages, rungs that can run here, and a remedy for each fault.

`--roofline` measures or computes how far a step is from the GPU's limit instead.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import click

from ladder.cli import climb
from ladder.core import bounds, files, options, starting
from ladder.core.errors import UserError
from ladder.core.options import declare_option, make_command
from ladder.core.paths import ROOT
from ladder.core.records import Record, read_record, write_whole
from ladder.machine import system
from ladder.plan import catalog, needs
from ladder.results.file import Machine

INSTALL = "pip install -r requirements.lock"
NEEDED = ("torch", "PIL", "scipy")
PACKAGES = {  # module -> what is lost without it
    "torch": "nothing can be measured",
    "matplotlib": "no charts",
    "skimage": "no sample photographs; --data still works",
    "PIL": "no images can be read",
    "simplejpeg": "JPEG files that are cut off are not recognized",
    "scipy": "no intervals",
    "asv": "no history over commits",
}
# 8 workers x 3 batches of 8 float32 images of 256x256 need 0.15; containers have 0.06 by default
SHM_GIB = 0.5
COLORS = {"ok": "green", "warning": "yellow", "missing": "red"}  # by the status of a check


class Check(Record):
    """One fact about the machine: "ok", "warning" (a ladder can still run) or "missing" (it cannot)."""

    name: str
    status: str
    detail: str
    remedy: str = ""


class RungHere(Record):
    """A rung of the ladder, and the reason why it cannot run here; None where it can."""

    name: str
    title: str
    skipped: str | None


class Next(Record):
    """The command to go on with, and its minutes according to earlier results of this machine."""

    command: str
    minutes: float


class Findings(Record):
    """What `--json` prints. `blocked` is one line that says why no ladder can run here, or None."""

    machine: Machine
    device: str | None
    checks: list[Check]
    ladder: str
    rungs: list[RungHere]
    blocked: str | None
    next: Next | None


class Request(Record):
    """The options of the command."""

    # fmt: off
    ladder: Annotated[str | None, declare_option(
        "The ladder whose rungs are used. [default: article; with --roofline full]", metavar="NAME|FILE")] = None
    roofline: Annotated[bool, declare_option(
        "Show how far a step is from this GPU's limit; writes results/roofline.")] = False
    workload: Annotated[str | None, declare_option(
        "With --roofline: the workload. [default: article]", flags=["-w"], metavar="NAME|FILE")] = None
    rung: Annotated[str | None, declare_option(
        "With --roofline: this rung, with all below it. [default: the highest]", metavar="RUNG")] = None
    gpu: Annotated[str | None, declare_option(
        "With --roofline: only the floor, from recorded rates of this GPU.", metavar="NAME")] = None
    again: Annotated[Path | None, declare_option(
        "With --roofline: compute the floors of this result again from all recorded rates, and rewrite the file.",
        metavar="FILE")] = None
    # fmt: on


HELP = """Say which rungs can run here, and how far the roofline is.

    Without a flag it says what this machine has, which rungs it can run, and how to get what is missing.
    `--roofline` shows how far a step is from this GPU's limit, and why.

    Exit status: 0 if a ladder can run here, 2 if not.
    """
EXAMPLES = """
ladder doctor                                 this machine, the rungs that can run here, what is missing
ladder doctor --ladder full                   the same for all rungs of `full`
ladder doctor --roofline --gpu nvidia-h200    the limit of a GPU whose rates are stored, on any machine
"""


def run_doctor(request: Request, device: str | None, as_json: bool) -> None:
    """Examine the machine, or measure or compute the distance to the roofline."""
    if request.roofline:
        from ladder.studies.roofline import study

        choice = study.Options(rung=request.rung, ladder=request.ladder or "full")
        if request.again is not None:
            names = ("workload", "ladder", "rung", "gpu", "device")
            options.refuse_idle("has no effect: --again takes all from its file", *names)
            study.count_again(request.again, as_json)
        elif request.gpu is not None:
            options.refuse_idle("has no effect: --gpu measures nothing", "device")
            study.show_floor(choice, request.workload, request.gpu, as_json)
        else:
            files.refuse_unwritable(ROOT / "results" / "roofline")
            sys.exit(study.measure_distance(choice, request.workload, device, as_json))
        return
    options.refuse_idle("is for --roofline", "workload", "rung", "gpu", "again")
    findings = examine(device, catalog.load_ladder(request.ladder or "article"))
    if as_json:
        click.echo(json.dumps(write_whole(findings), indent=1))
    else:
        print_findings(findings)
    if findings.blocked:
        sys.exit(2)


def examine(requested: str | None, ladder: catalog.Ladder) -> Findings:
    """Examine the machine, on the requested device or else the best one."""
    checks, device, problem = check_packages(), None, None
    try:
        device = system.choose_device(requested)
        facts = read_record(Machine, system.describe_machine(device))
    except UserError as error:
        problem, facts = str(error), read_record(Machine, system.describe_machine("cpu"))
    about = f"{facts.cpu}, {facts.cores} cores; no GPU is used"
    if facts.gpu:
        about = f"{facts.gpu}, {facts.gpu_memory_gb:.0f} GiB, driver {facts.driver}"
    checks.append(Check("device", "missing" if problem else "ok", problem or about))
    able = {needs.RANKS: needs.ONE_PROCESS, **system.list_capabilities(device or "cpu")}
    if device == "cuda":
        checks += check_gpu(able["triton"])
    rungs = [
        RungHere(plan.name, plan.title, plan.skipped if device else "no device, see above")
        for plan in catalog.plan_climb(ladder, able)
    ]
    blocked = next((f"{check.name}: {check.detail}" for check in checks if check.status == "missing"), None)
    number = sum(not rung.skipped for rung in rungs)
    following = None if blocked else choose_next(str(device), facts, number)
    return Findings(facts, device, checks, ladder.name, rungs, blocked, following)


def choose_next(device: str, facts: Machine, rungs: int) -> Next:
    """Return the command to go on with, a quick run without a GPU, and its expected minutes."""
    from ladder.images.for_workload import DEFAULT_WORKLOAD

    quick, folder = device == "cpu", ROOT / "results" / "ladder" / facts.name
    rounds = climb.QUICK_ROUNDS if quick else None
    minutes = climb.estimate_minutes(folder, DEFAULT_WORKLOAD[device], device, rungs, rounds)
    return Next("ladder run --quick" if quick else "ladder run", round(minutes or 0, 1))


def check_packages() -> list[Check]:
    """Check what is installed."""
    checks: list[Check] = []
    for module, lost in PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            status = "missing" if module in NEEDED else "warning"
            checks.append(Check(module, status, f"not installed: {lost}", INSTALL))
    old = [line.partition(": ") for line in map(bounds.describe_older, bounds.read_oldest_versions()) if line]
    checks += [Check("packages", "warning", detail, remedy) for detail, _, remedy in old]
    usual = f"torch {bounds.find_version('torch')} and the others are installed"
    return checks or [Check("packages", "ok", usual)]


def check_gpu(triton: str | None) -> list[Check]:
    """Check Triton, which fails for the reason `triton`, and /dev/shm, through which data workers pass batches."""
    checks = [Check("triton", "ok", "compiles and runs a kernel")]
    if triton is not None:
        remedy = "" if bounds.find_version("triton") else "pip install triton"
        if not (remedy or shutil.which("gcc") or shutil.which("clang")):
            remedy = "apt-get install gcc (Triton needs a C compiler)"
        checks = [Check("triton", "warning", triton, remedy)]
    shm = Path("/dev/shm")
    if shm.exists() and (size := shutil.disk_usage(shm).total / 2**30) < SHM_GIB:
        detail = f"/dev/shm has {size:.2f} GiB: the data_loading rung may fail with large batches"
        checks.append(Check("shared memory", "warning", detail, "docker run --shm-size=2g, or --ipc=host"))
    return checks


def print_findings(findings: Findings) -> None:
    """Print the findings on stdout, without colours when stdout is piped."""
    click.echo(f"{click.style('machine', bold=True)}  {findings.machine.name}")
    for key, value in write_whole(findings.machine).items():
        if value is not None and key != "name":
            click.echo(f"  {key:<13}  {value}")
    click.echo(click.style("checks", bold=True))
    for check in findings.checks:
        status = click.style(f"{check.status:<8}", fg=COLORS[check.status])
        click.echo(f"  {status}  {check.name}: {check.detail}")
        if check.remedy:
            click.echo(f"            try: {check.remedy}")
    click.echo(click.style(f"rungs of {findings.ladder}", bold=True))
    width = max(len(rung.name) for rung in findings.rungs)
    for rung in findings.rungs:
        word = click.style("n/a     ", fg="yellow") if rung.skipped else click.style("can run ", fg="green")
        click.echo(f"  {word}  {rung.name:<{width}}  {rung.skipped or ''}".rstrip())
    if following := findings.next:
        command = starting.name_program(f"`{following.command}`")
        click.echo(f"{click.style('next', bold=True)}  {command}: {climb.render_minutes(following.minutes)}")


doctor = make_command(
    "doctor", Request, run_doctor, HELP, EXAMPLES, [options.device_option, options.json_option]
)
