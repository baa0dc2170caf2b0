"""What `ladder ablate` stores of each subset, and the figures that follow: gains, interactions, noise."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable
from typing import Annotated, Literal

from ladder.core.records import Factor, Name, Record, Started, Text, size_between
from ladder.results.file import Look
from ladder.stats import estimates, shapley
from ladder.stats.shapley import NOTHING, Subset, Weights
from ladder.studies import frame
from ladder.studies.base import StudyFile

GPU, WALL = "gpu", "wall"
PARITY, AGAIN = "parity of the whole ladder", " again, in a fresh process"  # a key, and the end of one
MOST_RUNGS = 7  # of which every subset is measured: 128
LEAST_PAIRS = 3  # of measurements of one subset, that show the error

Names = Annotated[list[Name], size_between(100)]
Bounds = Annotated[list[Factor], size_between(2, 2)]


class Options(frame.Options):
    """The options of `ladder ablate`."""

    ladder: frame.Ladder = "article"
    seed: frame.Seed = 0


class Case(frame.Case, kw_only=True):
    """The parity of all rungs, or a subset of them: once in the one process, or again in a fresh one.

    `out` are the rungs of a longer ladder that were to be left out.
    """

    kind: Literal["parity", "once", "again"]
    rungs: Names
    out: Names = []


class Beside(Record, kw_only=True):
    """The gains of a rung in a stored run of `ladder run`, as factors."""

    mode: Literal["solo", "leave-one-out"]
    started: Started
    rung: Name
    wall: Factor | None = None
    wall_interval: Bounds | None = None
    gpu: Factor | None = None
    gpu_interval: Bounds | None = None


class Observed(frame.Compared, kw_only=True):
    """A look at a subset. The first case has the parity, and what else was found at the beginning.

    `earlier`: parity is that of an inspection of `ladder run` with the same code. `skipped` are rungs that cannot run
    here, and why; `beside` is from stored runs.
    """

    look: Look | None = None
    earlier: bool | None = None
    skipped: Annotated[dict[Name, Text], size_between(100)] = {}
    beside: Annotated[list[Beside], size_between(200)] = []

    def list_times(self) -> Iterable[float]:
        return (self.look.gpu_ms or self.look.wall_ms or ()) if self.look else ()


File = StudyFile[Options, Case, Observed]


# --- what follows from the observations: `ladder report --json` prints it ---------------------------------------------


class Worth(Record, kw_only=True):
    """The gains of one rung, as logarithms of time before over time after: 0.1 is a factor of 1.105.

    Gains add up along an order, as factors multiply. `ms` are the milliseconds a step that it saves on average.
    """

    rung: str
    gain: float | None  # the mean over all allowed orders: the Shapley value
    interval: list[float] | None
    ms: float | None  # the same of milliseconds
    least: float | None  # in the order that is worst for it
    most: float | None
    staircase: float | None  # in the order of the ladder
    alone: float | None  # first of all
    left_out: float | None  # last of all
    left_out_interval: list[float] | None


class Pair(Record, kw_only=True):
    """The gain of two rungs together beyond the gains of each without the other, as a logarithm."""

    first: str
    second: str
    gain: float | None
    interval: list[float] | None


class Noise(Record, kw_only=True):
    """The error of one measurement, from subsets that were measured in both ways. All are logarithms."""

    sd: float
    freedom: int
    shift: float  # by which fresh processes took longer


class Whole(Record, kw_only=True):
    """The whole ladder against its base, and the share of the gains that changes hands with the order.

    That is the sum of the differences between the staircase and the mean, over the sum of both. It is 0 if every rung
    has its mean gain, and 1 if no rung's gain remains.
    """

    gain: float
    interval: list[float] | None
    ms: float
    orders: int | None
    moved: float | None


def time_ms(look: Look, clock: str) -> float | None:
    """Return the milliseconds a step of a look by a clock: the mean of its cycles."""
    cycles = look.gpu_ms if clock == GPU else look.wall_ms
    return statistics.fmean(cycles) if cycles else None


class Figures:
    """The figures of the subsets that a file has."""

    def __init__(self, file: File) -> None:
        self.rungs, self.parity = file.cases[PARITY].rungs, file.observed.get(PARITY, Observed())
        self.clock = GPU if file.machine.device == "cuda" else WALL
        self.is_whole = len(self.rungs) <= MOST_RUNGS
        self.rows = [
            (case, once, file.observed.get(key + AGAIN, Observed()).look)
            for key, case in file.cases.items()
            if case.kind == "once" and (once := file.observed.get(key)) is not None
        ]
        known = [
            (frozenset(case.rungs), once.look)
            for case, once, _ in self.rows
            if once.status == "ok" and once.look
        ]
        self.times = {subset: ms for subset, look in known if (ms := time_ms(look, self.clock))}
        self.logs = {subset: math.log(ms) for subset, ms in self.times.items()}
        self.outs = {tuple(case.out): frozenset(case.rungs) for case, _, _ in self.rows if case.out}
        self.both = [
            (once.look, again) for _, once, again in self.rows if once.status == "ok" and once.look and again
        ]
        self.noise = self._derive_noise()
        self.means = shapley.derive_values(self.rungs, self.logs) if self.is_whole else {}

    @functools.cached_property
    def worth(self) -> list[Worth]:
        """Return the gains of every rung."""
        return [self._derive_worth(rung) for rung in self.rungs]

    @property
    def place(self) -> str:
        """Return for which place in the ladder the figures hold."""
        return "in any order" if self.is_whole else "on top of all others"

    def _derive_noise(self) -> Noise | None:
        """Return the error of one measurement, None from fewer than three subsets that were repeated.

        The difference of two measurements of a subset holds the errors of both, so half of its variance is at least
        the variance of one in the one process. Its mean, that of the processes, cancels in every gain.
        """
        times = [(time_ms(once, self.clock), time_ms(again, self.clock)) for once, again in self.both]
        apart = [math.log(again / once) for once, again in times if once and again]
        if len(apart) < LEAST_PAIRS:
            return None
        mean, freedom = statistics.fmean(apart), len(apart) - 1
        return Noise(sd=statistics.stdev(apart) / math.sqrt(2), freedom=freedom, shift=mean)

    def derive_gain(self, weights: Weights | None) -> tuple[float | None, list[float] | None]:
        """Return a sum of logarithms and its 95% interval; None without weights, or without a known error."""
        if weights is None:
            return None, None
        gain = shapley.apply_weights(weights, self.logs)
        if self.noise is None:
            return gain, None
        half = estimates.t_quantile(0.5 + estimates.CONFIDENCE / 2, self.noise.freedom)
        half *= shapley.estimate_error(weights, self.noise.sd)
        return gain, [gain - half, gain + half]

    def weigh_saving(self, before: Subset | None, after: Subset) -> Weights | None:
        """Return the weights of a saving, None where one of the two has no time."""
        if before is None or before not in self.times or after not in self.times:
            return None
        return shapley.derive_saving(before, after)

    def _derive_worth(self, rung: str) -> Worth:
        place, whole, mean = self.rungs.index(rung), frozenset(self.rungs), self.means.get(rung)
        steps = shapley.derive_steps(self.rungs, self.logs, rung) if mean else []
        gains = [shapley.apply_weights(each, self.logs) for each in steps]
        before, after = frozenset(self.rungs[:place]), frozenset(self.rungs[: place + 1])
        gain, interval = self.derive_gain(mean)
        last = self.weigh_saving(whole - {rung} if self.is_whole else self.outs.get((rung,)), whole)
        left_out, left_out_interval = self.derive_gain(last)
        return Worth(
            rung=rung, gain=gain, interval=interval, left_out=left_out, left_out_interval=left_out_interval,
            ms=None if mean is None else shapley.apply_weights(mean, self.times),
            least=min(gains, default=None), most=max(gains, default=None),
            staircase=self.derive_gain(self.weigh_saving(before, after))[0] if self.is_whole else None,
            alone=self.derive_gain(self.weigh_saving(NOTHING, frozenset({rung})))[0],
        )  # fmt: skip

    @functools.cached_property
    def pairs(self) -> list[Pair]:
        """Return every pair of rungs that was measured in all four ways; of a longer ladder those at its top."""
        pairs = []
        for first, second in shapley.list_pairs(self.rungs):
            if self.is_whole:
                weights = shapley.derive_pair(self.rungs, self.logs, first, second)
            else:
                both = self.outs.get((first, second)) or self.outs.get((second, first))
                corners = [both, self.outs.get((first,)), self.outs.get((second,)), frozenset(self.rungs)]
                known = [each for each in corners if each is not None and each in self.times]
                if len({*known}) < 4:
                    continue
                weights = dict(zip(known, (-1.0, 1.0, 1.0, -1.0), strict=True))
            gain, interval = self.derive_gain(weights)
            pairs.append(Pair(first=first, second=second, gain=gain, interval=interval))
        return pairs

    @functools.cached_property
    def total(self) -> Whole | None:
        """Return the whole ladder against its base, None unless both have a time."""
        weights = self.weigh_saving(NOTHING, frozenset(self.rungs))
        if weights is None:
            return None
        both = [(each.staircase, each.gain) for each in self.worth]
        sure = [(stair, mean) for stair, mean in both if stair is not None and mean is not None]
        apart = math.fsum(abs(stair - mean) for stair, mean in sure)
        whole = math.fsum(abs(stair) + abs(mean) for stair, mean in sure)
        return Whole(
            gain=shapley.apply_weights(weights, self.logs),
            interval=self.derive_gain(weights)[1],
            ms=shapley.apply_weights(weights, self.times),
            orders=shapley.count_all(self.rungs, self.logs) if self.is_whole else None,
            moved=apart / whole if whole and len(sure) == len(self.rungs) else None,
        )


def is_beyond_noise(pair: Pair, noise: Noise | None, many: int) -> bool:
    """Return whether a pair's gain is beyond the noise, at a level shared by so many pairs (Bonferroni)."""
    if pair.gain is None or pair.interval is None or noise is None:
        return False
    level = (1 - estimates.CONFIDENCE) / max(1, many)
    wider = estimates.t_quantile(1 - level / 2, noise.freedom)
    wider /= estimates.t_quantile(0.5 + estimates.CONFIDENCE / 2, noise.freedom)
    return abs(pair.gain) > wider * (pair.interval[1] - pair.interval[0]) / 2
