"""The timing of an experiment's contenders side by side: fresh inputs and a new random order in every repeat.

The clock is that of `ladder kernels` (`ladder.studies.kernelbench.timing`), with a cold L2. A contender that cannot
run, or differs from the first in its result, has a reason in place of a number. The others go on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ladder.base.errors import Missing, describe, raise_if_environment
from ladder.base.text import NO_TIME
from ladder.studies.claims.schema import ExperimentResult
from ladder.studies.kernelbench.calls import disagree, flat
from ladder.studies.kernelbench.timing import COLD, EVENTS, GRAPH, Call, Timer
from ladder.studies.kernelbench.verdicts import summary

LEAST_REPEATS, MOST_REPEATS = 5, 9


@dataclass(frozen=True)
class Setting:
    """The device and the shape [N, C, H, W] of an experiment."""

    device: str
    shape: tuple[int, int, int, int]
    smoke: bool = False

    @property
    def numel(self) -> int:
        n, c, h, w = self.shape
        return n * c * h * w


Make = Callable[[Setting], Call]  # makes new inputs and returns a call on them; raises Missing


@dataclass(frozen=True)
class Experiment:
    """Contenders that do the same work, to be timed side by side.

    Args:
        contenders: name -> maker of one call on new inputs. All draw the same inputs from the same seed. The others'
            results are compared with the first's.
        passes: how often the activation crosses memory in one call. It sets the number of buffers, and the bandwidth
            where all contenders share it.
        itemsize: bytes of one element.
        unlike: contenders with other results, which are not compared.
        shares: contender -> its own passes, where they differ.
        moved: bytes of a call whose inputs are no activation.
        about: describes these inputs, for the result.
    """

    name: str
    title: str
    contenders: Mapping[str, Make]
    passes: float
    itemsize: int
    unlike: tuple[str, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    moved: Callable[[Setting], int] | None = None
    about: Callable[[Setting], str] | None = None

    def bytes(self, setting: Setting, contender: str | None = None) -> int:
        if self.moved is not None:
            return self.moved(setting)
        return int(self.shares.get(contender, self.passes) * self.itemsize * setting.numel)


@dataclass
class Timed:
    """An experiment during its measurement. Samples are seconds, one value a repeat."""

    experiment: Experiment
    setting: Setting
    method: str | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    captured: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def running(self) -> list[str]:
        return [name for name in self.experiment.contenders if name not in self.reasons]

    def drop(self, name: str, reason: str) -> None:
        self.reasons[name] = reason
        self.samples.pop(name, None)

    def record(self) -> ExperimentResult:
        experiment = self.experiment
        samples = {name: [1e6 * s for s in values] for name, values in self.samples.items()}
        return ExperimentResult(
            name=experiment.name,
            shape=list(self.setting.shape) if experiment.moved is None else [1],
            itemsize=experiment.itemsize,
            method=self.method,
            bytes={name: experiment.bytes(self.setting, name) for name in experiment.contenders},
            samples_us=samples,
            reasons=self.reasons,
            notes=([experiment.about(self.setting)] if experiment.about else []) + self.notes,
            us={name: summary(values) for name, values in samples.items()},
        )


class Stopwatch:
    """A stopwatch that prepares and repeats experiments on one device."""

    def __init__(self, gpu: Any, timer: Timer, seed: int = 0) -> None:
        self.gpu, self.timer, self.seed = gpu, timer, seed
        self.random = random.Random(seed)

    def prepare(self, timed: Timed, watch: Callable[[str, Call], None] = lambda name, call: call()) -> None:
        """Run every contender twice on the same inputs, to compile it, to compare it, and to let `watch` see it."""
        expected = None
        for name in timed.running:
            try:
                torch.manual_seed(self.seed)
                call = timed.experiment.contenders[name](timed.setting)
                results = flat(call())
                watch(name, call)
                self.gpu.synchronize()
                if name not in timed.experiment.unlike:
                    expected = results if expected is None else expected
                    disagree(results, expected)
            except Exception as error:
                timed.drop(name, reason_of(error))
            call = results = None
            self.gpu.forget()

    def repeat(self, timed: Timed) -> None:
        """Add one value for every remaining contender, in random order. The first repeat chooses the method."""
        if not timed.running:
            return
        values = self._values(timed)
        if timed.method is None and values:
            long = min(values.values()) >= self.timer.rules.long_s
            timed.method = EVENTS if long else GRAPH
            if long:
                values = self._values(timed)
        for name, seconds in values.items():
            if name not in timed.reasons:
                timed.samples.setdefault(name, []).append(seconds)

    def _values(self, timed: Timed) -> dict[str, float]:
        values, order = {}, timed.running
        self.random.shuffle(order)
        seed = self.random.randrange(2**31)
        for name in order:
            try:
                torch.manual_seed(seed)
                values[name] = self._value(timed, name)
            except Exception as error:
                timed.drop(name, reason_of(error))
            self.gpu.forget()
        return values

    def _value(self, timed: Timed, name: str) -> float:
        moved = timed.experiment.bytes(timed.setting, name)
        make = timed.experiment.contenders[name]
        calls = [make(timed.setting) for _ in range(self.timer.sets(moved, COLD))]
        for call in {calls[0], calls[-1]}:
            call()
        self.gpu.synchronize()
        if timed.method == EVENTS:
            return self.timer.events(calls, COLD)
        # The first capture only finds the length of a call. Two calls suffice, and each long call costs memory.
        seconds, timed.captured[name] = self.timer.graph(calls, timed.captured.get(name, 2))
        return seconds


def repeats(
    stopwatch: Stopwatch, all_timed: list[Timed], least: int, most: int, left_s: Callable[[], float]
) -> Iterator[str]:
    """Run every experiment `least` times, then again up to `most` times while `left_s()` is positive.

    Yields a word on the next experiment. An experiment without any time gets that as its reason.
    """
    for number in range(most):
        for timed in all_timed:
            if left_s() <= 0 and (number >= least or not timed.samples):
                if not timed.samples:
                    for name in timed.running:
                        timed.drop(name, NO_TIME)
                continue
            yield f"{timed.experiment.name}, repeat {number + 1}"
            stopwatch.repeat(timed)
        if number + 1 >= least and left_s() <= 0:
            return


def reason_of(error: Exception) -> str:
    raise_if_environment(error)
    if isinstance(error, Missing):
        return str(error)
    return "out of memory" if isinstance(error, torch.OutOfMemoryError) else describe(error)
