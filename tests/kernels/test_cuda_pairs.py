"""The pairs of CUDA C++ kernels: both of each compute what their reference does, in every dtype, size and mode.

On the CPU the sources run as in `cuda_on_cpu.py`; marked `gpu`, on a GPU.
"""

import shutil

import pytest
import torch

from kernels import cuda
from tests.support import cuda_on_cpu

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
torch.set_num_threads(1)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if request.param == "cpu":
        if shutil.which("g++") is None or torch.cuda.is_available():
            pytest.skip("needs g++, and a machine without a GPU")
        with cuda_on_cpu.emulated(monkeypatch):
            yield "cpu"
    else:
        if reason := cuda.available():
            pytest.skip(reason)
        yield "cuda"


def poisoned(like: torch.Tensor, shape=None, dtype=None) -> torch.Tensor:
    """Where to write: full of a value that no result has."""
    return torch.full(shape or like.shape, 77, dtype=dtype or like.dtype, device=like.device)


@pytest.mark.parametrize("op", ["strided_act", "coalesced_act"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("blocks", ["all", "samples", 3], ids=str)
def test_both_orders_of_access_reach_every_element(op, dtype, blocks, device):
    for shape, threads in (((2, 5, 3, 7), 32), ((1, 64, 2, 2), 64), ((3, 1, 1, 1), 32), ((2, 70, 9), 96)):
        x = torch.randn(shape, dtype=torch.float64).to(device, dtype)
        x.view(-1)[0] = float("nan")
        out = poisoned(x)
        y = getattr(cuda, op)(x, 0.2, blocks=blocks, threads=threads, out=out)
        assert y is out
        torch.testing.assert_close(y, getattr(cuda, f"{op}_reference")(x, 0.2), equal_nan=True)


@pytest.mark.parametrize("by", ["thread", "warp"])
def test_both_branches_compute_the_same_bits(by, device):
    for n in (1, 31, 100, 257):
        x = torch.randn(n, device=device)
        one = cuda.divergent(x, 9, by=by, threads=64, out=poisoned(x))
        two = cuda.predicated(x, 9, by=by, threads=32, out=poisoned(x))
        assert torch.equal(one, two)
        torch.testing.assert_close(one, cuda.divergent_reference(x, 9, by=by))


@pytest.mark.parametrize("op", ["shared_sum", "shuffle_sum"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_both_sums_are_float64s(op, dtype, device):
    for shape in ((1, 1), (3, 33), (2, 700), (4, 0)):
        x = torch.randn(shape, dtype=torch.float64).to(device, dtype)
        for threads in (32, 64, 256):
            out = poisoned(x, shape[:1], torch.promote_types(dtype, torch.float32))
            y = getattr(cuda, op)(x, threads=threads, out=out)
            assert y.dtype == out.dtype
            torch.testing.assert_close(y.double(), x.double().sum(1), rtol=1e-5, atol=1e-5)
    big = torch.full((1, 4096), 1000.0, dtype=dtype, device=device)
    assert float(getattr(cuda, op)(big)) == 4_096_000  # beyond what float16 can hold: sums are float32's


@pytest.mark.parametrize("op", ["scalar_copy", "vector_copy"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_both_copies_copy_all_and_nothing_more(op, dtype, device):
    for n in (1, 7, 16, 100, 1025):
        x = torch.arange(n + 1, device=device).to(dtype)
        room = poisoned(x, (n + 32,))
        copied = getattr(cuda, op)(x[:n], threads=32, out=room[:n])
        assert torch.equal(copied, x[:n]) and bool((room[n:] == 77).all())
        moved = getattr(cuda, op)(x[1:], threads=32)  # begins at no multiple of 16 bytes
        assert torch.equal(moved, x[1:])
    turned = torch.arange(12, device=device).to(dtype).view(3, 4).t()
    assert torch.equal(getattr(cuda, op)(turned), turned)


def test_nothing_is_copied_and_nothing_done(device):
    for op in (cuda.scalar_copy, cuda.vector_copy, cuda.divergent, cuda.predicated):
        assert op(torch.zeros(0, device=device)).shape == (0,)
    assert cuda.strided_act(torch.zeros(0, 4, 2, device=device)).shape == (0, 4, 2)
    assert cuda.shared_sum(torch.zeros(0, 4, device=device)).shape == (0,)
    cuda.empty()
    cuda.empty(blocks=7, threads=64)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x: cuda.coalesced_act(x, threads=33), "multiple of 32"),
        (lambda x: cuda.coalesced_act(x, threads=512, flags=cuda.Flags(max_threads=256)), "from 32 to 256"),
        (lambda x: cuda.coalesced_act(x, blocks="some"), 'blocks must be "all", "samples"'),
        (lambda x: cuda.coalesced_act(x.int()), "dtype must be one of"),
        (lambda x: cuda.coalesced_act(x[0, 0]), r"x must be \[N, C"),
        (lambda x: cuda.divergent(x.double()), "dtype must be one of"),
        (lambda x: cuda.divergent(x, by="block"), 'by must be "thread" or "warp"'),
        (lambda x: cuda.shared_sum(x), r"x must be \[rows, columns\]"),
        (lambda x: cuda.shared_sum(x[0], threads=96), "power of two"),
        (lambda x: cuda.vector_copy(x, out=x[:, :1]), "out must be a contiguous"),
        (lambda x: cuda.scalar_copy(x.to(torch.complex128)), "1, 2, 4 or 8 bytes"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(wrong, said, device):
    with pytest.raises(ValueError, match=said) as error:
        wrong(torch.randn(2, 3, 4, device=device))
    assert "\n" not in str(error.value)


def test_every_kernel_has_a_row_of_resources(device, monkeypatch):
    if device == "cpu":
        places = type("Properties", (), {"max_threads_per_multi_processor": 2048})()
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: places)
    rows = {row.kernel: row for row in cuda.resources(threads=128)}
    assert len(rows) == len(cuda.resources()) >= 20
    assert {"empty_kernel", "planes_forward_kernel<bf16>", "pixels_backward_kernel<bf16>"} <= rows.keys()
    for row in rows.values():
        assert row.registers > 0 and row.threads == 128 and 0 < row.occupancy <= 1


@pytest.mark.gpu
def test_no_kernel_spills_and_bounds_bind():
    if reason := cuda.available():
        pytest.skip(reason)
    assert not [row for row in cuda.resources() if row.spilled]
    bound = cuda.Flags(max_threads=256, min_blocks=8)
    assert all(row.registers <= 32 for row in cuda.resources(flags=bound) if row.kernel != "empty_kernel")
