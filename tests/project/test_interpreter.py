"""The interpreter as the tests speed it up: what it says of a kernel, and that it leaves the language as it was."""

import pytest
import torch

import kernels

if not kernels.common.tiles.INTERPRETED:
    pytest.skip("a GPU is there: nothing is interpreted", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime import interpreter


@triton.jit
def far_kernel(y_ptr, stride):
    tl.store(y_ptr, tl.program_id(0) * stride + tl.program_id(0))


@pytest.mark.parametrize("stride", [2**30, -(2**30)])
def test_an_offset_past_31_bits_is_an_error(stride):
    y = torch.zeros(1, dtype=torch.int64)
    far_kernel[(2,)](y, stride)
    assert int(y) == stride + 1
    with pytest.raises(interpreter.InterpreterError, match="int32 overflow detected"):
        far_kernel[(4,)](y, stride)
    far_kernel[(1,)](y, 7)  # and the next launch finds everything in order
    assert int(y) == 0


@triton.jit
def mixed_kernel(a_ptr, b_ptr, i_ptr, k_ptr, out_ptr, n, big, bound, steps):
    at = tl.arange(0, 4)
    a, b = tl.load(a_ptr + at), tl.load(b_ptr + at)
    i, k = tl.load(i_ptr + steps + at), tl.load(k_ptr + at)
    down = (2.0 - a * 3.0)[:, None] + b[None, :]
    kept = (i[:, None] < n) & (at[None, :] >= 1)
    y = tl.where(kept, down, -1.0) + (i + k * big)[:, None]
    y += tl.where(at == bound, 1.0, 0.0)[None, :] - 0.5 * (a > b)[:, None]
    tl.store(out_ptr + at[:, None] * 4 + at[None, :], y)


@pytest.mark.parametrize("first", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("second", [torch.float32, torch.float64])
def test_operands_of_types_seen_before_give_what_pytorch_gives(first, second):
    """The first launch of zeros looks like much else: an address by nothing, a product that is a sum."""
    torch.manual_seed(0)
    for scale in (0, 0, 1, 7):
        a, b = (scale * torch.randn(4)).to(first), (scale * torch.randn(4)).to(second)
        if scale == 7:
            a[2], b[1] = float("nan"), float("inf")
        i, k = scale * torch.arange(-2, 4, dtype=torch.int32), scale * torch.arange(4)
        n, big, bound, steps = scale, scale << 32, scale - 4, scale % 3
        out = torch.zeros(4, 4, dtype=torch.float64)
        mixed_kernel[(1,)](a, b, i, k, out, n, big, bound, steps)
        shifted, at = i[steps : steps + 4], torch.arange(4)
        down = (2 - a * 3)[:, None] + b[None, :]
        kept = (shifted[:, None] < n) & (at[None, :] >= 1)
        y = torch.where(kept, down, -1.0) + (shifted + k * big)[:, None]
        y = y + (at == bound).float()[None, :] - 0.5 * (a > b).float()[:, None]
        torch.testing.assert_close(out, y.double(), rtol=0, atol=0, equal_nan=True)
