"""Convolutions whose second derivative is made of convolutions: PyTorch's numbers, formats and dtypes, not its ways."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels.common import needed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
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


def tensors(op, kernel, how, *, nhwc=False, dtype=torch.float64, n=2, c=4, o=6, size=(6, 8), seed=0):
    """x and weight that require gradients."""
    generator = torch.Generator().manual_seed(seed)
    groups = how.get("groups", 1)
    shape = (c, o // groups) if op == "conv_transpose2d" else (o, c // groups)
    memory_format = torch.channels_last if nhwc else torch.contiguous_format
    return [
        torch.randn(s, generator=generator, dtype=torch.float64)
        .to(DEVICE, dtype)
        .to(memory_format=memory_format)
        .requires_grad_()
        for s in ((n, c, *size), (*shape, kernel, kernel))
    ]


def penalty(gradient):
    """Return R1's penalty, with every second derivative alive."""
    return gradient.float().square().sum() if gradient.dtype != torch.float64 else gradient.square().sum()


def all_derivatives(function, x, weight, wanted=(True, True)):
    """y, first gradients along a curved loss, and the gradients of their penalty by x and weight."""
    y = function(x, weight)
    inputs = [t for t, on in zip((x, weight), wanted, strict=True) if on]
    first = torch.autograd.grad(y.pow(3).sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(penalty(d) for d in first), (x, weight))
    return [y, *first, *second]


@every_case
def test_gradients_of_gradients_are_those_of_the_function(op, kernel, how):
    inputs = tensors(op, kernel, how, n=1, c=2, o=2, size=(5, 4))
    function = lambda x, w: OPS[op](x, w, **how)  # noqa: E731
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)
    for only in (0, 1):  # each input alone: what the other one needs is not computed
        alone = [t.detach().requires_grad_(k == only) for k, t in enumerate(inputs)]
        assert gradcheck(function, alone, fast_mode=True)
        assert gradgradcheck(function, alone, fast_mode=True)


@every_case
@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("nhwc", [False, True])
def test_values_and_both_derivatives_are_pytorch_s(op, kernel, how, wanted, nhwc):
    results = (
        all_derivatives(lambda x, w, f=f: f(x, w, **how), *tensors(op, kernel, how, nhwc=nhwc), wanted=wanted)
        for f in (OPS[op], PLAIN[op])
    )
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


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
    n, c, o = data.draw(st.integers(1, 3)), 2 * data.draw(st.integers(1, 3)), 2 * data.draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    shape = (c, o // groups) if op == "conv_transpose2d" else (o, c // groups)
    x = torch.randn((n, c, *size), generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn((*shape, *kernel), generator=generator, dtype=torch.float64).requires_grad_()
    results = [all_derivatives(lambda x, w, f=f: f(x, w, **how), x, weight) for f in (OPS[op], PLAIN[op])]
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


# ---- dtypes and memory formats -----------------------------------------------------------------------------------


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_tensor_of_both_derivatives_stays_channels_last(op, kernel, how, dtype):
    x, weight = tensors(op, kernel, how, nhwc=True, dtype=dtype)
    for t in all_derivatives(lambda x, w: OPS[op](x, w, **how), x, weight):
        assert t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous()
        assert t.dtype is dtype


@every_op
def test_a_gradient_that_arrives_in_nchw_or_expanded_is_taken_in_channels_last(op):
    x, weight = tensors(op, 3, {}, nhwc=True)
    y = OPS[op](x, weight)
    for g in (torch.ones_like(y).contiguous(), y.new_ones(()).expand(y.shape)):
        (dx,) = torch.autograd.grad(y, x, g, create_graph=True)
        assert dx.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(dx, torch.autograd.grad(PLAIN[op](x, weight), x, torch.ones_like(y))[0])


def test_nchw_stays_nchw_and_an_image_without_a_format_takes_the_weight_s():
    x, weight = tensors("conv2d", 3, {})
    assert kernels.conv2d(x, weight.detach().to(memory_format=torch.channels_last)).is_contiguous()
    one = torch.randn(
        2, 1, 5, 5, device=DEVICE, dtype=torch.float64
    )  # one channel: both formats are the same
    weight = torch.randn(4, 1, 3, 3, device=DEVICE, dtype=torch.float64)
    assert kernels.conv2d(one, weight).is_contiguous()
    pixel = torch.randn(2, 4, 1, 1, device=DEVICE, dtype=torch.float64)
    weight = torch.randn(4, 4, 3, 3, device=DEVICE, dtype=torch.float64).to(memory_format=torch.channels_last)
    assert kernels.conv_transpose2d(pixel, weight).is_contiguous(memory_format=torch.channels_last)


def test_images_with_gaps_in_memory_are_copied_in_sight_of_autograd():
    x, weight = tensors("conv2d", 3, {}, nhwc=True, size=(9, 9))
    for view in (
        lambda x: x[:, :, 1:-1, 2:],
        lambda x: x.transpose(2, 3),
        lambda x: x[:, 1:3].repeat(1, 2, 1, 1),
    ):
        results = [
            all_derivatives(lambda x, w, f=f, view=view: f(view(x), w), x, weight)
            for f in (kernels.conv2d, F.conv2d)
        ]
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@every_case
def test_autocast_computes_what_pytorch_computes_under_it(op, kernel, how):
    found = []
    for f in (OPS[op], PLAIN[op]):
        x, weight = tensors(op, kernel, how, nhwc=True, dtype=torch.float32)

        def cast(x, w, f=f):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                return f(x, w * 0.5, **how)

        found.append(all_derivatives(cast, x, weight))
    for got, want in zip(*found, strict=True):
        assert got.dtype is want.dtype
        assert (got.double() - want.double()).norm() <= 0.02 * want.double().norm()
    assert found[0][0].dtype is torch.bfloat16 and found[0][-1].dtype is torch.float32


def test_autocast_leaves_float64_alone_and_backward_ignores_it():
    """On a GPU autocast would also catch the convolutions of a backward pass; on a CPU it lets these through."""
    x, weight = tensors("conv2d", 3, {})
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert kernels.conv2d(x, weight).dtype is torch.float64
    x, weight = tensors("conv2d", 3, {}, dtype=torch.float32)
    y = kernels.conv2d(x, weight)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        inside = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    assert torch.equal(inside, torch.autograd.grad(y.sum(), x)[0])


# ---- what is computed --------------------------------------------------------------------------------------------


class Convolutions(TorchDispatchMode):
    """Every convolution that PyTorch is asked for: (what it computes, largest extent of its kernel)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name == "convolution":
            self.seen.append(("transposed" if args[6] else "plain", max(args[1].shape[2:])))
        elif name == "convolution_backward":
            kinds = ("input", "weight")
            self.seen += [
                (kind, max(args[2].shape[2:])) for kind, on in zip(kinds, args[10], strict=False) if on
            ]
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
    x, first = tensors("conv2d", 3, {}, dtype=torch.float32, o=4, size=(12, 12))
    second = first.detach().clone().requires_grad_()
    y = kernels.conv2d(kernels.conv2d(x, first, padding=1) * 0.7, second, padding=1)
    assert watched.take() == ["plain", "plain"]
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert watched.take() == ["transposed", "transposed"]  # one a layer, and no gradient of a weight
    penalty(gradient).backward()
    # One weight gradient a layer, and one convolution from the first layer's derivative to the second's. Nothing goes
    # back through the first pass, which is linear (F.leaky_relu would send zeros there; kernels.bias_act does not).
    assert watched.take() == ["plain", "weight", "weight"]


def test_path_length_s_first_pass_computes_no_weight_gradient(watched):
    """The gradient by something that is not a leaf, with the weight's own graph behind it."""
    x, weight = tensors("conv2d", 3, {}, dtype=torch.float32)
    style = torch.ones(2, 4, 1, 1, device=DEVICE, requires_grad=True)
    scaled = style * 1.5
    y = kernels.conv2d(x.detach() * scaled, weight * 0.5)
    watched.take()
    torch.autograd.grad(y.sum(), scaled, create_graph=True)
    assert watched.take() == ["transposed"]


@pytest.mark.parametrize(
    "frozen, expected", [(0, ["weight"]), (1, ["transposed"]), (None, ["transposed", "weight"])]
)
def test_a_first_backward_computes_what_is_needed_once(watched, frozen, expected):
    inputs = tensors("conv2d", 3, {}, dtype=torch.float32)
    if frozen is not None:
        inputs[frozen] = inputs[frozen].detach()
    y = kernels.conv2d(*inputs)
    watched.take()
    y.square().sum().backward()
    assert watched.take() == expected


def test_convolutions_get_their_images_and_weights_in_one_layout():
    """Else cuDNN converts them inside the call, where nothing shows it: here each is converted once, if at all."""
    found = []

    class Layouts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "conv" in func.overloadpacket.__name__:
                tensors = [t for t in args if isinstance(t, torch.Tensor)]
                found.extend(t.is_contiguous(memory_format=torch.channels_last) for t in tensors)
            return func(*args, **(kwargs or {}))

    x, weight = tensors("conv2d", 3, {}, nhwc=True)
    weight = weight.detach().contiguous().requires_grad_()
    with torch.autograd.set_multithreading_enabled(False), Layouts():
        y = kernels.conv2d(x, weight)
        g = torch.ones_like(y).contiguous()
        (dx, dweight) = torch.autograd.grad(y, (x, weight), g, create_graph=True)
        (penalty(dx.contiguous()) + penalty(dweight.contiguous())).backward()
    assert len(found) > 10 and all(found)


def test_what_no_gradient_reads_is_not_kept_alive():
    for frozen in (0, 1):
        inputs = tensors("conv2d", 3, {})
        inputs[frozen] = inputs[frozen].detach()
        y = kernels.conv2d(*inputs)  # PyTorch 2.11 frees a node with its result
        assert (y.grad_fn.saved_tensors[0] is None) == (frozen == 1)  # the gradient of the weight reads x


def test_where_the_engine_cannot_be_asked_more_is_computed_and_the_same(watched, monkeypatch):
    monkeypatch.delattr(torch._C, "_will_engine_execute_node")
    x, weight = tensors("conv2d", 3, {}, dtype=torch.float32)
    y = kernels.conv2d(x, weight)
    watched.take()
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert watched.take() == ["transposed", "weight"]
    assert torch.equal(dx, torch.autograd.grad(F.conv2d(x, weight).sum(), x)[0])


def test_needed_outside_of_a_backward_pass_is_what_autograd_said():
    x, weight = tensors("conv2d", 3, {})
    y = kernels.conv2d(x, weight.detach())
    assert needed.needed(y.grad_fn) == (True, False, False)


# ---- refusals ----------------------------------------------------------------------------------------------------

X, W = (2, 4, 6, 6), (6, 4, 3, 3)


def test_two_dtypes_are_refused_unless_autocast_makes_them_one():
    x, weight = torch.zeros(X), torch.zeros(W, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"one dtype, got torch\.float32 and torch\.bfloat16"):
        kernels.conv2d(x, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert kernels.conv2d(x, weight).dtype is torch.bfloat16


# ---- the operators of the double backward

CONVOLUTIONS = [
    ((6, 4, 3, 3), [[1, 1], [1, 1], [0, 0], False, 1]),
    ((6, 2, 3, 3), [[2, 2], [1, 0], [0, 0], False, 2]),  # leaves a row of x over
    ((4, 3, 3, 2), [[2, 1], [1, 0], [1, 0], True, 2]),
]


@pytest.mark.covering
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("shape", "geometry"), CONVOLUTIONS)
def test_convolution_and_its_weight_gradient(layout, shape, geometry):
    x, weight = (
        torch.randn(s, device=DEVICE).contiguous(memory_format=layout).requires_grad_()
        for s in ((2, 4, 3, 5), shape)
    )
    geometry = [*geometry, layout is torch.channels_last]
    opcheck(torch.ops.kernels.convolution.default, (x, weight, *geometry))
    y = torch.ops.kernels.convolution(x, weight, *geometry)
    g = torch.ones_like(y).requires_grad_()
    opcheck(torch.ops.kernels.correlation.default, (g, x, weight.detach(), *geometry))


@pytest.mark.parametrize(("shape", "geometry"), CONVOLUTIONS)
def test_convolution_is_differentiable_twice_as_an_operator(shape, geometry):
    inputs = [
        torch.randn(s, dtype=torch.float64, device=DEVICE, requires_grad=True) for s in ((2, 4, 4, 5), shape)
    ]
    function = lambda x, w: torch.ops.kernels.convolution(x, w, *geometry, False)  # noqa: E731
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


# ---- on a GPU ----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("nhwc", [False, True])
def test_a_captured_second_derivative_replays_with_new_inputs(nhwc):
    x, weight = tensors("conv2d", 3, {}, nhwc=nhwc, dtype=torch.float32, n=4, c=32, o=32, size=(16, 16))

    def run(f):
        (gradient,) = torch.autograd.grad(f(x, weight, padding=1).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), (x, weight))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run(kernels.conv2d)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(kernels.conv2d)
    with torch.no_grad():
        x.mul_(-0.5)
    graph.replay()
    for got, want in zip(found, run(F.conv2d), strict=True):
        assert (got - want).norm() <= 0.02 * want.norm()  # TF32 in both


@pytest.mark.parametrize(
    "op, kernel, how",
    [
        case if case in (MODEL[1], MODEL[7]) else pytest.param(*case, marks=pytest.mark.exhaustive)
        for case in MODEL
    ],
)
def test_compiled_it_is_pytorchs_own_which_the_compiler_can_tune(op, kernel, how):
    """An op of ours would be opaque to it: no choice of algorithm or layout, nothing fused to it."""
    from torch._dynamo.backends.common import aot_autograd

    seen = []

    def noted(graph, inputs):
        seen.append({str(node.target) for node in graph.graph.nodes if node.op == "call_function"})
        return graph.forward

    x, weight = tensors(op, kernel, how)
    torch.compiler.reset()
    compiled = torch.compile(
        OPS[op], backend=aot_autograd(fw_compiler=noted, bw_compiler=noted), fullgraph=True
    )
    y = compiled(x, weight, **how)
    g = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, weight), g)
    forward, backward = seen
    assert "aten.convolution.default" in forward and "aten.convolution_backward.default" in backward
    expected = PLAIN[op](x, weight, **how)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(found, torch.autograd.grad(expected, (x, weight), g))
