"""The marks of a traced cycle: where phases end, runs that differ, kinds of events, and whose an instant is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ladder.receipts import categories
from ladder.studies.profile import attribution, record, tracing

US = 1000
CONV, COPY = "sm90_xmma_fprop_implicit_gemm_bf16", "Memcpy HtoD (Pinned -> Device)"


def test_the_kind_of_an_event_is_told_by_older_versions_of_pytorch_too() -> None:
    def event(name: str, **more: Any) -> Any:
        return SimpleNamespace(name=lambda: name, **more)

    assert tracing.is_operator(event("aten::mul")) and not tracing.is_operator(event(tracing.MEMORY))
    assert (
        tracing.name_activity(event("cudaLaunchKernel"))
        == tracing.name_activity(event("cuLaunchKernelEx"))
        == "cuda_runtime"
    )
    assert tracing.name_activity(event("layer: G", is_user_annotation=lambda: True)) == "user_annotation"
    assert tracing.name_activity(event("cudnn", activity_type=lambda: "cpu_op")) == "cpu_op"
    assert (
        tracing.name_activity(event("aten::mul", activity_type=lambda: 0)) == "cpu_op"
    )  # a number of an enum
    for name in ("Lazy Function Loading", "Activity Buffer Request", "Runtime Triggered Module Loading"):
        assert tracing.name_activity(event(name)) == "overhead" and not tracing.is_operator(event(name))


class Stepped:
    """A step that only says what ran."""

    device = "cpu"

    def __init__(self, whole: bool) -> None:
        self.together = [("G_main", "D_main")] if whole else []
        self.ran: list[Any] = []

    def run(self, phases: tuple[str, ...]) -> None:
        if self.together:
            self.ran.append(phases)
            return
        for phase in phases:
            self.run_phase(phase)

    def run_phase(self, phase: str) -> None:
        self.ran.append(phase)


@pytest.mark.parametrize("whole", [False, True])
def test_a_cycle_is_marked_at_its_phases_or_at_its_whole_steps(whole: bool) -> None:
    step = Stepped(whole)
    marks = tracing.Marks(step)
    with marks.between_phases():
        step.run(("G_main", "D_main"))
    wanted = [(), ("G_main", "D_main")] if whole else [(), ("G_main",), (), ("D_main",)]
    assert marks.labels == wanted and marks.ended_ns == sorted(marks.ended_ns)
    step.run(("G_main", "D_main"))  # nothing is marked any more
    assert marks.labels == wanted and step.ran == (
        2 * [("G_main", "D_main")] if whole else 2 * ["G_main", "D_main"]
    )


def test_runs_of_a_phase_that_differ_in_their_kernels_are_told() -> None:
    ran = tuple(tracing.Ran(f"k{n}", "other", n, 5) for n in range(3))
    first, between = tracing.Segment(("G_main",), ran), tracing.Segment((), ran[:1])
    same = tracing.Traced(
        (first, between, first, tracing.Segment((), ran), tracing.Segment(("D_main",), ran[:2])), 9
    )
    assert tracing.list_uneven(same) == []
    uneven = tracing.Traced((*same.segments, tracing.Segment(("D_main",), ran)), 9)
    assert tracing.list_uneven(uneven) == ["D_main"]


def test_a_mark_is_apart_from_what_ran_before_and_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Stepped(False)
    clock = SimpleNamespace(
        sleep=lambda _: step.ran.append("pause"), time_ns=lambda: step.ran.append("mark") or 0
    )
    monkeypatch.setattr(tracing, "time", clock)
    with tracing.Marks(step).between_phases():
        step.run(("G_main",))
    assert step.ran == ["pause", "mark", "pause", "G_main", "pause", "mark", "pause"]


def test_every_instant_belongs_to_one_category_so_their_sum_is_gpu_time() -> None:
    """An instant of two streams belongs to the busier one, and rates are of all milliseconds."""
    planted = [(CONV, 7, 0, 4000), ("a_gemm", 8, 3000, 6000), (COPY, 9, 5000, 5500)]
    events = [(name, True, stream, begin * US, end * US) for name, stream, begin, end in planted]
    traced = tracing.cut_events(events, [("G_main",)], [10**12], "cuda")
    labels = list(attribution.label_segments({}, traced.segments))
    step = SimpleNamespace(profile=attribution.list_kernels(labels), work={}, replaced={})
    rows = record.derive_categories(step)
    us = {row.name: (16_000 * row.ms, 16_000 * row.shown_ms) for row in rows}
    assert us == {
        categories.CONVOLUTION: pytest.approx((4000, 4000)),
        categories.MATMUL: pytest.approx((3000, 2000)),
        categories.COPIES: pytest.approx((500, 0)),
    }
    assert traced.busy_ns == 6000 * US and [row.share for row in rows] == [0.66667, 0.33333, 0.0]
    families = step.profile.families
    assert sum(16_000 * row.own_ms for row in families) == pytest.approx(6000)
