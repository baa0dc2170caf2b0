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

    `workload` has all fields of `stylegan_lite.config.Workload`, or of `PairWorkload`, with the path of its images;
    `source` is what a result file names in place of that path. `machine` are the facts of `ladder.machine.system`.
    `options` is the record of the command's own options.
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
    facts: Plain | None = None  # of a user's pair: what decides which rungs apply (`ladder.engine.pair`)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The options of a job of `ladder run`: which rungs, and how they are measured."""

    ladder: Any  # name, title and digest, as `ladder.plan.catalog.Ladder` has them
    planned: Sequence[Any]  # `ladder.plan.catalog.Planned`: each with a recipe or why it is skipped
    mode: str = "cumulative"
    rounds: int | None = None  # generations; by default 3 to 12 as far as the minutes allow
    cycles: int | None = None  # timed in each process; by default two
    seed: int = 0
    quick: bool = False  # one timed cycle a process and no second twin: not to be quoted
    gpu_memory_gb: float | None = (
        None  # of a smaller card, which each process is held to (`ladder.engine.rounds`)
    )
    images: Any = None  # facts on a user's images (`ladder.results.identity.of_images`)
    code: Path | None = (
        None  # another checkout with the measured packages, which the inspection does not know
    )
    inspect: bool = True  # parity and receipts of each rung, before it is timed
    torch: bool = True  # whether the workers import it: a CPU step of other code may be a fake
    timeouts: dict[str, float] | None = (
        None  # seconds of silence after which a worker is given up, by its answer
    )
