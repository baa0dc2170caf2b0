"""The kernel that takes a memset's place: every word that it was asked for, and no other."""

import pytest
import torch

import kernels
from kernels.common.fill import BLOCK, fill_words


@pytest.mark.skipif(kernels.available() is not None, reason="no GPU, and Triton is not interpreted")
@pytest.mark.parametrize("value", [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xABABABAB])
def test_words_between_two_others_are_filled(value):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    bits = value - (1 << 32) if value >> 31 else value
    for words in (1, 16, BLOCK, 2 * BLOCK + 7):
        expected = torch.full((words + 4,), 5, dtype=torch.int32, device=device)
        found = expected.clone()
        expected[3:-1] = bits
        fill_words(found[3:].data_ptr(), words, value)  # 12 bytes behind what is aligned
        assert torch.equal(found, expected), words


@pytest.mark.skipif(kernels.available() is not None, reason="no GPU, and Triton is not interpreted")
@pytest.mark.parametrize(
    "dtype, value, bits", [(torch.int16, 0xBEEF, 0xBEEF - (1 << 16)), (torch.int8, 0xAB, -85)]
)
def test_shorter_words_are_filled_with_as_many_bits(dtype, value, bits):
    expected = torch.full((BLOCK + 9,), 5, dtype=dtype, device="cuda" if torch.cuda.is_available() else "cpu")
    found = expected.clone()
    expected[3:-1] = bits
    fill_words(found[3:].data_ptr(), BLOCK + 5, value, dtype.itemsize)
    assert torch.equal(found, expected)
