"""The necessary work of a workload, phase by phase: its convolutions with their FLOPs, and the bytes that must move.

The real networks and losses run, forward, backward and double backward, on fake tensors: shapes and dtypes without
memory or arithmetic. A dispatch mode sees each operator below autograd and autocast.

The floor belongs to the workload, so the spelling with the fewest FLOPs is counted: dense modulated convolutions,
resampling by its own filter (memory-bound: bytes, no FLOPs), fakes and reals through D in one batch, a double backward
of ordinary convolutions. Only the recipe's precision matters. docs/profile.md has the model.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ladder.core.protocol import PHASES
from ladder.core.records import Fields
from ladder.studies.roofline.derive import KINDS, NARROW, Op, Work
from stylegan_lite import losses, resample
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.networks import Discriminator, Generator
from stylegan_lite.step.inputs import PhaseInputs
from stylegan_lite.step.pair import HALVES, autocast
from stylegan_lite.stylegan2 import declare_inputs

aten = torch.ops.aten
FORWARD, INPUT, WEIGHT = KINDS
# bytes of a weight, moment or average in every recipe; a gradient has the size that convolutions read
FULL = 4
MOMENT = 2 * FULL  # read and written
AVERAGE = 3 * FULL  # reads the weight and the average, writes the average
DTYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16"}


def count_work(workload: Fields, precision: str, layout: str) -> dict[Any, Work]:
    """Return the floor of each phase as result files have it."""
    works = {}
    for phase, floor in count(Workload.from_dict(workload), precision).items():
        convolutions = {op.key(layout): times for op, times in floor.ops.items()}
        works[phase] = Work(convolutions, floor.matmul_flops, floor.matmul_bytes, floor.bytes)
    return works


def count(workload: Workload, precision: str = "fp32") -> dict[str, Count]:
    """Return the floor of each phase of ``workload`` under a recipe of this precision."""
    recipe = Recipe.from_dict({"precision": precision, "modconv": "dense", "resample": "depthwise"})
    with _fresh_filters(), FakeTensorMode(), OrdinaryConvolutions():
        G, D = Generator(workload, recipe), Discriminator(workload, recipe)
        return {phase: _count_phase(phase, workload, recipe, G, D) for phase in PHASES}


def _count_phase(phase: str, w: Workload, recipe: Recipe, G: Generator, D: Discriminator) -> Count:
    own = G if phase.startswith("G") else D
    G.requires_grad_(own is G)
    D.requires_grad_(own is D)
    real = torch.empty(w.batch, 3, w.resolution, w.resolution)
    declared = declare_inputs(w, phase, G.noise_shapes, G.num_ws)
    inputs = PhaseInputs(declared, device="cpu", dtype=torch.float32, data={"images": real})
    amp = functools.partial(autocast, "cpu", recipe.precision)
    with Count() as floor:
        if phase == "G_main":
            loss = losses.g_main(G, D, inputs, w.style_mixing, amp)
        elif phase == "D_main":
            loss = losses.d_main(G, D, inputs, real, w.style_mixing, amp, joint=True)
        elif phase == "D_r1":
            loss = losses.d_r1(D, real, w.gamma, w.r1_interval, amp)
        else:
            pl = (torch.zeros([]), w.pl_decay, w.pl_weight, w.pl_interval)
            loss = losses.g_pl(G, inputs, *pl, w.style_mixing, amp)
        loss.backward()
    drawn = 0 if phase == "D_r1" else 2 * inputs.normal.nbytes  # written when drawn, read once
    read = {"D_main": 2, "D_r1": 1}.get(phase, 0) * real.nbytes  # D_main also writes a batch that arrives
    half = recipe.precision in HALVES
    floor.bytes = {
        "images": floor.image_bytes(),
        "optimizer": adam(_weights(own), w.beta1, half),
        "BF16 weights": 2 * _weights(own)[4] if half else 0,  # convolutions read a BF16 copy
        "moving average": sum(_weights(G).values()) * AVERAGE if phase == "D_main" else 0,
        "inputs": drawn + read,
    }
    return floor


def adam(weights: Counter[int], beta1: float, half: bool) -> int:
    """Return the bytes of an update: gradients in; weights, second moments and, if beta1 > 0, first moments in and out.

    Without momentum the first moment is the last gradient. Nothing reads it, so it need not be stored.
    """
    total = sum(weights.values())
    gradients = total * FULL - weights[4] * (FULL // 2) * half
    return gradients + total * (2 * FULL + MOMENT + MOMENT * (beta1 > 0))


def _weights(network: torch.nn.Module) -> Counter[int]:
    """Return the number of weights by the dimensions of their tensor. Four dimensions are convolutions."""
    sizes: Counter[int] = Counter()
    for parameter in network.parameters():
        sizes[parameter.dim()] += parameter.numel()
    return sizes


class Count(TorchDispatchMode):
    """A dispatch mode that counts the floor of a phase.

    ``ops`` are its dense convolutions. Matmuls have FLOPs and bytes; ``bytes`` has the other bytes by purpose.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[Op] = Counter()
        self.matmul_flops = self.matmul_bytes = 0
        self.bytes: dict[str, int] = {}
        self._images: dict[int, tuple[set[str], Tensor]] = {}  # kept alive, so that no address is used twice

    @property
    def flops(self) -> int:
        """Return the FLOPs of the convolutions."""
        return sum(op.flops * times for op, times in self.ops.items())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        op = func.overloadpacket
        if op is aten.convolution and args[8] == 1:
            x, weight, transposed = args[0], args[1], args[6]
            self._add(INPUT if transposed else FORWARD, out if transposed else x, weight, args[3:5], [x], out)
        elif op is aten.convolution_backward and args[9] == 1:
            g, x, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
            image = g if transposed else x
            if mask[0]:
                self._add(FORWARD if transposed else INPUT, image, weight, args[4:6], [g], out[0])
            if mask[1]:
                self._add(WEIGHT, image, weight, args[4:6], [g, x], None)
        elif op in (aten.mm, aten.addmm, aten.bmm, aten.baddbmm):
            self.matmul_flops += flop_registry[op](*args, **(kwargs or {}), out_val=out)
            self.matmul_bytes += sum(x.nbytes for x in (*args, out) if isinstance(x, Tensor))
        return out

    def _add(self, kind: str, image: Tensor, weight: Tensor, how: Any, inputs: Any, output: Any) -> None:
        """Count a convolution of (stride, padding) ``how``, and the images that it reads and writes."""
        (stride, *_), (padding, *_) = how
        shapes = tuple(image.shape), tuple(weight.shape)
        self.ops[Op(kind, *shapes, stride, padding, DTYPES[weight.dtype])] += 1
        if min(weight.shape[:2]) > NARROW:
            for role, x in (*(("input", x) for x in inputs), *[("output", output)][: output is not None]):
                self._images.setdefault(x.untyped_storage()._cdata, (set(), x))[0].add(role)

    def image_bytes(self) -> int:
        """Return the bytes that other passes move between convolutions: results read once, inputs written once.

        An image that goes from one convolution straight to another counts nothing: no pass is between them.
        """
        return sum(x.nbytes for roles, x in self._images.values() if len(roles) == 1)


class OrdinaryConvolutions(TorchFunctionMode):
    """A function mode in which convolutions have a double backward of ordinary convolutions, in practical shapes.

    PyTorch's own computes the weight gradient of a gradient as a convolution with the image for its weight.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.conv2d:
            return _conv2d(*args, **(kwargs or {}))
        if func is torch.conv_transpose2d:
            return _conv_transpose2d(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _conv2d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    return _convolve(x, weight, bias, stride, padding, dilation, False, 0, groups)


def _conv_transpose2d(x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    return _convolve(x, weight, bias, stride, padding, dilation, True, output_padding, groups)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    if torch.is_autocast_enabled(x.device.type):  # autocast would have acted on the replaced call
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    *sizes, transposed, extra, groups = how
    pairs = [[size, size] if isinstance(size, int) else list(size) for size in (*sizes, extra)]
    y = _Forward.apply(x, weight, (*pairs[:3], transposed, pairs[3], groups))
    return y if bias is None else y + bias.to(y.dtype).view(1, -1, 1, 1)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, how):
        ctx.save_for_backward(x, weight)
        ctx.how = how
        return aten.convolution(x, weight, None, *how)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        dx = _InputGradient.apply(g, weight, x.detach(), ctx.how) if ctx.needs_input_grad[0] else None
        # A backward pass that builds a graph is a penalty's. It differentiates by images or styles, never by weights;
        # a Python function is not told which.
        by_weight = ctx.needs_input_grad[1] and not torch.is_grad_enabled()
        return dx, _differentiate(g, x, weight, ctx.how, 1) if by_weight else None, None


class _InputGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g, weight, x, how):
        ctx.save_for_backward(g, weight)
        ctx.how = how
        return _differentiate(g, x, weight, how, 0)

    @staticmethod
    def backward(ctx, u):
        g, weight = ctx.saved_tensors
        dg = _Forward.apply(u, weight, ctx.how) if ctx.needs_input_grad[0] else None
        return dg, _differentiate(g, u, weight, ctx.how, 1) if ctx.needs_input_grad[1] else None, None, None


def _differentiate(g: Tensor, x: Tensor, weight: Tensor, how: Any, by: int) -> Tensor:
    """Return the gradient of a convolution by its image (0) or its weight (1)."""
    mask = [by == 0, by == 1, False]
    return aten.convolution_backward(g, x, weight, None, *how, mask)[by]


@contextmanager
def _fresh_filters() -> Iterator[None]:
    """Clear resampling's stored filters before and after, so that fake and real filters do not mix."""
    resample._fir.cache_clear()
    try:
        yield
    finally:
        resample._fir.cache_clear()
