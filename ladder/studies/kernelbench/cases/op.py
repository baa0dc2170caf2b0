"""The type of an entry of `ladder.studies.kernelbench.cases.registry`, and the sizes at which the networks call ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from stylegan_lite.config import Workload

Sizes = dict[str, int]  # letter of a shape -> its value; R is the layer's resolution where H differs
Tensors = dict[str, Tensor]

SETTINGS = (("bf16", "channels_last"), ("fp32", "NCHW"))  # those of the ladder's top and its baseline


@dataclass(frozen=True)
class Op:
    """One op as one kind of layer calls it.

    Args:
        function: of `kernels`, or "cuda.NAME" of `kernels.cuda`; plain PyTorch is `<function>_reference`, which takes
            the same arguments.
        inputs: argument -> its shape in letters of `sizes` ("N1HW", "NC", "" for a scalar). The first shape names the
            case.
        sizes: a workload's sizes, layer by layer; repetitions do no harm.
        moved: bytes that must cross memory, given the inputs and whether it is the backward pass.
        activations: inputs in the precision of the setting; all others are float32, as parameters and styles are.
        data: inputs without a gradient.
        penalty: inputs whose gradient R1 or path length differentiates again; empty: no double backward.
        options: arguments that are no tensors.
        settings: (dtype, memory format) pairs to time; the first is the ladder's top.
        call: adapts the tensors by name to the function's arguments, where they differ.
        positive: inputs whose numbers are at least a half, as a root or a division needs.
        needs: capabilities of `ladder.machine.system` besides CUDA and Triton.
    """

    function: str
    inputs: dict[str, str]
    sizes: Callable[[Workload], Sequence[Sizes]]
    moved: Callable[[Any, Tensors, bool], int]
    activations: tuple[str, ...] = ("x",)
    data: tuple[str, ...] = ()
    penalty: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    settings: tuple[tuple[str, str], ...] = SETTINGS
    call: Callable[..., Any] | None = None
    positive: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def _map(workload: Workload, resolution: int, channels_at: int | None = None) -> Sizes:
    channels = workload.fmaps(channels_at or resolution)
    return {"N": workload.batch, "C": channels, "H": resolution, "W": resolution}


def every_layer(workload: Workload) -> list[Sizes]:
    """Return the activations of both networks: the synthesis layers, and the discriminator's, which mirror them."""
    return [_map(workload, r) for r in workload.resolutions]


def synthesis(workload: Workload) -> list[Sizes]:
    """Return the activations behind the synthesis network's demodulated convolutions."""
    return every_layer(workload) if workload.norm == "demod" else []


def normalized(workload: Workload) -> list[Sizes]:
    """Return the activations behind the synthesis network's convolutions if instance norm replaces demodulation."""
    return every_layer(workload) if workload.norm == "instance" else []


def modulated(workload: Workload) -> list[Sizes]:
    """Return the activations before a modulated convolution: toRGB's, and with demodulation the 3x3 layers' too."""
    return every_layer(workload)


def weights(workload: Workload) -> list[Sizes]:
    """Return the demodulated 3x3 weights of each resolution's second layer. The first's have up to twice the inputs."""
    if workload.norm != "demod":
        return []
    return [
        {"N": workload.batch, "O": workload.fmaps(r), "I": workload.fmaps(r), "H": r}
        for r in workload.resolutions
    ]


def widest(workload: Workload, pixels: Callable[[int], int] = lambda r: r) -> list[Sizes]:
    """Return the activations of the two highest resolutions, where resampling and convolutions cost the most."""
    return [
        _map(workload, r) | {"H": pixels(r), "W": pixels(r), "R": r}
        for r in workload.resolutions[-2:]
        if r > 4
    ]


INSTANCE_NORM = Op(
    "instance_norm_act",
    {"x": "NCHW", "scale": "NC", "bias": "NC", "noise": "N1HW", "strength": ""},
    normalized,
    lambda op, t, backward: op.bytes_moved(t["x"], t["noise"], backward=backward),
    data=("noise",),
    penalty=("x", "scale", "bias"),
)  # and the same in CUDA C++
