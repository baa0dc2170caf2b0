"""The evidence for receipts, gathered from a prepared training step: plain data, a few kilobytes.

It runs in an inspector process, never in a timed one. It comes after all that needs the step unchanged: it trains the
step for a few cycles, and may drop its graphs. First the step is seen as it is timed. Then every phase runs once
eagerly under ``ladder.receipts.watch``, because a captured graph shows nothing to a dispatch mode. The graph holds
the launches of that very code.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ladder.base.protocol import CYCLE_STEPS
from ladder.base.protocol import IN_ORDER as PHASES
from ladder.base.text import display
from ladder.receipts import traces
from ladder.receipts.records import (
    Compiled,
    Copies,
    Crossing,
    Evidence,
    Fills,
    Flags,
    Launches,
    Loader,
    Reduced,
    Trace,
)
from ladder.receipts.watch import Watch, alternatives_taken, launches, layers_named, layout, name_of

SETTINGS = ("conv_fp32_precision", "matmul_fp32_precision", "cudnn_benchmark", "cudnn_deterministic")
ON_CPU = 4  # traced steps, instead of a cycle


@dataclass(frozen=True)
class Traced:
    """Findings about a step as it is timed, from its batches to the profiler's figures of a cycle."""

    crossings: list[Crossing]
    copying: int  # operators of the step's request for a batch
    replayed: int | None  # operators issued for one run of each phase; None without graphs
    trace: Trace
    waiting_ms: float
    fetched: float
    tallied: dict[str, int]  # images, by the way in which they were read


def gather(step: Any, traced: Traced | None = None) -> Evidence:
    """Return the evidence of one prepared ``TrainingStep``, which is traced now if it was not before.

    All but the trace counts, and times nothing. The functions below, ``ladder.receipts.watch`` and
    ``stylegan_lite.parallel`` describe the values.
    """
    traced = traced or trace(step)
    figures, taken = traced.trace, alternatives_taken()
    captured, copies, energies = sorted(step.graphs), compute_copies(step), kept_energies(step)
    try:
        watch, zeroed, kernels = watch_phases(step)
    except torch.OutOfMemoryError:  # eager activations beside the graphs' pools; the graphs have been seen
        step.graphs.clear()
        torch.cuda.empty_cache()
        taken = alternatives_taken()
        watch, zeroed, kernels = watch_phases(step)
    return {
        "recipe": step.recipe.to_dict(),
        "norm": step.workload.norm,
        "device": step.device,
        "flops": {stage: dict(count) for stage, count in watch.flops.items()},
        "inputs": {stage: dict(count) for stage, count in watch.inputs.items()},
        "weights": {stage: dict(count) for stage, count in watch.weights.items()},
        "convolutions": {stage: dict(count) for stage, count in watch.convolutions.items()},
        "passes": {network: list(batches) for network, batches in watch.passes.items()},
        "stored": weight_layouts(step),
        "copies": {**copies, "reworked": watch.reworked},
        "energies": energies,
        "relayouts": {"calls": round(watch.relayouts, 2), "mb": round(watch.relayout_bytes / 1e6, 3)},
        "plain": {op: {k: n for k, n in layers.items() if n} for op, layers in watch.plain.items()},
        "kernels": dict(kernels),
        "alternatives": dict(alternatives_taken() - taken),
        "islands": {name: dict(count) for name, count in watch.islands.items()} | stored(step),
        "gradients": {
            **zeroed,
            "filled": watch.fills,
            "accumulated": watch.accumulated,
            "zero_kernels": figures.get("zero_kernels"),
            "tensors": sum(frequency(step, p) * parameters(step, p) for p in PHASES),
        },
        "adam": {**adam(step), "calls": dict(watch.optimizer)},
        "graphs": {
            "captured": captured,
            "operators": watch.calls if traced.replayed is None else traced.replayed,
            "operators_eager": watch.calls,
            "together": ["+".join(kind) for kind in getattr(step, "together", [])],
            "phases_per_step": sum(frequency(step, phase) for phase in PHASES),
            "launches": figures.get("launches"),
            "replays": figures.get("replays"),
            "kernels": figures.get("kernels"),
            "busy_ms": figures.get("busy_ms"),
        },
        "fills": fills(step, figures),
        "data": {
            **data(step, traced.crossings),
            "decoded": traced.tallied["decoded"],
            "mapped": traced.tallied["mapped"],
            "decoded_on_gpu": traced.tallied["decoded_on_gpu"],
            "fetched": traced.fetched,
            "waiting_ms": traced.waiting_ms,
            "operators": traced.copying,
            "copy_ms": figures.get("copy_ms"),
            "overlap": figures.get("overlap"),
        },
        "compile": compiled_parts(step, figures),
        "parallel": {
            "phases": forked(step, "captured" if captured else "collected"),
            "ms": figures.get("parallel_ms"),
            "busy_ms": figures.get("busy_ms"),
        },
        "reduced": reduced(step, figures),
        "scales": scales(step),
        "settings": {key: value for key, value in step.settings().items() if key in SETTINGS},
    }


def watch_phases(step: Any) -> tuple[Watch, dict[str, int], dict[str, Launches]]:
    """Run each phase once eagerly.

    Return the watch, the gradients that ``zero_grad`` left, and our kernels' launches.
    """
    watch, zeroed = Watch(), {"none": 0, "kept": 0}
    watch.weights_at = {weight.data_ptr() for weight in convolution_weights(step)}
    with (
        eager(step),
        zero_grad_watched(step, zeroed),
        layers_named(watch, step.G, step.D),
        launches() as kernels,
        torch.autograd.set_multithreading_enabled(False),  # backward in this thread, where the mode sees it
    ):
        for phase in PHASES:
            watch.start(frequency(step, phase))
            with watch:
                step.run_phase(phase)
        synchronize(step)
    return watch, zeroed, kernels


def entries_of(step: Any) -> list[Any]:
    """Return the weights with compute copies, as ``stylegan_lite.weights`` keeps them. Old commits' code has none."""
    return [e for copies in getattr(step, "copies", {}).values() for e in copies.entries]


def convolution_weights(step: Any) -> list[torch.Tensor]:
    """Return the weights that a compute copy may replace. If there are copies, these are the weights that have one."""
    entries = entries_of(step)
    if entries:
        return [e.weight for e in entries]
    return [p for p in [*step.G.parameters(), *step.D.parameters()] if p.dim() == 4]


def frequency(step: Any, phase: str) -> float:
    """Return how often a phase runs in a step."""
    interval = {"G_pl": step.workload.pl_interval, "D_r1": step.workload.r1_interval}.get(phase, 1)
    return 1 / interval


def parameters(step: Any, phase: str) -> int:
    """Return how many tensors a phase's optimizer has. Its ``zero_grad`` may have to fill them."""
    optimizer = step.opt_G if phase.startswith("G") else step.opt_D
    return sum(len(group["params"]) for group in optimizer.param_groups)


@contextlib.contextmanager
def eager(step: Any) -> Iterator[None]:
    """Run phases without their graphs and uncompiled: the code that was captured or compiled."""
    graphs, step.graphs = step.graphs, {}
    compiled, step.compiled = getattr(step, "compiled", None), None
    try:
        yield
    finally:
        step.graphs, step.compiled = graphs, compiled


@contextlib.contextmanager
def zero_grad_watched(step: Any, zeroed: dict[str, int]) -> Iterator[None]:
    """Count what the step's own ``zero_grad`` leaves: gradients that are None, and tensors that are kept."""

    def watched(optimizer: Any):
        original = optimizer.zero_grad

        def zero_grad(*args, **kwargs):
            had = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            original(*args, **kwargs)
            none = sum(p.grad is None for p in had)
            zeroed["none"] += none
            zeroed["kept"] += len(had) - none

        return zero_grad

    with contextlib.ExitStack() as stack:
        for optimizer in (step.opt_G, step.opt_D):
            stack.enter_context(replaced(optimizer, "zero_grad", watched(optimizer)))
        yield


def stored(step: Any) -> dict[str, dict[str, int]]:
    """Return the dtypes of the state that lives from step to step: weights, Adam's moments, the moving average."""
    moments = [
        v for o in (step.opt_G, step.opt_D) for s in o.state.values() for k, v in s.items() if k != "step"
    ]
    groups = {
        "weights": [*step.G.parameters(), *step.D.parameters()],
        "moments": moments,
        "moving average": [*step.G_ema.parameters()],
    }
    return {name: _dtypes(tensors) for name, tensors in groups.items()}


def weight_layouts(step: Any) -> dict[str, int]:
    """Return the bytes of the stored convolution weights by memory format."""
    sizes: dict[str, int] = {}
    for parameter in [*step.G.parameters(), *step.D.parameters()]:
        if parameter.dim() == 4:
            sizes[layout(parameter)] = sizes.get(layout(parameter), 0) + parameter.nbytes
    return sizes


def compute_copies(step: Any) -> Copies:
    """Return compute copies of convolution weights by dtype, and how many differ from their weight."""
    entries = entries_of(step)
    stale = [
        _differ(e.copy.to(e.weight.dtype), e.weight * e.gain, torch.finfo(e.copy.dtype).eps) for e in entries
    ]
    return {"kept": _dtypes([e.copy for e in entries]), "stale": sum(stale)}


def kept_energies(step: Any) -> dict[str, int]:
    """Return how many weights have a kept sum of squares over taps, and how many of these sums are stale."""
    entries = [e for e in entries_of(step) if getattr(e, "energy", None) is not None]
    stale = [_differ(e.energy, e.weight.square().sum((2, 3)), 1e-5) for e in entries]
    return {"kept": len(entries), "stale": sum(stale)}


def _differ(a: torch.Tensor, b: torch.Tensor, relative: float) -> bool:
    return not bool(((a - b).abs() <= relative * b.abs()).all())  # NaN differs from everything


def _dtypes(tensors: list[torch.Tensor]) -> dict[str, int]:
    names = [name_of(x.dtype) for x in tensors if torch.is_tensor(x)]
    return {name: names.count(name) for name in sorted(set(names))}


def compiled_parts(step: Any, trace: Trace) -> Compiled:
    """Return facts on what a step compiled. Empty if its recipe does not compile, or its code cannot."""
    compiled = getattr(step, "compiled", None)
    if compiled is None:
        return {}
    return {
        "mode": compiled.mode,
        "failed": compiled.failed and display(compiled.failed),
        "graphs": dict(compiled.graphs),
        "late": sum(compiled.late.values()),
        "runs": dict(compiled.runs),
        "breaks": sum(compiled.breaks.values()),
        "why_broken": [display(reason) for reason in list(compiled.breaks)[:1]],
        "filters": compiled.filters,
        "kernels": trace.get("inductor_kernels"),
    }


def forked(step: Any, what: str) -> dict[str, dict[str, int]]:
    """Return {phase: counts} of the second stream's work: "captured" in graphs, or "collected" at the last eager run.

    An eager run of a captured step shows nothing.
    """
    return dict(getattr(getattr(step, "parallel", None), what, {}))


def fills(step: Any, trace: Trace) -> Fills:
    """Return the memset nodes of the captured graphs, and the kernels in their places. Older commits have none."""
    each = [*getattr(step, "fills", {}).values()]
    left: Counter[str] = Counter()
    for graph in each:
        left.update(graph.left)
    return {
        "found": sum(graph.found for graph in each),
        "replaced": sum(graph.replaced for graph in each),
        "left": dict(left),
        "memsets": trace.get("graph_memsets"),
    }


def reduced(step: Any, trace: Trace) -> Reduced:
    """Return the communication between ranks. An older commit's step has none."""
    ranks = getattr(step, "ranks", None)
    return {
        "ranks": getattr(ranks, "size", 1),
        "gpus": getattr(step.recipe, "ranks", 1),
        "bytes": dict(getattr(ranks, "bytes", {})),
        "comm_ms": trace.get("comm_ms"),
        "exposed_ms": trace.get("exposed_ms"),
        "comm_bursts": trace.get("comm_bursts"),
    }


def adam(step: Any) -> Flags:
    """Return Adam's flags, and the device of its step counts. A capture needs them on the GPU."""
    group = step.opt_G.param_groups[0]
    counts = [s["step"] for o in (step.opt_G, step.opt_D) for s in o.state.values() if "step" in s]
    places = sorted({x.device.type if torch.is_tensor(x) else "python" for x in counts})
    return {
        "capturable": group["capturable"],
        "foreach": group["foreach"],
        "fused": group["fused"],
        "steps_on": places,
    }


def scales(step: Any) -> dict[str, dict[str, float]]:
    """Return FP16's loss scales, and updates made and skipped since preparing. Empty in other precisions."""
    by_network = getattr(step, "scales", {})
    return {
        n: {k: float(v) for k, v in s.state_dict().items() if k != "tracker"} for n, s in by_network.items()
    }


def data(step: Any, crossings: list[Crossing]) -> Loader:
    """Return how one batch comes: workers alive, and its copies to the device."""
    iterators = {id(i): i for i in (step.feed.iterator, getattr(step.feed.loader, "_iterator", None))}
    workers = [worker for iterator in iterators.values() for worker in getattr(iterator, "_workers", [])]
    return {
        "workers": sum(worker.is_alive() for worker in workers),
        "crossings": crossings[:4],
        "persistent": bool(step.feed.loader.persistent_workers),
    }


# The step as it is timed


def trace(
    step: Any, ran: Callable[[], None] = lambda: None, align: Callable[[], None] = lambda: None
) -> Traced:
    """Trace a prepared ``TrainingStep`` as it is timed. The GPU must do nothing else until `ran` is called.

    `align` waits for other ranks. A profiler's start takes each of them another time, and the first to be ready would
    wait in an all-reduce, which counts as communication.
    """
    crossings, copying = watch_data(step)
    replayed = operators(step) if step.graphs else None
    before = tally(step)  # after the batches that were fetched here: only a cycle's own count
    with fetches_counted(step) as fetched:
        seen, waiting = traced_cycle(step, ran, align)
    tallied = {key: count - before[key] for key, count in tally(step).items()}
    return Traced(crossings, copying, replayed, seen, round(waiting, 3), fetched["fetched"], tallied)


def traced_cycle(
    step: Any, ran: Callable[[], None] = lambda: None, align: Callable[[], None] = lambda: None
) -> tuple[Trace, float]:
    """Run a lead-in, then one cycle as it is timed. On a CPU, where no kernels are counted, it is a few steps.

    Returns the profiler's figures (on CUDA), and the milliseconds a step spent waiting for data.
    """
    for _ in range(math.ceil(step.data_capacity)):  # batches that idle workers hold would hide the waiting
        step.step()
    synchronize(step)
    waited: list[float] = []

    def cycle() -> None:
        align()
        waited.append(fetching(step, step.cycle))

    if step.device == "cuda":
        seen = traces.traced(cycle, ran)
        return seen, waited[0] / CYCLE_STEPS
    waited = [fetching(step, step.step) for _ in range(ON_CPU)]
    ran()
    return {}, sum(waited) / ON_CPU


def fetching(step: Any, run: Callable[[], None]) -> float:
    """Run steps and return the milliseconds that the CPU spent getting their batches from the loader."""
    spent, original = 0.0, step.feed._fetch

    def fetch():
        nonlocal spent
        begin = time.perf_counter()
        batch = original()
        spent += time.perf_counter() - begin
        return batch

    with replaced(step.feed, "_fetch", fetch):
        run()
    return 1000 * spent


@contextlib.contextmanager
def fetches_counted(step: Any) -> Iterator[dict[str, float]]:
    """Yield a dict that gets ``fetched``: batches requested from the loader a step, on average over the block."""
    counted, calls, steps, fetch = {"fetched": 0.0}, 0, step.count, step.feed._fetch

    def fetching() -> Any:
        nonlocal calls
        calls += 1
        return fetch()

    with replaced(step.feed, "_fetch", fetching):
        yield counted
    counted["fetched"] = round(calls / max(1, step.count - steps), 3)


def tally(step: Any) -> dict[str, int]:
    """Return how many images were decoded, and how many read from a memory map, so far.

    Loader's workers are included.
    """
    counted = getattr(getattr(step.feed, "dataset", None), "tally", dict)()
    counted["decoded_on_gpu"] = getattr(getattr(step.feed, "decode", None), "decoded", 0)
    return {key: counted.get(key, 0) for key in ("decoded", "mapped", "decoded_on_gpu")}


def watch_data(step: Any) -> tuple[list[Crossing], int]:
    """Return the copies between devices that one batch of images causes, and the operators of the step's request.

    The second batch is watched, as the first may have been fetched early.
    """
    watch, operators = Watch(), 0
    for _ in range(2):
        watch.crossings.clear()
        before = watch.calls
        with watch:
            step.feed.next()
            operators = watch.calls - before
            getattr(step.feed, "prefetch", lambda: None)()
    return watch.crossings, operators


def operators(step: Any) -> int:
    """Return the operators that the CPU issues for one run of each phase, as it is timed.

    For whole steps: the worst kind.
    """

    def issued(run: Callable[[], None]) -> int:
        watch = Watch()
        with watch:
            run()
        return watch.calls

    def each_phase() -> None:
        for phase in PHASES:
            step.run_phase(phase)

    kinds = getattr(step, "together", [])
    if kinds:
        count = max(issued(functools.partial(step.run, kind)) for kind in kinds)
    else:
        count = issued(each_phase)
    synchronize(step)
    return count


def synchronize(step: Any) -> None:
    if step.device == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def replaced(thing: Any, name: str, value: Any) -> Iterator[None]:
    """Replace a method of one instance while the block runs."""
    before = vars(thing).get(name)
    setattr(thing, name, value)
    try:
        yield
    finally:
        delattr(thing, name)
        if before is not None:
            setattr(thing, name, before)
