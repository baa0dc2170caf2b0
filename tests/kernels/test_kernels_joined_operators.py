"""toRGB, fromRGB, the filters with an activation and the fork under torch.compile: what it is told of them is true."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

import kernels
from kernels.linear.rgb_kernels import Call
from kernels.upfirdn.filtered_act import _check

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LIBRARY = torch.ops.kernels
TAPS = (0.1, 0.4, 0.3, 0.2)
LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
# Every check of an operator takes seconds in the interpreter: the quick one has every input, as a step gives them.
# `test_compiled_they_are_one_graph_of_operators` gives every input in both memory formats.
WHOLE = pytest.mark.parametrize(
    ("layout", "whole"),
    [
        (torch.channels_last, True),
        pytest.param(torch.contiguous_format, False, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
torch.set_num_threads(1)


def tensors(
    *shapes: tuple[int, ...], layout=torch.contiguous_format, dtype=torch.float32
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    found = (torch.randn(shape, device=DEVICE, dtype=dtype) for shape in shapes)
    found = [t.contiguous(memory_format=layout) if t.dim() == 4 else t for t in found]
    return [t.requires_grad_() for t in found]


def detached(*given):
    return [t if t is None else t.detach() for t in given]


def rgb_call(layout, shared: bool, dtype=torch.float32) -> Call:
    nhwc = layout is torch.channels_last
    return Call(0.7, shared, nhwc, nhwc, dtype, dtype)


def act_plain(x) -> list:
    """Return the arguments of the filters' operators: tuples become lists."""
    plain = _check(x, None, TAPS, (2, 1), 1.5, 0.2, 1.4).of(x).plain()
    return [list(part) if isinstance(part, tuple) else part for part in plain]


# what the operators say of themselves


@pytest.mark.covering
@LAYOUTS
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("needs", [[True, True, True], [True, False, True], [False, True, False]], ids=str)
def test_to_rgb(layout, shared, needs):
    x, w, bias = tensors((2, 5, 3, 4), (1 if shared else 2, 3, 5), (3,), layout=layout)
    call = rgb_call(layout, shared)
    if all(needs):  # what it computes does not hang on which gradients are asked for
        opcheck(LIBRARY.rgb_narrow.default, (x, w, bias, *call))
    g = torch.ones(2, 3, 3, 4, device=DEVICE)
    opcheck(LIBRARY.rgb_narrow_grad.default, (g, *detached(x, w, bias), *call, needs))


@pytest.mark.covering
@LAYOUTS
@pytest.mark.parametrize("act", [(0.2, 1.4), (1.0, 1.0)], ids=str)
@pytest.mark.parametrize("needs", [[True, True, True], [True, False, True], [False, True, False]], ids=str)
def test_from_rgb(layout, act, needs):
    image, w, bias = tensors((2, 3, 3, 4), (1, 3, 5), (5,), layout=layout)
    call = rgb_call(layout, True)
    if all(needs):
        opcheck(LIBRARY.rgb_wide.default, (image, w, bias, *act, *call))
    y = LIBRARY.rgb_wide(*detached(image, w, bias), *act, *call)
    inputs = torch.ones(y.shape, device=DEVICE), *detached(image, w, bias), y
    opcheck(LIBRARY.rgb_wide_grad.default, (*inputs, *act, *call, needs))


@WHOLE
def test_act_filter(layout, whole):
    x, bias = tensors((2, 4, 3, 5), (4,), layout=layout)
    bias, plain = bias if whole else None, act_plain(x)
    opcheck(LIBRARY.act_filter.default, (x, bias, *plain, torch.float32))
    y = LIBRARY.act_filter(*detached(x, bias), *plain, torch.bfloat16)
    needs = [True, whole]
    opcheck(LIBRARY.act_filter_grad.default, (torch.ones_like(y), *detached(x, bias), *plain, needs))


@WHOLE
def test_filter_act(layout, whole):
    x, bias, strength, scale = tensors((2, 4, 3, 5), (4,), (), (2, 4), layout=layout)
    plain = act_plain(x)
    noise = torch.randn(2, 1, *plain[6], device=DEVICE) if whole else None
    others = [bias, noise, strength, scale] if whole else [bias, None, None, None]
    opcheck(LIBRARY.filter_act.default, (x, *others, *plain, torch.float32))
    y = LIBRARY.filter_act(*detached(x, *others), *plain, torch.float32)
    needs = [True, True, whole, whole]
    inputs = torch.ones(y.shape, device=DEVICE), y, *detached(*others)
    opcheck(LIBRARY.filter_act_grad.default, (*inputs, *plain, needs))


@WHOLE
def test_filter_act_modulate(layout, whole):
    x, bias, strength, scale, style = tensors((2, 4, 3, 5), (4,), (), (2, 4), (2, 4), layout=layout)
    plain = act_plain(x)
    noise = torch.randn(2, 1, *plain[6], device=DEVICE) if whole else None
    others = [bias, noise, strength, scale, style] if whole else [bias, None, None, None, style]
    opcheck(LIBRARY.filter_act_modulate.default, (x, *others, *plain, torch.float32))
    y = LIBRARY.filter_act_modulate(*detached(x, *others), *plain, torch.float32)
    needs = [True, True, whole, whole, True]
    inputs = torch.ones(y.shape, device=DEVICE), y, *detached(*others)
    opcheck(LIBRARY.filter_act_modulate_grad.default, (*inputs, *plain, needs))


# in eager mode they can be differentiated twice


@pytest.mark.covering
@LAYOUTS
@pytest.mark.parametrize("name", ["to_rgb", "from_rgb", "act_filter", "filter_act", "filter_act_modulate"])
def test_in_eager_mode_they_are_differentiable_twice(name, layout):
    wide = {"layout": layout, "dtype": torch.float64}
    call = rgb_call(layout, name == "from_rgb", torch.float64)
    if name == "to_rgb":
        inputs = tensors((2, 3, 2, 2), (2, 2, 3), (2,), **wide)
        function = lambda x, w, b: LIBRARY.rgb_narrow(x, w, b, *call)  # noqa: E731
    elif name == "from_rgb":
        inputs = tensors((2, 2, 2, 2), (1, 2, 3), (3,), **wide)
        function = lambda x, w, b: LIBRARY.rgb_wide(x, w, b, 0.2, 1.4, *call)  # noqa: E731
    elif name == "act_filter":
        inputs = tensors((1, 2, 3, 2), (2,), **wide)
        plain = (*act_plain(inputs[0]), torch.float64)
        function = lambda x, b: LIBRARY.act_filter(x, b, *plain)  # noqa: E731
    else:
        shapes = ((1, 2),) * (1 + (name == "filter_act_modulate"))
        inputs = tensors((1, 2, 3, 2), (2,), (), *shapes, **wide)
        plain = (*act_plain(inputs[0]), torch.float64)
        noise = torch.randn(1, 1, *plain[6], device=DEVICE, dtype=torch.float64)
        op = getattr(LIBRARY, name)
        function = lambda x, b, k, *styles: op(x, b, noise, k, *styles, *plain)  # noqa: E731
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


# what the ops are, compiled


def ours(name: str):
    return getattr(kernels, name)


def reference(name: str):
    return getattr(kernels, f"{name}_reference")


def to_rgb(ops, x, weight, style, bias):
    return ops("to_rgb")(x, weight, style, bias, gain=0.5)


def to_rgb_shared(ops, x, weight):
    return ops("to_rgb")(x, weight, gain=0.5, dtype=torch.float64)


def from_rgb(ops, image, weight, bias):
    return ops("from_rgb")(image, weight, bias, gain=0.5)


def from_rgb_plain(ops, image, weight, bias):
    """Without an activation, and with one whose sign tells nothing."""
    y = ops("from_rgb")(image, weight, slope=1.0, act_gain=1.0, channels_last=True)
    return y + ops("from_rgb")(image, weight, bias, slope=0.0)


def act_filter(ops, x, bias):
    return ops("act_filter")(x, bias, TAPS, padding=2, filter_gain=1.5)


def filter_act(ops, x, bias, strength, scale):
    noise = torch.linspace(-1, 1, 24, device=x.device).view(1, 1, 4, 6)
    given = {"noise": noise, "strength": strength, "scale": scale, "padding": 2}
    return ops("filter_act")(x, TAPS, bias, **given)


def filter_act_modulate(ops, x, style, bias, strength, scale):
    noise = torch.linspace(-1, 1, 24, device=x.device).view(1, 1, 4, 6)
    given = {"noise": noise, "strength": strength, "scale": scale, "padding": 2}
    return ops("filter_act_modulate")(x, TAPS, style, bias, **given)


def filter_act_alone(ops, x):
    return ops("filter_act")(x, TAPS, padding=(1, 2), gain=1.0)


def fork(ops, x):
    same, low = ops("fork_upfirdn2d")(x, TAPS, down=2, padding=1)
    return torch.cat([(same * 3).flatten(), low.flatten()])


FUNCTIONS = [
    (to_rgb, ((2, 5, 3, 5), (3, 5), (2, 5), (3,))),
    (to_rgb_shared, ((2, 5, 3, 5), (2, 5, 1, 1))),
    (from_rgb, ((2, 3, 3, 5), (5, 3), (5,))),
    (from_rgb_plain, ((2, 3, 3, 5), (5, 3, 1, 1), (5,))),
    (act_filter, ((2, 4, 3, 5), (4,))),
    (filter_act, ((2, 4, 3, 5), (4,), (), (2, 4))),
    (filter_act_modulate, ((2, 4, 3, 5), (2, 4), (4,), (), (2, 4))),
    (filter_act_alone, ((2, 4, 3, 5),)),
    (fork, ((2, 4, 4, 6),)),
]


@pytest.mark.covering
@LAYOUTS
@pytest.mark.parametrize(("function", "shapes"), FUNCTIONS, ids=lambda given: getattr(given, "__name__", ""))
def test_compiled_they_are_one_graph_of_operators(function, shapes, layout):
    """Without a break, and values, memory formats and gradients are those of plain PyTorch."""
    inputs, seen = tensors(*shapes, layout=layout), []

    def backend(graph, example):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return torch._dynamo.lookup_backend("aot_eager")(graph, example)

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    got, want = compiled(ours, *inputs), function(reference, *inputs)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert got.stride() == want.stride()
    assert any(name.startswith("kernels.") for name in seen) and not any("autograd" in name for name in seen)
    grads = [torch.autograd.grad(y.square().sum(), inputs) for y in (got, want)]
    for a, b in zip(*grads, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "layout",
    [pytest.param(torch.contiguous_format, marks=pytest.mark.exhaustive), torch.channels_last],
    ids=str,
)
def test_under_autocast_they_have_its_dtype(layout):
    x, bias = tensors((2, 3, 3, 5), (3,), layout=layout)
    (weight,) = tensors((3, 3))

    def layers(x, bias, weight):
        y = kernels.act_filter(kernels.from_rgb(x, weight, bias), bias, TAPS, padding=2)
        y = kernels.filter_act(y, TAPS, bias, padding=1)
        return y, kernels.to_rgb(y, weight, bias=bias, dtype=torch.float32)

    with torch.autocast(DEVICE, torch.bfloat16):
        got = torch.compile(layers, backend="aot_eager", fullgraph=True)(x, bias, weight)
        want = layers(x, bias, weight)
    assert [t.dtype for t in got] == [torch.bfloat16, torch.float32]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    grads = [torch.autograd.grad(y[1].square().sum(), (x, bias, weight)) for y in (got, want)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)
