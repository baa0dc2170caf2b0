"""The duties of every fused op, over the table of `opcases.py`: the reference's values and both derivatives.

Without a GPU the Triton kernels run in Triton's interpreter (conftest.py switches it on); with one, on the GPU.
"""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

import kernels
from tests.kernels import opcases
from tests.kernels.opcases import (
    CASES,
    DEVICE,
    FEW,
    FUSED,
    NAMES,
    PLAIN,
    agree,
    differentiable,
    every,
    flatten,
    functions,
    make_directions,
    make_inputs,
    values_and_grads,
)
from tests.support.kernel_checks import assert_no_worse, assert_untouched, error, poison_memory

LOW = (torch.float32, torch.float16, torch.bfloat16)
TAPS = opcases.BINOMIAL
torch.set_num_threads(1)


@pytest.fixture
def small_tiles(monkeypatch):
    opcases.shrink_tiles(monkeypatch)
    yield
    monkeypatch.undo()
    opcases.forget_covers()


# ---- values and derivatives -----------------------------------------------------------------------------------------


@every(FEW)
def test_gradients_of_gradients_are_those_of_the_function(case, layout):
    function, inputs = functions(case)[0], make_inputs(case, (2, 3, 2, 1), layout)
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@every(FEW)
def test_many_tiles_agree_with_the_reference(case, layout, small_tiles):
    agree(case, make_inputs(case, (2, 5, 3, 9), layout), rtol=1e-10, atol=1e-10)


@every(layouts=False)
@hypothesis.settings(
    max_examples=3, deadline=None, derandomize=True, phases=[hypothesis.Phase.generate]
)  # no shrinking: in the interpreter it takes minutes, and the shapes are small as they are
@hypothesis.given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 19), st.integers(2, 7), st.integers(2, 7)),
    layout=st.sampled_from(sorted(opcases.FORMATS)),
    seed=st.integers(0, 99),
    image=st.integers(1, 4),
)
def test_any_shape_agrees_with_the_reference(case, shape, layout, seed, image):
    agree(case, make_inputs(case, shape, layout, seed=seed, image=image), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("case", ["to_rgb", "from_rgb", "upfirdn2d up", "upfirdn2d down", "dense_group"])
def test_a_gradient_can_be_differentiated_again_and_again(case):
    """Third order: R1 through a path that was itself differentiated."""
    inputs, found = make_inputs(case, (2, 3, 2, 2), "nhwc"), []
    for function in functions(case):
        total = sum(y.pow(4).sum() for y in flatten(function(*inputs)))
        for _ in range(2):
            total = sum(d.square().sum() for d in torch.autograd.grad(total, inputs, create_graph=True))
        found.append(torch.autograd.grad(total, inputs))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


@every(FEW, layouts=False)
def test_a_gradient_alone_is_the_same_as_among_others(case, layout="nhwc"):
    """What the other inputs' gradients need is not computed, and the one that is wanted is right."""
    function, inputs = functions(case)[0], make_inputs(case, (2, 3, 4, 5), layout)
    for wanted in (t for t in inputs if t.requires_grad):
        alone = [t if t is wanted else t.detach() for t in inputs]
        results = []
        for given in (alone, inputs):
            loss = sum(y.sin().sum() for y in flatten(function(*given)))
            results += torch.autograd.grad(loss, wanted)
        torch.testing.assert_close(*results)


# ---- dtypes, memory formats and strides -----------------------------------------------------------------------------


@pytest.mark.covering("case", "dtype")
@pytest.mark.parametrize("dtype", LOW, ids=str)
@every(FEW)
def test_low_precision_is_no_worse_than_plain_pytorch(case, layout, dtype):
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 8, 6, 5), layout, dtype)
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
    results = [values_and_grads(f, i) for f, i in ((fused, inputs), (reference, inputs), (reference, exact))]
    assert_no_worse(*results, dtype, CASES[case].slack)


@pytest.mark.covering("case", "layout")
@pytest.mark.parametrize("dtype", (torch.float64, *LOW), ids=str)
@every()
def test_dtype_and_memory_format_are_the_references(case, layout, dtype):
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 3, 4, 5), layout, dtype)
    got, want = flatten(fused(*inputs)), flatten(reference(*inputs))
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        assert error(a, b) <= 8 * torch.finfo(dtype).eps
    wanted = differentiable(inputs)
    for t, d in zip(wanted, torch.autograd.grad(sum(y.square().sum() for y in got), wanted), strict=True):
        assert (d.dtype, d.shape) == (t.dtype, t.shape)
        assert t.dim() < 4 or t.shape[2:] == (1, 1) or d.stride() == t.stride()


@every(layouts=False)
def test_mixed_dtypes(case):
    """Activations in bfloat16 with parameters in float32, as autocast gives them."""
    fused, reference = functions(case)
    inputs = [
        t.detach().to(torch.float32 if i else torch.bfloat16).requires_grad_(t.requires_grad)
        for i, t in enumerate(make_inputs(case, (2, 4, 3, 5)))
    ]
    for a, b in zip(values_and_grads(fused, inputs), values_and_grads(reference, inputs), strict=True):
        assert a.dtype == b.dtype
        assert error(a, b) < 0.05 or (a - b).abs().max() < 0.05


@every(layouts=False)
def test_autocast_gives_the_references_dtype(case):
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 4, 3, 5), "nhwc", torch.float32)
    with torch.autocast(DEVICE, torch.bfloat16):
        got, want = flatten(fused(*inputs)), flatten(reference(*inputs))
        loss = sum(y.float().sum() for y in got)
        grads = torch.autograd.grad(loss, differentiable(inputs), create_graph=True)
    expected = torch.bfloat16 if CASES[case].autocast else torch.float32
    assert {y.dtype for y in (*got, *want)} == {expected} and {d.dtype for d in grads} == {torch.float32}
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


@every(layouts=False)
def test_strided_and_expanded_inputs(case):
    strided = [
        t.repeat_interleave(2, -1)[..., ::2] if t.dim() else t for t in make_inputs(case, (2, 3, 4, 5))
    ]
    assert not strided[0].is_contiguous()
    agree(case, strided)
    agree(case, [t[:1].expand_as(t) if t.dim() else t for t in make_inputs(case, (2, 3, 4, 5))])


@every(layouts=False)
def test_expanded_gradients(case):
    """sum() hands back a gradient of stride 0, to a backward pass and to the pass behind it."""
    inputs = make_inputs(case, (2, 3, 4, 5), "nhwc")
    wanted, found = differentiable(inputs), []
    for function in functions(case):
        ys = flatten(function(*inputs))
        first = torch.autograd.grad(sum(y.sum() for y in ys), wanted, create_graph=True)
        ys = flatten(function(*inputs))
        gs = make_directions(ys)
        again = torch.autograd.grad(ys, wanted, gs, create_graph=True)
        total = sum(t.sum() for t in again)
        how = {"allow_unused": True, "materialize_grads": True}
        found.append([*first, *torch.autograd.grad(total, [*wanted, *gs], **how)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@every(layouts=False)
def test_an_empty_batch(case):
    """Also where PyTorch's convolution has no double backward of one."""
    fused, reference = functions(case)
    inputs = make_inputs(case, (0, 3, 4, 5))
    got, want = flatten(fused(*inputs)), flatten(reference(*inputs))
    torch.testing.assert_close(got, want)
    wanted = differentiable(inputs)
    for t, d in zip(wanted, values_and_grads(fused, inputs)[len(got) :], strict=False):
        assert d.shape == t.shape and (inputs[0].numel() or not d.any())  # a case may fix its batch


@pytest.mark.covering("case")
@every(FEW, layouts=False)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_nan_and_inf_come_out_where_the_references_do(case, value, layout="nhwc"):
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 3, 2, 3), layout)
    with torch.no_grad():
        inputs[0][(1, 0, 0, 1)[: inputs[0].dim()]] = value
    got, want = flatten(fused(*inputs)), flatten(reference(*inputs))
    assert value == value or not all(y.isfinite().all() for y in want)  # a clamp, or 1 / inf, is finite
    torch.testing.assert_close(got, want, equal_nan=True)
    wanted = differentiable(inputs)
    first = [torch.autograd.grad(sum(y.sum() for y in ys), wanted)[0] for ys in (got, want)]
    torch.testing.assert_close(*first, equal_nan=True)


@every(FEW)
def test_every_element_is_written_and_none_beside(case, layout, monkeypatch, small_tiles):
    """Memory arrives full of NaN; nothing of it may be left, nor be added up. What lies around is not touched."""
    around = poison_memory(monkeypatch)
    for t in values_and_grads(functions(case)[0], make_inputs(case, (2, 3, 3, 7), layout)):
        assert t.isfinite().all()
    assert_untouched(around)


# ---- under the compiler ---------------------------------------------------------------------------------------------


def down_layer(k, x, weight, bias):
    x = k.upfirdn2d(x, TAPS, padding=2)
    return k.bias_act(k.conv2d(x, weight, stride=2, padding=1), bias)


def up_layer(k, x, weight, bias):
    y = k.conv_transpose2d(x, weight, stride=2, padding=1, output_padding=1)
    return k.upfirdn2d(k.bias_act(y, bias), TAPS, up=2, down=2, padding=(2, 1), gain=0.1)


def style_layer(k, x, style, weight, bias, strength, noise):
    y = k.modulate(x, style)
    return k.bias_act(y, bias, scale=k.demodulate(weight, style), noise=noise, strength=strength)


LAYERS = {
    "down layer": opcases.Case("NCHW 6C33 6", down_layer),
    "up layer": opcases.Case("NCHW C633 6", up_layer),
    "style layer": opcases.Case("NCHW NC CC33 C . N1HW'", style_layer),
}
COMPILED = {
    *("group_norm_act", "batch_norm_act running"),
    *("bias_act_residual", "instance_norm_act noise", "to_rgb", "from_rgb", "act_filter", "filter_act"),
    *("filter_act_modulate", "fork_upfirdn2d down", "upfirdn2d up", *LAYERS),
}


@pytest.fixture
def with_layers(monkeypatch):
    for name, case in LAYERS.items():
        monkeypatch.setitem(CASES, name, case)


class Recorder(torch.fx.Interpreter):
    """Runs a graph and notes the calls of our operators, by name."""

    def __init__(self, graph, calls):
        super().__init__(graph)
        self.calls = calls

    def call_function(self, target, args, kwargs):
        if str(target).startswith("kernels."):
            self.calls.setdefault(str(target), (target, args, kwargs))
        return super().call_function(target, args, kwargs)


def compile_recorded(function):
    """Return a function compiled as one graph, and where the calls of operators in both passes will be noted."""
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    calls = {}

    def lower(graph, _):
        def run(arguments):
            return Recorder(graph, calls).run(*arguments)

        run._boxed_call = True  # it takes a list
        return run

    backend = aot_autograd(fw_compiler=lower, bw_compiler=lower)
    return torch.compile(function, backend=backend, fullgraph=True), calls


def detach(value, grad=False):
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(grad and value.is_floating_point())
    return [detach(each, grad) for each in value] if isinstance(value, list | tuple) else value


# What the operator returns beside what the user sees is no function to be differentiated: no "test_aot_dispatch".
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize(
    ("case", "layout"),
    [
        pytest.param(
            name,
            layout,
            marks=() if name in COMPILED and layout == "nhwc" else pytest.mark.exhaustive,
            id=f"{name}-{layout}",
        )
        for name in (*NAMES, *LAYERS)
        for layout in opcases.FORMATS
    ],
)
def test_compiled_it_is_one_graph_of_operators_that_say_what_they_are(case, layout, with_layers):
    """Without a break; values, memory formats and gradients are plain PyTorch's; operators pass PyTorch's checks."""
    inputs = make_inputs(case, (2, 4, 3, 5), layout, torch.float32)
    wanted, call = differentiable(inputs), CASES[case].call
    compiled, calls = compile_recorded(lambda *t: call(FUSED, *t))
    results = [flatten(compiled(*inputs)), flatten(call(PLAIN, *inputs))]
    grads = [torch.autograd.grad(sum(y.square().sum() for y in ys), wanted) for ys in results]
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        assert got.stride() == want.stride()
    for got, want in zip(*grads, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert calls or case not in COMPILED  # the compiler writes its own kernels for the others
    for name, (target, args, kwargs) in calls.items():
        opcheck(target, detach(args, "grad" not in name), kwargs, test_utils=CHECKS)
        needs = args[-1] if isinstance(args[-1], list) and "grad" in name else []
        for alone in range(len(needs)):  # what is declared without the others' gradients
            some = [need and k == alone for k, need in enumerate(needs)]
            if any(some):
                opcheck(target, (*detach(args[:-1]), some), kwargs, test_utils="test_faketensor")


@every(("bias_act", "to_rgb"), layouts=False)
def test_batch_and_resolution_may_change_under_the_compiler(case):
    """The compiler knows the sizes of parameters, and has symbols for those of data."""
    letters = [each.strip("+'.") for each in CASES[case].inputs.split()]
    for function in functions(case):
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
        for n, size in ((2, 4), (4, 6)):
            inputs = make_inputs(case, (n, 3, size, size), "nchw", torch.float32)
            for k, shape in enumerate(letters):
                if not set(shape) & set("NHWhw"):
                    inputs[k] = torch.nn.Parameter(inputs[k].detach(), inputs[k].requires_grad)
            found = []
            for f in (compiled, function):
                ys = flatten(f(*inputs))
                found.append(
                    [*ys, *torch.autograd.grad(sum(y.square().sum() for y in ys), differentiable(inputs))]
                )
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.covering
@pytest.mark.parametrize("layout", opcases.FORMATS)
@pytest.mark.parametrize("case", sorted(COMPILED - {"down layer", "style layer"}))
def test_in_eager_mode_operators_are_differentiable_twice(case, layout, with_layers):
    inputs = make_inputs(case, (1, 2, 3, 2), layout)
    call = CASES[case].call
    compiled, calls = compile_recorded(lambda *t: call(FUSED, *t))
    compiled(*inputs)
    assert calls
    for target, args, kwargs in calls.values():
        places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.shape[1:2] != (1,)]
        tensors = [args[i].detach().clone().requires_grad_() for i in places]

        def function(*tensors, target=target, args=args, kwargs=kwargs, places=places):
            given = {**dict(enumerate(detach(args))), **dict(zip(places, tensors, strict=True))}
            return flatten(target(*given.values(), **kwargs))[0]  # the rest is not what the user sees

        assert gradcheck(function, tensors, fast_mode=True)
        assert gradgradcheck(function, tensors, fast_mode=True)


@pytest.mark.parametrize("layout", ["nhwc", pytest.param("nchw", marks=pytest.mark.exhaustive)])
def test_compiled_under_autocast_they_have_its_dtype(layout):
    """Convolutions, activations and modulation are bf16; resampling keeps x's dtype; gradients have their inputs'."""
    (x,), (weight, bias) = (
        make_inputs("modulate", (2, 3, 4, 5), layout, torch.float32)[:1],
        (torch.randn(s, device=DEVICE, requires_grad=True) for s in ((3, 3), (3,))),
    )

    def layers(x, bias, weight):
        y = kernels.conv2d(kernels.from_rgb(x, weight, bias), weight[:, :, None, None])
        y = kernels.filter_act(kernels.act_filter(y, bias, TAPS, padding=2), TAPS, bias, padding=1)
        y = kernels.modulate(kernels.upfirdn2d(y, TAPS, padding=2), weight[:2])
        return y, kernels.to_rgb(y, weight, bias=bias, dtype=torch.float32)

    with torch.autocast(DEVICE, torch.bfloat16):
        got = torch.compile(layers, backend="aot_eager", fullgraph=True)(x, bias, weight)
        want = layers(x, bias, weight)
    assert [t.dtype for t in got] == [torch.bfloat16, torch.float32]
    grads = [torch.autograd.grad(y[1].square().sum(), (x, bias, weight)) for y in (got, want)]
    for a, b in zip((*got, *grads[0]), (*want, *grads[1]), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b)
    assert {d.dtype for d in grads[0]} == {torch.float32}


# ---- on a GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@every(layouts=False)
def test_two_runs_are_bit_identical(case):
    inputs = make_inputs(case, (8, 64, 64, 64), "nhwc", torch.float32)
    fused = functions(case)[0]
    for a, b in zip(values_and_grads(fused, inputs), values_and_grads(fused, inputs), strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
@every(layouts=False)
def test_a_cuda_graph_replays_with_new_inputs(case):
    fused, reference = functions(case)
    inputs = make_inputs(case, (4, 32, 16, 16), "nhwc", torch.float32)
    wanted = differentiable(inputs)

    def run(function):
        ys = flatten(function(*inputs))
        return [*ys, *torch.autograd.grad(ys, wanted, [torch.ones_like(y) for y in ys])]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        values_and_grads(fused, inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run(fused)
    with torch.no_grad():
        inputs[0].mul_(-0.5)
    graph.replay()
    for a, b in zip(got, run(reference), strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-3, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [3, 64, 130])
@every()
def test_at_the_sizes_of_the_model(case, layout, channels, dtype):
    """Against float64, in norm: a sign may differ where bf16 rounds, and sums may cancel, as in plain bf16."""
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, channels, 64, 66), layout, dtype)
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
    with torch.backends.cudnn.flags(allow_tf32=False):
        got, plain, want = (
            values_and_grads(*x) for x in ((fused, inputs), (reference, inputs), (reference, exact))
        )
    for a, as_plain, b in zip(got, plain, want, strict=True):
        coarse = 0.05 if b.numel() > 64 else 0.25  # a few sums may all cancel
        bound = max(coarse, 1.5 * error(as_plain, b)) if dtype is torch.bfloat16 else 2e-3
        assert error(a, b) < bound or not b.any()
