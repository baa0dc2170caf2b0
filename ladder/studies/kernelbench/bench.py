"""The timing of the ops of `kernels/` against plain PyTorch, torch.compile and a copy of the same bytes.

A case is finished before the next begins. Every contender is made, warmed up, checked against plain PyTorch and timed
in repeats; a wrong answer is not timed. Each repeat has new random inputs at new addresses, new graphs, and the
contenders in random order, so that drift hits all of them. Ours runs twice in every repeat: the difference of these
twins is noise. `ladder.studies.kernelbench.record` judges the samples.

Triton kernels and torch.compile are compiled ahead on all cores, into caches on disk where the measuring process finds
them. Compiling and measuring never overlap.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ladder.core.errors import format_error, one_line, raise_if_environment
from ladder.receipts.watch import intercept_launches
from ladder.studies.kernelbench.cases import DIRECTIONS, Case, parse_case
from ladder.studies.kernelbench.timing import COLD, EVENTS, GRAPH, HOST, HOT, Call, Cuda, Timer

Functions = dict[str, Callable[..., Any]]  # by contender
Expected = dict[str, list[Tensor | None]]  # plain PyTorch's results by direction
OURS, TWIN, PLAIN, COMPILE, COPY = "ours", "twin", "plain", "compile", "copy"
NVIDIA = "nvidia"  # timed for the host only
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
    samples_us: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: {COLD: {}, HOT: {}, HOST: {}}
    )
    captured: dict[str, int] = field(default_factory=dict)  # calls in the graph of "cold ours"
    way: tuple[int, int] | None = None  # the fastest way to copy the yardstick
    reasons: dict[str, str] = field(default_factory=dict)
    launches: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dispatch: tuple[str, Any] | None = None  # the op, and the call's key in `kernels.alternatives`

    def drop(self, name: str, reason: str) -> None:
        """Drop a contender: keep the reason, and no partial samples."""
        self.reasons[name] = reason
        for samples in self.samples_us.values():
            for each in (name, TWIN) if name == OURS else (name,):
                samples.pop(each, None)

    def describe(self) -> dict[str, Any]:
        """Return what a file has of the direction, as plain data."""
        names = ("direction", "bytes", "method", "samples_us", "captured", "notes", "reasons", "launches")
        stored = {name: getattr(self, name) for name in names}
        if self.dispatch is None:
            return stored
        from kernels import alternatives

        op, key = self.dispatch
        described = {"op": op, **key._asdict(), "dtype": str(key.dtype).removeprefix("torch.")}
        return stored | {"dispatch": described, "taken": PLAIN if alternatives.takes(op, key) else None}


class Bench:
    """A measurement of cases, in turn, on a device that `ladder.studies.kernelbench.timing` supports."""

    def __init__(
        self, gpu: Any, timer: Timer, *, seed: int = 0, backend: str = "inductor", clone: Any = None,
        host_only: bool = False,
    ) -> None:  # fmt: skip
        """clone: NVIDIA's modules (`ladder.studies.upstream.source.load`). host_only: nothing else is timed."""
        self.gpu, self.timer, self.seed, self.backend = gpu, timer, seed, backend
        self.random, self.clone, self.host_only = random.Random(seed), clone, host_only

    def measure_case(self, case: Case, least: int, most: int, end: float) -> list[Row]:
        """Return a row for each direction. Repeats beyond `least` go on until `time.monotonic()` is `end`."""
        if reason := getattr(self.gpu, "broken", None):
            raise RuntimeError(reason)
        with compiling(), self.gpu.running():
            torch.compiler.reset()  # else the ninth shape of a function would silently run uncompiled
            rows, functions = self._prepare(case)
            for repeat in range(most):
                if repeat >= least and time.monotonic() > end:
                    break
                for row in rows:
                    self._repeat(row, functions, repeat)
        return rows

    def make_contender(self, name: str, case: Case) -> Callable[..., Any]:
        """Return a contender as a function of named tensors."""
        if name == NVIDIA:
            return case.theirs(self.clone, self.gpu.name)  # type: ignore[return-value]
        if name == COMPILE:
            return torch.compile(case.reference(), backend=self.backend, dynamic=False, fullgraph=True)
        return case.fused() if name == OURS else case.plain()

    def _prepare(self, case: Case) -> tuple[list[Row], Functions]:
        """Return the rows and the available contenders. Each contender has run twice in every supported direction."""
        inputs = case.tensors(self.gpu.name)
        moved = {d: case.bytes(inputs, d) for d in case.directions}
        rows = [Row(case, d, moved[d], moved[d] or moved["backward"] or 0) for d in case.directions]
        dispatch = case.dispatch(inputs)
        for row in rows:
            row.dispatch = dispatch
            row.notes += filter(None, [self.timer.lukewarm(row.moved)])
        functions: Functions = {}
        expected: Expected = {}
        names = [PLAIN, OURS, COMPILE]  # plain first: the others are compared with it
        if self.host_only:
            names.remove(COMPILE)
        if self.clone and case.theirs(self.clone, self.gpu.name):
            names.append(NVIDIA)
        for name in names:
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

    def _check(self, row: Row, name: str, function: Callable[..., Any], expected: Expected) -> None:
        torch.manual_seed(self.seed)
        call = call_of(tensors_of(name, row.case), row.direction, function, self.gpu.name)
        if self.gpu.name == "cuda":
            call()  # compiles; the interpreter would only take twice as long
        self.gpu.synchronize()
        begin = time.perf_counter()
        launches = row.launches if name == OURS else []
        with intercept_launches("kernels", functools.partial(note_launch, launches)):
            results = flat(call())
        self.gpu.synchronize()
        if name != OURS and (took := time.perf_counter() - begin) > self.timer.rules.too_slow_s:
            row.drop(name, f"{took:.2g} s a call: not repeated")
        if name == PLAIN:
            expected[row.direction] = results
        elif row.direction in expected:
            compare_results(results, expected[row.direction])

    def _repeat(self, row: Row, functions: Functions, repeat: int) -> None:
        """Add one value for every contender, in random order. The first repeat chooses the method for all of them."""
        temperatures = (HOST,) if self.host_only else (COLD, HOT, HOST)
        for temperature in temperatures if repeat < HOT_REPEATS else temperatures[:1]:
            values = self._time_all(row, functions, temperature)
            if row.method is None and values and temperature != HOST:
                row.method = EVENTS if min(values.values()) >= self.timer.rules.long_s else GRAPH
                if row.method == EVENTS:
                    row.way = None
                    values = self._time_all(row, functions, temperature)
            for name, seconds in values.items():
                if (OURS if name == TWIN else name) not in row.reasons:
                    row.samples_us[temperature].setdefault(name, []).append(1e6 * seconds)

    def _time_all(self, row: Row, functions: Functions, temperature: str) -> dict[str, float]:
        able = [name for name in functions if name not in row.reasons]
        values, order = {}, [name for name in able if name != NVIDIA or temperature == HOST]
        if temperature == COLD:
            order += [TWIN] * (OURS in order) + [COPY] * (row.bytes is not None)
        self.random.shuffle(order)
        torch.manual_seed(self.random.randrange(2**31))
        for name in order:
            contender = OURS if name == TWIN else name
            if contender in row.reasons:
                continue
            try:
                with self.gpu.launching():
                    values[name] = self.time_contender(row, name, functions, temperature)
            except Exception as error:
                row.drop(contender, describe_failure(error))
            self.gpu.forget()
        return values

    def time_contender(self, row: Row, name: str, functions: Functions, temperature: str) -> float:
        """Return the seconds of one call. A row's first copy finds the fastest way to copy at this size."""
        sets = self.timer.sets(row.moved, temperature)
        if name != COPY:
            function = functions[OURS if name == TWIN else name]
            as_trained = temperature == HOST
            calls = [
                call_of(tensors_of(name, row.case), row.direction, function, self.gpu.name, as_trained)
                for _ in range(sets)
            ]
            return self._time_calls(row, name, calls, temperature)
        seconds = {}
        for way in [row.way] if row.way else WAYS:
            if row.way is None:  # each way begins with the same number of calls
                row.captured.pop(f"{temperature} {COPY}", None)
            calls = copies(row.bytes or 0, sets, self.gpu.name, way)
            seconds[way] = self._time_calls(row, COPY, calls, temperature)
        row.way = min(seconds, key=seconds.__getitem__)
        return seconds[row.way]

    def _time_calls(self, row: Row, name: str, calls: list[Call], temperature: str) -> float:
        for call in {calls[0], calls[-1]}:
            call()
        self.gpu.synchronize()
        if temperature == HOST:
            return self.timer.host(calls[0])
        if row.method == EVENTS:
            return self.timer.events(calls, temperature)
        key = f"{temperature} {name}"
        seconds, row.captured[key] = self.timer.graph(calls, row.captured.get(key, 8))
        return seconds


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


# --- the calls that are timed, the yardstick beside them, and the check of their results ------------------------------


def call_of(
    case: Case, direction: str, function: Callable[..., Any], device: str, as_trained: bool = False
) -> Call:
    """Return the timed call, on its own inputs. Backward passes are `autograd.grad` alone, over a kept graph.

    - forward: the call, with gradients on, so that it saves what its backward needs;
    - backward: gradients of all inputs that have one;
    - double backward: the second differentiation of R1 and path length. It differentiates the penalty's gradients by
      all inputs and by the incoming gradient.

    as_trained: gradients reach `.grad` of the leaves, as in a training step. `autograd.grad` has a path of its own for
    leaves, which takes the CPU longer.
    """
    inputs = case.tensors(device)
    if direction == "forward":
        return lambda: function(**inputs)
    by = [inputs[name] for name in case.differentiated]
    results = function(**inputs)
    ys = [results] if isinstance(results, Tensor) else list(results)
    gs = [random_like(y).requires_grad_(direction == "double backward") for y in ys]
    if direction == "backward":
        if as_trained:
            return lambda: run_backward(ys, gs, by)
        return lambda: torch.autograd.grad(ys, by, gs, retain_graph=True)
    through = [inputs[name] for name in case.entry.penalty]
    first = torch.autograd.grad(ys, through, gs, create_graph=True)
    along = [random_like(t) for t in first]
    if as_trained:
        return lambda: run_backward(first, along, [*by, *gs])
    return lambda: torch.autograd.grad(first, [*by, *gs], along, retain_graph=True, allow_unused=True)


def tensors_of(name: str, case: Case) -> Case:
    """Return the case whose tensors a contender gets: NVIDIA's knows no bfloat16."""
    return replace(case, dtype="fp16") if name == NVIDIA and case.dtype == "bf16" else case


def run_backward(ys: Sequence[Tensor], gs: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
    """Run a backward pass that leaves its gradients in `.grad`, which the next one replaces."""
    for leaf in leaves:
        leaf.grad = None
    torch.autograd.backward(ys, gs, retain_graph=True)


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

    return functorch.patch(donated_buffer=False)  # type: ignore[no-any-return]


def flat(results: Any) -> list[Tensor | None]:
    results = [results] if isinstance(results, Tensor) else results
    return [t if t is None else t.detach() for t in results]


def note_launch(
    launches: list[Any], kernel: Any, args: Sequence[Any], options: Mapping[str, Any], _: Any
) -> None:
    """Add kernel, grid, and the whole numbers that Triton compiled in: tile sizes, steps, warps, stages."""
    grid = options["grid"]
    if callable(grid):
        grid = grid({**dict(zip(kernel.arg_names, args, strict=False)), **options})
    choices = " ".join(f"{key}={value}" for key, value in sorted(options.items()) if type(value) is int)
    launch = {"kernel": kernel.fn.__name__, "grid": [int(n) for n in grid], "choices": one_line(choices)}
    if launch not in launches:
        launches.append(launch)


# --- compiling ahead --------------------------------------------------------------------------------------------------

AT_ONCE = 64  # cases in a batch; small, so that a run that ends early compiles little in vain
MOST_PROCESSES = 16  # each imports torch and holds a GPU context of half a gigabyte
STUCK_S = 300  # longer than any batch takes
GPU_BYTES_EACH = 8 * 2**30  # for the inputs, results and gradients of the largest cases
WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from ladder.studies.kernelbench.bench import serve; serve(*sys.argv[2:])"
)


class Ahead:
    """A compiler of a run's cases, batch by batch, each before its first case is measured.

    Processes that call torch.compile wait between batches. If this process is killed, their input ends, and they end.
    """

    def __init__(
        self, cases: Sequence[Case], gpu: Any, backend: str | None, report: Callable[[str], Any]
    ) -> None:
        """backend: torch.compile's, or None where nothing calls torch.compile."""
        self.cases, self.gpu, self.backend, self.report = cases, gpu, backend, report
        self.running: list[subprocess.Popen] = []

    def __call__(self, index: int) -> None:
        """Compile the batch that begins at case `index`, if one does."""
        if index % AT_ONCE:
            return
        batch = self.cases[index : index + AT_ONCE]
        self.report(f"compiling the next cases: {len(batch)}")
        if (
            not self.running and self.backend and self.gpu.name == "cuda"
        ):  # on a CPU a smoke test compiles nothing
            from ladder.machine import system

            self.start(min(MOST_PROCESSES, system.usable_cores(), self.gpu.memory // GPU_BYTES_EACH))
        with contextlib.suppress(Exception):  # a failure comes again when its case is measured
            compile_ours(batch, self.gpu)  # meanwhile the processes import torch
        self.compile_theirs([case.name for case in batch])

    def start(self, count: int) -> None:
        """Start processes that `serve`, in a session of their own: Ctrl-C is for the measuring process."""
        from kernels.precompile import keep_cache

        keep_cache()  # the processes share this process's cache
        # One thread each: by default Inductor starts a thread for every core in each process.
        env = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, "-c", WORKER, json.dumps(sys.path), self.backend, self.gpu.name]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.running = [
            subprocess.Popen(command, env=env, start_new_session=True, **pipes) for _ in range(count)
        ]

    def compile_theirs(self, names: Sequence[str]) -> list[str]:
        """Compile cases by name, each on the next free process. Return the names that succeeded.

        Others, those that want more memory for example, are left to the measuring process.
        """
        waiting, done = list(names), []

        def feed(process: subprocess.Popen) -> None:
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has died, or no name is left
                while process.poll() is None:
                    name = waiting.pop(0)
                    process.stdin.write(f"{name}\n".encode())
                    process.stdin.flush()
                    if process.stdout.readline() == b"ok\n":
                        done.append(name)

        watch = threading.Timer(STUCK_S, self.kill)
        watch.start()
        try:
            with ThreadPoolExecutor(max(1, len(self.running))) as threads:
                list(threads.map(feed, self.running))
        finally:
            watch.cancel()
        return done

    def kill(self) -> None:
        for process in self.running:
            process.kill()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *how: Any) -> None:
        self.kill()
        for process in self.running:
            with contextlib.suppress(BrokenPipeError), process:  # closes its pipes and waits
                pass


def compile_ours(cases: Sequence[Case], gpu: Any) -> Any:
    """Compile every Triton kernel of these cases into Triton's cache. A failed kernel is compiled at its launch.

    Returns:
        a `kernels.precompile.Report`.
    """
    from kernels.precompile import compile_ahead

    def call_each() -> None:
        for case in cases:
            for direction in case.directions:
                with contextlib.suppress(Exception):  # it comes again, and is then a row's reason
                    call_of(case, direction, case.fused(), gpu.name)()
                gpu.forget()

    with gpu.running():
        return compile_ahead(call_each)


def compile_case(case: Case, backend: str, device: str) -> None:
    """Compile a case as `Bench` does for its contender `compile`, once in each supported direction."""
    from torch._inductor import config

    # Tiles are timed only while nothing else uses the GPU; here they are just compiled.
    with compiling(), config.patch(autotune_local_cache=False):
        torch.compiler.reset()
        function = torch.compile(case.reference(), backend=backend, dynamic=False, fullgraph=True)
        for direction in case.directions:
            if direction != "double backward":  # torch.compile does not support it
                call_of(case, direction, function, device)()
    if device == "cuda":
        torch.cuda.empty_cache()


def serve(backend: str, device: str) -> None:
    """Read names of cases, and answer each with a line after compiling it."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keeps other output out of the answers
    for line in sys.stdin:
        try:
            compile_case(parse_case(line.strip()), backend, device)
            print("ok", file=answers)
        except Exception:  # it comes again, and is then a row's reason
            print("failed", file=answers)
