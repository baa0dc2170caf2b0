"""Memset nodes of a captured CUDA graph, replaced by kernels that fill the same bytes.

cuDNN clears the outputs of some gradients by memsets, which a capture records as nodes of their own kind. Torch keeps
the captured graph if it is asked to. CUDA's driver rewrites it, and only then is it instantiated.

Triton's kernels have parameters that only its launcher knows. So the fills are launched under a capture of their own.
The nodes of that graph are copied, each to the place of a memset.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass

import torch

from kernels.common.fill import LONGEST, WORDS, fill_words
from stylegan_lite.step.graphnodes import ALLOCATION, FREE, KERNEL, MEMSET, Driver, LossyQuery, Memset


@dataclass(frozen=True)
class Fills:
    """The memset nodes of one captured graph."""

    found: int
    replaced: int
    left: dict[str, int]  # why -> memset nodes that stay
    source: torch.cuda.CUDAGraph | None = None  # holds the kernel nodes that were copied


def unavailable() -> str | None:
    """Return why this torch cannot keep a captured graph, in the words after "graph_fills ...", or None."""
    if hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph") and hasattr(torch.cuda.CUDAGraph, "instantiate"):
        return None
    return f"needs torch.cuda.CUDAGraph(keep_graph=True), of torch 2.8 and later; this is torch {torch.__version__}"


def compile_ahead() -> None:
    """Launch the kernel once for each size of words, so that no capture compiles it."""
    word = torch.empty(1, dtype=torch.int32, device="cuda")
    for size in WORDS:
        fill_words(word.data_ptr(), 1, 0, size)


def replace_memsets(
    graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream | None, driver: Driver | None = None
) -> Fills:
    """Replace the memset nodes of a captured graph that was kept, and instantiate it.

    Nodes inside of child graphs are not looked at. Every node that waited for a memset waits for the kernel.

    Args:
        graph: captured with `keep_graph=True`, not yet instantiated.
        stream: the stream it was captured on, whose priority the kernels get.
        driver: another driver, for tests.

    Raises:
        RuntimeError: a call of the driver failed. The graph then computes what it did.
    """
    driver = driver or Driver()
    raw = graph.raw_cuda_graph()
    found, fills, left = _plan(driver, raw)
    source = None
    if fills:
        source = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(source, stream=stream, capture_error_mode="thread_local"):
            for fill in fills.values():
                fill_words(*fill)
        kernels = _in_order(driver, source.raw_cuda_graph())
        if len(kernels) != len(fills) or any(driver.kind(node) != KERNEL for node in kernels):
            raise RuntimeError(f"{len(fills)} fills were captured as {len(kernels)} nodes")
        for memset, kernel in zip(fills, kernels, strict=True):
            _replace(driver, raw, memset, kernel)
    graph.instantiate()
    return Fills(found, len(fills), dict(left), source)


def _plan(driver: Driver, graph: int) -> tuple[int, dict[int, tuple[int, int, int, int]], Counter[str]]:
    """Return the number of memset nodes, the fill for each that is to be replaced, and why others are left."""
    kinds = {node: driver.kind(node) for node in driver.nodes(graph)}
    memsets = [node for node, kind in kinds.items() if kind == MEMSET]
    if memsets and {ALLOCATION, FREE} & set(kinds.values()):  # no node of it can be destroyed
        return len(memsets), {}, Counter({"in a graph that allocates": len(memsets)})
    fills: dict[int, tuple[int, int, int, int]] = {}
    left: Counter[str] = Counter()
    try:
        for node in memsets:
            driver.dependencies(node), driver.dependents(node)
            fill = fill_of(driver.memset(node))
            if isinstance(fill, str):
                left[fill] += 1
            else:
                fills[node] = fill
    except LossyQuery:
        return len(memsets), {}, Counter({"in a graph with programmatic edges": len(memsets)})
    return len(memsets), fills, left


def fill_of(memset: Memset) -> tuple[int, int, int, int] | str:
    """Return the arguments of `fill_words` for a memset, or why there are none."""
    filled, bits = memset.size * memset.width, 8 * memset.size
    size = next(each for each in WORDS if not (filled % each or memset.address % each))  # the longest first
    if memset.height != 1:
        return "of several rows"
    if not 0 < filled // size <= LONGEST:
        return "empty or too long"
    value = memset.value & ((1 << bits) - 1)
    return memset.address, filled // size, sum(value << shift for shift in range(0, 8 * size, bits)), size


def _in_order(driver: Driver, graph: int) -> list[int]:
    """Return the nodes of a graph that was captured on one stream, the first one first."""
    nodes = driver.nodes(graph)
    found = [node for node in nodes if not driver.dependencies(node)]
    for _ in nodes[1:]:
        found += driver.dependents(found[-1])
    return found


def _replace(driver: Driver, graph: int, memset: int, kernel: int) -> None:
    """Put a copy of a kernel's node in the place of a memset's. If a call fails, the memset stays."""
    copy = driver.add_kernel(graph, kernel, driver.dependencies(memset))
    try:
        driver.copy_attributes(copy, kernel)
        if dependents := driver.dependents(memset):
            driver.connect(graph, copy, dependents)
        driver.destroy(memset)
    except RuntimeError:
        with contextlib.suppress(RuntimeError):
            driver.destroy(copy)
        raise
