"""The op y = x with zeros inserted (up), padded or cropped, filtered by a separable filter, every down-th pixel kept.

This is the resampling of StyleGAN2 (Karras et al. 2020, arXiv:1912.04958), as its `upfirdn2d` defines it. Zeros are
never inserted nor multiplied: each output pixel sums only the taps that meet a pixel of x (polyphase). A program walks
down a strip of rows. It loads a few shifted columns of a row and filters them along the row. The result stays in
registers for as long as output rows below need it. So x crosses memory once, except for the rim that strips share.

The map is linear, and its gradient is the same map with up and down swapped and the filter mirrored. The gradient's
gradient is the map again. Forward, backward and double backward are one kernel.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import choices
from ..common import arguments
from ..common.dependent_launch import after_previous
from ..common.launches import Known, launch_known
from ..common.needed import is_recorded
from ..common.operators import OPERATORS, operator
from ..common.tiles import (
    INTERPRETED,
    check_device,
    dense,
    dense_as,
    new_image,
    power_of_2,
    tl,
    triton,
    widen,
    within,
    without_autocast,
)

LONGEST = 8  # taps; every tap of a column is a load, and every row of taps stays in registers


def upfirdn2d(
    x: Tensor,
    taps: Sequence[float],
    *,
    up: int = 1,
    down: int = 1,
    padding: int | Sequence[int] = 0,
    gain: float = 1.0,
    flip: bool = False,
) -> Tensor:
    """Upsample, pad, filter and downsample x [N, C, H, W], fused. Differentiable to any order.

    Args:
        x: NCHW or channels_last (kept); float16, bfloat16, float32 or float64. Autocast leaves its dtype alone, as it
            does with PyTorch's own interpolation.
        taps: 1 to 8 numbers, the filter along each dimension. They are not normalized.
        up, down: 1 or 2.
        padding: pixels around the upsampled image: one number, (before, after), or (left, right, top, bottom).
            Negative numbers crop.
        gain: factor on the result.
        flip: False convolves, True correlates (for a symmetric filter the same).

    Returns y [N, C, (H * up + padding - taps) // down + 1, likewise] in x.dtype. Sums are float32 (float64 for
    float64).
    Raises ValueError for what does not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    call = _plan(x, taps, up, down, padding, gain, flip)
    check_device(x)
    x = dense(x)
    call = _Call(*call[:-1], not x.is_contiguous())
    if torch.compiler.is_compiling():
        return OPERATORS.upfirdn2d(x, *call)
    return run_call(x, call)


def upfirdn2d_reference(
    x: Tensor,
    taps: Sequence[float],
    *,
    up: int = 1,
    down: int = 1,
    padding: int | Sequence[int] = 0,
    gain: float = 1.0,
    flip: bool = False,
) -> Tensor:
    """Compute `upfirdn2d` in plain PyTorch. Arguments, result dtype and memory format as `upfirdn2d`."""
    call = _plan(x, taps, up, down, padding, gain, flip)
    n, c, h, w = x.shape
    layout = torch.contiguous_format if dense(x).is_contiguous() else torch.channels_last
    left, right, top, bottom = _sides(padding)
    wide = x[:, :, :, None, :, None]
    wide = F.pad(wide, (0, up - 1, 0, 0, 0, up - 1)).reshape(n, c, h * up, w * up)
    wide = F.pad(wide, (left, right, top, bottom)).contiguous(memory_format=layout)
    kernel = _outer(call.taps_y, call.taps_x, x.device, x.dtype)
    kernel = kernel.expand(c, 1, *kernel.shape)
    with without_autocast(x):
        y = F.conv2d(wide, kernel, stride=down, groups=c)
    return y.contiguous(memory_format=layout)


@lru_cache(maxsize=64)
def _outer(taps_y: tuple[float, ...], taps_x: tuple[float, ...], device: torch.device, dtype: torch.dtype):
    """Return the two-dimensional filter. It is kept, because a capture may not copy it from the host."""
    factors = (torch.tensor(taps, dtype=torch.float64) for taps in (taps_y, taps_x))
    return torch.outer(*factors).to(device, dtype)


def bytes_moved(
    x: Tensor, taps: Sequence[float], *, up: int = 1, down: int = 1, padding: int | Sequence[int] = 0
) -> int:
    """Return the bytes that must cross memory: x in, y out; backward the same, dy in and dx out."""
    call = _plan(x, taps, up, down, padding, 1.0, False)
    return x.nbytes + x.shape[0] * x.shape[1] * call.out[0] * call.out[1] * x.element_size()


class _Call(NamedTuple):
    """The map along both dimensions: y[o] = sum over k of taps[k] * x[(o * down + k - before) / up], where exact."""

    taps_y: tuple[float, ...]  # taps, with the gain in them
    taps_x: tuple[float, ...]
    up: int
    down: int
    before: tuple[int, int]  # padding at the top and at the left
    size: tuple[int, int]  # size of x, (H, W)
    out: tuple[int, int]  # size of y
    nhwc: bool = False

    def adjoint(self) -> "_Call":
        """Return the gradient's map: up and down swapped, the filter mirrored, padding such that the sizes are swapped,
        too.
        """
        reach = len(self.taps_x) - 1
        return _Call(
            self.taps_y[::-1], self.taps_x[::-1], self.down, self.up,
            (reach - self.before[0], reach - self.before[1]), self.out, self.size, self.nhwc,
        )  # fmt: skip


@arguments.check_once
def _plan(x, taps, up, down, padding, gain, flip) -> _Call:
    """Validate the arguments, and return the call as a map."""
    arguments.check_tensors({"x": x})
    if x.dim() != 4:
        raise ValueError(f"x must be a float tensor [N, C, H, W], got {x.dtype} {tuple(x.shape)}")
    taps = arguments.taps_of(taps, LONGEST)
    arguments.check_flags(flip=flip)
    arguments.check_numbers(gain=gain)
    if not all(arguments.is_number(n, arguments.WHOLE) and n in (1, 2) for n in (up, down)):
        raise ValueError(f"up and down must be 1 or 2, got up {up!r}, down {down!r}")
    left, right, top, bottom = _sides(padding)
    taps = tuple(float(t) for t in (taps if flip else taps[::-1]))
    h, w = x.shape[2:]
    out = tuple(
        (n * up + before + after - len(taps)) // down + 1
        for n, before, after in ((h, top, bottom), (w, left, right))
    )
    if min(out) < 1 or min(h, w) < 1:
        raise ValueError(
            f"{len(taps)} taps do not fit into {h}x{w} pixels, up {up}, padding {left, right, top, bottom}"
        )
    return _Call(tuple(t * float(gain) for t in taps), taps, up, down, (top, left), (h, w), out)


def _sides(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """Return (left, right, top, bottom) for any form of padding."""
    found = arguments.listed(padding)
    sides = (padding,) * 4 if found is None else tuple(found)
    if len(sides) == 2:
        sides = sides * 2
    if len(sides) != 4 or not all(arguments.is_number(side, arguments.WHOLE) for side in found or (padding,)):
        raise ValueError(f"padding must be 1, 2 or 4 integers, got {padding!r}")
    return sides


# ---- the math, without loads and stores --------------------------------------------------------------------------


@triton.jit
def polyphase(
    values, FIRST: tl.constexpr, STEP: tl.constexpr, AT: tl.constexpr,
    TAPS: tl.constexpr, UP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Sum TAPS[k] * v[(AT + k) / UP] over the k for which the index is whole. v[i] is values[FIRST + i * STEP]."""
    START: tl.constexpr = -AT % UP
    total = tl.zeros(values[0].shape, ACC)
    if START < len(TAPS):  # The first product is not added to zeros: that would be an instruction.
        total = values[FIRST + (AT + START) // UP * STEP].to(ACC) * TAPS[START]
    for k in tl.static_range(START + UP, len(TAPS), UP):
        total += values[FIRST + (AT + k) // UP * STEP].to(ACC) * TAPS[k]
    return total


# ---- kernel ------------------------------------------------------------------------------------------------------


@triton.jit
def upfirdn2d_kernel(
    x, y, add, C, H, W, OH, OW, stride_xc, stride_yc, lead_y, lead_x, tiles_c, tiles_w, tiles_h,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr,
    PHASE_Y: tl.constexpr, PHASE_X: tl.constexpr, ACC: tl.constexpr,
    STRIDE_P: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute ROWS rows of BLOCK_P groups of COLS pixels of BLOCK_C channels. Rows are loaded AHEAD rows before their
    use.

    add: a tensor to add to y, with y's dtype and memory format, or None. It is loaded a row before its use.

    A tile [BLOCK_P, BLOCK_C] holds one pixel of each group. The input's index (o * DOWN + k - before) / UP has two
    parts. One is the program's share, minus lead. The other is (r * DOWN + k + PHASE) / UP, a constant of the compiled
    kernel.
    """
    after_previous(DEPENDENT)
    pid = tl.program_id(0)
    c = (pid % tiles_c) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    out_col = ((pid // tiles_c % tiles_w) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]) * COLS
    out_row = (pid // tiles_c // tiles_w % tiles_h) * ROWS
    n = (pid // tiles_c // tiles_w // tiles_h).to(tl.int64)
    col = out_col * DOWN // UP - lead_x
    row = out_row * DOWN // UP - lead_y
    x += n * C * H * W + (col.to(tl.int64) * STRIDE_P + c.to(tl.int64) * stride_xc)
    y += n * C * OH * OW + (out_col.to(tl.int64) * STRIDE_P + c.to(tl.int64) * stride_yc)
    if add is not None:
        add += n * C * OH * OW + (out_col.to(tl.int64) * STRIDE_P + c.to(tl.int64) * stride_yc)

    # pixels of x that a thread loads in a row
    LOADS: tl.constexpr = ((COLS - 1) * DOWN + len(TAPS_X) - 1 + PHASE_X) // UP + 1
    LINES: tl.constexpr = ((ROWS - 1) * DOWN + len(TAPS_Y) - 1 + PHASE_Y) // UP + 1
    inside = ()
    for d in tl.static_range(LOADS):
        inside += ((c < C) & (col + d >= 0) & (col + d < W),)
    loaded = ()  # LOADS tiles for each row so far, in x's dtype
    filtered = ()  # COLS tiles for each row so far, filtered along the row
    added = ()  # COLS tiles for each row of y so far
    for i in tl.static_range(LINES + AHEAD):
        if i < LINES:
            line = x + (row + i).to(tl.int64) * W * STRIDE_P
            for d in tl.static_range(LOADS):
                mask = inside[d] & within(row + i, H)
                loaded += (tl.load(line + d * STRIDE_P, mask, 0.0),)
        if add is not None:
            for r in tl.static_range(ROWS):
                if (r * DOWN + len(TAPS_Y) - 1 + PHASE_Y) // UP == i - AHEAD + 1 or (
                    i == 0 and (r * DOWN + len(TAPS_Y) - 1 + PHASE_Y) // UP + AHEAD == 0
                ):
                    line = add + (out_row + r).to(tl.int64) * OW * STRIDE_P
                    for j in tl.static_range(COLS):
                        mask = (c < C) & (out_col + j < OW) & (out_row + r < OH)
                        added += (tl.load(line + j * STRIDE_P, mask, 0.0),)
        if i >= AHEAD:
            values = ()
            for d in tl.static_range(LOADS):
                values += (widen(loaded[(i - AHEAD) * LOADS + d], ACC),)
            for j in tl.static_range(COLS):
                tile = polyphase(values, 0, 1, j * DOWN + PHASE_X, TAPS_X, UP, ACC)
                filtered += (tile,)
            for r in tl.static_range(ROWS):
                if (r * DOWN + len(TAPS_Y) - 1 + PHASE_Y) // UP == i - AHEAD:  # the last row that r needs
                    line = y + (out_row + r).to(tl.int64) * OW * STRIDE_P
                    for j in tl.static_range(COLS):
                        tile = polyphase(filtered, j, COLS, r * DOWN + PHASE_Y, TAPS_Y, UP, ACC)
                        mask = (c < C) & (out_col + j < OW) & (out_row + r < OH)
                        if add is not None:
                            tile += added[r * COLS + j].to(ACC)
                        tl.store(line + j * STRIDE_P, tile, mask)


# ---- tiles -------------------------------------------------------------------------------------------------------


class Config(NamedTuple):
    """The cut of an image: a program makes `rows` rows, a thread `cols` neighbouring pixels of each."""

    rows: int  # rows; a multiple of `up`, because every strip begins at the same phase of the filter
    cols: int  # columns; likewise, for every thread's pixels
    ahead: int  # rows that are loaded before they are needed
    block_c: int  # channels at most (channels_last)
    width: (
        float  # the part of a tile that a thread holds: vectors of 16 bytes (channels_last), elements (NCHW)
    )
    warps: int
    registers: int | None = None  # registers a thread, at most


# By (channels_last, up, down). For a GPU of that compute capability an entry that begins with it, (9, 0), goes before.
# The first entry is as one H200 timed it alone (`python -m kernels.tuning.filters`). The others were chosen by counting
# instructions for each pixel, and registers, in sm_90 code (ptxas, hardly any spills).
CONFIGS: dict[tuple, Config] = {
    (True, 1, 1): Config(rows=8, cols=4, ahead=1, block_c=64, width=0.5, warps=4, registers=128),
    (True, 2, 1): Config(rows=8, cols=2, ahead=1, block_c=64, width=1, warps=4),
    (True, 1, 2): Config(rows=8, cols=1, ahead=0, block_c=64, width=1, warps=4),
    (True, 2, 2): Config(rows=4, cols=2, ahead=0, block_c=64, width=1, warps=4),
    (False, 1, 1): Config(rows=16, cols=1, ahead=0, block_c=64, width=4, warps=4),
    (False, 2, 1): Config(rows=16, cols=2, ahead=0, block_c=64, width=2, warps=4),
    (False, 1, 2): Config(rows=8, cols=1, ahead=0, block_c=64, width=4, warps=4),
    (False, 2, 2): Config(rows=4, cols=2, ahead=0, block_c=64, width=1, warps=4),
    # Maps below 2^26 elements, by the same H200: results/kernels/nvidia-h200-filter-tuning-medium.json. In the order of
    # Config: rows, cols, ahead, block_c, width, warps, registers. Each percentage is the share of a copy's speed.
    ("medium", True, 2, 1): Config(4, 2, 1, 128, 0.5, 4),  # 95.1%, before 85.9%
    ("medium", True, 1, 2): Config(16, 1, 0, 64, 0.5, 8, 80),  # 89.1%, before 84.2%
    ("medium", True, 1, 1): Config(8, 4, 1, 128, 0.5, 4, 128),  # 79.6%, before 77.9%
}
PROGRAMS = 1 if INTERPRETED else 512  # fewer programs leave multiprocessors idle: strips then get shorter


class _Cover(NamedTuple):
    """One launch: the grid, the kernel's plain arguments in order, its constants, and the compiled kernels."""

    grid: tuple[int]
    arguments: tuple[int, ...]
    constants: dict
    launches: Known


def config(nhwc: bool, up: int, down: int, capability: tuple[int, int], elements: int) -> Config:
    """Return the entry of the table that this GPU uses for maps of this many elements (of x or y,
    whichever has more).
    """
    case = (nhwc, up, down)
    keys = [case] if choices.size_of(elements) == "large" else [("medium", *case), case]
    key = next(key for each in keys for key in ((capability, *each), each) if key in CONFIGS)
    size = " medium" if "medium" in key else ""
    choices.note("upfirdn2d", f"{'nhwc' if nhwc else 'nchw'} up {up} down {down}{size}", CONFIGS[key])
    return CONFIGS[key]


@lru_cache(maxsize=4096)
def _cover(shape: torch.Size, call: _Call, dtype: torch.dtype, device: torch.device) -> _Cover:
    """Cover y with programs."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    samples, channels = shape[:2]
    (h, w), (oh, ow), nhwc = call.size, call.out, call.nhwc
    most = samples * channels * max(h * w, oh * ow)
    rows, cols, ahead, block_c, width, warps, registers = config(nhwc, call.up, call.down, capability, most)
    if cols % call.up or rows % call.up:
        raise ValueError(
            f"tiles of upfirdn2d: rows and cols must be multiples of up, {call.up}, got {rows} and {cols}"
        )
    elements = int(32 * warps * width)
    if nhwc:
        stride_p, strides = channels, (1, 1)
        block_c = min(power_of_2(channels), block_c)
        elements = int(32 * warps * width * max(16 // dtype.itemsize, 1))
        block_p = min(power_of_2(-(-ow // cols)), max(elements // block_c, 1))
    else:  # Planes stand apart, whichever sample they belong to.
        samples, channels = 1, samples * channels
        stride_p, strides = 1, (h * w, oh * ow)
        block_p = min(power_of_2(-(-ow // cols)), elements)
        block_c = min(power_of_2(channels), elements // block_p)
    tiles_c, tiles_w = -(-channels // block_c), -(-ow // (cols * block_p))
    rows = min(rows, max(power_of_2(oh), call.up))
    while rows > call.up and samples * tiles_c * tiles_w * -(-oh // rows) < PROGRAMS:
        rows = max(rows // 2 // call.up, 1) * call.up
    tiles_h = -(-oh // rows)
    lead_y, lead_x = (-(-before // call.up) for before in call.before)
    taps_y, taps_x = _first_tap_one(call.taps_y, call.taps_x)
    constants = {
        "TAPS_Y": taps_y, "TAPS_X": taps_x, "UP": call.up, "DOWN": call.down,
        "PHASE_Y": -call.before[0] % call.up, "PHASE_X": -call.before[1] % call.up,
        "ACC": tl.float64 if dtype is torch.float64 else tl.float32,
        "STRIDE_P": stride_p, "ROWS": rows, "COLS": cols, "AHEAD": ahead, "BLOCK_P": block_p, "BLOCK_C": block_c,
        "num_warps": warps, "maxnreg": registers,
    }  # fmt: skip
    sizes = (channels, h, w, oh, ow, *strides, lead_y, lead_x, tiles_c, tiles_w, tiles_h)
    return _Cover((samples * tiles_c * tiles_w * tiles_h,), sizes, constants, {})


def _first_tap_one(taps_y: tuple[float, ...], taps_x: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    """Return the same product with 1 for the first of taps_x. It saves a multiplication for each pixel of each row."""
    first = taps_x[0]
    if abs(first) < max(map(abs, taps_x)) / 16 or first == 0:
        return taps_y, taps_x
    return tuple(t * first for t in taps_y), tuple(t / first for t in taps_x)


# ---- autograd ----------------------------------------------------------------------------------------------------


def forward(x: Tensor, call: _Call, add: Tensor | None = None) -> Tensor:
    """Compute y, plus `add` if it is given, for tensors that are dense in the call's format."""
    y = new_image(x, x.shape[1], call.out, call.nhwc, x.dtype)
    if y.numel():
        cover = _cover(x.shape, call, x.dtype, x.device)
        launch_known(
            cover.launches, (), upfirdn2d_kernel, (x, y, add),
            lambda: (cover.grid, cover.arguments, cover.constants),
        )  # fmt: skip
    return y


def run_call(x: Tensor, call: _Call) -> Tensor:
    """Compute y for a dense x."""
    return _Upfirdn2d.apply(x, call) if is_recorded(x) else forward(x, call)


_adjoint = lru_cache(maxsize=4096)(_Call.adjoint)


class _Upfirdn2d(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, call):
        ctx.call = call
        ctx.set_materialize_grads(False)
        return forward(x, call)

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return None, None
        return _Upfirdn2d.apply(dense_as(g, ctx.call.nhwc), _adjoint(ctx.call)), None


# ---- the operator for torch.compile --------------------------------------------------------------------------------


@operator(
    "upfirdn2d",
    "(Tensor x, float[] taps_y, float[] taps_x, SymInt up, SymInt down, SymInt[] before, SymInt[] size, "
    "SymInt[] out, bool nhwc) -> Tensor",
)
def upfirdn2d_operator(x, taps_y, taps_x, up, down, before, size, out, nhwc):
    """Apply the map that `_Call` writes down. Taps are part of the kernel, so each set of them is compiled once."""
    # Tuples, because a call is the key of a cache.
    call = _Call(tuple(taps_y), tuple(taps_x), up, down, tuple(before), tuple(size), tuple(out), nhwc)
    return forward(x, call)


@upfirdn2d_operator.register_fake
def _(x, taps_y, taps_x, up, down, before, size, out, nhwc):
    return torch.empty(
        (*x.shape[:2], *out),
        dtype=x.dtype,
        device=x.device,
        memory_format=torch.channels_last if nhwc else torch.contiguous_format,
    )


def _upfirdn2d_context(ctx, inputs, output):
    ctx.call = _Call(*inputs[1:])


def _upfirdn2d_gradient(ctx, g):
    g = dense_as(g, ctx.call.nhwc)
    return OPERATORS.upfirdn2d(g, *ctx.call.adjoint()), *(None,) * len(ctx.call)


upfirdn2d_operator.register_autograd(_upfirdn2d_gradient, setup_context=_upfirdn2d_context)
