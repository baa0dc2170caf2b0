"""Upsampling, padding, filtering and downsampling in one pass, as a drop-in for NVIDIA's `upfirdn2d`.

A filter is a tensor. The fused op wants numbers, so a filter's values are read once and kept for as long as the tensor
lives unchanged. They are never read inside the capture of a CUDA graph, where a copy to the host is impossible.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.common.arguments import remember
from kernels.common.tiles import dense, without_autocast
from kernels.upfirdn.upfirdn2d import _Call, _plan, run_call
from ladder.publish.export.nvidia.shared import MOST, can_run, is_capturing, warn_once
from ladder.publish.export.nvidia.shared import _init as _init

LONGEST = 8  # taps of the fused op
# The largest relative error of taps for which they stand for a filter: rounding of FP32, or of float64.
ROUNDING, EXACT = 1e-6, 1e-13

Pair = int | Sequence[int]  # one number, or (x, y)
Padding = int | Sequence[int]  # one number, (x, y), or (left, right, top, bottom)
Sides = tuple[int, int, int, int]


class _Taps(NamedTuple):
    """One filter for both dimensions: f[y, x] = gain * taps[y] * taps[x], up to a relative error."""

    taps: tuple[float, ...]
    gain: float
    error: float


class _Known(NamedTuple):
    """What is known of a filter in one state of its tensor."""

    filter: Callable[[], Tensor | None]
    version: int
    taps: _Taps | str  # or why there are none
    calls: dict[Hashable, _Call]  # by the image's shape and the arguments of a call


_known: dict[int, _Known] = {}  # by the tensor's id
_no_filter = _Known(lambda: None, 0, _Taps((1.0,), 1.0, 0.0), {})


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
    result = torch.as_tensor(1 if f is None else f, dtype=torch.float32)
    if result.dim() > 2 or not result.numel():
        raise ValueError(f"a filter has up to two dimensions and a number, got shape {list(result.shape)}")
    result = result.reshape(1) if result.dim() == 0 else result
    if separable is None:
        separable = result.dim() == 1 and result.numel() >= 8
    if separable and result.dim() == 2:
        raise ValueError(f"a filter of shape {list(result.shape)} is not separable: give its taps")
    if result.dim() == 1 and not separable:
        result = torch.outer(result, result)
    if normalize:
        result = result / result.sum()
    if flip_filter:
        result = result.flip(tuple(range(result.dim())))
    return (result * gain ** (result.dim() / 2)).to(device)


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
    key, is_compiling = None, torch.compiler.is_compiling()
    if not is_compiling:
        if list in (type(up), type(down), type(padding)):  # a list has no hash
            up, down, padding = (tuple(e) if isinstance(e, list) else e for e in (up, down, padding))
        key = (x.shape, x.stride(), x.dtype, x.device, up, down, padding, flip_filter, gain, impl)
        known = _find_known(f)
        call = None if known is None else known.calls.get(key)
        if call is not None:
            return run_call(x, call)
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
        if impl == "cuda" and x.numel() and not is_compiling and can_run("upfirdn2d", x):
            served = _serve(f, ups, downs, EXACT if x.dtype is torch.float64 else ROUNDING)
            if isinstance(served, _Known) and isinstance(served.taps, _Taps):
                image, taps = dense(x), served.taps
                options = {"padding": sides, "gain": gain * taps.gain, "flip": flip_filter}
                call = _plan(image, taps.taps, up=ups[0], down=downs[0], **options)
                call = call._replace(nhwc=not image.is_contiguous())
                if image is x and isinstance(gain, int | float):
                    remember(served.calls, key, call, MOST)
                return run_call(image, call)
            warn_once("upfirdn2d", str(served))
        return _compute(x, f, ups, downs, sides, flip_filter, gain)


def filter2d(
    x: Tensor, f: Tensor | None, padding: Padding = 0, flip_filter: bool = False, gain: float = 1, impl: str = "cuda"
) -> Tensor:  # fmt: skip
    """Filter x [N, C, H, W] and keep its size. `padding` is added to the result's edges, or crops them."""
    sides = _add_rims(padding, f, up=(1, 1))
    return upfirdn2d(x, f, padding=sides, flip_filter=flip_filter, gain=gain, impl=impl)


def upsample2d(
    x: Tensor, f: Tensor | None, up: Pair = 2, padding: Padding = 0, flip_filter: bool = False, gain: float = 1,
    impl: str = "cuda",
) -> Tensor:  # fmt: skip
    """Return x [N, C, H, W] with `up` times as many rows and columns, filtered. Values keep their size."""
    ups = _parse_scaling(up)
    sides, gain = _add_rims(padding, f, up=ups), gain * ups[0] * ups[1]
    return upfirdn2d(x, f, up=ups, padding=sides, flip_filter=flip_filter, gain=gain, impl=impl)


def downsample2d(
    x: Tensor, f: Tensor | None, down: Pair = 2, padding: Padding = 0, flip_filter: bool = False, gain: float = 1,
    impl: str = "cuda",
) -> Tensor:  # fmt: skip
    """Filter x [N, C, H, W] and keep every `down`-th row and column."""
    downs = _parse_scaling(down)
    sides = _add_rims(padding, f, down=downs)
    return upfirdn2d(x, f, down=downs, padding=sides, flip_filter=flip_filter, gain=gain, impl=impl)


# ---- arguments ---------------------------------------------------------------------------------------------------


def _parse_scaling(scaling: Pair) -> tuple[int, int]:
    """Return (x, y) of a factor."""
    pair = (scaling, scaling) if isinstance(scaling, int) else tuple(scaling)
    if len(pair) != 2 or not all(isinstance(each, int) and each >= 1 for each in pair):
        raise ValueError(f"a factor is a whole number above 0, or two of them, got {scaling!r}")
    return pair[0], pair[1]


def _parse_padding(padding: Padding) -> Sides:
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


def _add_rims(
    padding: Padding, f: Tensor | None, up: tuple[int, int] | None = None, down: tuple[int, int] | None = None
) -> Sides:
    """Return the padding with the rims that a filter consumes before and after resampling by (x, y)."""
    sides = [*_parse_padding(padding)]
    for axis, taps in enumerate(_get_filter_size(f)):
        if up:
            sides[2 * axis] += (taps + up[axis] - 1) // 2
            sides[2 * axis + 1] += (taps - up[axis]) // 2
        if down:
            sides[2 * axis] += (taps - down[axis] + 1) // 2
            sides[2 * axis + 1] += (taps - down[axis]) // 2
    return sides[0], sides[1], sides[2], sides[3]


# ---- the taps of a filter ----------------------------------------------------------------------------------------


def _find_known(f: Tensor | None) -> _Known | None:
    """Return what is known of this very tensor in this state."""
    if f is None:
        return _no_filter
    known = _known.get(id(f))
    return known if known and known.filter() is f and known.version == f._version else None


def _serve(f: Tensor | None, up: tuple[int, int], down: tuple[int, int], bound: float) -> _Known | str:
    """Return the filter with the taps by which the fused op computes this call, or in a few words why it cannot."""
    for name, (along_x, along_y) in (("up", up), ("down", down)):
        if along_x != along_y or along_x > 2:
            return f"{name} by ({along_x}, {along_y})"
    known = _find_known(f)
    if known is None:
        assert f is not None
        if max(f.shape) > LONGEST:
            return f"a filter of {max(f.shape)} taps"
        if is_capturing():
            return "a filter that is seen first inside the capture of a CUDA graph"
        at, version = id(f), 0 if f.is_inference() else f._version
        known = _Known(weakref.ref(f, lambda _: _known.pop(at, None)), version, _factorize(f), {})
        if not f.is_inference():  # an inference tensor counts no versions
            _known[at] = known
    if isinstance(known.taps, str):
        return known.taps
    if known.taps.error > bound:
        return "a filter that is one row times itself only in FP32, on a float64 image"
    return known


def _factorize(f: Tensor) -> _Taps | str:
    """Return the taps of a filter that is a row, or a matrix of rank one."""
    values = f.detach().cpu().double()
    if values.dim() == 1:
        return _Taps(tuple(values.tolist()), 1.0, 0.0)
    (height, width), size = values.shape, float(values.abs().max())
    if size == 0:
        return _Taps((0.0,) * width, 0.0, 0.0) if height == width else "a filter of zeros"
    # The largest value stands where the column and the row that make the matrix are largest.
    y, x = divmod(values.abs().flatten().tolist().index(size), width)
    row = values[y] / values[y, x]
    if float((values - torch.outer(values[:, x], row)).abs().max()) > ROUNDING * size:
        return f"a {height}x{width} filter of rank above 1"
    if height == width:
        diagonal = values.diagonal().tolist()
        gain = max(diagonal, key=abs)
        taps = values[diagonal.index(gain)] / gain if gain else row
        error = float((values - gain * torch.outer(taps, taps)).abs().max()) / size
        if error <= ROUNDING:
            return _Taps(tuple(taps.tolist()), gain, error)
    return "a filter with other taps along x than along y"


def _compute(
    x: Tensor, f: Tensor | None, up: tuple[int, int], down: tuple[int, int], sides: Sides, flip: bool, gain: float
) -> Tensor:  # fmt: skip
    """Compute `upfirdn2d` by a convolution of each channel."""
    samples, channels, height, width = x.shape
    nhwc = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    if up != (1, 1):
        x = F.pad(x[:, :, :, None, :, None], (0, up[0] - 1, 0, 0, 0, up[1] - 1))
        x = x.reshape(samples, channels, height * up[1], width * up[0])
    x = F.pad(x, sides) if any(sides) else x
    f = torch.ones(1, 1, device=x.device) if f is None else f.to(x.device)
    f = f if flip else f.flip(tuple(range(f.dim())))
    passes = [(f * gain, down[1], down[0])]
    if f.dim() == 1:
        passes = [(f[None], 1, down[0]), (f[:, None] * gain, down[1], 1)]
    for kernel, *stride in passes:
        weight = kernel.to(x.dtype).repeat(channels, 1, 1, 1)
        x = F.conv2d(x, weight, stride=stride, groups=channels)
    return x.contiguous(memory_format=torch.channels_last) if nhwc else x
