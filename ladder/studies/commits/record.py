"""The records of a comparison of two commits: what its file holds, and what is derived from it.

A file holds observations alone. Verdicts, ratios and accepted slowdowns follow from the rounds (`judging`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from ladder.core import records as r
from ladder.core.options import declare_option
from ladder.core.records import Record, size_between
from ladder.results import run
from ladder.results.file import KernelProfile, Round, Status
from ladder.results.run import RunGpu
from ladder.studies import frame
from ladder.studies.base import StudyFile

BASE, HEAD, TWIN = "base", "head", "twin"
SIDES = (BASE, HEAD, TWIN)
MOST_RUNGS, CYCLES = 32, 2  # of a comparison, and of each process
GENERATION = "generation "


class Options(frame.Options):
    """The options of `ladder bench-compare`. Those that name commits or files are not stored."""

    # fmt: off
    base: Annotated[str | None, declare_option("The commit to compare with. [default: main]", metavar="COMMIT")] = None
    head: Annotated[str | None, declare_option(
        "The commit that may be slower. [default: HEAD]", metavar="COMMIT")] = None
    rungs: Annotated[r.Text | None, declare_option(
        "Rungs to measure. [default: the lowest and the highest that run here]", metavar="A,B,...")] = None
    ladder: frame.Ladder = "full"
    rounds: Annotated[Annotated[int, Meta(ge=3, le=100)] | None, declare_option(
        "Exact number of generations. [default: 3 to 12, as the budget allows]", flags=["--generations"])] = None
    seed: frame.Seed = 0
    report: Annotated[Path | None, declare_option("Measure nothing; judge this file again.", metavar="FILE")] = None
    markdown: Annotated[Path | None, declare_option(
        "Write the table to this file, for a pull request.", metavar="FILE")] = None
    # fmt: on


class Commit(Record):
    """A commit that is measured, the user's name for it, and the beginnings of git's hashes of its packages."""

    commit: r.Commit
    name: r.Text
    measured_code: Annotated[dict[r.Identifier, r.Digest], size_between(2)]


class Case(frame.Case):
    """A generation: every rung on three sides, all alive together."""

    base: Commit
    head: Commit
    recipes: Annotated[dict[r.Name, r.Fields], size_between(MOST_RUNGS, 1)]


class Choice(run.Choice, kw_only=True):
    """A row of the commit's own `kernels.choices.used`, or of an op's own table."""

    rungs: None = None  # type: ignore[assignment]  # of the program that has it


class Visit(Record, kw_only=True):
    """The outcome of a program in a generation; what its processes share is in the first."""

    status: Status = "ok"
    reason: r.Text | None = None
    round: Round | None = None
    settings: r.Fields | None = None
    choices: Annotated[list[Choice], size_between(100)] | None = None
    profile: KernelProfile | None = None


class Observed(frame.Observation, kw_only=True):
    """The visits of one generation by program, "fused_act head"."""

    programs: Annotated[dict[r.Line, Visit], size_between(3 * MOST_RUNGS)] = {}
    gpu: RunGpu | None = None

    def list_times(self) -> Iterable[float]:
        return (ms for visit in self.programs.values() if visit.round for ms in visit.round.samples_ms)


File = StudyFile[Options, Case, Observed]


# --- what follows from it ---------------------------------------------------------------------------------------------


class Program(Record, kw_only=True):
    """A rung on one side with its rounds, and why it is out of the run."""

    rung: str
    side: str
    status: Status
    reason: str | None = None
    recipe: r.Fields | None = None
    settings: r.Fields | None = None
    choices: list[Choice] | None = None
    rounds: list[Round]
    profile: KernelProfile | None = None


class Answered(Record, kw_only=True):
    """The difference of two commits in one quantity, derived from the rounds of a rung's programs.

    `below` is the far end of the interval, a log ratio, where the verdict is "less than".
    """

    base_ms: float | None = None
    head_ms: float | None = None
    rounds: int = 0
    verdict: str | None = None
    ratio: float | None = None
    interval: list[float] | None = None
    confidence: float | None = None
    floor: float | None = None
    least: float | None = None
    resolution: float | None = None
    reason: str | None = None
    below: float | None = None


class JudgedRung(Answered, kw_only=True):
    """A rung of a comparison, with its wall time and its GPU time (None on a CPU)."""

    name: str
    title: str
    known: str | None = None  # who accepted the slowdown, and until when
    gpu: Answered | None = None


class Protocol(Record):
    """How a comparison was measured. `fixed`: the number of generations was given."""

    fixed: bool
    rounds: int
    cycles: int
    cycle_steps: int
    seed: int


class Judged(Record, kw_only=True):
    """The verdicts of a comparison."""

    base: Commit
    head: Commit
    protocol: Protocol
    gpu: RunGpu | None = None
    notes: list[str]
    rungs: list[JudgedRung]
    programs: list[Program]
