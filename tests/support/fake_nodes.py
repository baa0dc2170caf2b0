"""CUDA graphs as nodes and edges, and a driver that rewrites them: `stylegan_lite.step.fills` without a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from stylegan_lite.step import fills
from stylegan_lite.step.graphnodes import ALLOCATION, KERNEL, MEMSET, LossyQuery, Memset

EMPTY = 5  # a node without work


@dataclass
class Graph:
    """Stands for torch.cuda.CUDAGraph. A node is a number, and its work a name, or what a kernel fills."""

    keep_graph: bool = False
    nodes: dict[int, Any] = field(default_factory=dict)
    edges: set[tuple[int, int]] = field(default_factory=set)
    instantiated: int = 0
    captured: dict[str, Any] = field(default_factory=dict)  # how: stream, mode

    def raw_cuda_graph(self) -> Graph:
        return self

    def instantiate(self) -> None:
        self.instantiated += 1

    def work(self) -> set[tuple[Any, Any]]:
        """Return which work comes directly before which; a memset is the same work as a kernel that fills."""
        named = {
            node: fills.fill_of(work) if isinstance(work, Memset) else work
            for node, work in self.nodes.items()
        }
        alone = {(named[node], None) for node in self.nodes}
        return {(named[a], named[b]) for a, b in self.edges} | alone

    def memsets(self) -> list[Memset]:
        return [work for work in self.nodes.values() if isinstance(work, Memset)]


class Driver:
    """The functions of `stylegan_lite.step.graphnodes.Driver`, over such graphs.

    Attributes:
        lossy: nodes with an edge that is more than a dependency.
        broken: (function, number of its call) that fails, as a call of CUDA's does.
        priorities: nodes whose attributes were copied, and from where.
    """

    def __init__(self) -> None:
        self.of: dict[int, Graph] = {}
        self.lossy: set[int] = set()
        self.broken: dict[str, int] = {}
        self.priorities: dict[int, int] = {}

    def new(self, graph: Graph, work: Any, after: list[int]) -> int:
        """Add a node to a graph."""
        node = 1000 + len(self.of)
        self.of[node] = graph
        graph.nodes[node] = work
        graph.edges |= {(each, node) for each in after}
        return node

    def made(self, *chains: str, **works: Any) -> Graph:
        """Return a graph of chains such as "A>m>B"; a name in `works` stands for other work than a kernel."""
        graph, named = Graph(True), {}
        for chain in chains:
            before: list[int] = []
            for name in chain.split(">"):
                if name not in named:
                    named[name] = self.new(graph, works.get(name, name), [])
                graph.edges |= {(each, named[name]) for each in before}
                before = [named[name]]
        return graph

    def nodes(self, graph: Graph) -> list[int]:
        return sorted(graph.nodes, reverse=True)  # CUDA promises no order

    def kind(self, node: int) -> int:
        work = self.of[node].nodes[node]
        return (
            MEMSET
            if isinstance(work, Memset)
            else {"allocation": ALLOCATION, "empty": EMPTY}.get(work, KERNEL)
        )

    def memset(self, node: int) -> Memset:
        return self.of[node].nodes[node]

    def dependencies(self, node: int) -> list[int]:
        self._lossless(node)
        return [a for a, b in sorted(self.of[node].edges) if b == node]

    def dependents(self, node: int) -> list[int]:
        self._lossless(node)
        return [b for a, b in sorted(self.of[node].edges) if a == node]

    def add_kernel(self, graph: Graph, like: int, dependencies: list[int]) -> int:
        self._fail("add_kernel")
        return self.new(graph, self.of[like].nodes[like], dependencies)

    def copy_attributes(self, node: int, like: int) -> None:
        self._fail("copy_attributes")
        self.priorities[node] = like

    def connect(self, graph: Graph, node: int, dependents: list[int]) -> None:
        self._fail("connect")
        edges = {(node, each) for each in dependents}
        assert edges and not edges & graph.edges  # CUDA refuses an edge that is there
        graph.edges |= edges

    def destroy(self, node: int) -> None:
        self._fail("destroy")
        graph = self.of[node]
        del graph.nodes[node]
        graph.edges = {edge for edge in graph.edges if node not in edge}

    def _lossless(self, node: int) -> None:
        if node in self.lossy:
            raise LossyQuery("cuGraphNodeGetDependencies: CUDA_ERROR_LOSSY_QUERY (402)")

    def _fail(self, function: str) -> None:
        if function in self.broken:
            self.broken[function] -= 1
            if not self.broken[function]:
                raise RuntimeError(f"{function}: CUDA_ERROR_UNKNOWN (999)")


def capturing(driver: Driver, patch: pytest.MonkeyPatch) -> None:
    """Let captures make such graphs, and fills put their nodes into them, one behind the other."""
    under_way: list[Graph] = []

    @contextlib.contextmanager
    def graph(of: Graph, **how: Any) -> Iterator[None]:
        of.captured = how
        under_way.append(of)
        yield
        under_way.pop()

    def fill(*arguments: int) -> None:
        (now,) = under_way
        driver.new(now, arguments, driver.nodes(now)[:1])

    patch.setattr(torch.cuda, "CUDAGraph", Graph)
    patch.setattr(torch.cuda, "graph", graph)
    patch.setattr(fills, "fill_words", fill)
