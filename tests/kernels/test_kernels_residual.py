"""The residual block's sum and fork against plain PyTorch, beyond the table of `opcases.py`."""

import sys

import pytest
import torch
from torch import Tensor

import kernels
from ladder.receipts.watch import launches
from tests.kernels.opcases import DEVICE, FORMATS

module = sys.modules["kernels.pointwise.residual"]
LOPSIDED = (0.3, -1.0, 2.0, 0.5, 0.1)  # nothing about it is symmetric
every_format = pytest.mark.parametrize("layout", FORMATS)
torch.set_num_threads(1)


def image(*shape: int, layout="nchw", dtype=torch.float64, seed=0) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x.contiguous(memory_format=FORMATS[layout]) if len(shape) == 4 else x
    return x.to(DEVICE, dtype).requires_grad_()


def layer(*shape: int, layout="nchw", dtype=torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """x, bias, and a residual that often turns y's sign."""
    residual = image(*shape, layout=layout, dtype=dtype, seed=1).detach().mul(3).requires_grad_()
    return image(*shape, layout=layout, dtype=dtype), image(shape[1], dtype=dtype, seed=2), residual


# the sum


def test_the_mask_is_x_s_whatever_sign_y_has():
    x = torch.tensor([[1.0, -1.0, 1.0, -1.0]], device=DEVICE, requires_grad=True)
    residual = torch.tensor([[-9.0, 9.0, 9.0, -9.0]], device=DEVICE)
    y = kernels.bias_act_residual(x, None, residual, gain=1.0)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [[1, pytest.approx(0.2), 1, pytest.approx(0.2)]]


@every_format
def test_formats_and_dtypes_meet_in_x_s(layout):
    """A residual of another memory format, under autocast; its gradient comes back in its own dtype."""
    x, bias, _ = layer(2, 3, 4, 5, layout=layout, dtype=torch.float32)
    other = "nchw" if layout == "nhwc" else "nhwc"
    residual = image(2, 3, 4, 5, layout=other, dtype=torch.float32, seed=1)
    with torch.autocast(DEVICE, torch.bfloat16):
        y = kernels.bias_act_residual(x, bias, residual)
        want = kernels.bias_act_residual_reference(x, bias, residual)
    assert y.dtype == torch.bfloat16 and y.is_contiguous(memory_format=FORMATS[layout])
    torch.testing.assert_close(y, want, rtol=0.02, atol=0.02)
    grads = torch.autograd.grad(y.float().sum(), (x, bias, residual))
    assert [g.dtype for g in grads] == [torch.float32] * 3
    torch.testing.assert_close(grads[2], torch.ones_like(residual))


def test_the_residual_s_gradient_is_y_s_own_and_nothing_more_than_x_is_kept():
    saved = []
    x, bias, residual = layer(2, 3, 4, 4, layout="nhwc", dtype=torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        y = kernels.bias_act_residual(x, bias, residual)
    assert set(saved) == {x.data_ptr(), bias.data_ptr()}
    g = torch.ones_like(y)
    (found,) = torch.autograd.grad(y, residual, g)
    assert found.data_ptr() == g.data_ptr()


# the fork


def both_forks():
    return [
        lambda x, f=f: f(x, LOPSIDED, down=2, padding=(1, 2), gain=1.7)
        for f in (kernels.fork_upfirdn2d, kernels.fork_upfirdn2d_reference)
    ]


@pytest.mark.parametrize("used", [0, 1])
def test_one_branch_alone_has_its_own_gradient(used):
    x = image(1, 2, 4, 4, layout="nhwc")
    grads = (torch.autograd.grad(f(x)[used].square().sum(), x)[0] for f in both_forks())
    torch.testing.assert_close(*grads)


@every_format
def test_the_fork_in_bfloat16_rounds_the_sum_once(layout):
    x = image(2, 3, 6, 4, layout=layout, dtype=torch.bfloat16)
    exact = x.detach().double().requires_grad_()
    a, b = (
        torch.randn(s, dtype=torch.float64, device=DEVICE).bfloat16() for s in ((2, 3, 6, 4), (2, 3, 3, 2))
    )
    fork, reference = both_forks()
    (got,) = torch.autograd.grad(fork(x), x, (a, b))
    (want,) = torch.autograd.grad(reference(exact), exact, (a.double(), b.double()))
    torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=1e-2)
    assert got.is_contiguous(memory_format=FORMATS[layout])


def test_the_input_is_not_copied_and_the_kernel_is_launched_once_each_way():
    x = image(1, 2, 4, 4, layout="nhwc")
    with launches() as seen:
        same, low = both_forks()[0](x)
        torch.autograd.grad((same.sum() + low.sum()), x)
    assert same.data_ptr() == x.data_ptr()
    assert seen["upfirdn2d_kernel"]["calls"] == 2 and "add" in seen["upfirdn2d_kernel"]["tensors"]


def test_bytes_moved_are_those_of_three_images():
    x = torch.zeros(2, 3, 4, 4, dtype=torch.bfloat16)
    assert module.bytes_moved(x) == module.bytes_moved(x, backward=True) == 3 * x.nbytes
