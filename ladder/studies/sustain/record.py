"""The records of `ladder sustain`, which are the schema of its file, and pure functions that derive its figures."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ladder.base.records import Absent, given, needed, optional, plain, record, rule_of
from ladder.base.rules import alike, items, one_of
from ladder.machine import environment, neighbours
from ladder.results import plausible
from ladder.results import store as results
from ladder.results import values as v
from ladder.results.schema import RATE
from ladder.results.types import Plain, StudyHeader

WINDOW_S = 2.0  # length of a row, about that of a visit of `ladder run` at the top

LEAST_S = 10.0  # of the rows whose energy counts: NVML's counter is coarse over less
COUNTER, POWER = "NVML's energy counter", "the highest power of each row, integrated: at most"
DERIVED = ("first_ms", "sustained_ms", "factor")


@dataclass(frozen=True)
class Energy:
    """The energy of a sustained step in joules, what it was read from, and the seconds that it was taken over."""

    step_j: float
    source: str
    seconds: float


@record
class Window:
    """A row: seconds since the first window began, milliseconds a step (median cycle), and NVML's readings."""

    at_s: float = needed(v.SECONDS)
    step_ms: float = needed(v.MS)
    sm_mhz: float | None = needed(v.AMOUNT)
    power_w: float | None = needed(v.AMOUNT)
    temperature_c: float | None = needed(v.AMOUNT)
    reasons: list[str] | None = needed(items(v.TEXT, 20))
    # Joules by NVML's counter from the first row's begin to this row's; older files and other devices lack them.
    energy_j: float | Absent | None = optional(v.AMOUNT)
    steps: int | Absent = optional(v.COUNT)  # of the row, those before its timed cycles included


@record
class Rung:
    """A rung, its rows, and the figures that follow from them. Both times are in ms a step."""

    name: str = needed(v.PART)
    recipe: Plain = needed(v.RECIPE)
    status: str = needed(v.STATUS)
    reason: str | None = needed(v.TEXT)
    inspected: bool = needed(v.FLAG)
    first_ms: float | None = needed(v.MS)
    sustained_ms: float | None = needed(v.MS)
    factor: float | None = needed(RATE)
    windows: list[Window] = needed(items(rule_of(Window), 50_000))
    others_cpu: float | Absent | None = optional(v.SHARE)


@record
class Protocol:
    """How the rungs were followed, and why the figures must not be quoted."""

    seconds: float = needed(v.SECONDS)
    window_s: float = needed(v.SECONDS)
    seed: int = needed(v.COUNT)
    notes: list[str] = needed(v.NOTES)


@record
class Result(StudyHeader):
    """A result of `ladder sustain`."""

    kind: str = needed(one_of("sustained"))
    protocol: Protocol = needed(rule_of(Protocol))
    rungs: list[Rung] = needed(items(rule_of(Rung), 100))


def derive(result: Result) -> Result:
    """Return the result with its figures: each rung's first row beside the median of the later half."""
    rungs = [_derived(rung) for rung in result.rungs]
    unseen = [rung.name for rung in rungs if not rung.inspected]
    also = [f"parity and receipts of {', '.join(unseen)} were not seen here"] * bool(unseen)
    also += neighbours.marks({neighbours.KEY: rung.others_cpu} for rung in rungs)
    also += environment.said(result.environment or None)
    rounds = results.FEWEST_ROUNDS  # this kind has no rounds; the minimum avoids the note "too few rounds"
    notes = results.cautions(result.machine.device, rounds, result.dirty, result.complete, also)
    return replace(result, rungs=rungs, protocol=replace(result.protocol, notes=notes))


def _derived(rung: Rung) -> Rung:
    if not rung.windows:
        return replace(rung, first_ms=None, sustained_ms=None, factor=None)
    first = rung.windows[0].step_ms
    sustained = statistics.median(row.step_ms for row in later(rung.windows))
    return replace(rung, first_ms=first, sustained_ms=sustained, factor=sustained / first)


def contradiction(result: Result) -> str | None:
    """Return, in one line, which numbers do not follow from the rows or are impossible, or None."""
    derived, least = derive(result), plausible.floor_ms(plain(result.machine), result.workload)
    for found, wanted in zip(result.rungs, derived.rungs, strict=True):
        if found.status == "ok" and not found.windows:
            return f"{found.name}: ok without a row"
        for key in DERIVED:
            if not alike(getattr(found, key), getattr(wanted, key)):
                return f"{found.name}: {key} is not what its rows say"
        if least and any(row.step_ms < least[0] for row in found.windows):
            return f"{found.name}: faster than this GPU can compute"
    return results.missing_note(derived.protocol.notes, result.protocol.notes)


def later(rows: Sequence[Window]) -> list[Window]:
    """Return the rows of the later half of the time, at least one."""
    return [row for row in rows if row.at_s >= rows[-1].at_s / 2]


def energy(rung: Rung) -> Energy | None:
    """Return the energy of a step over the later half of the rows, or over the last ten seconds if that is more.

    All joules of that time are divided by all steps in it: the pauses between rows, a few percent, are charged to the
    steps. In older files, which lack the number of steps, the mean power multiplies the median step. It is some
    percent too low, because the GPU draws less in a pause. Without the counter, power is integrated over the rows.
    Returns None if the rows last less than ten seconds or know neither.
    """
    rows = [row for row in rung.windows if row.at_s <= rung.windows[-1].at_s - LEAST_S]
    if rung.status != "ok" or not rows:
        return None
    begin = min(rows[-1].at_s, later(rung.windows)[0].at_s)
    rows = [row for row in rung.windows if row.at_s >= begin]
    seconds, step_s = rows[-1].at_s - begin, statistics.median(row.step_ms for row in rows) / 1000
    first, last = given(rows[0].energy_j), given(rows[-1].energy_j)
    if first is not None and last is not None and last > first:
        counted = [given(row.steps) for row in rows[:-1]]
        if steps := sum(each or 0 for each in counted if all(counted)):
            return Energy((last - first) / steps, COUNTER, seconds)
        return Energy((last - first) / seconds * step_s, COUNTER, seconds)
    watts = [row.power_w for row in rows]
    if any(each is None for each in watts):
        return None
    joules = sum((a.power_w + b.power_w) / 2 * (b.at_s - a.at_s) for a, b in itertools.pairwise(rows))
    return Energy(joules / seconds * step_s, POWER, seconds)
