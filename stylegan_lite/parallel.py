"""Work of a step that nothing on its critical path waits for, on a second CUDA stream.

The gradients of weights are needed by the optimizer alone, and the moving average of G by no one: while D trains, G
stands still. In a captured graph they become branches beside the chain of activations and their gradients.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from stylegan_lite.weights import ComputeWeights

MAIN, SECOND = -2, -1  # priorities: lower numbers go first, 0 is what streams have unless asked for more


class ParallelStreams:
    """The second stream of a step, and what collects the gradients that are computed on it.

    Attributes:
        collected: phase -> what its last backward pass put on the second stream: gradients of how many compute copies
            ("copies") of how many there are ("of"), contributions to gradients of any weights ("gradients"), and how
            often work was put there in the whole phase ("forks").
        captured: the same of what CUDA graphs hold, written at their capture: of several graphs with one phase, that
            of the one with the fewest forks. Empty where none are captured.
        branch: the second stream; on a CPU everything runs in line.
        main: the stream to capture on. Its kernels go first where both have some that are ready to run: the chain of
            activations is what a step waits for. A graph's kernels keep the priority of the stream they were captured
            on.
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
        """Run a phase's backward pass inside; after it the streams are one again, and all gradients in their places."""
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
        """After a capture of these phases: keep what it put on the second stream."""
        for phase in phases:
            found = self.collected.get(phase, {"copies": 0, "of": 0, "gradients": 0, "forks": 0})
            known = self.captured.setdefault(phase, found)
            if found["forks"] < known["forks"]:
                self.captured[phase] = found

    @contextlib.contextmanager
    def in_line(self, wanted: bool = True):
        """Without the second stream: cuDNN must have the GPU to itself where it times its algorithms."""
        before, self.branch.active = self.branch.active, self.branch.active and not wanted
        try:
            yield
        finally:
            self.branch.active = before
