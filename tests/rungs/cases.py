"""The tables of the rungs' suite: recipes that compute the same, sabotage that a receipt sees,
    bugs that parity sees.

`test_rungs.py` runs them. What only one rung can show is in the file of that rung.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F

import kernels
from stylegan_lite import losses, networks, resample, spectral
from stylegan_lite.losses import PHASES
from stylegan_lite.networks import minibatch_std
from stylegan_lite.step import TrainingStep
from stylegan_lite.step.pair import autocast
from tests.support.small import LEAST

Recipe = dict[str, Any]
DENSE, RGB, GROUPED, JOINT = (
    {"dense": "triton"},
    {"rgb": "triton"},
    {"demodulation": "grouped"},
    {"joint_batch": True},
)
OURS, ONCE, SPECTRAL = {"conv": "double_backward"}, {"weights": "once"}, {"spectral_norm": "triton"}
LAST = {"channels_last": True, "instance_norm": "var_mean"}
BF16 = LAST | {"precision": "bf16"}
FUSED_ADAM = {"fused_adam": True, "ema": "foreach"}
UPDATE = ONCE | FUSED_ADAM | {"fused_update": True}
NORM = {"fused_norm": True}
FILTERS = {"resample": "triton", "fused_act": True}
FILTER = FILTERS | {"fused_filter": True}
MODULATION = FILTER | NORM | {"fused_modulation": True}
RESIDUAL = OURS | {"fused_act": True, "fused_residual": True}
FORK = RESIDUAL | {"resample": "triton"}
STREAMS = (
    {"resample": "depthwise", "set_to_none": True, "channels_last": True} | OURS | ONCE | {"streams": "two"}
)
GROUPED_TOP = BF16 | NORM | OURS | ONCE | GROUPED | {"set_to_none": True}

EIGHT = {"resolution": 8}  # the workload of most references, which are made once
TINY = EIGHT | {"channel_max": 8, "batch": 2}
ODD = EIGHT | {"channel_base": 64, "z_dim": 10, "w_dim": 12}
NARROW = TINY | {"channel_base": 64, "mapping_layers": 1, "mbstd_group": 2}
FOUR = {"channel_base": 32, "channel_max": 4, "w_dim": 4, "z_dim": 4}
INSTANCE = {"norm": "instance"}


class Same(NamedTuple):
    """Two recipes of which every phase computes the same in float64."""

    below: Recipe
    change: Recipe
    workload: dict[str, Any] = {}
    quick: bool = True
    atol: float = 1e-12
    rounds: int = 1
    noise: bool = False  # in place of the real images, which say little about a layer that only they reach


def list_same() -> Iterator[tuple[str, Same]]:
    """Yield each pair of recipes with a name that begins with its rung's."""
    yield "fused_dense demod", Same({}, DENSE, ODD)
    yield "fused_dense instance", Same({}, DENSE, ODD | INSTANCE, False)
    for name, how, workload, quick in (
        ("", {}, {}, False),
        (" modconv", {"modconv": "grouped"}, {}, False),
        (" instance", {}, INSTANCE, False),
        (" in company", LAST | NORM | OURS, {}, True),
    ):
        yield f"fused_filter{name}", Same(FILTERS | how, FILTER | how, NARROW | workload, quick, 1e-10)
    yield "fused_modulation", Same(FILTER | NORM, MODULATION, NARROW, atol=1e-10)
    yield (
        "fused_modulation in company",
        Same(FILTER | NORM | COMPANY, MODULATION | COMPANY, NARROW, False, 1e-10),
    )
    yield "fused_modulation without modulation", Same(FILTER | NORM, MODULATION, NARROW | INSTANCE)
    for k, (name, recipe) in enumerate({"sum": RESIDUAL, "fork": FORK, "fork nhwc": FORK | LAST}.items()):
        for norm in ("demod", "instance"):
            below = {"channels_last": "channels_last" in recipe}
            quick = (norm == "demod") == (k != 1)
            yield f"fused_residual {name} {norm}", Same(below, recipe, TINY | {"norm": norm}, quick)
    small_batch, noise = EIGHT | {"batch": 2}, {"noise": True, "atol": 1e-11}
    yield "fused_rgb nchw", Same({}, RGB, small_batch, **noise)
    yield "fused_rgb nhwc", Same(LAST, LAST | RGB, small_batch, False, **noise)
    yield "fused_rgb fused act", Same(LAST, LAST | RGB | {"fused_act": True}, small_batch, **noise)
    hows = ({"modconv": "grouped"}, {}), (LAST, {}), ({}, INSTANCE)
    for k, filters in enumerate(("depthwise", "channels_as_batch", "bilinear", "folded", "subpixel")):
        for j, (how, workload) in enumerate(hows):
            recipe = {"resample": filters} | how
            yield (
                f"conv_double_backward {filters} {j}",
                Same(recipe, recipe | OURS, EIGHT | workload, k % 3 == j),
            )
    last = {"channels_last": True} | ONCE
    yield "grouped_demod", Same({}, GROUPED, ODD, rounds=2)
    for name, below in (("nhwc", last), ("update", last | OURS | UPDATE | {"set_to_none": True})):
        yield f"grouped_demod {name}", Same(below, below | GROUPED, ODD, rounds=2)
    fused = LAST | NORM | OURS
    for k, (name, recipe) in enumerate({"": {}, " nhwc": LAST | OURS, " fused": fused}.items()):
        for norm in ("demod", "instance"):
            workload = {"norm": norm} | (TINY if recipe is fused else {})
            yield (
                f"joint_batch{name} {norm}",
                Same(recipe, recipe | JOINT, workload, (norm == "demod") == (k != 1)),
            )


class Reference(NamedTuple):
    """A recipe that parity compares with the FP64 reference; plain: with the kernels' references in their place."""

    recipe: Recipe
    workload: dict[str, Any] = {}
    quick: bool = True
    plain: bool = False


SN = {"spectral_norm": True}
REFERENCES = {
    "fused_dense": Reference(DENSE, quick=False),
    "fused_dense bf16": Reference(BF16 | DENSE),
    "fused_rgb": Reference(RGB, quick=False),
    "fused_rgb bf16": Reference(BF16 | RGB),
    "fused_residual": Reference(FORK | LAST | NORM, INSTANCE, plain=True),
    "fused_residual bf16": Reference(FORK | BF16 | NORM, plain=True),
    "fused_spectral plain": Reference({}, SN, False),
    "fused_spectral plain bf16": Reference(BF16, SN, False),
    "fused_spectral": Reference(LAST | JOINT | ONCE | FUSED_ADAM | OURS | SPECTRAL, SN, False, True),
    "fused_spectral bf16": Reference(BF16 | SPECTRAL, SN, plain=True),
    "fused_update": Reference(UPDATE, quick=False),
    "fused_update bf16": Reference(BF16 | UPDATE | {"set_to_none": True}),
    "grouped_demod": Reference(GROUPED, quick=False),
    "grouped_demod bf16": Reference(GROUPED_TOP, ODD),
    "joint_batch": Reference(JOINT),
    "joint_batch bf16": Reference(BF16 | JOINT, INSTANCE),
    "lean_weights": Reference(ONCE, quick=False),
    "lean_weights bf16": Reference(BF16 | ONCE | {"set_to_none": True}),
    "lean_weights bf16 instance": Reference(BF16 | ONCE | {"set_to_none": True}, INSTANCE),
    "parallel_streams bf16": Reference(STREAMS | UPDATE | {"precision": "bf16"}),
    "conv_double_backward": Reference(OURS),
    "conv_double_backward bf16": Reference(BF16 | OURS, quick=False),
    "fused_adam": Reference(FUSED_ADAM, quick=False),
    "fused_adam bf16": Reference(BF16 | OURS | FUSED_ADAM),
}


class Earned(NamedTuple):
    """A recipe in a step of which its rung and all that it contains find their receipts, and one without the rung."""

    rung: str
    recipe: Recipe
    workload: dict[str, Any] = {}
    without: Recipe | None = None
    steps: int = 0
    quick: bool = True


LEAN = BF16 | {"set_to_none": True}
COMPANY = {"channels_last": True, "streams": "two"} | OURS | ONCE | GROUPED | RGB | JOINT
EARNED = [
    Earned("fused_adam", FUSED_ADAM, {}, {}),
    Earned("fused_dense", BF16 | DENSE, ODD, {}),
    Earned("fused_filter", FILTER, LEAST),
    Earned("fused_filter", FILTER, LEAST | INSTANCE, quick=False),
    Earned("fused_modulation", MODULATION, LEAST, quick=False),
    Earned("fused_modulation", MODULATION | COMPANY, LEAST),
    Earned("fused_residual", RESIDUAL, TINY),
    Earned("fused_residual", FORK, TINY),
    Earned("fused_rgb", RGB, LEAST, {}),
    Earned("fused_rgb", BF16 | NORM | OURS | RGB | {"fused_act": True}, LEAST, BF16 | NORM | OURS),
    Earned("fused_rgb", BF16 | NORM | OURS | RGB | {"fused_act": True}, LEAST | INSTANCE, quick=False),
    Earned("conv_double_backward", OURS, {}, {}),
    Earned("conv_double_backward", BF16 | OURS, INSTANCE, BF16),
    Earned("lean_weights", LEAN | ONCE, {}, LEAN, 1),
    Earned("lean_weights", LEAN | ONCE, INSTANCE, LEAN, 1),
    Earned("fused_update", LEAN | UPDATE, LEAST, LEAN | ONCE | FUSED_ADAM, 1),
    Earned("grouped_demod", GROUPED_TOP, ODD, NORM, 1),
    Earned("joint_batch", JOINT, TINY, {}),
    Earned("joint_batch", BF16 | NORM | OURS | JOINT, TINY),
]


# ---- sabotage of a real step ---------------------------------------------------------------------------------------


class Sabotage(NamedTuple):
    """What takes a rung's change back in a prepared step, and the words of the receipt that sees it."""

    rung: str
    what: str
    words: tuple[str, ...]
    recipe: Recipe
    workload: dict[str, Any]
    plant: Callable[[TrainingStep, pytest.MonkeyPatch], None]
    steps: int = 0  # that are run before anything is looked at
    quick: bool = True


def replace_op(name: str, function: Callable[..., Any] | None = None, every: int = 0) -> Callable[..., None]:
    """Return sabotage that puts a function, or the op's reference, in the place of an op of `kernels`.

    every: leave the op as it is in one call of so many.
    """

    def plant(step: TrainingStep, patch: pytest.MonkeyPatch) -> None:
        honest, calls = getattr(kernels, name), []
        other = function or getattr(kernels, f"{name}_reference")

        def rarely(*args: Any, **how: Any) -> Any:
            calls.append(1)
            return (other if every == 0 or len(calls) % every else honest)(*args, **how)

        patch.setattr(kernels, name, rarely)

    return plant


def plant_all(*plants: Callable[..., None]) -> Callable[..., None]:
    return lambda step, patch: [plant(step, patch) for plant in plants] and None


def change_step(change: Callable[[TrainingStep], Any]) -> Callable[..., None]:
    return lambda step, patch: change(step)


def filter_in_two(x, bias, taps, *, padding, filter_gain, slope, gain):
    return kernels.upfirdn2d(
        kernels.bias_act(x, bias, slope=slope, gain=gain), taps, padding=padding, gain=filter_gain
    )


def act_in_two(x, taps, bias, *, padding, filter_gain, **more):
    return kernels.bias_act(kernels.upfirdn2d(x, taps, padding=padding, gain=filter_gain), bias, **more)


def modulate_in_two(x, taps, style, bias, **how):
    return kernels.modulate(kernels.filter_act(x, taps, bias, **how), style)


def modulate_in_three(x, taps, style, bias, **how):
    return kernels.modulate(act_in_two(x, taps, bias, **how), style)


def convolve_to_rgb(x, weight, style, bias, *, gain, dtype, image):
    """Compute toRGB as it was, with weights [N, 3, C] that have the style in them."""
    n, c, h, w = x.shape
    y = F.conv2d(x.reshape(1, n * c, h, w), (weight * gain).flatten(0, 1)[:, :, None, None], groups=n)
    y = y.view(n, 3, h, w).to(dtype) + bias.view(1, -1, 1, 1)
    return y if image is None else y + image


def convolve_from_rgb(image, weight, bias=None, *, gain, channels_last, slope, act_gain):
    return F.leaky_relu(F.conv2d(image, weight * gain, bias), slope) * act_gain


def convolve_1x1(step, patch):
    honest = kernels.conv2d
    patch.setattr(
        kernels, "conv2d", lambda x, w, **how: (F.conv2d if w.shape[-1] == 1 else honest)(x, w, **how)
    )


def sum_apart(step, patch):
    for block in step.D.modules():
        if isinstance(block, networks.DiscriminatorBlock):
            block.fused = False


def fork_apart(step, patch):
    patch.setattr(networks, "fork_down", lambda x: (x, resample.downsample2d(x, "triton")))


def iterate_apart(step, patch):
    def advance(self):
        for layer in self.layers:
            spectral.iterate(layer)

    patch.setattr(spectral.SpectralWeights, "advance", advance)


def forget_copies(step, patch):
    """Put the generator's copies back after each update."""
    honest, entries = step.opt_G.step, step.copies[step.G].entries

    def update(*args):
        old = [e.copy.detach().clone() for e in entries]
        honest(*args)
        with torch.no_grad():
            for entry, copy in zip(entries, old, strict=True):
                entry.copy.copy_(copy)

    step.opt_G.step = update


def group_one_by_one(step, patch):
    honest = networks.grouped_demodulation

    def one_by_one(layers, styles):
        pairs = [honest([layer], [style]) for layer, style in zip(layers, styles, strict=True)]
        return [each for (each,), _ in pairs], [style for _, (style,) in pairs]

    patch.setattr(networks, "grouped_demodulation", one_by_one)


def change_weight_late(step, patch):
    honest = step.opt_G.step
    step.opt_G.step = lambda: (honest(), step.G.blocks[0].conv1.weight.data.mul_(1.1))


def pass_twice(step, patch):
    honest = losses.d_main
    patch.setattr(losses, "d_main", lambda *args, joint=False: honest(*args))


def make_copies_float32(step):
    copies = step.copies[step.G]
    copies.entries = [e._replace(copy=e.copy.detach().float()) for e in copies.entries]


def unfuse_adam(*names: str) -> Callable[[TrainingStep], None]:
    def change(step):
        for name in names:
            getattr(step, name).param_groups[0].update(fused=None, foreach=True)

    return change


def average_in_a_loop(step):
    step.recipe = dataclasses.replace(step.recipe, ema="loop")


def take_nothing(step):
    for into in step.parallel.gradients.values():
        into.take = lambda weights, compute: False


def know_few(step):
    for network, into in step.parallel.gradients.items():
        into.leaves = [entry.copy for entry in step.copies[network].entries[1:2]]


def autocast_in_bf16(step):
    step.amp = functools.partial(autocast, "cpu", "bf16")


def stop_scales(step):
    for scale in step.scales.values():
        scale.update = lambda: None


FP16 = {"precision": "fp16"} | FUSED_ADAM
SN_LEAST = LEAST | SN
STREAMS_TINY = EIGHT | FOUR | {"batch": 2}
WITHOUT_GROUP = change_step(lambda step: setattr(step.G, "grouped", False))
SABOTAGES = [
    Sabotage("fused_adam", "Adam is foreach", ("Adam fused",), FUSED_ADAM, {},
        change_step(unfuse_adam("opt_G", "opt_D"))),
    Sabotage("fused_adam", "the discriminator's Adam is foreach", ("called 2x in one run",), FUSED_ADAM, {},
        change_step(unfuse_adam("opt_D"))),
    Sabotage("fused_adam", "the moving average is a loop", ("0x",), FUSED_ADAM, {},
        change_step(average_in_a_loop)),
    Sabotage("fp16", "autocast in BF16", ("FLOPs in FP16: 0.000",), FP16, {}, change_step(autocast_in_bf16)),
    Sabotage("fp16", "scales are not updated", ("0 updates",), FP16, {}, change_step(stop_scales)),
    Sabotage("fused_dense", "dense and dense_group are plain PyTorch", ("dense_kernel launched 0x",), DENSE,
        ODD, plant_all(replace_op("dense"), replace_op("dense_group"))),
    Sabotage("fused_dense", "the affines are plain PyTorch", ("dense layers", "Generator"), DENSE, ODD,
        replace_op("dense_group")),
    Sabotage("fused_dense", "one layer of the discriminator is plain PyTorch", ("dense layers", "Dense"),
        DENSE, ODD, change_step(lambda step: setattr(step.D.logit, "fused", False))),
    Sabotage("fused_filter", "act_filter is two ops", ("act_filter_kernel launched 0x",), FILTER, LEAST,
        replace_op("act_filter", filter_in_two)),
    Sabotage("fused_filter", "filter_act is two ops", ("filter_act_kernel launched 0x",), FILTER, LEAST,
        replace_op("filter_act", act_in_two)),
    Sabotage("fused_filter", "act_filter is two ops in three calls of four",
        ("share a pass with a filter",), FILTER, LEAST | INSTANCE, replace_op("act_filter", filter_in_two,
        4)),
    Sabotage("fused_modulation", "the op is two ops", ("filter_act_modulate_kernel launched 0x",),
        MODULATION, LEAST, replace_op("filter_act_modulate", modulate_in_two)),
    Sabotage("fused_modulation", "the op is three ops", ("filter_act_modulate_kernel launched 0x",),
        MODULATION, LEAST, replace_op("filter_act_modulate", modulate_in_three), quick=False),
    Sabotage("fused_modulation", "in every second layer the op is two ops",
        ("activations behind a filter that are written as they are",), MODULATION, LEAST,
        replace_op("filter_act_modulate", modulate_in_two, 2)),
    Sabotage("fused_modulation", "in every second layer the op is three ops",
        ("modulations by themselves",), MODULATION, LEAST | {"resolution": 16},
        replace_op("filter_act_modulate", modulate_in_three, 2), quick=False),
    Sabotage("fused_residual", "the sum is PyTorch's own", ("bias_act_residual_kernel launched 0x",),
        RESIDUAL, TINY, sum_apart),
    Sabotage("fused_residual", "the filter's gradient is added by autograd", ("a pass of their own",), FORK,
        TINY, fork_apart),
    Sabotage("fused_rgb", "toRGB convolves", ("1x1 convolutions", "forward"), RGB, LEAST,
        replace_op("to_rgb", convolve_to_rgb)),
    Sabotage("fused_rgb", "fromRGB convolves", ("1x1 convolutions", "forward"), RGB, LEAST,
        replace_op("from_rgb", convolve_from_rgb)),
    Sabotage("conv_double_backward", "conv2d is PyTorch's own",
        ("largest kernel in the double backward: 16",), OURS, {}, replace_op("conv2d", F.conv2d)),
    Sabotage("conv_double_backward", "conv2d is PyTorch's own for 1x1 convolutions", ("largest kernel",),
        OURS, {}, convolve_1x1),
    Sabotage("fused_spectral", "the power iteration is plain PyTorch's",
        ("spectral_columns_kernel launched 0x",), SPECTRAL, SN_LEAST, iterate_apart),
    Sabotage("fused_spectral", "weights are normalized layer by layer",
        ("spectral_scale_kernel launched 0x",), SPECTRAL, SN_LEAST, lambda step,
        patch: patch.setattr(spectral.SpectralWeights, "make", lambda self, dtype: None)),
    Sabotage("fused_spectral", "layers in full precision are left to plain PyTorch",
        ("spectral norm in plain PyTorch: Dense 8x",), SPECTRAL, SN_LEAST,
        change_step(lambda step: step.D.spectral_weights.groups.__setitem__(1, []))),
    Sabotage("lean_weights", "one layer scales and casts its weight itself", ("scaled, cast or turned",),
        LEAN | ONCE, {}, change_step(lambda step: setattr(step.D.conv, "compute_copy", None)), 1),
    Sabotage("lean_weights", "the generator's copies are never refreshed",
        ("not what their weight has become",), LEAN | ONCE, {},
        change_step(lambda step: setattr(step.copies[step.G], "refresh", lambda: None)), 1),
    Sabotage("lean_weights", "the generator's copies are float32", ("dtypes",), LEAN | ONCE, {},
        change_step(make_copies_float32), 1),
    Sabotage("fused_update", "the discriminator's Adam is PyTorch's", ("launches in one run",),
        LEAN | UPDATE, LEAST, change_step(lambda step: setattr(step.opt_D, "__class__", torch.optim.Adam)),
        1),
    Sabotage("fused_update", "the generator's copies are not written",
        ("not what their weight has become",), LEAN | UPDATE, LEAST, forget_copies, 1),
    Sabotage("grouped_demod", "weight_energies and demodulate_group are plain PyTorch",
        ("weight_energies_kernel launched 0x",), GROUPED, ODD, plant_all(replace_op("weight_energies"),
        replace_op("demodulate_group_fork")), 1),
    Sabotage("grouped_demod", "each layer makes its own coefficients", ("launched 0x",), NORM | GROUPED,
        ODD, WITHOUT_GROUP, 1),
    Sabotage("grouped_demod", "each layer is a group of its own", ("launches in one run of each phase",),
        GROUPED, ODD, group_one_by_one, 1),
    Sabotage("grouped_demod", "sums over taps are not made again when weights change", ("launched 0x",),
        UPDATE | GROUPED, LEAST, change_step(lambda step: setattr(step.copies[step.G], "refresh_energies",
        lambda: None))),
    Sabotage("grouped_demod", "a weight is changed after the sums were made",
        ("not what their weight has become",), UPDATE | GROUPED, LEAST, change_weight_late, 1),
    Sabotage("joint_batch", "D is given fakes and reals one after the other",
        ("batches D is given: 4, 4, 4, 4",), JOINT, {}, pass_twice),
    Sabotage("parallel_streams", "nothing is forked", ("work on the second stream",), STREAMS, STREAMS_TINY,
        change_step(lambda step: setattr(step.parallel.branch, "active", False)), 1),
    Sabotage("parallel_streams", "autograd keeps the gradients", ("work on the second stream",), STREAMS,
        STREAMS_TINY, change_step(take_nothing), 1),
    Sabotage("parallel_streams", "most compute copies are not known", ("with gradients from there: 4 of",),
        STREAMS, STREAMS_TINY, change_step(know_few), 1),
]  # fmt: skip


# ---- bugs that parity sees ------------------------------------------------------------------------------------------


def shift_slots(ws, weights, biases, slots, **how):
    return kernels.dense_group_reference(ws, weights, biases, [max(s - 1, 0) for s in slots], **how)


def detach_affines(ws, weights, biases, slots, **how):
    return kernels.dense_group_reference(ws, [w.detach() for w in weights], biases, slots, **how)


def detach_sigma(weights, us, vs, *, gains, dtype):
    ys = kernels.spectral_norm_reference([w.detach() for w in weights], us, vs, gains=gains, dtype=dtype)
    return [w * (y / w).detach() for w, y in zip(weights, ys, strict=True)]


def shift_styles(energies, styles):
    """Make coefficients of the layer whose style is the same size: shapes fit."""
    return kernels.demodulate_group_reference(energies, [styles[0], styles[0], *styles[2:]]), styles


def detach_energies(weights, share=1.0):
    return [e.detach() * share + e * (1 - share) for e in kernels.weight_energies_reference(weights)]


class Bug(NamedTuple):
    """A one-line bug: the function that stands in for an op, and what parity says of it."""

    recipe: Recipe
    op: str
    function: Callable[..., Any]
    workload: dict[str, Any] = {}
    words: str = ""


BUGS = {
    "fused dense: no gain after the activation": Bug(DENSE, "dense", lambda *t, gain=1.0,
        **how: kernels.dense_reference(*t, **how)),
    "fused dense: affines read the w of the layer before": Bug(DENSE, "dense_group", shift_slots),
    "fused dense: the bias gain is left out": Bug(DENSE, "dense", lambda *t, bias_gain=1.0,
        **how: kernels.dense_reference(*t, **how)),
    "fused dense: the affines' weights get no gradient": Bug(DENSE, "dense_group", detach_affines),
    "fused residual: the skip's result is not added": Bug(FORK, "bias_act_residual", lambda x, bias,
        residual, **how: kernels.bias_act_reference(x, bias, **how)),
    "spectral norm: the gradient of sigma is left out": Bug(SPECTRAL, "spectral_norm", detach_sigma, SN,
        "gradient"),
    "spectral norm: u and v stand still": Bug(SPECTRAL, "power_iteration", lambda weights, us, vs: None, SN,
        "update"),
    "grouped demodulation: a layer reads the style of another": Bug(GROUPED, "demodulate_group_fork",
        shift_styles),
    "grouped demodulation: the energy of one tap": Bug(GROUPED, "weight_energies", lambda ws: [w[:, :, 1,
        1].square() * 9 for w in ws]),
    "grouped demodulation: weights get no gradient from it": Bug(GROUPED, "weight_energies", detach_energies),
    "grouped demodulation: half of the weights' gradient": Bug(GROUPED, "weight_energies",
        functools.partial(detach_energies, share=0.5)),
    "joint batch: minibatch std over fakes and reals": Bug(JOINT, "", lambda x, group, parts=1,
        multiple=1: minibatch_std(x, group, 1, multiple)),
}  # fmt: skip


# ---- recipes that cannot be ----------------------------------------------------------------------------------------

GRAPHS = {"cuda_graphs": True, "adam": "capturable"}
CUDA_NORM = NORM | {"fused_act": True, "cuda_norm": True}
IMPOSSIBLE = [
    ({"prefetch_stream": True}, ["prefetch_stream", "async_copy"]),
    ({"conv": "cudnn"}, ["conv", "aten, double_backward"]),
    ({"ema": "fused"}, ["ema", "loop, foreach"]),
    ({"fp32_precision": "bf16"}, ["fp32_precision", "ieee"]),
    ({"compile": "fast"}, ["compile", "off, default, autotune, reduce-overhead, max-autotune"]),
    ({"compile": "reduce-overhead"} | GRAPHS, ["reduce-overhead", "cuda_graphs"]),
    ({"compile": "reduce-overhead"}, ["reduce-overhead", "set_to_none: true"]),
    ({"compile": "max-autotune"}, ["max-autotune", "set_to_none: true"]),
    ({"resample": "shifts"}, ["shifts", "compile"]),
    *(
        ({k: v for k, v in FILTER.items() if k != missing},
            ["fused_filter needs resample: triton and fused_act: true"])
        for missing in FILTERS
    ),
    *(
        ({k: v for k, v in MODULATION.items() if k != missing},
            ["fused_modulation needs fused_filter: true, fused_norm: true"])
        for missing in ("fused_filter", "fused_norm")
    ),
    (MODULATION | {"modconv": "grouped"}, ["modconv: dense"]),
    ({"fused_residual": True}, ["fused_residual needs fused_act: true"]),
    ({"fused_update": True, "fused_adam": True}, ["fused_update needs fused_adam: true and weights: once"]),
    ({"spectral_norm": True}, ["spectral_norm must be one of plain, triton, got True"]),
    (GROUPED | {"modconv": "grouped"}, ["demodulation: grouped needs modconv: dense"]),
    ({"cuda_norm": True}, ["cuda_norm needs fused_norm: true"]),
    (CUDA_NORM | {"compile": "default"}, ["compile: off"]),
    (NORM | {"fused_act": True, "fast_math": True}, ["fast_math needs cuda_norm: true"]),
    ({"streams": "two"} | OURS, ["needs conv: double_backward and weights: once"]),
    (STREAMS | {"compile": "default"}, ["needs compile: off"]),
    ({"whole_step_graph": True}, ["whole_step_graph needs cuda_graphs"]),
    ({"graph_fills": True}, ["graph_fills needs cuda_graphs: true"]),
    ({"dependent_launch": True}, ["dependent_launch needs kernels of ours"]),
    ({"gpu_decode": True}, ["uint8_input: true"]),
    ({"gpu_decode": True, "uint8_input": True, "cached_images": True}, ["cached_images: false"]),
]  # fmt: skip
NEED_A_GPU = (
    {"cudnn_benchmark": True},
    {"fp32_precision": "tf32"},
    {"gpu_decode": True, "uint8_input": True},
    GRAPHS,
    {"dependent_launch": True} | NORM,
)


# ---- forged evidence: a receipt that is earned, and one thing in it that is not so -----------------------------------


class Forged(NamedTuple):
    """Evidence that a rung accepts beside that of a plain step, and what its receipt refuses.

    Both are changes of an evidence, merged into its records. `words` are those of the reason.
    """

    rung: str
    good: dict[str, Any]
    bad: dict[str, Any]
    what: str
    words: tuple[str, ...] = ()


def merge(seen: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return an evidence with other values in its records."""
    merged = dict(seen)
    for name, value in changes.items():
        is_record = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merged[name] | value if is_record else value
    return merged


WHOLE = [("G_main", "D_main"), ("G_main", "G_pl", "D_main"), ("G_main", "G_pl", "D_main", "D_r1")]
KINDS = ["+".join(kind) for kind in WHOLE]
WHOLE_GRAPH = {
    "graphs": {"captured": KINDS, "together": KINDS, "replays": 1.0, "operators": 9, "launches": 12.0, "kernels": 2e3},
    "adam": {"capturable": True, "steps_on": ["cuda"]},
}  # fmt: skip
COPIED = {"to": "cuda", "non_blocking": True, "side_stream": True}
PREFETCHED = {"data": {"crossings": [COPIED], "operators": 1, "overlap": 0.9, "waiting_ms": 0.1}}
FILLED = {"fills": {"graphs": 4, "found": 8, "replaced": 8, "left": {}, "memsets": 0.0}}
DECODED = {"data": {"decoded": 0, "mapped": 0, "decoded_on_gpu": 20, "waiting_ms": 0.1, "fetched": 1.0}}
BENCHMARK = {"settings": {"cudnn_benchmark": True}}
TF32 = {"settings": {"matmul_fp32_precision": "tf32", "conv_fp32_precision": "tf32"}}
DEPENDENT = {
    "kernels": {
        "bias_act_kernel": {"calls": 5, "dtypes": ["bf16"], "tensors": ["x"], "dependent": 5},
        "dense_kernel": {"calls": 2, "dtypes": [], "tensors": [], "dependent": 2},
        "instance_norm_act_forward": {"calls": 3, "dtypes": [], "tensors": [], "cpp": True},  # no launch of Triton's
    }
}  # fmt: skip
IN_TWO = {"Discriminator": [4] * 2 + [8] * 2 + [4] * 2}
PASSES = {
    "passes": IN_TWO | {"SynthesisBlock": [4] * 12, "DiscriminatorBlock": [4] * 20},
    "recipe": {"joint_batch": True, "micro_batches": 2},
}
# Two parts: three blocks in D and in G, whose passes run again in the main phases.
AGAIN = {"act_filter": (24, 6), "filter_act_modulate": (30, 6), "bias_act_modulate": (30, 6)}
FUSED_PASSES = {
    "passes": IN_TWO | {"Generator": [4] * 2 + [2] * 4 + [4] * 2},
    "recipe": {"joint_batch": True, "micro_batches": 2, "fused_modulation": True},
    "kernels": {f"{op}_kernel": {"calls": calls, "backward": again} for op, (calls, again) in AGAIN.items()},
    "norm": "demod",
}
REDUCED = {
    "reduced": {
        "ranks": 2, "gpus": 2, "bytes": dict.fromkeys(PHASES, 10**8),
        "comm_ms": 2.0, "exposed_ms": 0.5, "comm_bursts": 11.0,
    },
    "graphs": {"together": KINDS[:2], "captured": KINDS[:2], "replays": 1.0, "phases_per_step": 2.0},
}  # fmt: skip
SILENT = {"reduced": {"comm_ms": 0.0, "exposed_ms": 0.0, "comm_bursts": 0.0}}
HOME = {"reduced": {"bytes": dict.fromkeys(PHASES[:3], 10**8)}}


def list_forged() -> Iterator[Forged]:
    """Yield every forged evidence of which the tables of a ladder's rungs have one."""
    for captured, what in (
        ([*PHASES], "every phase has its graph"), ([], "nothing is captured"),
        (KINDS[2:], "one kind of step of three is captured"),
    ):  # fmt: skip
        yield Forged("whole_step_graph", WHOLE_GRAPH, {"graphs": {"captured": captured}}, what)
    yield Forged("whole_step_graph", WHOLE_GRAPH, {"graphs": {"replays": 2.31}}, "every phase is replayed")
    for graphs, what in (
        ({"captured": ["G_main+D_main"]}, "one kind of step"),
        ({"together": []}, "no kinds of steps"),
    ):
        yield Forged("cuda_graphs", WHOLE_GRAPH, {"graphs": graphs}, what)
    for bad, what in (
        ({"operators": 4}, "the step normalizes the batch"), ({"crossings": []}, "no batch is copied"),
        ({"crossings": [COPIED | {"side_stream": False}]}, "batches are copied on the step's stream"),
    ):  # fmt: skip
        yield Forged("prefetch_stream", PREFETCHED, {"data": bad}, what)
    for bad, words, what in (
        ({"replaced": 0, "left": {"with programmatic edges": 8}}, "0 of 8", "graphs that are left as they are"),
        ({"graphs": 0, "found": 0, "replaced": 0}, "0 of 0", "a step whose graphs nobody searched"),
        ({"memsets": 58.75}, "58.8 a step", "graphs that were instantiated before"),
    ):  # fmt: skip
        yield Forged("graph_fills", FILLED, {"fills": bad}, what, (words,))
    bad = {"data": {"decoded_on_gpu": 0}}
    yield Forged("gpu_decode", DECODED, bad, "nothing was decoded there", ("images decoded on the GPU: 0",))
    for flag, value in (("cudnn_benchmark", False), ("cudnn_benchmark", None), ("cudnn_deterministic", True)):
        yield Forged(
            "cudnn_benchmark", BENCHMARK, {"settings": {flag: value}}, f"{flag} is {value}", (str(value),)
        )
    for flag, value in (("matmul_fp32_precision", "none"), ("conv_fp32_precision", "ieee")):
        yield Forged("tf32", TF32, {"settings": {flag: value}}, f"{flag} is {value}", (value,))
    for name, count in (("dense_kernel", 1), ("bias_act_kernel", 0)):
        bad = {"kernels": {name: DEPENDENT["kernels"][name] | {"dependent": count}}}
        yield Forged(
            "dependent_launch", DEPENDENT, bad, f"launches of {name} that carry no attribute", ("of 7",)
        )
    for parts in (2, 4, 8):
        given = [8 // parts] * parts + [16 // parts] * parts + [8 // parts] * parts
        good = {"passes": {"Discriminator": given}, "recipe": {"joint_batch": True, "micro_batches": parts}}
        bad = {"passes": {"Discriminator": [8, 16, 8]}}
        yield Forged(f"accumulate_{parts}", good, bad, "each phase runs its whole batch", ("8, 16, 8",))
    yield Forged("accumulate_2", PASSES, {"passes": {"Discriminator": []}}, "D is given nothing")
    for block, count, what in (
        ("SynthesisBlock", 24, "path length is checkpointed, too"),
        ("DiscriminatorBlock", 30, "R1 is checkpointed, too"),
        ("SynthesisBlock", 0, "the networks keep their activations"),
    ):  # fmt: skip
        yield Forged("checkpointing", PASSES, {"passes": {block: [4] * count}}, what, (f"{block} {count}x",))
    for op, calls, again, what in (
        ("act_filter", 18, 0, "D keeps the results of its passes"),
        ("act_filter", 30, 12, "R1 is checkpointed, too"),
        ("filter_act_modulate", 27, 3, "one part keeps the results of its passes"),
        ("bias_act_modulate", 42, 18, "path length is checkpointed, too"),
    ):
        bad = {"kernels": {f"{op}_kernel": {"calls": calls, "backward": again}}}
        yield Forged("checkpointing", FUSED_PASSES, bad, f"{what} ({op})", (f"{op} in backward: {again}x",))
    bad = {"passes": {"DiscriminatorBlock": [8] * 6}}
    words = ("SynthesisBlock 0x, DiscriminatorBlock 6x",)
    yield Forged("checkpointing", FUSED_PASSES, bad, "blocks run again too", words)
    for rung in ("ddp", "flat_reduce", "captured_reduce", "data_parallel"):
        words = ("GPUs of the process: 1" if rung == "data_parallel" else "ranks: 1",)
        yield Forged(rung, REDUCED, {"reduced": {"ranks": 1, "gpus": 1}}, "one GPU alone", words)
        yield Forged(rung, REDUCED, SILENT, "nothing moves between GPUs", ("communication: 0.000 ms",))
        if rung != "data_parallel":
            yield Forged(rung, REDUCED, HOME, "R1's gradients are not reduced", ("D_r1 0.000",))
    late = {"reduced": {"comm_bursts": 3.0, "exposed_ms": 2.0}}
    yield Forged("ddp", REDUCED, late, "gradients are reduced after backward", ("bursts a phase: 1.5",))
    bad = {"graphs": {"captured": KINDS[:1]}}
    yield Forged(
        "captured_reduce", REDUCED, bad, "one kind of step of two is captured", ("captured: 1 of 2",)
    )


# Evidence beside that of a plain step that is accepted too: what was not profiled, and what a slow host shows.
ACCEPTED = [
    ("cuda_graphs", WHOLE_GRAPH, ""),
    ("graph_fills", merge(FILLED, {"fills": {"memsets": None}}), "memsets in replayed graphs: not profiled"),
    ("graph_fills", merge(FILLED, {"fills": {"found": 0, "replaced": 0}}),
        "memset nodes that are kernels now: 0 of 0 in 4 graphs"),
    ("graph_fills",
        merge(FILLED, {"fills": {"left": {"of several rows": 1, "empty or too long": 1}, "memsets": 2.1}}),
        "memset nodes that stay: empty or too long 1, of several rows 1"),
    ("ddp", merge(REDUCED, {"reduced": {"exposed_ms": 2.0}}), ""),
    ("flat_reduce", merge(REDUCED, {"reduced": {"comm_bursts": 3.0, "exposed_ms": 2.0}}), ""),
    *(
        (rung, merge(REDUCED, {"reduced": dict.fromkeys(("comm_ms", "exposed_ms", "comm_bursts"))}),
            "communication: not profiled")
        for rung in ("ddp", "flat_reduce", "captured_reduce", "data_parallel")
    ),
    ("ddp", REDUCED, "communication: 2.000 ms a step, 0.500 ms of it exposed, bursts a phase: 5.5"),
    ("baseline",
        {"settings": {"cudnn_benchmark": True, "matmul_fp32_precision": "tf32"},
         "recipe": {"cudnn_benchmark": True, "fp32_precision": "tf32"}}, ""),
]  # fmt: skip
