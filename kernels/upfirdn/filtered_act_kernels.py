"""The kernels of `filtered_act`: one walk down a strip of rows, as in `upfirdn2d`, with work at either of its ends.

Pixels may be worked on as they are loaded (LOADED), and filtered values before they are stored (STORED):

- "act": leaky_relu of an affine map of the value;
- "grad": the value times leaky_relu's slope at a reference pixel, which is loaded beside it;
- otherwise: no work.

Every thread loads a pixel that its outputs need. So work at the loads is repeated, `(COLS + taps - 1) / COLS` times
along a row. The map leaky_relu is homogeneous. So the activation's gain is in the taps, or in the added operands.
"""

from ..common.dependent_launch import after_previous
from ..common.tiles import load, tl, triton, widen, within
from .filter_strip import leaky, leaky_grad, nonzero, store_sums, strip
from .upfirdn2d import polyphase

# ---- the walk ----------------------------------------------------------------------------------------------------


@triton.jit
def walk(
    x, ref, y, bias, added, noise, strength, scale, style, sums,
    C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h,
    LOADED: tl.constexpr, STORED: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr, PLANES: tl.constexpr,
    STRIDE_P: tl.constexpr, TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, BEFORE_Y: tl.constexpr, BEFORE_X: tl.constexpr,
    ACC: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Compute y [OH, OW] of x [H, W], padded by BEFORE. ref lies as x (LOADED "grad") or as y (STORED "grad").

    In NCHW memory (PLANES) C counts the planes of all samples. Pointers that are None drop out. STORED "grad" has one
    sum, of the stored values. LOADED "grad" has three: of the loaded values' gradient du, of du * noise, and of x *
    ref. A sum covers this program's own pixels.
    """
    pid = tl.program_id(0)
    c = (pid % tiles_c) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    out_col = ((pid // tiles_c % tiles_w) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]) * COLS
    out_row = (pid // tiles_c // tiles_w % tiles_h) * ROWS
    n = (pid // tiles_c // tiles_w // tiles_h).to(tl.int64)
    col = out_col - BEFORE_X
    row = out_row - BEFORE_Y
    from_x = n * C * H * W + (col.to(tl.int64) * STRIDE_P + c.to(tl.int64) * stride_xc)
    to_y = n * C * OH * OW + (out_col.to(tl.int64) * STRIDE_P + c.to(tl.int64) * stride_yc)

    there = c < C
    channel = c % channels if PLANES else c
    b = load(bias + channel, there, False, ACC) if bias is not None else None
    kink = -b if b is not None else None
    more = load(added + channel, there, False, ACC) if added is not None else None
    s = load(scale + n * C + c, there, False, ACC) if scale is not None else None
    k = tl.load(strength).to(ACC) if strength is not None else None
    t = nonzero(load(style + n * C + c, there, False, ACC), LEAST) if style is not None else None
    if (LOADED == "grad") & (style is not None):
        sign = tl.where(t > 0, 1.0, -1.0).to(ACC)  # t * ref has the activation's sign
        s = s * t if s is not None else t
    if noise is not None:
        noise += (c // channels if PLANES else n).to(tl.int64) * noise_stride
    if STORED == "act":
        b = b * GAIN if b is not None else None
        k = k * GAIN if k is not None else None
    sum_du = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_du_noise = tl.zeros([BLOCK_P, BLOCK_C], ACC)
    sum_x_ref = tl.zeros([BLOCK_P, BLOCK_C], ACC)

    LOADS: tl.constexpr = COLS - 1 + len(TAPS_X)  # pixels of x that a thread loads in a row
    LAST: tl.constexpr = len(TAPS_Y) - 1
    LINES: tl.constexpr = ROWS + LAST
    inside = ()
    for d in tl.static_range(LOADS):
        inside += (there & (col + d >= 0) & (col + d < W),)
    loaded, beside = (), ()  # LOADS tiles for each row so far, as they are in memory
    stored_with = ()  # COLS tiles for each row of y so far: the reference, or the noise
    filtered = ()  # COLS tiles for each row so far, filtered along the row
    for i in tl.static_range(LINES + AHEAD):
        if i < LINES:
            at = from_x + (row + i).to(tl.int64) * W * STRIDE_P
            line_x = x + at
            if LOADED == "grad":
                line_ref = ref + at
            for d in tl.static_range(LOADS):
                mask = inside[d] & within(row + i, H)
                loaded += (tl.load(line_x + d * STRIDE_P, mask, 0.0),)
                if LOADED == "grad":
                    beside += (tl.load(line_ref + d * STRIDE_P, mask, 0.0),)
        if (i >= LAST) & (i < LINES):  # the line just loaded completes row i - LAST of y
            out = out_row + (i - LAST)
            at = to_y + out.to(tl.int64) * OW * STRIDE_P
            if STORED == "grad":
                line_ref = ref + at
            for j in tl.static_range(COLS):
                pixel_there = (out_col + j < OW) & (out < OH)
                if STORED == "grad":
                    stored_with += (tl.load(line_ref + j * STRIDE_P, there & pixel_there, 0.0),)
                if (STORED == "act") & (noise is not None):
                    pixel = out.to(tl.int64) * OW + (out_col + j)
                    stored_with += (
                        tl.load(noise + pixel, there & pixel_there if PLANES else pixel_there, 0.0),
                    )
        if i >= AHEAD:
            line = row + (i - AHEAD)
            values = ()
            for d in tl.static_range(LOADS):
                v = widen(loaded[(i - AHEAD) * LOADS + d], ACC)
                mask = inside[d] & within(line, H)
                if LOADED == "act":  # Padding is zero, not act(bias).
                    v = tl.where(mask, leaky(v + b if b is not None else v, SLOPE), 0.0)
                if LOADED == "grad":
                    u = widen(beside[(i - AHEAD) * LOADS + d], ACC)
                    if added is not None:
                        v = tl.where(mask, v + more, 0.0)
                    du = leaky_grad(v, u * sign if style is not None else u, kink, SLOPE)
                    if sums is not None:
                        if (
                            (i - AHEAD >= BEFORE_Y)
                            & (i - AHEAD < BEFORE_Y + ROWS)
                            & (d >= BEFORE_X)
                            & (d < BEFORE_X + COLS)
                        ):
                            sum_du += du
                            sum_x_ref += v * u
                            if noise is not None:
                                pixel = line.to(tl.int64) * W + (col + d)
                                wanted = mask if PLANES else (col + d < W) & (line < H)
                                sum_du_noise += du * tl.load(noise + pixel, wanted, 0.0).to(ACC)
                    v = du
                values += (v,)
            for j in tl.static_range(COLS):
                filtered += (polyphase(values, 0, 1, j, TAPS_X, 1, ACC),)
            if i - AHEAD >= LAST:
                out = out_row + (i - AHEAD - LAST)
                line_y = y + (to_y + out.to(tl.int64) * OW * STRIDE_P)
                for j in tl.static_range(COLS):
                    mask = there & (out_col + j < OW) & (out < OH)
                    v = polyphase(filtered, j, COLS, i - AHEAD - LAST, TAPS_Y, 1, ACC)
                    v = v * s if s is not None else v
                    if STORED == "act":
                        v = (
                            v + stored_with[(i - AHEAD - LAST) * COLS + j].to(ACC) * k
                            if noise is not None
                            else v
                        )
                        v = leaky(v + b if b is not None else v, SLOPE)
                        v = v * t if style is not None else v
                    if STORED == "grad":
                        u = widen(stored_with[(i - AHEAD - LAST) * COLS + j], ACC)
                        v = leaky_grad(v, u, kink, SLOPE)
                        if sums is not None:
                            sum_du += tl.where(mask, v, 0.0)
                    tl.store(line_y + j * STRIDE_P, v, mask)

    if sums is not None:
        store_sums(sums, sum_du, sum_du_noise, sum_x_ref, C, tiles_c, STORED, BLOCK_C)


@triton.jit
def walk_or_strip(
    x, ref, y, bias, added, noise, strength, scale, style, sums,
    C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
    LOADED: tl.constexpr, STORED: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr, PLANES: tl.constexpr,
    STRIDE_P: tl.constexpr, TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, BEFORE_Y: tl.constexpr, BEFORE_X: tl.constexpr,
    ACC: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr, STRIP: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Do the same work by `walk`, or where STRIP by `strip`, which takes `step` and `rows` as numbers."""
    if STRIP:
        strip(
            x, ref, y, bias, added, noise, strength, scale, style, sums,
            C, H, W, OH, OW, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
            LOADED, STORED, SLOPE, GAIN, TAPS_Y, TAPS_X, BEFORE_Y, BEFORE_X, BLOCK_P, BLOCK_C, LEAST,
        )  # fmt: skip
    else:
        walk(
            x, ref, y, bias, added, noise, strength, scale, style, sums,
            C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h,
            LOADED, STORED, SLOPE, GAIN, PLANES, STRIDE_P,
            TAPS_Y, TAPS_X, BEFORE_Y, BEFORE_X, ACC, ROWS, COLS, AHEAD, BLOCK_P, BLOCK_C, LEAST,
        )  # fmt: skip


# ---- kernels -----------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["step", "rows"])
def act_filter_kernel(
    x, y, bias,
    C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, PLANES: tl.constexpr, STRIDE_P: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, BEFORE_Y: tl.constexpr, BEFORE_X: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute y = filter(leaky_relu(x + bias))."""
    after_previous(DEPENDENT)
    walk_or_strip(
        x, None, y, bias, None, None, None, None, None, None,
        C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
        "act", None, SLOPE, GAIN, PLANES, STRIDE_P, TAPS_Y, TAPS_X, BEFORE_Y, BEFORE_X, ACC,
        ROWS, COLS, AHEAD, BLOCK_P, BLOCK_C, STRIP, 0.0,
    )  # fmt: skip


@triton.jit(do_not_specialize=["step", "rows"])
def act_filter_grad_kernel(
    g, x, dx, bias, sums,
    C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, PLANES: tl.constexpr, STRIDE_P: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, BEFORE_Y: tl.constexpr, BEFORE_X: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dx = slope at x + bias * filter(g), with the mirrored filter, and sums of dx."""
    after_previous(DEPENDENT)
    walk_or_strip(
        g, x, dx, bias, None, None, None, None, None, sums,
        C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
        None, "grad", SLOPE, GAIN, PLANES, STRIDE_P, TAPS_Y, TAPS_X, BEFORE_Y, BEFORE_X, ACC,
        ROWS, COLS, AHEAD, BLOCK_P, BLOCK_C, STRIP, 0.0,
    )  # fmt: skip


@triton.jit(do_not_specialize=["step", "rows"])
def act_filter_grad_grad_kernel(
    ddx, x, dg, bias, ddbias,
    C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, PLANES: tl.constexpr, STRIDE_P: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, BEFORE_Y: tl.constexpr, BEFORE_X: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dg = filter(slope at x + bias * (ddx + ddbias)): the forward pass, linearized at x."""
    after_previous(DEPENDENT)
    walk_or_strip(
        ddx, x, dg, bias, ddbias, None, None, None, None, None,
        C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
        "grad", None, SLOPE, GAIN, PLANES, STRIDE_P, TAPS_Y, TAPS_X, BEFORE_Y, BEFORE_X, ACC,
        ROWS, COLS, AHEAD, BLOCK_P, BLOCK_C, STRIP, 0.0,
    )  # fmt: skip


@triton.jit(do_not_specialize=["step", "rows"])
def filter_act_kernel(
    x, y, bias, noise, strength, scale,
    C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, PLANES: tl.constexpr, STRIDE_P: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, BEFORE_Y: tl.constexpr, BEFORE_X: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute y = leaky_relu(filter(x) * scale + noise * strength + bias)."""
    after_previous(DEPENDENT)
    walk_or_strip(
        x, None, y, bias, None, noise, strength, scale, None, None,
        C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
        None, "act", SLOPE, GAIN, PLANES, STRIDE_P, TAPS_Y, TAPS_X, BEFORE_Y, BEFORE_X, ACC,
        ROWS, COLS, AHEAD, BLOCK_P, BLOCK_C, STRIP, 0.0,
    )  # fmt: skip


@triton.jit(do_not_specialize=["step", "rows"])
def filter_act_grad_kernel(
    g, y, dx, noise, scale, sums,
    C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, PLANES: tl.constexpr, STRIDE_P: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, BEFORE_Y: tl.constexpr, BEFORE_X: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dx = filter(slope at y * g) * scale, with the mirrored filter. Sums of du = slope *
    g, du * noise and g * y.
    """
    after_previous(DEPENDENT)
    walk_or_strip(
        g, y, dx, None, None, noise, None, scale, None, sums,
        C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
        "grad", None, SLOPE, GAIN, PLANES, STRIDE_P, TAPS_Y, TAPS_X, BEFORE_Y, BEFORE_X, ACC,
        ROWS, COLS, AHEAD, BLOCK_P, BLOCK_C, STRIP, 0.0,
    )  # fmt: skip


@triton.jit(do_not_specialize=["step", "rows"])
def filter_act_modulate_kernel(
    x, y, bias, noise, strength, scale, style,
    C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, PLANES: tl.constexpr, STRIDE_P: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, BEFORE_Y: tl.constexpr, BEFORE_X: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIP: tl.constexpr, LEAST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute y = leaky_relu(filter(x) * scale + noise * strength + bias) * style."""
    after_previous(DEPENDENT)
    walk_or_strip(
        x, None, y, bias, None, noise, strength, scale, style, None,
        C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
        None, "act", SLOPE, GAIN, PLANES, STRIDE_P, TAPS_Y, TAPS_X, BEFORE_Y, BEFORE_X, ACC,
        ROWS, COLS, AHEAD, BLOCK_P, BLOCK_C, STRIP, LEAST,
    )  # fmt: skip


@triton.jit(do_not_specialize=["step", "rows"])
def filter_act_modulate_grad_kernel(
    g, y, dx, noise, scale, style, sums,
    C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, PLANES: tl.constexpr, STRIDE_P: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, BEFORE_Y: tl.constexpr, BEFORE_X: tl.constexpr, ACC: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, AHEAD: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIP: tl.constexpr, LEAST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Do the work of `filter_act_grad_kernel` where y has the style in it.

    The style is a factor of a map, left to the end and to the sums' end.
    """
    after_previous(DEPENDENT)
    walk_or_strip(
        g, y, dx, None, None, noise, None, scale, style, sums,
        C, H, W, OH, OW, stride_xc, stride_yc, channels, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
        "grad", None, SLOPE, GAIN, PLANES, STRIDE_P, TAPS_Y, TAPS_X, BEFORE_Y, BEFORE_X, ACC,
        ROWS, COLS, AHEAD, BLOCK_P, BLOCK_C, STRIP, LEAST,
    )  # fmt: skip


@triton.jit
def filter_act_sums_kernel(
    sums, bias, strength, scale, style, dbias, dstrength, dscale, dstyle,
    N, C, stride_n, stride_k, jobs,
    GAIN: tl.constexpr, LEAST: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute the gradients that sums over the pixels of each map make up. The last program computes strength's.

    y is slope * gain * u and g's share of u is slope * gain. So du * u is g * y. filter(x) * scale is the rest of u
    without noise and bias: filter(x) itself is not needed again. A style is a factor of g's share and of y. So g * y is
    the same product, and it is also style times the terms of the style's gradient.
    """
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    if job < jobs:
        c = job * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
        total = tl.zeros([BLOCK_N, BLOCK_C], sums.dtype.element_ty)
        b = tl.load(bias + c, c < C, 0.0).to(total.dtype) if bias is not None else total
        k = tl.load(strength).to(total.dtype) if strength is not None else None
        for start in range(0, N, BLOCK_N):
            n = start + tl.arange(0, BLOCK_N)[:, None]
            inside = (n < N) & (c < C)
            at = sums + n * stride_n + c
            share = GAIN
            if style is not None:
                t = nonzero(tl.load(style + n * C + c, inside, 1.0).to(total.dtype), LEAST)
                share = t * GAIN
            du = tl.load(at, inside, 0.0) * share
            total += du
            if (dscale is not None) or (dstyle is not None):
                product = tl.load(at + 2 * stride_k, inside, 0.0)
            if dstyle is not None:
                tl.store(dstyle + n * C + c, product / t, inside)
            if dscale is not None:
                rest = product - b * du
                if strength is not None:
                    rest -= k * share * tl.load(at + stride_k, inside, 0.0)
                s = tl.load(scale + n * C + c, inside, 1.0).to(total.dtype)
                tl.store(dscale + n * C + c, rest / s, inside)
        if dbias is not None:
            flat = job * BLOCK_C + tl.arange(0, BLOCK_C)
            tl.store(dbias + flat, tl.sum(total, 0), flat < C)
    if dstrength is not None:
        if job == jobs:
            all_of_it = tl.zeros([BLOCK], sums.dtype.element_ty)
            for start in range(0, N * C, BLOCK):
                i = start + tl.arange(0, BLOCK)
                at = sums + (i // C) * stride_n + stride_k + i % C
                du_noise = tl.load(at, i < N * C, 0.0)
                if style is not None:
                    du_noise *= nonzero(tl.load(style + i, i < N * C, 1.0).to(du_noise.dtype), LEAST)
                all_of_it += du_noise
            tl.store(dstrength, tl.sum(all_of_it, 0) * GAIN)
