"""What `ladder watch` runs inside a training's process: it finds steps, profiles a few, and writes what it saw.

One file that needs the standard library and PyTorch 2.4 alone. A step of the training ends when an optimizer steps. The
watch counts these calls, times them, profiles some with stacks, writes its observation, and takes itself out of the
process. It judges nothing: `ladder watch --report` does. No fault of the watch reaches the training.

In a notebook: `from ladder_watch import watch; watch("watch.json")` before the training, in a folder with this file.
"""

from __future__ import annotations

import atexit
import bisect
import contextlib
import functools
import gc
import importlib.util
import json
import linecache
import math
import os
import re
import statistics
import sys
import sysconfig
import time
import warnings
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

VARIABLE = "LADDER_WATCH"  # holds the settings as JSON
MOST_STEPS, FEWEST_STEPS, MOST_WINDOW_S = 32, 4, 30.0  # of a window whose length is not given
MOST_ROWS, MOST_NODES, MOST_KERNELS = 2000, 100_000, 60_000
FAR = 4.0  # times the median of an operator's durations
LOOKS = 4  # at the graphs that the user's variables hold
Facts = dict[str, Any]
LIBRARIES = (os.path.dirname(os.path.abspath(__file__)), sysconfig.get_path("stdlib"))
# Files of PyTorch between a user's line and an operator that say what the operator is for.
PURPOSES = {
    "spectral_norm.py": "spectral_norm", "weight_norm.py": "weight_norm", "clip_grad.py": "clip_grad",
    "grad_scaler.py": "grad_scaler", "_tensor_str.py": "print", "swa_utils.py": "average", "optim/": "optimizer",
    "utils/data/": "loader",
}  # fmt: skip
NORMS = {"_SpectralNorm": "spectral_norm", "_WeightNorm": "weight_norm"}  # modules of parametrizations
WEIGHTED = ("conv", "mm", "linear", "matmul")  # operators that multiply with weights
CONVOLUTION, REDUCTION = "aten::convolution", "c10d::allreduce_"
SYNCHRONIZING = {"aten::_local_scalar_dense": "item", "aten::nonzero": "nonzero"}


def begin() -> None:
    """Start the watch if `ladder watch` began this process, unless it is another rank's."""
    if (settings := os.environ.get(VARIABLE)) and os.environ.get("RANK", "0") == "0":
        _attach(Watch(**json.loads(settings)))


def watch(path: str, skip: int = 40, steps: int | None = None) -> None:
    """Watch the training that this process, such as a notebook's, runs next; write the observation to `path`."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(f"{path}.claim")  # of an earlier call
    _attach(Watch(path, skip, steps))


def _attach(watch: Watch) -> None:
    if "torch" in sys.modules:
        watch.attach()
    else:
        _call_after_import(watch.attach)


def _call_after_import(then: Callable[[], None]) -> None:
    """Call a function once `torch` is imported: the watch must not import it before the user does."""

    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(finder)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            calls = lambda module: [execute(module), then()]  # type: ignore[func-returns-value]  # noqa: E731
            spec.loader.exec_module = calls  # type: ignore[method-assign, assignment]
        return spec

    finder: Any = SimpleNamespace(find_spec=find_spec)
    sys.meta_path.insert(0, finder)


# --- lines of the user's code -----------------------------------------------------------------------------------------

_FOLDER = os.getcwd()
LINES: dict[str, str] = {}  # name of a line -> its text


@functools.cache
def find_file(name: str) -> str:
    """Return the path of a file, which the profiler names without the folder of `sys.path` in which it lies."""
    if os.path.isabs(name) or name.startswith("<"):
        return name
    folders = sorted({os.path.abspath(each) for each in sys.path}, key=len, reverse=True)
    paths = [path for folder in folders if os.path.exists(path := os.path.join(folder, name))]
    loaded = {getattr(each, "__file__", None) for each in list(sys.modules.values())}
    return next((path for path in paths if path in loaded), paths[0] if paths else os.path.abspath(name))


@functools.cache
def is_users(file: str) -> bool:
    """Return whether a file is the user's own: no library's, and none of Python's."""
    path = find_file(file)
    return not (path.startswith(("<", *LIBRARIES)) or "site-packages" in path or "dist-packages" in path)


@functools.cache
def name_line(file: str, line: int) -> str:
    """Return `train.py:12`, relative to the working folder, or with the file's own folder alone."""
    path = find_file(file)
    is_below = path.startswith(_FOLDER + os.sep)
    name = os.path.relpath(path, _FOLDER) if is_below else os.sep.join(path.split(os.sep)[-2:])
    LINES.setdefault(f"{name}:{line}", linecache.getline(path, line).strip()[:160])
    return f"{name}:{line}"


def list_frames() -> Iterator[FrameType]:
    """Yield the frames of the user's code below this call, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def find_line() -> str:
    """Return the innermost line of the user's code that runs, "" if there is none."""
    frame = next(list_frames(), None)
    return name_line(frame.f_code.co_filename, frame.f_lineno) if frame else ""


# --- the watch --------------------------------------------------------------------------------------------------------


class Watch:
    """Counts steps, observes some, writes the observation, and ends.

    Args:
        path: file of the observation. `PATH.claim` beside it belongs to the first process that steps.
        skip: steps before the first that is profiled.
        steps: profiled steps; None means a period of lazy regularization.
        stop: end the program once the observation is written.
    """

    def __init__(self, path: str, skip: int, steps: int | None, stop: bool = False) -> None:
        self.path, self.skip, self.steps, self.stop = os.path.abspath(path), max(skip, 2), steps, stop
        self.optimizers: list[Facts] = []
        self.objects: list[Any] = []  # a function for each optimizer that returns it, or None once it is gone
        self.calls: list[int] = []  # which optimizer stepped, in order
        self.runs: Counter[int] = Counter()  # how often an optimizer stepped after another one
        self.anchor, self.clock = 0, 0.0  # the optimizer that ends a step, and when the last one ended
        self.began, self.penalties = 0, 0  # calls before this step; autograd.grad(create_graph=True) in it
        self.walls_ms: list[float] = []
        self.signs: list[Any] = []  # of each step, what of it may be lazy
        self.loaders: dict[str, Facts] = {}
        self.empty_caches: Counter[str] = Counter()
        self.graphs: dict[str, list[int]] = defaultdict(list)  # line -> nodes of autograd at each look
        self.gradients: dict[int, tuple[int, int, int]] = {}
        self.dropped: Counter[tuple[int, int]] = Counter()
        self.facts: Facts = {"scalers": [], "parallels": [], "idle": []}
        self.undo: list[Callable[[], Any]] = []
        self.profile: Any = None
        self.mode: Any = None
        self.marks: list[Mark] = []
        self.bounds: list[int] = []  # ns, at which the steps of a window ended
        self.stage, self.window_began, self.length = "skip", 0.0, FEWEST_STEPS
        self.is_captured = self.is_done = False
        self.loop = ("", "")  # the file and the function in which the first optimizer steps

    # -- hooks in PyTorch

    def attach(self) -> None:
        """Hook into PyTorch, which has just been imported."""
        try:
            import torch
            from torch.optim.optimizer import register_optimizer_step_post_hook
            from torch.utils.data.dataloader import _BaseDataLoaderIter

            self.torch = torch
            self.undo.append(register_optimizer_step_post_hook(self.after_step).remove)
            self._wrap(_BaseDataLoaderIter, "__next__", self.note_batch)
            self._wrap(torch.nn.parallel.DistributedDataParallel, "__init__", self.note_parallel)
            self._wrap(torch.amp.GradScaler, "__init__", self.note_scaler)
            self._wrap(torch.autograd, "grad", self.note_penalty)
            self._wrap(torch.cuda, "empty_cache", self.note_empty_cache)
            self._wrap(torch.cuda.CUDAGraph, "replay", self.note_replay)
            atexit.register(self.note_end)
        except Exception as error:
            self.give_up(error)

    def _wrap(self, owner: Any, name: str, note: Callable[..., None]) -> None:
        """Call `note(seconds, *arguments)` after each call of a function, until the watch is done."""
        call = getattr(owner, name)

        @functools.wraps(call)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if self.is_done or self.torch.compiler.is_compiling():
                return call(*args, **kwargs)
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                with contextlib.suppress(Exception):
                    note(time.perf_counter() - begin, *args, **kwargs)

        setattr(owner, name, observed)
        self.undo.append(lambda: setattr(owner, name, call) if getattr(owner, name) is observed else None)

    def note_batch(self, seconds: float, batches: Any) -> None:
        if self.stage == "skip" and len(self.walls_ms) >= self.skip // 2:
            facts = {"line": find_line(), "workers": batches._num_workers, "waits_ms": []}
            self.loaders.setdefault(facts["line"], facts)["waits_ms"].append(1e3 * seconds)

    def note_parallel(self, _: float, parallel: Any, *args: Any, **kwargs: Any) -> None:
        of_gradients = sum(p.numel() * p.element_size() for p in parallel.parameters() if p.requires_grad)
        self.facts["parallels"].append({
            "line": find_line(), "finds_unused": bool(parallel.find_unused_parameters),
            "bucket_mib": parallel.bucket_bytes_cap / 2**20, "gradients_mib": of_gradients / 2**20,
        })  # fmt: skip

    def note_scaler(self, _: float, scaler: Any, *args: Any, **kwargs: Any) -> None:
        self.facts["scalers"] += [find_line()] * scaler.is_enabled()

    def note_penalty(self, _: float, *args: Any, **kwargs: Any) -> None:
        self.penalties += bool(kwargs.get("create_graph") or (len(args) > 4 and args[4]))

    def note_empty_cache(self, _: float) -> None:
        if self.calls:
            self.empty_caches[find_line()] += 1

    def note_replay(self, _: float, graph: Any) -> None:
        if self.is_captured:  # an optimizer stepped in a capture, so it steps in a replay
            self.after_step(graph)

    # -- steps

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Count a call of an optimizer's `step`. PyTorch calls it after each."""
        if self.is_done or self.torch.compiler.is_compiling():
            return
        try:
            if has_gpu(self.torch) and self.torch.cuda.is_current_stream_capturing():
                self.is_captured = True
                return
            self._count(optimizer)
        except Exception as error:
            self.give_up(error)
        if self.is_done and self.stop and self.stage == "stacks":
            raise SystemExit(0)

    def _count(self, optimizer: Any) -> None:
        mark, now = time.time_ns(), time.perf_counter()
        if not self.objects and not self._claim():
            return self.detach()
        known = next((k for k, each in enumerate(self.objects) if each() is optimizer), None)
        if known is None:
            known = self._register(optimizer)
        is_first = len(self.objects) == 1 or self.calls[-1] != known
        self.calls.append(known)
        self.marks.append((mark, known))
        self.runs[known] += is_first
        if self.runs[known] > self.runs[self.anchor] + 1:  # an optimizer that seldom steps ends no step
            self.anchor = known
        if is_first and known == self.anchor:
            if self.clock:
                self._end_step(1e3 * (now - self.clock))
            self.began, self.penalties, self.clock = len(self.calls), 0, time.perf_counter()

    def _claim(self) -> bool:
        """Return whether this process is the one to watch: rank 0, and the first that steps."""
        shared = self.torch.distributed
        if shared.is_available() and shared.is_initialized() and shared.get_rank():
            return False
        try:
            os.close(os.open(f"{self.path}.claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def _register(self, optimizer: Any) -> int:
        if not self.objects and (frame := next(list_frames(), None)):
            self.loop = find_file(frame.f_code.co_filename), frame.f_code.co_name
        self.objects.append(weakref.ref(optimizer))
        options, tensors = (getattr(optimizer, "param_groups", None) or [{}])[0], self._list_weights(-1)
        facts: Facts = {key: bool(options.get(key)) for key in ("fused", "capturable")} | {"backward": []}
        facts |= {"name": type(optimizer).__name__, "line": find_line(), "tensors": len(tensors)}
        self.optimizers.append(facts)
        return len(self.objects) - 1

    def _list_weights(self, index: int) -> list[Any]:
        groups = getattr(self.objects[index](), "param_groups", [])
        return [each for group in groups for each in group["params"]]

    def _end_step(self, took_ms: float) -> None:
        self.bounds.append(time.time_ns())
        if self.stage != "skip":
            over = time.perf_counter() - self.window_began > MOST_WINDOW_S
            if len(self.bounds) >= self.length or over:
                self._close_window()
            return
        self.walls_ms.append(took_ms)
        self.signs.append((tuple(self.calls[self.began :]), self.penalties))
        half = self.skip // 2
        if len(self.walls_ms) == half:
            self.cpu_clock = time.process_time(), time.perf_counter()
            self._sample_gradients()
        if len(self.walls_ms) in {half + k * (self.skip - half) // (LOOKS - 1) for k in range(LOOKS)}:
            self._look_at_graphs()
        if len(self.walls_ms) == self.skip:
            self._end_skip()

    def _end_skip(self) -> None:
        took = time.process_time() - self.cpu_clock[0], time.perf_counter() - self.cpu_clock[1]
        self.facts |= {"busy_cores": took[0] / max(took[1], 1e-9), "compiled": self._count_compilations()}
        self.facts["retries"] = self._count_retries()
        counts = Counter(self.signs)
        rarest = min(counts, key=lambda sign: (counts[sign] == 1, counts[sign]))  # a lazy phase comes again
        places = [place for place, sign in enumerate(self.signs) if sign == rarest]
        period = places[-1] - places[-2] if len(places) > 1 else 1
        self.length = self.steps or min(max(FEWEST_STEPS, period), MOST_STEPS)
        self._open_window("idle" if has_gpu(self.torch) else "stacks")

    def _sample_gradients(self) -> None:
        """Note, for some weights of each optimizer, when a gradient is computed."""
        for index in range(len(self.objects)):
            weights = [each for each in self._list_weights(index) if each.ndim > 1 and each.requires_grad]
            for weight in weights[:: max(1, len(weights) // 3)]:
                note = functools.partial(self.note_gradient, index)
                self.undo.append(weight.register_post_accumulate_grad_hook(note).remove)

    def note_gradient(self, index: int, weight: Any) -> None:
        """Count a gradient that was dropped: a new one begins, and the optimizer has not stepped in between.

        A tensor's version grows by one where a gradient is added to an old one.
        """
        if self.stage == "skip" and weight.grad is not None:
            calls, version = self.calls.count(index), weight.grad._version
            stamp, old_calls, old_version = self.gradients.get(id(weight), (0, -1, 0))
            if old_calls == calls and version != old_version + 1 and stamp < len(self.calls):
                self.dropped[index, self.calls[stamp]] += 1
            self.gradients[id(weight)] = len(self.calls), calls, version

    def _look_at_graphs(self) -> None:
        """Count the nodes of autograd that each variable of the user's functions holds: a tensor or a container."""
        for frame in list_frames():
            values = dict(frame.f_locals)
            inside = getattr(values.get("self"), "__dict__", {})
            values |= {f"self.{key}": each for key, each in inside.items()}
            for name, value in values.items():
                held = list(value.values()) if type(value) is dict else value
                tensors = held if type(held) in (list, tuple, deque) else [value]  # an iterator must not move
                if any(type(each) is self.torch.Tensor for each in tensors):
                    self.graphs[find_assignment(frame, name)].append(count_nodes(tensors))

    def _count_compilations(self) -> dict[str, int]:
        """Return how often `torch.compile` has compiled each function so far."""
        if "torch._dynamo" not in sys.modules:
            return {}
        from torch._dynamo.utils import get_compilation_metrics

        places = [(each.co_filename, each.co_firstlineno) for each in get_compilation_metrics()]
        return Counter(name_line(file, line or 1) for file, line in places if file)

    def _count_retries(self) -> int:
        return int(self.torch.cuda.memory_stats()["num_alloc_retries"]) if has_gpu(self.torch) else 0

    # -- windows

    def _open_window(self, stage: str) -> None:
        torch, self.stage = self.torch, stage
        synchronize(self.torch)
        kinds, is_whole = torch.profiler.supported_activities(), stage == "stacks"
        kinds = kinds if is_whole else kinds & {torch.profiler.ProfilerActivity.CUDA}
        with warnings.catch_warnings():  # of PyTorch, on what the profiler keeps
            warnings.simplefilter("ignore")
            details = {"with_stack": is_whole, "record_shapes": is_whole}
            self.profile = torch.profiler.profile(activities=kinds, **details)
            self.profile.start()
        if is_whole and not self._count_compilations():  # compiled code would be compiled anew
            self.mode = make_mode(torch)
            self.mode.__enter__()
        self.marks, self.bounds = [(time.time_ns(), self.calls[-1])], []
        self.window_began = time.perf_counter()

    def _close_window(self) -> None:
        if self.mode is not None and self.torch.overrides._get_current_function_mode() is self.mode:
            self.mode.__exit__(None, None, None)
        synchronize(self.torch)
        self.profile.stop()
        results, self.profile = self.profile.profiler.kineto_results, None
        if self.stage == "idle":
            self.facts |= {"idle": list_idle(results, self.marks), "idle_steps": len(self.bounds)}
            if self.steps is None:  # a kernel with its stack takes a millisecond to digest
                kernels = sum(each["kernels"] for each in self.facts["idle"])
                self.length = max(1, min(self.length, self.length * MOST_KERNELS // max(kernels, 1)))
            return self._open_window("stacks")
        weights = {index: self._list_weights(index) for index in range(len(self.objects))}
        weights[UNOWNED] = self._list_unowned({id(p) for each in weights.values() for p in each})
        owners = {p.untyped_storage().data_ptr(): index for index, each in weights.items() for p in each}
        digest = Digest(results, self.marks, owners, self.loop)
        for index, lines in digest.backward.items():
            self.optimizers[index]["backward"] = sorted(lines)
        self._write(digest, len(weights[UNOWNED]))
        self.detach()

    def _list_unowned(self, owned: set[int]) -> list[Any]:
        """Return the weights that have a gradient and belong to no optimizer."""
        kind = self.torch.nn.Parameter
        weights = [each for each in gc.get_objects() if type(each) is kind and id(each) not in owned]
        return [each for each in weights if each.is_leaf and each.grad is not None]

    def _write(self, digest: Digest, unowned: int) -> None:
        half, calls = self.skip - self.skip // 2, Counter(index for _, index in self.marks[1:])
        before, after = self.facts["compiled"], self._count_compilations()
        breaks: dict[str, int] = {}
        if "torch._dynamo" in sys.modules:
            breaks = dict(sys.modules["torch._dynamo.utils"].counters["graph_break"])
        for k, each in enumerate(self.optimizers):
            own = calls[k] * sum(p.numel() * p.element_size() for p in self._list_weights(k))
            each |= {"calls": calls[k], "reduced": digest.count_reduced(k) / max(own, 1)}
        self.facts |= {
            "what": "watch", "version": 1, **describe_machine(self.torch), "walls_ms": self.walls_ms,
            "window": len(self.bounds), "unowned": unowned, "rows": digest.list_rows(),
            "synchronizations": digest.list_synchronizations(),
            "optimizers": self.optimizers, "new_shapes": digest.measure_new_shapes(self.bounds),
            "loaders": [each | {"steps": half} for each in self.loaders.values()],
            "dropped": [{"owner": o, "phase": k, "count": n, "steps": half} for (o, k), n in self.dropped.items()],
            "graphs": {line: each for line, each in self.graphs.items() if len(each) == LOOKS},
            "empty_caches": {line: n / self.skip for line, n in self.empty_caches.items() if n > 1},
            "compiled": {line: n - before.get(line, 0) for line, n in after.items() if n > before.get(line, 0)},
            "breaks": {str(reason).splitlines()[0][:200]: n for reason, n in breaks.items()},
            "retries": self._count_retries() - self.facts["retries"],
        }  # fmt: skip
        named = json.dumps(self.facts)
        self.facts["lines"] = {line: text for line, text in LINES.items() if f'"{line}"' in named}
        write_file(self.path, self.facts)

    def note_end(self) -> None:
        """Note how far the training came, if it ends before the watch does."""
        if not self.is_done and self.calls:
            with contextlib.suppress(Exception):
                write_file(f"{self.path}.claim", {"steps": len(self.walls_ms), "stage": self.stage})

    def give_up(self, error: Exception) -> None:
        """Note why the watch ends, and leave the training alone."""
        with contextlib.suppress(Exception):
            write_file(f"{self.path}.claim", {"fault": f"{type(error).__name__}: {error}".splitlines()[0]})
        with contextlib.suppress(Exception):
            if self.profile is not None:
                self.profile.stop()
        self.detach()

    def detach(self) -> None:
        """Take everything out of PyTorch again."""
        self.is_done = True
        for undo in self.undo:
            with contextlib.suppress(Exception):
                undo()


def has_gpu(torch: Any) -> bool:
    """Return whether this process uses a GPU."""
    return bool(torch.version.cuda and torch.cuda.is_initialized())


def synchronize(torch: Any) -> None:
    """Wait for the GPU if this process uses one."""
    if has_gpu(torch):
        torch.cuda.synchronize()


def write_file(path: str, data: Facts) -> None:
    """Write a JSON file, whole or not at all."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as stream:
        json.dump(data, stream)
    os.replace(f"{path}.tmp", path)


def make_mode(torch: Any) -> Any:
    """Return a mode that does nothing but stand in the stack: so the lines of `a * b` are known, too."""

    class Frames(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    return Frames()


def find_assignment(frame: FrameType, name: str) -> str:
    """Return the line at which a variable of a function grows or is set; that of the frame if there is none."""
    first, last = frame.f_code.co_firstlineno, max(each[2] or 0 for each in frame.f_code.co_lines())
    for pattern in (r"{}(\[.*\])?\s*\+=|{}(\[.*\])?\.append\(", r"{}\s*=\s*{}\b", r"{}\s*="):
        wanted = re.compile(rf"\s*(?:{pattern.replace('{}', re.escape(name))})")
        for line in range(first, last + 1):
            if wanted.match(linecache.getline(frame.f_code.co_filename, line)):
                return name_line(frame.f_code.co_filename, line)
    return name_line(frame.f_code.co_filename, frame.f_lineno)


def count_nodes(tensors: list[Any]) -> int:
    """Return how many nodes of autograd's graph these tensors keep alive."""
    todo, known = [getattr(each, "grad_fn", None) for each in tensors], set()
    while todo and len(known) < MOST_NODES:
        if (node := todo.pop()) is not None and node not in known:
            known.add(node)
            todo += [each for each, _ in node.next_functions]
    return len(known)


def describe_machine(torch: Any) -> Facts:
    """Return the machine, its software, and the settings of PyTorch in force."""
    backends, is_gpu = torch.backends, has_gpu(torch)
    return {
        "torch": torch.__version__, "python": sys.version.split()[0], "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if is_gpu else None,
        "capability": torch.cuda.get_device_capability()[0] if is_gpu else 0,
        "matmul": read_precision(backends.cuda.matmul),
        "convolution": read_precision(getattr(backends.cudnn, "conv", backends.cudnn)),
        "anomaly": torch.is_anomaly_enabled(),
        "benchmark": None if backends.cudnn.deterministic else backends.cudnn.benchmark,
        "blocking": os.environ.get("CUDA_LAUNCH_BLOCKING", "0") == "1",
        "repaired": is_repaired(torch),
    }  # fmt: skip


def is_repaired(torch: Any) -> bool:
    """Return whether `fast_double_backward` of an exported package is on."""
    operator = getattr(torch.ops.aten, "_convolution_double_backward", None)
    return bool(getattr(operator, "fast_double_backward", {}).get("uses"))


def read_precision(settings: Any) -> str:
    """Return how products of FP32 are computed, "tf32" or "ieee". PyTorch warns where the old API is read."""
    value = getattr(settings, "fp32_precision", None)
    return "tf32" if value == "tf32" or (value is None and settings.allow_tf32) else "ieee"


# --- the profile of a window ------------------------------------------------------------------------------------------

Mark = tuple[int, int]  # (ns, the optimizer whose step ends there)
Place = tuple[str, str, str]  # the innermost line of the user's, that of the training loop, and the purpose
Owners = dict[int, int]  # address of a weight's storage -> the optimizer that has the weight
NOBODY, UNOWNED = -1, -2  # owners of what is no weight, and of a weight that no optimizer has
ROW = (
    "op", "top", "kernel", "dtype", "line", "outer", "via", "phase", "order", "note", "owner", "unused", "calls", "us",
)  # fmt: skip


def find_phase(marks: list[Mark], ns: int) -> int:
    """Return the optimizer whose phase an instant lies in: the one that steps next."""
    return marks[min(bisect.bisect_left(marks, (ns, -1), lo=1), len(marks) - 1)][1]


def split_events(results: Any) -> tuple[list[Any], list[Any]]:
    """Return a profile's kernels and copies, and its events of the CPU: operators, and calls of the CUDA runtime."""
    from torch.autograd import DeviceType

    work, calls = [], []
    for event in results.events():
        if event.device_type() == DeviceType.CPU:
            calls.append(event)
        elif not event.name().endswith((" Sync", " Wait Event")):
            work.append(event)
    kinds = ("gpu_user_annotation", "user_annotation")
    return [e for e in work if getattr(e, "activity_type", str)() not in kinds], calls


def list_idle(results: Any, marks: list[Mark]) -> list[Facts]:
    """Return for each phase how long the GPU worked, and how long it had waited when its kernels began."""
    work, calls = split_events(results)
    launched = {each.correlation_id(): each.start_ns() for each in calls}
    phases: dict[int, list[float]] = defaultdict(lambda: [0, 0, 0])
    end = None
    for event in sorted(work, key=lambda each: each.start_ns()):
        first, last = event.start_ns(), event.start_ns() + event.duration_ns()
        phase = phases[find_phase(marks, launched.get(event.correlation_id(), first))]
        end = end or first
        phase[0] += max(0, last - max(first, end)) / 1e3
        phase[1] += max(0, first - end) / 1e3
        phase[2] += 1
        end = max(end, last)
    keys = ("phase", "busy_us", "idle_us", "kernels")
    return [dict(zip(keys, (phase, *values), strict=True)) for phase, values in phases.items()]


@functools.cache
def find_purpose(file: str, name: str) -> str:
    """Return what a function of a library is for, "module" for any other of `torch.nn`, "" for the rest."""
    path = find_file(file)
    purposes = [NORMS[word] for word in NORMS if word in name]
    purposes += [PURPOSES[word] for word in PURPOSES if word in file and "torch/" in path]
    return next(iter(purposes), "module" if "torch/nn/modules/" in path else "")


class Operator:
    """One operator of a window: where it was called, what called it, and what of its inputs matters."""

    def __init__(self, event: Any, place: Place, above: Operator | None, owners: Owners) -> None:
        self.name, (self.line, self.outer, self.via), self.above = event.name[:300], place, above
        self.start, self.thread = event.start_time_ns, event.start_tid
        self.own_us = event.duration_time_ns / 1e3
        self.top: str = above.top if above else self.name
        self.node: Any = above.node if above else None
        self.owner: int = above.owner if above else NOBODY
        self.seq, self.phase, self.unused = -1, 0, False
        self.note = self.dtype = self.device = ""
        if above is not None:
            above.own_us -= self.own_us
        inputs = [each if isinstance(each, list) else [each] for each in event.extra_fields.inputs]
        tensors = [one for each in inputs for one in each if hasattr(one, "sizes")]
        for each in tensors:
            self.device = self.device or each.device.type
            self.owner = owners.get(each.storage_data_ptr, self.owner)
            if not self.dtype and each.dtype.is_floating_point:
                self.dtype = str(each.dtype).partition(".")[2]
        if self.name in (CONVOLUTION, REDUCTION):
            self.shapes = [(*each.sizes, each.dtype.itemsize) for each in tensors]
        if event.name == "aten::copy_" and len(tensors) == 2:
            self.note, self.source = describe_copy(*tensors), tensors[1].storage_data_ptr


def describe_copy(target: Any, source: Any) -> str:
    """Return what a copy changes: the device, the layout of images, or the precision; "" for anything else."""
    layouts = [find_layout(each) for each in (source, target)]
    if source.device.type != target.device.type:
        return f"{source.device.type} to {target.device.type}"
    if all(layouts) and layouts[0] != layouts[1]:
        return " to ".join(layouts)
    is_cast = source.dtype.is_floating_point and target.dtype.is_floating_point
    return "cast" if is_cast and source.dtype != target.dtype else ""


def find_layout(tensor: Any) -> str:
    """Return "NCHW" or "NHWC" of a 4-D tensor for which it makes a difference, else ""."""
    if len(tensor.sizes) != 4 or tensor.sizes[1] < 2 or tensor.sizes[2] * tensor.sizes[3] < 2:
        return ""
    _, c, h, w = tensor.sizes
    layouts = {(c * h * w, h * w, w, 1): "NCHW", (c * h * w, 1, w * c, c): "NHWC"}
    return layouts.get(tuple(tensor.strides), "")


class Digest:
    """The time of a window by operator, kernel, line and phase.

    An operator of a backward pass has the line of the forward operator that it differentiates. `order` counts how often
    that was done: 1 is a gradient, 2 a gradient of a gradient.
    """

    def __init__(self, results: Any, marks: list[Mark], owners: Owners, loop: tuple[str, str]) -> None:
        from torch._C._profiler import _EventType

        self.marks, self.owners, self.loop, self.kinds = marks, owners, loop, _EventType
        self.work, calls = split_events(results)
        self.events = {(each.start_ns(), each.name()): each for each in calls}
        self.operators: dict[Any, Operator] = {}  # by start and name
        self.casts: set[Any] = set()  # (the storage that was cast, the place of its phase)
        self.waits: list[tuple[str, str, float]] = []  # (line, purpose, us) of torch.cuda.synchronize
        self.backward: dict[int, set[str]] = defaultdict(set)
        self._walk(results.experimental_event_tree())
        known = [key for key in self.operators if key in self.events]  # CUDA's calls count for themselves
        self.by_id = {self.events[key].correlation_id(): key for key in known}
        self.in_order = sorted(self.operators.values(), key=lambda each: each.start)
        # By thread and autograd's number: of several operators with a number, the last made the node.
        self.forward = {(each.thread, each.seq): each for each in self.in_order if each.seq >= 0}
        self._mark_unused()

    def _walk(self, roots: Any) -> None:
        todo: list[tuple[Any, Place, Operator | None]] = [(each, ("", "", ""), None) for each in roots]
        while todo:
            event, place, above = todo.pop()
            if event.tag in (self.kinds.PyCall, self.kinds.PyCCall):
                place = self._find_place(event, *place)
            elif event.tag == self.kinds.TorchOp and "USER_SCOPE" not in str(event.extra_fields.scope):
                above = self._add(event, place, above)
            todo += [(child, place, above) for child in event.children]

    def _find_place(self, event: Any, line: str, outer: str, via: str) -> Place:
        """Return the user's line, the line of the training loop, and the purpose below a call of Python."""
        fields = event.extra_fields
        if is_users(fields.caller.file_name):
            line = name_line(fields.caller.file_name, fields.caller.line_number)
            function = find_file(fields.caller.file_name), fields.caller.function_name
            outer = line if function == self.loop else outer
        if event.tag == self.kinds.PyCCall:
            if "_cuda_synchronize" in event.name or "synchronize of" in event.name:
                self.waits.append((line, via, event.duration_time_ns / 1e3))
            return line, outer, via
        file = fields.callsite.file_name
        if is_users(file):
            return name_line(file, fields.callsite.line_number), outer, via if via == "loader" else ""
        if find_file(file) == __file__ and "synchronize" in event.name:
            return line, outer, "watch"
        if file.endswith("autograd/__init__.py") and "backward" in event.name:
            self.backward[find_phase(self.marks, event.start_time_ns)].add(line)
        purpose = find_purpose(file, event.name)
        return line, outer, via if via and purpose == "module" else purpose or via

    def _add(self, event: Any, place: Place, above: Operator | None) -> Operator:
        operator = Operator(event, place, above, self.owners)
        operator.phase = find_phase(self.marks, event.start_time_ns)
        if operator.note == "cast":
            cast = operator.source, bisect.bisect(self.marks, (event.start_time_ns, 0))
            operator.note = "cast again" if cast in self.casts else "cast"
            self.casts.add(cast)
        seq, kineto = event.extra_fields.sequence_number, self.events.get((event.start_time_ns, event.name))
        if event.name.startswith("autograd::engine::evaluate_function"):
            operator.node = (kineto.fwd_thread_id() if kineto else event.start_tid, seq)
            operator.top = event.name.rpartition(" ")[2][:300]
        elif "BACKWARD" not in str(event.extra_fields.scope):
            operator.seq = seq
        self.operators[event.start_time_ns, event.name] = operator
        return operator

    def _mark_unused(self) -> None:
        """Mark what made a node of autograd's graph that no backward pass visits. Those of the last step may yet be."""
        nodes = {each.node for each in self.in_order}
        last = {each.thread: each.seq for each in self.in_order if each.seq >= 0}
        phases = len({index for _, index in self.marks})
        until = self.marks[max(0, len(self.marks) - 1 - phases)][0]  # a whole step before the end
        for key, each in self.forward.items():
            is_heavy = each.node is None and any(word in each.name for word in WEIGHTED)
            is_used = key in nodes or each.seq == last[each.thread] or each.start >= until
            each.unused = is_heavy and not is_used

    def _trace(self, operator: Operator, deep: int = 0) -> tuple[Operator, int]:
        """Return the forward operator that an operator belongs to, and how often it was differentiated."""
        first = self.forward.get(operator.node) if operator.node else None
        if first is None or first.start >= operator.start or deep > 4:
            return operator, int(operator.node is not None)
        origin, order = self._trace(first, deep + 1)
        return origin, order + 1

    def count_reduced(self, phase: int) -> int:
        """Return how many bytes were added up over the ranks in a phase."""
        shapes = [each.shapes for each in self.in_order if each.name == REDUCTION and each.phase == phase]
        return sum(math.prod(shape) for each in shapes for shape in each)

    def measure_new_shapes(self, bounds: list[int]) -> float:
        """Return which part of the convolutions' shapes in the window's second half its first half had not."""
        middle, called = bounds[(len(bounds) - 1) // 2], [e for e in self.in_order if e.name == CONVOLUTION]
        first, second = ({(*e.shapes[:2],) for e in called if (e.start > middle) == k} for k in (False, True))
        return len(second - first) / len(second) if first and second else 0.0

    def list_rows(self) -> list[Facts]:
        """Return where the time went, the largest first: of kernels where there are any, else of operators."""
        times: dict[tuple[Any, ...], list[float]] = defaultdict(list)
        for event in self.work:
            operator = self.operators.get(self.by_id.get(event.linked_correlation_id()))
            phase = find_phase(self.marks, operator.start if operator else event.start_ns())
            times[self._name_row(operator, event.name()[:300], phase)].append(event.duration_ns() / 1e3)
        for each in () if self.work else self.in_order:
            times[self._name_row(each, "", each.phase)].append(max(each.own_us, 0.0))
        if not self.work:  # an operator during which another process had the CPU counts as its like
            most = {key: FAR * statistics.median(each) for key, each in times.items()}
            times = {key: [min(us, most[key]) for us in each] for key, each in times.items()}
        rows = sorted(((*key, len(each), sum(each)) for key, each in times.items()), key=lambda row: -row[-1])
        return [dict(zip(ROW, row, strict=True)) for row in rows[:MOST_ROWS]]

    def _name_row(self, operator: Operator | None, kernel: str, phase: int) -> tuple[Any, ...]:
        if operator is None:
            return "", "", kernel, "", "", "", "", phase, 0, "", NOBODY, False
        (origin, order), above = self._trace(operator), operator
        while above.above is not None and not above.unused:
            above = above.above
        owner = origin.owner if operator.owner == NOBODY else operator.owner
        place = origin.line or operator.line, origin.outer, origin.via if order else operator.via
        what = operator.name, operator.top, kernel, operator.dtype
        return *what, *place, phase, order, operator.note, owner, above.unused

    def list_synchronizations(self) -> list[Facts]:
        """Return the calls that make the CPU wait for the GPU; on a CPU, those that would."""
        waited: Counter[Any] = Counter()
        for event in self.events.values():
            if event.name().startswith("cuda") and "Synchronize" in event.name():
                waited[self.by_id.get(event.linked_correlation_id())] += event.duration_ns() / 1e3
        sums: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0, 0])
        for line, via, us in self.waits:
            row = sums["synchronize", line, via, True]
            row[:] = row[0] + 1, row[1] + us
        for key, each in self.operators.items():
            call = SYNCHRONIZING.get(each.name)
            if key in waited or (call and each.device == "cpu"):
                row = sums[call or each.note or each.name, each.line, each.via, key in waited]
                row[:] = row[0] + 1, row[1] + waited[key]
        keys = ("call", "line", "via", "on_gpu", "calls", "us")
        return [dict(zip(keys, (*key, *values), strict=True)) for key, values in sums.items()]
