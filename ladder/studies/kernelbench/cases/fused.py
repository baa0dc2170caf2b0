"""The entries of `ladder.studies.kernelbench.cases.registry.OPS` for fused pairs, few channels and whole layers."""

from __future__ import annotations

import math
from typing import Any

import torch

from ladder.studies.kernelbench.cases.op import Op, Sizes, Tensors, every_layer, modulated, synthesis
from stylegan_lite.config import Workload

TAPS = (1.0, 3.0, 3.0, 1.0)
PARTS, MULTIPLE = 2, 8  # for minibatch_std: fakes and reals together; channels for tensor cores
WEIGHTS = (("fp32", "channels_last"),)  # weights are float32 in every recipe
ACT = {"act": True, "gain": math.sqrt(2)}


def _at(workload: Workload, resolution: int, channels: int, pixels: int | None = None) -> Sizes:
    size = pixels or resolution
    return {"N": workload.batch, "C": channels, "H": size, "W": size, "R": resolution}


def _going_down(workload: Workload) -> list[Sizes]:
    """Return the filter's inputs behind the first layer of each of the discriminator's blocks."""
    return [_at(workload, r, workload.fmaps(r)) for r in workload.resolutions[1:]]


def _going_up(workload: Workload) -> list[Sizes]:
    """Return the results of transposed convolutions: a pixel more than the resolution."""
    if workload.norm != "demod":
        return []
    return [_at(workload, r, workload.fmaps(r), r + 1) for r in workload.resolutions[1:]]


def _between_blocks(workload: Workload) -> list[Sizes]:
    """Return the activations that toRGB and the next block's first layer read."""
    return synthesis(workload)[:-1]


def _after_blocks(workload: Workload) -> list[Sizes]:
    """Return the results of the discriminator's blocks."""
    return every_layer(workload)[:-1]


def _at_the_end(workload: Workload) -> list[Sizes]:
    """Return fakes and reals behind the discriminator's last block, in one size for every resolution."""
    last = _at(workload, workload.resolution, workload.fmaps(4), 4)
    return [last | {"N": PARTS * workload.batch}]


def _images(workload: Workload) -> list[Sizes]:
    """Return fakes and reals together, as images come in BF16."""
    found = _at(workload, workload.resolution, workload.fmaps(workload.resolution))
    return [found | {"N": PARTS * workload.batch}]


def _dense_layers(workload: Workload) -> list[Sizes]:
    """Return the first fully connected layers of the discriminator and the mapping network.

    The mapping network takes two latents a sample.
    """
    top, here = workload.fmaps(4), {"R": workload.resolution}
    last = {"N": workload.batch, "O": top, "I": 16 * top}
    mapping = {"N": 2 * workload.batch, "O": workload.w_dim, "I": workload.w_dim}
    return [last | here, mapping | here] if workload.mapping_layers > 1 else [last | here]


def _normed_layers(workload: Workload) -> list[Sizes]:
    """Return the second layer of each of the discriminator's blocks, in every workload, normalized or not."""
    found = []
    for r in workload.resolutions[1:]:
        inputs, outputs = workload.fmaps(r), workload.fmaps(r // 2)
        found.append({"O": outputs, "I": inputs, "K": 9 * inputs, "R": r})
    return found


def _spectral(function: Any, weight: Any, u: Any, v: Any, **options: Any) -> Any:
    return function([weight], [u], [v], **options)[0]


def _moved_by_fork(op: Any, t: Tensors, backward: bool) -> int:
    """Return the bytes of x and its filtered half. The other result is x itself.

    The backward pass reads both results' gradients and writes dx.
    """
    return op.fork_bytes_moved(t["x"], TAPS, down=2, padding=1, backward=backward)


def _moved_by_std(op: Any, t: Tensors, backward: bool) -> int:
    n, c, h, w = t["x"].shape
    y = t["x"].new_empty((n, -(-(c + 1) // MULTIPLE) * MULTIPLE, h, w))
    return op.bytes_moved(t["x"], y, backward=backward)


def _moved_by_rgb(op: Any, t: Tensors, backward: bool) -> int:
    if "x" not in t:  # from_rgb
        n, _, h, w = t["image"].shape
        wide, narrow = t["image"].new_empty((n, len(t["bias"]), h, w)), t["image"]
        return op.bytes_moved(wide, narrow, backward=backward)
    n, _, h, w = t["x"].shape
    added = t["image"].nbytes if "image" in t and not backward else 0  # its gradient is that of the result
    return op.bytes_moved(t["x"], t["bias"].new_empty((n, 3, h, w)), backward=backward) + added


MORE: dict[str, Op] = {
    "scale_act": Op(
        "scale_act",
        {"x": "NCHW", "scale": "NC"},
        synthesis,
        lambda op, t, backward: op.bytes_moved(t["x"], backward=backward),
        penalty=("x", "scale"),
    ),
    "act_filter": Op(
        "act_filter",
        {"x": "NCHW", "bias": "C"},
        _going_down,
        lambda op, t, backward: op.bytes_moved(t["x"], TAPS, padding=2, backward=backward),
        penalty=("x",),
        options={"taps": TAPS, "padding": 2, "filter_gain": 1 / 64},
    ),
    "filter_act": Op(
        "filter_act",
        {"x": "NCHW", "bias": "C", "noise": "N1RR", "strength": "", "scale": "NC"},
        _going_up,
        lambda op, t, backward: op.bytes_moved(t["x"], TAPS, padding=1, noise=t["noise"], backward=backward),
        data=("noise",),
        penalty=("x", "scale"),
        positive=("scale",),
        options={"taps": TAPS, "padding": 1, "filter_gain": 4 / 64},
    ),
    "filter_act_modulate": Op(
        "filter_act_modulate",
        {"x": "NCHW", "style": "NC", "bias": "C", "noise": "N1RR", "strength": "", "scale": "NC"},
        _going_up,
        lambda op, t, backward: op.bytes_moved(t["x"], TAPS, padding=1, noise=t["noise"], backward=backward),
        data=("noise",),
        penalty=("x", "scale", "style"),
        positive=("scale",),
        options={"taps": TAPS, "padding": 1, "filter_gain": 4 / 64},
    ),
    "bias_act_modulate": Op(
        "bias_act_modulate",
        {"x": "NCHW", "bias": "C", "style": "NC", "noise": "N1HW", "strength": "", "scale": "NC"},
        _between_blocks,
        lambda op, t, backward: op.bytes_moved(t["x"], t["noise"], backward=backward),
        data=("noise",),
        penalty=("x", "scale", "style"),
    ),
    "bias_act_residual": Op(
        "bias_act_residual",
        {"x": "NCHW", "bias": "C", "residual": "NCHW"},
        _after_blocks,
        lambda op, t, backward: op.bytes_moved(t["x"], backward=backward),
        activations=("x", "residual"),
        penalty=("x",),
        options={"gain": 1.0},
    ),
    "fork_upfirdn2d": Op(
        "fork_upfirdn2d",
        {"x": "NCHW"},
        _going_down,
        _moved_by_fork,
        penalty=("x",),
        options={"taps": TAPS, "down": 2, "padding": 1, "gain": 1 / 64},
    ),
    "minibatch_std": Op(
        "minibatch_std",
        {"x": "NCHW"},
        _at_the_end,
        _moved_by_std,
        penalty=("x",),
        options={"group": 4, "parts": PARTS, "multiple": MULTIPLE},
    ),
    "to_rgb": Op(
        "to_rgb",
        {"x": "NCHW", "weight": "3C11", "style": "NC", "bias": "3"},
        modulated,
        _moved_by_rgb,
        penalty=("x", "style"),
        options={"dtype": torch.float32},
    ),
    "to_rgb image": Op(
        "to_rgb",
        {"x": "NCHW", "weight": "N3C", "bias": "3", "image": "N3HW"},  # styles are in the weights
        lambda w: modulated(w)[1:],  # 4x4 has no image below it
        _moved_by_rgb,
        penalty=("x", "weight"),
        options={"dtype": torch.float32},
    ),
    "from_rgb": Op(
        "from_rgb",
        {"image": "N3HW", "weight": "C311", "bias": "C"},
        _images,
        _moved_by_rgb,
        activations=("image",),
        penalty=("image",),
    ),
    "dense": Op(
        "dense",
        {"x": "NI", "weight": "OI", "bias": "O"},
        _dense_layers,
        lambda op, t, backward: op.bytes_moved(t["x"], t["weight"], backward=backward),
        activations=(),
        penalty=("x",),
        options=ACT,
        settings=WEIGHTS,
    ),
    # One layer: the rung shows the savings of all layers side by side.
    "spectral_norm": Op(
        "spectral_norm",
        {"weight": "OI33", "u": "O", "v": "K"},
        _normed_layers,
        lambda op, t, backward: op.bytes_moved(
            [t["weight"]], [t["weight"].detach().to(torch.bfloat16)], backward=backward
        ),
        activations=(),
        data=("u", "v"),
        options={"dtype": torch.bfloat16},
        settings=WEIGHTS,
        call=_spectral,
    ),
}
