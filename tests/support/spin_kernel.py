"""A Triton kernel that does nothing for a known time, by the GPU's own clock. Only what has Triton imports it."""

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer


@triton.jit
def spin_kernel(state_ptr, ns, chained: tl.constexpr):
    """Wait until the clock (%globaltimer, nanoseconds) has come `ns` further; state: where to, begin, end.

    Unchained, a call counts from its own start. Chained, it counts from the planned end of the call before. A chain of
    n calls lasts n * ns, the pauses between kernels included, and a coarse clock is off once and not n times. The first
    call of a chain finds zeros in the state. One program, one warp; the interpreter has no such clock.
    """
    now = globaltimer()
    until = now + ns
    if chained:
        before = tl.load(state_ptr)
        if before == 0:
            tl.store(state_ptr + 1, now)
        else:
            until = before + ns
    while now < until:
        now = globaltimer()
    tl.store(state_ptr, until)
    tl.store(state_ptr + 2, now)
