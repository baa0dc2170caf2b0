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

from ladder.core.plain import Plain
from ladder.core.protocol import CYCLE_STEPS
from ladder.core.text import make_display
from ladder.receipts import traces
from ladder.receipts.watch import (
    Crossing,
    Watch,
    alternatives_taken,
    count_launches,
    layers_named,
    name_layout,
    name_of,
)
from stylegan_lite.step.phases import is_adam
from stylegan_lite.stylegan2 import StyleGAN2Step

SETTINGS = ("conv_fp32_precision", "matmul_fp32_precision", "cudnn_benchmark", "cudnn_deterministic")
ON_CPU = 4  # traced steps, instead of a cycle


@dataclass(frozen=True)
class Traced:
    """A step as it is timed: the profiler's figures of a cycle (`traces.digest_events`), and how its batches come."""

    figures: Plain
    replayed: int | None  # operators issued for one run of each phase; None without graphs
    data: Plain


def gather_evidence(step: Any, traced: Traced | None = None) -> Plain:
    """Return the evidence of one prepared ``TrainingStep``, which is traced now if it was not before.

    All but the trace counts, and times nothing. Amounts are of one step of a cycle, calls of one run of each phase.
    ``ladder.receipts.watch`` and ``stylegan_lite.step.parallel`` describe the values. What an older commit's step lacks
    is empty, and figures of the profiler are None where it saw nothing.
    """
    traced = traced or trace_step(step)
    figures, before = traced.figures, alternatives_taken()
    captured, graphs = sorted(step.graphs), [*getattr(step, "fills", {}).values()]
    copies, entries = compute_copies(step), list_entries(step)
    energies = [e for e in entries if getattr(e, "energy", None) is not None]
    stale_energies = [_has_difference(e.energy, e.weight.square().sum((2, 3)), 1e-5) for e in energies]
    try:
        watch, zeroed, kernels = watch_phases(step)
    except torch.OutOfMemoryError:  # eager activations beside the graphs' pools; the graphs have been seen
        step.graphs.clear()
        torch.cuda.empty_cache()
        before = alternatives_taken()
        watch, zeroed, kernels = watch_phases(step)
    weights = [weight for name in step.optimizers for weight in step.networks[name].parameters()]
    stored: Counter[str] = Counter()
    for weight in weights:
        if weight.dim() == 4:
            stored[name_layout(weight)] += weight.nbytes
    adam = next(iter(step.optimizers.values())).param_groups[0]
    sizes = {
        net: sum(len(group["params"]) for group in optimizer.param_groups)
        for net, optimizer in step.optimizers.items()
    }
    states = [state for optimizer in step.optimizers.values() for state in optimizer.state.values()]
    counts = [state["step"] for state in states if "step" in state]
    moments = [value for state in states for key, value in state.items() if key != "step"]
    often = {phase: 1 / each.every for phase, each in step.kinds.items()}
    feed, ranks, compiled = step.feed, getattr(step, "ranks", None), getattr(step, "compiled", None)
    forked = getattr(getattr(step, "parallel", None), "captured" if captured else "collected", {})
    islands = {
        **watch.islands,
        "weights": _count_dtypes(weights),
        "moments": _count_dtypes(moments),
        "moving average": _count_dtypes([p for each in step.averages.values() for p in each.parameters()]),
    }
    return {
        "recipe": step.recipe.to_dict(),
        "pair": describe_pair(step),
        "norm": getattr(step.workload, "norm", None),
        "device": step.device,
        "flops": _copy_counts(watch.flops),
        "products": dict(watch.products),  # FLOPs of matrix products by dtype
        "inputs": _copy_counts(watch.inputs),
        "weights": _copy_counts(watch.weights),
        "convolutions": _copy_counts(watch.convolutions),
        "passes": {network: list(batches) for network, batches in watch.passes.items()},
        "stored": dict(stored),
        "copies": copies | {"reworked": watch.reworked},
        "energies": {"kept": len(energies), "stale": sum(stale_energies)},
        "relayouts": {"calls": round(watch.relayouts, 2), "mb": round(watch.relayout_bytes / 1e6, 3)},
        "plain": {op: {k: n for k, n in layers.items() if n} for op, layers in watch.plain.items()},
        "kernels": dict(kernels),
        "alternatives": dict(alternatives_taken() - before),
        "islands": _copy_counts(islands),
        "gradients": {
            **zeroed,
            "filled": watch.fills,
            "accumulated": watch.accumulated,
            "zero_kernels": figures.get("zero_kernels"),
            "tensors": sum(often[phase] * sizes[step.owners[phase]] for phase in step.order),
        },
        "adam": {
            **{key: adam.get(key) for key in ("capturable", "foreach", "fused")},
            # A capture needs the counts on the GPU.
            "steps_on": sorted({x.device.type if torch.is_tensor(x) else "python" for x in counts}),
            "calls": dict(watch.optimizer),
        },
        "graphs": {
            "captured": captured,
            # issued by the CPU for one run of each phase, as it is timed
            "operators": watch.calls if traced.replayed is None else traced.replayed,
            "operators_eager": watch.calls,
            "together": ["+".join(kind) for kind in getattr(step, "together", [])],
            "phases_per_step": sum(often.values()),
            **{key: figures.get(key) for key in ("launches", "replays", "kernels", "busy_ms")},
        },
        "fills": {  # the memset nodes of all captured graphs that were searched
            "graphs": len(graphs),
            "found": sum(graph.found for graph in graphs),
            "replaced": sum(graph.replaced for graph in graphs),
            "left": dict(sum((Counter(each.left) for each in graphs), Counter[str]())),  # why -> nodes
            "memsets": figures.get("graph_memsets"),  # that ran in graphs
        },
        "data": {
            "workers": count_workers(feed),  # alive
            "persistent": bool(getattr(feed.loader, "persistent_workers", False)),
            **traced.data,
            "copy_ms": figures.get("copy_ms"),
            "overlap": figures.get("overlap"),
        },
        "compile": {}
        if compiled is None
        else {
            "mode": compiled.mode,
            "failed": compiled.failed and make_display(compiled.failed),
            "graphs": dict(compiled.graphs),
            "late": sum(compiled.late.values()),
            "runs": dict(compiled.runs),
            "breaks": sum(compiled.breaks.values()),
            "why_broken": [make_display(reason) for reason in list(compiled.breaks)[:1]],
            "filters": compiled.filters,
            "kernels": figures.get("inductor_kernels"),
        },
        "parallel": {  # the work of the second stream
            "phases": dict(forked),
            "ms": figures.get("parallel_ms"),
            "busy_ms": figures.get("busy_ms"),
        },
        "reduced": {
            "ranks": getattr(ranks, "size", 1),
            # of the whole step: as many as ranks, and with nn.DataParallel those of its one process
            "gpus": getattr(step.recipe, "ranks", 1),
            "bytes": dict(getattr(ranks, "bytes", {})),  # by phase, of gradients in its last run
            **{key: figures.get(key) for key in ("comm_ms", "exposed_ms", "comm_bursts")},
        },
        "scales": {
            network: {key: float(value) for key, value in scale.state_dict().items() if key != "tracker"}
            for network, scale in getattr(step, "scales", {}).items()
        },
        "settings": {key: value for key, value in step.settings().items() if key in SETTINGS},
    }


def _copy_counts(counts: Any) -> dict[str, dict[str, float]]:
    return {key: dict(count) for key, count in counts.items()}


def list_entries(step: Any) -> list[Any]:
    """Return the weights with compute copies, as ``stylegan_lite.weights`` keeps them. Old commits' code has none."""
    return [e for copies in getattr(step, "copies", {}).values() for e in copies.entries]


def compute_copies(step: Any) -> Plain:
    """Return compute copies of convolution weights by dtype, `kept`, and how many differ from their weight, `stale`."""
    entries = list_entries(step)
    stale = [
        _has_difference(e.copy.to(e.weight.dtype), e.weight * e.gain, torch.finfo(e.copy.dtype).eps)
        for e in entries
    ]
    return {"kept": _count_dtypes([e.copy for e in entries]), "stale": sum(stale)}


def count_workers(feed: Any) -> int:
    """Return how many processes of a loader are alive."""
    iterators = {id(i): i for i in (feed.iterator, getattr(feed.loader, "_iterator", None))}
    return sum(w.is_alive() for iterator in iterators.values() for w in getattr(iterator, "_workers", []))


def _has_difference(a: torch.Tensor, b: torch.Tensor, relative: float) -> bool:
    return not bool(((a - b).abs() <= relative * b.abs()).all())  # NaN differs from everything


def _count_dtypes(tensors: list[torch.Tensor]) -> dict[str, int]:
    return dict(sorted(Counter(name_of(x.dtype) for x in tensors if torch.is_tensor(x)).items()))


def describe_pair(step: Any) -> Plain:
    """Return what is trained, as receipts need it: whether it is StyleGAN2, and names of networks and phases."""
    ours = {} if isinstance(step, StyleGAN2Step) else count_modules(step)
    return {
        "own": isinstance(step, StyleGAN2Step),
        "trained": [*step.optimizers],
        "phases": [*step.order],
        "always": [phase for phase, each in step.kinds.items() if not each.is_lazy],
        "once": [phase for phase, each in step.kinds.items() if not each.twice],
        "twice": [phase for phase, each in step.kinds.items() if each.twice],
        "averages": [*step.averages],
        "bytes": step.real is not None,  # whether images cross the bus, which may do so as bytes
        "adam": all(is_adam(optimizer) for optimizer in step.optimizers.values()),
        "parts": {phase: step._parts(phase) for phase in step.order},
        "recomputed": getattr(step.blocks, "runs", 0),
        **ours,
    }


def count_modules(step: Any) -> Plain:
    """Return what our kernels compute for a user's modules.

    `served` are second derivatives of convolutions so far. `norms` are [number, those with an activation in any phase]
    of each kind; `grouped` and `spectral` are weights with weight norm and with spectral norm that are made together.
    """
    acts = {module for each in step.norms.acts.values() for module in each}
    counts: dict[str, list[int]] = {}
    for module in step.norms.modules:
        count = counts.setdefault(type(module).__name__, [0, 0])
        count[0] += 1
        count[1] += module in acts
    layers = {"grouped": step.grouped.layers, "spectral": step.spectral.layers}
    return {
        "served": step.served,
        "norms": counts,
        **{key: sum(map(len, each)) for key, each in layers.items()},
    }


def watch_phases(step: Any) -> tuple[Watch, dict[str, int], dict[str, Plain]]:
    """Run each phase once eagerly; return the watch, the gradients that ``zero_grad`` left, and our launches."""
    watch, zeroed = Watch(), {"none": 0, "kept": 0}
    copies = [e.weight for e in list_entries(step)]
    trained = [step.networks[name] for name in step.optimizers]
    images = [p for network in trained for p in network.parameters() if p.dim() == 4]
    watch.weights_at = {weight.data_ptr() for weight in copies or images}  # that a compute copy may replace

    def watch_zero_grad(optimizer: Any) -> Callable[..., None]:
        original = optimizer.zero_grad

        def zero_grad(*args: Any, **kwargs: Any) -> None:
            had = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            original(*args, **kwargs)
            none = sum(p.grad is None for p in had)
            zeroed["none"] += none
            zeroed["kept"] += len(had) - none

        return zero_grad

    with (
        run_eager(step),
        contextlib.ExitStack() as replaced,
        layers_named(watch, *step.networks.values()),
        count_launches() as kernels,
        torch.autograd.set_multithreading_enabled(False),  # backward in this thread, where the mode sees it
    ):
        for optimizer in step.optimizers.values():
            replaced.enter_context(replace_method(optimizer, "zero_grad", watch_zero_grad(optimizer)))
        for phase, each in step.kinds.items():
            watch.start(1 / each.every)
            with watch:
                step.run_phase(phase)
        # As the next step begins: a network may have a single phase.
        for optimizer in step.optimizers.values():
            optimizer.zero_grad(set_to_none=step.recipe.set_to_none)
        synchronize_device(step)
    return watch, zeroed, kernels


@contextlib.contextmanager
def run_eager(step: Any) -> Iterator[None]:
    """Run phases without their graphs and uncompiled: the code that was captured or compiled."""
    graphs, step.graphs = step.graphs, {}
    compiled, step.compiled = getattr(step, "compiled", None), None
    try:
        yield
    finally:
        step.graphs, step.compiled = graphs, compiled


def trace_step(
    step: Any, ran: Callable[[], None] = lambda: None, align: Callable[[], None] = lambda: None
) -> Traced:
    """Trace a prepared ``TrainingStep`` as it is timed. The GPU must do nothing else until `ran` is called.

    After a lead-in that is one cycle; on a CPU, where no kernels are counted, a few steps. `align` waits for other
    ranks, whose profilers start at other times: waiting in an all-reduce would count as communication.
    """
    crossings, operators = watch_data(step)
    replayed = count_operators(step) if step.graphs else None
    before = tally_images(step)  # after the batches that were fetched here: only a cycle's own count
    calls, spent_s, first, fetch = 0, 0.0, step.count, step.feed._fetch

    def fetch_timed() -> Any:
        nonlocal calls, spent_s
        begin = time.perf_counter()
        batch = fetch()
        calls, spent_s = calls + 1, spent_s + time.perf_counter() - begin
        return batch

    with replace_method(step.feed, "_fetch", fetch_timed):
        for _ in range(math.ceil(step.data_capacity)):  # what idle workers hold would hide the waiting
            step.step()
        synchronize_device(step)
        spent_s = 0.0
        figures, steps = trace_steps(step, ran, align)
    data: Plain = {key: count - before[key] for key, count in tally_images(step).items()}
    data |= {
        "crossings": crossings[:4],  # copies of one batch between devices
        "operators": operators,  # of the step's request for a batch
        "fetched": round(calls / max(1, step.count - first), 3),  # batches requested from the loader a step
        "waiting_ms": round(1000 * spent_s / steps, 3),
    }
    return Traced(figures, replayed, data)


def trace_steps(step: Any, ran: Callable[[], None], align: Callable[[], None]) -> tuple[Plain, int]:
    """Run a cycle under the profiler, on a CPU a few steps without it. Return its figures, and the number of steps."""

    def cycle() -> None:
        align()
        step.cycle()

    if step.device == "cuda":
        return traces.trace_cycle(cycle, ran), CYCLE_STEPS
    for _ in range(ON_CPU):
        step.step()
    ran()
    return {}, ON_CPU


def tally_images(step: Any) -> dict[str, int]:
    """Return how many images were decoded, and how many read from a memory map, so far, by loaders' workers too."""
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


def count_operators(step: Any) -> int:
    """Return the operators that the CPU issues for one run of each phase as it is timed, or for the worst step."""
    runs = [[functools.partial(step.run, kind)] for kind in getattr(step, "together", [])]
    counts = []
    for each in runs or [[functools.partial(step.run_phase, phase) for phase in step.order]]:
        with Watch() as watch:
            for run in each:
                run()
        counts.append(watch.calls)
    synchronize_device(step)
    return max(counts)


def synchronize_device(step: Any) -> None:
    if step.device == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def replace_method(thing: Any, name: str, value: Any) -> Iterator[None]:
    """Replace a method of one instance while the block runs."""
    before = vars(thing).get(name)
    setattr(thing, name, value)
    try:
        yield
    finally:
        delattr(thing, name)
        if before is not None:
            setattr(thing, name, before)
