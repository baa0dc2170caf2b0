"""The walk of `filtered_act_kernels` for 16-bit channels_last images, with the filter along a row on tensor cores.

Filtering a row is a product with a banded matrix T [pixels of y, pixels of x], whose rows hold the taps. T is the same
for all channels and rows. On FP32 units the filter costs four instructions an element, and neighbours repeat all work
that comes before it. In a product one thread loads and works on a pixel once. Taps such as 1 3 3 1 are exact in 16
bits, and sums are taken in float32. So only the product's input is rounded: to x's dtype, as between two ops. Along a
column the filter is four multiply-adds, into sums of the three rows that are not yet complete.

A program walks down a strip of BLOCK_W columns of x. Its first `step` columns of y are complete, and it owns as many
columns of x. The next program begins `step` further. Two rows are on their way from memory while one is worked on, all
in registers. Triton's pipelining through shared memory would read them once more, and wait for every warp.
"""

from ..common.tiles import INTERPRETED, load, tl, triton, widen

TAPS = 4  # taps along either dimension


@triton.jit
def leaky(u, SLOPE: tl.constexpr):
    """Compute leaky_relu for 0 < SLOPE <= 1. The maximum is one instruction less than a choice."""
    return tl.maximum(u, u * SLOPE)


@triton.jit
def leaky_grad(g, u, kink, SLOPE: tl.constexpr):
    """Compute the gradient of `leaky` at u along g.

    kink: the value that u is compared with, or None for zero. -b tells the sign of u + b without the sum.
    """
    return tl.where(u > (kink if kink is not None else 0.0), g, g * SLOPE)


@triton.jit
def nonzero(t, LEAST: tl.constexpr):
    """Return t, or LEAST where t is nearer to zero. The factor of a product by it can be found again."""
    return tl.where(tl.abs(t) < LEAST, tl.full(t.shape, LEAST, t.dtype), t)


@triton.jit
def store_sums(
    sums, du, du_noise, x_ref, C, tiles_c, STORED: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Store this program's sums over its pixels into sums [programs of all channels, 1 or 3, C]."""
    pid = tl.program_id(0)
    COUNT: tl.constexpr = 1 if STORED == "grad" else 3
    flat = (pid % tiles_c) * BLOCK_C + tl.arange(0, BLOCK_C)
    to = (pid // tiles_c).to(tl.int64) * COUNT * C + flat
    tl.store(sums + to, tl.sum(du, 0), flat < C)
    if COUNT == 3:
        tl.store(sums + to + C, tl.sum(du_noise, 0), flat < C)
        tl.store(sums + to + 2 * C, tl.sum(x_ref, 0), flat < C)


@triton.jit
def band(col, W, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    """Return T [BLOCK, BLOCK] float32: TAPS[k] at column m + k of row m, and zero for columns outside of x."""
    j = tl.arange(0, BLOCK)[None, :]
    k = j - tl.arange(0, BLOCK)[:, None]
    t = tl.zeros([BLOCK, BLOCK], tl.float32)
    for i in tl.static_range(len(TAPS)):
        t = tl.where(k == i, TAPS[i], t)
    return tl.where((col + j >= 0) & (col + j < W), t, 0.0)


@triton.jit
def row_of(image, at, line, in_cols, H, width):
    """Load a row of the tile, as it is stored. Rows outside of the image are zeros."""
    return tl.load(image + at + line.to(tl.int64) * width, in_cols & (line >= 0) & (line < H), 0.0)


# Two definitions, as in `tiles.widen`: the interpreter multiplies 16-bit matrices in 16 bits.
if INTERPRETED:

    @triton.jit
    def along_row(t, v, dtype: tl.constexpr):
        """Compute T @ v with v rounded to dtype, summed in float32."""
        return tl.dot(t, v.to(dtype).to(tl.float32))

else:

    @triton.jit
    def along_row(t, v, dtype: tl.constexpr):
        """Compute T @ v with v rounded to dtype, summed in float32."""
        return tl.dot(t.to(dtype), v.to(dtype))


@triton.jit
def strip(
    x, ref, y, bias, added, noise, strength, scale, style, sums,
    C, H, W, OH, OW, noise_stride, tiles_c, tiles_w, tiles_h, step, rows,
    LOADED: tl.constexpr, STORED: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr,
    TAPS_Y: tl.constexpr, TAPS_X: tl.constexpr, BEFORE_Y: tl.constexpr, BEFORE_X: tl.constexpr,
    BLOCK_W: tl.constexpr, BLOCK_C: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Do the work of `walk`, whose arguments have the same names. A program makes `step` columns
    and `rows` rows of y.
    """
    pid = tl.program_id(0)
    c = (pid % tiles_c) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    first = (pid // tiles_c % tiles_w) * step
    out_row = (pid // tiles_c // tiles_w % tiles_h) * rows
    n = (pid // tiles_c // tiles_w // tiles_h).to(tl.int64)
    k = tl.arange(0, BLOCK_W)[:, None]
    there, mine = c < C, k < step
    col = first - BEFORE_X + k
    in_cols = there & (col >= 0) & (col < W)
    out_cols = there & mine & (first + k < OW)
    from_x = n * C * H * W + (col * C + c)
    to_y = n * C * OH * OW + ((first + k) * C + c)

    b = load(bias + c, there, False, tl.float32) if bias is not None else None
    kink = -b if b is not None else None
    more = load(added + c, there, False, tl.float32) if added is not None else None
    s = load(scale + n * C + c, there, False, tl.float32) if scale is not None else None
    z = tl.load(strength).to(tl.float32) if strength is not None else None
    style_of = (
        nonzero(load(style + n * C + c, there, False, tl.float32), LEAST) if style is not None else None
    )
    if (LOADED == "grad") & (style is not None):
        sign = tl.where(style_of > 0, 1.0, -1.0)
        s = s * style_of if s is not None else style_of
    if noise is not None:
        noise += n * noise_stride
    if STORED == "act":
        b = b * GAIN if b is not None else None
        z = z * GAIN if z is not None else None

    t = band(first - BEFORE_X, W, TAPS_X, BLOCK_W)
    # Incomplete rows of y: sums that three, two and one row of x have gone into.
    row_0 = tl.zeros([BLOCK_W, BLOCK_C], tl.float32)
    row_1, row_2 = row_0, row_0
    if sums is not None:
        sum_du, sum_du_noise, sum_x_ref = row_0, row_0, row_0
    if STORED == "grad":  # The operand that a row of y is stored with is loaded a row before.
        beside_y = tl.load(ref + to_y, out_cols & (out_row > OH), 0.0)
    if (STORED == "act") & (noise is not None):
        noise_y = tl.load(noise + first + k, mine & (out_row > OH), 0.0)
    line = out_row - BEFORE_Y
    v_1 = row_of(x, from_x, line, in_cols, H, W * C)
    v_2 = row_of(x, from_x, line + 1, in_cols, H, W * C)
    if LOADED == "grad":
        u_1 = row_of(ref, from_x, line, in_cols, H, W * C)
        u_2 = row_of(ref, from_x, line + 1, in_cols, H, W * C)
    for i in tl.range(0, rows + 3, num_stages=1):
        line, out = out_row - BEFORE_Y + i, out_row - 3 + i
        there_is = (line >= 0) & (line < H)
        exists = there_is.to(tl.float32)
        v, v_1 = widen(v_1, tl.float32), v_2
        v_2 = row_of(x, from_x, line + 2, in_cols, H, W * C)
        if LOADED == "act":
            v = leaky(v + b if b is not None else v, SLOPE)
        if LOADED == "grad":
            u, u_1 = widen(u_1, tl.float32), u_2
            u_2 = row_of(ref, from_x, line + 2, in_cols, H, W * C)
            v = v + more if added is not None else v
            du = leaky_grad(v, u * sign if style is not None else u, kink, SLOPE)
            if sums is not None:  # Elements outside of x were loaded as zero.
                own = (i < rows).to(tl.float32)
                sum_du += du * own
                sum_x_ref += v * own * u
                if noise is not None:
                    pixel = line.to(tl.int64) * W + col
                    wanted = (col >= 0) & (col < W) & there_is & (i < rows)
                    sum_du_noise += du * tl.load(noise + pixel, wanted, 0.0).to(tl.float32)
            v = du
        # Padding is zero, not act(bias): beside x by zeros in t, above and below x by zero taps.
        f = along_row(t, v, x.dtype.element_ty)
        w = row_0 + f * (exists * TAPS_Y[3])
        row_0 = row_1 + f * (exists * TAPS_Y[2])
        row_1 = row_2 + f * (exists * TAPS_Y[1])
        row_2 = f * (exists * TAPS_Y[0])

        complete, next_complete = (i >= 3) & (out < OH), (i >= 2) & (out + 1 < OH)
        w = w * s if s is not None else w
        if STORED == "act":
            if noise is not None:
                w += noise_y.to(tl.float32) * z
                pixel = (out + 1).to(tl.int64) * OW + first + k
                noise_y = tl.load(noise + pixel, mine & (first + k < OW) & next_complete, 0.0)
            w = leaky(w + b if b is not None else w, SLOPE)
            w = w * style_of if style is not None else w
        if STORED == "grad":
            u = widen(beside_y, tl.float32)
            beside_y = tl.load(ref + to_y + (out + 1).to(tl.int64) * OW * C, out_cols & next_complete, 0.0)
            w = leaky_grad(w, u, kink, SLOPE)
            if sums is not None:
                sum_du += w * complete.to(tl.float32)
        tl.store(y + to_y + out.to(tl.int64) * OW * C, w, out_cols & complete)

    if sums is not None:
        own_cols = out_cols if STORED == "grad" else there & mine
        sum_du = tl.where(own_cols, sum_du, 0.0)
        sum_du_noise = tl.where(own_cols, sum_du_noise, 0.0)
        sum_x_ref = tl.where(own_cols, sum_x_ref, 0.0)
        store_sums(sums, sum_du, sum_du_noise, sum_x_ref, C, tiles_c, STORED, BLOCK_C)
