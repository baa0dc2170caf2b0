"""What a file of `ladder kernels` holds of each case, and the verdicts that follow from it.

Words and statistics of verdicts are those of a ladder (`ladder.stats.answers`). Each row is a quantity of its own: its
contenders take the place of rungs, and its repeats that of generations. All repeats share one process, so an error
covers repeats alone. Holm's correction is over all comparisons of a run. Verdicts are about the cold L2.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ladder.core import records as r
from ladder.core.options import Seed, declare_option
from ladder.core.records import Record, size_between
from ladder.core.text import NO_TIME
from ladder.stats import answers, estimates
from ladder.studies import frame
from ladder.studies.frame import StudyFile

ALTERNATIVES = ("plain", "compile")
CONTENDERS = {"ours": "ours", "plain": "plain PyTorch", "compile": "torch.compile"}
KIND = "contender"  # all contenders of a row are of one kind
ONLY_OURS, NOT_MEASURED = "nothing to compare with", "not measured"
# Functions whose share of a copy is no aim: arithmetic counts in the first four, and the others are there to compare.
NO_AIM = (
    "conv2d", "conv_transpose2d", "cuda.divergent", "cuda.predicated",
    "cuda.strided_act", "cuda.coalesced_act", "cuda.shared_sum", "cuda.shuffle_sum",
    "cuda.scalar_copy", "cuda.vector_copy",
)  # fmt: skip
Direction = Literal["forward", "backward", "double backward"]
Contender = Literal["ours", "twin", "plain", "compile", "copy", "nvidia"]

WORKLOADS = "Use the shapes of this workload; may be repeated. [default: article, article-b32, adain-256]"
QUICK = "Fewer shapes and repeats. The result is marked as not to be quoted."
MINUTES = (
    "Approximate duration. Repeats are fitted to it; if it is short, the least important shapes are left out."
)
NVIDIA = "Time the host also with the ops of this clone of NVIDIA's stylegan3 repository."
FIRST = (
    "Cases to measure first: bias_act, modulate and upfirdn2d at 128x128 and 256x256, batch 8 and 32; or the cases"
    " with the most work."
)
# fmt: off


class Options(frame.Options):
    """The options of `ladder kernels`. `minutes` are of the last sitting."""

    op: Annotated[
        list[str], size_between(64), declare_option("Only this op; may be repeated. [default: all]", metavar="OP"),
    ] = []
    workload: Annotated[list[str], declare_option(WORKLOADS, flags=["-w"], metavar="NAME|FILE")] | None = None
    quick: Annotated[bool, declare_option(QUICK)] = False
    host: Annotated[bool, declare_option("Time only what the CPU needs to issue a call.")] = False
    nvidia: Annotated[str | None, declare_option(NVIDIA, metavar="CLONE")] = None
    minutes: Annotated[float, Meta(gt=0, le=1e6), declare_option(MINUTES)] = 4.0
    first: Annotated[Literal["memory-bound", "largest"], declare_option(FIRST)] = "memory-bound"
    seed: Annotated[Seed, declare_option("Seed for the inputs.")] = 0


# fmt: on


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
    """Microseconds of one call by contender, a value for each repeat: with a cold and a hot L2, and of the CPU."""

    cold: ByContender = {}
    hot: ByContender = {}
    host: ByContender = {}


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
    interval: tuple[float, float] | None


class Against(Record):
    """Ours against an alternative: how many times as fast, whether that is noise, and the X of "less than X"."""

    verdict: str
    times_faster: float
    interval: tuple[float, float] | None
    confidence: float | None
    below: r.LogRatio | None


class Row(Measured, kw_only=True):
    """A measured direction of a case, with the numbers that follow from the samples of the whole run.

    `us` are the medians of cold and hot samples, `share` the time of a copy by that of a contender.
    """

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
    us: dict[str, dict[str, Summary]]
    share: dict[str, Summary]
    floor: float | None
    against: dict[str, Against]
    verdict: str

    @property
    def is_reached(self) -> bool:
        """Return whether the time sufficed for it."""
        return self.reasons.get("ours") != NO_TIME

    @property
    def quickest(self) -> list[str]:
        """Return the alternatives that ours was compared with, the quickest first."""
        return sorted(self.against, key=lambda name: self.us["cold"][name].median)


def derive_rows(file: File) -> list[Row]:
    """Return a row for each direction of the cases that were observed; one without a number says why."""
    measured: list[tuple[str, Measured]] = []
    for key in [key for key in file.cases if key in file.observed]:
        observed = file.observed[key]
        reasons: Any = dict.fromkeys(CONTENDERS, observed.reason or NOT_MEASURED)
        missing = [Measured(direction=each, reasons=reasons) for each in file.cases[key].directions]
        measured += [(key, row) for row in observed.rows or missing]
    quantities = []  # the copy is no contender
    for _, row in measured:
        cold: Any = row.samples_us.cold
        names = [name for name in ("ours", "twin", *ALTERNATIVES) if name in cold]
        logs = {name: dict(enumerate(map(math.log, cold[name]))) for name in names}
        kinds = dict.fromkeys(names, KIND)
        quantities.append(answers.make_quantity(logs, kinds, [("ours", "twin")], is_gpu=True))
    pairs = [[(name, "ours") for name in ALTERNATIVES if of.paired(name, "ours")] for of in quantities]
    count = sum(map(len, pairs))
    questions = [of.questions(each, count) for of, each in zip(quantities, pairs, strict=True)]
    answered = iter(answers.answer_questions([question for each in questions for question in each]))
    began = [each["started"] for each in list_sittings(file)]
    rows = []
    for (key, row), of, of_row in zip(measured, quantities, pairs, strict=True):
        case, sitting = file.cases[key], file.observed[key].sitting
        cold, against = row.samples_us.cold, {}
        for (name, _), answer in zip(of_row, answered, strict=False):
            factor = math.exp(statistics.fmean(of.paired(name, "ours").values()))
            interval = answer.interval and (math.exp(answer.interval[0]), math.exp(answer.interval[1]))
            against[name] = Against(answer.verdict, factor, interval, answer.confidence, answer.below)
        names = [name for name in CONTENDERS if name in cold and "copy" in cold]
        share = {
            name: summarize([a / b for a, b in zip(cold["copy"], cold[name], strict=False)]) for name in names
        }
        stored = {name: getattr(row, name) for name in Measured.__struct_fields__}
        stored |= {name: getattr(case, name) for name in Case.__struct_fields__ if name != "directions"}
        noise = of.floors(count).get(KIND)
        derived = Row(
            **stored, case=key, against=against, share=share, floor=noise.floor if noise else None, verdict="",
            us={each: summarize_all(getattr(row.samples_us, each)) for each in Samples.__struct_fields__},
            sitting=began.index(sitting.started) if sitting else 0,
        )  # fmt: skip
        rows.append(msgspec.structs.replace(derived, verdict=judge_row(derived)))
    return rows


def judge_row(row: Row) -> str:
    """Return `ours faster`, `plain faster`, `compile faster`, or else the protocol's word.

    Ours must be faster than every alternative. An alternative must be faster than ours, and the quickest is named.
    """
    against = row.against
    if not against:
        return ONLY_OURS if "ours" in row.us["cold"] else NOT_MEASURED
    for name in row.quickest:
        if against[name].verdict == answers.SLOWER:
            return f"{name} faster"
    if all(each.verdict == answers.FASTER for each in against.values()):
        return "ours faster"
    return answers.LESS if against[row.quickest[0]].verdict == answers.LESS else answers.AMBIGUOUS


def summarize(values: Sequence[float]) -> Summary:
    """Return median and 95% interval over repeats."""
    return Summary(estimates.median(values), estimates.log_interval(values))  # type: ignore[arg-type]


def summarize_all(samples: Mapping[Any, Sequence[float]]) -> dict[str, Summary]:
    """Return medians of `Samples`, without the twin."""
    return {name: summarize(values) for name, values in samples.items() if name != "twin"}


def list_sittings(file: File) -> list[Any]:
    """Return the sittings in order: when each began, how long it took, and how many cases it measured."""
    sittings: dict[str, list[Observed]] = {}
    for observed in file.observed.values():
        if observed.sitting is not None:
            sittings.setdefault(observed.sitting.started, []).append(observed)
    return [
        {
            "started": started, "minutes": each[-1].sitting.minutes,
            "seconds": max(one.sitting.seconds for one in each),
            "cases": sum(one.status != "skipped" for one in each),
        }
        for started, each in sorted(sittings.items())
    ]  # fmt: skip


def describe_lack(rows: Sequence[Row]) -> str:
    """Return how many cases an unfinished run never reached, as text; empty for a finished run."""
    cases, missing = {row.case for row in rows}, {row.case for row in rows if not row.is_reached}
    return f"{len(missing)} of {len(cases)} cases not measured: {NO_TIME}" if missing else ""
