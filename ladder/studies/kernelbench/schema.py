"""The types of a result of `ladder kernels`, which are also its schema; see `ladder.results.types`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ladder.base.records import Absent, build, needed, optional, read, record, rule_of
from ladder.base.rules import Rule, items, mapping, number, one_of, pattern
from ladder.results import loading, values
from ladder.results import store as results
from ladder.results.check import study
from ladder.results.schema import LAYOUT, LINE, SHAPE, VERDICT
from ladder.results.types import Origin
from ladder.results.values import (
    AMOUNT,
    BYTES,
    COUNT,
    FLAG,
    IDENTIFIER,
    MICROSECONDS,
    NOTES,
    PART,
    SECONDS,
    STARTED,
    TEXT,
)

MINUTES = number(0, 1e6)
CONTENDER = one_of("ours", "twin", "plain", "compile", "copy")


@record
class Summary:
    """A median, and its 95% interval where repeats give one."""

    median: float = needed(AMOUNT)
    interval: list[float] | None = needed(values.PAIR)


def by_contender(rule: Rule) -> Rule:
    return mapping(CONTENDER, rule, 8)


@record
class Samples:
    """Microseconds of one call by contender, a value for each repeat, with a cold and with a hot L2."""

    cold: dict[str, list[float]] = needed(by_contender(items(MICROSECONDS, 1000)))
    hot: dict[str, list[float]] = needed(by_contender(items(MICROSECONDS, 1000)))


@record
class Times:
    """Medians of `Samples`, without the twin."""

    cold: dict[str, Summary] = needed(by_contender(rule_of(Summary)))
    hot: dict[str, Summary] = needed(by_contender(rule_of(Summary)))


@record
class Launch:
    """A Triton kernel that a call launches, with the numbers that were compiled in."""

    kernel: str = needed(IDENTIFIER)
    grid: list[int] = needed(items(COUNT, 3))
    choices: str | None = needed(LINE)


@record
class Dispatch:
    """A call's key in `kernels.alternatives`."""

    op: str = needed(IDENTIFIER)
    # An empty text is written as "-".
    variant: str = needed(pattern(r"-|[a-z0-9 ]{0,60}", "words that distinguish a call"))
    architecture: int = needed(COUNT)
    dtype: str = needed(one_of("bfloat16", "float16", "float32", "float64"))
    layout: str = needed(one_of("nhwc", "nchw", "rows", "other"))
    size: int = needed(number(0, 64, whole=True))


@record
class Against:
    """Ours against one alternative: how many times as fast it is, and whether the difference is no noise."""

    verdict: str = needed(VERDICT)
    times_faster: float = needed(AMOUNT)
    interval: list[float] | None = needed(values.PAIR)
    confidence: float | None = needed(number(0, 1))
    # Log ratio, the far end of the interval, for "less than". Files with "no measurable gain" lack it.
    below: float | Absent | None = optional(values.FLOOR)


@record
class Measured:
    """One case in one direction, as it was measured."""

    case: str = needed(TEXT)
    op: str = needed(TEXT)
    function: str = needed(IDENTIFIER)
    shape: list[int] = needed(SHAPE)
    batch: int = needed(COUNT)
    dtype: str = needed(one_of("bf16", "fp32"))
    layout: str = needed(LAYOUT)
    setting: int = needed(COUNT)
    workloads: list[str] = needed(items(PART, 32))
    direction: str = needed(one_of("forward", "backward", "double backward"))
    bytes: int | None = needed(BYTES)
    method: str | None = needed(one_of("graph", "events"))
    captured: dict[str, int] = needed(mapping(pattern(r"(cold|hot) [a-z]+", "a contender"), COUNT, 16))
    notes: list[str] = needed(NOTES)
    samples_us: Samples = needed(rule_of(Samples))
    reasons: dict[str, str] = needed(by_contender(TEXT))
    launches: list[Launch] = needed(items(rule_of(Launch), 200))
    dispatch: Dispatch | Absent | None = optional(rule_of(Dispatch))
    taken: str | Absent | None = optional(one_of("plain"))
    sitting: int | Absent = optional(COUNT)


@record
class Row(Measured):
    """A measured case in one direction, with the numbers that follow from the samples of the whole run."""

    us: Times = needed(rule_of(Times))
    share: dict[str, Summary] = needed(by_contender(rule_of(Summary)))
    floor: float | None = needed(AMOUNT)
    against: dict[str, Against] = needed(by_contender(rule_of(Against)))
    verdict: str = needed(VERDICT)


@record
class Sitting:
    """One sitting of a run: when it began, how long it took, and how many cases it measured."""

    started: str = needed(STARTED)
    seconds: float = needed(SECONDS)
    minutes: float = needed(MINUTES)
    cases: int = needed(COUNT)


@record
class Plan:
    """The request that a run answers."""

    quick: bool = needed(FLAG)
    smoke: bool = needed(FLAG)
    seed: int = needed(COUNT)
    workloads: list[str] = needed(items(PART, 32))
    ops: list[str] = needed(items(TEXT, 64))
    notes: list[str] = needed(NOTES)
    minutes: float = needed(MINUTES)
    first: str | Absent = optional(one_of("memory-bound", "largest"))


@record
class Protocol(Plan):
    """How a run measured."""

    l2_bytes: int = needed(BYTES)
    evict: int = needed(COUNT)
    graph_ms: float = needed(number(0, 1e6))
    compile: str = needed(TEXT)


@record
class Head(Origin):
    """The head of a result of `ladder kernels`."""

    schema: int = needed(number(results.SCHEMA, results.SCHEMA, whole=True))
    kind: str = needed(one_of("kernels"))


@record
class Kernels(Head):
    """A result of `ladder kernels`."""

    protocol: Protocol = needed(rule_of(Protocol))
    sittings: list[Sitting] | Absent = optional(items(rule_of(Sitting), 1000, least=1))
    rows: list[Row] = needed(items(rule_of(Row), 10_000, least=1))


def contradiction(result: Kernels) -> str | None:
    """Return, in one line, what is impossible in a file that the schema accepts, or None."""
    for row in result.rows:
        if (row.sitting or 0) >= len(result.sittings or [None]):
            return f"{row.case}: there was no sitting {row.sitting}"
        for found, samples in ((row.us.cold, row.samples_us.cold), (row.us.hot, row.samples_us.hot)):
            for name, summary in found.items():
                if not is_among(summary.median, samples.get(name)):
                    return f"{row.case}: the median of {name} is not among its samples"
    return None


def is_among(median: float, samples: list[float] | None) -> bool:
    """Return whether a median is not beyond its samples, but for rounding."""
    return bool(samples) and min(samples) * 0.999999 <= median <= max(samples) * 1.000001


KIND = study("kernels", Kernels, contradiction)


def load(path: Path) -> Kernels:
    """Return the result in one file. `UserError`, in one line, where the file holds none."""
    return build(Kernels, loading.load_kind(path, KIND))


def of_data(data: Any) -> Kernels:
    """Return the result that a file's data hold. `UserError`, in one line, where they hold none."""
    return read(Kernels, data)
