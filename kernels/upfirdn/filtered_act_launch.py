"""The launches of `filtered_act`'s kernels, forward and backward without autograd, and how they cover an image."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .. import choices
from ..common.launches import launch_grid
from ..common.sums import Sums
from ..common.tiles import (
    INTERPRETED,
    Tiling,
    accumulator,
    dense_as,
    new_image,
    power_of_2,
    tl_accumulator,
)
from ..linear.weight_gradients import defer
from ..pointwise.noise import noise_stride
from .filter_strip import TAPS
from .filtered_act_kernels import (
    act_filter_grad_grad_kernel,
    act_filter_grad_kernel,
    act_filter_kernel,
    filter_act_grad_kernel,
    filter_act_kernel,
    filter_act_modulate_grad_kernel,
    filter_act_modulate_kernel,
    filter_act_sums_kernel,
)
from .upfirdn2d import Config, _Call, _first_tap_one


class Act(NamedTuple):
    """The plain facts of one call: the filter, the activation, the dtype of x and its memory format."""

    filter: _Call  # the filter as a map of x, without the activation's gain
    slope: float
    gain: float
    dtype: torch.dtype = torch.float32

    def of(self, x: Tensor) -> "Act":
        return self._replace(filter=self.filter._replace(nhwc=not x.is_contiguous()), dtype=x.dtype)

    def plain(self) -> tuple:
        """Return the facts as an operator's arguments."""
        return *self.filter, *self[1:]


# ---- tiles -------------------------------------------------------------------------------------------------------

KERNELS = {
    "act_filter": act_filter_kernel,
    "act_filter_grad": act_filter_grad_kernel,
    "act_filter_grad_grad": act_filter_grad_grad_kernel,
    "filter_act": filter_act_kernel,
    "filter_act_grad": filter_act_grad_kernel,
    "filter_act_modulate": filter_act_modulate_kernel,
    "filter_act_modulate_grad": filter_act_modulate_grad_kernel,
}

# By (kernel, channels_last). For a GPU of that compute capability an entry that begins with it, (9, 0), goes before.
# The channels_last entries took the least time within a training step in BF16 on one H200.
# They have few registers for each thread, so that many programs wait for memory at once. Loads come a row early where
# that leaves enough registers.
CONFIGS: dict[tuple, Config] = {
    **{
        (name, True): Config(rows=8, cols=2, ahead=1, block_c=64, width=0.5, warps=4, registers=128)
        for name in KERNELS
    },
    **{
        (name, True): Config(rows=8, cols=2, ahead=0, block_c=64, width=0.5, warps=4, registers=128)
        for name in ("filter_act_grad", "filter_act_modulate_grad")
    },
    **{(name, False): Config(rows=16, cols=1, ahead=0, block_c=64, width=4, warps=4) for name in KERNELS},
}
PROGRAMS = 1 if INTERPRETED else 512  # fewer programs leave multiprocessors idle: strips then get shorter


class Strip(NamedTuple):
    """The cut of an image for `filter_strip`. A program makes `rows` rows of as many columns as `width` columns of x
    allow.
    """

    rows: int
    width: int  # columns of x; a power of 2, 16 at least
    block_c: int  # channels, at most
    warps: int
    registers: int | None = None  # registers a thread, at most


# By kernel, or (compute capability, kernel) as above, for 16-bit channels_last images where `fits` says so. Other
# kernels take less time walking. Walks repeat an activation at the loads again and again. Strips wait for sums.
STRIPS: dict[str | tuple, Strip] = {
    "act_filter": Strip(rows=64, width=32, block_c=32, warps=2, registers=128),
}
NARROWEST = 12  # columns; tensor cores work on 16 channels and columns at least


def config(name: str, nhwc: bool, capability: tuple[int, int], strips: bool = False) -> Config | Strip:
    """Return the entry of the tables that this GPU uses. strips: whether `filter_strip` may be taken."""
    strip = (STRIPS.get((capability, name)) or STRIPS.get(name)) if strips else None
    found = strip or CONFIGS.get((capability, name, nhwc)) or CONFIGS[name, nhwc]
    choices.note(name, f"{'nhwc' if nhwc else 'nchw'}{' strip' if strip else ''}", found)
    return found


def fits(call: _Call, channels: int, dtype: torch.dtype) -> bool:
    """Return whether `filter_strip` can do this call.

    16 bits must hold the taps, and the image must be large enough for tensor cores.
    """
    if not call.nhwc or dtype.itemsize != 2 or len(call.taps_x) != TAPS or len(call.taps_y) != TAPS:
        return False
    _, taps_x = _first_tap_one(call.taps_y, call.taps_x)
    exact = torch.tensor(taps_x, dtype=dtype).tolist() == list(taps_x)
    return exact and channels >= 16 and max(call.size[1], call.out[1]) >= NARROWEST


class _Cover(NamedTuple):
    """One launch: the tiles, the kernel's plain arguments in order except those of the noise, and its constants."""

    tiling: Tiling  # the tiling that `Sums` takes
    sizes: tuple[int, ...]
    tiles: tuple[int, ...]  # the numbers of tiles, and the `step` and `rows` of `filter_strip`
    constants: dict


@lru_cache(maxsize=4096)
def _cover(
    name: str, shape: torch.Size, call: _Call, gain: float, dtype: torch.dtype, capability: tuple[int, int]
) -> _Cover:
    """Cover the larger of x and y with programs: sums are taken over either."""
    samples, channels = shape[:2]
    (h, w), (oh, ow), nhwc = call.size, call.out, call.nhwc
    choice = config(name, nhwc, capability, fits(call, channels, dtype))
    if isinstance(choice, Strip):
        return _strips(choice, shape, call, gain)
    rows, cols, ahead, block_c, width, warps, registers = choice
    high, wide = max(h, oh), max(w, ow)
    if nhwc:
        stride_p, strides = channels, (1, 1)
        block_c = min(power_of_2(channels), block_c)
        elements = int(32 * warps * width * max(16 // dtype.itemsize, 1))
        block_p = min(power_of_2(-(-wide // cols)), max(elements // block_c, 1))
    else:  # Planes stand apart, whichever sample they belong to.
        samples, channels = 1, samples * channels
        stride_p, strides = 1, (h * w, oh * ow)
        block_p = min(power_of_2(-(-wide // cols)), int(32 * warps * width))
        block_c = min(power_of_2(channels), int(32 * warps * width) // block_p)
    tiles_c, tiles_w = -(-channels // block_c), -(-wide // (cols * block_p))
    rows = min(rows, power_of_2(high))
    while rows > 1 and samples * tiles_c * tiles_w * -(-high // rows) < PROGRAMS:
        rows //= 2
    tiles_h = -(-high // rows)
    taps_y, taps_x = _first_tap_one(tuple(tap * gain for tap in call.taps_y), call.taps_x)
    constants = {
        "PLANES": not nhwc, "TAPS_Y": taps_y, "TAPS_X": taps_x,
        "BEFORE_Y": call.before[0], "BEFORE_X": call.before[1], "ACC": tl_accumulator(dtype), "STRIDE_P": stride_p,
        "ROWS": rows, "COLS": cols, "AHEAD": ahead, "BLOCK_P": block_p, "BLOCK_C": block_c, "num_warps": warps,
        "maxnreg": registers, "STRIP": False,
    }  # fmt: skip
    sizes = (channels, h, w, oh, ow, *strides, shape[1])
    tiles = Tiling((samples * tiles_w * tiles_h, tiles_c), samples, tiles_w * tiles_h, sizes[:6], {}, {})
    return _Cover(tiles, sizes, (tiles_c, tiles_w, tiles_h, 0, 0), constants)


def _strips(choice: Strip, shape: torch.Size, call: _Call, gain: float) -> _Cover:
    """Return strips that end at about the same time.

    Each pixel of x is some program's own, counted from where the padding begins.
    """
    samples, channels = shape[:2]
    (h, w), (oh, ow), before = call.size, call.out, call.before
    high, wide = max(h + before[0], oh), max(w + before[1], ow)
    tiles_w = -(-wide // (choice.width - TAPS + 1))
    block_c = min(power_of_2(channels), choice.block_c)
    tiles_c = -(-channels // block_c)
    rows = min(choice.rows, power_of_2(high))
    while rows > 4 and samples * tiles_c * tiles_w * -(-high // rows) < PROGRAMS:
        rows //= 2
    tiles_h = -(-high // rows)
    taps_y, taps_x = _first_tap_one(tuple(tap * gain for tap in call.taps_y), call.taps_x)
    constants = {
        "PLANES": False, "TAPS_Y": taps_y, "TAPS_X": taps_x, "BEFORE_Y": before[0], "BEFORE_X": before[1],
        "ACC": tl_accumulator(torch.float32), "STRIDE_P": channels, "ROWS": 1, "COLS": 1, "AHEAD": 0,
        "BLOCK_P": choice.width, "BLOCK_C": block_c, "STRIP": True, "num_warps": choice.warps,
        "maxnreg": choice.registers,
    }  # fmt: skip
    sizes = (channels, h, w, oh, ow, 1, 1, channels)
    tiles = Tiling((samples * tiles_w * tiles_h, tiles_c), samples, tiles_w * tiles_h, sizes[:6], {}, {})
    step, rows = -(-wide // tiles_w), -(-high // tiles_h)
    return _Cover(tiles, sizes, (tiles_c, tiles_w, tiles_h, step, rows), constants)


def least(dtype: torch.dtype) -> float:
    """Return the smallest style that y, in this dtype, is multiplied by. A style nearer to zero counts as this.

    An activation cannot be found again from zero times itself. The number is far below y's rounding where other
    channels have styles of about one.
    """
    return 2.0**-14 if dtype == torch.float16 else 2.0**-60


# ---- launches ----------------------------------------------------------------------------------------------------


def launch(
    name: str,
    act: Act,
    call: _Call,
    x: Tensor,
    pointers: tuple,
    noise: Tensor | None = None,
    **constants: float,
) -> None:
    """Launch a kernel. call maps x, the pixels that it filters."""
    cover = _cover_of(name, act, call, x)
    grid = (cover.tiling.grid[0] * cover.tiling.grid[1],)
    constants |= {"SLOPE": act.slope, "GAIN": act.gain} | cover.constants
    launch_grid(
        KERNELS[name], grid, (*pointers, *cover.sizes, noise_stride(noise), *cover.tiles), **constants
    )


def _cover_of(name: str, act: Act, call: _Call, x: Tensor) -> _Cover:
    capability = torch.cuda.get_device_capability(x.device) if x.is_cuda else (0, 0)
    return _cover(name, x.shape, call, act.gain, act.dtype, capability)


def _sum_like(t: Tensor, over: Tensor) -> Tensor:
    """Return the tensor for sums over the pixels of `over`. It is zero for an empty batch, which launches no kernel."""
    return torch.empty_like(t) if over.numel() else torch.zeros_like(t)


class _MapSums:
    """Sums over the pixels of each of the N * C maps, `count` of them, and the gradients that they make up."""

    def __init__(self, name: str, act: Act, call: _Call, g: Tensor, count: int):
        t = _cover_of(name, act, call, g).tiling
        maps = t.sizes[0]  # C, or N * C where t knows no samples
        self.shape = g.shape[:2]
        self.strides = (count * maps, maps) if call.nhwc else (g.shape[1], maps)
        out = g.new_empty((t.samples * count * maps,), dtype=accumulator(act.dtype))
        self.sums = Sums(t, act.dtype, out, channels=count * maps)
        self.into = self.sums.into[0]

    def finish(self, gain: float, inputs: tuple, outputs: tuple, least: float = 0.0) -> None:
        """Write those of dbias, dstrength, dscale and dstyle that are given. inputs: bias,
        strength, scale and style.
        """
        sums, (n, c) = self.sums.finish()[0], self.shape
        jobs = -(-c // 32)
        grid = (jobs + (outputs[1] is not None),)
        constants = {
            "GAIN": gain,
            "LEAST": least,
            "BLOCK_N": min(power_of_2(n), 16),
            "BLOCK_C": 32,
            "BLOCK": 2048,
        }
        launch_grid(
            filter_act_sums_kernel, grid, (sums, *inputs, *outputs, n, c, *self.strides, jobs), **constants
        )


def act_filter_forward(x: Tensor, bias: Tensor | None, act: Act, dtype: torch.dtype) -> Tensor:
    y = new_image(x, x.shape[1], act.filter.out, act.filter.nhwc, dtype)
    if y.numel():
        launch("act_filter", act, act.filter, x, (x, y, bias))
    return y


def filter_act_forward(x, bias, noise, strength, scale, act: Act, dtype: torch.dtype) -> Tensor:
    y = new_image(x, x.shape[1], act.filter.out, act.filter.nhwc, dtype)
    if y.numel():
        launch("filter_act", act, act.filter, x, (x, y, bias, noise, strength, scale), noise)
    return y


def filter_act_modulate_forward(
    x, bias, noise, strength, scale, style, act: Act, dtype: torch.dtype
) -> Tensor:
    y = new_image(x, x.shape[1], act.filter.out, act.filter.nhwc, dtype)
    if y.numel():
        pointers = (x, y, bias, noise, strength, scale, style)
        launch("filter_act_modulate", act, act.filter, x, pointers, noise, LEAST=least(dtype))
    return y


def act_filter_backward(
    g: Tensor, x: Tensor, bias: Tensor | None, act: Act, needs: tuple[bool, ...], once: bool = True
):
    """Return dx and dbias (None where not needed) for the gradient g of `act_filter`'s y.

    once: nobody differentiates them. Then dbias is offered to `defer`: no other kernel reads it.
    """
    call = act.filter.adjoint()
    g = dense_as(g, call.nhwc)
    dx = torch.empty_like(x)
    dbias = _sum_like(bias, g) if needs[1] else None
    if x.numel():
        sums = _MapSums("act_filter_grad", act, call, g, 1) if needs[1] else None
        launch("act_filter_grad", act, call, g, (g, x, dx, bias, sums.into if sums else None))

        def finish() -> list[Tensor]:
            sums.finish(1.0, (None,) * 4, (dbias, None, None, None))
            return [dbias]

        if sums and once and defer((bias,), finish):
            return dx, None
        if sums:
            finish()
    return dx, dbias


def filter_act_backward(g, y, bias, noise, strength, scale, act: Act, needs: tuple[bool, ...]):
    """Return dx, dbias, dstrength and dscale (None where not needed) for the gradient g of `filter_act`'s y."""
    others = (bias, strength, scale, None)
    return _up_backward("filter_act_grad", g, y, noise, others, act, (*needs, False), (scale,))[:4]


def filter_act_modulate_backward(
    g, y, bias, noise, strength, scale, style, act: Act, needs: tuple[bool, ...]
):
    """Return the gradients of `filter_act_backward`, and dstyle."""
    others, more = (bias, strength, scale, style), {"LEAST": least(y.dtype)}
    return _up_backward("filter_act_modulate_grad", g, y, noise, others, act, needs, (scale, style), **more)


def _up_backward(
    name: str, g, y, noise, others: tuple, act: Act, needs: tuple, factors: tuple, **constants: float
):
    """Return dx and the other gradients, whose sums one kernel leaves beside dx. factors: factors
    of a map that it reads.
    """
    call = act.filter.adjoint()
    g = dense_as(g, call.nhwc)
    dx = new_image(g, g.shape[1], call.out, call.nhwc, act.dtype)
    grads = tuple(_sum_like(t, g) if need else None for t, need in zip(others, needs[1:], strict=True))
    if g.numel():
        sums = _MapSums(name, act, call, g, 3) if any(needs[1:]) else None
        pointers = (g, y, dx, noise, *factors, sums.into if sums else None)
        launch(name, act, call, g, pointers, noise, **constants)
        if sums:
            sums.finish(act.gain, others, grads, *constants.values())
    return dx, *grads
