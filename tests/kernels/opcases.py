"""The table of op cases: how each op of `kernels` is called, and what every test of the suite needs to call it.

`test_kernels_ops.py` takes every case through values, both derivatives, dtypes, memory formats, strides, empty
batches, NaN, the compiler and CUDA graphs. A new op gets a row here and, if it has properties of its own, a file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import kernels
from kernels.choices import Choice
from kernels.common import tiles
from kernels.linear import rgb_kernels
from kernels.upfirdn import filtered_act_launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
BINOMIAL = (0.125, 0.375, 0.375, 0.125)
LOPSIDED = (0.3, -1.0, 2.0, 0.5)  # nothing about it is symmetric
LEAKY = {"weight_gain": 0.3, "bias_gain": 0.1, "act": True, "slope": 0.2, "gain": 1.4}


class Ops:
    """The ops by name: fused, or their references in plain PyTorch."""

    def __init__(self, suffix: str = "") -> None:
        self.suffix = suffix

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(kernels, name + self.suffix)


FUSED, PLAIN = Ops(), Ops("_reference")


class Case(NamedTuple):
    """A way to call an op.

    Attributes:
        inputs: their shapes, in letters: N, C, H and W of the map, h and w one more than H and W, S for 2, I for the
            3 channels of an image, numbers for themselves, "." for a scalar. "+" behind a shape: positive numbers,
            "'" behind it: data without a gradient.
        call: takes `FUSED` or `PLAIN`, and the inputs.
        autocast: autocast decides the dtype of the results; else the inputs do.
        contained: another case runs the same kernels with more inputs. Expensive tests leave it to `make test-all`.
        slack: how many times plain PyTorch's error in the same dtype may be exceeded.
    """

    inputs: str
    call: Callable[..., Any]
    autocast: bool = True
    contained: bool = False
    slack: float = 1.5


def filtered(op: str, *, alone: bool = False, **how: Any) -> Callable[..., Any]:
    """Return the call of a filter joined with an activation; alone: with a bias (and style) and nothing else."""
    how = {"padding": 2, "filter_gain": 1.25, "slope": 0.25, "gain": 0.5} | how  # which float32 holds
    if op == "act_filter":
        return lambda k, x, b: k.act_filter(x, b, LOPSIDED, **how)
    if op == "filter_act" and alone:
        return lambda k, x, b: k.filter_act(x, LOPSIDED, b, **how)
    if op == "filter_act":
        return lambda k, x, b, t, s, e: k.filter_act(x, LOPSIDED, b, noise=e, strength=t, scale=s, **how)
    if alone:
        return lambda k, x, b, m: k.filter_act_modulate(x, LOPSIDED, m, b, **how)
    return lambda k, x, b, t, s, m, e: k.filter_act_modulate(
        x, LOPSIDED, m, b, noise=e, strength=t, scale=s, **how
    )


def groups_of(x: Tensor) -> int:
    """Return a number of groups that divides the channels, if there is one of several channels each."""
    return next((n for n in (4, 3, 2) if x.shape[1] % n == 0 and x.shape[1] > n), 1)


def resampled(op: str, **how: Any) -> Callable[..., Any]:
    return lambda k, x: getattr(k, op)(x, LOPSIDED, **how)


OWN = {"autocast": False}
CASES: dict[str, Case] = {
    "bias_act": Case("NCHW C", lambda k, x, b: k.bias_act(x, b), contained=True),
    "bias_act linear": Case(
        "NCHW C", lambda k, x, b: k.bias_act(x, b, act="linear", gain=0.7), contained=True
    ),
    "bias_act noise": Case(
        "NCHW C . N1HW'", lambda k, x, b, t, e: k.bias_act(x, b, noise=e, strength=t), contained=True
    ),
    "bias_act scale clamp": Case("NCHW C NC", lambda k, x, b, s: k.bias_act(x, b, scale=s, clamp=0.7)),
    "bias_act all": Case(
        "NCHW C NC . 11HW'", lambda k, x, b, s, t, e: k.bias_act(x, b, scale=s, noise=e, strength=t)
    ),
    "bias_act of features": Case("NC C NC", lambda k, x, b, s: k.bias_act(x, b, scale=s, clamp=1.5)),
    "bias_act noise learned": Case(
        "NCHW . NC N1HW", lambda k, x, t, s, e: k.bias_act(x, noise=e, strength=t, scale=s)
    ),  # projection of images optimizes the noise maps
    "bias_act_modulate": Case(
        "NCHW C NC . NC N1HW'",
        lambda k, x, b, m, t, s, e: k.bias_act_modulate(x, b, m, noise=e, strength=t, scale=s),
        slack=2,
    ),
    "bias_act_modulate alone": Case(
        "NCHW C NC", lambda k, x, b, m: k.bias_act_modulate(x, b, m), contained=True, slack=2
    ),
    "bias_act_residual": Case("NCHW C NCHW", lambda k, x, b, r: k.bias_act_residual(x, b, 3 * r)),
    "bias_act_residual linear": Case(
        "NCHW C NCHW", lambda k, x, b, r: k.bias_act_residual(x, b, r, act="linear"), contained=True
    ),
    "bias_act_residual falling": Case(
        "NCHW C NCHW", lambda k, x, b, r: k.bias_act_residual(x, b, r, slope=-0.3, gain=1.0), contained=True
    ),
    "modulate": Case("NCHW NC11", lambda k, x, m: k.modulate(x, m)),
    "scale_act": Case("NCHW NC", lambda k, x, s: k.scale_act(x, s)),
    "demodulate": Case("NCHW SC", lambda k, w, m: k.demodulate(w, m), **OWN),
    "demodulate_group": Case(
        "HC32 WC32 NC NC", lambda k, v, w, *m: k.demodulate_group(k.weight_energies([v, w]), m), **OWN
    ),
    "demodulate_group_fork": Case(
        "HC NC WC NC",
        lambda k, v, m, w, n: [
            y for ys in k.demodulate_group_fork([v.square(), w.square()], [m, n]) for y in ys
        ],
        **OWN,
    ),
    "weight_norm": Case(
        "HC32 W7 H111 W1",
        lambda k, v, w, g, h: k.weight_norm([v.to(w.dtype), w], [g, h]),
        slack=2,
    ),
    "minibatch_std": Case("NCHW", lambda k, x: k.minibatch_std(x, 64, multiple=4), **OWN),
    # samples, group, parts: several groups in each part, one, parts smaller than a group, no statistics
    **{
        f"minibatch_std {n} {group} {parts}": Case(
            f"{n}CHW",
            lambda k, x, g=group, p=parts: k.minibatch_std(x, g, parts=p, multiple=4),
            contained=n != 8,
            **OWN,
        )
        for n, group, parts in ((8, 2, 2), (6, 3, 2), (4, 4, 2), (2, 1, 1))
    },
    "instance_norm_act": Case("NCHW NC NC", lambda k, x, s, b: k.instance_norm_act(x, s, b), contained=True),
    "instance_norm_act noise": Case(
        "NCHW NC NC . N1HW'", lambda k, x, s, b, t, e: k.instance_norm_act(x, s, b, noise=e, strength=t)
    ),
    "group_norm_act": Case(
        "NCHW C C", lambda k, x, w, b: k.group_norm_act(x, groups_of(x), w, b, silu=True), slack=2
    ),
    "group_norm_act alone": Case(
        "NCHW", lambda k, x: k.group_norm_act(x, x.shape[1], slope=0.2), contained=True, slack=2
    ),
    "batch_norm_act": Case("NCHW C C", lambda k, x, w, b: k.batch_norm_act(x, w, b, slope=0.2), slack=2),
    "batch_norm_act running": Case(
        "NCHW C",
        lambda k, x, b: k.batch_norm_act(
            x, None, b, running=(x.new_zeros(x.shape[1]), x.new_ones(x.shape[1]), 0.25)
        ),
        contained=True,
        slack=2,
    ),
    "to_rgb": Case("NCHW IC11 NC I", lambda k, x, w, m, b: k.to_rgb(x, w, m, b, gain=0.3)),
    "to_rgb shared": Case("NCHW IC", lambda k, x, w: k.to_rgb(x, w), contained=True),
    "to_rgb full": Case(
        "NCHW IC NC I",
        lambda k, x, w, m, b: k.to_rgb(x, w, m, b, dtype=torch.promote_types(x.dtype, torch.float32)),
        autocast=False,
    ),
    "to_rgb image": Case(
        "NCHW IC I NIHW", lambda k, x, w, b, i: k.to_rgb(x, w, None, b, image=i), contained=True
    ),
    "to_rgb styled": Case("NCHW NIC I NIHW", lambda k, x, w, b, i: k.to_rgb(x, w, None, b, image=i)),
    "from_rgb": Case("NIHW CI11 C", lambda k, i, w, b: k.from_rgb(i, w, b, gain=0.3)),
    "from_rgb other format": Case(
        "NIHW CI C", lambda k, i, w, b: k.from_rgb(i, w, b, channels_last=i.is_contiguous())
    ),
    "from_rgb no act": Case(
        "NIHW CI", lambda k, i, w: k.from_rgb(i, w, gain=0.3, slope=1.0, act_gain=1.0), contained=True
    ),
    "from_rgb falling": Case(
        "NIHW CI C", lambda k, i, w, b: k.from_rgb(i, w, b, slope=-0.5, act_gain=-1.0), contained=True
    ),
    "from_rgb slope 1": Case("NIHW CI C", lambda k, i, w, b: k.from_rgb(i, w, b, slope=1.0), contained=True),
    "upfirdn2d filter": Case("NCHW", resampled("upfirdn2d", padding=2, gain=4.0), **OWN),
    "upfirdn2d up": Case("NCHW", resampled("upfirdn2d", up=2, padding=(2, 1), gain=4.0), **OWN),
    "upfirdn2d down": Case("NCHW", resampled("upfirdn2d", down=2, padding=(2, 1, 1, 2)), **OWN),
    "fork_upfirdn2d filter": Case(
        "NCHW", resampled("fork_upfirdn2d", padding=2, gain=1.7), contained=True, **OWN
    ),
    "fork_upfirdn2d up": Case(
        "NCHW", resampled("fork_upfirdn2d", up=2, padding=(2, 3), gain=1.7), contained=True, **OWN
    ),
    "fork_upfirdn2d down": Case("NCHW", resampled("fork_upfirdn2d", down=2, padding=(1, 2)), **OWN),
    "act_filter": Case("NCHW C", filtered("act_filter"), slack=3),
    "filter_act": Case("NCHW C . NC+ N1hw'", filtered("filter_act"), slack=3),
    "filter_act alone": Case("NCHW C", filtered("filter_act", alone=True), contained=True, slack=3),
    "filter_act_modulate": Case("NCHW C . NC+ NC N1hw'", filtered("filter_act_modulate"), slack=3),
    "filter_act_modulate alone": Case(
        "NCHW C NC", filtered("filter_act_modulate", alone=True), contained=True, slack=3
    ),
    "conv2d": Case("NCHW 6C33", lambda k, x, w: k.conv2d(x, w.to(x.dtype), padding=1)),
    "conv2d down": Case("NCHW 6C33", lambda k, x, w: k.conv2d(x, w.to(x.dtype), stride=2, padding=1)),
    "conv_transpose2d": Case("NCHW C633", lambda k, x, w: k.conv_transpose2d(x, w.to(x.dtype), stride=2)),
    "bias_act_skip": Case("NCHW C NIHW CI11", lambda k, x, b, i, w: k.bias_act_skip(x, b, i, w.to(x.dtype))),
    "dense": Case("NC WC W", lambda k, x, w, b: k.dense(x, w, b, **LEAKY), **OWN),
    "dense linear": Case(
        "NC WC", lambda k, x, w: k.dense(x, w, weight_gain=0.3, bias_gain=0.7), contained=True, **OWN
    ),
    "dense_group": Case(  # a slot is read by two layers, one by none
        "N3C HC WC 9C H W 9",
        lambda k, x, *t: k.dense_group(x, t[:3], t[3:], (0, 2, 0), weight_gain=0.3),
        **OWN,
    ),
}
NAMES = list(CASES)
FEW = [name for name, case in CASES.items() if not case.contained]


def has_layout(name: str) -> bool:
    """Return whether an input of this case has a memory format to choose."""
    return "HW" in CASES[name].inputs


def every(names: Iterable[str] = NAMES, *, layouts: bool = True) -> Callable[..., Any]:
    """Parametrize a test by case, with ``layouts`` also by memory format; leave contained cases to `make test-all`
    where ``names`` is `FEW`.
    """
    quick, rows = set(names), []
    for name in NAMES:
        marks = [] if name in quick else [pytest.mark.exhaustive]
        for layout in FORMATS if layouts else ("nchw",):
            if layout == "nchw" or has_layout(name):
                values = (name, layout) if layouts else (name,)
                rows.append(pytest.param(*values, marks=marks, id="-".join(values)))
    return pytest.mark.parametrize(("case", "layout") if layouts else ("case",), rows)


def functions(case: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the fused op of a case and its reference as functions of tensors."""
    call = CASES[case].call
    return lambda *t: call(FUSED, *t), lambda *t: call(PLAIN, *t)


def make_inputs(
    case: str,
    shape: tuple[int, ...],
    layout: str = "nchw",
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    image: int = 3,
) -> list[Tensor]:
    """Return random inputs of a case for a map [N, C, H, W] of this shape."""
    n, c, h, w = shape
    sizes = {"N": n, "C": c, "H": h, "W": w, "h": h + 1, "w": w + 1, "S": 2, "I": image}
    generator, inputs = torch.Generator().manual_seed(seed), []
    for name in CASES[case].inputs.split():
        size = [int(each) if each.isdigit() else sizes[each] for each in name.strip("+'.")]
        t = torch.randn(size, generator=generator, dtype=torch.float64)
        t = t.abs() + 0.5 if name.endswith("+") else t
        t = t.contiguous(memory_format=FORMATS[layout]) if t.dim() == 4 else t
        inputs.append(t.to(DEVICE, dtype).requires_grad_(not name.endswith("'")))
    return inputs


def flatten(results: Any) -> list[Tensor]:
    """Return the results of an op as a list."""
    return [results] if isinstance(results, Tensor) else list(results)


def differentiable(inputs: Iterable[Tensor]) -> list[Tensor]:
    return [t for t in inputs if t.requires_grad]


def make_directions(ys: list[Tensor], seed: int = 1) -> list[Tensor]:
    """Return random gradients of results, in their dtypes and memory formats."""
    generator = torch.Generator().manual_seed(seed)
    gs = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.device, y.dtype) for y in ys]
    last = [y.dim() == 4 and not y.is_contiguous() for y in ys]
    gs = [
        g.contiguous(memory_format=torch.channels_last) if nhwc else g
        for g, nhwc in zip(gs, last, strict=True)
    ]
    return [g.requires_grad_() for g in gs]


def values_and_grads(function: Callable[..., Any], inputs: list[Tensor], seed: int = 1) -> list[Tensor]:
    """Return results, their gradients along random directions, the same to be differentiated, and the gradients of a
    penalty on those by inputs and directions.
    """
    ys, wanted = flatten(function(*inputs)), differentiable(inputs)
    gs = make_directions(ys, seed)
    plain = torch.autograd.grad(ys, wanted, [g.detach() for g in gs], retain_graph=True)
    first = torch.autograd.grad(ys, wanted, gs, create_graph=True)
    penalty = sum(t.to(torch.promote_types(t.dtype, torch.float32)).square().sum() for t in first)
    second = torch.autograd.grad(penalty, [*wanted, *gs], allow_unused=True, materialize_grads=True)
    return [t.detach() for t in (*ys, *plain, *first, *second)]


def agree(case: str, inputs: list[Tensor], **tolerance: float) -> None:
    """Compare everything that a fused op and its reference compute."""
    fused, reference = functions(case)
    found = zip(values_and_grads(fused, inputs), values_and_grads(reference, inputs), strict=True)
    for i, (got, want) in enumerate(found):
        torch.testing.assert_close(got, want, msg=lambda text, i=i: f"result {i}: {text}", **tolerance)


def forget_covers() -> None:
    """Let every op choose its tiles anew."""
    upfirdn2d = sys.modules["kernels.upfirdn.upfirdn2d"]
    for cached in (tiles.tiling, rgb_kernels.cover, upfirdn2d._cover, filtered_act_launch._cover):
        cached.cache_clear()


def shrink_tiles(patch: pytest.MonkeyPatch) -> None:
    """Choose tiles so small that a little map crosses every border: between tiles, programs and parts of channels."""
    upfirdn2d = sys.modules["kernels.upfirdn.upfirdn2d"]
    patch.setattr(tiles, "choose", lambda *key: Choice(tile=16, columns=4, warps=1, per_sm=8, stages=2))
    patch.setattr(tiles, "processor", lambda device: (90, 1))
    configs = rgb_kernels.CONFIGS.items()
    few = {op: rgb_kernels.Config(vectors=1, ahead=min(c.ahead, 2), per_sm=1, warps=1) for op, c in configs}
    for name, value in {"CONFIGS": few, "FEW": 2, "LANES": 2, "SIDE": 2}.items():
        patch.setattr(rgb_kernels, name, value)
    patch.setattr(rgb_kernels, "processor", lambda device: (90, 8))
    power_of_2 = tiles.power_of_2
    for module in (upfirdn2d, filtered_act_launch):
        small = module.Config(rows=2, cols=2, ahead=1, block_c=2, width=1, warps=1)
        patch.setattr(module, "config", lambda *_, small=small, **__: small)
        patch.setattr(module, "power_of_2", lambda n: min(power_of_2(n), 2))
    patch.setattr(sys.modules["kernels.norm.minibatch_std"], "TILE", 8)
    forget_covers()
