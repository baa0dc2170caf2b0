"""The ops as torch.library operators: what torch.compile is told of them is true, and compiled they do the same."""

import pytest
import torch
from torch.library import opcheck

import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LIBRARY = torch.ops.kernels
LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
# Every check of an operator takes seconds in the interpreter; compiled layers have both memory formats.
LAST_QUICK = pytest.mark.parametrize(
    "layout",
    [pytest.param(torch.contiguous_format, marks=pytest.mark.exhaustive), torch.channels_last],
    ids=str,
)


def tensors(*shapes: tuple[int, ...], grad: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, device=DEVICE).requires_grad_(grad) for shape in shapes]


def layer(layout, *shapes):
    """x [2, 4, 3, 5] in this memory format, what else the layer takes, and noise, which is data."""
    x, *others = tensors((2, 4, 3, 5), *shapes)
    x = x.detach().contiguous(memory_format=layout).requires_grad_()
    return x, *others, torch.randn(2, 1, 3, 5, device=DEVICE)


@LAST_QUICK
@pytest.mark.parametrize("scaled", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_bias_act(layout, scaled):
    x, bias, strength, scale, noise = layer(layout, (4,), (), (2, 4))
    noise, strength, scale = (noise, strength, scale) if scaled else (None, None, None)
    opcheck(LIBRARY.bias_act.default, (x, bias, noise, strength, scale, 0.2, 1.4, None, torch.float32))
    ref = x if scaled else x.detach().abs()
    needs = [True, True, scaled, scaled]
    inputs = [t if t is None else t.detach() for t in (x, ref, bias, noise, strength, scale)]
    nhwc = layout is torch.channels_last
    opcheck(LIBRARY.bias_act_grad.default, (*inputs, 0.2, 1.4, None, nhwc, torch.float32, needs))


@LAST_QUICK
def test_modulate(layout):
    x, style, _ = layer(layout, (2, 4))
    opcheck(LIBRARY.modulate.default, (x, style, torch.bfloat16))
    g = torch.ones_like(x, memory_format=torch.contiguous_format)
    opcheck(LIBRARY.modulate_grad.default, (g, x.detach(), style.detach(), [True, False]))


def test_demodulate():
    weight, style = tensors((6, 4, 3, 3), (2, 4))
    opcheck(LIBRARY.demodulate.default, (weight, style, 1e-8), test_utils=FORWARD)
    d, w2 = LIBRARY.demodulate(weight.detach(), style.detach(), 1e-8)
    inputs = (torch.ones_like(d), weight.detach(), style.detach(), d, w2)
    opcheck(LIBRARY.demodulate_grad.default, (*inputs, [True, True]))


# Some operators return more than the user sees. The rest is no function to be differentiated. `test_compiled_layers`
# asks for the gradient of the visible part.
FORWARD = ("test_schema", "test_autograd_registration", "test_faketensor")


@LAST_QUICK
def test_instance_norm_act(layout):
    x, scale, bias, strength, noise = layer(layout, (2, 4), (2, 4), ())
    arguments = (x, scale, bias, noise, strength, 1e-5, 0.2, 1.4, torch.float32)
    opcheck(LIBRARY.instance_norm_act.default, arguments, test_utils=FORWARD)
    inputs = [t.detach() for t in (torch.ones_like(x), x, scale, bias, noise, strength)]
    moments = torch.zeros(2, 4, device=DEVICE), torch.ones(2, 4, device=DEVICE)
    needs = [True, True, True, False]
    opcheck(LIBRARY.instance_norm_act_grad.default, (*inputs, *moments, 0.2, 1.4, needs))


UPFIRDN2D = {"up": 2, "padding": (2, 1)}, {"down": 2, "padding": 1}, {"padding": (1, 2, 3, -1), "gain": 4.0}


def a_map(x, **how):
    """What the operator takes of a call: tuples become lists."""
    from kernels.upfirdn.upfirdn2d import _plan

    how = {"up": 1, "down": 1, "padding": 0, "gain": 1.0, "flip": False} | how
    call = _plan(x, (0.1, 0.4, 0.3, 0.2), **how)._replace(nhwc=not x.is_contiguous())
    return [list(each) if isinstance(each, tuple) else each for each in call]


@pytest.mark.covering
@LAYOUTS
@pytest.mark.parametrize("how", UPFIRDN2D)
def test_upfirdn2d(layout, how):
    x, *_ = layer(layout)
    opcheck(LIBRARY.upfirdn2d.default, (x, *a_map(x, **how)))


CONVOLUTIONS = [
    ((6, 4, 3, 3), [[1, 1], [1, 1], [0, 0], False, 1]),
    ((6, 2, 3, 3), [[2, 2], [1, 0], [0, 0], False, 2]),  # leaves a row of x over
    ((4, 3, 3, 2), [[2, 1], [1, 0], [1, 0], True, 2]),
]


@pytest.mark.covering
@LAYOUTS
@pytest.mark.parametrize(("shape", "geometry"), CONVOLUTIONS)
def test_convolution_and_its_weight_gradient(layout, shape, geometry):
    x, weight, _ = layer(layout, shape)
    weight = weight.detach().contiguous(memory_format=layout).requires_grad_()
    geometry = [*geometry, layout is torch.channels_last]
    opcheck(LIBRARY.convolution.default, (x, weight, *geometry))
    y = LIBRARY.convolution(x, weight, *geometry)
    g = torch.ones_like(y).requires_grad_()
    opcheck(LIBRARY.correlation.default, (g, x, weight.detach(), *geometry))


def style_layer(ops, x, style, weight, bias, strength, noise):
    y = ops("modulate")(x, style)
    return ops("bias_act")(y, bias, scale=ops("demodulate")(weight, style), noise=noise, strength=strength)


def adain_layer(ops, x, scale, bias, strength, noise):
    return ops("instance_norm_act")(x, scale, bias, noise=noise, strength=strength)


def down_layer(ops, x, weight, bias, _):
    x = ops("upfirdn2d")(x, (0.125, 0.375, 0.375, 0.125), padding=2)
    return ops("bias_act")(ops("conv2d")(x, weight, stride=2, padding=1), bias)


def up_layer(ops, x, weight, bias, _):
    y = ops("conv_transpose2d")(x, weight, stride=2, padding=1, output_padding=1)
    return ops("upfirdn2d")(ops("bias_act")(y, bias), (1, 3, 3, 1), up=2, down=2, padding=(2, 1), gain=0.1)


@pytest.mark.covering
@LAYOUTS
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (style_layer, ((2, 4), (4, 4, 3, 3), (4,), ())),
        (adain_layer, ((2, 4), (2, 4), ())),
        (down_layer, ((6, 4, 3, 3), (6,))),
        (up_layer, ((4, 6, 3, 3), (6,))),
    ],
)
def test_compiled_layers(function, shapes, layout):
    """They are one graph without a break, with the same values and gradients."""
    inputs = layer(layout, *shapes)
    wanted = [t for t in inputs if t.requires_grad]
    seen = []

    def backend(graph, example):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return torch._dynamo.lookup_backend("aot_eager")(graph, example)

    fused = torch.compile(
        lambda *a: function(lambda n: getattr(kernels, n), *a), backend=backend, fullgraph=True
    )
    got, want = fused(*inputs), function(lambda n: getattr(kernels, f"{n}_reference"), *inputs)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert got.stride() == want.stride()
    assert any(name.startswith("kernels.") for name in seen)
    assert not any("autograd" in name for name in seen)  # no op went the way of an eager call
    grads = (torch.autograd.grad(y.square().sum(), wanted) for y in (got, want))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_autocast_decides_the_dtype_of_compiled_ops():
    x, style = tensors((2, 4, 3, 5), (2, 4))
    with torch.autocast(DEVICE, torch.bfloat16):
        y = torch.compile(kernels.modulate, backend="aot_eager", fullgraph=True)(x, style)
    assert y.dtype == torch.bfloat16


def test_in_eager_mode_operators_are_differentiable_twice():
    x, style = tensors((2, 3, 2, 2), (2, 3))
    inputs = [t.detach().double().requires_grad_() for t in (x, style)]
    function = lambda x, s: LIBRARY.modulate(x, s, torch.float64)  # noqa: E731
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("how", UPFIRDN2D)
def test_resampling_is_differentiable_twice_as_an_operator(how):
    x = layer(torch.channels_last)[0].detach().double().requires_grad_()
    function = lambda x: LIBRARY.upfirdn2d(x, *a_map(x, **how)).square()  # noqa: E731
    assert torch.autograd.gradgradcheck(function, [x], fast_mode=True)


@pytest.mark.parametrize(("shape", "geometry"), CONVOLUTIONS)
def test_convolution_is_differentiable_twice_as_an_operator(shape, geometry):
    inputs = [t.detach().double().requires_grad_() for t in tensors((2, 4, 4, 5), shape)]
    function = lambda x, w: LIBRARY.convolution(x, w, *geometry, False)  # noqa: E731
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


def test_autocast_leaves_the_operators_as_the_call_decided():
    """conv2d under autocast is bf16, resampling keeps x's dtype, and gradients have the dtype of their inputs."""
    x, weight, _ = layer(torch.channels_last, (6, 4, 3, 3))
    with torch.autocast(DEVICE, torch.bfloat16):
        function = lambda x, w: kernels.upfirdn2d(kernels.conv2d(x, w, padding=1), (1.0, 1.0), padding=1)  # noqa: E731
        y = torch.compile(function, backend="aot_eager", fullgraph=True)(x, weight)
        z = LIBRARY.convolution(x, weight.detach(), [1, 1], [0, 0], [0, 0], False, 1, True)
    assert (y.dtype, z.dtype) == (torch.bfloat16, torch.float32)
    assert [t.dtype for t in torch.autograd.grad(y.sum(), (x, weight))] == [torch.float32] * 2
