"""The columns of a study: entries that each stand beside the first one, in times of its step."""

from __future__ import annotations

from collections.abc import Callable

from ladder.base.text import amount, bounds, factor, ms
from ladder.plan import modes
from ladder.report.view import Row, View
from ladder.results.words import Seen, word

MARKED = "each entry trains another model; none is an optimization, and none counts in a ladder"
ABOUT = {
    modes.MISTAKES: "times: the step of the clean entry is 1; GPU ms: profiled in the first generation",
    modes.LEVERS: f"times: the step of the unchanged model is 1; {MARKED}",
}


def columns(shown: View) -> list[tuple[str, Callable[[Row], str]]]:
    """Return (heading, cell of a row) of a study's table, without those for memory and checks."""
    first = shown.rows[0] if shown.rows else None
    several = len({row.cost.updates for row in shown.rows}) > 1  # images a step
    return [
        (shown.versus, lambda r: factor(inverse(r.seen).ratio)),
        ("interval", lambda r: bounds(turned(r.gain)).rstrip("x")),
        ("verdict", lambda r: word(r.seen)),
        ("GPU ms", lambda r: ms(r.gpu.ms) if r.gpu else ""),
        ("times (GPU)", lambda r: factor(by_gpu(r, first))),
        ("waits, ms", lambda r: ms(r.gpu.waiting_ms) if r.gpu else ""),
        ("ms/image", lambda r: ms(r.cost.image_ms) if several else ""),
        ("images/s", lambda r: amount(r.images_per_s)),
        ("GFLOP/step", lambda r: amount(r.cost.flops and r.cost.flops / 1e9)),
        ("parameters, M", lambda r: amount(r.cost.parameters and r.cost.parameters / 1e6)),
    ]


def inverse(seen: Seen) -> Seen:
    """Return an answer with how many times the first entry's time an entry takes, not how many times faster it is."""
    return Seen(seen.verdict, 1 / seen.ratio if seen.ratio else None, seen.below)


def turned(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return an interval of factors as that of their inverse."""
    return (1 / interval[1], 1 / interval[0]) if interval else None


def by_gpu(row: Row, first: Row | None) -> float | None:
    """Return how many times the GPU's work of the first entry an entry has."""
    if first is None or first is row or not (row.gpu and first.gpu):
        return None
    return row.gpu.ms / first.gpu.ms
