"""The ops as torch.library operators: what torch.compile is told of them is true, and compiled they do the same."""

import pytest
import torch
from torch.library import opcheck

import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LIBRARY = torch.ops.stylegan_ladder
LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)


def tensors(*shapes: tuple[int, ...], grad: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, device=DEVICE).requires_grad_(grad) for shape in shapes]


def layer(layout, *shapes):
    """x [2, 4, 3, 5] in this memory format, what else the layer takes, and noise, which is data."""
    x, *others = tensors((2, 4, 3, 5), *shapes)
    x = x.detach().contiguous(memory_format=layout).requires_grad_()
    return x, *others, torch.randn(2, 1, 3, 5, device=DEVICE)


@LAYOUTS
@pytest.mark.parametrize("scaled", [False, True])
def test_bias_act(layout, scaled):
    x, bias, strength, scale, noise = layer(layout, (4,), (), (2, 4))
    noise, strength, scale = (noise, strength, scale) if scaled else (None, None, None)
    opcheck(LIBRARY.bias_act.default, (x, bias, noise, strength, scale, 0.2, 1.4, None, torch.float32))
    ref = x if scaled else x.detach().abs()
    needs = [True, True, scaled, scaled]
    inputs = [t if t is None else t.detach() for t in (x, ref, bias, noise, strength, scale)]
    nhwc = layout is torch.channels_last
    opcheck(LIBRARY.bias_act_grad.default, (*inputs, 0.2, 1.4, None, nhwc, torch.float32, needs))


@LAYOUTS
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


# Of operators that return more than the user sees, the rest is no function to be differentiated; the gradient of what
# the user sees is asked for in `test_compiled_layers`.
FORWARD = ("test_schema", "test_autograd_registration", "test_faketensor")


@LAYOUTS
def test_instance_norm_act(layout):
    x, scale, bias, strength, noise = layer(layout, (2, 4), (2, 4), ())
    arguments = (x, scale, bias, noise, strength, 1e-5, 0.2, 1.4, torch.float32)
    opcheck(LIBRARY.instance_norm_act.default, arguments, test_utils=FORWARD)
    inputs = [t.detach() for t in (torch.ones_like(x), x, scale, bias, noise, strength)]
    moments = torch.zeros(2, 4, device=DEVICE), torch.ones(2, 4, device=DEVICE)
    needs = [True, True, True, False]
    opcheck(LIBRARY.instance_norm_act_grad.default, (*inputs, *moments, 0.2, 1.4, needs))


def style_layer(ops, x, style, weight, bias, strength, noise):
    y = ops("modulate")(x, style)
    return ops("bias_act")(y, bias, scale=ops("demodulate")(weight, style), noise=noise, strength=strength)


def adain_layer(ops, x, scale, bias, strength, noise):
    return ops("instance_norm_act")(x, scale, bias, noise=noise, strength=strength)


@LAYOUTS
@pytest.mark.parametrize(
    ("function", "shapes"),
    [(style_layer, ((2, 4), (4, 4, 3, 3), (4,), ())), (adain_layer, ((2, 4), (2, 4), ()))],
)
def test_compiled_layers(function, shapes, layout):
    """As one graph, without a break, values and gradients the same."""
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
    assert any("stylegan_ladder" in name for name in seen)
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
