"""The CUDA C++ instance norm does what every op of the table does: the reference's values and gradients.

With a GPU the kernels run there, marked `gpu`. Everywhere the same sources run on the CPU as well (`cuda_on_cpu.py`),
which knows no speed, but indices, barriers, shuffles and arithmetic.
"""

import shutil
import sys

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

import kernels
from kernels import cuda
from tests.kernels import opcases
from tests.kernels import test_kernels_ops as ops
from tests.kernels.opcases import FORMATS, FUSED
from tests.support import cuda_on_cpu
from tests.support.kernel_checks import error

every_format = pytest.mark.parametrize("layout", FORMATS)
torch.set_num_threads(1)


def call(k, x, scale, bias, strength=None, noise=None, **options):
    op = cuda.instance_norm_act if k is FUSED else cuda.instance_norm_act_reference
    return op(x, scale, bias, noise=noise, strength=strength, **(options if k is FUSED else {}))


CASES = {
    "cuda": opcases.Case("NCHW NC NC", call),
    "cuda noise": opcases.Case("NCHW NC NC . N1HW'", call),
    "cuda one noise": opcases.Case("NCHW NC NC . 11HW'", call),
}


@pytest.fixture(autouse=True)
def in_the_table(monkeypatch):
    for name, case in CASES.items():
        monkeypatch.setitem(opcases.CASES, name, case)


def skip_without_cuda():
    if reason := cuda.available():
        pytest.skip(reason)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """Where the kernels run: on the CPU, or on the GPU for which they were built."""
    if request.param == "cuda":
        skip_without_cuda()
        yield "cuda"
        return
    if shutil.which("g++") is None or (kernels.available() is None and not kernels.common.tiles.INTERPRETED):
        pytest.skip("needs g++, and a machine without a GPU")
    with cuda_on_cpu.emulated(monkeypatch):
        yield "cpu"


def derive(inputs, k=FUSED, **options):
    """Return y and the gradients along fixed numbers."""
    y = call(k, *inputs, **options)
    (g,) = opcases.make_directions([y])
    return [y.detach(), *torch.autograd.grad(y, inputs[:4], g.detach())]


def assert_near_float64(inputs, limit, **options):
    """Values and first gradients lie within `limit` (relative L2 norm) of the reference's in float64."""
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
    for i, (a, b) in enumerate(zip(derive(inputs, **options), derive(exact, opcases.PLAIN), strict=True)):
        of = limit * (4 if i else 1)
        assert error(a, b) <= of or not b.any()


@pytest.mark.parametrize(
    "duty",
    [
        ops.test_mixed_dtypes,
        ops.test_autocast_gives_the_references_dtype,
        ops.test_expanded_gradients,
        ops.test_an_empty_batch,
        ops.test_a_gradient_alone_is_the_same_as_among_others,
    ],
    ids=lambda duty: duty.__name__,
)
def test_what_every_op_does(duty, device):
    duty("cuda noise")


@every_format
@pytest.mark.parametrize("dtype", [torch.float64, *ops.LOW], ids=str)
def test_dtype_and_memory_format_are_the_references(layout, dtype, device):
    ops.test_dtype_and_memory_format_are_the_references("cuda noise", layout, dtype)
    limit = {torch.float64: 1e-13, torch.float32: 2e-6}.get(dtype, 8 * torch.finfo(dtype).eps)
    assert_near_float64(opcases.make_inputs("cuda noise", (2, 16, 12, 8), layout, dtype), limit)


@pytest.mark.covering
@every_format
@pytest.mark.parametrize("case", ["cuda", "cuda noise"])
def test_gradients_of_gradients_are_those_of_the_function(case, layout, device):
    ops.test_gradients_of_gradients_are_those_of_the_function(case, layout)


@every_format
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_nan_and_inf_come_out_where_the_references_do(value, layout, device):
    inputs = opcases.make_inputs("cuda noise", (2, 4, 4, 4), layout, torch.float32)
    with torch.no_grad():
        inputs[0][1, 2, 3, 1] = inputs[2][0, 1] = value
    torch.testing.assert_close(
        derive(inputs), derive(inputs, opcases.PLAIN), rtol=1e-4, atol=1e-4, equal_nan=True
    )


@every_format
def test_every_element_is_written_and_none_beside(layout, device, monkeypatch):
    ops.test_every_element_is_written_and_none_beside("cuda noise", layout, monkeypatch, None)


@every_format
@hypothesis.settings(
    max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(
    shape=st.tuples(*(st.integers(1, most) for most in (3, 40, 9, 24))),
    case=st.sampled_from(sorted(CASES)),
    seed=st.integers(0, 99),
)
def test_any_shape_agrees_with_the_reference(shape, case, seed, layout, device):
    opcases.agree(case, opcases.make_inputs(case, shape, layout, seed=seed), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shared", [1200, 2400])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-13), (torch.bfloat16, 0.06)], ids=str)
def test_a_plane_that_shared_memory_holds_in_part_is_read_again(shared, dtype, limit, monkeypatch):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    with cuda_on_cpu.emulated(monkeypatch, shared=shared):
        inputs = [t.cpu() for t in opcases.make_inputs("cuda noise", (1, 2, 24, 20), dtype=dtype)]
        assert_near_float64([t.detach().requires_grad_(t.requires_grad) for t in inputs], limit)


@pytest.mark.covering
@every_format
@pytest.mark.parametrize("threads", [32, 128, 256])
def test_any_block_size_computes_the_same(threads, layout, device):
    assert_near_float64(opcases.make_inputs("cuda noise", (1, 16, 8, 8), layout), 1e-13, threads=threads)


@every_format
def test_strided_expanded_and_unaligned_inputs(layout, device):
    """Views that begin anywhere, skip elements or repeat them."""
    x, scale, bias, *rest = opcases.make_inputs("cuda noise", (2, 8, 6, 8), layout, torch.float32)
    store = torch.randn(x.numel() + 1, device=device)
    for view in (
        torch.randn(2, 8, 6, 16, device=device)[..., ::2],
        torch.randn(1, 8, 6, 8, device=device).expand(2, -1, -1, -1),
        store[1:].as_strided(x.shape, x.stride()),
        torch.randn(8, 2, 8, 6, device=device).permute(1, 0, 3, 2),
    ):
        inputs = [view.requires_grad_(), scale.t().contiguous().t(), bias[:1].expand(2, -1), *rest]
        torch.testing.assert_close(derive(inputs), derive(inputs, opcases.PLAIN), rtol=1e-4, atol=1e-4)


@every_format
def test_a_mean_far_from_zero_costs_no_digits_and_two_runs_are_bit_identical(layout, device):
    x, *rest = opcases.make_inputs("cuda", (2, 4, 16, 16), layout, torch.float32)
    inputs = [(x.detach() + 1000).requires_grad_(), *rest]
    assert_near_float64(inputs, 1e-4)  # float32 knows 1000 to 6e-5
    assert all(torch.equal(a, b) for a, b in zip(derive(inputs), derive(inputs), strict=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threads": 48}, "multiple of 32"),
        ({"threads": 2048}, "multiple of 32"),
        ({"noise": torch.zeros(1)}, "together"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_line(change, said, device):
    there = {name: value.to(device) if torch.is_tensor(value) else value for name, value in change.items()}
    with pytest.raises(ValueError, match=said) as refusal:
        cuda.instance_norm_act(*opcases.make_inputs("cuda", (2, 4, 4, 4)), **there)
    assert "\n" not in str(refusal.value)


@pytest.mark.gpu
@every_format
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-6), (torch.bfloat16, 0.06)], ids=str)
@pytest.mark.parametrize("side", [256, 512])
def test_large_planes_on_the_gpu(side, dtype, limit, layout):
    """256 KB and 1 MB a plane: more than a multiprocessor's shared memory."""
    skip_without_cuda()
    assert_near_float64(opcases.make_inputs("cuda noise", (2, 8, side, side), layout, dtype), limit)


@pytest.mark.gpu
def test_a_cuda_graph_replays_and_fast_math_is_nearly_as_exact():
    """Approximate division and root are a few units in the last place off, no more."""
    skip_without_cuda()
    ops.test_a_cuda_graph_replays_with_new_inputs("cuda noise")
    for layout in FORMATS:
        inputs = opcases.make_inputs("cuda noise", (2, 16, 32, 32), layout, torch.float32)
        assert_near_float64(inputs, 1e-5, flags=cuda.Flags(fast_math=True))


@pytest.mark.parametrize(
    ("side", "dtype", "forward", "backward"),
    [
        (256, torch.bfloat16, 512, 1024),
        (256, torch.float32, 1024, 1024),  # half a multiprocessor holds less than half of a plane
        (128, torch.bfloat16, 256, 256),
        (8, torch.bfloat16, 32, 32),
    ],
)
def test_two_blocks_share_a_multiprocessor_where_both_planes_almost_fit(side, dtype, forward, backward):
    module = sys.modules["kernels.cuda.instance_norm_act"]
    x = torch.empty((8, 512, side, side), dtype=dtype, device="meta")
    assert module._threads(None, x, 1, cuda.Flags(), pairs=True) == forward
    assert module._threads(None, x, 1, cuda.Flags()) == backward
    assert module._threads(None, x, 1, cuda.Flags(max_threads=64), pairs=True) == min(forward, 64)
