"""The timing of the ops of `kernels/` against plain PyTorch, torch.compile and a copy of the same bytes.

A case is finished before the next begins. Every contender is made, warmed up, checked against plain PyTorch and timed
in repeats; a wrong answer is not timed. Each repeat has new random inputs at new addresses, new graphs, and the
contenders in random order, so that drift hits all of them. Ours runs twice in every repeat: the difference of these
twins is noise. `ladder.studies.kernelbench.record` judges the samples.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ladder.core.errors import format_error, one_line, raise_if_environment
from ladder.studies.kernelbench.cases import DIRECTIONS, Case
from ladder.studies.kernelbench.timing import COLD, EVENTS, GRAPH, HOT, Call, Cuda, Timer

OURS, TWIN, PLAIN, COMPILE, COPY = "ours", "twin", "plain", "compile", "copy"
CONTENDERS = (OURS, PLAIN, COMPILE)
LEAST_REPEATS, MOST_REPEATS = 5, 9
FEWEST_REPEATS = 3  # for a quick look, and for settings that are timed for comparison only
HOT_REPEATS = 3  # the verdict does not use hot numbers
OUT_OF_MEMORY = "out of memory"
# Ways to copy the yardstick, in bytes: (page to which pieces are rounded up, largest piece).
# In a graph on an H200 the driver copied some sizes at up to 4.2 TB/s. Others, even some of whole pages, reached
# 2.7 TB/s or less.
WAYS = tuple((page, largest) for page in (1 << 12, 1 << 16) for largest in (128 << 20, 384 << 20))
TOLERANCE = 0.1  # relative L2 error over all results, from plain PyTorch in the same precision


@dataclass
class Row:
    """One case in one direction during its measurement. Samples are microseconds, one value a repeat."""

    case: Case
    direction: str
    bytes: int | None
    moved: int  # sets the number of buffers; a double backward uses the backward's
    method: str | None = None
    samples: dict[str, dict[str, list[float]]] = field(default_factory=lambda: {COLD: {}, HOT: {}})
    captured: dict[str, int] = field(default_factory=dict)  # calls in the graph of "cold ours"
    way: tuple[int, int] | None = None  # the fastest way to copy the yardstick
    reasons: dict[str, str] = field(default_factory=dict)
    launches: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dispatch: tuple[str, Any] | None = None  # the op, and the call's key in `kernels.alternatives`

    def list_contenders(self, temperature: str) -> list[str]:
        names = [name for name in CONTENDERS if name not in self.reasons]
        if temperature == COLD:
            names += [TWIN] * (OURS in names) + [COPY] * (self.bytes is not None)
        return names

    def drop(self, name: str, reason: str) -> None:
        """Drop a contender: keep the reason, and no partial samples."""
        name = OURS if name == TWIN else name
        self.reasons[name] = reason
        for samples in self.samples.values():
            for each in (name, TWIN) if name == OURS else (name,):
                samples.pop(each, None)

    def describe(self) -> dict[str, Any]:
        """Return what a file has of the direction, as plain data."""
        names = ("direction", "bytes", "method", "captured", "notes", "reasons", "launches")
        stored = {name: getattr(self, name) for name in names} | {"samples_us": self.samples}
        if self.dispatch is None:
            return stored
        from kernels import alternatives

        op, key = self.dispatch
        described = {"op": op, **key._asdict(), "dtype": str(key.dtype).removeprefix("torch.")}
        return stored | {"dispatch": described, "taken": PLAIN if alternatives.takes(op, key) else None}


class Bench:
    """A measurement of cases, in turn, on a device that `ladder.studies.kernelbench.timing` supports."""

    def __init__(self, gpu: Any, timer: Timer, *, seed: int = 0, backend: str = "inductor") -> None:
        self.gpu, self.timer, self.seed, self.backend = gpu, timer, seed, backend
        self.random = random.Random(seed)

    def measure_case(self, case: Case, least: int, most: int, left_s: Callable[[], float]) -> list[Row]:
        """Return a row for each direction.

        Repeats go on beyond `least` while `left_s()`, this case's share of the time, is not negative.
        """
        if reason := getattr(self.gpu, "broken", None):
            raise RuntimeError(reason)
        with compiling(), self.gpu.running():
            torch.compiler.reset()  # else the ninth shape of a function would silently run uncompiled
            rows, functions = self._prepare(case)
            for repeat in range(most):
                if repeat >= least and left_s() < 0:
                    break
                for row in rows:
                    self._repeat(row, functions, repeat)
        return rows

    def make_contender(self, name: str, case: Case) -> Callable[..., Any]:
        """Return a contender as a function of named tensors."""
        if name == COMPILE:
            return torch.compile(case.reference(), backend=self.backend, dynamic=False, fullgraph=True)
        return case.fused() if name == OURS else case.plain()

    def _prepare(self, case: Case) -> tuple[list[Row], dict[str, Callable[..., Any]]]:
        """Return the rows and the available contenders. Each contender has run twice in every supported direction."""
        inputs = case.tensors(self.gpu.name)
        moved = {d: case.bytes(inputs, d) for d in case.directions}
        rows = [Row(case, d, moved[d], moved[d] or moved["backward"] or 0) for d in case.directions]
        dispatch = case.dispatch(inputs)
        for row in rows:
            row.dispatch = dispatch
            row.notes += filter(None, [self.timer.lukewarm(row.moved)])
        functions: dict[str, Callable[..., Any]] = {}
        expected: dict[str, list[Tensor | None]] = {}
        for name in (PLAIN, OURS, COMPILE):  # plain first: the others are compared with it
            try:
                functions[name] = self.make_contender(name, case)
            except Exception as error:
                for row in rows:
                    row.drop(name, describe_failure(error))
                continue
            for row in rows:
                try:
                    self._check(row, name, functions[name], expected)
                except Exception as error:
                    row.drop(name, describe_failure(error))
        self.gpu.forget()
        return rows, functions

    def _check(self, row: Row, name: str, function: Callable[..., Any], expected: dict[str, Any]) -> None:
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
            compare_results(results, expected[row.direction])

    def _repeat(self, row: Row, functions: dict[str, Callable[..., Any]], repeat: int) -> None:
        """Add one value for every contender, in random order. The first repeat chooses the method for all of them."""
        for temperature in (COLD, HOT) if repeat < HOT_REPEATS else (COLD,):
            values = self._values(row, functions, temperature)
            if row.method is None and values:
                row.method = EVENTS if min(values.values()) >= self.timer.rules.long_s else GRAPH
                if row.method == EVENTS:
                    row.way = None
                    values = self._values(row, functions, temperature)
            for name, seconds in values.items():
                if (OURS if name == TWIN else name) not in row.reasons:
                    row.samples[temperature].setdefault(name, []).append(1e6 * seconds)

    def _values(
        self, row: Row, functions: dict[str, Callable[..., Any]], temperature: str
    ) -> dict[str, float]:
        values, order = {}, row.list_contenders(temperature)
        self.random.shuffle(order)
        torch.manual_seed(self.random.randrange(2**31))
        for name in order:
            if (OURS if name == TWIN else name) in row.reasons:
                continue
            try:
                values[name] = self.time_contender(row, name, functions, temperature)
            except Exception as error:
                row.drop(name, describe_failure(error))
            self.gpu.forget()
        return values

    def time_contender(
        self, row: Row, name: str, functions: dict[str, Callable[..., Any]], temperature: str
    ) -> float:
        """Return the seconds of one call."""
        sets = self.timer.sets(row.moved, temperature)
        if name == COPY:
            return self._copied(row, sets, temperature)
        calls = self._calls(row, functions[OURS if name == TWIN else name], sets)
        return self._timed(row, name, calls, temperature)

    def _copied(self, row: Row, sets: int, temperature: str) -> float:
        """Return the yardstick's seconds. The row's first call finds the fastest way to copy at this size."""
        seconds = {}
        for way in [row.way] if row.way else WAYS:
            if row.way is None:
                row.captured.pop(
                    f"{temperature} {COPY}", None
                )  # each way begins with the same number of calls
            calls = copies(row.bytes or 0, sets, self.gpu.name, way)
            seconds[way] = self._timed(row, COPY, calls, temperature)
        row.way = min(seconds, key=seconds.__getitem__)
        return seconds[row.way]

    def _timed(self, row: Row, name: str, calls: list[Call], temperature: str) -> float:
        for call in {calls[0], calls[-1]}:
            call()
        self.gpu.synchronize()
        if row.method == EVENTS:
            return self.timer.events(calls, temperature)
        key = f"{temperature} {name}"
        seconds, row.captured[key] = self.timer.graph(calls, row.captured.get(key, 8))
        return seconds

    def _calls(self, row: Row, function: Callable[..., Any], sets: int) -> list[Call]:
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
        row, bench = Row(case, direction, None, moved or 1), Bench(gpu, timer)
        functions = {name: bench.make_contender(name, case)}
        while len(samples) < repeats:
            torch.manual_seed(len(samples))
            seconds = bench.time_contender(row, name, functions, temperature)
            gpu.forget()
            if row.method is None:
                row.method = EVENTS if seconds >= timer.rules.long_s else GRAPH
                if row.method == EVENTS:
                    continue
            samples.append(seconds)
    return samples


def describe_failure(error: Exception) -> str:
    """Return why a contender has no number. Raises `EnvironmentFailure` where the system fails them all."""
    raise_if_environment(error)
    return OUT_OF_MEMORY if isinstance(error, torch.OutOfMemoryError) else format_error(error)


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


# --- the calls that are timed, the yardstick beside them, and the check of their results ------------------------------


def call_of(case: Case, direction: str, function: Callable[..., Any], device: str) -> Call:
    """Return the timed call, on its own inputs. Backward passes are `autograd.grad` alone, over a kept graph.

    - forward: the call, with gradients on, so that it saves what its backward needs;
    - backward: gradients of all inputs that have one;
    - double backward: the second differentiation of R1 and path length. It differentiates the penalty's gradients by
      all inputs and by the incoming gradient.
    """
    inputs = case.tensors(device)
    if direction == "forward":
        return lambda: function(**inputs)
    by = [inputs[name] for name in case.differentiated]
    results = function(**inputs)
    ys = [results] if isinstance(results, Tensor) else list(results)
    gs = [random_like(y).requires_grad_(direction == "double backward") for y in ys]
    if direction == "backward":
        return lambda: torch.autograd.grad(ys, by, gs, retain_graph=True)
    through = [inputs[name] for name in case.entry.penalty]
    first = torch.autograd.grad(ys, through, gs, create_graph=True)
    along = [random_like(t) for t in first]
    return lambda: torch.autograd.grad(first, [*by, *gs], along, retain_graph=True, allow_unused=True)


def random_like(t: Tensor) -> Tensor:
    """Return normal numbers in t's dtype and memory format, the same at each index in any format."""
    return torch.empty_like(t).copy_(torch.randn(t.shape, device=t.device))


def copies(total: int, sets: int, device: str, way: tuple[int, int] = WAYS[0]) -> list[Call]:
    """Return the yardstick: `copy_` of half as many bytes, so that reads and writes together are `total`, rounded up.

    way: an entry of WAYS. The fastest depends on the size, and the fastest is the yardstick.
    """
    page, largest = way
    count = max(1, -(-total // 2 // largest))
    size = max(1, -(-total // 2 // count // page)) * page

    def make_call() -> Call:
        sources = torch.randint(-128, 128, (count, size), dtype=torch.int8, device=device)
        pairs = [(source, torch.empty_like(source)) for source in sources.unbind()]
        return lambda: [target.copy_(source) for source, target in pairs]

    return [make_call() for _ in range(sets)]


def compare_results(results: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    """Raise ValueError where a result is missing, or differs from plain PyTorch's by more than rounding explains.

    A gradient that is zero may be missing.
    """
    square_error = square = 0.0
    for index, (got, want) in enumerate(zip(results, expected, strict=True)):
        if got is None and want is None:
            continue
        if got is None and want is not None and bool(want.any()):
            raise ValueError(f"result {index} is missing")
        other = torch.zeros_like(got if want is None else want)  # type: ignore[arg-type]
        ours, theirs = ((other if each is None else each).float() for each in (got, want))
        square_error += float((ours - theirs).square().sum())
        square += float(theirs.square().sum())
    if not square_error <= TOLERANCE**2 * square:
        raise ValueError(f"differs from plain PyTorch by {(square_error / max(square, 1e-30)) ** 0.5:.0%}")


def compiling() -> contextlib.AbstractContextManager[Any]:
    """Set torch.compile up for a backward that is run repeatedly over the same graph."""
    import torch._functorch.config as functorch

    if not hasattr(functorch, "donated_buffer"):  # an older torch allows retain_graph anyway
        return contextlib.nullcontext()
    return functorch.patch(donated_buffer=False)  # type: ignore[no-any-return]


def flat(results: Any) -> list[Tensor | None]:
    results = [results] if isinstance(results, Tensor) else results
    return [t if t is None else t.detach() for t in results]


@contextlib.contextmanager
def recorded_launches(launches: list[dict[str, Any]]) -> Iterator[None]:
    """Append every distinct launch of a Triton kernel inside, also from autograd's threads."""
    kinds: list[Any] = []
    with contextlib.suppress(ImportError):  # a fused op without Triton launches nothing
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        kinds = [JITFunction, InterpretedFunction]

    def watch(run: Any) -> Any:
        def run_watched(self: Any, *args: Any, grid: Any, **kwargs: Any) -> Any:
            launch = describe_launch(self, args, grid, kwargs)
            if launch not in launches:
                launches.append(launch)
            return run(self, *args, grid=grid, **kwargs)

        return run_watched

    with contextlib.ExitStack() as stack:
        for kind in kinds:
            stack.callback(setattr, kind, "run", kind.run)
            kind.run = watch(kind.run)
        yield


def describe_launch(kernel: Any, args: Sequence[Any], grid: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return kernel, grid, and the whole numbers that Triton compiled in: tile sizes, steps, warps, stages."""
    if callable(grid):
        grid = grid({**dict(zip(kernel.arg_names, args, strict=False)), **kwargs})
    chosen = {k: v for k, v in kwargs.items() if type(v) is int and k != "warmup"}
    choices = one_line(" ".join(f"{key}={value}" for key, value in sorted(chosen.items())))
    return {"kernel": kernel.__name__, "grid": [int(n) for n in grid], "choices": choices}
