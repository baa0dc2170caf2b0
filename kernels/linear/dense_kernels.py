"""The kernels of `kernels.dense`: several fully connected layers, [N, I] -> [N, O] each, in one launch.

Layers are given as tuples of pointers. Each program works for one layer. It compares its number with the first number
of each layer's programs. Those numbers, the layers' widths and the places of their results are constants of the kernel.
So finding the layer costs a few selects and no load.

Batches are small, so no kernel is bound by arithmetic. Sums are plain fused multiply-adds of full precision, not those
of tensor cores. A program is short and waits for memory. It loads all operands of a round of its loop before it
computes: an exchange of a tile between threads is a barrier that no load moves across. Loads run along the contiguous
dimension, 16 bytes a thread.
"""

from ..common.dependent_launch import after_previous
from ..common.tiles import tl, triton


@triton.jit
def pick(options, job, FIRST: tl.constexpr):
    """Return the entry of this job's layer: the last entry whose first job is not after this job."""
    found = options[0]
    for k in tl.static_range(1, len(FIRST)):
        found = tl.where(job >= FIRST[k], options[k], found)
    return found


@triton.jit
def activated(u, ACT: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr):
    """Compute leaky_relu(u) * GAIN."""
    if ACT:
        u = tl.where(u > 0, u, u * SLOPE) * GAIN
    return u


@triton.jit
def load_pair(g, y, at, inside):
    """Load the incoming gradient and the result that it belongs to. Without an activation the second is g again."""
    g = tl.load(g + at, inside, 0.0)
    return g, g if y is None else tl.load(y + at, inside, 0.0)


@triton.jit
def before_act(g, y, ACT: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr):
    """Compute the gradient before the activation. y and the activation's input have the same sign."""
    d = g.to(ACC)
    if ACT:
        d = tl.where(y.to(ACC) > 0, d, d * SLOPE) * GAIN
    return d


# ---- y = act(x @ weight^T * weight_gain + bias * bias_gain) * gain -----------------------------------------------


@triton.jit
def dense_kernel(
    x, weights, biases, y, N, I, row, chunk,
    FIRST: tl.constexpr, WIDTH: tl.constexpr, BASE: tl.constexpr, SLOT: tl.constexpr, WHOLE: tl.constexpr,
    WEIGHT_GAIN: tl.constexpr, BIAS_GAIN: tl.constexpr,
    ACT: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, UNROLL: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_O outputs of a layer for BLOCK_N samples, over `chunk` of its inputs.

    Not WHOLE: there are more chunks. y [chunks, N * O] then holds their plain sums for `dense_finish_kernel`.
    """
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    w = pick(weights, job, FIRST)
    O = pick(WIDTH, job, FIRST)
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    o = ((job - pick(FIRST, job, FIRST)) * BLOCK_O + tl.arange(0, BLOCK_O)).to(tl.int64)
    x += n[:, None, None] * row + pick(SLOT, job, FIRST) * I
    w += o[None, :, None] * I
    begin = tl.program_id(2) * chunk
    end = tl.minimum(begin + chunk, I)
    total = tl.zeros([BLOCK_N, BLOCK_O, BLOCK_I], ACC)
    for start in range(begin, end, BLOCK_I * UNROLL):
        a, b = (), ()
        for k in tl.static_range(UNROLL):
            i = start + k * BLOCK_I + tl.arange(0, BLOCK_I)[None, None, :]
            a += (tl.load(x + i, (n[:, None, None] < N) & (i < end), 0.0),)
            b += (tl.load(w + i, (o[None, :, None] < O) & (i < end), 0.0),)
        for k in tl.static_range(UNROLL):
            total += a[k].to(ACC) * b[k].to(ACC)
    u = tl.sum(total, 2)
    if WHOLE:
        u *= WEIGHT_GAIN
        if biases is not None:
            bias = tl.load(pick(biases, job, FIRST) + o, o < O, 0.0).to(ACC)
            u += (bias * BIAS_GAIN)[None, :]
        u = activated(u, ACT, SLOPE, GAIN)
    else:
        y += tl.program_id(2).to(tl.int64) * N * O
    inside = (n[:, None] < N) & (o[None, :] < O)
    tl.store(
        y + tl.full([], 1, tl.int64) * N * pick(BASE, job, FIRST) + n[:, None] * O + o[None, :], u, inside
    )


@triton.jit
def dense_finish_kernel(
    partials, bias, y, size, O,
    CHUNKS: tl.constexpr, WEIGHT_GAIN: tl.constexpr, BIAS_GAIN: tl.constexpr,
    ACT: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute y [N * O] of one layer, size elements, from the sums over CHUNKS of its inputs, in a fixed order."""
    after_previous(DEPENDENT)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    u = tl.zeros([BLOCK], ACC)
    for k in tl.static_range(CHUNKS):
        u += tl.load(partials + tl.full([], k, tl.int64) * size + at, at < size, 0.0)
    u *= WEIGHT_GAIN
    if bias is not None:
        u += tl.load(bias + at % O, at < size, 0.0).to(ACC) * BIAS_GAIN
    tl.store(y + at, activated(u, ACT, SLOPE, GAIN), at < size)


# ---- gradients ---------------------------------------------------------------------------------------------------


@triton.jit
def input_tile(
    job, gs, ys, weights, dx, N, I, slots,
    WIDTH: tl.constexpr, READERS: tl.constexpr, WEIGHT_GAIN: tl.constexpr,
    SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Compute dx [N, slots, I]: BLOCK_I inputs of one slot for BLOCK_N samples, over all outputs of the layers that
    read it.

    READERS: [how many at most][slot], the number of a layer, or -1.
    """
    tiles = tl.cdiv(I, BLOCK_I)
    slot = job // tiles % slots
    n = (job // tiles // slots * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None, None]
    i = (job % tiles * BLOCK_I + tl.arange(0, BLOCK_I))[None, None, :]
    total = tl.zeros([BLOCK_N, BLOCK_O, BLOCK_I], ACC)
    for r in tl.static_range(len(READERS)):
        O = tl.full([], 0, tl.int32)
        g, w = gs[0], weights[0]
        y = None if ys is None else ys[0]
        for s in tl.static_range(len(READERS[r])):
            if READERS[r][s] >= 0:
                O = tl.where(slot == s, WIDTH[READERS[r][s]], O)
                g = tl.where(slot == s, gs[READERS[r][s]], g)
                w = tl.where(slot == s, weights[READERS[r][s]], w)
                if ys is not None:
                    y = tl.where(slot == s, ys[READERS[r][s]], y)
        for start in range(0, O, BLOCK_O * UNROLL):
            pairs, b = (), ()
            for k in tl.static_range(UNROLL):
                o = (start + k * BLOCK_O + tl.arange(0, BLOCK_O)).to(tl.int64)[None, :, None]
                pairs += (load_pair(g, y, n * O + o, (n < N) & (o < O)),)
                b += (tl.load(w + o * I + i, (o < O) & (i < I), 0.0),)
            for k in tl.static_range(UNROLL):
                d = before_act(pairs[k][0], pairs[k][1], ys is not None, SLOPE, GAIN, ACC)
                total += d * b[k].to(ACC)
    n, i = tl.reshape(n, [BLOCK_N, 1]), tl.reshape(i, [1, BLOCK_I])
    tl.store(dx + (n * slots + slot) * I + i, tl.sum(total, 1) * WEIGHT_GAIN, (n < N) & (i < I))


@triton.jit
def weight_tile(
    job, gs, ys, x, dweight, dbias, N, I, row,
    FIRST: tl.constexpr, WIDTH: tl.constexpr, BASE: tl.constexpr, SLOT: tl.constexpr,
    WEIGHT_GAIN: tl.constexpr, BIAS_GAIN: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr,
    BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_O x BLOCK_I of one layer's dweight over all samples, and its dbias on the way."""
    tiles = tl.maximum(tl.cdiv(I, BLOCK_I), 1)  # A layer without inputs still has a bias.
    block = job // tiles  # numbers of outputs, counted over all layers
    g = pick(gs, block, FIRST)
    y = None if ys is None else pick(ys, block, FIRST)
    O = pick(WIDTH, block, FIRST)
    o = ((block - pick(FIRST, block, FIRST)) * BLOCK_O + tl.arange(0, BLOCK_O)).to(tl.int64)[:, None]
    i = (job % tiles * BLOCK_I + tl.arange(0, BLOCK_I))[None, :]
    x += pick(SLOT, block, FIRST) * I
    total = tl.zeros([BLOCK_O, BLOCK_I], ACC)
    d_total = tl.zeros([BLOCK_O, 1], ACC)
    for start in range(0, N, UNROLL):
        pairs, a = (), ()
        for k in tl.static_range(UNROLL):
            n = tl.full([], k, tl.int64) + start
            pairs += (load_pair(g, y, n * O + o, (n < N) & (o < O)),)
            a += (tl.load(x + n * row + i, (n < N) & (i < I), 0.0),)
        for k in tl.static_range(UNROLL):
            d = before_act(pairs[k][0], pairs[k][1], ys is not None, SLOPE, GAIN, ACC)
            total += d * a[k].to(ACC)
            d_total += d
    o_flat = pick(BASE, block, FIRST) + o
    tl.store(dweight + o_flat * I + i, total * WEIGHT_GAIN, (o < O) & (i < I))
    if dbias is not None:
        tl.store(dbias + o_flat, d_total * BIAS_GAIN, (o < O) & (job % tiles == 0))


@triton.jit
def dense_grad_kernel(
    gs, ys, x, weights, dx, dweight, dbias, N, I, row, slots, x_jobs,
    FIRST: tl.constexpr, WIDTH: tl.constexpr, BASE: tl.constexpr, SLOT: tl.constexpr, READERS: tl.constexpr,
    WEIGHT_GAIN: tl.constexpr, BIAS_GAIN: tl.constexpr, SLOPE: tl.constexpr, GAIN: tl.constexpr, ACC: tl.constexpr,
    BLOCK_N: tl.constexpr, X_BLOCK_O: tl.constexpr, X_BLOCK_I: tl.constexpr, X_UNROLL: tl.constexpr,
    W_BLOCK_O: tl.constexpr, W_BLOCK_I: tl.constexpr, W_UNROLL: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute those of dx, dweight and dbias that are wanted. Two independent kinds of programs run side by side."""
    after_previous(DEPENDENT)
    job = tl.program_id(0)
    if dx is not None:
        if job < x_jobs:
            input_tile(
                job, gs, ys, weights, dx, N, I, slots, WIDTH, READERS, WEIGHT_GAIN, SLOPE, GAIN, ACC,
                BLOCK_N, X_BLOCK_O, X_BLOCK_I, X_UNROLL,
            )  # fmt: skip
    if dweight is not None:
        if job >= x_jobs:
            weight_tile(
                job - x_jobs, gs, ys, x, dweight, dbias, N, I, row, FIRST, WIDTH, BASE, SLOT,
                WEIGHT_GAIN, BIAS_GAIN, SLOPE, GAIN, ACC, W_BLOCK_O, W_BLOCK_I, W_UNROLL,
            )  # fmt: skip
