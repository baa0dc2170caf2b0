"""The cost of a model: its parameters, and the FLOPs of a training step by PyTorch's own counter.

A lever is a field of the workload, so there is nothing to patch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ladder.plan.variants import Examination
from ladder.receipts import judge
from ladder.receipts.evidence import run_eager
from stylegan_lite.losses import PHASES


def apply(step: Any, name: str) -> None:
    """Leave the step as it is: its workload is the lever."""


def examine(step: Any, name: str) -> Examination:
    """Return parameters and FLOPs of a prepared step, and a receipt that says in which model."""
    parameters = {network: _parameters(getattr(step, network)) for network in ("G", "D")}
    flops = count(step)
    work = step.workload
    said = judge(
        (flops > 0, f"{flops / 1e9:,.1f} GFLOP a step"),
        (None, f"parameters of G: {parameters['G']}, of D: {parameters['D']}"),
        (None, f"convolution: {work.convolution}, layers of a block: {work.block_layers}"),
        (None, f"phases captured: {len(step.graphs)}"),
    )
    found = {"flops": flops, "parameters": sum(parameters.values())}
    return {"receipts": {name: said.to_dict()}, "inspection": found}


def count(step: Any) -> float:
    """Return the FLOPs of an average step, lazy phases included: convolutions and products of matrices.

    Each phase runs once, eagerly and uncompiled. Triton kernels of ours are not seen.
    """
    total = 0.0
    with run_eager(step), torch.autograd.set_multithreading_enabled(False):
        for phase in PHASES:
            with Flops() as flops:
                step.run_phase(phase)
            total += flops.total / step.kinds[phase].every
    return total


class Flops(TorchDispatchMode):
    """A sum over operators by the formulas of `torch.utils.flop_counter`.

    Its own FlopCounterMode follows modules, too, and cannot do so where a gradient is differentiated.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.convolution_backward:
            self.total += convolution_backward(*args)
        elif formula := flop_registry.get(func.overloadpacket):
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


def convolution_backward(gradient: Any, image: Any, weight: Any, *rest: Any) -> int:
    """Return the FLOPs of a convolution's two gradients. Each takes as many as the convolution.

    PyTorch's own formula leaves out groups: it counts a depthwise convolution as a full one.
    """
    transposed, wanted = rest[4], rest[7]
    sliding = image if transposed else gradient
    return 2 * sliding.numel() * math.prod(weight.shape[1:]) * sum(map(bool, wanted[:2]))


def _parameters(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
