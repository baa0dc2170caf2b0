"""minibatch_std against its plain-PyTorch reference and the model's own spelling, differentiated twice."""

import pytest
import torch
from torch import Tensor

import kernels
from stylegan_lite import networks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
GROUPS = {  # samples, group, parts
    "two groups in each of two parts": (8, 2, 2),
    "one group a part": (6, 3, 2),
    "parts smaller than a group": (4, 4, 2),
    "no statistics": (2, 1, 1),
    "strided": (6, 2, 1),
}
every_format = pytest.mark.parametrize("layout", FORMATS)
torch.set_num_threads(1)


def image(*shape: int, layout="nchw", dtype=torch.float64) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.to(DEVICE, dtype).contiguous(memory_format=FORMATS[layout]).requires_grad_()


def values_and_grads(function, x: Tensor) -> list[Tensor]:
    """y, dx along a fixed g, the plain gradient of a square, and R1's: of the squares of dx, by x and g."""
    y = function(x)
    g = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).view(y.shape).to(y.device, y.dtype)
    g.requires_grad_()
    (plain,) = torch.autograd.grad(function(x), x, g)
    (dx,) = torch.autograd.grad(y, x, g, create_graph=True)
    penalty = dx.to(torch.promote_types(dx.dtype, torch.float32)).square().sum()
    second = torch.autograd.grad(penalty, (x, g), allow_unused=True, materialize_grads=True)
    return [t.detach() for t in (y, plain, dx, *second)]


@every_format
@pytest.mark.parametrize("case", GROUPS)
def test_values_and_both_gradients_agree_with_the_reference(case, layout):
    n, group, parts = GROUPS[case]
    x = image(n, 5, 3, 2, layout=layout)
    found = (
        values_and_grads(lambda x, f=f: f(x, group, parts=parts, multiple=4), x)
        for f in (kernels.minibatch_std, kernels.minibatch_std_reference)
    )
    got, want = found
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    assert all(t.is_contiguous(memory_format=FORMATS[layout]) for t in got[:4])  # the last has that of g


@every_format
def test_it_is_what_the_model_computes(layout):
    x = image(8, 7, 4, 4, layout=layout)
    want = networks.minibatch_std(x, 2, 2, 8)
    torch.testing.assert_close(kernels.minibatch_std(x, 2, parts=2, multiple=8), want)
    assert want.shape[1] == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_statistics_are_kept_in_full_precision(dtype):
    """Samples whose differences a half-precision mean would swallow, and whose dtype autocast leaves alone."""
    x = (image(4, 6, 4, 4, layout="nhwc") + 30).to(dtype).detach().requires_grad_()
    exact = x.detach().double().requires_grad_()
    with torch.autocast(DEVICE, torch.bfloat16):
        y = kernels.minibatch_std(x, 4, multiple=8)
    want = kernels.minibatch_std_reference(exact, 4, multiple=8)
    eps = torch.finfo(dtype).eps
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), want, rtol=2 * eps, atol=0)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    (got,), (dx,) = torch.autograd.grad(y, x, g), torch.autograd.grad(want, exact, g.double())
    torch.testing.assert_close(got.double(), dx, rtol=2 * eps, atol=2 * eps)
