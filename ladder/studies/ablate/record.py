"""What `ladder ablate` stores of each subset, and the figures that follow: gains, interactions, noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Annotated, Literal

from ladder.core.options import Seed, option
from ladder.core.records import Factor, Name, Record, Started, Text, size
from ladder.results.file import Look, Status
from ladder.stats import estimates, shapley
from ladder.stats.shapley import NOTHING, Subset, Weights
from ladder.studies import frame
from ladder.studies.frame import StudyFile

GPU, WALL = "gpu", "wall"
PARITY, AGAIN = "parity of the whole ladder", " again, in a fresh process"  # a key, and the end of one
MOST_RUNGS = 7  # of which every subset is measured: 128
LEAST_PAIRS = 3  # of measurements of one subset, that show the error

Names = Annotated[list[Name], size(100)]
Bounds = Annotated[list[Factor], size(2, 2)]


class Options(frame.Options):
    """The options of `ladder ablate`."""

    ladder: Annotated[str, option("The ladder whose rungs are used.", metavar="NAME|FILE")] = "article"
    seed: Annotated[
        Seed, option("Seed for weights and latents, and for the choice and order of subsets.")
    ] = 0


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


class Observed(frame.Observation, kw_only=True):
    """A look at a subset. The first case has the parity, and what else was found at the beginning.

    `reported_then` is the verdict of that day: its errors are not stored. `earlier`: an inspection of `ladder run` of
    the same code had come to it. `skipped` are rungs that cannot run here, and why; `beside` is from stored runs.
    """

    look: Look | None = None
    reported_then: Literal["ok", "failed: parity"] | None = None
    earlier: bool | None = None
    skipped: Annotated[dict[Name, Text], size(100)] = {}
    beside: Annotated[list[Beside], size(200)] = []


File = StudyFile[Options, Case, Observed]


# --- what follows from the observations -------------------------------------------------------------------------------


class Row(Record, kw_only=True):
    """A subset of the rungs: measured once in the one process, and some again in a fresh process."""

    rungs: list[str]
    out: list[str]
    status: Status
    reason: str | None
    once: Look | None
    again: Look | None


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


class Proof(Record, kw_only=True):
    """The parity of the whole ladder, as it was reported before anything was measured."""

    verdict: str
    reason: str | None
    earlier: bool | None


class Protocol(Record, kw_only=True):
    """How the subsets were measured, and why the figures must not be quoted."""

    ladder: str
    rungs: list[str]
    skipped: dict[str, str]
    whole: bool  # every allowed subset; else ends and leave-outs
    clock: str
    seed: int
    notes: list[str]


class Ablation(Record, kw_only=True):
    """What `ladder report --json` prints beside the header."""

    protocol: Protocol
    parity: Proof | None
    subsets: list[Row]
    total: Whole | None
    worth: list[Worth]
    pairs: list[Pair]
    noise: Noise | None
    beside: list[Beside]


def time_ms(look: Look, clock: str) -> float | None:
    """Return the milliseconds a step of a look by a clock: the mean of its cycles."""
    cycles = look.gpu_ms if clock == GPU else look.wall_ms
    return statistics.fmean(cycles) if cycles else None


def list_rows(file: File) -> list[Row]:
    """Return the subsets that were observed, in the order in which they were planned."""
    rows = []
    for key, case in file.cases.items():
        if case.kind == "once" and (once := file.observed.get(key)) is not None:
            again = file.observed.get(key + AGAIN)
            rows.append(
                Row(
                    rungs=case.rungs, out=case.out, status=once.status, reason=once.reason, once=once.look,
                    again=again.look if again else None,
                )
            )  # fmt: skip
    return rows


def derive_noise(rows: Sequence[Row], clock: str) -> Noise | None:
    """Return the error of one measurement, None from fewer than three subsets that were repeated.

    The difference of two measurements of a subset holds the errors of both. So half of its variance is at least the
    variance of one in the one process. Its mean is the difference of the processes, which cancels in every gain.
    """
    both = [(time_ms(row.once, clock), time_ms(row.again, clock)) for row in rows if row.once and row.again]
    apart = [math.log(again / once) for once, again in both if once and again]
    if len(apart) < LEAST_PAIRS:
        return None
    return Noise(
        sd=statistics.stdev(apart) / math.sqrt(2), freedom=len(apart) - 1, shift=statistics.fmean(apart)
    )


class Figures:
    """The figures of the subsets that a file has."""

    def __init__(self, file: File) -> None:
        self.rows, self.rungs = list_rows(file), file.cases[PARITY].rungs
        self.clock = GPU if file.machine.device == "cuda" else WALL
        self.is_whole = len(self.rungs) <= MOST_RUNGS
        self.times = {
            frozenset(row.rungs): ms
            for row in self.rows
            if row.status == "ok" and row.once and (ms := time_ms(row.once, self.clock))
        }
        self.noise = derive_noise([row for row in self.rows if row.status == "ok"], self.clock)
        self.outs = {tuple(row.out): frozenset(row.rungs) for row in self.rows if row.out}
        self.logs = {subset: math.log(ms) for subset, ms in self.times.items()}
        self.means = shapley.values(self.rungs, self.logs) if self.is_whole else {}

    def derive_interval(self, weights: Weights | None) -> list[float] | None:
        """Return the 95% interval of a sum of logarithms."""
        if weights is None or self.noise is None:
            return None
        centre = shapley.applied(weights, self.logs)
        half = estimates.t_quantile(0.5 + estimates.CONFIDENCE / 2, self.noise.freedom)
        half *= shapley.error(weights, self.noise.sd)
        return [centre - half, centre + half]

    def derive_gain(self, weights: Weights | None) -> float | None:
        """Return a sum of logarithms, None without weights."""
        return None if weights is None else shapley.applied(weights, self.logs)

    def weigh_saving(self, before: Subset | None, after: Subset) -> Weights | None:
        """Return the weights of a saving, None where one of the two has no time."""
        if before is None or before not in self.times or after not in self.times:
            return None
        return shapley.saving(before, after)

    def derive_worth(self, rung: str) -> Worth:
        """Return the gains of a rung."""
        place, whole, mean = self.rungs.index(rung), frozenset(self.rungs), self.means.get(rung)
        steps = shapley.steps(self.rungs, self.logs, rung) if mean else []
        gains = [shapley.applied(each, self.logs) for each in steps]
        before, after = frozenset(self.rungs[:place]), frozenset(self.rungs[: place + 1])
        last = self.weigh_saving(whole - {rung} if self.is_whole else self.outs.get((rung,)), whole)
        return Worth(
            rung=rung,
            gain=self.derive_gain(mean),
            interval=self.derive_interval(mean),
            ms=None if mean is None else shapley.applied(mean, self.times),
            least=min(gains, default=None),
            most=max(gains, default=None),
            staircase=self.derive_gain(self.weigh_saving(before, after)) if self.is_whole else None,
            alone=self.derive_gain(self.weigh_saving(NOTHING, frozenset({rung}))),
            left_out=self.derive_gain(last),
            left_out_interval=self.derive_interval(last),
        )

    def derive_pairs(self) -> list[Pair]:
        """Return every pair of rungs that was measured in all four ways; of a longer ladder those at its top."""
        pairs = []
        for first, second in shapley.pairs(self.rungs):
            weights = self._weigh_pair(first, second)
            if weights or self.is_whole:
                gain, interval = self.derive_gain(weights), self.derive_interval(weights)
                pairs.append(Pair(first=first, second=second, gain=gain, interval=interval))
        return pairs

    def _weigh_pair(self, first: str, second: str) -> Weights | None:
        if self.is_whole:
            return shapley.pair(self.rungs, self.logs, first, second)
        both = self.outs.get((first, second)) or self.outs.get((second, first))
        corners = (both, self.outs.get((first,)), self.outs.get((second,)), frozenset(self.rungs))
        known = [each for each in corners if each is not None and each in self.times]
        if len({*known}) < len(corners):
            return None
        return dict(zip(known, (-1.0, 1.0, 1.0, -1.0), strict=True))

    def derive_total(self, worth: Sequence[Worth]) -> Whole | None:
        """Return the whole ladder against its base, None unless both have a time."""
        weights = self.weigh_saving(NOTHING, frozenset(self.rungs))
        if weights is None:
            return None
        both = [(each.staircase, each.gain) for each in worth]
        sure = [(stair, mean) for stair, mean in both if stair is not None and mean is not None]
        apart = math.fsum(abs(stair - mean) for stair, mean in sure)
        whole = math.fsum(abs(stair) + abs(mean) for stair, mean in sure)
        return Whole(
            gain=shapley.applied(weights, self.logs),
            interval=self.derive_interval(weights),
            ms=shapley.applied(weights, self.times),
            orders=shapley.count(self.rungs, self.logs) if self.is_whole else None,
            moved=apart / whole if whole and len(sure) == len(worth) else None,
        )


def is_beyond_noise(pair: Pair, ablation: Ablation) -> bool:
    """Return whether a pair's gain is beyond the noise, at a level shared by all pairs (Bonferroni)."""
    if pair.gain is None or pair.interval is None or ablation.noise is None:
        return False
    freedom, level = ablation.noise.freedom, (1 - estimates.CONFIDENCE) / max(1, len(ablation.pairs))
    wider = estimates.t_quantile(1 - level / 2, freedom)
    wider /= estimates.t_quantile(0.5 + estimates.CONFIDENCE / 2, freedom)
    return abs(pair.gain) > wider * (pair.interval[1] - pair.interval[0]) / 2
