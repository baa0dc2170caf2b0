"""The registry of timed ops and their shapes: an entry for each op, shapes as in the networks of the workloads.

`OPS` is the registry. An entry gives the op of `kernels/`, its inputs and gradients, its sizes and its bytes. `ladder
kernels`, its tables and asv read it. To add an op, add an entry. tests/studies/kernelbench/test_kernelcases.py
compares the sizes with the networks' real calls.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ladder.base.errors import Missing, describe
from ladder.studies.kernelbench.cases.fused import MORE
from ladder.studies.kernelbench.cases.groups import GROUPS, PAIRS
from ladder.studies.kernelbench.cases.op import (
    INSTANCE_NORM,
    Op,
    Sizes,
    Tensors,
    every_layer,
    modulated,
    synthesis,
    weights,
    widest,
)
from stylegan_lite.config import Workload

LAYOUTS = {"channels_last": torch.channels_last, "NCHW": torch.contiguous_format}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
WORKLOADS = ("article", "article-b32", "adain-256")
SMALLEST = 32  # resolution; a smaller layer is a few microseconds of launches with any kernel
DIRECTIONS = ("forward", "backward", "double backward")
# Memory-bound ops come first, on large maps: the main question is how near they come to a copy.
MEMORY_BOUND = ("bias_act", "modulate", "upfirdn2d")
LARGE_MAPS, THEIR_BATCHES = (128, 256), (8, 32)


def resampling(sizes: Callable[[Workload], Sequence[Sizes]], **how: Any) -> Op:
    """Return upfirdn2d by the networks' filter. R1 differentiates it twice, and so does path length in synthesis."""
    options = {"taps": (1.0, 3.0, 3.0, 1.0), **how}
    counted = {name: value for name, value in options.items() if name != "gain"}
    return Op(
        "upfirdn2d",
        {"x": "NCHW"},
        sizes,
        lambda op, t, backward: op.bytes_moved(t["x"], **counted),
        penalty=("x",),
        options=options,
    )


OPS: dict[str, Op] = {
    "bias_act noise scale": Op(
        "bias_act",
        {"x": "NCHW", "bias": "C", "noise": "N1HW", "strength": "", "scale": "NC"},
        synthesis,
        lambda op, t, backward: op.bytes_moved(t["x"], t["noise"], backward=backward),
        data=("noise",),
        penalty=("x", "scale"),
    ),
    "bias_act": Op(
        "bias_act",
        {"x": "NCHW", "bias": "C"},
        every_layer,
        lambda op, t, backward: op.bytes_moved(t["x"], backward=backward),
        penalty=("x",),
    ),
    "modulate": Op(
        "modulate",
        {"x": "NCHW", "style": "NC"},
        modulated,
        lambda op, t, backward: op.bytes_moved(t["x"], backward=backward),
        penalty=("x", "style"),
    ),
    "instance_norm_act": INSTANCE_NORM,
    "demodulate": Op(
        "demodulate",
        {"weight": "OI33", "style": "NI"},
        weights,
        lambda op, t, backward: op.bytes_moved(t["weight"], t["style"], backward=backward),
        activations=(),
        penalty=("style",),
        settings=(("fp32", "channels_last"),),  # weights and styles are float32 whatever the recipe
    ),
    # A transposed convolution returns a pixel more than the resolution; a strided one takes a pixel more.
    "upfirdn2d after up": resampling(lambda w: widest(w, lambda r: r + 1), padding=1, gain=4 / 64),
    "upfirdn2d before down": resampling(widest, padding=2, gain=1 / 64),
    "upfirdn2d down": resampling(widest, down=2, padding=1, gain=1 / 64),
    # The gradient of the entry above. The networks themselves call it with images only.
    "upfirdn2d up": resampling(lambda w: widest(w, lambda r: r // 2), up=2, padding=(2, 1), gain=4 / 64),
    "conv2d": Op(
        "conv2d",
        {"x": "NCHW", "weight": "CC33"},  # layers that keep channels and resolution, so y is like x
        widest,
        lambda op, t, backward: op.bytes_moved(t["x"], t["weight"], t["x"], backward=backward),
        activations=("x", "weight"),
        penalty=("x",),
        options={"padding": 1},
    ),
    **MORE,
    **GROUPS,
    **PAIRS,
}


class _Told(Exception):
    """A signal that carries an op's arguments out of the call, so that the op does not run."""


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
        if not self.differentiated:
            return DIRECTIONS[:1]
        return DIRECTIONS if self.entry.penalty else DIRECTIONS[:2]

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
        made = {}
        for name in self.entry.inputs:
            dtype = DTYPES[self.dtype] if name in self.entry.activations else torch.float32
            t = torch.randn(self.shape_of(name), device=device).to(dtype)
            if name in self.entry.positive:
                t = t.abs() + 0.5
            if t.dim() == 4:
                t = t.contiguous(memory_format=LAYOUTS[self.layout])
            made[name] = t.requires_grad_(name not in self.entry.data)
        return made

    def fused(self) -> Callable[..., Any]:
        """Return our fused op as a function of named tensors. It bypasses the dispatcher.

        Raises:
            AttributeError: this `kernels` has no op of that name.
            Missing: CUDA C++ cannot be built here. Otherwise Triton would run in its place, and be timed.
        """
        if self.entry.function.startswith("cuda.") and importlib.util.find_spec("kernels.cuda"):
            build_cuda()
        public = _package(self.entry.function)
        return _called(getattr(public, "ours", public), self.entry)

    def dispatch(self, tensors: Tensors) -> tuple[str, Any] | None:
        """Return the op and the call's key in `kernels.alternatives`, or None where there is no choice."""
        try:
            ask = _package(self.entry.function).where
        except AttributeError:  # no alternative, or an old commit's `kernels`
            return None

        def tell(*args: Any, **kwargs: Any) -> None:
            raise _Told(ask(*args, **kwargs))

        try:
            _called(tell, self.entry)(**tensors)
        except _Told as told:
            return self.entry.function, told.args[0]
        return None

    def reference(self) -> Callable[..., Any]:
        """Return the op in plain PyTorch, exactly as `kernels` has it. It is the compiled contender."""
        return _called(_package(f"{self.entry.function}_reference"), self.entry)

    def plain(self) -> Callable[..., Tensor]:
        """Return the reference with parameters cast to the activation's precision first, as a bf16 network writes it.

        Uncast float32 parameters would promote every intermediate result to twice the bytes, an unfair opponent.
        """
        reference, low = self.reference(), DTYPES[self.dtype]
        if not self.entry.activations or low is torch.float32:
            return reference
        return lambda **tensors: reference(**{name: t.to(low) for name, t in tensors.items()})

    def bytes(self, tensors: Tensors, direction: str) -> int | None:
        """Return the bytes that must cross memory, or None for the double backward, whose bytes are not counted."""
        if direction == "double backward":
            return None
        # The reference knows its module: a commit may have its ops in other files.
        module = sys.modules[_package(f"{self.entry.function}_reference").__module__]
        return self.entry.moved(module, tensors, direction == "backward")


@functools.cache
def build_cuda() -> None:
    """Build `kernels.cuda`. Raises Missing, with why it cannot be built or loaded here."""
    import kernels.cuda as package

    if reason := package.available():
        raise Missing(reason)
    try:
        package.resources(flags=package.Flags())  # builds without running a kernel
    except package.Unavailable as error:
        raise Missing(str(error)) from None
    except Exception as error:
        raise Missing(f"CUDA C++ was built but does not load: {describe(error)}") from None


def _package(name: str) -> Any:
    import kernels

    folder, _, name = name.rpartition(".")
    if folder and importlib.util.find_spec(f"kernels.{folder}") is None:
        raise AttributeError(f"kernels has no {folder}")
    return getattr(importlib.import_module(f"kernels.{folder}") if folder else kernels, name)


def _called(function: Callable[..., Any], entry: Op) -> Callable[..., Any]:
    call, options = entry.call, entry.options
    if call is not None:
        return lambda **tensors: call(function, **tensors, **options)
    return (lambda **tensors: function(**tensors, **options)) if options else function


def cases(
    workloads: dict[str, Workload],
    *,
    ops: Sequence[str] | None = None,
    quick: bool = False,
    smallest: int = SMALLEST,
) -> list[Case]:
    """Return every distinct case of these workloads: the ladder's top first, then by descending work.

    Settings beyond the first are timed at the smallest batch only: they are there to compare with.

    Args:
        ops: names of `OPS`, or of functions of `kernels`; None: all.
        quick: two resolutions (the largest, and a quarter of it), the first setting only.
    """
    found: dict[Case, list[str]] = {}
    least = min(workload.batch for workload in workloads.values())
    for name, workload in workloads.items():
        top = workload.resolution
        wanted = {top, top // 4} if quick else {r for r in workload.resolutions if r >= min(smallest, top)}
        for op, entry in OPS.items():
            if ops is not None and op not in ops and entry.function not in ops:
                continue
            for dtype, layout in entry.settings[: 1 if quick or workload.batch > least else None]:
                for sizes in entry.sizes(workload):
                    if sizes.get("R", sizes.get("H")) in wanted:
                        case = Case(op, tuple(_of_shape(entry, sizes)), dtype, layout)
                        found.setdefault(case, []).append(name)
    made = [Case(c.op, c.sizes, c.dtype, c.layout, tuple(dict.fromkeys(names))) for c, names in found.items()]
    return sorted(made, key=lambda c: (c.setting, -math.prod(c.shape)))


def in_order(made: Sequence[Case], first: str) -> list[Case]:
    """Return `cases` in the order of measuring: the cases that `first` names, then the others in their order.

    "memory-bound": those of MEMORY_BOUND in the setting of the ladder's top, at LARGE_MAPS (or a pixel beside) and
    THEIR_BATCHES. "largest": the given order.
    """

    def asked(case: Case) -> bool:
        at = any(abs(case.shape[-1] - pixels) <= 1 for pixels in LARGE_MAPS)
        ours = case.entry.function in MEMORY_BOUND and case.setting == 0
        return ours and at and case.batch in THEIR_BATCHES

    return sorted(made, key=lambda case: not asked(case)) if first == "memory-bound" else list(made)


def named(name: str) -> Case:
    """Return the case of a name. Raises KeyError for a name that no entry could give."""
    op = max((op for op in OPS if name.startswith(f"{op} ")), key=len, default=name)
    letters = next(iter(OPS[op].inputs.values()))
    shape, *others, dtype, layout = name[len(op) :].replace("batch ", "N").split()
    sizes = {k: int(n) for k, n in zip(letters, shape.split("x"), strict=True) if k.isalpha()}
    sizes |= {each[0]: int(each[1:]) for each in others}
    order = [k for k in "NCOIHWRK" if k in sizes]
    return Case(op, tuple((k, sizes[k]) for k in order), dtype, layout)


def fingerprint(op: str) -> str:
    """Return eight hexadecimal digits of an entry's meaning: asv's history of a name must keep its meaning."""
    e = OPS[op]
    what = (e.function, e.inputs, e.activations, e.data, e.penalty, sorted(e.options.items()))
    return hashlib.sha256(repr(what).encode()).hexdigest()[:8]


def _of_shape(entry: Op, sizes: Sizes) -> Iterator[tuple[str, int]]:
    """Yield the sizes that the inputs use. A weight is the same weight at every resolution."""
    letters = {letter for shape in entry.inputs.values() for letter in shape}
    return ((k, v) for k, v in sizes.items() if k in letters)
