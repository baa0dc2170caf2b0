"""The ops that `ladder kernels` and asv time: a table of ops, each with the shapes that the workloads' networks have.

To add an op, add an entry to `OPS`. tests/studies/kernelbench/test_kernelcases.py compares the sizes with the real
calls of the networks. The cases do not know how they are timed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ladder.core.errors import Missing
from stylegan_lite.config import Workload

LAYOUTS = {"channels_last": torch.channels_last, "NCHW": torch.contiguous_format}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
DIRECTIONS = ("forward", "backward", "double backward")
SMALLEST = 32  # resolution; a smaller layer is a few microseconds of launches with any kernel
# Memory-bound ops come first, on large maps: the main question is how near they come to a copy.
MEMORY_BOUND = ("bias_act", "modulate", "upfirdn2d")
LARGE_MAPS, THEIR_BATCHES = (128, 256), (8, 32)

ORDER = "NCOIHWRK"  # of the letters of a case
Sizes = dict[str, int]  # letter of a shape -> its value; R is the layer's resolution
Tensors = dict[str, Tensor]
Moved = Callable[[Any, Tensors, bool], int]  # (module of the op, inputs, is backward) -> bytes
Settings = tuple[tuple[str, str], ...]
SETTINGS = (("bf16", "channels_last"), ("fp32", "NCHW"))  # those of the ladder's top and its baseline
FLOAT = (("fp32", "channels_last"),)  # of weights and styles, which are float32 in every recipe


@dataclass(frozen=True)
class Op:
    """One op as one kind of layer calls it. Inputs but activations are float32, as parameters and styles are."""

    function: (
        str  # of `kernels`, or "cuda.NAME"; plain PyTorch is `<function>_reference` of the same arguments
    )
    inputs: dict[
        str, str
    ]  # argument -> its shape in letters of `sizes` ("N1HW", "" a scalar); the first names the case
    sizes: Callable[[Workload], Sequence[Sizes]]  # a workload's sizes, layer by layer; repetitions do no harm
    moved: Moved  # bytes that must cross memory, given the inputs and whether it is the backward pass
    activations: tuple[str, ...] = ("x",)  # inputs in the precision of the setting
    data: tuple[str, ...] = ()  # inputs without a gradient
    penalty: tuple[
        str, ...
    ] = ()  # inputs whose gradient R1 or path length differentiates again; (): no double backward
    options: dict[str, Any] = field(default_factory=dict)  # arguments that are no tensors
    settings: Settings = SETTINGS  # (dtype, memory format) pairs to time; the first is the ladder's top
    call: Callable[..., Any] | None = None  # adapts the tensors by name to the function's arguments
    positive: tuple[str, ...] = ()  # inputs whose numbers are at least a half, as a root or a division needs
    needs: tuple[str, ...] = ()  # capabilities of `ladder.machine.system` besides CUDA and Triton


# --- the sizes at which the networks call ops: one for each layer -----------------------------------------------------


def size_map(w: Workload, r: int, pixels: int | None = None) -> Sizes:
    """Return an activation at a resolution. A convolution's input or result may have other pixels a side."""
    return {"N": w.batch, "C": w.fmaps(r), "H": pixels or r, "W": pixels or r, "R": r}


def list_layers(w: Workload) -> list[Sizes]:
    """Return the activations of both networks: the synthesis layers, and the discriminator's, which mirror them."""
    return [size_map(w, r) for r in w.resolutions]


def list_synthesis(w: Workload, norm: str = "demod") -> list[Sizes]:
    """Return the activations behind the synthesis network's convolutions if they are normalized so."""
    return list_layers(w) if w.norm == norm else []


def list_transposed(w: Workload) -> list[Sizes]:
    """Return the results of transposed convolutions: a pixel more than the resolution."""
    return [size_map(w, r, r + 1) for r in w.resolutions[1:]] if w.norm == "demod" else []


def list_widest(w: Workload, pixels: Callable[[int], int] = lambda r: r) -> list[Sizes]:
    """Return the activations of the two highest resolutions, where resampling and convolutions cost the most."""
    return [size_map(w, r, pixels(r)) for r in w.resolutions[-2:] if r > 4]


def list_weights(w: Workload) -> list[Sizes]:
    """Return the demodulated 3x3 weights of each resolution's second layer. The first's have up to twice the inputs."""
    rows = [{"N": w.batch, "O": w.fmaps(r), "I": w.fmaps(r), "R": r} for r in w.resolutions]
    return rows if w.norm == "demod" else []


def list_dense(w: Workload) -> list[Sizes]:
    """Return the first dense layers of the discriminator and of the mapping network, which takes 2 latents a sample."""
    top, r = w.fmaps(4), w.resolution
    mapping = {"N": 2 * w.batch, "O": w.w_dim, "I": w.w_dim, "R": r}
    return [{"N": w.batch, "O": top, "I": 16 * top, "R": r}] + [mapping] * (w.mapping_layers > 1)


# --- the bytes that must cross memory ---------------------------------------------------------------------------------


def count_bytes(*names: str) -> Moved:
    """Return the count of an op that takes these inputs, and knows its gradients."""
    return lambda op, t, backward: op.bytes_moved(*(t[name] for name in names), backward=backward)


def count_std(op: Any, t: Tensors, backward: bool) -> int:
    n, c, h, w = t["x"].shape
    y = t["x"].new_empty((n, -(-(c + 1) // MULTIPLE) * MULTIPLE, h, w))
    return op.bytes_moved(t["x"], y, backward=backward)


def count_rgb(op: Any, t: Tensors, backward: bool) -> int:
    if "x" not in t:  # from_rgb
        n, _, h, w = t["image"].shape
        return op.bytes_moved(t["image"].new_empty((n, len(t["bias"]), h, w)), t["image"], backward=backward)
    n, _, h, w = t["x"].shape
    added = t["image"].nbytes if "image" in t and not backward else 0  # its gradient is that of the result
    return op.bytes_moved(t["x"], t["bias"].new_empty((n, 3, h, w)), backward=backward) + added


def count_up(op: Any, t: Tensors, backward: bool) -> int:
    n, _, h, w = t["x"].shape
    y = t["x"].new_empty((n, t["weight"].shape[1], 2 * h + 1, 2 * w + 1))
    return op.bytes_moved(t["x"], t["weight"], y, backward=backward)


def count_group(t: Tensors, *names: str) -> int:
    """Return the bytes of these inputs of all layers of a group."""
    return sum(each.nbytes for name in names for each in pick_group(t, name))


def count_demodulation(op: Any, t: Tensors, backward: bool) -> int:
    """Return the bytes of energies, styles and d; backward: also of the gradients of all three."""
    results = 4 * len(t["style0"]) * sum(map(len, pick_group(t, "energy")))
    return (1 + backward) * (count_group(t, "energy", "style") + results)


def count_dense(op: Any, t: Tensors, backward: bool) -> int:
    """Return the bytes of x, weights and styles; backward: of g, x and weights, dx and dweights."""
    results = 4 * len(t["x"]) * sum(map(len, pick_group(t, "weight")))
    return (1 + backward) * (t["x"].nbytes + count_group(t, "weight")) + results


# --- groups of layers -------------------------------------------------------------------------------------------------

# The networks give their layers to a group in several sizes. Here four layers of one size stand side by side, so that
# a size is a case. Each layer's style has its own latent.
LAYERS = 4


def name_group(name: str, shape: str = "") -> dict[str, str]:
    """Return an input for each layer of a group."""
    return {f"{name}{k}": shape for k in range(LAYERS)}


def pick_group(t: Tensors, name: str) -> list[Tensor]:
    return [t[f"{name}{k}"] for k in range(LAYERS)]


def call_iteration(function: Callable[..., Any], **t: Tensor) -> list[Tensor]:
    us, vs = pick_group(t, "u"), pick_group(t, "v")
    function(pick_group(t, "weight"), us, vs)
    return [*us, *vs]


# --- the table --------------------------------------------------------------------------------------------------------


def make_resampling(sizes: Callable[[Workload], Sequence[Sizes]], **how: Any) -> Op:
    """Return upfirdn2d by the networks' filter. R1 differentiates it twice, and so does path length in synthesis."""
    options = {"taps": TAPS, **how}
    counted = {name: value for name, value in options.items() if name != "gain"}
    return Op(
        "upfirdn2d", X, sizes, lambda op, t, backward: op.bytes_moved(t["x"], **counted), penalty=("x",),
        options=options,
    )  # fmt: skip


def make_pair(name: str, dtype: str = "fp32", passes: int = 2, **more: Any) -> Op:
    """Return a function of `kernels.cuda` that crosses memory `passes` times: batch 8, highest resolution.

    These functions are in no network and have no gradients.
    """
    return Op(
        f"cuda.{name}", X, lambda w: [list_widest(w)[-1] | {"N": 8}], lambda op, t, backward: passes * t["x"].nbytes,
        data=("x",), settings=((dtype, "NCHW"),), needs=("nvcc",), **more,
    )  # fmt: skip


TAPS = (1.0, 3.0, 3.0, 1.0)
PARTS, MULTIPLE = 2, 8  # for minibatch_std: fakes and reals together; channels for tensor cores
X, BIASED = {"x": "NCHW"}, {"x": "NCHW", "bias": "C"}
NOISY = {"noise": "N1HW", "strength": "", "scale": "NC"}
FILTERED = NOISY | {"noise": "N1RR"}  # the noise behind a filter
UP, DOWN = {"padding": 1, "filter_gain": 4 / 64}, {"padding": 2, "filter_gain": 1 / 64}
# fmt: off
INSTANCE_NORM = Op(
    "instance_norm_act", {"x": "NCHW", "scale": "NC", "bias": "NC", "noise": "N1HW", "strength": ""},
    lambda w: list_synthesis(w, "instance"), count_bytes("x", "noise"), data=("noise",), penalty=("x", "scale", "bias"))
DEMODULATION = Op(
    "demodulate_group", name_group("energy", "OI") | name_group("style", "NI"), list_weights, count_demodulation,
    activations=(), penalty=(*name_group("style"),), positive=(*name_group("energy"),), settings=FLOAT,
    call=lambda f, **t: f(pick_group(t, "energy"), pick_group(t, "style")))
OPS: dict[str, Op] = {
    "bias_act noise scale": Op(
        "bias_act", BIASED | NOISY, list_synthesis, count_bytes("x", "noise"), data=("noise",), penalty=("x", "scale")),
    "bias_act": Op("bias_act", BIASED, list_layers, count_bytes("x"), penalty=("x",)),
    "modulate": Op("modulate", X | {"style": "NC"}, list_layers, count_bytes("x"), penalty=("x", "style")),
    "instance_norm_act": INSTANCE_NORM,
    "demodulate": Op(
        "demodulate", {"weight": "OI33", "style": "NI"}, list_weights, count_bytes("weight", "style"),
        activations=(), penalty=("style",), settings=FLOAT),
    # A transposed convolution returns a pixel more than the resolution; a strided one takes a pixel more.
    "upfirdn2d after up": make_resampling(lambda w: list_widest(w, lambda r: r + 1), padding=1, gain=4 / 64),
    "upfirdn2d before down": make_resampling(list_widest, padding=2, gain=1 / 64),
    "upfirdn2d down": make_resampling(list_widest, down=2, padding=1, gain=1 / 64),
    # The gradient of the entry above. The networks themselves call it with images only.
    "upfirdn2d up": make_resampling(lambda w: list_widest(w, lambda r: r // 2), up=2, padding=(2, 1), gain=4 / 64),
    "conv2d": Op(  # layers that keep channels and resolution, so y is like x
        "conv2d", X | {"weight": "CC33"}, list_widest, count_bytes("x", "weight", "x"),
        activations=("x", "weight"), penalty=("x",), options={"padding": 1}),
    # Fused pairs, few channels, whole layers.
    "scale_act": Op("scale_act", X | {"scale": "NC"}, list_synthesis, count_bytes("x"), penalty=("x", "scale")),
    "act_filter": Op(  # behind the first layer of each of the discriminator's blocks
        "act_filter", BIASED, lambda w: list_layers(w)[1:],
        lambda op, t, backward: op.bytes_moved(t["x"], TAPS, padding=2, backward=backward),
        penalty=("x",), options={"taps": TAPS, **DOWN}),
    "filter_act": Op(
        "filter_act", BIASED | FILTERED, list_transposed,
        lambda op, t, backward: op.bytes_moved(t["x"], TAPS, padding=1, noise=t["noise"], backward=backward),
        data=("noise",), penalty=("x", "scale"), positive=("scale",), options={"taps": TAPS, **UP}),
    "filter_act_modulate": Op(
        "filter_act_modulate", X | {"style": "NC", "bias": "C"} | FILTERED, list_transposed,
        lambda op, t, backward: op.bytes_moved(t["x"], TAPS, padding=1, noise=t["noise"], backward=backward),
        data=("noise",), penalty=("x", "scale", "style"), positive=("scale",), options={"taps": TAPS, **UP}),
    "bias_act_modulate": Op(  # activations that toRGB and the next block's first layer read
        "bias_act_modulate", BIASED | {"style": "NC"} | NOISY, lambda w: list_synthesis(w)[:-1],
        count_bytes("x", "noise"), data=("noise",), penalty=("x", "scale", "style")),
    "bias_act_residual": Op(  # results of the discriminator's blocks
        "bias_act_residual", BIASED | {"residual": "NCHW"}, lambda w: list_layers(w)[:-1], count_bytes("x"),
        activations=("x", "residual"), penalty=("x",), options={"gain": 1.0}),
    "fork_upfirdn2d": Op(  # moves x and its filtered half: the other result is x itself
        "fork_upfirdn2d", X, lambda w: list_layers(w)[1:],
        lambda op, t, backward: op.fork_bytes_moved(t["x"], TAPS, down=2, padding=1, backward=backward),
        penalty=("x",), options={"taps": TAPS, "down": 2, "padding": 1, "gain": 1 / 64}),
    "minibatch_std": Op(  # behind the discriminator's last block, in one size for every resolution
        "minibatch_std", X,
        lambda w: [size_map(w, w.resolution, 4) | {"N": PARTS * w.batch, "C": w.fmaps(4)}],
        count_std, penalty=("x",), options={"group": 4, "parts": PARTS, "multiple": MULTIPLE}),
    "to_rgb": Op(
        "to_rgb", X | {"weight": "3C11", "style": "NC", "bias": "3"}, list_layers, count_rgb,
        penalty=("x", "style"), options={"dtype": torch.float32}),
    "to_rgb image": Op(  # styles are in the weights; 4x4 has no image below it
        "to_rgb", X | {"weight": "N3C", "bias": "3", "image": "N3HW"}, lambda w: list_layers(w)[1:], count_rgb,
        penalty=("x", "weight"), options={"dtype": torch.float32}),
    "from_rgb": Op(  # fakes and reals together, as images come in BF16
        "from_rgb", {"image": "N3HW", "weight": "C311", "bias": "C"},
        lambda w: [size_map(w, w.resolution) | {"N": PARTS * w.batch}], count_rgb,
        activations=("image",), penalty=("image",)),
    "dense": Op(
        "dense", {"x": "NI", "weight": "OI", "bias": "O"}, list_dense, count_bytes("x", "weight"), activations=(),
        penalty=("x",), options={"act": True, "gain": math.sqrt(2)}, settings=FLOAT),
    # The second layer of each of the discriminator's blocks, in every workload, normalized or not: one layer, as the
    # rung shows the savings of all layers side by side.
    "spectral_norm": Op(
        "spectral_norm", {"weight": "OI33", "u": "O", "v": "K"},
        lambda w: [{"O": w.fmaps(r // 2), "I": w.fmaps(r), "K": 9 * w.fmaps(r), "R": r} for r in w.resolutions[1:]],
        lambda op, t, backward: op.bytes_moved(
            [t["weight"]], [t["weight"].detach().to(torch.bfloat16)], backward=backward),
        activations=(), data=("u", "v"), options={"dtype": torch.bfloat16}, settings=FLOAT,
        call=lambda f, weight, u, v, **options: f([weight], [u], [v], **options)[0]),
    # Groups of layers.
    "demodulate_group": DEMODULATION,
    "demodulate_group_fork": replace(  # backward: and the styles' other gradients
        DEMODULATION, function="demodulate_group_fork",
        call=lambda f, **t: [*itertools.chain(*f(pick_group(t, "energy"), pick_group(t, "style")))],
        moved=lambda op, t, backward: count_demodulation(op, t, backward) + backward * count_group(t, "style")),
    "weight_energies": Op(  # weights and a ninth of them; backward: both, and the weights' gradients
        "weight_energies", name_group("weight", "OI33"), list_weights,
        lambda op, t, backward: (1 + backward) * count_group(t, "weight") + count_group(t, "weight") // 9,
        activations=(), settings=FLOAT, call=lambda function, **t: function(pick_group(t, "weight"))),
    "dense_group": Op(  # the styles of the convolutions of each width, computed from latents
        "dense_group", {"x": f"N{LAYERS}I"} | name_group("weight", "OI") | name_group("bias", "O"),
        lambda w: [{"N": w.batch, "O": w.fmaps(r), "I": w.w_dim, "R": r} for r in w.resolutions], count_dense,
        activations=(), penalty=("x",), settings=FLOAT,
        call=lambda f, x, **t: f(x, pick_group(t, "weight"), pick_group(t, "bias"), tuple(range(LAYERS)))),
    # Of the discriminator's convolutions that keep their channels: weights, and u and v twice, as the second read of a
    # weight comes from the cache.
    "power_iteration": Op(
        "power_iteration", name_group("weight", "OI33") | name_group("u", "O") | name_group("v", "K"),
        lambda w: [{"O": w.fmaps(r), "I": w.fmaps(r), "K": 9 * w.fmaps(r), "R": r} for r in w.resolutions],
        lambda op, t, backward: count_group(t, "weight") + 2 * count_group(t, "u", "v"), activations=(),
        data=(*name_group("weight"), *name_group("u"), *name_group("v")), settings=FLOAT,
        call=call_iteration),
    "conv_transpose2d": Op(  # into the two highest resolutions: half as many pixels a side, more channels
        "conv_transpose2d", X | {"weight": "CO33"},
        lambda w: [size_map(w, r // 2) | {"O": w.fmaps(r), "R": r} for r in w.resolutions[1:][-2:]], count_up,
        activations=("x", "weight"), penalty=("x",), options={"stride": 2}),
    # Results of the discriminator's blocks, with the channels that their skips read. Other settings are calls of
    # `conv2d` and `bias_act_residual`.
    "bias_act_skip": Op(
        "bias_act_skip", BIASED | {"low": "NIHW", "weight": "CI11"},
        lambda w: [size_map(w, r) | {"I": w.fmaps(a)} for a, r in itertools.pairwise(reversed(w.resolutions))],
        count_bytes("x", "low", "weight"),
        activations=("x", "low", "weight"), penalty=("x", "low"), options={"gain": 1.0}, settings=SETTINGS[:1]),
    # Of pairs of your own, at StyleGAN2's sizes.
    "group_norm_act": Op(
        "group_norm_act", {"x": "NCHW", "weight": "C", "bias": "C"}, list_layers, count_bytes("x"), penalty=("x",),
        options={"silu": True}, call=lambda f, x, **t: f(x, math.gcd(x.shape[1], 32), **t)),
    "batch_norm_act": Op(
        "batch_norm_act", {"x": "NCHW", "weight": "C", "bias": "C"}, list_layers, count_bytes("x"), penalty=("x",),
        options={"slope": 0.2}),
    "weight_norm": Op(
        "weight_norm", name_group("v", "OI33") | name_group("g", "O111"), list_weights,
        lambda op, t, backward: op.bytes_moved(pick_group(t, "v"), pick_group(t, "v"), backward=backward),
        activations=(), settings=FLOAT, call=lambda f, **t: f(pick_group(t, "v"), pick_group(t, "g"))),
    # CUDA C++.
    "cuda instance_norm_act": replace(INSTANCE_NORM, function="cuda.instance_norm_act", needs=("nvcc",)),
    "cuda strided_act": make_pair("strided_act"),
    "cuda coalesced_act": make_pair("coalesced_act"),
    "cuda divergent": make_pair("divergent", options={"steps": 64}),
    "cuda predicated": make_pair("predicated", options={"steps": 64}),
    "cuda shared_sum": make_pair("shared_sum", passes=1, call=lambda f, x: f(x.flatten(2).flatten(0, 1))),
    "cuda shuffle_sum": make_pair("shuffle_sum", passes=1, call=lambda f, x: f(x.flatten(2).flatten(0, 1))),
    "cuda scalar_copy": make_pair("scalar_copy", "bf16"),
    "cuda vector_copy": make_pair("vector_copy", "bf16"),
}
# fmt: on


@dataclass(frozen=True)
class Case:
    """One op at one size in one setting. asv stores results under its `name`, which holds all of these."""

    op: str
    sizes: tuple[tuple[str, int], ...]
    dtype: str
    layout: str
    workloads: tuple[str, ...] = ()

    @property
    def entry(self) -> Op:
        return OPS[self.op]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the first input."""
        return self.shape_of(next(iter(self.entry.inputs)))

    @property
    def batch(self) -> int:
        return dict(self.sizes).get("N", 1)

    @property
    def name(self) -> str:
        shown = next(iter(self.entry.inputs.values()))
        others = [f"{k}{n}" for k, n in self.sizes if k not in shown and k != "N"]
        if "N" not in shown and "N" in dict(self.sizes):
            others.append(f"batch {self.batch}")
        return " ".join([self.op, "x".join(map(str, self.shape)), *others, self.dtype, self.layout])

    @property
    def setting(self) -> int:
        """Return its index among the op's settings. 0 is the ladder's top."""
        return self.entry.settings.index((self.dtype, self.layout))

    @property
    def directions(self) -> tuple[str, ...]:
        return DIRECTIONS[: 1 + bool(self.differentiated) + bool(self.entry.penalty)]

    @property
    def differentiated(self) -> list[str]:
        return [name for name in self.entry.inputs if name not in self.entry.data]

    def shape_of(self, name: str) -> tuple[int, ...]:
        sizes = dict(self.sizes)
        return tuple(sizes[k] if k in sizes else int(k) for k in self.entry.inputs[name])

    def tensors(self, device: str) -> Tensors:
        """Return fresh inputs. An input with a gradient is a leaf that requires it.

        Numbers are normal, by the default generator, unless the op's entry differs.
        """
        inputs = {}
        for name in self.entry.inputs:
            dtype = DTYPES[self.dtype] if name in self.entry.activations else torch.float32
            t = torch.randn(self.shape_of(name), device=device).to(dtype)
            if name in self.entry.positive:
                t = t.abs() + 0.5
            if t.dim() == 4:
                t = t.contiguous(memory_format=LAYOUTS[self.layout])
            inputs[name] = t.requires_grad_(name not in self.entry.data)
        return inputs

    def fused(self) -> Callable[..., Any]:
        """Return our fused op as a function of named tensors. It bypasses the dispatcher.

        Raises:
            AttributeError: this `kernels` has no op of that name.
            Missing: CUDA C++ cannot be built here. Otherwise Triton would run in its place, and be timed.
        """
        if self.entry.function.startswith("cuda.") and importlib.util.find_spec("kernels.cuda"):
            build_cuda()
        public = load_function(self.entry.function)
        return self.adapt(getattr(public, "ours", public))

    def dispatch(self, tensors: Tensors) -> tuple[str, Any] | None:
        """Return the op and the call's key in `kernels.alternatives`, or None where there is no choice."""
        try:
            where = load_function(self.entry.function).where
        except AttributeError:  # no alternative, or an old commit's `kernels`
            return None
        keys: list[Any] = []

        def note(*args: Any, **kwargs: Any) -> None:
            keys.append(where(*args, **kwargs))
            raise LookupError("the op does not run")

        with contextlib.suppress(LookupError):
            self.adapt(note)(**tensors)
        return self.entry.function, keys[0]

    def reference(self) -> Callable[..., Any]:
        """Return the op in plain PyTorch, exactly as `kernels` has it. It is the compiled contender."""
        return self.adapt(load_function(f"{self.entry.function}_reference"))

    def plain(self) -> Callable[..., Tensor]:
        """Return the reference with parameters cast to the activation's precision first, as a bf16 network writes it.

        Uncast float32 parameters would promote every intermediate result to twice the bytes, an unfair opponent.
        """
        reference, low = self.reference(), DTYPES[self.dtype]
        if not self.entry.activations or low is torch.float32:
            return reference
        return lambda **tensors: reference(**{name: t.to(low) for name, t in tensors.items()})

    def theirs(self, clone: Any, device: str) -> Callable[..., Tensor] | None:
        """Return NVIDIA's op of a clone (`ladder.studies.upstream.source.load`), or None if it has no such op.

        Its CUDA code knows no bfloat16: call it on the tensors of the case in "fp16".
        """
        options, name, op = dict(self.entry.options), self.entry.function, None
        if name == "upfirdn2d":
            sides = options.pop("padding", 0)
            options["padding"] = [*sides, *sides] if isinstance(sides, tuple) else sides
            taps = clone.ops[name].setup_filter(options.pop("taps"), device=device, normalize=False)
            op = functools.partial(clone.ops[name].upfirdn2d, f=taps, **options)
        elif self.op == "bias_act":
            op = lambda x, bias: clone.ops[name].bias_act(x, bias, act="lrelu")  # noqa: E731
        low = torch.float16
        return op and (lambda **tensors: op(**{name: t.to(low) for name, t in tensors.items()}))

    def adapt(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of the named tensors alone that calls `function` with the entry's options."""
        call, options = self.entry.call, self.entry.options
        if call is not None:
            return lambda **tensors: call(function, **tensors, **options)
        return (lambda **tensors: function(**tensors, **options)) if options else function

    def bytes(self, tensors: Tensors, direction: str) -> int | None:
        """Return the bytes that must cross memory, or None for the double backward, whose bytes are not counted."""
        if direction == "double backward":
            return None
        # The reference knows its module: a commit may have its ops in other files.
        module = sys.modules[load_function(f"{self.entry.function}_reference").__module__]
        return self.entry.moved(module, tensors, direction == "backward")


@functools.cache
def build_cuda() -> None:
    """Build `kernels.cuda` without running a kernel. Raises Missing, with why it cannot be built here."""
    import kernels.cuda as package

    if reason := package.available():
        raise Missing(reason)
    try:
        package.resources(flags=package.Flags())
    except package.Unavailable as error:
        raise Missing(str(error)) from None


def load_function(name: str) -> Any:
    """Return a function of `kernels`. Raises AttributeError if this commit's package has none of that name."""
    import kernels

    folder, _, name = name.rpartition(".")
    if folder and importlib.util.find_spec(f"kernels.{folder}") is None:
        raise AttributeError(f"kernels has no {folder}")
    return getattr(importlib.import_module(f"kernels.{folder}") if folder else kernels, name)


def list_cases(
    workloads: dict[str, Workload], *, ops: Sequence[str] = (), quick: bool = False, smallest: int = SMALLEST
) -> list[Case]:
    """Return every distinct case of these workloads: the ladder's top first, then by descending work.

    Settings beyond the first are timed at the smallest batch only: they are there to compare with.

    Args:
        ops: names of `OPS`, or of functions of `kernels`; empty: all.
        quick: two resolutions (the largest, and a quarter of it), the first setting only.
    """
    users: dict[tuple[Any, ...], dict[str, None]] = {}  # of a case, the workloads
    least = min(workload.batch for workload in workloads.values())
    for name, workload in workloads.items():
        top = workload.resolution
        timed = {top, top // 4} if quick else {r for r in workload.resolutions if r >= min(smallest, top)}
        for op, entry in OPS.items():
            if ops and op not in ops and entry.function not in ops:
                continue
            letters = set("".join(entry.inputs.values())) & set(ORDER)  # a weight is one at every resolution
            for setting in entry.settings[: 1 if quick or workload.batch > least else None]:
                for sizes in entry.sizes(workload):
                    if sizes["R"] in timed:
                        size = tuple((k, sizes[k]) for k in ORDER if k in letters)
                        users.setdefault((op, size, *setting), {})[name] = None
    cases = [Case(*key, workloads=tuple(names)) for key, names in users.items()]  # type: ignore[misc]
    return sorted(cases, key=lambda case: (case.setting, -math.prod(case.shape)))


def order_cases(cases: Sequence[Case], first: str) -> list[Case]:
    """Return the cases in the order of measuring: with `first` "memory-bound" those of MEMORY_BOUND lead.

    Those are cases in the setting of the ladder's top, at LARGE_MAPS (or a pixel beside) and THEIR_BATCHES.
    """

    def is_first(case: Case) -> bool:
        is_large = (
            any(abs(case.shape[-1] - pixels) <= 1 for pixels in LARGE_MAPS) and case.batch in THEIR_BATCHES
        )
        return is_large and case.entry.function in MEMORY_BOUND and case.setting == 0

    return sorted(cases, key=lambda case: first == "memory-bound" and not is_first(case))


def parse_case(name: str) -> Case:
    """Return the case of a name. Raises KeyError for a name that no entry could give."""
    op = max((op for op in OPS if name.startswith(f"{op} ")), key=len, default=name)
    letters = next(iter(OPS[op].inputs.values()))
    shape, *others, dtype, layout = name[len(op) :].replace("batch ", "N").split()
    sizes = {k: int(n) for k, n in zip(letters, shape.split("x"), strict=True) if k.isalpha()}
    sizes |= {each[0]: int(each[1:]) for each in others}
    return Case(op, tuple((k, sizes[k]) for k in ORDER if k in sizes), dtype, layout)


def hash_entry(op: str) -> str:
    """Return eight hexadecimal digits of an entry's meaning: asv's history of a name must keep its meaning."""
    e = OPS[op]
    what = (e.function, e.inputs, e.activations, e.data, e.penalty, sorted(e.options.items()))
    return hashlib.sha256(repr(what).encode()).hexdigest()[:8]
