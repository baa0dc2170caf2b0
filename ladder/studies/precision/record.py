"""The records of `ladder precision`, which are the schema of its file, and pure functions that derive its figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ladder.base.records import Absent, needed, optional, record, rule_of
from ladder.base.rules import fields, items, mapping, number, one_of, pattern
from ladder.results import values as v
from ladder.results.schema import LINE
from ladder.results.types import Header, Plain
from ladder.stats import estimates

NAMES = {"fp32": "FP32", "tf32": "TF32", "bf16": "BF16", "fp16": "FP16", "fp8": "FP8 dense, BF16"}
TIMED = ("allocated_gib", "reserved_gib", "device_gib", "rss_gib")
CLAIMS = {  # the article's figures for FP16 and BF16 against FP32
    "throughput": ("twice the throughput", 2.0),
    "memory": ("memory halved", 0.5),
    "batch": ("batch doubled", 2.0),
}
# PyTorch's allocator does not see pools of graphs.
MEMORY = {"baseline": "allocated_gib", "top": "device_gib"}

PRECISION = one_of(*NAMES)
BASE = one_of(*MEMORY)
STATUS = pattern(r"[a-z][a-z/: ]{0,40}", "a status")
GIB = number(0, 1e6)
OF_NETWORK = fields({"G": v.COUNT, "D": v.COUNT})


@record
class Round:
    """A visit of a row by a fresh process. Times are in ms a step, sizes the most that was in use."""

    round: int = needed(v.COUNT)
    samples_ms: list[float] = needed(items(v.MS, 1000, least=1))
    allocated_gib: float | None = needed(GIB)
    reserved_gib: float | None = needed(GIB)
    device_gib: float | None = needed(GIB)  # of all processes together
    rss_gib: float | None = needed(GIB)
    beside: int | Absent = optional(v.COUNT)  # rows prepared beside it
    others_cpu: float | Absent | None = optional(v.SHARE)  # CPU time that others took


@record
class Try:
    """A batch, and the reason why it does not fit; None where it fits."""

    batch: int = needed(v.COUNT)
    reason: str | None = needed(LINE)


@record
class Largest:
    """The largest batch that fitted, or None. More may fit where the search is not settled."""

    batch: int | None = needed(v.COUNT)
    settled: bool = needed(v.FLAG)
    tried: list[Try] = needed(items(rule_of(Try), 200))


@record
class Parity:
    """A row's parity with FP64, with the part of its budget that was used."""

    verdict: str = needed(STATUS)
    reason: str | None = needed(LINE)
    share: float | None = needed(v.AMOUNT)
    gradient_errors: dict[str, float] = needed(mapping(v.PHASE, v.AMOUNT, 4))
    budget: str = needed(PRECISION)


@record
class Row:
    """A precision on a base: what was measured, and the figures that follow. Sizes are the most of its rounds."""

    precision: str = needed(PRECISION)
    on: str = needed(BASE)
    status: str = needed(STATUS)
    reason: str | None = needed(LINE)
    recipe: Plain | None = needed(v.RECIPE)
    rounds: list[Round] = needed(items(rule_of(Round), 1000))
    parity: Parity | None = needed(rule_of(Parity))
    largest: Largest | None = needed(rule_of(Largest))
    step_ms: float | None = needed(v.MS)
    interval_ms: list[float] | None = needed(v.PAIR)
    allocated_gib: float | None = needed(GIB)
    reserved_gib: float | None = needed(GIB)
    device_gib: float | None = needed(GIB)
    rss_gib: float | None = needed(GIB)


@record
class History:
    """FP16's loss scales over a training. A change has its step, the scales of G and D, and their skipped updates."""

    on: str = needed(BASE)
    steps: int = needed(v.COUNT)
    initial: float = needed(v.AMOUNT)
    interval: int = needed(v.COUNT)
    images: bool = needed(v.FLAG)
    changes: list[list[float]] = needed(items(items(v.AMOUNT, 5, least=5), 4000, least=1))
    updates: dict[str, int] = needed(OF_NETWORK)
    skipped: dict[str, int] = needed(OF_NETWORK)


@record
class Claim:
    """The article's figure beside ours, for a precision against another on the same base."""

    claim: str = needed(one_of(*CLAIMS))
    article: float = needed(v.AMOUNT)
    precision: str = needed(PRECISION)
    against: str = needed(PRECISION)
    on: str = needed(BASE)
    ours: float | None = needed(v.AMOUNT)
    interval: list[float] | None = needed(v.PAIR)


@record
class Protocol:
    """How the rows were measured, and why the figures must not be quoted."""

    rounds: int = needed(v.COUNT)
    cycles: int = needed(v.COUNT)
    seed: int = needed(v.COUNT)
    ladder: str = needed(v.PART)
    parity: bool = needed(v.FLAG)
    batch_seconds: float = needed(v.SECONDS)
    steps: int = needed(v.COUNT)
    notes: list[str] = needed(v.NOTES)


@record
class Result(Header):
    """A result of `ladder precision`."""

    schema: int = needed(number(v.SCHEMA, v.SCHEMA, whole=True))
    kind: str = needed(one_of("precision"))
    workload: Plain = needed(v.WORKLOAD)
    protocol: Protocol = needed(rule_of(Protocol))
    rows: list[Row] = needed(items(rule_of(Row), 100, least=1))
    history: History | None = needed(rule_of(History))
    claims: list[Claim] = needed(items(rule_of(Claim), 100))


Rows = dict[str, Row]  # by `title`


def title(row: Row) -> str:
    return f"{NAMES[row.precision]} on the {row.on}"


def derive(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with the figures that follow from their rounds."""
    return [_derived(row) for row in rows]


def _derived(row: Row) -> Row:
    times = list(medians(row).values())
    interval = estimates.log_interval(times)
    known = {key: [getattr(each, key) for each in row.rounds] for key in TIMED}
    sizes = {
        key: max((size for size in seen if size is not None), default=None) for key, seen in known.items()
    }
    return replace(row, step_ms=estimates.median(times), interval_ms=interval and list(interval), **sizes)


def medians(row: Row) -> dict[int, float]:
    """Return each round's median in milliseconds a step."""
    return {each.round: statistics.median(each.samples_ms) for each in row.rounds}


def pairs(rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield (FP32 or TF32, BF16 or FP16) pairs of rows on the same base."""
    by_name = {(row.on, row.precision): row for row in rows}
    for (base, precision), row in by_name.items():
        for against in ("fp32", "tf32") if precision in ("bf16", "fp16") else ():
            if (base, against) in by_name:
                yield by_name[base, against], row


def claims(rows: Iterable[Row]) -> list[Claim]:
    """Return a row for each claim, precision, base and yardstick."""
    made = []
    for against, row in pairs(rows):
        key = MEMORY[row.on]
        ratio, interval = _throughput(against, row)
        values = {
            "throughput": (ratio, interval),
            "memory": (_ratio(getattr(row, key), getattr(against, key)), None),
            "batch": (_ratio(_batch(row), _batch(against)), None),
        }
        for claim, (ours, bounds) in values.items():
            made.append(
                Claim(
                    claim=claim,
                    article=CLAIMS[claim][1],
                    precision=row.precision,
                    against=against.precision,
                    on=row.on,
                    ours=ours,
                    interval=bounds and list(bounds),
                )
            )
    return made


def _throughput(against: Row, row: Row) -> tuple[float | None, tuple[float, float] | None]:
    """Return the ratio of images a second at the same batch, paired by round, and its interval."""
    slow, fast = medians(against), medians(row)
    return estimates.speedup(slow, fast), estimates.log_interval(estimates.paired_ratios(slow, fast))


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def _batch(row: Row) -> int | None:
    """Return the largest batch, or None if the search did not finish."""
    return row.largest.batch if row.largest and row.largest.settled else None
