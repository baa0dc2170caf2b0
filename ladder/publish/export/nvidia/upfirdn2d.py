"""Upsampling, padding, filtering and downsampling in one pass, as a drop-in for NVIDIA's `upfirdn2d`.

A filter is a tensor. The fused op wants numbers, so a filter's values are read once and kept for as long as the tensor
lives unchanged. They are never read inside the capture of a CUDA graph, where a copy to the host is impossible.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.common.tiles import dense
from kernels.dispatch import can_run_fused
from kernels.linear import conv2d as _ops
from kernels.upfirdn.upfirdn2d import _plan
from ladder.publish.export.nvidia import prepared_filter
from ladder.publish.export.nvidia.calls import can_run, is_capturing, say_once, without_autocast
from ladder.publish.export.nvidia.launches import remember

LONGEST = 8  # taps of the fused op
# The largest relative error of taps for which they stand for a filter: rounding of FP32, or of float64.
ROUNDING, EXACT = 1e-6, 1e-13

Pair = int | Sequence[int]  # one number, or (x, y)
Padding = int | Sequence[int]  # one number, (x, y), or (left, right, top, bottom)


class _Taps(NamedTuple):
    """One filter for both dimensions: f[y, x] = gain * taps[y] * taps[x], up to a relative error."""

    taps: tuple[float, ...]
    gain: float
    error: float


_Prepared = dict[Hashable, prepared_filter.Filtering]  # by the image's shape and the arguments of a call


class _Known(NamedTuple):
    filter: weakref.ref[Tensor]
    version: int
    found: _Taps | str  # or why there are none
    prepared: _Prepared


_known: dict[int, _Known] = {}  # by the tensor's id
_unfiltered: _Prepared = {}  # the calls without a filter


def _init() -> bool:
    """Return whether the fused op can run on this machine's GPU. Nothing is built: Triton compiles at first use."""
    return torch.cuda.is_available() and can_run_fused(torch.empty(0, device="cuda"))


def setup_filter(
    f: Any,
    device: torch.device | str = "cpu",
    normalize: bool = True,
    flip_filter: bool = False,
    gain: float = 1,
    separable: bool | None = None,
) -> Tensor:
    """Return a FP32 filter for `upfirdn2d`: [height, width], or [taps] where it stays separable.

    Args:
        f: numbers of such a shape, one number, or None for the identity.
        normalize: divide by the sum, so that a constant image keeps its value.
        gain: factor on the result of the whole filter.
        separable: whether to keep one dimension; by default 8 taps and more do.
    """
    made = torch.as_tensor(1 if f is None else f, dtype=torch.float32)
    if made.dim() > 2 or not made.numel():
        raise ValueError(f"a filter has up to two dimensions and a number, got shape {list(made.shape)}")
    made = made.reshape(1) if made.dim() == 0 else made
    if separable is None:
        separable = made.dim() == 1 and made.numel() >= 8
    if separable and made.dim() == 2:
        raise ValueError(f"a filter of shape {list(made.shape)} is not separable: give its taps")
    if made.dim() == 1 and not separable:
        made = torch.outer(made, made)
    if normalize:
        made = made / made.sum()
    if flip_filter:
        made = made.flip(tuple(range(made.dim())))
    return (made * gain ** (made.dim() / 2)).to(device)


def upfirdn2d(
    x: Tensor,
    f: Tensor | None,
    up: Pair = 1,
    down: Pair = 1,
    padding: Padding = 0,
    flip_filter: bool = False,
    gain: float = 1,
    impl: str = "cuda",
) -> Tensor:
    """Insert zeros (up), pad, filter, and keep every down-th pixel of x [N, C, H, W]. Differentiable to any order.

    Args:
        f: a filter of `setup_filter`, or None for the identity.
        up, down: one factor, or (x, y).
        padding: pixels around the upsampled image. Negative numbers crop.
        flip_filter: False convolves, True correlates.
        gain: factor on the result.
        impl: "ref" for plain PyTorch; "cuda" for the fused op where it can run.

    Returns [N, C, H', W'] in x's dtype.
    """
    if type(padding) is list:
        padding = tuple(padding)
    sizes = (up, down, padding, flip_filter, gain, impl)
    if torch.compiler.is_compiling():
        return _checked(x, f, sizes, None)
    prepared, key = _prepared_for(f), (x.shape, x.stride(), x.dtype, x.device, *sizes)
    try:
        known = ({} if prepared is None else prepared).get(key)
    except TypeError:  # a list among the sizes
        return _checked(x, f, sizes, None)
    return _checked(x, f, sizes, key) if known is None else prepared_filter.run(known, x)


def _checked(x: Tensor, f: Tensor | None, sizes: tuple[Any, ...], key: Hashable) -> Tensor:
    """Check the arguments and compute `upfirdn2d`. A fused call keeps what it prepares under this key."""
    given, (up, down, padding, flip_filter, gain, impl) = x, sizes
    if impl not in ("ref", "cuda"):
        raise ValueError(f'impl must be "ref" or "cuda", got {impl!r}')
    if x.dim() != 4 or not x.is_floating_point():
        raise ValueError(f"x must be a float tensor [N, C, H, W], got {x.dtype} {list(x.shape)}")
    if f is not None and (f.dim() not in (1, 2) or f.dtype is not torch.float32 or f.requires_grad):
        raise ValueError("f must be a float32 tensor of one or two dimensions that needs no gradient")
    ups, downs, sides = _parse_scaling(up), _parse_scaling(down), _parse_padding(padding)
    width, height = _get_filter_size(f)
    wide, high = x.shape[3] * ups[0] + sum(sides[:2]), x.shape[2] * ups[1] + sum(sides[2:])
    if wide < width or high < height:
        raise ValueError(
            f"a filter of {width}x{height} does not fit into {wide}x{high} pixels (width x height)"
        )
    with without_autocast(x):
        if impl == "cuda" and x.numel() and not torch.compiler.is_compiling() and can_run("upfirdn2d", x):
            found = _served(f, ups, downs, EXACT if x.dtype is torch.float64 else ROUNDING)
            if isinstance(found, _Taps):
                x, options = dense(x), {"padding": sides, "gain": gain * found.gain, "flip": flip_filter}
                call = _plan(x, found.taps, up=ups[0], down=downs[0], **options)
                call = call._replace(nhwc=not x.is_contiguous())
                made = prepared_filter.Filtering(call, x.shape, x.dtype, x.device)
                prepared = _prepared_for(f)
                if key and prepared is not None and x is given and isinstance(gain, int | float):
                    remember(prepared, key, made)
                return prepared_filter.run(made, x)
            say_once("upfirdn2d", found)
        return _plain(x, f, ups, downs, sides, flip_filter, gain)


def filter2d(
    x: Tensor, f: Tensor | None, padding: Padding = 0, flip_filter: bool = False, gain: float = 1, impl: str = "cuda"
) -> Tensor:  # fmt: skip
    """Filter x [N, C, H, W] and keep its size. `padding` is added to the result's edges, or crops them."""
    left, right, top, bottom = _parse_padding(padding)
    width, height = _get_filter_size(f)
    sides = (left + width // 2, right + (width - 1) // 2, top + height // 2, bottom + (height - 1) // 2)
    return upfirdn2d(x, f, padding=sides, flip_filter=flip_filter, gain=gain, impl=impl)


def upsample2d(
    x: Tensor,
    f: Tensor | None,
    up: Pair = 2,
    padding: Padding = 0,
    flip_filter: bool = False,
    gain: float = 1,
    impl: str = "cuda",
) -> Tensor:
    """Return x [N, C, H, W] with `up` times as many rows and columns, filtered. Values keep their size."""
    x_up, y_up = _parse_scaling(up)
    left, right, top, bottom = _parse_padding(padding)
    width, height = _get_filter_size(f)
    sides = (
        *(left + (width + x_up - 1) // 2, right + (width - x_up) // 2),
        *(top + (height + y_up - 1) // 2, bottom + (height - y_up) // 2),
    )
    return upfirdn2d(x, f, up=up, padding=sides, flip_filter=flip_filter, gain=gain * x_up * y_up, impl=impl)


def downsample2d(
    x: Tensor,
    f: Tensor | None,
    down: Pair = 2,
    padding: Padding = 0,
    flip_filter: bool = False,
    gain: float = 1,
    impl: str = "cuda",
) -> Tensor:
    """Filter x [N, C, H, W] and keep every `down`-th row and column."""
    x_down, y_down = _parse_scaling(down)
    left, right, top, bottom = _parse_padding(padding)
    width, height = _get_filter_size(f)
    sides = (
        *(left + (width - x_down + 1) // 2, right + (width - x_down) // 2),
        *(top + (height - y_down + 1) // 2, bottom + (height - y_down) // 2),
    )
    return upfirdn2d(x, f, down=down, padding=sides, flip_filter=flip_filter, gain=gain, impl=impl)


# ---- arguments ---------------------------------------------------------------------------------------------------


def _parse_scaling(scaling: Pair) -> tuple[int, int]:
    """Return (x, y) of a factor."""
    pair = (scaling, scaling) if isinstance(scaling, int) else tuple(scaling)
    if len(pair) != 2 or not all(isinstance(each, int) and each >= 1 for each in pair):
        raise ValueError(f"a factor is a whole number above 0, or two of them, got {scaling!r}")
    return pair[0], pair[1]


def _parse_padding(padding: Padding) -> tuple[int, int, int, int]:
    """Return (left, right, top, bottom) of a padding."""
    sides = (padding, padding) if isinstance(padding, int) else tuple(padding)
    if len(sides) == 2:
        sides = (sides[0], sides[0], sides[1], sides[1])
    if len(sides) != 4 or not all(isinstance(each, int) for each in sides):
        raise ValueError(f"padding is 1, 2 or 4 whole numbers, got {padding!r}")
    return sides[0], sides[1], sides[2], sides[3]


def _get_filter_size(f: Tensor | None) -> tuple[int, int]:
    """Return (width, height) of a filter."""
    return (1, 1) if f is None else (int(f.shape[-1]), int(f.shape[0]))


# ---- the taps of a filter ----------------------------------------------------------------------------------------


def _served(f: Tensor | None, up: tuple[int, int], down: tuple[int, int], bound: float) -> _Taps | str:
    """Return the taps with which the fused op computes this call, or in a few words why it cannot."""
    for name, (along_x, along_y) in (("up", up), ("down", down)):
        if along_x != along_y or along_x > 2:
            return f"{name} by ({along_x}, {along_y})"
    if f is None:
        return _Taps((1.0,), 1.0, 0.0)
    if max(f.shape) > LONGEST:
        return f"a filter of {max(f.shape)} taps"
    found = _values_of(f)
    if isinstance(found, _Taps) and found.error > bound:
        return "a filter that is one row times itself only in FP32, on a float64 image"
    return found


def _values_of(f: Tensor) -> _Taps | str:
    """Return the taps of a filter, from what is known of this very tensor in this state if possible."""
    known = _known_of(f)
    if known:
        return known.found
    if is_capturing():
        return "a filter that is seen first inside the capture of a CUDA graph"
    found = _factorized(f.detach().cpu().tolist())
    if not f.is_inference():  # an inference tensor counts no versions
        at = id(f)

        def forget(gone: weakref.ref[Tensor]) -> None:
            if at in _known and _known[at].filter is gone:
                del _known[at]

        _known[at] = _Known(weakref.ref(f, forget), f._version, found, {})
    return found


def _known_of(f: Tensor) -> _Known | None:
    """Return what is known of this tensor in this state."""
    known = _known.get(id(f))
    return known if known and known.filter() is f and known.version == f._version else None


def _prepared_for(f: Tensor | None) -> _Prepared | None:
    """Return the prepared calls with this filter, or None where nothing is known of it."""
    if f is None:
        return _unfiltered
    known = _known_of(f)
    return known.prepared if known else None


def _factorized(values: list[Any]) -> _Taps | str:
    """Return the taps of a filter that is given as a row, or as a matrix of rank one."""
    if not isinstance(values[0], list):
        return _Taps(tuple(values), 1.0, 0.0)
    size = max(abs(value) for row in values for value in row)
    if size == 0:
        return _Taps((0.0,) * len(values), 0.0, 0.0) if len(values) == len(values[0]) else "a filter of zeros"
    # The largest value stands where the column and the row that make the matrix are largest.
    at, along = next(
        (y, x) for y, row in enumerate(values) for x, value in enumerate(row) if abs(value) == size
    )
    column, row = [each[along] for each in values], [each / values[at][along] for each in values[at]]
    if _error(values, column, row) > ROUNDING * size:
        return f"a {len(values)}x{len(row)} filter of rank above 1"
    if len(column) == len(row):
        peak = max(range(len(row)), key=lambda n: abs(values[n][n]))
        taps = [each / values[peak][peak] for each in values[peak]] if values[peak][peak] else row
        error = _error(values, [values[peak][peak] * each for each in taps], taps) / size
        if error <= ROUNDING:
            return _Taps(tuple(taps), values[peak][peak], error)
    return "a filter with other taps along x than along y"


def _error(values: list[list[float]], column: list[float], row: list[float]) -> float:
    return max(abs(values[y][x] - a * b) for y, a in enumerate(column) for x, b in enumerate(row))


# ---- plain PyTorch -----------------------------------------------------------------------------------------------


def _plain(
    x: Tensor,
    f: Tensor | None,
    up: tuple[int, int],
    down: tuple[int, int],
    sides: tuple[int, int, int, int],
    flip: bool,
    gain: float,
) -> Tensor:
    """Compute `upfirdn2d` by a convolution of each channel, whose gradients are convolutions, too."""
    samples, channels, height, width = x.shape
    nhwc = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    if up != (1, 1):
        x = F.pad(x[:, :, :, None, :, None], (0, up[0] - 1, 0, 0, 0, up[1] - 1))
        x = x.reshape(samples, channels, height * up[1], width * up[0])
    x = F.pad(x, sides) if any(sides) else x
    f = torch.ones(1, 1, device=x.device) if f is None else f.to(x.device)
    f = f if flip else f.flip(tuple(range(f.dim())))
    passes = (
        [(f * gain, down[1], down[0])]
        if f.dim() == 2
        else [(f[None], 1, down[0]), (f[:, None] * gain, down[1], 1)]
    )
    for kernel, *stride in passes:
        weight = kernel.to(x.dtype).repeat(channels, 1, 1, 1)
        x = _convolved(x, weight, stride)
    return x.contiguous(memory_format=torch.channels_last) if nhwc else x


def _convolved(x: Tensor, weight: Tensor, stride: list[int]) -> Tensor:
    if torch.compiler.is_compiling() or not x.numel():
        return F.conv2d(x, weight, stride=stride, groups=len(weight))
    y: Tensor = _ops.conv2d(x, weight, stride=(stride[0], stride[1]), groups=len(weight))
    return y
