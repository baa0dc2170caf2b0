"""Slowdowns of known size in real steps: a checkout of the measured packages whose step also waits.

`ladder.engine.worker --code FOLDER` takes the measured packages from the checkout. Workload and recipe are those of the
real step, and only the code differs, as between two commits.
"""

import shutil
from pathlib import Path
from typing import Any

from ladder.base.paths import ROOT
from ladder.base.protocol import CYCLE_STEPS
from ladder.selfcheck.selftest import spin

PACKAGES = ("kernels", "stylegan_lite")
WAITS = {"gpu": spin.gpu_wait, "cpu": spin.cpu_wait, "both": spin.wait_on_both}
PHASE = "G_main"  # once a step
_PATCH = """

_make_step = make_step


def make_step(*arguments, **options):
    from ladder.selfcheck.selftest.planting import slowed

    return slowed(_make_step(*arguments, **options), {seconds!r}, {where!r})
"""


def checkout(folder: Path, seconds: float, where: str, source: Path = ROOT) -> Path:
    """Copy the measured packages of `source` into `folder`, each of their steps `seconds` longer on `where`.

    "gpu" and "cpu" lengthen a step that is bound there. "both" wait at the same time, which lengthens any step.
    """
    if where not in WAITS or not seconds > 0:
        raise ValueError(f"{where}: {seconds} s cannot be planted")
    for name in PACKAGES:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    with open(folder / "stylegan_lite" / "__init__.py", "a") as file:
        file.write(_PATCH.format(seconds=float(seconds), where=where))
    return folder


def slowed(step: Any, seconds: float, where: str) -> Any:
    """Make a step wait once a step: after `PHASE` where that is launched alone, else after the whole.

    Warm-up and capture are left alone. A step that never waits, or not once in each step of a cycle, says so where it
    is asked for NaN.
    """
    run_phase, run, cycle = step.run_phase, getattr(step, "run", None), step.cycle
    check_finite, wait, waits, missed = step.check_finite, WAITS[where](seconds), 0, None

    def keep_waiting() -> None:
        nonlocal waits
        wait()
        waits += 1

    def alone(phase: str) -> None:
        run_phase(phase)
        if phase == PHASE:
            keep_waiting()

    def whole(phases: tuple[str, ...]) -> None:
        before = waits
        run(phases)
        if PHASE in phases and waits == before:
            keep_waiting()

    def counted(lazy: bool = True) -> None:
        nonlocal missed
        before = waits
        cycle(lazy)
        if waits - before != CYCLE_STEPS:
            missed = f"the planted wait was reached {waits - before} times in a cycle, not {CYCLE_STEPS}"

    def check() -> str | None:
        never = None if waits else "the planted wait was never reached"
        return check_finite() or never or missed

    step.run_phase, step.check_finite, step.cycle = alone, check, counted
    if run is not None:
        step.run = whole
    return step
