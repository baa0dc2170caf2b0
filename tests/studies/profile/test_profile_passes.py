"""The kernels of ours beside copies of as many bytes: sums, shares, and which of them are named as far from a copy."""

from __future__ import annotations

import pytest

from ladder.base.protocol import CYCLE_STEPS
from ladder.receipts import kernel_families
from ladder.show.table import Table
from ladder.studies.profile import attribution, study, tracing
from ladder.studies.profile.attribution import Label
from ladder.studies.profile.tracing import Ran, Segment

US = 1000
COPIED = [(1 << 20, 2 * US), (1 << 24, 16 * US)]


def ran(name: str, us: float) -> Ran:
    return Ran(name, kernel_families.family(name), 0, int(us * US))


def label(moved: int | None) -> Label:
    return Label("kernel", "G_main", "G conv0", False, moved)


def table(works: list[tuple[str, float, int | None]]) -> Table:
    """The table of a cycle that has each (kernel, us, bytes) once a step."""
    segment = Segment(("G_main",), tuple(ran(name, us) for name, us, _ in works * CYCLE_STEPS))
    labels = [label(moved) for *_, moved in works * CYCLE_STEPS]
    passes = attribution.list_passes([(segment, labels)], COPIED)
    return study.tabulate_passes(passes)


def test_a_copy_between_two_measured_ones_is_between_their_times() -> None:
    assert attribution.interpolate_copy_ns(COPIED, 1 << 20) == pytest.approx(2 * US)
    assert 2 * US < attribution.interpolate_copy_ns(COPIED, 1 << 22) < 16 * US
    assert attribution.interpolate_copy_ns(COPIED, 1 << 25) == pytest.approx(
        32 * US
    )  # as fast as the largest
    assert attribution.interpolate_copy_ns(COPIED, 0) == pytest.approx(
        2 * US
    )  # no launch is quicker than the smallest


def test_each_kernel_of_ours_stands_beside_copies_of_its_bytes() -> None:
    found = table(
        [("bias_act_kernel", 20, 1 << 24), ("modulate_kernel", 8, 1 << 20), ("sm90_xmma_fprop", 500, None)]
    )
    cells = found.format_cells()
    assert [row[0] for row in cells] == ["bias_act_kernel", "modulate_kernel", "together"]
    assert [row[-1] for row in cells] == ["80.0%", "25.0%", "64.3%"]  # (16 + 2) of (20 + 8) us
    assert cells[0][1:5] == ["0.02", "1.00", "16.8", "0.84"]


def test_a_kernel_whose_tensors_are_unknown_has_no_share_and_is_in_no_sum() -> None:
    found = table([("bias_act_kernel", 20, 1 << 24), ("adam_kernel", 400, None)])
    assert sorted(row[-1] for row in found.format_cells()) == ["", "80.0%", "80.0%"]
    assert found.notes[-1].endswith(": none")


def test_a_long_kernel_that_is_far_from_a_copy_is_named() -> None:
    found = table([("bias_act_kernel", 101, 1 << 24), ("modulate_kernel", 99, 1 << 20)])
    assert found.notes[-1] == "over 100 us a step and below 60%: bias_act_kernel"


def test_without_copies_there_is_no_table() -> None:
    segment = Segment(("G_main",), (ran("bias_act_kernel", 20),))
    assert attribution.list_passes([(segment, [label(8)])], []) == []


@pytest.mark.gpu
def test_copies_are_timed_on_a_gpu() -> None:
    found = tracing.time_copies("cuda")
    assert [size for size, _ in found] == list(tracing.SIZES_COPIED)
    assert all(ns > 0 for _, ns in found) and found[-1][1] > found[0][1]
