"""The CUDA C++ instance norm, as the tests of every op have it: the reference's values and gradients.

With a GPU the kernels run there, marked `gpu`. Everywhere the same sources run on the CPU as well (`cuda_on_cpu.py`),
which knows no speed, but indices, barriers, shuffles and arithmetic.
"""

import math
import shutil
import sys

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import kernels
from kernels import cuda
from tests.support import cuda_on_cpu

FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
SHAPES = [(2, 16, 8, 8), (1, 3, 5, 7), (3, 40, 1, 1), (2, 5, 24, 20)]
every_format = pytest.mark.parametrize("layout", FORMATS)
torch.set_num_threads(1)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """Where the kernels run: on the CPU, or on the GPU for which they were built."""
    if request.param == "cpu":
        if shutil.which("g++") is None or (
            kernels.available() is None and not kernels.common.tiles.INTERPRETED
        ):
            pytest.skip("needs g++, and a machine without a GPU")
        with cuda_on_cpu.emulated(monkeypatch):
            yield "cpu"
    else:
        if reason := cuda.available():
            pytest.skip(reason)
        yield "cuda"


def make_inputs(shape, layout="nchw", dtype=torch.float64, noise="N", device="cpu", seed=0):
    """x, scale, bias, strength, noise; noise: "N" for one a sample, "1" for one of all, "" for none."""
    n, c, h, w = shape
    generator = torch.Generator().manual_seed(seed)
    sizes = [shape, (n, c), (n, c), *([(), (n if noise == "N" else 1, 1, h, w)] if noise else [])]
    made = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    made[0] = made[0].contiguous(memory_format=FORMATS[layout])
    made = [t.to(device, dtype) for t in made]
    for t in made[:4]:
        t.requires_grad_()
    return made


def run(op, inputs, **options):
    x, scale, bias, *rest = inputs
    strength, noise = rest if rest else (None, None)
    return op(x, scale, bias, noise=noise, strength=strength, **options)


def values_and_grads(op, inputs, seed=1, **options):
    y = run(op, inputs, **options)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return [y.detach(), *torch.autograd.grad(y, inputs[:4], g.to(y.device, y.dtype))]


def assert_near_float64(inputs, limit, **options):
    """Values and first gradients lie within `limit` (relative L2 norm) of the reference's in float64."""
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
    got = values_and_grads(cuda.instance_norm_act, inputs, **options)
    want = values_and_grads(cuda.instance_norm_act_reference, exact)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        of = limit * (4 if i else 1)
        assert float((a.double() - b).norm()) <= of * float(b.norm()) + 1e-6 * of, ("y", *"xsbk")[i]


@pytest.mark.covering("layout", "noise")
@every_format
@pytest.mark.parametrize("shape", SHAPES[:2] + SHAPES[3:], ids=str)
@pytest.mark.parametrize("noise", ["", "N", "1"])
def test_float64_is_exact(shape, layout, noise, device):
    assert_near_float64(make_inputs(shape, layout, noise=noise, device=device), 1e-13)


@every_format
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_dtype_is_near_float64(dtype, layout, device):
    limit = 2e-6 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    assert_near_float64(make_inputs((2, 16, 12, 8), layout, dtype, device=device), limit)


@pytest.mark.parametrize("shared", [1200, 2400])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_plane_that_shared_memory_holds_in_part_is_read_again(shared, dtype, monkeypatch):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    with cuda_on_cpu.emulated(monkeypatch, shared=shared):
        assert_near_float64(
            make_inputs((1, 2, 24, 20), dtype=dtype), 1e-13 if dtype == torch.float64 else 0.06
        )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_planes_on_the_gpu(dtype):
    """256 KB and 1 MB a plane: more than a multiprocessor's shared memory."""
    if reason := cuda.available():
        pytest.skip(reason)
    limit = 2e-6 if dtype == torch.float32 else 0.06
    for side in (256, 512):
        for layout in FORMATS:
            assert_near_float64(make_inputs((2, 8, side, side), layout, dtype, device="cuda"), limit)


@pytest.mark.covering
@every_format
@pytest.mark.parametrize("noise", ["", "N"])
def test_gradients_of_gradients_are_those_of_the_function(noise, layout, device):
    inputs = make_inputs((2, 3, 2, 4), layout, noise=noise, device=device)
    assert gradcheck(lambda *t: run(cuda.instance_norm_act, t), inputs, fast_mode=True)
    assert gradgradcheck(lambda *t: run(cuda.instance_norm_act, t), inputs, fast_mode=True)


@every_format
@hypothesis.settings(
    max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(shape=st.tuples(*(st.integers(1, most) for most in (3, 40, 9, 9))), seed=st.integers(0, 99))
def test_any_shape_agrees_with_the_reference(shape, seed, layout, device):
    inputs = make_inputs(shape, layout, device=device, seed=seed)
    got = values_and_grads(cuda.instance_norm_act, inputs)
    for a, b in zip(got, values_and_grads(cuda.instance_norm_act_reference, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.covering
@every_format
@pytest.mark.parametrize("threads", [32, 128, 256])
def test_any_block_size_computes_the_same(threads, layout, device):
    assert_near_float64(make_inputs((1, 16, 8, 8), layout, device=device), 1e-13, threads=threads)


def test_channels_last_stays_and_autocast_decides_the_dtype(device):
    for x_dtype, dtype in ((torch.float32, torch.bfloat16), (torch.float16, torch.bfloat16)):
        for layout in FORMATS:
            inputs = make_inputs((2, 16, 4, 4), layout, x_dtype, device=device)
            with torch.autocast(device, dtype):
                y = run(cuda.instance_norm_act, inputs)
                want = run(cuda.instance_norm_act_reference, inputs)
            assert y.dtype == want.dtype == dtype and y.is_contiguous(memory_format=FORMATS[layout])
            torch.testing.assert_close(y, want, rtol=0.02, atol=0.02)
            grads = torch.autograd.grad(y.float().square().sum(), inputs[:4])
            assert [g.dtype for g in grads] == [x_dtype] * 4
            for a, b in zip(grads, torch.autograd.grad(want.float().square().sum(), inputs[:4]), strict=True):
                assert float((a.float() - b.float()).norm()) < 0.03 * float(b.float().norm()) + 0.1


def test_parameters_may_have_a_dtype_of_their_own(device):
    x, scale, bias, strength, noise = make_inputs((2, 8, 4, 4), dtype=torch.bfloat16, device=device)
    wide = [t.detach().float().requires_grad_() for t in (scale, bias, strength)]
    y = cuda.instance_norm_act(x, wide[0], wide[1], noise=noise.float(), strength=wide[2])
    grads = torch.autograd.grad(y.float().sum(), [x, *wide])
    assert y.dtype == torch.bfloat16 and [g.dtype for g in grads] == [torch.bfloat16] + [torch.float32] * 3


@every_format
def test_strided_expanded_and_unaligned_inputs(layout, device):
    """Views that begin anywhere, skip elements or repeat them."""
    x, scale, bias, strength, noise = make_inputs((2, 8, 6, 8), layout, torch.float32, device=device)
    store = torch.randn(x.numel() + 1, device=device)
    views = {
        "strided": torch.randn(2, 8, 6, 16, device=device)[..., ::2],
        "expanded": torch.randn(1, 8, 6, 8, device=device).expand(2, -1, -1, -1),
        "unaligned": store[1:].as_strided(x.shape, x.stride()),
        "turned": torch.randn(8, 2, 8, 6, device=device).permute(1, 0, 3, 2),
    }
    for name, view in views.items():
        inputs = [view.requires_grad_(), scale.t().contiguous().t(), bias[:1].expand(2, -1), strength, noise]
        got = values_and_grads(cuda.instance_norm_act, inputs)
        for a, b in zip(got, values_and_grads(cuda.instance_norm_act_reference, inputs), strict=True):
            torch.testing.assert_close(
                a, b, rtol=1e-4, atol=1e-4, msg=lambda said, where=name: f"{where}: {said}"
            )
    y = run(cuda.instance_norm_act, (x, scale, bias, strength, noise))
    expanded = torch.autograd.grad(y, x, torch.ones(1, device=device).expand(y.shape))
    torch.testing.assert_close(
        expanded, torch.autograd.grad(run(cuda.instance_norm_act, (x, scale, bias, strength, noise)).sum(), x)
    )


@pytest.mark.parametrize("shape", [(0, 4, 3, 3), (2, 0, 3, 3)], ids=str)
def test_nothing_comes_of_nothing(shape, device):
    for layout in FORMATS:
        inputs = make_inputs(shape, layout, device=device)
        y, dx, dscale, dbias, dstrength = values_and_grads(cuda.instance_norm_act, inputs)
        assert y.shape == dx.shape == shape and dscale.shape == dbias.shape == shape[:2] and dstrength == 0


@every_format
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_nan_and_inf_come_out_where_the_references_do(value, layout, device):
    inputs = make_inputs((2, 4, 4, 4), layout, torch.float32, device=device)
    with torch.no_grad():
        inputs[0][1, 2, 3, 1] = value
        inputs[2][0, 1] = value
    got = values_and_grads(cuda.instance_norm_act, inputs)
    for a, b in zip(got, values_and_grads(cuda.instance_norm_act_reference, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


@every_format
def test_every_element_is_written_and_none_beside(layout, device, monkeypatch):
    """Memory arrives full of NaN, with more of it around: nothing of it may be left, added up or touched."""
    around, new_empty, empty_like = [], torch.Tensor.new_empty, torch.empty_like

    def poisoned(self, size, **options):
        store = new_empty(self, math.prod(size) + 64, **options).fill_(float("nan"))
        around.append(store)
        return store[32:-32].view(size)

    def poisoned_like(t, **options):
        store = new_empty(t, t.numel() + 64, dtype=options.get("dtype", t.dtype)).fill_(float("nan"))
        around.append(store)
        return store[32:-32].as_strided(t.shape, t.stride())

    inputs = make_inputs((2, 24, 5, 8), layout, torch.float32, device=device)
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    monkeypatch.setattr(torch, "empty_like", poisoned_like)
    found = values_and_grads(cuda.instance_norm_act, inputs)
    monkeypatch.setattr(torch, "empty_like", empty_like)
    assert all(t.isfinite().all() for t in found) and len(around) >= 4
    assert all(store[:32].isnan().all() and store[-32:].isnan().all() for store in around)


@every_format
def test_a_mean_far_from_zero_costs_no_digits(layout, device):
    x, scale, bias = make_inputs((2, 4, 16, 16), layout, torch.float32, "", device)
    far = (x.detach() + 1000).requires_grad_()
    assert_near_float64([far, scale, bias], 1e-4)  # float32 knows 1000 to 6e-5


@every_format
def test_two_runs_are_bit_identical(layout, device):
    inputs = make_inputs((2, 16, 8, 8), layout, torch.bfloat16, device=device)
    once, again = (values_and_grads(cuda.instance_norm_act, inputs) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@every_format
def test_only_the_gradients_that_are_asked_for(layout, device):
    inputs = make_inputs((2, 8, 4, 4), layout, device=device)
    want = values_and_grads(cuda.instance_norm_act_reference, inputs)[1:]
    for i, t in enumerate(inputs[:4]):
        y = run(cuda.instance_norm_act, inputs)
        g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)
        torch.testing.assert_close(torch.autograd.grad(y, t, g)[0], want[i], rtol=1e-8, atol=1e-10)


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
    x, scale, bias = make_inputs((2, 4, 4, 4), noise="", device=device)
    there = {name: value.to(device) if torch.is_tensor(value) else value for name, value in change.items()}
    with pytest.raises(ValueError, match=said) as error:
        cuda.instance_norm_act(x, scale, bias, **there)
    assert "\n" not in str(error.value)


@pytest.mark.gpu
@every_format
def test_a_cuda_graph_replays_with_new_inputs(layout):
    if reason := cuda.available():
        pytest.skip(reason)
    inputs = make_inputs((2, 16, 32, 32), layout, torch.bfloat16, device="cuda")
    g = torch.randn_like(inputs[0])

    def step():
        y = run(cuda.instance_norm_act, inputs)
        return [y, *torch.autograd.grad(y, inputs[:4], g)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        inputs[0].copy_(torch.randn_like(inputs[0]))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, step(), strict=True))


@pytest.mark.gpu
@every_format
def test_fast_math_is_nearly_as_exact(layout):
    """Approximate division and root are a few units in the last place off, no more."""
    if reason := cuda.available():
        pytest.skip(reason)
    inputs = make_inputs((2, 16, 32, 32), layout, torch.float32, device="cuda")
    assert_near_float64(inputs, 1e-5, flags=cuda.Flags(fast_math=True))


@pytest.mark.parametrize(
    ("shape", "dtype", "forward", "backward"),
    [
        ((8, 512, 256, 256), torch.bfloat16, 512, 1024),
        (
            (8, 512, 256, 256),
            torch.float32,
            1024,
            1024,
        ),  # half a multiprocessor holds less than half of a plane
        ((8, 512, 128, 128), torch.bfloat16, 256, 256),
        ((8, 512, 8, 8), torch.bfloat16, 32, 32),
    ],
)
def test_two_blocks_share_a_multiprocessor_where_both_planes_almost_fit(shape, dtype, forward, backward):
    module, x = sys.modules["kernels.cuda.instance_norm_act"], torch.empty(shape, dtype=dtype, device="meta")
    assert module._threads(None, x, 1, cuda.Flags(), pairs=True) == forward
    assert module._threads(None, x, 1, cuda.Flags()) == backward
    assert module._threads(None, x, 1, cuda.Flags(max_threads=64), pairs=True) == min(forward, 64)
