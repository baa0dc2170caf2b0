"""A program of a generation, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ladder.core.plain import Plain
from ladder.engine.gpu_time import PROFILED
from ladder.engine.pool import WorkerFailure
from ladder.results.file import KernelProfile, Round


@dataclass(frozen=True)
class Program:
    """A worker's task: a recipe, by the packages in the folder `code` (None: this checkout's).

    `main`: also time a cycle without lazy phases. `lazy`: also tell what each lazy phase costs.
    `prove`: compare the timed step with the reference afterwards.
    `profiled`: cycles to profile after the last timed one; with `kinds` each from a few steps.
    `variant`: the study and the name of an entry of a study.
    """

    name: str
    rung: str
    side: str
    workload: Plain
    recipe: Plain
    code: Path | None
    main: bool = False
    lazy: bool = False
    prove: bool = False
    profiled: int = PROFILED
    kinds: bool = False
    variant: tuple[str, str] | None = None


@dataclass(frozen=True)
class Visited:
    """The outcome of a program in a generation: "ok" and its record, or a failure's status and reason."""

    program: Program
    status: str
    reason: str | None
    round: Round | None = None
    recipe: Plain | None = None
    settings: Plain | None = None
    choices: list[Plain] | None = None
    profile: KernelProfile | None = None
    failure: WorkerFailure | None = None
