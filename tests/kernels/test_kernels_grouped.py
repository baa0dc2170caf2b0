"""Grouped 3x3 convolutions by kernels: PyTorch's values and derivatives, at every edge of images and tiles."""

import pytest
import torch
import torch.nn.functional as F

import kernels
from kernels.linear import grouped
from kernels.linear.conv2d import conv2d_if_grouped
from tests.kernels.opcases import DEVICE
from tests.kernels.test_kernels_conv2d import all_derivatives

CL = torch.channels_last
# N, H, W, channels of a group, groups. Maps of R3GAN's ends; odd sizes; one that several programs walk down.
SHAPES = [
    (2, 4, 4, 16, 3),
    (1, 8, 8, 16, 2),
    (3, 5, 7, 8, 2),
    (1, 1, 1, 16, 2),
    (1, 3, 35, 32, 2),
    (1, 66, 3, 8, 2),
]
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 6e-3, torch.float16: 1e-3}
DTYPES = BOUNDS if DEVICE == "cpu" else grouped.DTYPES  # a GPU leaves the others to cuDNN


def tensors(shape, dtype=torch.float64):
    """Return x and weight that require gradients, drawn in the dtype."""
    n, h, w, group, groups = shape
    sizes = (n, group * groups, h, w), (group * groups, group, 3, 3)
    made = [torch.randn(size, device=DEVICE).to(dtype).to(memory_format=CL) for size in sizes]
    return [t.requires_grad_() for t in made]


@pytest.fixture
def launches(monkeypatch):
    """Return the names of the maps that ran as kernels."""
    ran = []
    for name in ("convolve", "correlate"):
        plain = getattr(grouped, name)
        monkeypatch.setattr(
            grouped, name, lambda *args, name=name, plain=plain, **kw: ran.append(name) or plain(*args, **kw)
        )
    return ran


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_both_derivatives_are_pytorch_s_in_float64(shape, dtype, launches):
    groups, inputs = shape[-1], tensors(shape, dtype)
    y = kernels.conv2d(*inputs, padding=1, groups=groups)
    assert y.dtype is dtype and y.is_contiguous(memory_format=CL)
    g = torch.randn_like(y).requires_grad_()
    first = torch.autograd.grad(y, inputs, g, create_graph=True)
    also = [torch.randn_like(d) for d in first]
    ours = [y, *first, *torch.autograd.grad(first, [*inputs, g], also)]
    x, weight, g, *also = (t.detach().double() for t in (*inputs, g, *also))
    exact = [t.requires_grad_() for t in (x, weight, g)]
    y = F.conv2d(x, weight, padding=1, groups=groups)
    first = torch.autograd.grad(y, exact[:2], g, create_graph=True)
    for got, want in zip(ours, [y, *first, *torch.autograd.grad(first, exact, also)], strict=True):
        assert (got.double() - want).norm() <= BOUNDS[dtype] * want.norm()
    assert sorted(launches) == ["convolve"] * 5 + ["correlate"] * 2  # cuDNN had no part in it


def test_in_the_place_of_pytorch_s_function_a_bias_is_added_by_the_kernel(launches):
    dtype = torch.float64 if DEVICE == "cpu" else torch.bfloat16
    x, weight = tensors((2, 4, 5, 16, 2), dtype)
    bias = torch.randn(32, dtype=dtype, device=DEVICE, requires_grad=True)

    def derive(function):
        y = function(x, weight, bias, 1, "same", groups=2)
        first = torch.autograd.grad(y.pow(3).sum(), (x, weight, bias), create_graph=True)
        return [y, *first, *torch.autograd.grad(sum(d.square().sum() for d in first), (x, weight, bias))]

    tolerance = 1e-9 if DEVICE == "cpu" else 5e-2
    for ours, plain in zip(derive(conv2d_if_grouped), derive(F.conv2d), strict=True):
        assert (ours - plain).norm() <= tolerance * plain.norm()
    assert launches


def test_a_gradient_penalty_through_a_curved_loss_is_pytorch_s(launches):
    if DEVICE != "cpu":
        pytest.skip("float64 is the interpreter's")
    x, weight = tensors((2, 5, 6, 8, 2))
    ours, plain = (
        all_derivatives(lambda x, w, f=f: f(x, w, padding=1, groups=2), x, weight)
        for f in (kernels.conv2d, F.conv2d)
    )
    torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-8)
    assert launches


@pytest.mark.parametrize(
    "config", [(16, 2, 2, 1, False, 3), (32, 3, 4, 1, True, 3, 2), (16, 1, 1, 3, False, 1, 4)]
)
def test_any_tiles_give_the_same_sums(config, monkeypatch):
    shape = (3, 7, 9, 16, 2)
    x, weight = (t.detach() for t in tensors(shape, DTYPES[0] if DEVICE != "cpu" else torch.float64))
    before = [grouped.convolve(x, weight), grouped.convolve(x, weight, True), grouped.correlate(x, x, weight)]
    monkeypatch.setattr(grouped, "CONFIGS", dict.fromkeys(grouped.CONFIGS, grouped.Config(*config)))
    after = [grouped.convolve(x, weight), grouped.convolve(x, weight, True), grouped.correlate(x, x, weight)]
    torch.testing.assert_close(after, before, rtol=2e-2 if DEVICE != "cpu" else 1e-12, atol=1e-2)


@pytest.mark.parametrize(
    "change", [{"padding": 0}, {"stride": 2}, {"groups": 1}, {"layout": "nchw"}], ids=str
)
def test_other_convolutions_stay_pytorch_s(change, launches):
    change = {"padding": 1, "stride": 1, "groups": 2, "layout": "nhwc"} | change
    x, _ = tensors((2, 6, 6, 16, 2))
    weight = torch.randn(32, 32 // change["groups"], 3, 3, dtype=torch.float64, device=DEVICE)
    if change.pop("layout") == "nchw":
        x = x.detach().contiguous()
    torch.testing.assert_close(kernels.conv2d(x, weight, **change), F.conv2d(x, weight, **change))
    assert not launches


def test_the_transposed_convolution_runs_the_same_maps(launches):
    x, weight = tensors((2, 4, 5, 8, 2), next(iter(DTYPES)) if DEVICE == "cpu" else torch.bfloat16)
    ours = kernels.conv_transpose2d(x, weight, padding=1, groups=2)
    plain = F.conv_transpose2d(x, weight, padding=1, groups=2)
    g = torch.randn_like(ours)
    both = [[y, *torch.autograd.grad(y, (x, weight), g)] for y in (ours, plain)]
    torch.testing.assert_close(*both, rtol=2e-2 if DEVICE != "cpu" else 1e-8, atol=1e-2)
    assert launches == ["convolve", "convolve", "correlate"]


def test_compiled_code_runs_the_kernels_too(launches):
    x, weight = tensors((2, 4, 5, 8, 2), torch.float32 if DEVICE == "cpu" else torch.bfloat16)

    def call(x, weight):
        return kernels.conv2d(x, weight, padding=1, groups=2)

    eager = call(x, weight)
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)(x, weight)
    both = [[y, *torch.autograd.grad(y.square().sum(), (x, weight))] for y in (compiled, eager)]
    torch.testing.assert_close(*both)
    assert launches == ["convolve"] * 2 + ["convolve", "correlate"] * 2
