"""The records of `ladder ablate`, which are the schema of its file, and pure functions that derive its figures.

A gain is the logarithm of the time before over the time after: 0.1 is a factor of 1.105. So gains add up along an
order, as factors multiply.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ladder.base.records import needed, plain, record, rule_of
from ladder.base.rules import alike, items, mapping, number, one_of
from ladder.engine import looks
from ladder.engine.looks import Look
from ladder.machine import environment
from ladder.results import plausible
from ladder.results import store as results
from ladder.results import values as v
from ladder.results.types import StudyHeader
from ladder.stats import estimates, shapley
from ladder.stats.shapley import NOTHING, Subset, Weights

GPU, WALL = "gpu", "wall"
MOST_RUNGS = 7  # of which every subset is measured: 128
LEAST_PAIRS = 3  # of measurements of one subset, that show the error
LOG = number(-100, 100)
BOUNDS = items(LOG, 2, least=2)
NAMES = items(v.PART, 100)


@record
class Row:
    """A subset of the rungs: measured once in the one process, and some again in a fresh process."""

    rungs: list[str] = needed(NAMES)
    out: list[str] = needed(NAMES)  # of a longer ladder, the rungs that were to be left out
    status: str = needed(v.STATUS)
    reason: str | None = needed(v.TEXT)
    once: Look | None = needed(rule_of(Look))
    again: Look | None = needed(rule_of(Look))


@record
class Worth:
    """The gains of one rung, as logarithms, and the milliseconds a step that it saves on average."""

    rung: str = needed(v.PART)
    gain: float | None = needed(LOG)  # the mean over all allowed orders: the Shapley value
    interval: list[float] | None = needed(BOUNDS)
    ms: float | None = needed(number(-1e8, 1e8))  # the same of milliseconds
    least: float | None = needed(LOG)  # in the order that is worst for it
    most: float | None = needed(LOG)
    staircase: float | None = needed(LOG)  # in the order of the ladder
    alone: float | None = needed(LOG)  # first of all
    left_out: float | None = needed(LOG)  # last of all
    left_out_interval: list[float] | None = needed(BOUNDS)


@record
class Pair:
    """The gain of two rungs together beyond the gains of each without the other, as a logarithm."""

    first: str = needed(v.PART)
    second: str = needed(v.PART)
    gain: float | None = needed(LOG)
    interval: list[float] | None = needed(BOUNDS)


@record
class Noise:
    """The error of one measurement, from subsets that were measured in both ways. All are logarithms."""

    sd: float = needed(v.FLOOR)
    freedom: int = needed(v.COUNT)
    shift: float = needed(LOG)  # by which fresh processes took longer


@record
class Whole:
    """The whole ladder against its base, and the share of the gains that changes hands with the order.

    That is the sum of the differences between the staircase and the mean, over the sum of both. It is 0 if every rung
    has its mean gain, and 1 if no rung's gain remains.
    """

    gain: float = needed(LOG)
    interval: list[float] | None = needed(BOUNDS)
    ms: float = needed(number(-1e8, 1e8))
    orders: int | None = needed(v.COUNT)
    moved: float | None = needed(v.SHARE)


@record
class Beside:
    """The gains of a rung in a stored run of `ladder run`, as factors."""

    mode: str = needed(one_of("solo", "leave-one-out"))
    started: str = needed(v.STARTED)
    rung: str = needed(v.PART)
    wall: float | None = needed(v.FACTOR)
    wall_interval: list[float] | None = needed(v.PAIR)
    gpu: float | None = needed(v.FACTOR)
    gpu_interval: list[float] | None = needed(v.PAIR)


@record
class Proof:
    """The parity of the whole ladder, which was checked before anything was measured."""

    verdict: str = needed(one_of("ok", "failed: parity"))
    reason: str | None = needed(v.TEXT)
    earlier: bool = needed(v.FLAG)  # an inspection of `ladder run` of the same code had found it


@record
class Protocol:
    """How the subsets were measured, and why the figures must not be quoted."""

    ladder: str = needed(v.PART)
    rungs: list[str] = needed(items(v.PART, 100, least=2))
    skipped: dict[str, str] = needed(mapping(v.PART, v.TEXT, 100))
    whole: bool = needed(v.FLAG)  # every allowed subset; else ends and leave-outs
    clock: str = needed(one_of(GPU, WALL))
    seed: int = needed(v.COUNT)
    notes: list[str] = needed(v.NOTES)


@record
class Result(StudyHeader):
    """A result of `ladder ablate`."""

    kind: str = needed(one_of("ablation"))
    protocol: Protocol = needed(rule_of(Protocol))
    parity: Proof | None = needed(rule_of(Proof))
    subsets: list[Row] = needed(items(rule_of(Row), 2000))
    total: Whole | None = needed(rule_of(Whole))
    worth: list[Worth] = needed(items(rule_of(Worth), 100))
    pairs: list[Pair] = needed(items(rule_of(Pair), 1000))
    noise: Noise | None = needed(rule_of(Noise))
    beside: list[Beside] = needed(items(rule_of(Beside), 200))


def time_ms(look: Look, clock: str) -> float | None:
    """Return the milliseconds a step of a look by a clock: the mean of its cycles."""
    cycles = look.gpu_ms if clock == GPU else look.wall_ms
    return statistics.fmean(cycles) if cycles else None


def measured(result: Result) -> dict[Subset, float]:
    """Return the milliseconds a step of every subset that has a time."""
    found = {}
    for row in result.subsets:
        if row.status == "ok" and row.once and (ms := time_ms(row.once, result.protocol.clock)):
            found[frozenset(row.rungs)] = ms
    return found


def derive(result: Result) -> Result:
    """Return the result with all figures that follow from its subsets."""
    times = measured(result)
    noise = noise_of(result)
    rungs, whole = result.protocol.rungs, frozenset(result.protocol.rungs)
    outs = {tuple(row.out): frozenset(row.rungs) for row in result.subsets if row.out}
    made = _Derived(rungs, times, noise, result.protocol.whole, outs)
    ended = NOTHING in times and whole in times
    return replace(
        result,
        noise=noise,
        worth=[made.worth(rung) for rung in rungs],
        pairs=made.pairs(),
        total=made.total() if ended else None,
        protocol=replace(result.protocol, notes=_notes(result, noise)),
    )


def noise_of(result: Result) -> Noise | None:
    """Return the error of one measurement, None from fewer than three subsets that were repeated.

    The difference of two measurements of a subset holds the errors of both. So half of its variance is at least the
    variance of one in the one process. Its mean is the difference of the processes, which cancels in every gain.
    """
    clock = result.protocol.clock
    both = [(time_ms(row.once, clock), time_ms(row.again, clock)) for row in _repeated(result)]
    apart = [math.log(again / once) for once, again in both if once and again]
    if len(apart) < LEAST_PAIRS:
        return None
    return Noise(
        sd=statistics.stdev(apart) / math.sqrt(2), freedom=len(apart) - 1, shift=statistics.fmean(apart)
    )


def _repeated(result: Result) -> list[Any]:
    return [row for row in result.subsets if row.status == "ok" and row.once and row.again]


def _notes(result: Result, noise: Noise | None) -> list[str]:
    seen = [look for row in result.subsets for look in (row.once, row.again) if look]
    also = [*looks.marks(seen), *environment.said(result.environment or None)]
    both = [(row.once.kernels, row.again.kernels) for row in _repeated(result)]
    if others := sum(once != again for once, again in both):
        also.append(f"{others} of {len(both)} subsets launched other numbers of kernels in a fresh process")
    also += ["too few subsets repeated in fresh processes: no intervals"] * (noise is None)
    rounds = results.FEWEST_ROUNDS  # this kind has no rounds; the minimum avoids the note "too few rounds"
    return results.cautions(result.machine.device, rounds, result.dirty, result.complete, also)


class _Derived:
    """The figures of one set of measured subsets."""

    def __init__(
        self, rungs: list[str], times: Mapping[Subset, float], noise: Noise | None, whole: bool,
        outs: Mapping[tuple[str, ...], Subset],
    ) -> None:  # fmt: skip
        self.rungs, self.times, self.noise, self.whole, self.outs = rungs, times, noise, whole, outs
        self.logs = {subset: math.log(ms) for subset, ms in times.items()}
        self.means = shapley.values(rungs, self.logs) if whole else {}
        self.climbed = [frozenset(rungs[:k]) for k in range(len(rungs) + 1)]

    def interval(self, weights: Weights | None) -> list[float] | None:
        """Return the 95% interval of a sum of logarithms."""
        if weights is None or self.noise is None:
            return None
        centre = shapley.applied(weights, self.logs)
        half = estimates.t_quantile(0.5 + estimates.CONFIDENCE / 2, self.noise.freedom)
        half *= shapley.error(weights, self.noise.sd)
        return [centre - half, centre + half]

    def gain(self, weights: Weights | None) -> float | None:
        return None if weights is None else shapley.applied(weights, self.logs)

    def saving(self, before: Subset | None, after: Subset) -> Weights | None:
        """Return the weights of a saving, None where one of the two has no time."""
        known = before is not None and before in self.times and after in self.times
        return shapley.saving(before, after) if known and before is not None else None

    def without(self, *names: str) -> Subset | None:
        """Return the subset in which these rungs are left out."""
        return frozenset(self.rungs) - {*names} if self.whole else self.outs.get(names)

    def worth(self, rung: str) -> Worth:
        place = self.rungs.index(rung)
        mean = self.means.get(rung)
        steps = (
            [shapley.applied(each, self.logs) for each in shapley.steps(self.rungs, self.logs, rung)]
            if mean
            else []
        )
        last = self.saving(self.without(rung), frozenset(self.rungs))
        return Worth(
            rung=rung,
            gain=self.gain(mean),
            interval=self.interval(mean),
            ms=None if mean is None else shapley.applied(mean, self.times),
            least=min(steps, default=None),
            most=max(steps, default=None),
            staircase=self.gain(self.saving(*self.climbed[place : place + 2])) if self.whole else None,
            alone=self.gain(self.saving(NOTHING, frozenset({rung}))),
            left_out=self.gain(last),
            left_out_interval=self.interval(last),
        )

    def pairs(self) -> list[Pair]:
        """Return every pair of rungs that was measured in all four ways; of a longer ladder those at its top."""
        found = []
        for first, second in shapley.pairs(self.rungs):
            weights = self._pair(first, second)
            if weights or self.whole:
                found.append(
                    Pair(
                        first=first,
                        second=second,
                        gain=self.gain(weights),
                        interval=self.interval(weights),
                    )
                )
        return found

    def _pair(self, first: str, second: str) -> Weights | None:
        if self.whole:
            return shapley.pair(self.rungs, self.logs, first, second)
        both = self.outs.get((first, second)) or self.outs.get((second, first))
        corners = (both, self.outs.get((first,)), self.outs.get((second,)), frozenset(self.rungs))
        known = [each for each in corners if each is not None and each in self.times]
        if len({*known}) < len(corners):
            return None
        return dict(zip(known, (-1.0, 1.0, 1.0, -1.0), strict=True))

    def total(self) -> Whole:
        weights = shapley.saving(NOTHING, frozenset(self.rungs))
        gain = shapley.applied(weights, self.logs)
        worth = [self.worth(rung) for rung in self.rungs]
        both = [(each.staircase, each.gain) for each in worth]
        sure = [(stair, mean) for stair, mean in both if stair is not None and mean is not None]
        apart = math.fsum(abs(stair - mean) for stair, mean in sure)
        size = math.fsum(abs(stair) + abs(mean) for stair, mean in sure)
        return Whole(
            gain=gain,
            interval=self.interval(weights),
            ms=shapley.applied(weights, self.times),
            orders=shapley.count(self.rungs, self.logs) if self.whole else None,
            moved=apart / size if size and len(sure) == len(worth) else None,
        )


def contradiction(result: Result) -> str | None:
    """Return, in one line, which numbers do not follow from the subsets or are impossible, or None."""
    sets, rungs = [frozenset(row.rungs) for row in result.subsets], result.protocol.rungs
    if len({*sets}) < len(sets) or any(not each <= {*rungs} for each in sets) or len({*rungs}) < len(rungs):
        return "subsets: one is there twice, or has rungs that are not those of the protocol"
    if result.protocol.whole and len(rungs) > MOST_RUNGS:
        return f"protocol.whole: every subset of {len(rungs)} rungs"
    least = plausible.floor_ms(plain(result.machine), result.workload)
    for row in result.subsets:
        named = f"subset {', '.join(row.rungs) or 'without rungs'}"
        if (row.status == "ok") != (row.once is not None):
            return f"{named}: a time, but not the status ok, or the other way round"
        times = [ms for look in (row.once, row.again) if look for ms in (look.gpu_ms or look.wall_ms or [])]
        if least and any(ms < least[0] for ms in times):
            return f"{named}: faster than this machine can compute"
        if row.once and time_ms(row.once, result.protocol.clock) is None:
            return f"{named}: no {result.protocol.clock} time"
    if result.complete and len(sets) < 2:
        return "complete, but nothing was measured"
    wanted = derive(result)
    for key in ("noise", "worth", "pairs", "total"):
        if not same(plain(getattr(result, key)), plain(getattr(wanted, key))):
            return f"{key}: not what the subsets say"
    if missing := [note for note in wanted.protocol.notes if note not in result.protocol.notes]:
        return f"protocol.notes: lack {missing[0]!r}"
    return None


def same(one: Any, other: Any) -> bool:
    """Return whether two derived values are equal but for the rounding of numbers near to 0."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return alike(one, other) or abs(one - other) < 1e-9
    return bool(one == other)
