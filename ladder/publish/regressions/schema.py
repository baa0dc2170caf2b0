"""The records of a comparison of two commits: what its file holds, and what is derived from it.

A file holds observations alone. Verdicts, ratios and accepted slowdowns follow from the rounds (`judging`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from ladder.base import text
from ladder.base.errors import UserError
from ladder.core import records as r
from ladder.core.records import Record, between, read_record, size, write_record
from ladder.results import fields, loading, plausible, run, store
from ladder.results.file import KernelProfile, Machine, Round, Status, Variable
from ladder.results.run import RunGpu

KIND = "compare"
BASE, HEAD, TWIN = "base", "head", "twin"
SIDES = (BASE, HEAD, TWIN)
MOST_RUNGS, MOST_ROUNDS, MOST_BYTES = 32, 100, 2**21
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
    known: str | None = None  # who accepted the slowdown, and until when
    gpu: Answered | None = None


class Judged(Compared, kw_only=True):
    """A comparison with its verdicts."""

    rungs: list[JudgedRung]  # type: ignore[assignment]
    notes: list[str]


def read_compared(path: Path) -> Compared:
    """Return the comparison in a file. Raises UserError with the problem in one line."""
    name = text.display(Path(path).name)
    try:
        data = store.parse(loading.read_bytes(path, MOST_BYTES))
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {loading.why(error)}") from None
    except ValueError as error:
        raise UserError(f"{name}: not a result file: {error}") from None
    result: Compared = read_record(Compared, data, name)
    if problem := find_problem(result):
        raise UserError(f"{name}: {problem}")
    return result


def find_problem(result: Compared) -> str | None:
    """Return what no genuine comparison holds, in one line, or None."""
    if problem := loading.find_header_problem(result):  # type: ignore[arg-type]  # it has these fields, too
        return problem
    names = [rung.name for rung in result.rungs]
    if len(set(names)) < len(names):
        return "rungs: one is there twice"
    expected = [(rung.name, side) for rung in result.rungs if not rung.skipped for side in SIDES]
    if sorted((each.rung, each.side) for each in result.programs) != sorted(expected):
        return "programs: not BASE, HEAD and BASE again of each rung"
    least = plausible.floor_ms(write_record(result.machine), result.workload)
    for index, program in enumerate(result.programs):
        where = f"programs[{index}]"
        problem = fields.find_recipe_problem(program.recipe, f"{where}.recipe")
        if problem := problem or fields.find_settings_problem(program.settings, f"{where}.settings"):
            return problem
        numbers = [each.round for each in program.rounds]
        if len(set(numbers)) < len(numbers):
            return f"{where}.rounds: a round is there twice"
        if not all(each.samples_ms for each in program.rounds):
            return f"{where}.rounds: a round without samples"
        is_right = not program.reason if program.status == "ok" and numbers else bool(program.reason)
        if not is_right and program.status != "n/a":
            return f"{where}.status: {program.status} contradicts its rounds and its reason"
        if too_fast := plausible.program_too_fast(write_record(program), least):
            return f"{where}: {too_fast}"
    return None
