"""The command `ladder doctor`: machine, packages, rungs that can run here, and a remedy for each fault.

`--roofline` measures or computes how far a step is from the GPU's limit instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from ladder.base import bounds, files, starting
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.cli import duration, options
from ladder.core.records import write_whole
from ladder.machine import system
from ladder.plan import catalog, needs
from ladder.results.file import Machine
from ladder.results.types import build

INSTALL = "pip install -r requirements.lock"
PACKAGES = {  # module -> what is lost without it
    "torch": "nothing can be measured",
    "matplotlib": "no charts",
    "skimage": "no sample photographs; --data still works",
    "PIL": "no images can be read",
    "simplejpeg": "JPEG files that are cut off are not recognized",
    "scipy": "no intervals",
    "asv": "no history over commits",
}
# The folder of the Python that a script made by pip starts. A path too long for `#!` stands behind `exec`.
_STARTS = re.compile(r"(?:#!|exec' \"?)(/[^\"\n]*?)/python")
NEEDED = ("torch", "PIL", "scipy")
# 8 workers x 3 batches of 8 float32 images of 256x256 need 0.15; containers have 0.06 by default
SHM_GIB = 0.5
COLORS = {"ok": "green", "warning": "yellow", "missing": "red"}  # by the status of a check
FACTS = ("gpu", "cpu", "cores", "ram_gb", "os", "driver", "cuda", "cudnn", "torch", "triton", "python")


@dataclass(frozen=True)
class Check:
    """One finding about the machine.

    `status` is "ok", "warning" (a ladder can still run) or "missing" (it cannot).
    """

    name: str
    status: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class RungHere:
    """A rung of the ladder, and the reason why it cannot run here; None where it can."""

    name: str
    title: str
    skipped: str | None


@dataclass(frozen=True)
class Next:
    """The command to go on with, and its minutes according to earlier results of this machine."""

    command: str
    minutes: float


@dataclass(frozen=True)
class Findings:
    """The findings about a machine. `blocked` is one line that says why no ladder can run here, or None."""

    machine: Machine
    device: str | None
    checks: list[Check]
    ladder: str
    rungs: list[RungHere]
    blocked: str | None
    next: Next | None


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
    if roofline:
        from ladder.studies.roofline import study

        options_ = study.Options(rung=rung, ladder=ladder_name or "full")
        if again is not None:
            names = ("workload", "ladder_name", "rung", "gpu", "device")
            options.refuse_idle("has no effect: --again takes all from its file", *names)
            study.count_again(again, as_json)
        elif gpu is not None:
            options.refuse_idle("has no effect: --gpu measures nothing", "device")
            study.show_floor(options_, workload, gpu, as_json)
        else:
            files.refuse_unwritable(ROOT / "results" / "roofline")
            sys.exit(study.measure_distance(options_, workload, device, as_json))
        return
    options.refuse_idle("is for --roofline", "workload", "rung", "gpu", "again")
    findings = examine(device, catalog.load_ladder(ladder_name or "article"))
    if as_json:
        click.echo(json.dumps(write_whole(dataclasses.asdict(findings)), indent=1))
    else:
        print_findings(findings)
    if findings.blocked:
        sys.exit(2)


def examine(requested: str | None, ladder: catalog.Ladder) -> Findings:
    """Examine the machine, on the requested device or else the best one."""
    checks = [_check_kernels(), *_check_command(), *_check_packages()]
    try:
        device = system.choose_device(requested)
        facts = build(Machine, system.facts(device))
        capabilities = {needs.RANKS: needs.ONE_PROCESS, **system.capabilities(device)}
        checks.append(_describe_device(facts))
    except UserError as error:
        device, facts = None, build(Machine, system.facts("cpu"))
        capabilities = dict.fromkeys(needs.NEEDS, "")
        checks.append(Check("device", "missing", str(error)))
    if device == "cuda":
        checks += [_check_triton(capabilities["triton"]), *_check_shared_memory()]
    rungs = [
        RungHere(plan.name, plan.title, plan.skipped if device else "no device, see above")
        for plan in catalog.climb(ladder, capabilities)
    ]
    blocked = next((f"{check.name}: {check.detail}" for check in checks if check.status == "missing"), None)
    able = sum(not rung.skipped for rung in rungs)
    following = None if device is None or blocked else _choose_next(device, facts, able)
    return Findings(facts, device, checks, ladder.name, rungs, blocked, following)


def _choose_next(device: str, facts: Machine, rungs: int) -> Next:
    """Return the command to go on with, a quick run without a GPU, and its expected minutes."""
    quick, folder = device == "cpu", ROOT / "results" / "ladder" / facts.name
    minutes = duration.estimate_minutes(
        duration.PlannedRun(folder, duration.USUAL[device], device, rungs, quick)
    )
    return Next("ladder run --quick" if quick else "ladder run", round(minutes or 0, 1))


def _check_kernels() -> Check:
    """Check that `kernels` is this project's folder, not the unrelated package of that name on PyPI."""
    spec = importlib.util.find_spec("kernels")
    ours = ROOT / "kernels" / "__init__.py"
    if spec is not None and spec.origin and Path(spec.origin).resolve() == ours:
        return Check("kernels", "ok", "this project's")
    detail = "this project's folder is not found"
    if spec is not None:
        detail = "another package named `kernels` shadows this project's"
    remedy = "run from the root of the checkout: python -m ladder"
    if bounds.installed("kernels"):
        remedy = f"pip uninstall kernels, or {remedy}"
    return Check("kernels", "missing", detail, remedy)


def _check_command() -> list[Check]:
    """Check that the console command in .venv starts the Python of its own folder.

    A moved or copied checkout leaves a command that starts the old folder.
    """
    script = starting.VENV / "bin" / "ladder"
    with contextlib.suppress(OSError):
        started = _STARTS.search(script.read_text(errors="replace"))
        if started and Path(started[1]).resolve() == script.parent.resolve():
            return []
    if not script.exists():
        return []
    detail = "it was made for a checkout in another folder, as this one was moved or copied"
    return [Check(".venv/bin/ladder", "warning", detail, "make setup")]


def _check_packages() -> list[Check]:
    checks = []
    for module, without in PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            status = "missing" if module in NEEDED else "warning"
            checks.append(Check(module, status, f"not installed: {without}", INSTALL))
    old = [line.partition(": pip") for line in map(bounds.older, bounds.oldest()) if line]
    checks += [Check("packages", "warning", what, f"pip{how}") for what, _, how in old]
    return checks or [
        Check("packages", "ok", f"torch {bounds.installed('torch')} and the others are installed")
    ]


def _describe_device(facts: Machine) -> Check:
    if facts.gpu:
        return Check("device", "ok", f"{facts.gpu}, {facts.gpu_memory_gb:.0f} GiB, driver {facts.driver}")
    return Check("device", "ok", f"{facts.cpu}, {facts.cores} cores; no GPU is used")


def _check_triton(reason: str | None) -> Check:
    if reason is None:
        return Check("triton", "ok", "compiles and runs a kernel")
    if not bounds.installed("triton"):
        remedy = "pip install triton"
    elif shutil.which("gcc") or shutil.which("clang"):
        remedy = ""
    else:
        remedy = "apt-get install gcc (Triton needs a C compiler)"
    return Check("triton", "warning", reason, remedy)


def _check_shared_memory() -> list[Check]:
    """Check the size of /dev/shm, through which data workers hand over batches. Containers make it small."""
    try:
        size = shutil.disk_usage("/dev/shm").total / 2**30
    except OSError:
        return []
    if size >= SHM_GIB:
        return []
    detail = f"/dev/shm has {size:.2f} GiB: the data_loading rung may fail with large batches"
    return [Check("shared memory", "warning", detail, "docker run --shm-size=2g, or --ipc=host")]


def print_findings(findings: Findings) -> None:
    """Print the findings on stdout, without colours when stdout is piped."""
    facts = findings.machine
    click.echo(click.style("machine", bold=True) + f"  {facts.name}")
    for key in FACTS:
        if (value := getattr(facts, key)) is not None:
            click.echo(f"  {key:<8}  {value}")
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
        command = starting.named(f"`{following.command}`")
        click.echo(
            click.style("next", bold=True) + f"  {command}: {duration.render_minutes(following.minutes)}"
        )
