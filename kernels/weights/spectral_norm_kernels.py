"""The kernels of `kernels.spectral_norm`: all layers of a discriminator in one launch.

The layers are tuples of pointers, as in `kernels.linear.dense_kernels`. A program compares its number with the first
number of each layer's programs. A weight is read in its order in memory. `column_at` returns the entry of v for each
element read. Every sum is taken in a fixed order. A program that needs a sum over all rows of its layer adds up the
rows' numbers itself, which costs less than a launch.
"""

from ..common.dependent_launch import after_previous
from ..common.tiles import tl, triton
from ..linear.dense_kernels import pick


@triton.jit
def column_at(m, A, B):
    """Return the entry of v for column m of a row in memory.

    It is m itself (A: columns, B: 1). In channels_last memory taps come before inputs: it is the entry of input m % A
    and tap m // A (A: inputs, B: taps).
    """
    return (m % A) * B + m // A


@triton.jit
def rows_of(job, FIRST: tl.constexpr, BLOCK_O: tl.constexpr):
    """Return this program's rows of its layer: [BLOCK_O, 1], int64."""
    return ((job - pick(FIRST, job, FIRST)) * BLOCK_O + tl.arange(0, BLOCK_O)).to(tl.int64)[:, None]


@triton.jit
def gain_of(job, GAINS: tl.constexpr, FIRST: tl.constexpr, ACC: tl.constexpr):
    """Do the work of `pick` for numbers that must keep float64's digits."""
    found = tl.full([], GAINS[0], ACC)
    for k in tl.static_range(1, len(FIRST)):
        found = tl.where(job >= FIRST[k], tl.full([], GAINS[k], ACC), found)
    return found


@triton.jit
def sum_of(a, b, n, ACC: tl.constexpr, BLOCK: tl.constexpr):
    """Sum a * b over n numbers, or a alone if b is None. Every program gets the same result."""
    total = tl.zeros([BLOCK], ACC)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(a + i, i < n, 0.0).to(ACC)
        if b is not None:
            x = x * tl.load(b + i, i < n, 0.0).to(ACC)
        total += x
    return tl.sum(total, 0)


# ---- the power iteration -----------------------------------------------------------------------------------------


@triton.jit
def spectral_rows_kernel(
    weights, vs, t, arrived,
    FIRST: tl.constexpr, OUTS: tl.constexpr, COLUMNS: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    BASE: tl.constexpr, NUMBER: tl.constexpr, ACC: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute t = W v of each layer, whose t begins at BASE. Zero the counters of the next kernel."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    O, K, a, b = pick(OUTS, job, FIRST), pick(COLUMNS, job, FIRST), pick(A, job, FIRST), pick(B, job, FIRST)
    w, v, o = pick(weights, job, FIRST), pick(vs, job, FIRST), rows_of(job, FIRST, BLOCK_O)
    total = tl.zeros([BLOCK_O, BLOCK_K], ACC)
    for start in range(0, K, BLOCK_K):
        m = start + tl.arange(0, BLOCK_K)[None, :]
        x = tl.load(v + column_at(m, a, b), m < K, 0.0).to(ACC)
        total += tl.load(w + o * K + m, (o < O) & (m < K), 0.0).to(ACC) * x
    sums = tl.reshape(tl.sum(total, 1), [BLOCK_O, 1])
    tl.store(t + pick(BASE, job, FIRST) + o, sums, o < O)
    if arrived is not None:
        if job == pick(FIRST, job, FIRST):
            tl.store(arrived + pick(NUMBER, job, FIRST), 0)


@triton.jit
def spectral_columns_kernel(
    weights, us, vs, t, s, arrived, eps,
    FIRST: tl.constexpr, PROGRAMS: tl.constexpr, OUTS: tl.constexpr, COLUMNS: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, BASE: tl.constexpr, S_BASE: tl.constexpr, NUMBER: tl.constexpr,
    ACC: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute u = t / |t|, s = W^T u and v = s / |s| of each layer.

    The length of s needs all its columns. The program that comes last, whichever it is, takes the sum in one order.
    """
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    O, K, a, b = pick(OUTS, job, FIRST), pick(COLUMNS, job, FIRST), pick(A, job, FIRST), pick(B, job, FIRST)
    w, first = pick(weights, job, FIRST), pick(FIRST, job, FIRST)
    t += pick(BASE, job, FIRST)
    s += pick(S_BASE, job, FIRST)
    m = (job - first) * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    total = tl.zeros([BLOCK_O, BLOCK_K], ACC)
    for start in range(0, O, BLOCK_O):
        o = (start + tl.arange(0, BLOCK_O)).to(tl.int64)[:, None]
        x = tl.load(w + o * K + m, (o < O) & (m < K), 0.0).to(ACC)
        total += x * tl.load(t + o, o < O, 0.0)
    length = larger(tl.sqrt(sum_of(t, t, O, ACC, BLOCK_V)), eps)
    column = tl.reshape(tl.sum(total, 0), [1, BLOCK_K]) / length
    tl.store(s + column_at(m, a, b), column, m < K)
    if job == first:
        write_divided(pick(us, job, FIRST), t, length, O, BLOCK_V)
    tl.debug_barrier()  # All of this program's stores come before its arrival.
    if tl.atomic_add(arrived + pick(NUMBER, job, FIRST), 1) == pick(PROGRAMS, job, FIRST) - 1:
        squares = tl.zeros([BLOCK_V], ACC)
        for start in range(0, K, BLOCK_V):
            i = start + tl.arange(0, BLOCK_V)
            # ".cg": stores of other multiprocessors are seen in the L2 cache
            x = tl.load(s + i, i < K, 0.0, cache_modifier=".cg")
            squares += x * x
        write_divided(pick(vs, job, FIRST), s, larger(tl.sqrt(tl.sum(squares, 0)), eps), K, BLOCK_V)


@triton.jit
def larger(x, y):
    """Return max(x, y), and NaN where x is NaN."""
    return tl.where(x < y, y, x)


@triton.jit
def write_divided(target, source, by, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(target + i, tl.load(source + i, i < n, 0.0, cache_modifier=".cg") / by, i < n)


# ---- W / sigma ---------------------------------------------------------------------------------------------------


@triton.jit
def spectral_scale_kernel(
    weights, us, t, outs, sigmas,
    FIRST: tl.constexpr, OUTS: tl.constexpr, COLUMNS: tl.constexpr, GAINS: tl.constexpr,
    BASE: tl.constexpr, NUMBER: tl.constexpr, ACC: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute out = gain * W / sigma with sigma = u^T t, for BLOCK_O rows of one layer; t = W v."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    O, K = pick(OUTS, job, FIRST), pick(COLUMNS, job, FIRST)
    w, out, o = pick(weights, job, FIRST), pick(outs, job, FIRST), rows_of(job, FIRST, BLOCK_O)
    sigma = sum_of(pick(us, job, FIRST), t + pick(BASE, job, FIRST), O, ACC, BLOCK_V)
    if job == pick(FIRST, job, FIRST):
        tl.store(sigmas + pick(NUMBER, job, FIRST), sigma)
    factor = gain_of(job, GAINS, FIRST, ACC) / sigma
    for start in range(0, K, BLOCK_K):
        m = start + tl.arange(0, BLOCK_K)[None, :]
        inside = (o < O) & (m < K)
        tl.store(out + o * K + m, tl.load(w + o * K + m, inside, 0.0).to(ACC) * factor, inside)


@triton.jit
def spectral_products_kernel(
    weights, gs, d,
    FIRST: tl.constexpr, OUTS: tl.constexpr, COLUMNS: tl.constexpr, BASE: tl.constexpr,
    ACC: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute d = sum over columns of g * W, for each row of each layer."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    O, K = pick(OUTS, job, FIRST), pick(COLUMNS, job, FIRST)
    w, g, o = pick(weights, job, FIRST), pick(gs, job, FIRST), rows_of(job, FIRST, BLOCK_O)
    total = tl.zeros([BLOCK_O, BLOCK_K], ACC)
    for start in range(0, K, BLOCK_K):
        m = start + tl.arange(0, BLOCK_K)[None, :]
        inside = (o < O) & (m < K)
        x = tl.load(w + o * K + m, inside, 0.0).to(ACC)
        total += x * tl.load(g + o * K + m, inside, 0.0).to(ACC)
    tl.store(d + pick(BASE, job, FIRST) + o, tl.reshape(tl.sum(total, 1), [BLOCK_O, 1]), o < O)


@triton.jit
def spectral_grad_kernel(
    gs, us, vs, d, sigmas, dweights,
    FIRST: tl.constexpr, OUTS: tl.constexpr, COLUMNS: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    GAINS: tl.constexpr, BASE: tl.constexpr, NUMBER: tl.constexpr, ACC: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute dW = gain / sigma * (g - sum(g * W) / sigma * u v^T), for BLOCK_O rows of one layer."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    O, K, a, b = pick(OUTS, job, FIRST), pick(COLUMNS, job, FIRST), pick(A, job, FIRST), pick(B, job, FIRST)
    g, dw, o = pick(gs, job, FIRST), pick(dweights, job, FIRST), rows_of(job, FIRST, BLOCK_O)
    sigma = tl.load(sigmas + pick(NUMBER, job, FIRST))
    along = sum_of(d + pick(BASE, job, FIRST), None, O, ACC, BLOCK_V) / sigma
    u = tl.load(pick(us, job, FIRST) + o, o < O, 0.0).to(ACC) * along
    v, factor = pick(vs, job, FIRST), gain_of(job, GAINS, FIRST, ACC) / sigma
    for start in range(0, K, BLOCK_K):
        m = start + tl.arange(0, BLOCK_K)[None, :]
        inside = (o < O) & (m < K)
        x = tl.load(v + column_at(m, a, b), m < K, 0.0).to(ACC)
        value = tl.load(g + o * K + m, inside, 0.0).to(ACC)
        tl.store(dw + o * K + m, factor * (value - u * x), inside)
