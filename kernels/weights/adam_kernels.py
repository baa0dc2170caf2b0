"""The kernels of Adam: count steps, then update weights, moments and copies.

Tensors come by address. A parameter's row of the table is 9 numbers. Five are addresses: weight, first moment, second
moment, copy and step count. Then follow the number of elements, and the output channels, input channels and taps (0
unless it is [O, I, k, l]). Its row of gradients is three addresses: its own, its copy's, its energy's. Address 0 is a
tensor that is not there.
"""

from ..common.dependent_launch import after_previous
from ..common.tiles import tl, triton


@triton.jit
def adam_steps_kernel(
    table,
    gradients,
    rates,
    corrections,
    found_inf,
    N,
    ROW: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Count the step of each parameter with a gradient, and write lr / (1 - beta1^t) and 1 / sqrt(1
    - beta2^t), float64.
    """
    after_previous(DEPENDENT)
    k = tl.arange(0, BLOCK)
    inside = k < N
    any_of = tl.load(gradients + 3 * k, inside, 0) | tl.load(gradients + 3 * k + 1, inside, 0)
    active = inside & ((any_of | tl.load(gradients + 3 * k + 2, inside, 0)) != 0)
    if found_inf is not None:
        active = active & (tl.load(found_inf + 0 * k) == 0)
    at = tl.load(table + ROW * k + 4, active, 0).to(tl.pointer_type(tl.float32))
    step = tl.load(at, active, 0.0) + 1
    tl.store(at, step, active)
    step = tl.where(active, step, 1.0).to(tl.float64)
    first = 1 - tl.exp(step * tl.load(rates + 5))
    second = 1 - tl.exp(step * tl.load(rates + 6))
    tl.store(corrections + 2 * k, tl.load(rates) / first, inside)
    tl.store(corrections + 2 * k + 1, 1 / tl.sqrt(second), inside)


@triton.jit
def adam_step(w, m, v, g, step_size, root, rates, MOMENTUM: tl.constexpr, ACC: tl.constexpr):
    """Compute weight and moments after one step. With beta1 = 0 the first moment is the gradient, and not kept."""
    if MOMENTUM:
        m += (g - m) * tl.load(rates + 1).to(ACC)
    else:
        m = g
    v = v * tl.load(rates + 2).to(ACC) + g * g * tl.load(rates + 3).to(ACC)
    w -= step_size * m / (tl.sqrt(v) * root + tl.load(rates + 4).to(ACC))
    return w, m, v


@triton.jit
def addresses_of(row, correction, gain, W: tl.constexpr, ACC: tl.constexpr):
    """Load what a program needs beside elements: all at once, so that it waits for memory once."""
    w = tl.multiple_of(tl.load(row).to(tl.pointer_type(W)), 16)
    m = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(W)), 16)
    v = tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(W)), 16)
    step_size, root = tl.load(correction).to(ACC), tl.load(correction + 1).to(ACC)
    return w, m, v, tl.load(row + 3), step_size, root, tl.load(gain).to(ACC)


@triton.jit
def update_elements(
    known, own, copys, energys, rates, inverse, at, turned, plane, inside,
    MOMENTUM: tl.constexpr, W: tl.constexpr, C: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Update the elements ``at`` of one parameter, whose addresses are ``known``.

    In the copy and in its gradient they are the elements at ``turned``. In the gradient of its energy, if it has any,
    they are those at ``plane``.
    """
    w_at, m_at, v_at, copy, step_size, root, gain = known
    # A missing tensor has address 0 and is masked out: neither read nor written.
    g = tl.load(tl.multiple_of(copys.to(tl.pointer_type(C)), 16) + turned, inside & (copys != 0), 0.0).to(ACC)
    g = g * gain
    g += tl.load(tl.multiple_of(own.to(tl.pointer_type(W)), 16) + at, inside & (own != 0), 0.0).to(ACC)
    w = tl.load(w_at + at, inside, 0.0).to(ACC)
    if plane is not None:
        e_at = tl.multiple_of(energys.to(tl.pointer_type(W)), 16) + plane
        g += 2 * w * tl.load(e_at, inside & (energys != 0), 0.0).to(ACC)
    if inverse is not None:
        g *= tl.load(inverse).to(ACC)
    v = tl.load(v_at + at, inside, 0.0).to(ACC)
    m = g
    if MOMENTUM:
        m = tl.load(m_at + at, inside, 0.0).to(ACC)
    w, m, v = adam_step(w, m, v, g, step_size, root, rates, MOMENTUM, ACC)
    tl.store(w_at + at, w, inside)
    if MOMENTUM:  # Without, the next gradient takes its place: nobody reads it.
        tl.store(m_at + at, m, inside)
    tl.store(v_at + at, v, inside)
    c_at = tl.multiple_of(copy.to(tl.pointer_type(C)), 16) + turned
    tl.store(c_at, (w * gain).to(C), inside & (copy != 0))


@triton.jit
def adam_kernel(
    table, gradients, gains, corrections, rates, blocks, inverse, found_inf, ROW: tl.constexpr,
    MOMENTUM: tl.constexpr, W: tl.constexpr, C: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
    PART: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Update consecutive elements of parameters. Their copies, if any, lie in memory as they do.

    A block that ends beyond its parameter goes PART elements at a time. All at once without vectors they would take
    registers of every program, and keep half of the programs off a processor.
    """
    after_previous(DEPENDENT)
    k = tl.load(blocks + 2 * tl.program_id(0))
    first = tl.load(blocks + 2 * tl.program_id(0) + 1).to(tl.int64) * BLOCK
    own, copys, elements = (
        tl.load(gradients + 3 * k),
        tl.load(gradients + 3 * k + 1),
        tl.load(table + ROW * k + 5),
    )
    known = addresses_of(table + ROW * k, corrections + 2 * k, gains + k, W, ACC)
    active = (own != 0) | (copys != 0)
    if found_inf is not None:
        active = active & (tl.load(found_inf) == 0)
    if active:
        if first + BLOCK <= elements:  # A mask that is true everywhere lets loads be vectors.
            at = first + tl.arange(0, BLOCK)
            update_elements(
                known, own, copys, None, rates, inverse, at, at, None, at >= 0, MOMENTUM, W, C, ACC
            )
        else:
            for begin in range(0, BLOCK, PART):
                part = first + begin + tl.arange(0, PART)
                update_elements(
                    known, own, copys, None, rates, inverse, part, part, None, part < elements,
                    MOMENTUM, W, C, ACC,
                )  # fmt: skip


@triton.jit
def square_at(o, i, tap, O, I, taps, NHWC: tl.constexpr, TURNED: tl.constexpr):
    """Return the places of a tap of (o, i) in the weight and in its copy."""
    if NHWC:
        at = (o * taps + tap) * I + i
    else:
        at = (o * I + i) * taps + tap
    turned = at
    if TURNED:
        if NHWC:
            turned = (i * taps + tap) * O + o
        else:
            turned = (i * O + o) * taps + tap
    return at, turned


@triton.jit
def adam_turned_kernel(
    table, gradients, gains, corrections, rates, blocks, inverse, found_inf, ROW: tl.constexpr,
    MOMENTUM: tl.constexpr, W: tl.constexpr, C: tl.constexpr, ACC: tl.constexpr, HEIGHT: tl.constexpr,
    ROWS: tl.constexpr, SIDE: tl.constexpr, NHWC: tl.constexpr, TURNED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Update one tap of HEIGHT x SIDE output and input channels of a weight [O, I, k, l].

    If TURNED, its copy lies as [I, O, k, l], else as the weight. In a square one also knows the element of the energy's
    gradient for each weight. Each side is read along its own contiguous dimension. Triton turns the square in shared
    memory. A square that is not all weights goes ROWS rows at a time, for the sake of registers (`adam_kernel`).
    """
    after_previous(DEPENDENT)
    job = blocks + 4 * tl.program_id(0)
    k, tap = tl.load(job), tl.load(job + 1)
    first = tl.load(job + 2).to(tl.int64) * HEIGHT
    i = (tl.load(job + 3).to(tl.int64) * SIDE + tl.arange(0, SIDE))[None, :]
    own, copys, energys = (
        tl.load(gradients + 3 * k), tl.load(gradients + 3 * k + 1), tl.load(gradients + 3 * k + 2)
    )  # fmt: skip
    row = table + ROW * k
    O, I, taps = tl.load(row + 6), tl.load(row + 7), tl.load(row + 8)
    known = addresses_of(row, corrections + 2 * k, gains + k, W, ACC)
    active = (own != 0) | (copys != 0) | (energys != 0)
    if found_inf is not None:
        active = active & (tl.load(found_inf) == 0)
    if active:
        if (O % HEIGHT == 0) & (I % SIDE == 0):
            # Tells the compiler the numbers that they are multiples of
            O, I = O // HEIGHT * HEIGHT, I // SIDE * SIDE
            o = first + tl.arange(0, HEIGHT)[:, None]
            at, turned = square_at(o, i, tap, O, I, taps, NHWC, TURNED)
            inside = (o >= 0) & (i >= 0)
            update_elements(
                known, own, copys, energys, rates, inverse, at, turned, o * I + i, inside, MOMENTUM, W, C, ACC
            )
        else:
            for begin in range(0, HEIGHT, ROWS):
                rows = first + begin + tl.arange(0, ROWS)[:, None]
                at, turned = square_at(rows, i, tap, O, I, taps, NHWC, TURNED)
                inside = (rows < O) & (i < I)
                update_elements(
                    known, own, copys, energys, rates, inverse, at, turned, rows * I + i, inside,
                    MOMENTUM, W, C, ACC,
                )  # fmt: skip
