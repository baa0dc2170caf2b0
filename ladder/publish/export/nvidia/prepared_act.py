"""The fused pass of `bias_act` for tensors of one shape: y = clamp(act(x * scale + noise * strength + bias) * gain).

It is `kernels/pointwise/bias_act.py` for a loop that waits for the CPU. Kernels and numbers are the same. The arguments
are checked once for each shape, by the caller, and the launches are prepared.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.common.sums import blocks, sum_partials_kernel
from kernels.common.tiles import Tiling, accumulator, dense_as, tl_accumulator
from kernels.pointwise.bias_act import (
    Call,
    bias_act_grad_grad_kernel,
    bias_act_grad_kernel,
    bias_act_kernel,
)
from kernels.pointwise.noise import noise_stride
from ladder.publish.export.nvidia.launches import Launch, is_wanted

Maybe: TypeAlias = Tensor | None


class Sums(NamedTuple):
    """The sums of a pass: by sample for scale, by channel for bias.

    Partial sums have these many elements. 0: the pass itself writes the sum.
    """

    by_sample: int
    by_channel: int
    add: Launch


class Pass:
    """The launches for tensors of one shape, dtype and memory format. They are prepared at their first use.

    Args:
        x, bias, scale, noise: tensors as every call gives them, dense in memory.
        strength: the factor on noise, which needs no gradient.
    """

    def __init__(
        self, call: Call, x: Tensor, bias: Maybe, scale: Maybe, noise: Maybe, strength: Maybe
    ) -> None:
        self.call, self.strength = call, strength
        self.saved = call.saves(scale is not None)
        self.over = (1,) if noise is not None and len(noise) == len(x) else (0, 1)
        self.step = noise_stride(noise)
        self.tilings = {
            direction: call.tiling(x, direction, noise, scale)
            for direction in ("forward", "backward", "double_backward")
        }
        self.passes: dict[Any, tuple[Launch, Sums | None]] = {}
        self.first = self._launch(bias_act_kernel, "forward", {})

    def _launch(self, kernel: Any, direction: str, more: dict[str, Any]) -> Launch:
        t, call = self.tilings[direction], self.call
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
        launch, sums = self.passes.get(needs) or self._prepare(needs)
        g = dense_as(g, self.call.nhwc)
        dx = torch.empty_like(g) if needs[0] else None
        dbias = torch.empty_like(bias) if needs[1] else None
        dscale = torch.empty_like(scale) if needs[2] else None
        if sums is None:
            launch(g, ref, bias, noise, self.strength, scale, dx, dscale, dbias, None)
            return dx, dbias, dscale
        by_sample, by_channel = self._parts(g, sums)
        into = dscale if by_sample is None else by_sample, dbias if by_channel is None else by_channel
        launch(g, ref, bias, noise, self.strength, scale, dx, *into, None)
        _finish(sums, by_sample, dscale, by_channel, dbias)
        return dx, dbias, dscale

    def double_backward(
        self, saved: tuple[Maybe, ...], ddx: Maybe, ddbias: Maybe, ddscale: Maybe, needs: tuple[bool, bool]
    ) -> tuple[Tensor, Maybe, Maybe]:
        """Return the gradients of g, x and scale. `needs` says whether those of x and of scale are needed."""
        g, ref, bias, scale, noise = saved
        needs_x, needs_scale = needs[0] and ddscale is not None, needs[1] and ddx is not None
        key = (ddx is None, ddbias is None, ddscale is None, needs_x, needs_scale)
        launch, sums = self.passes.get(key) or self._prepare_double(key)
        g = dense_as(g, self.call.nhwc)
        ddx = None if ddx is None else dense_as(ddx, self.call.nhwc)
        ddbias = None if ddbias is None else ddbias.contiguous()
        ddscale = None if ddscale is None else ddscale.contiguous()
        dg, dx = torch.empty_like(g), torch.empty_like(g) if needs_x else None
        dscale = torch.empty_like(scale) if needs_scale else None
        by_sample = None if sums is None else self._parts(g, sums)[0]
        into = dscale if by_sample is None else by_sample
        given = (g, ref, bias, noise, self.strength, scale, ddx, ddbias, None, ddscale)
        launch(*given, dg, dx, into)
        if sums is not None:
            _finish(sums, by_sample, dscale, None, None)
        return dg, dx, dscale

    # ---- prepared once -------------------------------------------------------------------------------------------

    def _prepare(self, needs: tuple[bool, bool, bool]) -> tuple[Launch, Sums | None]:
        more = {"SAVED_X": self.saved == "x"}
        made = (
            self._launch(bias_act_grad_kernel, "backward", more),
            self._sums("backward", needs[2], needs[1]),
        )
        self.passes[needs] = made
        return made

    def _prepare_double(self, key: tuple[bool, ...]) -> tuple[Launch, Sums | None]:
        more, at = {"SAVED_X": self.saved == "x"}, "double_backward"
        made = self._launch(bias_act_grad_grad_kernel, at, more), self._sums(at, key[4], False)
        self.passes[key] = made
        return made

    def _sums(self, direction: str, of_scale: bool, of_bias: bool) -> Sums | None:
        """Return how partial sums are added up, or None if there are none. See `kernels/common/sums.py`."""
        t: Tiling = self.tilings[direction]
        channels = t.sizes[0]
        by_sample, by_channel = of_scale and t.programs > 1, of_bias and t.rows > 1
        rows = [n for n, there in ((t.programs, by_sample), (t.rows, by_channel)) if there]
        if not rows:
            return None
        how = blocks(max(rows))
        across = -(-channels // how.columns)
        jobs = t.samples * across * by_sample, across * by_channel
        numbers = (channels, t.programs, t.rows, t.grid[0] * t.grid[1], *jobs)
        constants = {"BLOCK_R": how.rows, "BLOCK_C": how.columns, "num_warps": how.warps, "DEPENDENT": False}
        add = Launch(sum_partials_kernel, (sum(jobs),), numbers, constants)
        return Sums(t.rows * channels * by_sample, t.rows * channels * by_channel, add)

    def _parts(self, g: Tensor, sums: Sums) -> tuple[Maybe, Maybe]:
        dtype = accumulator(self.call.dtype)
        by_sample = g.new_empty(sums.by_sample, dtype=dtype) if sums.by_sample else None
        return by_sample, g.new_empty(sums.by_channel, dtype=dtype) if sums.by_channel else None


def _finish(sums: Sums, by_sample: Maybe, dscale: Maybe, by_channel: Maybe, dbias: Maybe) -> None:
    sums.add(
        by_sample, dscale if by_sample is not None else None,
        by_channel, dbias if by_channel is not None else None, None, None,
    )  # fmt: skip


# ---- autograd ----------------------------------------------------------------------------------------------------


def run(prepared: Pass, x: Tensor, bias: Maybe, scale: Maybe = None, noise: Maybe = None) -> Tensor:
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
        needs_bias = needs_bias and is_wanted(ctx, 1)
        needs_scale = needs_scale and is_wanted(ctx, 1 if bias is None else 2)
        prepared, needs = ctx.prepared, (needs_x, needs_bias, needs_scale)
        dnoise = g.sum(prepared.over, keepdim=True) if needs_noise else None
        if torch.is_grad_enabled():
            return *_ActGrad.apply(g, ref, bias, scale, noise, prepared, needs), dnoise, None
        return *prepared.backward(g, ref, bias, scale, noise, needs), dnoise, None


class _ActGrad(torch.autograd.Function):
    """`Pass.backward` as a function that can be differentiated itself."""

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, ref: Maybe, bias: Maybe, scale: Maybe, noise: Maybe, prepared: Pass, needs: Any
    ) -> tuple[Maybe, Maybe, Maybe]:
        ctx.save_for_backward(g, ref, bias, scale, noise)
        ctx.set_materialize_grads(False)
        ctx.prepared = prepared
        return prepared.backward(g, ref, bias, scale, noise, needs)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, ddx: Maybe, ddbias: Maybe, ddscale: Maybe) -> tuple[Maybe, ...]:
        if ddx is None and ddbias is None and ddscale is None:
            return None, None, None, None, None, None, None
        needs, prepared = ctx.needs_input_grad, ctx.prepared
        needs = needs[1] and prepared.saved == "x", needs[3]
        dg, dx, dscale = prepared.double_backward(ctx.saved_tensors, ddx, ddbias, ddscale, needs)
        return dg, dx, None, dscale, None, None, None
