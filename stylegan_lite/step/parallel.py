"""The second CUDA stream of a step, for work outside of its critical path.

Only the optimizer needs the gradients of weights. Nothing needs the moving average of G: while D trains, G stands
still. In a captured graph both become branches beside the chain of activations and their gradients.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from stylegan_lite.step.weights import ComputeWeights

MAIN, SECOND = -2, -1  # priorities; lower numbers go first, and streams have 0 by default


class ParallelStreams:
    """The second stream of a step, and the collector of the gradients that are computed on it.

    Attributes:
        collected: phase -> counts of its last backward pass on the second stream. The compute copies with a gradient
            are
            "copies", all copies are "of". The contributions to gradients of any weights are "gradients". Work was put
            there "forks" times in the whole phase.
        captured: the same for the contents of CUDA graphs, written at their capture. If several graphs hold a phase,
            the
            graph with the fewest forks counts. Empty if none are captured.
        branch: the second stream; on a CPU everything runs in line.
        main: the stream to capture on. If both streams have kernels that are ready, its kernels go first: a step waits
            for
            the chain of activations. A graph's kernels keep the priority of the stream they were captured on.
    """

    def __init__(self, copies: dict[nn.Module, ComputeWeights], device: str) -> None:
        from kernels.linear.weight_gradients import Branch, WeightGradients

        self.branch = Branch(device, SECOND)
        self.main = torch.cuda.Stream(priority=MAIN) if device == "cuda" else None
        self.copies = copies
        self.collected: dict[str, dict[str, int]] = {}
        self.captured: dict[str, dict[str, int]] = {}
        self.gradients = {
            network: WeightGradients([*network.parameters(), *(e.copy for e in kept.entries)], self.branch)
            for network, kept in copies.items()
        }

    @contextlib.contextmanager
    def phase(self, phase: str, network: nn.Module):
        """Run a phase's backward pass inside. Afterwards the streams are joined, and all gradients in their places."""
        into = self.gradients[network]
        with into.collecting():
            yield
        copies = {entry.copy.data_ptr() for entry in self.copies[network].entries}
        self.collected[phase] = {
            "copies": len(copies & into.counts.keys()),
            "of": len(copies),
            "gradients": into.counts.total(),
            "forks": self.branch.forks,
        }
        self.branch.forks = 0

    def note_captured(self, phases: tuple[str, ...]) -> None:
        """Keep the counts of the second stream after a capture of these phases."""
        for phase in phases:
            found = self.collected.get(phase, {"copies": 0, "of": 0, "gradients": 0, "forks": 0})
            known = self.captured.setdefault(phase, found)
            if found["forks"] < known["forks"]:
                self.captured[phase] = found

    @contextlib.contextmanager
    def in_line(self, wanted: bool = True):
        """Run without the second stream: cuDNN must have the GPU to itself where it times its algorithms."""
        before, self.branch.active = self.branch.active, self.branch.active and not wanted
        try:
            yield
        finally:
            self.branch.active = before
