"""The examination behind `ladder doctor`: machine, packages, rungs that can run, and a remedy for each fault."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from ladder.base import bounds, starting
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
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
SHM_GIB = (
    0.5  # 8 workers x 3 batches of 8 float32 images of 256x256 need 0.15; containers have 0.06 by default
)


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


def examine(device: str | None, ladder: catalog.Ladder) -> Findings:
    """Examine the machine and return the findings."""
    checks = [_kernels(), *_command(), *_packages()]
    try:
        found = system.choose_device(device)
        facts = build(Machine, system.facts(found))
        capabilities = {needs.RANKS: needs.ONE_PROCESS, **system.capabilities(found)}
        checks.append(_device(facts))
    except UserError as error:
        found, facts = None, build(Machine, system.facts("cpu"))
        capabilities = dict.fromkeys(needs.NEEDS, "")
        checks.append(Check("device", "missing", str(error)))
    if found == "cuda":
        checks += [*_triton(capabilities["triton"]), *_shared_memory()]
    rungs = [
        RungHere(plan.name, plan.title, plan.skipped if found else "no device, see above")
        for plan in catalog.climb(ladder, capabilities)
    ]
    blocked = next((f"{check.name}: {check.detail}" for check in checks if check.status == "missing"), None)
    following = None if blocked else _next(found, facts, sum(not rung.skipped for rung in rungs))
    return Findings(facts, found, checks, ladder.name, rungs, blocked, following)


def _next(device: str, facts: Machine, rungs: int, folder: Path | None = None) -> Next:
    """Return the command to go on with, and its minutes according to earlier results of this machine.

    On a machine without a GPU the command is a quick run. The folder is that of `ladder run`'s results.
    """
    from ladder.cli import expecting

    quick, workload = device == "cpu", expecting.USUAL[device]
    folder = (folder or ROOT / "results" / "ladder") / facts.name
    minutes = expecting.of_run(folder, workload, device, rungs, quick, None, None)
    return Next("ladder run --quick" if quick else "ladder run", round(minutes or 0, 1))


def _kernels() -> Check:
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


def _command() -> list[Check]:
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


def _packages() -> list[Check]:
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


def _device(facts: Machine) -> Check:
    if facts.gpu:
        return Check("device", "ok", f"{facts.gpu}, {facts.gpu_memory_gb:.0f} GiB, driver {facts.driver}")
    return Check("device", "ok", f"{facts.cpu}, {facts.cores} cores; no GPU is used")


def _triton(reason: str | None) -> list[Check]:
    if reason is None:
        return [Check("triton", "ok", "compiles and runs a kernel")]
    remedy = "pip install triton"
    if bounds.installed("triton"):
        remedy = (
            ""
            if shutil.which("gcc") or shutil.which("clang")
            else "apt-get install gcc (Triton needs a C compiler)"
        )
    return [Check("triton", "warning", reason, remedy)]


def _shared_memory() -> list[Check]:
    """Check the size of /dev/shm, through which data workers hand over batches. Containers make it small."""
    try:
        size = shutil.disk_usage("/dev/shm").total / 2**30
    except OSError:
        return []
    if size >= SHM_GIB:
        return []
    detail = f"/dev/shm has {size:.2f} GiB: the data_loading rung may fail with large batches"
    return [Check("shared memory", "warning", detail, "docker run --shm-size=2g, or --ipc=host")]


def print_findings(found: Findings) -> None:
    """Print the findings on stdout, without colours when stdout is piped."""
    import click

    marks = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "missing": ("missing", "red")}
    facts = found.machine
    click.echo(click.style("machine", bold=True) + f"  {facts.name}")
    for key in (
        "gpu",
        "cpu",
        "cores",
        "ram_gb",
        "os",
        "driver",
        "cuda",
        "cudnn",
        "torch",
        "triton",
        "python",
    ):
        if (value := getattr(facts, key)) is not None:
            click.echo(f"  {key:<8}  {value}")
    click.echo(click.style("checks", bold=True))
    for check in found.checks:
        word, color = marks[check.status]
        click.echo(f"  {click.style(f'{word:<8}', fg=color)}  {check.name}: {check.detail}")
        if check.remedy:
            click.echo(f"            try: {check.remedy}")
    click.echo(click.style(f"rungs of {found.ladder}", bold=True))
    width = max(len(rung.name) for rung in found.rungs)
    for rung in found.rungs:
        word = click.style("n/a     ", fg="yellow") if rung.skipped else click.style("can run ", fg="green")
        click.echo(f"  {word}  {rung.name:<{width}}  {rung.skipped or ''}".rstrip())
    if following := found.next:
        from ladder.cli import expecting

        command = starting.named(f"`{following.command}`")
        click.echo(click.style("next", bold=True) + f"  {command}: {expecting.words(following.minutes)}")
