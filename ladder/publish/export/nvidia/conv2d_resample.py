"""A convolution with up- or downsampling, as a drop-in for NVIDIA's `conv2d_resample`.

The result is that of four steps: insert zeros and filter (up), pad, convolve, filter and keep every n-th pixel (down).
All are linear and blind to position, so cheaper orders give the same. A 1x1 kernel works on the smaller image. Strides
of the convolution itself insert zeros or skip pixels.
"""

from __future__ import annotations

from torch import Tensor

from ladder.publish.export.nvidia import conv2d_gradfix, upfirdn2d


def conv2d_resample(
    x: Tensor,
    w: Tensor,
    f: Tensor | None = None,
    up: int = 1,
    down: int = 1,
    padding: upfirdn2d.Padding = 0,
    groups: int = 1,
    flip_weight: bool = True,
    flip_filter: bool = False,
) -> Tensor:
    """Convolve x [N, I, H, W] with w [O, I / groups, height, width], upsampled before or downsampled after.

    Args:
        f: a filter of `upfirdn2d.setup_filter`, or None for the identity.
        up, down: whole factors.
        padding: pixels around the upsampled image: one number, (x, y), or (left, right, top, bottom).
        flip_weight: True correlates as PyTorch does, False convolves.
        flip_filter: False convolves, True correlates.
    """
    if x.dim() != 4 or w.dim() != 4 or x.dtype is not w.dtype:
        raise ValueError(
            f"x and w need four dimensions and one dtype, got {x.dtype} {list(x.shape)}, {w.dtype} {list(w.shape)}"
        )
    for name, factor in (("up", up), ("down", down), ("groups", groups)):
        if not isinstance(factor, int) or factor < 1:
            raise ValueError(f"{name} must be a whole number above 0, got {factor!r}")
    ups, downs = ((factor, factor) if factor > 1 else None for factor in (up, down))
    left, right, top, bottom = sides = upfirdn2d._add_rims(padding, f, ups, downs)
    outputs, inputs, height, width = w.shape
    is_small = (height, width) == (1, 1)
    if up > 1 and not (is_small and down == 1):
        # One transposed convolution slides its kernel over every pixel of the image with zeros inserted. It leaves out
        # `up` - 1 zeros at the end. The filter's padding crops what lies beyond, as far as the convolution cannot.
        if groups == 1:
            w = w.transpose(0, 1)
        else:
            w = w.reshape(groups, outputs // groups, inputs, height, width).transpose(1, 2)
            w = w.reshape(groups * inputs, outputs // groups, height, width)
        w = w.flip((2, 3)) if flip_weight and not is_small else w
        left, right = left - (width - 1), right - (width - up)
        top, bottom = top - (height - 1), bottom - (height - up)
        cut_y, cut_x = max(0, min(-top, -bottom)), max(0, min(-left, -right))
        x = conv2d_gradfix.conv_transpose2d(x, w, stride=up, padding=(cut_y, cut_x), groups=groups)
        rest = (left + cut_x, right + cut_x, top + cut_y, bottom + cut_y)
        x = upfirdn2d.upfirdn2d(x, f, padding=rest, gain=up**2, flip_filter=flip_filter)
        return upfirdn2d.upfirdn2d(x, f, down=down, flip_filter=flip_filter) if down > 1 else x
    w = w if flip_weight or is_small else w.flip((2, 3))
    if up > 1:
        x = conv2d_gradfix.conv2d(x, w, groups=groups)
        return upfirdn2d.upfirdn2d(x, f, up=up, padding=sides, gain=up**2, flip_filter=flip_filter)
    if down > 1:
        before = down if is_small else 1
        x = upfirdn2d.upfirdn2d(x, f, down=before, padding=sides, flip_filter=flip_filter)
        return conv2d_gradfix.conv2d(x, w, stride=down // before, groups=groups)
    if left == right >= 0 and top == bottom >= 0:
        return conv2d_gradfix.conv2d(x, w, padding=(top, left), groups=groups)
    return conv2d_gradfix.conv2d(upfirdn2d.upfirdn2d(x, None, padding=sides), w, groups=groups)
