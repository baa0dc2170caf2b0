"""Adam in the kernel of ``kernels.weights.adam``: it reads gradients where backward left them and writes the copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stylegan_lite.step.weights import ComputeWeights

CAPTURES = 64  # updates of one network in all graphs; whole-step graphs hold two of G in each kind of step


class FusedUpdate(torch.optim.Adam):
    """An optimizer with torch.optim.Adam's interface, state and arithmetic, without weight decay and amsgrad.

    With beta1 = 0 first moments stay as they are: no update reads them, PyTorch's own neither.

    ``step`` also does the work of ``ComputeWeights.hand_over`` and ``refresh`` around it. ``step_early`` does its
    larger part before the ``last`` parameters have gradients: beside the end of backward, on another stream.
    """

    def __init__(
        self, parameters: Any, copies: ComputeWeights, last: Sequence[Tensor] = (), **options: Any
    ) -> None:
        super().__init__(parameters, **options)
        if len(self.param_groups) != 1:
            raise ValueError("fused_update: one group of parameters is all it knows")
        self.kept = copies
        self.copies = {entry.weight: entry for entry in copies.entries}
        own = self.param_groups[0]["params"]
        for parameter in own:  # torch.optim.Adam does so at the first gradient
            state = self.state[parameter]
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        late = {id(parameter) for parameter in last}
        split = ([p for p in own if id(p) not in late], [p for p in own if id(p) in late])
        self.parts = [_Part(self, part) for part in split if part]

    @torch.no_grad()
    def step_early(self) -> None:
        """Update every parameter but the ``last``. The next `step` updates those, and checks that no gradient came."""
        if len(self.parts) > 1:
            self.parts[0].update()

    @torch.no_grad()
    def step(
        self, closure: Any = None, *, inverse: Tensor | None = None, found_inf: Tensor | None = None
    ) -> None:
        """Update every parameter that has a gradient, its own, its copy's or its energy's. Takes no closure.

        With a loss scale it takes two scalars on the device: one over the scale, and whether to skip
        (``AdamPlan.launch``).
        """
        if closure is not None:
            raise ValueError("fused_update: step takes no closure")
        scale = () if inverse is None else (inverse, found_inf)
        for part in self.parts:
            if not part.was_early():
                part.update(*scale)
            part.read = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do as torch.optim.Adam. An early update that no ``step`` followed is forgotten."""
        for part in self.parts:
            part.read = None
        super().zero_grad(set_to_none)

    def gradients(self) -> list[Tensor]:
        """Return every gradient that ``step`` will read."""
        return [g for part in self.parts for row in part.gradients() for g in row if g is not None]

    def settle(self) -> None:
        """Write the gradients' addresses for a captured graph. Call it after the capture and before
        the first replay.
        """
        for part in self.parts:
            for table, rows in part.pending:
                table.copy_(torch.tensor(rows))
            part.pending.clear()


class _Part:
    """The update of some parameters, three launches together.

    The kernel finds gradients by a table of their addresses. In eager steps the table is filled before each launch
    whose addresses differ from the last. In a capture nothing may be copied from the host. So a capture reads a table
    of its own, and ``settle`` fills that once, after the capture. The table stays right, because a replay writes every
    gradient to its address of the capture. The graph's pool is given to no one else. Graphs that share it run one after
    the other, each writing its gradients before its update reads them. The tables are allocated before any capture: the
    same graph may write activations to memory that was taken inside.
    """

    def __init__(self, of: FusedUpdate, parameters: list[Tensor]) -> None:
        self.of, self.parameters = of, parameters
        self.entries = [of.copies.get(parameter) for parameter in parameters]
        self.plan: Any = None
        self.table: Tensor | None = None
        self.known: tuple[Any, ...] = ()  # the facts that the plan was made of
        self.filled: list[list[int]] = []  # the contents of the eager table
        self.spare: list[Tensor] = []  # tables for captures to come
        self.captured: list[Tensor] = []  # the tables in use: graphs know their addresses
        self.pending: list[tuple[Tensor, list[list[int]]]] = []
        self.read: list[tuple[int, int]] | None = None  # the gradients of an early update, and their versions

    def gradients(self) -> list[tuple[Tensor | None, ...]]:
        """Return each parameter's gradients: its own, its copy's and its energy's."""
        return [
            (p.grad, *([None] if entry is None else [t.grad for t in entry.leaves]))
            for p, entry in zip(self.parameters, self.entries, strict=True)
        ]

    def versions(self) -> list[tuple[int, int]]:
        return [(id(g), g._version) for row in self.gradients() for g in row if g is not None]

    def was_early(self) -> bool:
        """Return whether this step's update was made. Raises RuntimeError if a gradient has changed since."""
        if self.read is not None and self.read != self.versions():
            raise RuntimeError("fused_update: a gradient came after its update")
        return self.read is not None

    def update(self, *scale: Tensor | None) -> None:
        gradients = self.gradients()
        capturing = self._on_gpu(self.parameters[0]) and torch.cuda.is_current_stream_capturing()
        self._make_plan(capturing)
        rows, held = self.plan.addresses(gradients)
        if capturing:
            if not self.spare:
                raise RuntimeError(f"fused_update: more than {CAPTURES} captured updates of one network")
            table = self.spare.pop()
            self.captured.append(table)
            self.pending.append((table, rows))
        else:
            table = self.table
            if rows != self.filled:
                table.copy_(torch.tensor(rows))
                self.filled = rows
        self.plan.launch(table, *scale)
        if any(entry is not None and entry.energy is not None for entry in self.entries):
            self.of.kept.refresh_energies()
        self.read = self.versions()
        del held  # Only now: the launch is in the stream before anything can be given their memory.

    @staticmethod
    def _on_gpu(parameter: Tensor) -> bool:
        return parameter.is_cuda

    def _make_plan(self, capturing: bool) -> None:
        """Make the tables of fixed addresses. They are made anew where a state was replaced (``load_state_dict``) or a
        rate changed.
        """
        from kernels.weights.adam import AdamPlan, Item, Rates

        group, items = self.of.param_groups[0], []
        for parameter, entry in zip(self.parameters, self.entries, strict=True):
            state = self.of.state[parameter]
            kept = () if entry is None else (entry.copy.detach(), entry.gain, entry.energy)
            items.append(
                Item(parameter.detach(), state["exp_avg"], state["exp_avg_sq"], state["step"], *kept)
            )
        first, second = group["betas"]
        rates = Rates(group["lr"], first, second, group["eps"])
        known = (rates, *[t.data_ptr() for item in items for t in item[:5] if t is not None])
        if known == self.known:
            return
        if capturing:
            raise RuntimeError(
                "fused_update: a capture needs an update with this state and these rates before it"
            )
        self.plan, self.known, self.filled = AdamPlan(items, rates), known, []
        self.table, *self.spare = self.plan.gradient_tables(1 + CAPTURES)
