"""The columns of a study: entries that each stand beside the first one, in times of that one by either clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ladder.base.text import amount, ms
from ladder.plan import modes
from ladder.report.view import GpuTime, Row, View

MARKED = "each entry trains another model; none is an optimization, and none counts in a ladder"
ABOUT = {
    modes.MISTAKES: "times: the clean entry is 1, by either clock; GPU ms: from one step of each kind",
    modes.LEVERS: f"times: the unchanged model is 1, by either clock; {MARKED}",
}
Column = tuple[str, Callable[[Row], str]]


def columns(shown: View, clocks: Iterable[Column]) -> list[Column]:
    """Return (heading, cell of a row) of a study's table, without those for memory and checks.

    Args:
        clocks: the columns of a ladder's table that tell what a rung gains.
    """
    several = len({row.cost.updates for row in shown.rows}) > 1  # images a step
    return [
        *((heading, _turning(cell, shown)) for heading, cell in clocks),
        ("ms/image", lambda r: ms(r.cost.image_ms) if several else ""),
        ("images/s", lambda r: amount(r.images_per_s)),
        ("GFLOP/step", lambda r: amount(r.cost.flops and r.cost.flops / 1e9)),
        ("parameters, M", lambda r: amount(r.cost.parameters and r.cost.parameters / 1e6)),
    ]


def _turning(cell: Callable[[Row], str], shown: View) -> Callable[[Row], str]:
    return lambda row: cell(told(row, shown))


def told(row: Row, shown: View) -> Row:
    """Return a row as tables, charts and pages tell it.

    A study has answers in times of the first entry: above 1 takes longer. The rows of a ladder stay as they are.
    """
    if not shown.is_study:
        return row
    gpu = row.gpu and _turned_work(row.gpu, shown.rows[0].gpu if row is not shown.rows[0] else None)
    return replace(row, previous=_inverse(row.previous), gain=turned(row.gain), gpu=gpu, times=True)


def _turned_work(work: GpuTime, first: GpuTime | None) -> GpuTime:
    """Return GPU time in times of the first entry's. Files of before it was judged know the two times alone."""
    ratio = _inverse(work.previous) if work.verdict else work.ms / first.ms if first else None
    return replace(work, previous=ratio, gain=turned(work.gain), times=True)


def _inverse(ratio: float | None) -> float | None:
    return 1 / ratio if ratio else None


def turned(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return an interval of factors as that of their inverse."""
    return (1 / interval[1], 1 / interval[0]) if interval else None
