"""The parts of `ladder upstream --patched`: errors of gradients, their verdict, equal draws, and times of phases."""

import math

import numpy as np
import pytest
import torch

from ladder.core.protocol import IN_ORDER
from ladder.studies.upstream import step
from ladder.studies.upstream.record import Observed, PhaseErrors, find_parity_problem
from ladder.studies.upstream.study import join_errors


def test_an_error_is_that_of_all_gradients_and_of_each_tensor():
    exact, ours = np.array([3.0, 4.0, 0.1, 0.0, 0.0]), np.array([3.0, 4.0, 0.2, 0.0, 0.0], dtype=np.float32)
    whole, tensors = step.derive_error(exact, ours, [2, 1, 2])
    assert whole == pytest.approx(0.1 / math.sqrt(25.01), rel=1e-6)
    assert tensors == pytest.approx(math.sqrt((0 + 1) / 2), rel=1e-6)  # the last has no gradient at all
    assert step.derive_error(exact, np.full(5, np.nan), [5]) == (step.MOST, 1.0)
    assert step.derive_error(np.zeros(2), np.zeros(2), [2]) == (0, 0)
    errors = join_errors([[3.0, 0.3], [4.0, 0.2], [5.0, 0.9]], [[1.0, 0.1]] * 3)
    assert (errors.unpatched, errors.unpatched_tensors, errors.patched, errors.patched_tensors) == (
        4,
        0.3,
        1,
        0.1,
    )
    assert (errors.least, errors.least_tensors) == (1 / 5, 0.1 / 0.9)
    small = np.array([1.0, 1e-9], dtype=np.float64)  # rounding of a gradient that is zero
    assert step.derive_error(small, np.array([1.0, 5.0]), [1, 1]) == (pytest.approx(5), 0)


def has_parity(errors: PhaseErrors) -> bool:
    """Return the verdict where every phase has these errors."""
    return find_parity_problem(Observed(batch=8, errors=dict.fromkeys(IN_ORDER, errors))) is None


@pytest.mark.parametrize(
    ("errors", "is_right"),
    [
        ((1e-2, 1.5e-2, 1e-2, 1.5e-2), True),
        ((1e-2, 1.6e-2, 1e-2, 1e-2), False),
        ((1e-2, 1e-2, 1e-2, 1.6e-2), False),
        ((1e-8, 9e-7, 1e-8, 9e-7), True),  # FP32's rounding
        ((1e-8, 2e-6, 1e-8, 1e-8), False),
        ((step.MOST, step.MOST, 1.0, 1.0), True),
    ],
)
def test_a_patched_error_may_be_half_as_large_again(errors, is_right):
    names = ("unpatched", "patched", "unpatched_tensors", "patched_tensors")
    least = {"least": errors[1] / errors[0], "least_tensors": errors[3] / errors[2]}
    assert has_parity(PhaseErrors(**dict(zip(names, errors, strict=True)), **least)) == is_right


@pytest.mark.parametrize(
    ("ratios", "is_right"),
    [
        ((0.2, 1.2, 6.0, 1.9, 2.4, 2.1), True),  # one input flipped signs in the one, another in the other
        ((1.6, 2.0, 1.8, 1.7, 1.6, 1.9), False),
        ((0.9, 9.0, 8.0, 7.0, 9.0, 9.0), False),
    ],
)
def test_an_error_is_too_large_for_every_input_or_by_far(ratios, is_right):
    assert has_parity(join_errors([[1e-2, 1e-2]] * 6, [[1e-2 * ratio, 1e-2] for ratio in ratios])) == is_right


def test_a_phase_that_was_not_compared_is_no_parity():
    right = join_errors([[1e-2, 1e-2]], [[1e-2, 1e-2]])
    assert find_parity_problem(Observed(batch=8, errors={"D_r1": right})) == "G_main: not compared"


def test_draws_depend_on_neither_precision_nor_device():
    drawn, own = {}, torch.randn
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(torch.finfo(dtype).bits)  # the global generator has no say
        with step.set_default(dtype), step.Draws(3) as draws:
            like = torch.empty(2, 3, 4, 4).to(memory_format=torch.channels_last)
            numbers = [torch.randn([2, 2]), torch.rand([]), torch.randn(3), torch.randn_like(like)]
        assert all(each.dtype is dtype for each in numbers)
        drawn[dtype] = [draws.shapes.hexdigest(), *(each.float() for each in numbers)]
    first, second = drawn.values()
    assert first[0] == second[0] and torch.randn is own
    assert all(torch.equal(a, b) for a, b in zip(first[1:], second[1:], strict=True))


def test_profiled_runs_become_gpu_times_by_phase():
    def kernel(name, begin_us, end_us, on_device=True):
        return name, on_device, 7, 1000 * begin_us, 1000 * end_us

    runs = [
        [kernel("a", 0, 100), kernel("b", 50, 200), kernel("cudaLaunchKernel", 0, 900, False)],
        [kernel("Memcpy HtoD", 300, 400), kernel("a", 500, 700)],
        [kernel("a", 1000, 1300)],
    ]
    times = step.tabulate_times(["D_r1", "G_pl", "D_r1"], runs)
    assert times["D_r1"] == {"gpu_ms": [pytest.approx(0.2), pytest.approx(0.3)], "kernels": 1.5}
    assert times["G_pl"] == {"gpu_ms": [pytest.approx(0.3)], "kernels": 1}
