"""Convolutions whose second derivative is made of convolutions: PyTorch's numbers and formats, not its ways."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels.common import needed
from tests.kernels.opcases import DEVICE, FORMATS

OPS = {"conv2d": kernels.conv2d, "conv_transpose2d": kernels.conv_transpose2d}
PLAIN = {"conv2d": F.conv2d, "conv_transpose2d": F.conv_transpose2d}
torch.set_num_threads(1)
every_op = pytest.mark.parametrize("op", OPS)
# The model's own: plain, its two ways of resampling with a 6x6 filter, the skip's, and the grouped per-sample weights.
MODEL = [
    ("conv2d", 3, {"padding": 1}),
    ("conv2d", 6, {"stride": 2, "padding": 2}),
    ("conv2d", 4, {"stride": 2, "padding": 1}),
    ("conv2d", 3, {"padding": 1, "groups": 2}),
    ("conv2d", 3, {"stride": 2}),  # ignores the last row and column of an even image
    ("conv_transpose2d", 6, {"stride": 2, "padding": 2}),
    ("conv_transpose2d", 3, {"stride": 2}),
    ("conv_transpose2d", 3, {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
]
every_case = pytest.mark.parametrize("op, kernel, how", MODEL)


def tensors(
    op="conv2d", kernel=3, how=None, *, layout="nchw", dtype=torch.float64, n=2, c=4, o=6, size=(6, 8)
):
    """x and weight that require gradients."""
    groups = (how or {}).get("groups", 1)
    shape = (c, o // groups) if op == "conv_transpose2d" else (o, c // groups)
    sizes = (n, c, *size), (*shape, *((kernel, kernel) if isinstance(kernel, int) else kernel))
    made = [torch.randn(s, dtype=dtype, device=DEVICE) for s in sizes]
    return [t.contiguous(memory_format=FORMATS[layout]).requires_grad_() for t in made]


def all_derivatives(function, x, weight, wanted=(True, True)):
    """y, first gradients along a curved loss, and the gradients of R1's penalty by x and weight."""
    y = function(x, weight)
    inputs = [t for t, on in zip((x, weight), wanted, strict=True) if on]
    first = torch.autograd.grad(y.pow(3).sum(), inputs, create_graph=True)
    return [y, *first, *torch.autograd.grad(sum(d.square().sum() for d in first), (x, weight))]


def agree(op, inputs, how, **options):
    results = [
        all_derivatives(lambda x, w, f=f: f(x, w, **how), *inputs, **options) for f in (OPS[op], PLAIN[op])
    ]
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)


@every_case
def test_gradients_of_gradients_are_those_of_the_function(op, kernel, how):
    inputs = tensors(op, kernel, how, n=1, c=2, o=2, size=(5, 4))
    for only in ((True, True), (True, False), (False, True)):  # what the other one needs is not computed
        some = [t.detach().requires_grad_(needed) for t, needed in zip(inputs, only, strict=True)]
        assert gradcheck(lambda x, w: OPS[op](x, w, **how), some, fast_mode=True)
        assert gradgradcheck(lambda x, w: OPS[op](x, w, **how), some, fast_mode=True)


@every_case
@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("layout", FORMATS)
def test_values_and_both_derivatives_are_pytorch_s(op, kernel, how, wanted, layout):
    agree(op, tensors(op, kernel, how, layout=layout), how, wanted=wanted)


@every_op
@hypothesis.settings(max_examples=20, deadline=None, derandomize=True)
@hypothesis.given(data=st.data())
def test_any_geometry_gives_pytorch_s_derivatives(op, data):
    def pair(low, high):
        return data.draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    stride, padding, size, kernel, groups = pair(1, 3), pair(0, 2), pair(1, 7), pair(1, 4), pair(1, 2)[0]
    how = {"stride": stride, "padding": padding, "groups": groups}
    if op == "conv_transpose2d":
        how["output_padding"] = tuple(data.draw(st.integers(0, s - 1)) for s in stride)
        out = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(size, stride, padding, kernel, strict=True)]
    else:
        out = [n + 2 * p - k + 1 for n, p, k in zip(size, padding, kernel, strict=True)]
    hypothesis.assume(min(out) >= 1)
    n, c, o = (data.draw(st.integers(1, 3)) for _ in range(3))
    agree(op, tensors(op, kernel, how, n=n, c=2 * c, o=2 * o, size=size), how)


# ---- memory formats and dtypes beyond the table of `opcases.py` ------------------------------------------------------


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_tensor_of_both_derivatives_stays_channels_last(op, kernel, how, dtype):
    inputs = tensors(op, kernel, how, layout="nhwc", dtype=dtype)
    for t in all_derivatives(lambda x, w: OPS[op](x, w, **how), *inputs):
        assert t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous()
        assert t.dtype is dtype


@every_op
def test_a_gradient_that_arrives_in_nchw_or_expanded_is_taken_in_channels_last(op):
    x, weight = tensors(op, layout="nhwc")
    y = OPS[op](x, weight)
    for g in (torch.ones_like(y).contiguous(), y.new_ones(()).expand(y.shape)):
        (dx,) = torch.autograd.grad(y, x, g, create_graph=True)
        assert dx.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(dx, torch.autograd.grad(PLAIN[op](x, weight), x, torch.ones_like(y))[0])


def test_nchw_stays_nchw_and_an_image_without_a_format_takes_the_weight_s():
    (x, weight), (one, narrow) = (
        tensors(),
        tensors(c=1, size=(5, 5)),
    )  # one channel: both formats are the same
    assert kernels.conv2d(x, weight.detach().to(memory_format=torch.channels_last)).is_contiguous()
    assert kernels.conv2d(one, narrow).is_contiguous()
    pixel, weight = tensors("conv_transpose2d", layout="nhwc", size=(1, 1))
    y = kernels.conv_transpose2d(pixel.detach().contiguous(), weight)
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_autocast_leaves_float64_alone_and_backward_ignores_it():
    """On a GPU autocast would also catch the convolutions of a backward pass; on a CPU it lets these through."""
    x, weight = tensors()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert kernels.conv2d(x, weight).dtype is torch.float64
    x, weight = tensors(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"one dtype, got torch\.float32 and torch\.bfloat16"):
        kernels.conv2d(x, weight.bfloat16())
    y = kernels.conv2d(x, weight)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        inside = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
        assert kernels.conv2d(x, weight.bfloat16()).dtype is torch.bfloat16
    assert torch.equal(inside, torch.autograd.grad(y.sum(), x)[0])


# ---- what is computed ------------------------------------------------------------------------------------------------


class Convolutions(TorchDispatchMode):
    """Every convolution that PyTorch is asked for: (what it computes, longest side of its kernel); formats."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []
        self.layouts: list[bool] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if "conv" in name:
            images = [t for t in args if isinstance(t, torch.Tensor)]
            self.layouts += [t.is_contiguous(memory_format=torch.channels_last) for t in images]
        if name == "convolution":
            self.seen.append(("transposed" if args[6] else "plain", max(args[1].shape[2:])))
        elif name == "convolution_backward":
            kinds = zip(("input", "weight"), args[10], strict=False)
            self.seen += [(kind, max(args[2].shape[2:])) for kind, on in kinds if on]
        elif "conv" in name:
            self.seen.append((name, 0))
        return func(*args, **(kwargs or {}))

    def take(self) -> list[str]:
        seen, self.seen = self.seen, []
        assert all(kernel <= 3 for _, kernel in seen), f"a convolution with an image for a kernel: {seen}"
        return sorted(kind for kind, _ in seen)


@pytest.fixture
def watched():
    with torch.autograd.set_multithreading_enabled(False), Convolutions() as mode:
        yield mode


def test_r1_asks_for_input_gradients_first_and_never_for_a_slow_second_derivative(watched):
    """Two layers with weights that require gradients, as the discriminator has them in D_r1."""
    x, first = tensors(dtype=torch.float32, o=4, size=(12, 12))
    second = first.detach().clone().requires_grad_()
    y = kernels.conv2d(kernels.conv2d(x, first, padding=1) * 0.7, second, padding=1)
    assert watched.take() == ["plain", "plain"]
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert watched.take() == ["transposed", "transposed"]  # one a layer, and no gradient of a weight
    gradient.square().sum().backward()
    # One weight gradient a layer, and one convolution from the first layer's derivative to the second's. Nothing goes
    # back through the first pass, which is linear (F.leaky_relu would send zeros there; kernels.bias_act does not).
    assert watched.take() == ["plain", "weight", "weight"]


def test_path_length_s_first_pass_computes_no_weight_gradient(watched):
    """The gradient by something that is not a leaf, with the weight's own graph behind it."""
    x, weight = tensors(dtype=torch.float32)
    scaled = torch.ones(2, 4, 1, 1, device=DEVICE, requires_grad=True) * 1.5
    y = kernels.conv2d(x.detach() * scaled, weight * 0.5)
    watched.take()
    torch.autograd.grad(y.sum(), scaled, create_graph=True)
    assert watched.take() == ["transposed"]


@pytest.mark.parametrize(
    "frozen, expected", [(0, ["weight"]), (1, ["transposed"]), (None, ["transposed", "weight"])]
)
def test_a_first_backward_computes_what_is_needed_once(watched, frozen, expected):
    inputs = tensors(dtype=torch.float32)
    if frozen is not None:
        inputs[frozen] = inputs[frozen].detach()
    y = kernels.conv2d(*inputs)  # PyTorch 2.11 frees a node with its result
    assert (y.grad_fn.saved_tensors[0] is None) == (frozen == 1)  # the gradient of the weight reads x
    watched.take()
    y.square().sum().backward()
    assert watched.take() == expected


def test_convolutions_get_their_images_and_weights_in_one_layout(watched):
    """Else cuDNN converts them inside the call, where nothing shows it: here each is converted once, if at all."""
    x, weight = tensors(layout="nhwc")
    weight = weight.detach().contiguous().requires_grad_()
    y = kernels.conv2d(x, weight)
    dx, dweight = torch.autograd.grad(y, (x, weight), torch.ones_like(y).contiguous(), create_graph=True)
    (dx.contiguous().square().sum() + dweight.contiguous().square().sum()).backward()
    assert len(watched.layouts) > 10 and all(watched.layouts)


def test_where_the_engine_cannot_be_asked_more_is_computed_and_the_same(watched, monkeypatch):
    monkeypatch.setattr(needed, "_will_execute", None)
    x, weight = tensors(dtype=torch.float32)
    y = kernels.conv2d(x, weight)
    watched.take()
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert watched.take() == ["transposed", "weight"]
    assert torch.equal(dx, torch.autograd.grad(F.conv2d(x, weight).sum(), x)[0])


# ---- the operators of the double backward, and the compiler ----------------------------------------------------------

CONVOLUTIONS = [
    ((6, 4, 3, 3), [[1, 1], [1, 1], [0, 0], False, 1]),
    ((6, 2, 3, 3), [[2, 2], [1, 0], [0, 0], False, 2]),  # leaves a row of x over
    ((4, 3, 3, 2), [[2, 1], [1, 0], [1, 0], True, 2]),
]


@pytest.mark.covering
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize(("shape", "geometry"), CONVOLUTIONS)
def test_convolution_and_its_weight_gradient_are_operators(layout, shape, geometry):
    sizes, nhwc = ((2, 4, 3, 5), shape), layout == "nhwc"
    x, weight = (torch.randn(s, dtype=torch.float64, device=DEVICE) for s in sizes)
    x, weight = (t.contiguous(memory_format=FORMATS[layout]).requires_grad_() for t in (x, weight))
    opcheck(torch.ops.kernels.convolution.default, (x, weight, *geometry, nhwc))
    g = torch.ones_like(torch.ops.kernels.convolution(x, weight, *geometry, nhwc)).requires_grad_()
    opcheck(torch.ops.kernels.correlation.default, (g, x, weight.detach(), *geometry, nhwc))
    function = lambda x, w: torch.ops.kernels.convolution(x, w, *geometry, nhwc)  # noqa: E731
    assert gradcheck(function, (x, weight), fast_mode=True)
    assert gradgradcheck(function, (x, weight), fast_mode=True)


@pytest.mark.parametrize(
    "op, kernel, how",
    [
        case if k in (1, 7) else pytest.param(*case, marks=pytest.mark.exhaustive)
        for k, case in enumerate(MODEL)
    ],
)
def test_compiled_it_is_pytorchs_own_which_the_compiler_can_tune(op, kernel, how):
    """An op of ours would be opaque to it: no choice of algorithm or layout, nothing fused to it."""
    seen = []

    def noted(graph, inputs):
        seen.append({str(node.target) for node in graph.graph.nodes if node.op == "call_function"})
        return graph.forward

    inputs = tensors(op, kernel, how)
    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=noted, bw_compiler=noted)
    compiled = torch.compile(OPS[op], backend=backend, fullgraph=True)
    found = []
    for f in (compiled, PLAIN[op]):
        y = f(*inputs, **how)
        found.append([y, *torch.autograd.grad(y, inputs, torch.ones_like(y))])
    forward, backward = seen
    assert "aten.convolution.default" in forward and "aten.convolution_backward.default" in backward
    torch.testing.assert_close(*found)
