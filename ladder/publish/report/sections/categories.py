"""The categories of each rung: the GPU's work of a step by what its kernels do, and the waiting beside it."""

from __future__ import annotations

from ladder.base.text import ms
from ladder.publish.report import html
from ladder.publish.report.found import Found
from ladder.publish.report.section import Section
from ladder.receipts import categories
from ladder.report import panels
from ladder.results import parts
from ladder.results.parts import Parts
from ladder.results.run import RungResult

PLACE = 40
FUSED = "fused kernels"
# Colour class of each category, in the order in which a bar holds them. The style sheet has the colours.
TONES = {
    categories.CONVOLUTION: "k0",
    categories.MATMUL: "k1",
    categories.NORMALIZATION: "k2",
    categories.RESAMPLING: "k3",
    categories.LAYOUT: "k4",
    categories.ELEMENTWISE: "k5",
    categories.REDUCTIONS: "k6",
    FUSED: "k7",
    categories.COMPILED: "k8",
    categories.OPTIMIZER: "k9",
    categories.COPIES: "k10",
    categories.RANDOM: "k11",
    categories.OTHER: "k11",
}
LEAST_MS = 0.005


def section(found: Found) -> Section | None:
    """Return a bar of categories for each rung with a profile, None without any."""
    known = [
        (rung, each) for rung in found.main.rungs if rung.status == "ok" and (each := parts.parts_of(rung))
    ]
    if not known:
        return None
    most = max(max(sum(_joined(each).values()), _step(rung, each)) for rung, each in known) * 1.02
    bars = [_bar(rung, each) for rung, each in known]
    seen = {name for _, each in known for name, size in _joined(each).items() if size >= LEAST_MS}
    tones = [(kind, name) for name, kind in TONES.items() if name in seen]
    chart = html.bars(bars, most, "Milliseconds of GPU work of each rung by category")
    twice = any(each.own is None for _, each in known)
    note = (
        "The parts are of the first profiled cycle of one process, and the waiting is the median of all. "
        + "Two kernels that ran at once are counted "
        + ("twice, so a bar may be a little longer than the GPU time." if twice else "once.")
    )
    return Section(
        "categories",
        "What the GPU does",
        html.joined(
            [
                html.legend([*tones, ("idle", "waiting")]),
                chart,
                html.fold("Milliseconds by category", html.table(_table(known), "Milliseconds by category")),
                html.text(note, "muted"),
            ]
        ),
        "GPU milliseconds a step by category of kernels, and the time in which the GPU waits.",
    )


def _joined(found: Parts) -> dict[str, float]:
    """Return milliseconds by category, in the order of the bars; all kernels that join operations are one."""
    sizes = dict.fromkeys(TONES, 0.0)
    for name, work in found.shown.items():
        own = FUSED if name.startswith(categories.FUSED) else name if name in TONES else categories.OTHER
        sizes[own] += work.ms
    return sizes


def _waiting(rung: RungResult) -> float:
    return rung.waiting_ms or 0.0


def _step(rung: RungResult, found: Parts) -> float:
    return sum(_joined(found).values()) + _waiting(rung)


def _bar(rung: RungResult, found: Parts) -> html.Bar:
    drawn = [
        html.Part(size, TONES[name], [panels.short_ms(size)]) for name, size in _joined(found).items() if size
    ]
    waits = _waiting(rung)
    drawn += [html.Part(waits, "idle", [panels.short_ms(waits)])] if waits else []
    said = [("", f"{found.launches:,.0f} launches")]
    return html.Bar(html.name(rung.title), drawn, f"{ms(found.gpu_ms)} ms GPU", said)


def _table(known: list[tuple[RungResult, Parts]]) -> list[list[str]]:
    """Return a row for each rung and a column for every category, those of fused kernels apart, the heaviest first.

    Names of categories have spaces to break at, and names of rungs have none: 25 of them are wider than paper.
    """
    names = list(dict.fromkeys(name for _, each in known for name in each.shown))
    total = {name: sum(each.shown[name].ms for _, each in known if name in each.shown) for name in names}
    order = sorted(names, key=lambda each: -total[each])
    rows = [["ms a step", *map(html.name, order), "GPU time of that cycle", "waiting"]]
    for rung, each in known:
        cells = [f"{each.shown[name].ms:.2f}" if name in each.shown else "0.00" for name in order]
        rows.append([html.name(rung.name), *cells, f"{each.gpu_ms:.2f}", f"{_waiting(rung):.2f}"])
    return rows
