"""The request of a command, resolved once. Everything below the command line takes it whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core.plain import Fields, Plain


@dataclass(frozen=True)
class Job:
    """What is to be measured, on which device, and where its files go.

    `workload` has all fields of `stylegan_lite.config.Workload`, with the path of its images; `source` is what a
    result file names in place of that path. `machine` are the facts of `ladder.machine.system`. `options` is
    the record of the command's own options.
    """

    device: str
    name: str  # of the workload
    workload: Fields
    source: str | None
    machine: Plain
    options: Any
    out: Path
    resume: Path | None = None
    minutes: float | None = None  # begin nothing new after these
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The options of a job of `ladder run`: which rungs, and how they are measured.

    Attributes:
        ladder: the part of `ladder.plan.catalog.Ladder` that a run must know: name, title and digest.
        planned: the rungs of the ladder, or the entries of a mode (`ladder.plan.catalog.Planned`), each with a recipe
            or why it is skipped.
        rounds: generations; by default 3 to 12 as far as the minutes allow (`ladder.stats.rounds_budget`).
        cycles: timed in each process; by default two.
        quick: one timed cycle a process and no second twin. The result is not to be quoted.
        gpu_memory_gb: memory of a smaller card, which each process is held to (`ladder.engine.rounds`).
        images: facts on a user's images (`ladder.results.identity.of_images`).
        code: another checkout with the measured packages. The inspection does not know it.
        inspect: whether parity and receipts of each rung are checked before it is timed.
        torch: whether the workers import torch. A CPU step of other code may be a fake.
        timeouts: seconds of silence after which a worker is given up, by its answer.
    """

    ladder: Any
    planned: Sequence[Any]
    mode: str = "cumulative"
    rounds: int | None = None
    cycles: int | None = None
    seed: int = 0
    quick: bool = False
    gpu_memory_gb: float | None = None
    images: Any = None
    code: Path | None = None
    inspect: bool = True
    torch: bool = True
    timeouts: dict[str, float] | None = None
