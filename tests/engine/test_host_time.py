"""The CPU's calls of a step, split into parts: each instant counts once, for the innermost call."""

import pytest

from ladder.core.protocol import CYCLE_STEPS
from ladder.engine import host_time

MS = 1_000_000


def rows_of(*calls, own=frozenset()):
    """Return {(name, part): (calls, ms)} of one step of 100 ms, undoing the mean over a cycle."""
    made = host_time.sum_calls([(0, 100 * MS, host_time.STEP)], list(calls), set(own))
    return {
        (row["name"], row["part"]): (row["calls"] * CYCLE_STEPS, pytest.approx(row["ms"] * CYCLE_STEPS))
        for row in made
    }


def test_a_call_counts_without_the_calls_inside_and_the_rest_is_pythons():
    rows = rows_of((10 * MS, 50 * MS, "aten::linear"), (20 * MS, 30 * MS, "aten::addmm"))
    assert rows[("aten::linear", "operators")] == (1, 30)
    assert rows[("aten::addmm", "operators")] == (1, 10)
    assert rows[("python", "python")] == (0, 60)


def test_what_runs_inside_the_optimizer_a_cast_or_the_loader_is_a_part_of_it():
    rows = rows_of(
        (0, 40 * MS, "Optimizer.step#Adam.step"), (5 * MS, 10 * MS, "aten::sqrt"),
        (50 * MS, 60 * MS, "aten::to"), (52 * MS, 58 * MS, "aten::copy_"),
        (53 * MS, 53 * MS + 9000, "cudaLaunchKernel"),
        (70 * MS, 80 * MS, "enumerate(DataLoader)#_Iter.__next__"),
    )  # fmt: skip
    assert {part for _, part in rows} == {"optimizer", "casts", "data", "python"}
    assert rows[("aten::copy_", "casts")][1] == pytest.approx(6 - 0.009)


def test_a_launch_that_blocks_is_a_part_of_its_own():
    rows = rows_of(
        (0, 5000, "cudaLaunchKernel"),
        (1 * MS, 4 * MS, "cudaLaunchKernel"),
        (5 * MS, 5 * MS + 10, "cuLaunchKernel"),
    )
    assert rows[("cudaLaunchKernel", "queue full")] == (1, 3)
    assert rows[("cudaLaunchKernel", "launches")][0] == 1 and rows[("cuLaunchKernel", "launches")][0] == 1


def test_our_functions_are_known_by_their_class_and_backward():
    calls = (0, 2 * MS, "_BiasAct"), (3 * MS, 9 * MS, "autograd::engine::evaluate_function: _BiasActBackward")
    rows = rows_of(*calls, (4 * MS, 8 * MS, "_BiasActBackward"), own={"_BiasAct"})
    assert rows[("_BiasAct", "own ops")] == (1, 2) and rows[("_BiasActBackward", "own ops")] == (1, 4)
    assert rows[("autograd::engine::evaluate_function: _BiasActBackward", "autograd")] == (1, 2)


def test_calls_before_and_between_steps_do_not_count():
    steps = [(10 * MS, 20 * MS, host_time.STEP), (40 * MS, 50 * MS, host_time.STEP)]
    calls = [(0, 5 * MS, "aten::before"), (12 * MS, 14 * MS, "aten::a"), (25 * MS, 35 * MS, "aten::between"),
             (41 * MS, 49 * MS, "aten::a")]  # fmt: skip
    made = {row["name"]: row for row in host_time.sum_calls(steps, calls, set())}
    assert made["aten::a"]["ms"] * CYCLE_STEPS == pytest.approx(10)
    assert made.keys() == {"aten::a", "python"}
