"""A fill of memory by a kernel, where CUDA would run a memset. `stylegan_lite/fills.py` puts it into captured graphs.

The memory is named by its address, as a memset's node names it, and there is no tensor.
"""

from kernels.common.dependent_launch import after_previous, launching
from kernels.common.language import tl, triton

BLOCK = 1024  # words that a program writes
LONGEST = 1 << 30  # words of one fill; offsets stay 32-bit numbers


@triton.jit(do_not_specialize=["address", "words", "value"])
def fill_words_kernel(address, words, value, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """Write `value` to each of the 32-bit `words` from an address on."""
    after_previous(DEPENDENT)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(address.to(tl.pointer_type(tl.int32)) + i, tl.full([BLOCK], value, tl.int32), i < words)


def fill_words(address: int, words: int, value: int) -> None:
    """Fill `words` 32-bit words from an address on. It must be a multiple of 4, and lie on the current device.

    Args:
        address: as `Tensor.data_ptr` gives it.
        words: from 1 to `LONGEST`.
        value: a word's bits, from 0 to 2^32 - 1. The kernel gets a signed number, which always has 32 bits there.
    """
    signed = value - (1 << 32) if value >> 31 else value
    fill_words_kernel[(-(-words // BLOCK),)](address, words, signed, BLOCK=BLOCK, num_warps=4, **launching())
