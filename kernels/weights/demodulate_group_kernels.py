"""The kernels of `kernels.demodulate_group`: all layers of a generator in one launch.

The layers are tuples of pointers, as in `kernels.linear.dense_kernels`. A program compares its number with the first
number of each layer's programs. Sizes are constants of the kernel, so the compiler knows their factors: loads stay 16
bytes a thread. A program loads all operands of a round of its loop before it computes.

E[o, i] is the energy of a weight over its taps, s a style, g the gradient of d. With h = -g * d^3:

- rows: d = (sum over i of s^2 * E + eps)^-1/2, q = sum over i of u * s * E
- columns: ds = s * sum over o of h * E, dE = 1/2 * sum over n of h * s^2

u is a direction of ds. With u given, these are the second derivatives along it, with e = 3/2 * g * d^5 * q.
"""

from ..common.dependent_launch import after_previous
from ..common.tiles import tl, triton
from ..linear.dense_kernels import pick

# ---- E = sum over taps of weight^2 -------------------------------------------------------------------------------


@triton.jit
def tile_of(
    job, FIRST: tl.constexpr, OUTS: tl.constexpr, INS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr
):  # fmt: skip
    """Return this program's BLOCK_O x BLOCK_I of its layer: o (int64), i, the mask of existing elements, and the
    layer's I.
    """
    O, I = pick(OUTS, job, FIRST), pick(INS, job, FIRST)
    tile, across = job - pick(FIRST, job, FIRST), tl.cdiv(I, BLOCK_I)
    o = (tile // across * BLOCK_O + tl.arange(0, BLOCK_O)).to(tl.int64)[:, None]
    i = (tile % across * BLOCK_I + tl.arange(0, BLOCK_I))[None, :]
    return o, i, (o < O) & (i < I), I


@triton.jit
def tap_at(o, i, k, I, TAPS: tl.constexpr, NHWC: tl.constexpr):
    """Return the place of tap k of (o, i) in a weight [O, I, taps], or [O, taps, I] if NHWC."""
    if NHWC:
        return (o * TAPS + k) * I + i
    else:
        return (o * I + i) * TAPS + k


@triton.jit
def weight_energies_kernel(
    weights, energies,
    FIRST: tl.constexpr, OUTS: tl.constexpr, INS: tl.constexpr,
    TAPS: tl.constexpr, NHWC: tl.constexpr, ACC: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute E of all weights."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    w, energy = pick(weights, job, FIRST), pick(energies, job, FIRST)
    o, i, inside, I = tile_of(job, FIRST, OUTS, INS, BLOCK_O, BLOCK_I)
    taps = ()
    for k in tl.static_range(TAPS):
        taps += (tl.load(w + tap_at(o, i, k, I, TAPS, NHWC), inside, 0.0),)
    total = tl.zeros([BLOCK_O, BLOCK_I], ACC)
    for k in tl.static_range(TAPS):
        value = taps[k].to(ACC)
        total += value * value
    tl.store(energy + o * I + i, total, inside)


@triton.jit
def weight_energies_grad_kernel(
    gs, weights, dweights,
    FIRST: tl.constexpr, OUTS: tl.constexpr, INS: tl.constexpr,
    TAPS: tl.constexpr, NHWC: tl.constexpr, ACC: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dweight = 2 * weight * g of all weights."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    w, dw = pick(weights, job, FIRST), pick(dweights, job, FIRST)
    o, i, inside, I = tile_of(job, FIRST, OUTS, INS, BLOCK_O, BLOCK_I)
    factor = 2 * tl.load(pick(gs, job, FIRST) + o * I + i, inside, 0.0).to(ACC)
    taps = ()
    for k in tl.static_range(TAPS):
        taps += (tl.load(w + tap_at(o, i, k, I, TAPS, NHWC), inside, 0.0),)
    for k in tl.static_range(TAPS):
        tl.store(dw + tap_at(o, i, k, I, TAPS, NHWC), taps[k].to(ACC) * factor, inside)


# ---- rows: sums over inputs --------------------------------------------------------------------------------------


@triton.jit
def rows_of(
    job, N, FIRST: tl.constexpr, OUTS: tl.constexpr, INS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr
):  # fmt: skip
    """Return samples n and outputs o of this program, its layer's O and I, the place of (n, o) in
    [N, O], and the mask.
    """
    O, I = pick(OUTS, job, FIRST), pick(INS, job, FIRST)
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    o = ((job - pick(FIRST, job, FIRST)) * BLOCK_O + tl.arange(0, BLOCK_O)).to(tl.int64)
    return n, o, O, I, n[:, None] * O + o[None, :], (n[:, None] < N) & (o[None, :] < O)


@triton.jit
def row_sums(
    energy, s, u, n, o, N, O, I,
    ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Compute [BLOCK_N, BLOCK_O]: sum over i of s * s * E, or of u * s * E if u is given."""
    total = tl.zeros([BLOCK_N, BLOCK_O, BLOCK_I], ACC)
    s += n[:, None, None] * I
    energy += o[None, :, None] * I
    if u is not None:
        u += n[:, None, None] * I
    for start in range(0, I, BLOCK_I * UNROLL):
        a, b, c = (), (), ()
        for k in tl.static_range(UNROLL):
            i = start + k * BLOCK_I + tl.arange(0, BLOCK_I)[None, None, :]
            x = tl.load(s + i, (n[:, None, None] < N) & (i < I), 0.0)
            a += (x,)
            b += (x if u is None else tl.load(u + i, (n[:, None, None] < N) & (i < I), 0.0),)
            c += (tl.load(energy + i, (o[None, :, None] < O) & (i < I), 0.0),)
        for k in tl.static_range(UNROLL):
            total += (a[k] * b[k]) * c[k]
    return tl.sum(total, 2)


@triton.jit
def demodulate_group_kernel(
    energies, styles, d, eps, N,
    FIRST: tl.constexpr, OUTS: tl.constexpr, INS: tl.constexpr, BASE: tl.constexpr,
    ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, UNROLL: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute d of all layers in one buffer. A layer's d begins at N * BASE."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    n, o, O, I, own, inside = rows_of(job, N, FIRST, OUTS, INS, BLOCK_N, BLOCK_O)
    total = row_sums(
        pick(energies, job, FIRST), pick(styles, job, FIRST), None, n, o, N, O, I,
        ACC, BLOCK_N, BLOCK_O, BLOCK_I, UNROLL,
    )  # fmt: skip
    at = tl.full([], 1, tl.int64) * N * pick(BASE, job, FIRST) + own
    tl.store(d + at, 1 / tl.sqrt(total + eps), inside)


@triton.jit
def demodulate_group_rows_kernel(
    energies, styles, us, gs, ds, dg, e, N,
    FIRST: tl.constexpr, OUTS: tl.constexpr, INS: tl.constexpr, BASE: tl.constexpr,
    ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, UNROLL: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute second derivatives along u: the gradient of g, -d^3 * q, and e for the columns."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    n, o, O, I, own, inside = rows_of(job, N, FIRST, OUTS, INS, BLOCK_N, BLOCK_O)
    q = row_sums(
        pick(energies, job, FIRST), pick(styles, job, FIRST), pick(us, job, FIRST), n, o, N, O, I,
        ACC, BLOCK_N, BLOCK_O, BLOCK_I, UNROLL,
    )  # fmt: skip
    d = tl.load(pick(ds, job, FIRST) + own, inside, 0.0)
    g = tl.load(pick(gs, job, FIRST) + own, inside, 0.0)
    at = tl.full([], 1, tl.int64) * N * pick(BASE, job, FIRST) + own
    cube = d * d * d
    tl.store(dg + at, -cube * q, inside)
    tl.store(e + at, 1.5 * g * q * cube * d * d, inside)


# ---- columns: sums over outputs, and over samples ----------------------------------------------------------------


@triton.jit
def load_h(g, d, at, inside):
    """Load h = -g * d^3."""
    x = tl.load(d + at, inside, 0.0)
    return -tl.load(g + at, inside, 0.0) * x * x * x


@triton.jit
def style_tile(
    job, gs, ds, es, energies, styles, us, adds, dstyle, N,
    FIRST: tl.constexpr, OUTS: tl.constexpr, INS: tl.constexpr, BASE: tl.constexpr,
    ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_I columns of one layer's dstyle for BLOCK_N samples, over all outputs."""
    O, I = pick(OUTS, job, FIRST), pick(INS, job, FIRST)
    g, d, energy = pick(gs, job, FIRST), pick(ds, job, FIRST), pick(energies, job, FIRST)
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None, None]
    i = ((job - pick(FIRST, job, FIRST)) * BLOCK_I + tl.arange(0, BLOCK_I))[None, None, :]
    total = tl.zeros([BLOCK_N, BLOCK_O, BLOCK_I], ACC)
    more = tl.zeros([BLOCK_N, BLOCK_O, BLOCK_I], ACC)
    for start in range(0, O, BLOCK_O * UNROLL):
        a, b, c = (), (), ()
        for k in tl.static_range(UNROLL):
            o = (start + k * BLOCK_O + tl.arange(0, BLOCK_O)).to(tl.int64)[None, :, None]
            inside = (n < N) & (o < O)
            c += (tl.load(energy + o * I + i, (o < O) & (i < I), 0.0),)
            a += (load_h(g, d, n * O + o, inside),)
            if es is not None:
                b += (tl.load(pick(es, job, FIRST) + n * O + o, inside, 0.0),)
        for k in tl.static_range(UNROLL):
            total += a[k] * c[k]
            if es is not None:
                more += b[k] * c[k]
    n, i = tl.reshape(n, [BLOCK_N, 1]), tl.reshape(i, [1, BLOCK_I])
    at, inside = n * I + i, (n < N) & (i < I)
    s = tl.load(pick(styles, job, FIRST) + at, inside, 0.0)
    if us is None:
        result = s * tl.sum(total, 1)
    else:
        u = tl.load(pick(us, job, FIRST) + at, inside, 0.0)
        result = u * tl.sum(total, 1) + 2 * s * tl.sum(more, 1)
    if adds is not None:
        result += tl.load(pick(adds, job, FIRST) + at, inside, 0.0)
    tl.store(dstyle + tl.full([], 1, tl.int64) * N * pick(BASE, job, FIRST) + at, result, inside)


@triton.jit
def energy_tile(
    job, gs, ds, es, styles, us, denergy, N,
    FIRST: tl.constexpr, OUTS: tl.constexpr, INS: tl.constexpr, BASE: tl.constexpr,
    ACC: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_O x BLOCK_I of the gradient of one layer's E, over all samples."""
    O = pick(OUTS, job, FIRST)
    g, d, s = pick(gs, job, FIRST), pick(ds, job, FIRST), pick(styles, job, FIRST)
    o, i, inside, I = tile_of(job, FIRST, OUTS, INS, BLOCK_O, BLOCK_I)
    total = tl.zeros([BLOCK_O, BLOCK_I], ACC)
    for start in range(0, N, UNROLL):
        a, b, c, e = (), (), (), ()
        for k in tl.static_range(UNROLL):
            n = tl.full([], k, tl.int64) + start
            a += (load_h(g, d, n * O + o, (n < N) & (o < O)),)
            c += (tl.load(s + n * I + i, (n < N) & (i < I), 0.0),)
            if us is not None:
                b += (tl.load(pick(us, job, FIRST) + n * I + i, (n < N) & (i < I), 0.0),)
                e += (tl.load(pick(es, job, FIRST) + n * O + o, (n < N) & (o < O), 0.0),)
        for k in tl.static_range(UNROLL):
            if us is None:
                total += 0.5 * a[k] * (c[k] * c[k])
            else:
                total += (a[k] * b[k] + e[k] * c[k]) * c[k]
    tl.store(denergy + pick(BASE, job, FIRST) + o * I + i, total, inside)


@triton.jit
def demodulate_group_grad_kernel(
    gs, ds, es, energies, styles, us, adds, dstyle, denergy, N, style_jobs,
    S_FIRST: tl.constexpr, E_FIRST: tl.constexpr, OUTS: tl.constexpr, INS: tl.constexpr,
    S_BASE: tl.constexpr, E_BASE: tl.constexpr, ACC: tl.constexpr,
    BLOCK_N: tl.constexpr, S_BLOCK_O: tl.constexpr, S_BLOCK_I: tl.constexpr, S_UNROLL: tl.constexpr,
    E_BLOCK_O: tl.constexpr, E_BLOCK_I: tl.constexpr, E_UNROLL: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute the wanted gradients of styles, plus adds, and of energies. Two kinds of programs run side by side."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    if dstyle is not None:
        if job < style_jobs:
            style_tile(
                job, gs, ds, es, energies, styles, us, adds, dstyle, N, S_FIRST, OUTS, INS, S_BASE,
                ACC, BLOCK_N, S_BLOCK_O, S_BLOCK_I, S_UNROLL,
            )  # fmt: skip
    if denergy is not None:
        if (job >= style_jobs) & (tl.program_id(1) == 0):  # The program passes over all samples itself.
            energy_tile(
                job - style_jobs, gs, ds, es, styles, us, denergy, N, E_FIRST, OUTS, INS, E_BASE,
                ACC, E_BLOCK_O, E_BLOCK_I, E_UNROLL,
            )  # fmt: skip
