"""CUDA graphs as a CPU can have them: a capture leaves the state alone, a replay runs what was captured, as it was."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from stylegan_lite.step import TrainingStep, preparing, saving


class Graph:
    """Stands for torch.cuda.CUDAGraph: the phases of a step, each with ``keep_gradients`` at its capture."""

    def __init__(self, step: TrainingStep) -> None:
        self.step = step
        self.phases: list[tuple[str, bool]] = []
        self.held: dict[str, dict[str, torch.Tensor]] = {}  # what a replay writes gradients to

    def replay(self) -> None:
        now, self.step.gradients = self.step.keep_gradients, self.held
        for phase, keep in self.phases:
            self.step.keep_gradients = keep
            TrainingStep._compute(self.step, phase)
        self.step.keep_gradients = now


def capture(step: TrainingStep, patch: pytest.MonkeyPatch) -> list[int]:
    """Capture a prepared step, and let it be captured again.

    Returns:
        a list that gets, for each capture, how many graphs there are while it lasts.
    """
    step.recipe = dataclasses.replace(step.recipe, cuda_graphs=True)
    alive, counts, under_way = weakref.WeakSet(), [], []

    def new(keep_graph: bool = False) -> Graph:
        found = Graph(step)
        alive.add(found)
        return found

    @contextlib.contextmanager
    def graph(of: Graph, **how: Any) -> Iterator[None]:
        counts.append(len(alive))
        before, losses = copy.deepcopy(saving.state_dict(step)), copy.deepcopy(step.loss)
        of.held = step.gradients
        under_way.append(of)
        yield
        under_way.pop()
        saving.load_model(step, before)
        for phase, loss in losses.items():
            step.loss[phase].copy_(loss)

    def compute(phase: str) -> None:
        if under_way:
            under_way[-1].phases.append((phase, step.keep_gradients))
        TrainingStep._compute(step, phase)

    step._compute = compute
    patch.setattr(torch.cuda, "CUDAGraph", new)
    patch.setattr(torch.cuda, "graph", graph)
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    preparing._capture(step)
    preparing._drop_gradients(step)
    return counts


class Streams:
    """CUDA's streams and events on a CPU: everything happens at once, and it is noted who waited for what."""

    def __init__(self, monkeypatch):
        self.log, self.on, log = [], "compute", self

        class Event:
            def record(self, stream=None):
                log.log.append(("record", id(self), log.on if stream is None else stream.name))

        class Stream:
            def __init__(self, name="side"):
                self.name = name

            def wait_event(self, event):
                log.log.append(("wait", id(event), self.name))

            def wait_stream(self, other):
                log.log.append(("wait", other.name, self.name))

        @contextlib.contextmanager
        def stream(chosen):
            before, self.on = self.on, chosen.name
            yield
            self.on = before

        for name, fake in (("Event", Event), ("Stream", Stream), ("stream", stream)):
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(self.on))
