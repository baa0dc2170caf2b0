"""The entries of `ladder.studies.kernelbench.cases.registry.OPS` for groups of layers, other public ops and CUDA C++.

It also lists the public ops without an entry, with the reason. The networks give their layers to a group in several
sizes. Here four layers of one size stand side by side, so that a size is a case. The pairs of CUDA C++ are in no
network and have no gradients; they run on a layer's activation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ladder.studies.kernelbench.cases.op import INSTANCE_NORM, Op, Sizes, weights, widest
from stylegan_lite.config import Workload

LAYERS = 4
SLOTS = tuple(range(LAYERS))  # each layer's style has its own latent
FLOAT = (("fp32", "channels_last"),)  # weights and styles are float32 in every recipe

# Public ops of `kernels` and `kernels.cuda` ("cuda.") without an entry, with the reason.
NOT_TIMED = {"scale_channels": "another name of modulate", "cuda.empty": "does nothing, and has no input"}
NO_OPS = {"available", "cuda.available", "cuda.Flags", "cuda.Resources", "cuda.resources", "cuda.Unavailable"}


def _each(name: str, shape: str) -> dict[str, str]:
    """Return an input for each layer of a group."""
    return {f"{name}{k}": shape for k in SLOTS}


def _all(t: dict[str, Tensor], name: str) -> list[Tensor]:
    return [t[f"{name}{k}"] for k in SLOTS]


def _nbytes(t: dict[str, Tensor], *names: str) -> int:
    return sum(each.nbytes for name in names for each in _all(t, name))


def _outputs(t: dict[str, Tensor], batch: int, layers: str) -> int:
    """Return the bytes of a float32 [N, O] for each layer."""
    return sum(4 * batch * len(layer) for layer in _all(t, layers))


def _demodulate(function: Callable[..., Any], **t: Tensor) -> Any:
    return function(_all(t, "energy"), _all(t, "style"))


def _moved_by_demodulate(op: Any, t: dict[str, Tensor], backward: bool) -> int:
    """Return the bytes of energies, styles and d; backward: also of the gradients of all three."""
    inputs, d = _nbytes(t, "energy", "style"), _outputs(t, len(t["style0"]), "energy")
    return 2 * inputs + 2 * d if backward else inputs + d


def _fork(function: Callable[..., Any], **t: Tensor) -> list[Tensor]:
    ds, styles = function(_all(t, "energy"), _all(t, "style"))
    return [*ds, *styles]


def _moved_by_fork(op: Any, t: dict[str, Tensor], backward: bool) -> int:
    """Return the same, and backward the bytes of the styles' other gradients."""
    return _moved_by_demodulate(op, t, backward) + (_nbytes(t, "style") if backward else 0)


def _energies(function: Callable[..., Any], **t: Tensor) -> Any:
    return function(_all(t, "weight"))


def _moved_by_energies(op: Any, t: dict[str, Tensor], backward: bool) -> int:
    """Return the bytes of weights and a ninth of them; backward: of both, and of the weights' gradients."""
    inputs = _nbytes(t, "weight")
    return (2 if backward else 1) * inputs + inputs // 9


def _styles(function: Callable[..., Any], x: Tensor, **t: Tensor) -> Any:
    return function(x, _all(t, "weight"), _all(t, "bias"), SLOTS)


def _moved_by_styles(op: Any, t: dict[str, Tensor], backward: bool) -> int:
    """Return the bytes of x, weights and styles; backward: of g, x and weights, dx and dweights."""
    inputs = t["x"].nbytes + _nbytes(t, "weight")
    return (2 if backward else 1) * inputs + _outputs(t, len(t["x"]), "weight")


def _iterate(function: Callable[..., Any], **t: Tensor) -> Any:
    us, vs = _all(t, "u"), _all(t, "v")
    function(_all(t, "weight"), us, vs)
    return [*us, *vs]


def _moved_by_iteration(op: Any, t: dict[str, Tensor], backward: bool) -> int:
    """Return the bytes of weights, and of u and v twice. The second read of a weight comes from the cache."""
    return _nbytes(t, "weight") + 2 * _nbytes(t, "u", "v")


def _moved_by_up(op: Any, t: dict[str, Tensor], backward: bool) -> int:
    n, _, h, w = t["x"].shape
    y = t["x"].new_empty((n, t["weight"].shape[1], 2 * h + 1, 2 * w + 1))
    return op.bytes_moved(t["x"], t["weight"], y, backward=backward)


def _going_up(workload: Workload) -> list[Sizes]:
    """Return the convolutions into the two highest resolutions: half as many pixels a side, more channels."""
    return [
        {
            "N": workload.batch,
            "C": workload.fmaps(r // 2),
            "O": workload.fmaps(r),
            "H": r // 2,
            "W": r // 2,
            "R": r,
        }
        for r in workload.resolutions[1:][-2:]
    ]


def _affine(workload: Workload) -> list[Sizes]:
    """Return the styles of the convolutions of each width, computed from latents."""
    return [
        {"N": workload.batch, "O": workload.fmaps(r), "I": workload.w_dim, "R": r}
        for r in workload.resolutions
    ]


def _iterated(workload: Workload) -> Sequence[Sizes]:
    """Return the discriminator's convolutions that keep their channels."""
    widths = ((r, workload.fmaps(r)) for r in workload.resolutions)
    return [{"O": width, "I": width, "K": 9 * width, "R": r} for r, width in widths]


def _after_skips(workload: Workload) -> list[Sizes]:
    """Return the results of the discriminator's blocks, with the channels that their skips read."""
    found = []
    for above, r in itertools.pairwise(reversed(workload.resolutions)):
        channels = {"C": workload.fmaps(r), "I": workload.fmaps(above)}
        found.append({"N": workload.batch} | channels | {"H": r, "W": r, "R": r})
    return found


GROUPS: dict[str, Op] = {
    "demodulate_group": Op(
        "demodulate_group",
        _each("energy", "OI") | _each("style", "NI"),
        weights,
        _moved_by_demodulate,
        activations=(),
        penalty=tuple(_each("style", "")),
        positive=tuple(_each("energy", "")),
        settings=FLOAT,
        call=_demodulate,
    ),
    "demodulate_group_fork": Op(
        "demodulate_group_fork",
        _each("energy", "OI") | _each("style", "NI"),
        weights,
        _moved_by_fork,
        activations=(),
        penalty=tuple(_each("style", "")),
        positive=tuple(_each("energy", "")),
        settings=FLOAT,
        call=_fork,
    ),
    "weight_energies": Op(
        "weight_energies",
        _each("weight", "OI33"),
        weights,
        _moved_by_energies,
        activations=(),
        settings=FLOAT,
        call=_energies,
    ),
    "dense_group": Op(
        "dense_group",
        {"x": f"N{LAYERS}I"} | _each("weight", "OI") | _each("bias", "O"),
        _affine,
        _moved_by_styles,
        activations=(),
        penalty=("x",),
        settings=FLOAT,
        call=_styles,
    ),
    "power_iteration": Op(
        "power_iteration",
        _each("weight", "OI33") | _each("u", "O") | _each("v", "K"),
        _iterated,
        _moved_by_iteration,
        activations=(),
        data=(*_each("weight", ""), *_each("u", ""), *_each("v", "")),
        settings=FLOAT,
        call=_iterate,
    ),
    "conv_transpose2d": Op(
        "conv_transpose2d",
        {"x": "NCHW", "weight": "CO33"},
        _going_up,
        _moved_by_up,
        activations=("x", "weight"),
        penalty=("x",),
        options={"stride": 2},
    ),
    "bias_act_skip": Op(
        "bias_act_skip",
        {"x": "NCHW", "bias": "C", "low": "NIHW", "weight": "CI11"},
        _after_skips,
        lambda op, t, backward: op.bytes_moved(t["x"], t["low"], t["weight"], backward=backward),
        activations=("x", "low", "weight"),
        penalty=("x", "low"),
        options={"gain": 1.0},
        settings=(("bf16", "channels_last"),),  # other calls are `conv2d` and `bias_act_residual`
    ),
    "cuda instance_norm_act": replace(INSTANCE_NORM, function="cuda.instance_norm_act", needs=("nvcc",)),
}


def _pair(name: str, dtype: str = "fp32", passes: int = 2, **more: Any) -> Op:
    """Return the entry of a function of `kernels.cuda` that crosses memory so often: batch 8, highest resolution."""
    return Op(
        f"cuda.{name}",
        {"x": "NCHW"},
        lambda workload: [widest(workload)[-1] | {"N": 8}],
        lambda op, t, backward: passes * t["x"].nbytes,
        data=("x",),
        settings=((dtype, "NCHW"),),
        needs=("nvcc",),
        **more,
    )


def _sum_planes(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return function(x.flatten(2).flatten(0, 1))


PAIRS: dict[str, Op] = {
    "cuda strided_act": _pair("strided_act"),
    "cuda coalesced_act": _pair("coalesced_act"),
    "cuda divergent": _pair("divergent", options={"steps": 64}),
    "cuda predicated": _pair("predicated", options={"steps": 64}),
    "cuda shared_sum": _pair("shared_sum", passes=1, call=_sum_planes),
    "cuda shuffle_sum": _pair("shuffle_sum", passes=1, call=_sum_planes),
    "cuda scalar_copy": _pair("scalar_copy", "bf16"),
    "cuda vector_copy": _pair("vector_copy", "bf16"),
}
