"""The types of a comparison of two commits, which are also its schema; a file is read as if from a stranger.

Derived values (verdicts, ratios, accepted slowdowns) are never taken from the file. They are judged anew from the
rounds (`ladder.publish.regressions.judging`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ladder.base.records import Absent, build, needed, optional, plain, record, rule_of
from ladder.base.rules import Rule, either, fields, items, maybe, number, one_of
from ladder.results import identity, plausible, types, values
from ladder.results import record as records
from ladder.results import schema as rules
from ladder.results import store as results
from ladder.results.file import KernelProfile
from ladder.results.types import Plain, Round, RunGpu
from stylegan_lite.config import Workload

KIND, SCHEMA = "compare", 1
BASE, HEAD, TWIN = "base", "head", "twin"
SIDES = (BASE, HEAD, TWIN)
PARTS, ENGINE = ("kernels", "stylegan_lite"), ("rungs", "engine")  # of the measured code
MOST_RUNGS, MOST_ROUNDS = 32, 100
_NUMBER = number(-1e30, 1e30)
_INTERVAL = items(_NUMBER, 2, least=2)


def _digests(parts: tuple[str, ...]) -> Rule:
    return fields(dict.fromkeys(parts, values.CODE_DIGEST))


@record
class Commit:
    """A commit that was measured, with the user's name for it."""

    commit: str = needed(values.A_COMMIT)
    name: str = needed(values.TEXT)
    measured_code: dict[str, str] = needed(_digests(PARTS))


@record
class Harness:
    """The commit that measured both."""

    commit: str | None = needed(values.A_COMMIT)
    dirty: bool | None = needed(values.FLAG)
    measured_code: dict[str, str] = needed(_digests(ENGINE))


@record
class Protocol:
    """How a comparison is measured."""

    fixed: bool = needed(values.FLAG)
    budget_s: float | None = needed(values.SECONDS)
    rounds: int = needed(values.COUNT)
    cycles: int = needed(number(1, 100_000, whole=True))
    cycle_steps: int = needed(number(records.CYCLE_STEPS, records.CYCLE_STEPS, whole=True))
    seed: int = needed(number(0, 2**32, whole=True))
    settle_s: float | Absent = optional(values.SECONDS)  # of older files
    settle_cycles: int | Absent = optional(values.COUNT)


@record
class Answered:
    """The difference of two commits in one quantity, derived from the rounds of a rung's programs.

    `below` is the far end of the interval, a log ratio, where the verdict is "less than".
    """

    base_ms: float | None = needed(_NUMBER)
    head_ms: float | None = needed(_NUMBER)
    rounds: int = needed(values.COUNT)
    verdict: str | None = needed(values.TEXT)
    ratio: float | None = needed(_NUMBER)
    interval: list[float] | None = needed(_INTERVAL)
    confidence: float | None = needed(_NUMBER)
    floor: float | None = needed(_NUMBER)
    least: float | None = needed(_NUMBER)
    resolution: float | None = needed(_NUMBER)
    reason: str | None = needed(values.TEXT)
    below: float | None = needed(_NUMBER)


@record
class Rung(Answered):
    """A rung of a comparison, with its wall time and its GPU time."""

    name: str = needed(values.PART)
    title: str = needed(values.TEXT)
    skipped: str | None = needed(values.TEXT)
    known: str | None = needed(values.TEXT)  # in words: who accepted the slowdown, and until when
    gpu: Answered | None = needed(rule_of(Answered))  # null on a CPU


ASKED = {"name": values.PART, "title": values.TEXT, "skipped": maybe(values.TEXT)}  # the rest is derived
DERIVED = {
    **dict.fromkeys(("ratio", "confidence", "floor", "least", "resolution", "below"), maybe(_NUMBER)),
    **dict.fromkeys(("base_ms", "head_ms"), maybe(_NUMBER)),
    **dict.fromkeys(("verdict", "known", "reason"), maybe(values.TEXT)),
    "interval": maybe(_INTERVAL),
    "rounds": values.COUNT,
    "gpu": maybe(rule_of(Answered)),
}
_CHOICE = fields(
    dict.fromkeys(("op", "direction"), values.IDENTIFIER)
    | dict.fromkeys(("tile", "columns", "warps", "per_sm", "stages"), values.COUNT),
    {
        "itemsize": values.COUNT,
        "layout": one_of("nhwc", "nchw"),
        "architecture": values.COUNT,
        "size": one_of("small", "medium", "large"),
    },
)
_NOTED = fields({"op": values.IDENTIFIER, "case": values.TEXT, "entry": values.TEXT})  # of an op's own table


@record
class Program:
    """The visits of a rung on one side. A choice is a row of the commit's own `kernels.choices.used`."""

    rung: str = needed(values.PART)
    side: str = needed(one_of(*SIDES))
    status: str = needed(one_of(*results.STATUSES))
    reason: str | None = needed(values.TEXT)
    recipe: Plain | None = needed(values.RECIPE)
    settings: Plain | None = needed(values.SETTINGS)
    choices: list[dict[str, int | str]] | None = needed(items(either(_NOTED, _CHOICE), 100))
    rounds: list[Round] = needed(items(rules.ROUND, MOST_ROUNDS))
    profile: KernelProfile | Absent | None = optional(
        rule_of(KernelProfile)
    )  # of the first that was profiled


@record
class Compared:
    """A comparison of two commits."""

    schema: int = needed(number(SCHEMA, SCHEMA, whole=True))
    kind: str = needed(one_of(KIND))
    machine: types.Machine = needed(rules.MACHINE)
    workload: Plain = needed(
        fields(
            {"name": values.PART, "data": one_of(None, "sample-photographs")},
            {f.name: values.SCALAR for f in dataclasses.fields(Workload) if f.name != "data"},
        )
    )
    environment: dict[str, str] | Absent = optional(values.ENVIRONMENT)
    images: types.Images | Absent = optional(rule_of(types.Images))
    base: Commit = needed(rule_of(Commit))
    head: Commit = needed(rule_of(Commit))
    harness: Harness = needed(rule_of(Harness))
    protocol: Protocol = needed(rule_of(Protocol))
    complete: bool = needed(values.FLAG)
    started: str = needed(values.STARTED)
    seconds: float = needed(values.SECONDS)
    rungs: list[Rung] = needed(items(fields(ASKED, DERIVED), MOST_RUNGS, least=1))
    programs: list[Program] = needed(items(rule_of(Program), 3 * MOST_RUNGS))
    gpu: RunGpu | None = needed(rule_of(RunGpu))
    notes: list[str] = needed(values.NOTES)


RULE = rule_of(Compared)


def new_answer() -> Answered:
    """Return an answer of which nothing is derived yet."""
    names = [field.name for field in dataclasses.fields(Answered)]
    return build(Answered, dict.fromkeys(names) | {"rounds": 0})


def new_rung(name: str, title: str, skipped: str | None) -> Rung:
    """Return a rung of which nothing is derived yet."""
    nothing = dict.fromkeys(DERIVED)
    return build(Rung, nothing | {"name": name, "title": title, "skipped": skipped, "rounds": 0})


def of_data(data: Plain) -> Compared:
    """Return the comparison of data that the rules accept, without the derived values."""
    rungs = [plain(new_rung(*(each[key] for key in ASKED))) for each in data["rungs"]]
    return build(Compared, {**data, "rungs": rungs})


def problem_of(data: Any) -> str | None:
    """Return the problem of a comparison in one line, or None."""
    if problem := RULE(data):
        return f"{problem[0].lstrip('.') or 'the file'}: {problem[1]}"
    result = of_data(data)
    if problem := identity.misnamed(result.workload):
        return problem
    names = [rung.name for rung in result.rungs]
    if len(set(names)) < len(names):
        return "rungs: one is there twice"
    expected = {(rung.name, side) for rung in result.rungs if not rung.skipped for side in SIDES}
    seen = [(each.rung, each.side) for each in result.programs]
    if len(seen) != len(expected) or set(seen) != expected:
        return "programs: not BASE, HEAD and BASE again of each rung"
    least = plausible.floor_ms(plain(result.machine), result.workload)
    for each in result.programs:
        if problem := _contradiction(each, least):
            return f"{each.rung}, {each.side}: {problem}"
    return None


def _contradiction(program: Program, least: tuple[float, float] | None) -> str | None:
    numbers = [each.round for each in program.rounds]
    if len(set(numbers)) < len(numbers):
        return "a round is there twice"
    if any(not each.samples_ms for each in program.rounds):
        return "a round without samples"
    if program.status == "ok" and not numbers:
        return "status ok without a round"
    if (program.status == "ok") != (program.reason is None) and program.status != "n/a":
        return "a status that its reason contradicts"
    return plausible.program_too_fast(plain(program), least)
