"""The timing of the ops of `kernels/` against plain PyTorch, torch.compile and a copy of the same bytes.

A case is finished before the next begins. Every contender is made, warmed up, checked against plain PyTorch and timed
in repeats; a wrong answer is not timed. Each repeat has new random inputs at new addresses, new graphs, and the
contenders in random order, so that drift hits all of them. Ours runs twice in every repeat: the difference of these
twins is noise. `ladder.studies.kernelbench.verdicts` judges the samples.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ladder.base.errors import describe, raise_if_environment
from ladder.base.events import CaseEvent
from ladder.base.records import ABSENT, Absent
from ladder.base.text import NO_TIME
from ladder.studies.kernelbench.calls import WAYS, call_of, compiling, copies, disagree, flat
from ladder.studies.kernelbench.cases.registry import DIRECTIONS, Case
from ladder.studies.kernelbench.launches import recorded_launches
from ladder.studies.kernelbench.schema import Dispatch, Launch, Measured, Samples
from ladder.studies.kernelbench.timing import COLD, EVENTS, GRAPH, HOT, Call, Cuda, Timer

OURS, TWIN, PLAIN, COMPILE, COPY = "ours", "twin", "plain", "compile", "copy"
CONTENDERS = (OURS, PLAIN, COMPILE)
LEAST_REPEATS, MOST_REPEATS = 5, 9
FEWEST_REPEATS = 3  # for a quick look, and for settings that are timed for comparison only
HOT_REPEATS = 3  # the verdict does not use hot numbers
OUT_OF_MEMORY = "out of memory"


@dataclass
class Row:
    """One case in one direction during its measurement. Samples are seconds, one value a repeat."""

    case: Case
    direction: str
    bytes: int | None
    moved: int  # sets the number of buffers; a double backward uses the backward's
    method: str | None = None
    samples: dict[str, dict[str, list[float]]] = field(default_factory=lambda: {COLD: {}, HOT: {}})
    captured: dict[tuple[str, str], int] = field(default_factory=dict)
    way: tuple[int, int] | None = None  # the fastest way to copy the yardstick
    reasons: dict[str, str] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dispatch: tuple[str, Any] | None = None  # the op, and the call's key in `kernels.alternatives`

    def contenders(self, temperature: str) -> list[str]:
        names = [name for name in CONTENDERS if name not in self.reasons]
        if temperature == COLD:
            names += [TWIN] * (OURS in names) + [COPY] * (self.bytes is not None)
        return names

    def drop(self, name: str, reason: str) -> None:
        """Drop a contender: keep the reason, and no partial samples."""
        self.reasons[name] = reason
        for samples in self.samples.values():
            samples.pop(name, None)
            if name == OURS:
                samples.pop(TWIN, None)

    def record(self, sitting: int | Absent = ABSENT) -> Measured:
        case = self.case
        us = {
            temperature: {name: [1e6 * s for s in values] for name, values in samples.items()}
            for temperature, samples in self.samples.items()
        }
        dispatch, taken = placed(self.dispatch)
        return Measured(
            case=case.name,
            op=case.op,
            function=case.entry.function,
            shape=list(case.shape),
            batch=case.batch,
            dtype=case.dtype,
            layout=case.layout,
            setting=case.setting,
            workloads=list(case.workloads),
            direction=self.direction,
            bytes=self.bytes,
            method=self.method,
            captured={f"{temperature} {name}": n for (name, temperature), n in self.captured.items()},
            notes=self.notes,
            samples_us=Samples(cold=us[COLD], hot=us[HOT]),
            reasons=self.reasons,
            launches=self.launches,
            dispatch=dispatch,
            taken=taken,
            sitting=sitting,
        )


class Bench:
    """A measurement of cases, in turn, on a device that `ladder.studies.kernelbench.timing` supports."""

    def __init__(self, gpu: Any, timer: Timer, *, seed: int = 0, backend: str = "inductor") -> None:
        self.gpu, self.timer, self.seed, self.backend = gpu, timer, seed, backend
        self.random = random.Random(seed)

    def case(self, case: Case, least: int, most: int, left_s: Callable[[], float]) -> Iterator[Any]:
        """Yield a word on the current work several times, then the list of rows.

        Repeats go on beyond `least` while `left_s()`, this case's share of the time, is not negative.
        """
        if reason := getattr(self.gpu, "broken", None):
            raise RuntimeError(reason)
        with compiling(), self.gpu.running():
            torch.compiler.reset()  # else the ninth shape of a function would silently run uncompiled
            functions = {OURS: case.fused, PLAIN: case.plain, COMPILE: self._compiled(case)}
            yield "prepare"
            rows, made = self._prepare(case, functions)
            for repeat in range(most):
                if repeat >= least and left_s() < 0:
                    break
                yield f"repeat {repeat + 1}"
                for row in rows:
                    self._repeat(row, made, repeat)
        yield rows

    def _compiled(self, case: Case) -> Callable[[], Callable[..., Tensor]]:
        def make() -> Callable[..., Tensor]:
            return torch.compile(case.reference(), backend=self.backend, dynamic=False, fullgraph=True)

        return make

    def _prepare(self, case: Case, functions: dict[str, Callable]) -> tuple[list[Row], dict[str, Callable]]:
        """Return the rows and the available contenders. Each contender has run twice in every supported direction."""
        inputs = case.tensors(self.gpu.name)
        moved = {d: case.bytes(inputs, d) for d in case.directions}
        rows = [Row(case, d, moved[d], moved[d] or moved["backward"]) for d in case.directions]
        dispatch = case.dispatch(inputs)
        for row in rows:
            row.dispatch = dispatch
            row.notes += filter(None, [self.timer.lukewarm(row.moved)])
        made: dict[str, Callable] = {}
        expected: dict[str, list[Tensor | None]] = {}
        for name in (PLAIN, OURS, COMPILE):  # plain first: the others are compared with it
            try:
                made[name] = functions[name]()
            except Exception as error:
                why = _reason(error)
                for row in rows:
                    row.drop(name, why)
                continue
            for row in rows:
                try:
                    self._check(row, name, made[name], expected)
                except Exception as error:
                    row.drop(name, _reason(error))
        self.gpu.forget()
        return rows, made

    def _check(self, row: Row, name: str, function: Callable, expected: dict[str, list]) -> None:
        torch.manual_seed(self.seed)
        (call,) = self._calls(row, function, 1)
        call()
        self.gpu.synchronize()
        begin = time.perf_counter()
        with recorded_launches(row.launches if name == OURS else []):
            results = flat(call())
        self.gpu.synchronize()
        if name != OURS and (took := time.perf_counter() - begin) > self.timer.rules.too_slow_s:
            row.drop(name, f"{took:.2g} s a call: not repeated")
        if name == PLAIN:
            expected[row.direction] = results
        elif row.direction in expected:
            disagree(results, expected[row.direction])

    def _repeat(self, row: Row, made: dict[str, Callable], repeat: int) -> None:
        """Add one value for every contender, in random order. The first repeat chooses the method for all of them."""
        for temperature in (COLD, HOT) if repeat < HOT_REPEATS else (COLD,):
            values = self._values(row, made, temperature)
            if row.method is None and values:
                fastest = min(values.values())
                row.method = EVENTS if fastest >= self.timer.rules.long_s else GRAPH
                if row.method == EVENTS:
                    row.way = None
                    values = self._values(row, made, temperature)
            for name, seconds in values.items():
                if name not in row.reasons and not (name == TWIN and OURS in row.reasons):
                    row.samples[temperature].setdefault(name, []).append(seconds)

    def _values(self, row: Row, made: dict[str, Callable], temperature: str) -> dict[str, float]:
        values, order = {}, row.contenders(temperature)
        self.random.shuffle(order)
        torch.manual_seed(self.random.randrange(2**31))
        for name in order:
            if name in row.reasons or (name == TWIN and OURS in row.reasons):
                continue
            try:
                values[name] = self._value(row, name, made, temperature)
            except Exception as error:
                row.drop(OURS if name == TWIN else name, _reason(error))
            self.gpu.forget()
        return values

    def _value(self, row: Row, name: str, made: dict[str, Callable], temperature: str) -> float:
        sets = self.timer.sets(row.moved, temperature)
        if name == COPY:
            return self._copied(row, sets, temperature)
        calls = self._calls(row, made[OURS if name == TWIN else name], sets)
        return self._timed(row, name, calls, temperature)

    def _copied(self, row: Row, sets: int, temperature: str) -> float:
        """Return the yardstick's seconds. The row's first call finds the fastest way to copy at this size."""
        found = {}
        for way in [row.way] if row.way else WAYS:
            if row.way is None:
                row.captured.pop((COPY, temperature), None)  # each way begins with the same number of calls
            calls = copies(row.bytes or 0, sets, self.gpu.name, way)
            found[way] = self._timed(row, COPY, calls, temperature)
        row.way = min(found, key=found.__getitem__)
        return found[row.way]

    def _timed(self, row: Row, name: str, calls: list[Call], temperature: str) -> float:
        for call in {calls[0], calls[-1]}:
            call()
        self.gpu.synchronize()
        if row.method == EVENTS:
            return self.timer.events(calls, temperature)
        start = row.captured.get((name, temperature), 8)
        seconds, row.captured[name, temperature] = self.timer.graph(calls, start)
        return seconds

    def _calls(self, row: Row, function: Callable, sets: int) -> list[Call]:
        return [call_of(row.case, row.direction, function, self.gpu.name) for _ in range(sets)]


def alone(
    case: Case, direction: str, temperature: str, name: str = OURS, repeats: int = LEAST_REPEATS
) -> list[float]:
    """Return the seconds of one call of one contender, a value for each fresh repeat. A history over commits uses it.

    Raises:
        AttributeError: this `kernels` has no such op.
    """
    gpu = Cuda()
    timer, samples = Timer(gpu), []
    with compiling(), gpu.running():
        torch.compiler.reset()
        moved = case.bytes(case.tensors(gpu.name), "backward" if direction == DIRECTIONS[2] else direction)
        row = Row(case, direction, None, moved or 1)
        bench = Bench(gpu, timer)
        function = {OURS: case.fused, PLAIN: case.plain, COMPILE: bench._compiled(case)}[name]()
        while len(samples) < repeats:
            torch.manual_seed(len(samples))
            seconds = bench._value(row, name, {name: function}, temperature)
            gpu.forget()
            if row.method is None:
                row.method = EVENTS if seconds >= timer.rules.long_s else GRAPH
                if row.method == EVENTS:
                    continue
            samples.append(seconds)
    return samples


def placed(dispatch: tuple[str, Any] | None) -> tuple[Dispatch | None, str | None]:
    """Return a call's key in the table of alternatives, and the table's choice for it."""
    if dispatch is None:
        return None, None
    from kernels import alternatives

    op, where = dispatch
    at = where._asdict() | {"dtype": str(where.dtype).removeprefix("torch.")}
    return Dispatch(op=op, **at), PLAIN if alternatives.takes(op, where) else None


def _reason(error: Exception) -> str:
    """Return why a contender has no number. Raises `EnvironmentFailure` where the system fails them all."""
    raise_if_environment(error)
    if isinstance(error, torch.OutOfMemoryError):
        return OUT_OF_MEMORY
    return describe(error)


@dataclass
class Allowance:
    """A time limit whose remainder is shared equally among the remaining cases."""

    minutes: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.end = self.clock() + 60 * self.minutes

    def share(self, cases_left: int) -> Callable[[], float]:
        """Return a function that gives the seconds left of the share of a case that begins now."""
        end = self.clock() + max(0.0, self.end - self.clock()) / max(1, cases_left)
        return lambda: end - self.clock()

    @property
    def over(self) -> bool:
        return self.clock() >= self.end


def run(
    bench: Bench,
    cases: Sequence[Case],
    allowance: Allowance,
    *,
    quick: bool,
    on_event: Callable[[CaseEvent], None],
    ahead: Callable[[int], None] = lambda index: None,
    sitting: int | Absent = ABSENT,
) -> tuple[list[Measured], bool]:
    """Return (rows, True unless interrupted). Cases without time left become rows with that reason.

    `ahead` gets the index of each case before its measurement, to compile it.
    """
    rows: list[Measured] = []
    most = FEWEST_REPEATS if quick else MOST_REPEATS
    try:
        for index, case in enumerate(cases):
            least = FEWEST_REPEATS if quick or case.setting else LEAST_REPEATS
            place = CaseEvent(case.name, index, len(cases))
            found = skipped(case, NO_TIME)
            if not allowance.over:
                ahead(index)
                try:
                    for said in bench.case(case, least, most, allowance.share(len(cases) - index)):
                        if isinstance(said, str):
                            on_event(replace(place, doing=said))
                        else:
                            found = said
                except Exception as error:  # the device is lost, so later cases fail too
                    found = skipped(case, _reason(error))
            made = [row.record(sitting) for row in found]
            rows += made
            on_event(replace(place, rows=made, done=index + 1))
    except KeyboardInterrupt:
        return rows, False
    return rows, True


def skipped(case: Case, reason: str) -> list[Row]:
    return [Row(case, d, None, 0, reasons=dict.fromkeys(CONTENDERS, reason)) for d in case.directions]
