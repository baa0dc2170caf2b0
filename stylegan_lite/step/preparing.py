"""Preparation before the first step: warm-up, compiling, and the capture of CUDA graphs if the recipe says so.

A capture records launches and runs none. So everything that allocates, compiles or tries algorithms at its first call
must have run before. That moves weights, optimizers and random state; at the end they are put back.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import time
from collections.abc import Iterator
from typing import Any

import torch

from stylegan_lite.step import fills, saving
from stylegan_lite.step.phases import Phases

WARMUP = 3  # runs of each phase before capture, in which cuDNN, cuBLAS and autograd settle their workspaces


def prepare(step: Phases) -> dict[str, float]:
    """Prepare the step; see ``TrainingStep.prepare``."""
    begin = time.perf_counter()
    step.feed.prepare()
    start = time.perf_counter()
    took = {"cache_s": start - begin} if step.recipe.cached_images else {}
    before = copy.deepcopy(saving.state_dict(step))
    step.feed.next()
    step.observe_norms()
    side = _side_stream(step)
    with side:  # under the stream, flags and modes of the warm-up
        # Our kernels come first, side by side: torch.compile would launch them, and Triton compile them, one by one.
        compiled, done = _compile_kernels(step, before)
        took |= compiled
        start += compiled.get("compile_kernels_s", 0.0)
        if step.compiled is not None:
            begin = time.perf_counter()
            step.compiled.prepare(step._warm_up)
            _synchronize(step)
            took["compile_s"] = time.perf_counter() - begin
            start += took["compile_s"]
        for phase in step.order:
            for run in range(phase in done, WARMUP if step.recipe.cuda_graphs else 1):
                with _in_line(step, run == 0):
                    step._warm_up(phase)
    _synchronize(step)
    if step.compiled is not None:
        step.compiled.settle()
    warm = time.perf_counter()
    if step.recipe.cuda_graphs:
        _capture(step)
    step.prepared = True
    _restore(step, before)
    _synchronize(step)
    return took | {"warmup_s": warm - start, "capture_s": time.perf_counter() - warm}


def _compile_kernels(step: Phases, before: dict[str, Any]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Run each phase once without the missing Triton kernels, then compile those together.

    Returns:
        the numbers that `prepare` reports, empty if no kernel was missing, and the phases that ran in earnest.
    """
    if not step.recipe.has_kernels:
        return {}, ()
    from kernels.precompile import compile_ahead

    def warm_up() -> None:
        for phase in step.order:
            step._warm_up(phase)

    begin = time.perf_counter()
    with _in_line(step), _as_it_is(step):
        report = step.precompiled = compile_ahead(warm_up)
    # Ranks must run every phase equally often: if one of them lacked a kernel, all begin again.
    if not step.ranks.any(bool(report.missing), step.device):
        own = () if step.compiled is None else step.compiled.functions  # These are still to run compiled.
        whole = not step.ranks.any(not report.whole, step.device)
        return {}, tuple(phase for phase in step.order if phase not in own) if whole else ()
    saving.load_model(step, before)  # The missing launches made garbage of everything.
    _synchronize(step)
    counts = {"kernels_missing": report.missing, "kernels_compiled": report.compiled}
    return {"compile_kernels_s": time.perf_counter() - begin} | counts, ()


@contextlib.contextmanager
def _as_it_is(step: Phases) -> Iterator[None]:
    """Run without torch.compile while entered."""
    if step.compiled is None:
        yield
        return
    functions, step.compiled.functions = step.compiled.functions, {}
    try:
        yield
    finally:
        step.compiled.functions = functions


def _capture(step: Phases) -> None:
    """Capture one graph a phase, or a kind of step, in one memory pool: forward, backward, optimizer step (and EMA).

    Errors are raised for calls of this thread only: a pinning thread of a data loader allocates while we capture.
    """
    pool = torch.cuda.graph_pool_handle()
    kept = {"keep_graph": True} if step.recipe.graph_fills else {}
    if kept:
        fills.compile_ahead()
    if step.parallel:
        step.parallel.captured.clear()
    for phases in step.together or [(phase,) for phase in step.order]:
        if step.recipe.set_to_none:
            for phase in phases:
                step._zero_grad(*step._trained(phase))
        graph, step.gradients = torch.cuda.CUDAGraph(**kept), {}
        if step.parallel:
            step.parallel.collected.clear()
        stream = step.parallel.main if step.parallel else None
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            for phase in phases:
                step._compute(phase)
        if step.recipe.fused_update:
            for optimizer in step.optimizers.values():
                optimizer.settle()
        if step.parallel:
            step.parallel.note_captured(phases)
        name = "+".join(phases)
        if kept:
            step.fills[name] = fills.replace_memsets(graph, stream)
        step.graphs[name], step.held[name] = graph, step.gradients
    step.gradients = {phase: held for each in step.held.values() for phase, held in each.items()}


def capture_again(step: Phases) -> None:
    """Capture a prepared step anew, as it would be captured now. The old graphs and their memory go first.

    Nothing is warmed up, because all of it has run before. Nothing is put back, because a capture runs nothing.
    """
    if not step.recipe.cuda_graphs:
        return
    _synchronize(step)  # No replay is under way any more.
    step.graphs.clear()
    step.fills.clear()
    step.held.clear()
    step.gradients = {}
    _drop_gradients(step)
    gc.collect()
    if step.device == "cuda":
        torch.cuda.empty_cache()
    _capture(step)
    _drop_gradients(step)
    _synchronize(step)


def _restore(step: Phases, before: dict[str, Any]) -> None:
    saving.load_state_dict(step, before)
    _drop_gradients(step)


def _drop_gradients(step: Phases) -> None:
    for name, optimizer in step.optimizers.items():
        step._zero_grad(step.networks[name], optimizer)


def _in_line(step: Phases, wanted: bool = True) -> contextlib.AbstractContextManager:
    """Run without a second stream: the first run of a phase, in which cuDNN times its algorithms."""
    return step.parallel.in_line(wanted) if step.parallel else contextlib.nullcontext()


@contextlib.contextmanager
def _side_stream(step: Phases) -> Iterator[None]:
    """Run on a side stream: the warm-up before a capture must not run on the default stream."""
    if not step.recipe.cuda_graphs:
        yield
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def _synchronize(step: Phases) -> None:
    if step.device == "cuda":
        torch.cuda.synchronize()
