"""The report of `ladder ablate`: tables and sentences, in which a logarithm is shown as a factor, and the chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ladder.base import text as texts
from ladder.base.text import fine_factor
from ladder.report.themes import LIGHT, Theme
from ladder.show.table import Column, Table
from ladder.studies.ablate.record import GPU, Ablation, File, Pair, Worth, is_beyond_noise

SHOWN = 5  # pairs in the table


def _factor(log: float | None) -> float | None:
    return None if log is None else math.exp(log)


def _factors(low: float | None, high: float | None) -> list[float] | None:
    return None if low is None or high is None else [math.exp(low), math.exp(high)]


def _interval(logs: Sequence[float] | None) -> list[float] | None:
    return _factors(*logs) if logs else None


def describe_place(ablation: Ablation) -> str:
    """Return for which place in the ladder the figures hold."""
    return "in any order" if ablation.protocol.whole else "on top of all others"


def describe_clock(ablation: Ablation) -> str:
    return "GPU time" if ablation.protocol.clock == GPU else "wall time on a CPU"


def make_table(ablation: Ablation) -> Table:
    """Return the rungs in the order of the ladder, with what they gain; of a longer ladder what leaves with each."""
    total, rows = ablation.total, []
    if ablation.protocol.whole:
        columns = [
            Column("rung"), Column("on average", "factor"), Column("95% interval", "interval"),
            Column("saves ms/step", "ms", 1), Column("in the ladder's order", "factor", 1),
            Column("first", "factor", 3), Column("last", "factor", 3), Column("all orders", "interval", 2),
        ]  # fmt: skip
        for each in ablation.worth:
            gains = _factor(each.staircase), _factor(each.alone), _factor(each.left_out)
            span = _factors(each.least, each.most)
            rows.append([each.rung, _factor(each.gain), _interval(each.interval), each.ms, *gains, span])
        if total is not None:
            rows.append(
                ["all together", _factor(total.gain), _interval(total.interval), total.ms, *[None] * 4]
            )
        return Table(columns, rows)
    columns = [
        Column("rung"), Column("gain at top", "factor"), Column("95% interval", "interval"),
        Column("leaves with it", priority=1),
    ]  # fmt: skip
    left = {row.out[0]: {*row.rungs} for row in ablation.subsets if len(row.out) == 1}
    rungs = ablation.protocol.rungs
    for each in ablation.worth:
        others = [name for name in rungs if name not in left.get(each.rung, rungs) and name != each.rung]
        interval = _interval(each.left_out_interval)
        rows.append([each.rung, _factor(each.left_out), interval, ", ".join(others)])
    if total is not None:
        rows.append(["all together", _factor(total.gain), _interval(total.interval), ""])
    return Table(columns, rows)


def make_pairs_table(ablation: Ablation, most: int = SHOWN) -> Table:
    """Return the pairs that need or hinder each other most, with the factor and its interval."""
    known = sorted((pair for pair in ablation.pairs if pair.gain is not None), key=_rank_pair)[:most]
    return Table(
        [Column("pair"), Column("interaction", "factor"), Column("95% interval", "interval")],
        [[f"{pair.first}, {pair.second}", _factor(pair.gain), _interval(pair.interval)] for pair in known],
    )


def _rank_pair(pair: Pair) -> float:
    return -abs(pair.gain or 0.0)


def make_beside_table(ablation: Ablation) -> Table:
    """Return what stored solo and leave-one-out runs say of the rungs, with their days: newer runs may say more."""
    columns = [
        Column("rung"), Column("run"), Column("GPU", "factor"), Column("interval", "interval", 1),
        Column("step", "factor", 2), Column("interval", "interval", 3),
    ]  # fmt: skip
    return Table(
        columns,
        [
            [each.rung, f"{each.mode}, {each.started[:10]}", each.gpu, each.gpu_interval, each.wall, each.wall_interval]
            for each in ablation.beside
        ],
    )  # fmt: skip


def _show(log: float | None) -> str:
    return fine_factor(_factor(log))


def describe_order(ablation: Ablation) -> str:
    """Return how much of the staircase is its order, in one sentence."""
    total = ablation.total
    if total is None:
        return "The ladder's two ends were not both measured, so nothing is known of its order."
    if not ablation.protocol.whole:
        product = math.fsum(each.left_out for each in ablation.worth if each.left_out is not None)
        why = (
            "rungs that need each other, or leave together, each count the gain that they have in common"
            if product > total.gain
            else "a gain that two rungs can bring, each without the other, shows at neither"
        )
        return (
            f"The gains at the top, of each rung left out by itself, multiply to {texts.amount(math.exp(product))}x,"
            f" the whole ladder's gain is {_show(total.gain)}. So do not multiply them: {why}."
        )
    if total.moved is None:
        return "Some subsets have no time, so the share of the order is not known."
    most = max(ablation.worth, key=lambda each: abs((each.staircase or 0.0) - (each.gain or 0.0)))
    span = _factors(most.least, most.most) or [1.0, 1.0]
    return (
        f"{100 * total.moved:.0f}% of the staircase's {_show(total.gain)} in {describe_clock(ablation)} is its order:"
        f" on average over all {total.orders:,} orders that share goes to other rungs. {most.rung} depends most on its"
        f" place: {_show(most.staircase)} in the ladder's order, {_show(most.gain)} on average,"
        f" {texts.bounds((span[0], span[1]))} from its worst place to its best."
    )


def describe_pairs(ablation: Ablation) -> str:
    """Return which two rungs act on each other most, as far as the noise lets see."""
    known = [each for each in ablation.pairs if each.gain is not None]
    sure = [each for each in known if is_beyond_noise(each, ablation)]
    if not known:
        return "No pair of rungs was measured in all four ways."
    if not sure:
        return "No pair of rungs gains or loses together beyond the noise."
    most = min(sure, key=_rank_pair)
    words = "more" if (most.gain or 0.0) > 0 else "less"
    return (
        f"{most.first} and {most.second} act on each other most: together they gain {words}, {_show(most.gain)} the"
        f" product of their gains without each other ({len(sure)} of {len(known)} pairs are beyond the noise)."
    )


def list_findings(ablation: Ablation) -> list[str]:
    """Return the findings, one sentence each."""
    failed, parity, noise = (
        [row for row in ablation.subsets if row.status != "ok"],
        ablation.parity,
        ablation.noise,
    )
    findings = [describe_order(ablation), describe_pairs(ablation)]
    if noise is None:
        findings.append("No intervals: fewer than three subsets were repeated in fresh processes.")
    else:
        apart = texts.rounded(100 * noise.shift, 2)
        took = f"{abs(apart):.2f}% {'longer' if apart > 0 else 'less'}" if apart else "as long"
        findings.append(
            f"{noise.freedom + 1} subsets were measured again in fresh processes: one measurement has a standard"
            f" deviation of {100 * noise.sd:.2f}%, and fresh processes took {took}."
        )
    if parity is not None and parity.verdict != "ok":
        findings = [f"Nothing was measured, because the whole ladder failed parity: {parity.reason}."]
    elif parity is not None:
        findings.append("Parity of the whole ladder: ok, as reported then.")
    if failed:
        findings.append(f"{len(failed)} subsets have no time: {failed[0].status}: {failed[0].reason}.")
    return [*findings, *(f"{name} is left out: {why}." for name, why in ablation.protocol.skipped.items())]


# --- the chart: bars of the rungs, and a heat map of pairs if any was measured ----------------------------------------

WIDE, ROW = 12.5, 0.42  # inches
NO_SIGN = 0.0005  # below it a percentage is 0


def draw_chart(ablation: Ablation, file: File, kind: str, theme: Theme = LIGHT) -> bytes:
    """Return the chart as PNG or SVG bytes. The same result gives the same bytes."""
    from ladder.report import drawing

    return drawing.save(lambda: _draw_figure(ablation, file, theme), kind, theme)


def _draw_figure(ablation: Ablation, file: File, theme: Theme) -> Any:
    from matplotlib.figure import Figure

    from ladder.report import drawing
    from ladder.report.heatmap import heatmap

    rungs = [each.rung for each in ablation.worth]
    paired = {name for pair in ablation.pairs for name in (pair.first, pair.second)}
    names = rungs if ablation.protocol.whole else [rung for rung in rungs if rung in paired]
    findings = [describe_order(ablation), describe_pairs(ablation)]
    lines = [line for each in findings for line in drawing.wrapped(each, 9, WIDE - 0.5)]
    above = 0.95 + 0.19 * len(lines)
    high = above + 1.05 + ROW * max(len(rungs), 6)
    figure = Figure(figsize=(WIDE, high))
    grid = figure.add_gridspec(
        1, 2, left=0.135, right=0.98, top=1 - above / high, bottom=0.9 / high, wspace=0.42, width_ratios=(1.05, 1)
    )  # fmt: skip
    _draw_bars(figure.add_subplot(grid[0, 0]), ablation, theme)
    axes = figure.add_subplot(grid[0, 1])
    place = axes.get_position()
    tall = min(place.height, 1.35 * ROW * max(len(names) - 1, 1) / high)
    axes.set_position((place.x0, place.y1 - tall, place.width, tall))
    _draw_title(axes, "two rungs together, beyond each without the other", theme)
    heatmap(axes, names[1:], names[:-1], _list_cells(ablation, names), theme, format_gain)
    _draw_header(figure, ablation, file, lines, theme)
    return figure


def format_gain(log: float | None) -> str:
    """Return a gain as percent: +2.0% is a factor of 1.02."""
    if log is None:
        return ""
    change = 100 * math.expm1(log)
    return "0" if abs(change) < 100 * NO_SIGN else f"{change:+.1f}%"


def _list_cells(ablation: Ablation, names: Sequence[str]) -> list[list[float | None]]:
    """Return the gains of the pairs, each once: rows from the second name on, columns up to the last but one."""
    known = {frozenset((pair.first, pair.second)): pair.gain for pair in ablation.pairs}
    return [
        [known.get(frozenset((row, column))) if place >= other else None for other, column in enumerate(names[:-1])]
        for place, row in enumerate(names[1:])
    ]  # fmt: skip


def _draw_bars(axes: Any, ablation: Ablation, theme: Theme) -> None:
    from matplotlib.ticker import MaxNLocator

    whole = ablation.protocol.whole
    _draw_title(axes, "gain on average over all orders" if whole else "gain at the top of the ladder", theme)
    for place, each in enumerate(ablation.worth):
        value, interval = (each.gain, each.interval) if whole else (each.left_out, each.left_out_interval)
        if value is None:
            axes.text(0, place, " no time", va="center", color=theme.muted, fontsize=8.5)
            continue
        axes.barh(place, value, 0.56, color=theme.busy if value >= 0 else theme.article, zorder=2)
        end = _draw_ends(axes, place, each, value, interval, theme)
        axes.annotate(
            f"{math.exp(value):.3f}x", (end, place), xytext=(5, 0), textcoords="offset points", va="center",
            fontsize=8.5, color=theme.ink,
        )  # fmt: skip
    axes.set_yticks(range(len(ablation.worth)), [each.rung for each in ablation.worth])
    axes.set_ylim(len(ablation.worth) - 0.4, -0.6)
    low, high = axes.get_xlim()
    low, high = min(low, -0.004), high + 0.18 * (high - min(low, 0))
    axes.axvline(0, color=theme.muted, linewidth=0.8, zorder=1)
    ticks = [
        tick
        for tick in MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(math.exp(low), math.exp(high))
        if tick > 0
    ]
    axes.set_xticks([math.log(tick) for tick in ticks], [f"{tick:g}x" for tick in ticks])
    axes.set_xlim(low, high)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.grid(axis="x", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=theme.ink, labelsize=9)


def _draw_ends(
    axes: Any, place: int, each: Worth, value: float, interval: Sequence[float] | None, theme: Theme
) -> float:
    """Draw the interval, the worst and best order, and the ladder's own order. Return where the last of them ends."""
    ends = [value, 0.0]
    if each.least is not None and each.most is not None:
        axes.plot([each.least, each.most], [place + 0.37] * 2, color=theme.muted, linewidth=1.4, zorder=3)
        ends += [each.least, each.most]
    if interval is not None:
        axes.plot(interval, [place] * 2, color=theme.ink, linewidth=1.2, zorder=4)
        ends += interval
    if each.staircase is not None:
        axes.plot(
            each.staircase, place, marker="D", markersize=5, color=theme.ink, zorder=5,
            markeredgecolor=theme.ground,
        )  # fmt: skip
        ends.append(each.staircase)
    return max(ends)


def _draw_title(axes: Any, title: str, theme: Theme) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=theme.ink)


def _draw_header(figure: Any, ablation: Ablation, file: File, lines: Sequence[str], theme: Theme) -> None:
    from ladder.report.drawing import fitted

    facts, work, rules, high = file.machine, file.workload or {}, ablation.protocol, figure.get_figheight()
    notes = f" ({rules.notes[0]})" if rules.notes else ""
    title = f"{facts.gpu or facts.cpu}: what each rung is worth {describe_place(ablation)}{notes}"
    fitted(figure, 0.02, 1 - 0.42 / high, title, 15, fontweight="bold", color=theme.ink)
    for number, line in enumerate(lines):
        figure.text(0.02, 1 - (0.72 + 0.19 * number) / high, line, fontsize=9, color=theme.ink)
    about = f"{work['name']}: {work['resolution']}x{work['resolution']}, batch {work['batch']}"
    marks = "Diamond: in the ladder's order. Line in a bar: 95% interval. Line under it: worst to best order."
    marks = marks if rules.whole else "Line in a bar: 95% interval."
    under = f"{about}; {describe_clock(ablation)}. {marks} PyTorch {facts.torch}."
    fitted(figure, 0.02, 0.16 / high, under, 8, color=theme.muted)
