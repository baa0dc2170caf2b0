"""What the drop-in files share: launches prepared for a shape, for a loop that waits for the CPU, and their warnings.

Triton chooses at each launch which of its compiled kernels fits the arguments, by all their types, sizes and options.
A network calls an op with the same few shapes for ever. So an op prepares what a shape decides when it first meets it,
and keeps it by the shape (`remember`). The tensors alone change from then on, and the kernel that Triton chose is
launched directly. `Pass` is `kernels/pointwise/bias_act.py` and `Filter` is `kernels/upfirdn/upfirdn2d.py`, with the
same kernels and numbers. The arguments are checked once for each shape, by the caller.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from kernels.common.language import triton
from kernels.common.needed import _runs
from kernels.common.sums import blocks, sum_partials_kernel
from kernels.common.tiles import Tiling, accumulator, dense_as, tl_accumulator
from kernels.dispatch import can_run_fused
from kernels.pointwise.bias_act import Call, _BiasActGrad, bias_act_grad_kernel, bias_act_kernel
from kernels.pointwise.noise import noise_stride
from kernels.upfirdn.upfirdn2d import _Call, _cover, upfirdn2d_kernel

LEAST = (3, 6)  # Triton whose compiled kernels take every parameter in order; an older one chooses each time
ALIGNED = (
    16  # bytes; Triton compiles a kernel for pointers that are multiples of it, and another for all others
)
MOST = 1024  # shapes that are kept for an op
Maybe: TypeAlias = Tensor | None

_warned: set[tuple[str, str]] = set()


# ---- the state of a call -----------------------------------------------------------------------------------------


def warn_once(function: str, what: str) -> None:
    """Warn that plain PyTorch computes this, once a process for each reason. The compiler traces no warning."""
    if torch.compiler.is_compiling() or (function, what) in _warned:
        return
    _warned.add((function, what))
    warnings.warn(f"{function}: {what}: no fused op serves it, plain PyTorch computes it", stacklevel=4)


def can_run(function: str, x: Tensor) -> bool:
    """Return whether fused ops can run on x. Warn once where it is on a GPU and they cannot."""
    runs = can_run_fused(x)
    if not runs and x.is_cuda:
        warn_once(function, "this GPU with this Triton")
    return runs


def _init() -> bool:
    """Return whether fused ops can run on this machine's GPU. Nothing is built: Triton compiles at first use."""
    return torch.cuda.is_available() and can_run_fused(torch.empty(0, device="cuda"))


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured, where nothing may be copied to the host."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def remember(known: dict[Hashable, Any], key: Hashable, prepared: Any) -> None:
    """Keep what was prepared for a shape. A program with ever new shapes begins anew when it has too many."""
    if len(known) >= MOST:
        known.clear()
    known[key] = prepared


def is_needed(ctx: Any, place: int) -> bool:
    """Return whether the running backward pass uses the gradient of the tensor at this place among a call's tensors.

    `ctx.needs_input_grad` says whether any pass could. See `needed` in `kernels/common/needed.py`.
    """
    asks = getattr(torch._C, "_will_engine_execute_node", None)
    node = ctx.next_functions[place][0]
    return node is not None and (asks is None or _runs(asks, node))


# ---- launches ----------------------------------------------------------------------------------------------------


class Launch:
    """A kernel over one grid, with numbers and constants that stay as they are.

    All calls give tensors of the same dtypes, on the same device, and None at the same places. That device need not be
    the current one. The first call is an ordinary launch, and so is a call with a tensor that is not aligned.
    """

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], numbers: tuple[int, ...], constants: Mapping[str, Any]
    ) -> None:
        self.kernel, self.grid, self.numbers, self.constants = kernel, (*grid, 1, 1)[:3], numbers, constants
        self.tail: tuple[Any, ...] = ()  # all arguments behind the tensors, in the kernel's order
        self.run: Callable[..., None] | None = None
        self.current: Callable[[], int]  # returns the current device
        self.stream: Callable[[int], int]  # returns the current stream of a device
        self.on = -1  # the tensors' device

    def __call__(self, *tensors: Maybe) -> None:
        bits = 0
        addresses: list[int | None] = []
        for each in tensors:
            if each is None:
                addresses.append(None)
            else:
                addresses.append(at := each.data_ptr())
                bits |= at
        if self.run is None or bits % ALIGNED:
            self._compile(tensors, bits)
        elif self.current() == self.on:
            # Triton would ask the driver about each tensor, but takes an address as it is.
            self.run(*addresses, *self.tail, stream=self.stream(self.on))
        else:
            with torch.cuda.device(self.on):
                self.run(*addresses, *self.tail, stream=self.stream(self.on))

    def _compile(self, tensors: tuple[Maybe, ...], bits: int) -> None:
        """Launch by way of Triton, and keep the compiled kernel for later calls if it can be launched directly."""
        on = next(each for each in tensors if each is not None).get_device()
        with torch.cuda.device(on) if on >= 0 else contextlib.nullcontext():
            compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.constants)
            version = tuple(map(int, re.findall(r"\d+", str(triton.__version__))[:2]))
            if bits % ALIGNED or not hasattr(compiled, "__getitem__") or version < LEAST:
                return  # Triton's interpreter compiles nothing.
            driver = triton.runtime.driver.active
            self.current, self.stream = driver.get_current_device, driver.get_current_stream
            self.on = self.current()
            names = self.kernel.arg_names[len(tensors) + len(self.numbers) :]
            self.tail = (*self.numbers, *(self.constants[name] for name in names))
            self.run = compiled[self.grid]


# ---- y = clamp(act(x * scale + noise * strength + bias) * gain) --------------------------------------------------


class Sums:
    """Sums by sample for scale, by channel for bias, each of rows of partial sums that a pass leaves.

    Where there are no rows, the pass itself writes the sum. See `kernels/common/sums.py`.
    """

    def __init__(self, t: Tiling, dtype: torch.dtype, of_scale: bool, of_bias: bool) -> None:
        self.dtype = accumulator(dtype)
        channels, by_sample, by_channel = t.sizes[0], of_scale and t.programs > 1, of_bias and t.rows > 1
        self.counts = t.rows * channels * by_sample, t.rows * channels * by_channel
        rows = [n for n, is_used in ((t.programs, by_sample), (t.rows, by_channel)) if is_used]
        if rows:
            how = blocks(max(rows))
            across = -(-channels // how.columns)
            jobs = t.samples * across * by_sample, across * by_channel
            numbers = (channels, t.programs, t.rows, t.grid[0] * t.grid[1], *jobs)
            constants = {"BLOCK_R": how.rows, "BLOCK_C": how.columns, "num_warps": how.warps}
            self.add = Launch(sum_partials_kernel, (sum(jobs),), numbers, constants | {"DEPENDENT": False})

    def allocate(self, g: Tensor, dscale: Maybe, dbias: Maybe) -> tuple[Maybe, Maybe]:
        """Return the tensors that the pass writes to: rows of partial sums, or the sums themselves."""
        by_sample, by_channel = self.counts
        return (
            g.new_empty(by_sample, dtype=self.dtype) if by_sample else dscale,
            g.new_empty(by_channel, dtype=self.dtype) if by_channel else dbias,
        )

    def finish(self, parts: tuple[Maybe, Maybe], dscale: Maybe, dbias: Maybe) -> None:
        """Add up the rows."""
        by_sample, by_channel = self.counts
        if by_sample or by_channel:
            scales = (parts[0], dscale) if by_sample else (None, None)
            biases = (parts[1], dbias) if by_channel else (None, None)
            self.add(*scales, *biases, None, None)


class Pass:
    """The launches for tensors of one shape, dtype and memory format. They are prepared at their first use.

    Args:
        x, bias, scale, noise: tensors as every call gives them, dense in memory.
        strength: the factor on noise, which needs no gradient.
    """

    def __init__(
        self, call: Call, x: Tensor, bias: Maybe, scale: Maybe, noise: Maybe, strength: Maybe
    ) -> None:
        self.call, self.strength, self.step = call, strength, noise_stride(noise)
        self.saved = call.saves(scale is not None)
        self.over = (1,) if noise is not None and len(noise) == len(x) else (0, 1)
        self.tiling = call.tiling(x, "backward", noise, scale)
        self.passes: dict[tuple[bool, bool, bool], tuple[Launch, Sums]] = {}
        self.first = self._launch(bias_act_kernel, call.tiling(x, "forward", noise, scale), {})

    def _launch(self, kernel: Any, t: Tiling, more: dict[str, bool]) -> Launch:
        call = self.call
        constants = {"SLOPE": call.slope, "GAIN": call.gain, "CLAMP": call.clamp, "DEPENDENT": False} | more
        constants |= {"ACC": tl_accumulator(call.dtype), **t.options}
        return Launch(kernel, t.grid, (*t.sizes, self.step), constants)

    def forward(self, x: Tensor, bias: Maybe, scale: Maybe, noise: Maybe) -> Tensor:
        y = torch.empty_like(x)
        self.first(x, bias, noise, self.strength, scale, y)
        return y

    def backward(
        self, g: Tensor, ref: Maybe, bias: Maybe, scale: Maybe, noise: Maybe, needs: tuple[bool, bool, bool]
    ) -> tuple[Maybe, Maybe, Maybe]:
        """Return the gradients of x, bias and scale, None where not needed."""
        if needs not in self.passes:
            launch = self._launch(bias_act_grad_kernel, self.tiling, {"SAVED_X": self.saved == "x"})
            self.passes[needs] = launch, Sums(self.tiling, self.call.dtype, needs[2], needs[1])
        launch, sums = self.passes[needs]
        g = dense_as(g, self.call.nhwc)
        dx = torch.empty_like(g) if needs[0] else None
        dbias = torch.empty_like(bias) if needs[1] else None
        dscale = torch.empty_like(scale) if needs[2] else None
        parts = sums.allocate(g, dscale, dbias)
        launch(g, ref, bias, noise, self.strength, scale, dx, *parts, None)
        sums.finish(parts, dscale, dbias)
        return dx, dbias, dscale


def run_pass(prepared: Pass, x: Tensor, bias: Maybe, scale: Maybe = None, noise: Maybe = None) -> Tensor:
    """Compute y, differentiable twice. A call that nothing differentiates leaves autograd out."""
    if torch.is_grad_enabled() and (
        x.requires_grad
        or (bias is not None and bias.requires_grad)
        or (scale is not None and scale.requires_grad)
        or (noise is not None and noise.requires_grad)
    ):
        y: Tensor = _Act.apply(x, bias, scale, noise, prepared)
        return y
    return prepared.forward(x, bias, scale, noise)


class _Act(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Maybe, scale: Maybe, noise: Maybe, prepared: Pass) -> Tensor:
        y = prepared.forward(x, bias, scale, noise)
        saved = prepared.saved
        ctx.save_for_backward(x if saved == "x" else y if saved else None, bias, scale, noise)
        ctx.set_materialize_grads(False)
        ctx.prepared = prepared
        return y

    @staticmethod
    def backward(ctx: Any, g: Maybe) -> tuple[Maybe, ...]:
        if g is None:
            return None, None, None, None, None
        ref, bias, scale, noise = ctx.saved_tensors
        needs_x, needs_bias, needs_scale, needs_noise, _ = ctx.needs_input_grad
        needs_bias = needs_bias and is_needed(ctx, 1)
        needs_scale = needs_scale and is_needed(ctx, 1 if bias is None else 2)
        prepared, needs = ctx.prepared, (needs_x, needs_bias, needs_scale)
        dnoise = g.sum(prepared.over, keepdim=True) if needs_noise else None
        if (
            torch.is_grad_enabled()
        ):  # in lazy phases alone: the op's own function, which can be differentiated
            tensors = (ref, bias, noise, prepared.strength, scale)
            dx, dbias, _, dscale = _BiasActGrad.apply(
                g, *tensors, prepared.call, (*needs[:2], False, needs[2])
            )
            return dx, dbias, dscale, dnoise, None
        return *prepared.backward(g, ref, bias, scale, noise, needs), dnoise, None


# ---- the filter --------------------------------------------------------------------------------------------------


class Filter:
    """One map of images [N, C, H, W] of one shape and dtype, which are dense in the call's memory format."""

    def __init__(self, call: _Call, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
        self.call, self.dtype, self.device = call, dtype, device
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
        cover = _cover(shape, call, dtype, capability)
        constants = {**cover.constants, "DEPENDENT": False}
        self.launch = Launch(upfirdn2d_kernel, cover.grid, cover.arguments, constants)
        (samples, channels), (height, width) = shape[:2], call.out
        self.shape = torch.Size((samples, channels, height, width))
        pixels = height * width
        strides = (1, width * channels, channels) if call.nhwc else (pixels, width, 1)
        self.strides = (channels * pixels, *strides)
        self._adjoint: Filter | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = x.new_empty_strided(self.shape, self.strides)
        self.launch(x, y, None)
        return y

    def adjoint(self) -> Filter:
        """Return the map of the gradient, whose own gradient is this map again."""
        if self._adjoint is None:
            self._adjoint = Filter(self.call.adjoint(), self.shape, self.dtype, self.device)
        return self._adjoint


def run_filter(prepared: Filter, x: Tensor) -> Tensor:
    """Compute y, differentiable to any order. A call that nothing differentiates leaves autograd out."""
    if x.requires_grad and torch.is_grad_enabled():
        y: Tensor = _Filter.apply(x, prepared)
        return y
    return prepared.forward(x)


class _Filter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, prepared: Filter) -> Tensor:
        ctx.prepared = prepared
        ctx.set_materialize_grads(False)
        return prepared.forward(x)

    @staticmethod
    def backward(ctx: Any, g: Maybe) -> tuple[Maybe, None]:
        if g is None:
            return None, None
        prepared = ctx.prepared
        return run_filter(prepared.adjoint(), dense_as(g, prepared.call.nhwc)), None
