"""The records of a comparison of two commits: what its file holds, and what is derived from it.

A file holds observations alone. Verdicts, ratios and accepted slowdowns follow from the rounds
(`ladder.publish.regressions.judging`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from ladder.base.errors import UserError
from ladder.base.rules import Rule
from ladder.core import records as r
from ladder.core.records import Record, between, read_record, size, write_record
from ladder.machine import environment
from ladder.results import identity, plausible, run, values
from ladder.results.file import Images, KernelProfile, Machine, Round, Status, Variable
from ladder.results.run import RunGpu

KIND = "compare"
BASE, HEAD, TWIN = "base", "head", "twin"
SIDES = (BASE, HEAD, TWIN)
PARTS, ENGINE = ("kernels", "stylegan_lite"), ("rungs", "engine")  # of the measured code
MOST_RUNGS, MOST_ROUNDS = 32, 100
Digests = Annotated[dict[r.Identifier, r.CodeDigest], size(2, 2)]


class Commit(Record):
    """A commit that was measured, with the user's name for it."""

    commit: r.Commit
    name: r.Text
    measured_code: Digests


class Harness(Record, kw_only=True):
    """The commit that measured both."""

    commit: r.Commit | None = None
    dirty: bool | None = None
    measured_code: Digests


class Protocol(Record, kw_only=True):
    """How a comparison is measured. `rounds` are those that all programs have had."""

    fixed: bool
    budget_s: r.Seconds | None = None
    rounds: r.Count
    cycles: Annotated[int, between(1, 100_000)]
    cycle_steps: Literal[16]
    seed: Annotated[int, between(0, 2**32)]


class Choice(run.Choice, kw_only=True):
    """A row of the commit's own `kernels.choices.used`, or of an op's own table."""

    rungs: None = None  # type: ignore[assignment]  # of the program that has it


class Program(Record, kw_only=True):
    """The visits of a rung on one side; `profile` is that of the first that was profiled."""

    rung: r.Name
    side: Literal["base", "head", "twin"]
    status: Status
    reason: r.Text | None = None
    recipe: r.Fields | None = None
    settings: r.Fields | None = None
    choices: Annotated[list[Choice], size(100)] | None = None
    rounds: Annotated[list[Round], size(MOST_ROUNDS)]
    profile: KernelProfile | None = None


class Rung(Record):
    """A rung that is to be compared; `skipped` says why it cannot run here."""

    name: r.Name
    title: r.Text
    skipped: r.Text | None = None


class Compared(Record, kw_only=True):
    """A comparison of two commits, as its file has it."""

    schema: Literal[2]
    kind: Literal["compare"]
    machine: Machine
    workload: r.Fields
    environment: Annotated[dict[Variable, r.Text], size(64)] | None = None
    images: Images | None = None
    base: Commit
    head: Commit
    harness: Harness
    protocol: Protocol
    complete: bool
    started: r.Started
    seconds: r.Seconds
    rungs: Annotated[list[Rung], size(MOST_RUNGS, 1)]
    programs: Annotated[list[Program], size(3 * MOST_RUNGS)]
    gpu: RunGpu | None = None


# --- derived ----------------------------------------------------------------------------------------------------------


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
    skipped: str | None = None
    known: str | None = None  # in words: who accepted the slowdown, and until when
    gpu: Answered | None = None


class Judged(Compared, kw_only=True):
    """A comparison with its verdicts."""

    rungs: list[JudgedRung]  # type: ignore[assignment]
    notes: list[str]


# --- a file of a stranger ---------------------------------------------------------------------------------------------


def read_compared(data: Any) -> Compared:
    """Return the comparison of plain data. Raises UserError with the problem in one line."""
    result = read_record(Compared, data)
    if problem := find_problem(result):
        raise UserError(problem)
    return result


def find_refused(checks: Iterable[tuple[str, Rule, Any]]) -> str | None:
    """Return the first of these (place, rule, value) that its rule refuses, in one line, or None."""
    for place, rule, value in checks:
        if problem := rule(value):
            return f"{place}{problem[0]}: {problem[1]}"
    return None


def find_problem(result: Compared) -> str | None:
    """Return what no genuine comparison holds, in one line, or None."""
    checks: list[tuple[str, Rule, Any]] = [("workload", values.WORKLOAD, result.workload)]
    for index, program in enumerate(result.programs):
        checks += [(f"programs[{index}].recipe", values.RECIPE, program.recipe or {})]
        checks += [(f"programs[{index}].settings", values.SETTINGS, program.settings or {})]
    if problem := find_refused(checks) or identity.misnamed(result.workload):
        return problem
    names = [rung.name for rung in result.rungs]
    if len(set(names)) < len(names):
        return "rungs: one is there twice"
    expected = {(rung.name, side) for rung in result.rungs if not rung.skipped for side in SIDES}
    sides = [(each.rung, each.side) for each in result.programs]
    if len(sides) != len(expected) or set(sides) != expected:
        return "programs: not BASE, HEAD and BASE again of each rung"
    least = plausible.floor_ms(write_record(result.machine), result.workload)
    for each in result.programs:
        if problem := _find_contradiction(each, least):
            return f"{each.rung}, {each.side}: {problem}"
    return None


def _find_contradiction(program: Program, least: tuple[float, float] | None) -> str | None:
    numbers = [each.round for each in program.rounds]
    if len(set(numbers)) < len(numbers):
        return "a round is there twice"
    if any(not each.samples_ms for each in program.rounds):
        return "a round without samples"
    if program.status == "ok" and not numbers:
        return "status ok without a round"
    if (program.status == "ok") != (program.reason is None) and program.status != "n/a":
        return "a status that its reason contradicts"
    return plausible.program_too_fast(write_record(program), least)


def list_notes(result: Compared) -> list[str]:
    """Return what a reader must know of the commits and of the variables that were set."""
    same = "whatever differs is noise"
    notes = environment.describe_variables(result.environment)
    if result.base.commit == result.head.commit:
        return [f"BASE and HEAD are one commit: {same}", *notes]
    if result.base.measured_code == result.head.measured_code:
        return [f"kernels and stylegan_lite are the same in both commits: {same}", *notes]
    return notes
