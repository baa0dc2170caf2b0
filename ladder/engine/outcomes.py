"""A program of a generation, its process while the generation is made, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ladder.engine.gpu_time import PROFILED, is_captured
from ladder.engine.pool import Worker, WorkerFailure
from ladder.machine import gpu_state, neighbours
from ladder.results import record
from ladder.results.file import KernelProfile, Round
from ladder.stats import estimates


@dataclass(frozen=True)
class Program:
    """A worker's task: a recipe, by the packages in the folder `code` (None: this checkout's).

    `main`: also time a cycle without lazy phases. `lazy`: also tell what each lazy phase costs.
    `prove`: compare the timed step with the reference afterwards.
    `profiled`: cycles to profile after the last timed one; with `kinds` each from a few steps (`ladder.engine.kinds`).
    `variant`: the study and the name of an entry of a study.
    """

    name: str
    rung: str
    side: str
    workload: dict[str, Any]
    recipe: dict[str, Any]
    code: Path | None
    main: bool = False
    lazy: bool = False
    prove: bool = False
    profiled: int = PROFILED
    kinds: bool = False
    variant: tuple[str, str] | None = None

    def is_captured(self) -> bool:
        """Return whether the step is launched as CUDA graphs."""
        return is_captured(self.recipe)


@dataclass(frozen=True)
class Visited:
    """The outcome of a program in a generation: "ok" and its record, or a failure's status and reason."""

    program: Program
    status: str
    reason: str | None
    round: Round | None = None
    recipe: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    choices: list[dict[str, Any]] | None = None
    profile: KernelProfile | None = None
    failure: WorkerFailure | None = None


@dataclass
class Process:
    """A program's process in the generation that is being made, and what it has shown so far."""

    program: Program
    worker: Worker
    built: dict[str, Any]
    spent: dict[str, Any]
    beside: int
    device_bytes: int | None = None
    visits: list[dict[str, Any]] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    still_s: list[float | None] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    visit_s: float = 0.0
    finished: dict[str, Any] = field(default_factory=dict)
    profiled: dict[str, Any] = field(default_factory=dict)
    gpu_void: str | None = None  # why the profiled cycles do not count
    choices: list[dict[str, Any]] | None = None
    after: str | None = None
    problem: str | None = None  # of the timed step, found after timing

    def samples_s(self) -> list[float]:
        """Return the seconds of a step in each timed cycle."""
        return [sample for visit in self.visits for sample in visit["samples_s"]]


def new_round(number: int, process: Process) -> Round:
    """Return the record of a process in a generation."""
    events = [event for visit in process.visits for event in visit["event_s"] or []]
    others = [visit[neighbours.KEY] for visit in process.visits if visit.get(neighbours.KEY) is not None]
    seen = process.finished | {
        "lead_in_cycles": 0,  # each visit begins with what loaders may hold
        "settled": None,
        "samples_s": process.samples_s(),
        "event_s": events or None,
        neighbours.KEY: estimates.median(others),
        "visit_s": process.visit_s,
    }
    made = record.new_round(number, process.spent, seen)
    made |= {"device_used_bytes": process.device_bytes, "passes": process.passes}
    waits = [seconds for seconds in process.still_s if seconds is not None]
    made["still_s"] = max(waits) if len(waits) == len(process.still_s) and waits else None
    if process.profiled:
        made["profiled"] = process.profiled["cycles"]
        made["gpu_void"] = process.gpu_void
    if process.after:
        made["after"] = process.after
    states = [visit["gpu"] for visit in process.visits if visit.get("gpu")]
    if states:
        made |= {
            "gpu": gpu_state.join_summaries(states),
            "canary_s": seen.get("canary_s"),
            "rejected": process.rejected,
        }
    return record.read_round(made)
