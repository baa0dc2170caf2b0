"""A fill of memory by a kernel, where CUDA would run a memset. The step puts it into captured graphs (its `fills.py`).

The memory is named by its address, as a memset's node names it, and there is no tensor.
"""

from .dependent_launch import after_previous, launching
from .language import tl, triton

BLOCK = 1024  # words that a program writes
LONGEST = 1 << 30  # words of one fill; offsets stay 32-bit numbers
WORDS = {4: tl.int32, 2: tl.int16, 1: tl.int8}  # by their bytes


@triton.jit(do_not_specialize=["address", "words", "value"])
def fill_words_kernel(
    address, words, value, WORD: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):
    """Write the lowest bits of `value` to each of the `words` from an address on."""
    after_previous(DEPENDENT)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    filled = tl.full([BLOCK], value, tl.int32).to(WORD)
    tl.store(address.to(tl.pointer_type(WORD)) + i, filled, i < words)


def fill_words(address: int, words: int, value: int, size: int = 4) -> None:
    """Fill `words` words of `size` bytes from an address on.

    Args:
        address: as `Tensor.data_ptr` gives it, on the current device; a multiple of `size`.
        words: from 1 to `LONGEST`.
        value: a word's bits, from 0 to 2^32 - 1. The kernel gets a signed number, which always has 32 bits there.
        size: 4, 2 or 1.
    """
    signed = value - (1 << 32) if value >> 31 else value
    grid, options = (-(-words // BLOCK),), {"num_warps": 4, **launching()}
    fill_words_kernel[grid](address, words, signed, WORD=WORDS[size], BLOCK=BLOCK, **options)
