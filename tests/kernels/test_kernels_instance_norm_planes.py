"""instance_norm_act on NCHW maps that a program walks over plane by plane: what every op owes its user, asked of it."""

from types import SimpleNamespace

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from kernels.common.tiles import is_nhwc
from kernels.norm import instance_norm_act_planes as planes
from tests.kernels import opcases
from tests.kernels import test_kernels_ops as ops
from tests.kernels.opcases import agree, functions, make_inputs, values_and_grads
from tests.support.kernel_checks import assert_no_worse

every_case = pytest.mark.parametrize("case", ["instance_norm_act", "instance_norm_act noise"])
KERNELS = {"instance_norm_act_planes_kernel", "instance_norm_act_planes_grad_kernel"}


@pytest.fixture(params=[False, True], ids=["plain", "hints, backwards"])
def walked(monkeypatch, request):
    """One multiprocessor with a large cache: two programs, blocks of 16 pixels. Yields which kernels were launched."""
    made, launch, hints = [], planes._launch, request.param

    def record(kernel, how, *arguments, **constants):
        made.append((kernel.__name__, how.programs))
        launch(kernel, how, *arguments, **constants)

    monkeypatch.setattr(planes, "processor", lambda device: (90, 1))
    monkeypatch.setattr(planes, "cache_bytes", lambda device: 1 << 30)
    monkeypatch.setattr(planes, "LEAST_PIXELS", 1)
    monkeypatch.setattr(planes, "CONFIGS", ((1.0, planes.Config(2, 16, 8, 3, 1, hints, hints)),))
    monkeypatch.setattr(planes, "_launch", record)
    yield made
    assert {name for name, _ in made} == KERNELS


def test_gradients_of_gradients_are_those_of_the_function(walked):
    case = "instance_norm_act noise"  # the other case runs the same kernels with less in them
    ops.test_gradients_of_gradients_are_those_of_the_function(case, "nchw")


@pytest.mark.covering("case", "walked")
@every_case
@pytest.mark.parametrize("size", [(3, 3), (4, 4), (3, 9), (8, 4), (7, 7)], ids=str)
def test_blocks_that_fit_and_that_do_not_agree_with_the_reference(case, size, walked):
    agree(case, make_inputs(case, (2, 5, *size)), rtol=1e-10, atol=1e-10)
    assert {count for _, count in walked} == {2}  # each walks over five planes


@every_case
@hypothesis.settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
    shape=st.tuples(st.integers(1, 4), st.integers(2, 19), st.integers(1, 7), st.integers(1, 7)),
    seed=st.integers(0, 99),
)
def test_any_shape_agrees_with_the_reference(case, walked, shape, seed):
    """Two planes at least, which is what a multiprocessor is kept busy with. Other layouts are not walked over."""
    begin, inputs = len(walked), make_inputs(case, shape, seed=seed)
    agree(case, inputs, rtol=1e-7, atol=1e-7)
    # One pixel or one channel is channels_last memory as much as NCHW: it goes that way.
    assert {name for name, _ in walked[begin:]} == (set() if is_nhwc(inputs[0]) else KERNELS)


@pytest.mark.covering("case", "dtype")
@every_case
@pytest.mark.parametrize("dtype", ops.LOW, ids=str)
def test_low_precision_is_no_worse_than_plain_pytorch(case, dtype, walked):
    ops.test_low_precision_is_no_worse_than_plain_pytorch(case, "nchw", dtype)


@every_case
def test_what_every_op_does(case, walked, monkeypatch):
    ops.test_an_empty_batch(case)
    assert walked == []  # which is no launch
    ops.test_mixed_dtypes(case)
    ops.test_strided_and_expanded_inputs(case)
    ops.test_autocast_gives_the_references_dtype(case)
    ops.test_a_gradient_alone_is_the_same_as_among_others(case, "nchw")
    ops.test_every_element_is_written_and_none_beside(case, "nchw", monkeypatch, None)


@every_case
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_nan_and_inf_come_out_where_the_references_do(case, value, walked):
    ops.test_nan_and_inf_come_out_where_the_references_do(case, value, "nchw")


def test_a_mean_far_from_zero_costs_no_digits(walked):
    inputs = make_inputs("instance_norm_act", (2, 4, 9, 11), dtype=torch.float32)
    inputs[0] = (inputs[0].detach() + 1000).requires_grad_()
    fused, reference = functions("instance_norm_act")
    exact = [t.detach().double().requires_grad_() for t in inputs]
    pairs = ((fused, inputs), (reference, inputs), (reference, exact))
    assert_no_worse(*(values_and_grads(f, i)[:2] for f, i in pairs), torch.float32)


@pytest.mark.parametrize(
    ("shape", "layout", "dtype", "tensors", "count", "marks"),
    [
        ((8, 512, 256, 256), "nchw", torch.bfloat16, 1, 264, True),
        ((8, 512, 128, 128), "nchw", torch.bfloat16, 1, 264, False),
        ((8, 512, 128, 128), "nchw", torch.bfloat16, 2, 264, False),
        ((8, 512, 128, 128), "nchw", torch.float32, 2, 264, True),
        ((8, 512, 256, 256), "nchw", torch.bfloat16, 2, 132, True),
        ((8, 512, 256, 256), "nchw", torch.float32, 1, 132, True),
        ((8, 512, 256, 256), "nchw", torch.float32, 2, 132, True),
        ((8, 512, 512, 512), "nchw", torch.bfloat16, 1, 0, False),  # more than twice what the cache holds
        ((8, 512, 256, 256), "nhwc", torch.bfloat16, 1, 0, False),
        ((8, 512, 16, 16), "nchw", torch.bfloat16, 1, 0, False),
        ((1, 64, 256, 256), "nchw", torch.bfloat16, 1, 0, False),  # fewer than two for each multiprocessor
        ((8, 64, 1024, 1024), "nchw", torch.bfloat16, 1, 0, False),
    ],
)
def test_when_it_is_the_way(shape, layout, dtype, tensors, count, marks, monkeypatch):
    """Marks where planes push each other out."""
    monkeypatch.setattr(planes, "processor", lambda device: (90, 132))
    monkeypatch.setattr(planes, "cache_bytes", lambda device: 60 << 20)
    x = torch.empty(shape, dtype=dtype, device="meta").contiguous(memory_format=opcases.FORMATS[layout])
    how = planes.walk(x, tensors)
    assert (how.programs, how.hints) == (count, marks) if how else not count


@pytest.mark.parametrize(
    ("shared_kib", "pixel_bytes", "count"),
    [(227, 8, 3), (227, 12, 3), (163, 12, 2), (99, 8, 2), (99, 12, 2), (48, 12, 1)],  # 227: an H200's
)
def test_what_is_loaded_ahead_fits_into_shared_memory(shared_kib, pixel_bytes, count, monkeypatch):
    monkeypatch.setattr(planes, "shared_bytes", lambda device: shared_kib << 10)
    assert planes.stages(3, 8192, True, pixel_bytes, torch.device("cuda")) == count
    assert planes.stages(1, 8192, True, pixel_bytes, torch.device("cuda")) == 1
    assert (count - 1) * 8192 * pixel_bytes <= shared_kib << 10


def test_the_cache_is_asked_for_its_size(monkeypatch):
    found = SimpleNamespace(L2_cache_size=40 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    planes.cache_bytes.cache_clear()
    assert planes.cache_bytes(torch.device("cuda", 7)) == 40 << 20
    assert planes.cache_bytes(torch.device("cpu")) > 0
    planes.cache_bytes.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_planes_and_tiles_agree_on_the_gpu_and_runs_are_bit_identical(dtype):
    inputs = make_inputs("instance_norm_act noise", (8, 128, 65, 64), dtype=dtype)
    fused, reference = functions("instance_norm_act noise")
    assert planes.walk(inputs[0], 2)
    first, again = values_and_grads(fused, inputs), values_and_grads(fused, inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in inputs]
    plain, exact = values_and_grads(reference, inputs), values_and_grads(reference, exact)
    assert_no_worse(first, plain, exact, dtype)
