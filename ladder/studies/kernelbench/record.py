"""What a file of `ladder kernels` holds of each case, and the verdicts that follow from it.

Words and statistics of verdicts are those of a ladder (`ladder.stats.answers`). Each row is a quantity of its own: its
contenders take the place of rungs, and its repeats that of generations. All repeats share one process, so an error
covers repeats alone. Holm's correction is over all comparisons of a run. Verdicts are about the cold L2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from ladder.core import records as r
from ladder.core.options import Seed, declare_option
from ladder.core.records import Record, size_between
from ladder.core.text import NO_TIME
from ladder.stats import answers, estimates
from ladder.stats.answers import Answer, Quantity
from ladder.studies import frame
from ladder.studies.frame import StudyFile

OURS, TWIN, COPY = "ours", "twin", "copy"
ALTERNATIVES = ("plain", "compile")
CONTENDERS = {"ours": "ours", "plain": "plain PyTorch", "compile": "torch.compile"}
ONLY_OURS, NOT_MEASURED = "nothing to compare with", "not measured"
# Functions whose share of a copy is no aim: arithmetic counts in the first four, and the others are there to compare.
NO_AIM = (
    "conv2d", "conv_transpose2d", "cuda.divergent", "cuda.predicated",
    "cuda.strided_act", "cuda.coalesced_act", "cuda.shared_sum", "cuda.shuffle_sum",
    "cuda.scalar_copy", "cuda.vector_copy",
)  # fmt: skip
Direction = Literal["forward", "backward", "double backward"]
Contender = Literal["ours", "twin", "plain", "compile", "copy"]
Interval = Annotated[list[float], size_between(2, 2)]


# --- what a file holds ------------------------------------------------------------------------------------------------


Ops = Annotated[
    list[str], size_between(64), declare_option("Only this op; may be repeated. [default: all]", metavar="OP")
]
WORKLOADS = "Use the shapes of this workload; may be repeated. [default: article, article-b32, adain-256]"
Workloads = Annotated[list[str], declare_option(WORKLOADS, flags=["-w"], metavar="NAME|FILE")]
QUICK = "Fewer shapes and repeats. The result is marked as not to be quoted."
MINUTES = (
    "Approximate duration. Repeats are fitted to it; if it is short, the least important shapes are left out."
)
FIRST = """Cases to measure first: bias_act, modulate and upfirdn2d at 128x128 and 256x256, batch 8 and 32; or the cases
with the most work."""


class Options(frame.Options):
    """The options of `ladder kernels`. `minutes` are of the last sitting."""

    op: Ops = []
    workload: Workloads | None = None
    quick: Annotated[bool, declare_option(QUICK)] = False
    minutes: Annotated[float, Meta(gt=0, le=1e6), declare_option(MINUTES)] = 4.0
    first: Annotated[Literal["memory-bound", "largest"], declare_option(" ".join(FIRST.split()))] = (
        "memory-bound"
    )
    seed: Annotated[Seed, declare_option("Seed for the inputs.")] = 0


class Case(frame.Case):
    """An op at one size in one setting, and the workloads that call it so. Setting 0 is the ladder's top."""

    op: r.Text
    function: r.Identifier
    shape: Annotated[list[r.Count], size_between(8, 1)]
    batch: r.Count
    dtype: Literal["bf16", "fp32"]
    layout: Literal["channels_last", "NCHW"]
    setting: r.Count
    workloads: Annotated[list[r.Name], size_between(32)]
    directions: Annotated[list[Direction], size_between(3, 1)]


ByContender = Annotated[dict[Contender, Annotated[list[r.Microseconds], size_between(1000)]], size_between(8)]
Captured = Annotated[
    dict[Annotated[str, r.text_matching(r"(cold|hot) [a-z]+", "a contender")], r.Count], size_between(16)
]


class Samples(Record):
    """Microseconds of one call by contender, a value for each repeat, with a cold and with a hot L2."""

    cold: ByContender = {}
    hot: ByContender = {}


class Launch(Record):
    """A Triton kernel that a call launches, with the numbers that were compiled in."""

    kernel: r.Identifier
    grid: Annotated[list[r.Count], size_between(3)]
    choices: r.Line | None = None


class Dispatch(Record):
    """A call's key in `kernels.alternatives`. An empty variant is written as "-"."""

    op: r.Identifier
    variant: Annotated[str, r.text_matching(r"-|[a-z0-9 ]{0,60}", "words that distinguish a call")]
    architecture: r.Count
    dtype: Literal["bfloat16", "float16", "float32", "float64"]
    layout: Literal["nhwc", "nchw", "rows", "other"]
    size: Annotated[int, Meta(ge=0, le=64)]


class Measured(Record, kw_only=True):
    """One direction of a case. `reasons` are why a contender has no number."""

    direction: Direction
    bytes: r.Bytes | None = None
    method: Literal["graph", "events"] | None = None
    captured: Captured = {}
    notes: r.Notes = []
    samples_us: Samples = msgspec.field(default_factory=Samples)
    reasons: Annotated[dict[Contender, r.Text], size_between(8)] = {}
    launches: Annotated[list[Launch], size_between(200)] = []
    dispatch: Dispatch | None = None
    taken: Literal["plain"] | None = None


class Sitting(Record):
    """The sitting that a case was measured in: when it began, its limit, and how long it had lasted then."""

    started: r.Started
    minutes: r.Amount
    seconds: r.Seconds


class Observed(frame.Observation, kw_only=True):
    """What was measured of a case, all of it in one sitting. "skipped": the time was used up."""

    rows: Annotated[list[Measured], size_between(3)] = []
    sitting: Sitting | None = None


File = StudyFile[Options, Case, Observed]


# --- what follows from it ---------------------------------------------------------------------------------------------


class Summary(Record):
    """A median, and its 95% interval where repeats give one."""

    median: float
    interval: Interval | None


class Times(Record):
    """Medians of `Samples`, without the twin."""

    cold: dict[str, Summary]
    hot: dict[str, Summary]


class Against(Record):
    """Ours against one alternative: how many times as fast it is, and whether the difference is no noise.

    `below` is the far end of the interval of "less than", a log ratio.
    """

    verdict: str
    times_faster: float
    interval: Interval | None
    confidence: float | None
    below: r.LogRatio | None


class Row(Measured, kw_only=True):
    """A measured case in one direction, with the numbers that follow from the samples of the whole run."""

    case: str
    op: str
    function: str
    shape: list[int]
    batch: int
    dtype: str
    layout: str
    setting: int
    workloads: list[str]
    sitting: int
    us: Times
    share: dict[str, Summary]
    floor: float | None
    against: dict[str, Against]
    verdict: str


class Sat(Record):
    """One sitting of a run: when it began, how long it took, and how many cases it measured."""

    started: str
    seconds: float
    minutes: float
    cases: int


class Protocol(Record, kw_only=True):
    """The request that a run answers, and how it measured."""

    quick: bool
    smoke: bool
    seed: int
    workloads: list[str]
    ops: list[str]
    notes: list[str]
    minutes: float
    first: str
    l2_bytes: Any
    evict: Any
    graph_ms: Any
    compile: Any


class Kernels(Record):
    """What `ladder report --json` prints beside the header."""

    protocol: Protocol
    sittings: list[Sat]
    rows: list[Row]


def derive_rows(file: File) -> list[Row]:
    """Return a row for each direction of the cases that were observed; one without a number says why."""
    measured: list[tuple[str, Observed, Measured]] = []
    for key in [key for key in file.cases if key in file.observed]:
        observed = file.observed[key]
        reasons: Any = dict.fromkeys(CONTENDERS, observed.reason or NOT_MEASURED)
        missing = [Measured(direction=each, reasons=reasons) for each in file.cases[key].directions]
        measured += [(key, observed, row) for row in observed.rows or missing]
    quantities = [make_quantity(row.samples_us.cold) for _, _, row in measured]
    pairs = [[(name, OURS) for name in ALTERNATIVES if of.paired(name, OURS)] for of in quantities]
    count = sum(map(len, pairs))
    questions = [of.questions(each, count) for of, each in zip(quantities, pairs, strict=True)]
    answered = iter(answers.answer_questions([question for each in questions for question in each]))
    began = [each.started for each in list_sittings(file)]
    rows = []
    for (key, observed, row), of, of_row in zip(measured, quantities, pairs, strict=True):
        case, cold = file.cases[key], row.samples_us.cold
        against = {name: derive_against(of, name, next(answered)) for name, _ in of_row}
        noise = of.floors(count).get(KIND)
        names: Any = [name for name in (OURS, *ALTERNATIVES) if name in cold and COPY in cold]
        us = Times(summarize_all(cold), summarize_all(row.samples_us.hot))
        stored = {name: getattr(row, name) for name in Measured.__struct_fields__}
        stored |= {name: getattr(case, name) for name in Case.__struct_fields__ if name != "directions"}
        share = {name: summarize(divide_times(cold["copy"], cold[name])) for name in names}
        rows.append(
            Row(
                **stored, case=key, us=us, against=against, verdict=judge_row(us.cold, against), share=share,
                floor=noise.floor if noise else None,
                sitting=began.index(observed.sitting.started) if observed.sitting else 0,
            )
        )  # fmt: skip
    return rows


KIND = "contender"  # all contenders of a row are of one kind


def make_quantity(cold: Mapping[Any, Sequence[float]]) -> Quantity:
    """Return the times of a row by contender and repeat. The copy is no contender."""
    logs = {
        name: dict(enumerate(map(math.log, cold[name])))
        for name in (OURS, TWIN, *ALTERNATIVES)
        if name in cold
    }
    return answers.make_quantity(logs, dict.fromkeys(logs, KIND), [(OURS, TWIN)], is_gpu=True)


def derive_against(of: Quantity, name: str, answer: Answer) -> Against:
    factor = float(np.exp(np.mean(list(of.paired(name, OURS).values()))))
    interval = answer.interval and [float(np.exp(bound)) for bound in answer.interval]
    return Against(answer.verdict, factor, interval, answer.confidence, answer.below)


def judge_row(us: Mapping[str, Summary], against: Mapping[str, Against]) -> str:
    """Return `ours faster`, `plain faster`, `compile faster`, or else the protocol's word.

    Ours must be faster than every alternative. An alternative must be faster than ours, and the quickest is named.
    """
    if not against:
        return ONLY_OURS if OURS in us else NOT_MEASURED
    quickest = list_by_time(us, against)
    for name in quickest:
        if against[name].verdict == answers.SLOWER:
            return f"{name} faster"
    if all(each.verdict == answers.FASTER for each in against.values()):
        return "ours faster"
    return answers.LESS if against[quickest[0]].verdict == answers.LESS else answers.AMBIGUOUS


def list_by_time(us: Mapping[str, Summary], against: Mapping[str, Against]) -> list[str]:
    """Return the alternatives of a row, the quickest first."""
    return sorted((name for name in against if name in us), key=lambda name: us[name].median)


def summarize(values: Sequence[float]) -> Summary:
    """Return median and 95% interval over repeats."""
    interval = estimates.log_interval(values)
    return Summary(estimates.median(values), interval and list(interval))  # type: ignore[arg-type]


def summarize_all(samples: Mapping[Any, Sequence[float]]) -> dict[str, Summary]:
    return {name: summarize(values) for name, values in samples.items() if name != TWIN}


def divide_times(reference: Sequence[float], other: Sequence[float]) -> list[float]:
    logs = estimates.log_ratios(dict(enumerate(reference)), dict(enumerate(other)))
    return [float(np.exp(value)) for value in logs]


def list_sittings(file: File) -> list[Sat]:
    """Return the sittings in order, each with the cases that it measured."""
    sittings: dict[str, Sat] = {}
    for observed in file.observed.values():
        if (now := observed.sitting) is not None:
            before = sittings.get(now.started, Sat(now.started, 0.0, now.minutes, 0))
            cases = before.cases + (observed.status != "skipped")
            sittings[now.started] = Sat(now.started, max(before.seconds, now.seconds), now.minutes, cases)
    return [sittings[started] for started in sorted(sittings)]


def list_reached(kernels: Kernels) -> list[Row]:
    """Return the rows that were measured. An unfinished run shows these, and how many it lacks."""
    return [row for row in kernels.rows if row.reasons.get("ours") != NO_TIME]


def describe_lack(kernels: Kernels) -> str:
    """Return how many cases an unfinished run never reached, as text; empty for a finished run."""
    cases = {row.case for row in kernels.rows}
    missing = cases - {row.case for row in list_reached(kernels)}
    return f"{len(missing)} of {len(cases)} cases not measured: {NO_TIME}" if missing else ""
