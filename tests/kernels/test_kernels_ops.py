"""The duties of every fused op: the reference's values and gradients in every dtype and layout.

Without a GPU the Triton kernels run in Triton's interpreter (conftest.py switches it on); with one, on the GPU.
"""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import kernels
from kernels.choices import Choice
from kernels.common import tiles
from tests.support.kernel_checks import assert_no_worse

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
LOW = (torch.float32, torch.float16, torch.bfloat16)
torch.set_num_threads(1)


def _plain(op, names):
    return lambda *tensors: op(*tensors[:2], **dict(zip(names, tensors[2:], strict=True)))


def _linear(op):
    return lambda x, bias: op(x, bias, act="linear", gain=0.7)


def _clamped(op):
    return lambda x, bias, scale: op(x, bias, scale=scale, clamp=0.7)


def _noise(op):
    return lambda x, bias, strength, noise: op(x, bias, noise=noise, strength=strength)


def _full(op):
    return lambda x, bias, scale, strength, noise: op(x, bias, scale=scale, noise=noise, strength=strength)


def _one_group(op):
    return lambda x: op(x, 64, multiple=4)


def _style(op):
    return lambda x, scale, bias: op(x, scale, bias)


def _style_noise(op):
    return lambda x, scale, bias, strength, noise: op(x, scale, bias, noise=noise, strength=strength)


# name: (op, how it is called, shapes of its inputs after x for x [N, C, H, W])
CASES = {
    "bias_act": ("bias_act", lambda op: op, ("C",)),
    "bias_act linear": ("bias_act", _linear, ("C",)),
    "bias_act noise": ("bias_act", _noise, ("C", "", "N1HW")),
    "bias_act scale clamp": ("bias_act", _clamped, ("C", "NC")),
    "bias_act all": ("bias_act", _full, ("C", "NC", "", "11HW")),
    "modulate": ("modulate", lambda op: op, ("NC11",)),
    "demodulate": ("demodulate", lambda op: op, ("SC",)),
    "scale_act": ("scale_act", lambda op: op, ("NC",)),
    "bias_act_residual": ("bias_act_residual", lambda op: op, ("C", "NCHW")),
    "minibatch_std": ("minibatch_std", _one_group, ()),
    "instance_norm_act": ("instance_norm_act", _style, ("NC", "NC")),
    "instance_norm_act noise": ("instance_norm_act", _style_noise, ("NC", "NC", "", "N1HW")),
}
OWN_DTYPE = ("demodulate", "minibatch_std")  # whatever autocast says
every_case = pytest.mark.parametrize("case", CASES)
# Another case runs their kernels with more inputs. Other tests compare their second derivatives with the reference's.
CONTAINED = ("bias_act", "bias_act linear", "bias_act noise", "instance_norm_act")
fullest_case = pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.exhaustive) if c in CONTAINED else c for c in CASES]
)
every_format = pytest.mark.parametrize("layout", FORMATS)


def functions(case: str):
    """The fused op of this case and its reference, both called with positional tensors."""
    name, call, _ = CASES[case]
    return call(getattr(kernels, name)), call(getattr(kernels, f"{name}_reference"))


def make_inputs(
    case: str, shape: tuple[int, ...], layout: str = "nchw", dtype=torch.float64, seed=0
) -> list[Tensor]:
    """Random inputs for x of this shape; all require a gradient but the noise (which is data)."""
    sizes = dict(zip("NCHW", shape, strict=True)) | {"1": 1, "S": 2}
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(memory_format=FORMATS[layout])
    inputs = [x]
    for name in CASES[case][2]:
        inputs.append(torch.randn([sizes[k] for k in name], generator=generator, dtype=torch.float64))
    inputs = [t.to(DEVICE, dtype) for t in inputs]
    for t, name in zip(inputs, ("x", *CASES[case][2]), strict=True):
        t.requires_grad_(not name.endswith("1HW"))
    return inputs


def values_and_grads(function, inputs: list[Tensor], seed=1) -> list[Tensor]:
    """y, its gradients along g, and the gradients of their squared sum (a penalty) by the inputs and by g."""
    y = function(*inputs)
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.device, y.dtype)
    if y.dim() == 4:
        g = g.contiguous(
            memory_format=torch.channels_last if not y.is_contiguous() else torch.contiguous_format
        )
    g.requires_grad_()
    wanted = [t for t in inputs if t.requires_grad]
    first = torch.autograd.grad(y, wanted, g, create_graph=True)
    penalty = sum(t.to(torch.promote_types(t.dtype, torch.float32)).square().sum() for t in first)
    return [t.detach() for t in (y, *first, *second(penalty, [*wanted, g]))]


def second(penalty: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    grads = torch.autograd.grad(penalty, wanted, allow_unused=True)
    return [torch.zeros_like(t) if d is None else d for t, d in zip(wanted, grads, strict=True)]


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles so small that little tensors need many, and programs so few that each walks several."""
    monkeypatch.setattr(tiles, "choose", lambda *key: Choice(tile=16, columns=4, warps=1, per_sm=8, stages=2))
    monkeypatch.setattr(tiles, "processor", lambda device: (90, 1))
    tiles.tiling.cache_clear()
    yield
    tiles.tiling.cache_clear()


@pytest.mark.covering
@every_format
@fullest_case
def test_gradients_of_gradients_are_those_of_the_function(case, layout):
    function, inputs = functions(case)[0], make_inputs(case, (2, 3, 2, 1), layout)
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@every_format
@every_case
def test_many_tiles_agree_with_the_reference(case, layout, small_tiles):
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 5, 3, 9), layout)
    for got, want in zip(values_and_grads(fused, inputs), values_and_grads(reference, inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@every_case
@hypothesis.settings(max_examples=4, deadline=None, derandomize=True)
@hypothesis.given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 19), st.integers(1, 7), st.integers(1, 7)),
    layout=st.sampled_from(sorted(FORMATS)),
    seed=st.integers(0, 99),
)
def test_any_shape_agrees_with_the_reference(case, shape, layout, seed):
    fused, reference = functions(case)
    inputs = make_inputs(case, shape, layout, seed=seed)
    for got, want in zip(values_and_grads(fused, inputs), values_and_grads(reference, inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-7)


@pytest.mark.covering("case", "dtype")
@pytest.mark.parametrize("dtype", LOW, ids=str)
@every_format
@every_case
def test_low_precision_is_no_worse_than_plain_pytorch(case, layout, dtype):
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 8, 6, 5), layout, dtype)
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
    results = (values_and_grads(f, i) for f, i in ((fused, inputs), (reference, inputs), (reference, exact)))
    assert_no_worse(*results, dtype)


@pytest.mark.covering("case", "layout")
@pytest.mark.parametrize("dtype", (torch.float64, *LOW), ids=str)
@every_format
@every_case
def test_dtype_and_memory_format_are_the_references(case, layout, dtype):
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 3, 4, 5), layout, dtype)
    got, want = fused(*inputs), reference(*inputs)
    assert got.dtype == want.dtype
    assert got.stride() == want.stride()
    wanted = [t for t in inputs if t.requires_grad]
    for t, d in zip(wanted, torch.autograd.grad(got.sum(), wanted), strict=True):
        assert (d.dtype, d.shape) == (t.dtype, t.shape)


@every_case
def test_mixed_dtypes(case):
    """Activations in bfloat16 with parameters in float32, as autocast gives them."""
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 4, 3, 5))
    inputs = [
        t.detach().to(torch.float32 if i else torch.bfloat16).requires_grad_(t.requires_grad)
        for i, t in enumerate(inputs)
    ]
    got, want = values_and_grads(fused, inputs), values_and_grads(reference, inputs)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


@every_case
def test_autocast_gives_the_references_dtype(case):
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 4, 3, 5), dtype=torch.float32)
    with torch.autocast(DEVICE, torch.bfloat16):
        got, want = fused(*inputs), reference(*inputs)
        grads = torch.autograd.grad(
            got.float().sum(), [t for t in inputs if t.requires_grad], create_graph=True
        )
    assert got.dtype == want.dtype == (torch.float32 if case in OWN_DTYPE else torch.bfloat16)
    assert {d.dtype for d in grads} == {torch.float32}
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


@every_case
def test_strided_inputs(case):
    fused, reference = functions(case)
    inputs = [t.repeat_interleave(2, -1)[..., ::2] if t.dim() else t for t in make_inputs(case, (2, 3, 4, 5))]
    assert not inputs[0].is_contiguous()
    for got, want in zip(values_and_grads(fused, inputs), values_and_grads(reference, inputs), strict=True):
        torch.testing.assert_close(got, want)


@every_case
def test_expanded_inputs(case):
    fused, reference = functions(case)
    inputs = [t[:1].expand_as(t) if t.dim() else t for t in make_inputs(case, (2, 3, 4, 5))]
    for got, want in zip(values_and_grads(fused, inputs), values_and_grads(reference, inputs), strict=True):
        torch.testing.assert_close(got, want)


@every_case
def test_expanded_gradients(case):
    """sum() hands back a gradient of stride 0, to a backward pass and to the pass behind it."""
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 3, 4, 5), "nhwc")
    wanted = [t for t in inputs if t.requires_grad]
    found = []
    for function in (fused, reference):
        y = function(*inputs)
        first = torch.autograd.grad(y.sum(), wanted, create_graph=True)
        g = torch.linspace(-1, 1, y.numel(), device=y.device, dtype=y.dtype).reshape(y.shape).requires_grad_()
        again = torch.autograd.grad(function(*inputs), wanted, g, create_graph=True)
        found.append([*first, *second(sum(t.sum() for t in again), [*wanted, g])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@every_case
def test_an_empty_batch(case):
    fused, reference = functions(case)
    inputs = make_inputs(case, (0, 3, 4, 5))
    for got, want in zip(values_and_grads(fused, inputs), values_and_grads(reference, inputs), strict=True):
        assert got.shape == want.shape
        assert not got.any()


@pytest.mark.covering
@every_case
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_nan_and_inf_come_out_where_the_references_do(case, value):
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 3, 2, 3), "nhwc")
    with torch.no_grad():
        inputs[0][1, 1, 0, 1] = value
    wanted = [t for t in inputs if t.requires_grad]
    for f in (lambda y: y.detach(), lambda y: torch.autograd.grad(y.sum(), wanted)[0]):
        torch.testing.assert_close(f(fused(*inputs)), f(reference(*inputs)), equal_nan=True)


@every_format
@every_case
def test_every_element_is_written(case, layout, monkeypatch, small_tiles):
    """Memory arrives full of NaN; nothing of it may be left, nor be added up."""
    new_empty, empty_like = Tensor.new_empty, torch.empty_like
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(float("nan")))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(float("nan")))
    for t in values_and_grads(functions(case)[0], make_inputs(case, (2, 3, 3, 7), layout)):
        assert t.isfinite().all()


@pytest.mark.gpu
@every_case
def test_two_runs_are_bit_identical(case):
    inputs = make_inputs(case, (8, 64, 64, 64), "nhwc", torch.float32)
    fused = functions(case)[0]
    for a, b in zip(values_and_grads(fused, inputs), values_and_grads(fused, inputs), strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
@every_case
def test_a_cuda_graph_replays_with_new_inputs(case):
    fused, reference = functions(case)
    inputs = make_inputs(case, (4, 32, 16, 16), "nhwc", torch.float32)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        values_and_grads(fused, inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fused(*inputs)
        grads = torch.autograd.grad(y, [t for t in inputs if t.requires_grad], torch.ones_like(y))
    with torch.no_grad():
        inputs[0].mul_(-0.5)
    graph.replay()
    want = reference(*inputs)
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
    wanted = torch.autograd.grad(want, [t for t in inputs if t.requires_grad], torch.ones_like(want))
    for a, b in zip(grads, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-2)
