"""The picture that compares GPUs: each rung of the article on each of them, beside the article's own machine.

A group of bars is a rung, a bar is a GPU. To the right of a bar stand what the rung gains there and the total, by GPU
time and by the step. The table at the foot has what a whole training takes. The same results give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ladder.core.protocol import FASTER, LESS_THAN, SLOWER, TOO_FEW
from ladder.core.text import fine_factor, format_factor, less_than
from ladder.plan import catalog
from ladder.report import chart, drawing
from ladder.report.chart import MARGIN, WIDTH, Column, Line, Strip, draw_lines, short_ms
from ladder.report.drawing import measured, wrapped
from ladder.report.view import TITLE, Row, View, view
from ladder.results.run import Result
from ladder.results.words import Seen
from ladder.show.themes import LIGHT, Theme

# inches; LINE is a bar's, PAD lies between rungs
NAMES, LINE, PAD, TOP = 1.75, 0.215, 0.14, 1.52
ARTICLE = "the article"
IMAGES = 25_000_000  # a whole training of StyleGAN2
HERO, HERO_ROW, HERO_BARS = 6.4, 0.37, 2.45  # inches: its width, of a row, and of the names at the left


# Seconds for a thousand images; PUBLISHED_AS names the training, hardware and settings, and where they stand.
PUBLISHED = {"V100": 20.84, "A100": 12.53}
PUBLISHED_AS = (
    "NVIDIA's own: its StyleGAN2 at 256x256 with as many channels, two mapping layers, one GPU, batch 16, FP16 in "
    "the four highest resolutions and ADA; the speed of its whole training loop (stylegan3, docs/configs.md)."
)


@dataclass(frozen=True)
class Machine:
    """The rungs of one GPU.

    `top` is the highest rung with a number of the longer ladder, where that was measured; `began_ms` the lowest's
    milliseconds there.
    """

    name: str
    shown: View
    top: Row | None
    rungs: int  # of the longer ladder up to `top`
    began_ms: float | None = None

    def find_row(self, name: str) -> Row | None:
        """Return a rung of the article's ladder."""
        return next((row for row in self.shown.rows if row.name == name), None)


@dataclass(frozen=True)
class Bar:
    """A line of the picture: a machine's rung, or the article's milliseconds in `article`."""

    machine: str
    row: Row
    article: float | None = None
    gains: bool = True  # whether it is compared with the rung before it


def render(pairs: Sequence[tuple[Result, Result | None]], kind: str, theme: Theme = LIGHT) -> bytes:
    """Return the picture as PNG or SVG bytes. Raises UserError where it cannot be drawn.

    Args:
        pairs: for each GPU its staircase of the article's ladder, and that of the longer ladder or None.
    """
    return drawing.save(lambda: draw_figure(pairs, theme), kind, theme)


def draw_figure(pairs: Sequence[tuple[Result, Result | None]], theme: Theme = LIGHT) -> Any:
    """Lay out in inches, from the top: headline, legend, rungs, table, small print."""
    machines, batch = [read_machine(*pair) for pair in pairs], int(pairs[0][0].workload["batch"])
    groups, table = _list_groups(machines), _list_speeds(machines, batch)
    bars = [bar for _, each in groups for bar in each]
    bottom = TOP + LINE * len(bars) + PAD * len(groups)
    shown, names = machines[0].shown, [each.name for each in machines]
    title = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    versions = {part for each in machines for part in each.shown.machine.split(", ") if "PyTorch" in part}
    details = f"{shown.workload}   |   {', '.join(sorted(versions))}"
    above, notes = bottom + 0.3 + LINE * len(table), _list_notes(machines)
    figure, axes = chart.lay_sheet(above, f"What each optimization gains on {title}", details, notes, theme)
    tones = [(theme.busy, "GPU working", False), (theme.idle, chart.WAITS, False)]
    if any(row.article_ms for row in shown.rows):
        reference = shown.reference.split(",")[0][:40]
        tones.append((theme.article, f"{ARTICLE}: {reference}, another machine", True))
    chart.draw_legend(axes, 1.0, tones)

    cells = zip(*(_list_cells(bar, theme) for bar in bars), strict=True)
    headings = ("vs previous\nGPU", "vs previous\nstep", "total\nGPU", "total\nstep")
    columns = [Column(*each, "right") for each in zip(headings, cells, strict=True)]
    left = MARGIN + NAMES + max(measured(bar.machine, 8.5) for bar in bars) + 0.12
    right = chart.place_columns(columns, WIDTH - MARGIN)[0] - 0.2
    most = max([bar.article or bar.row.step_ms or 0.0 for bar in bars])
    strip = Strip(left, (right - left - 0.5) / (most or 1.0), 0.58 / 0.75 * LINE)
    for x, text in ((MARGIN, "each rung with those before it"), (left, "ms per step")):
        axes.text(x, TOP - 0.1, text, color=theme.muted, fontsize=8.5)
    top, ys = TOP, list[float]()
    for name, group in groups:
        chart.draw_rule(axes, top, theme)
        lines = [Line(text, theme.ink, 9.5) for text in wrapped(name, 9.5, NAMES - 0.1)]
        draw_lines(axes, MARGIN, top + (PAD + LINE * len(group)) / 2, lines)
        for number, bar in enumerate(group):
            ys.append(top + PAD / 2 + LINE * (number + 0.5))
            _draw_bar(axes, strip, ys[-1], bar, right, theme)
        top += LINE * len(group) + PAD
    chart.draw_rule(axes, top, theme)
    chart.draw_columns(axes, columns, ys, TOP, theme)
    wide = (WIDTH - MARGIN - left) / max(3, len(table[0]) - 1)
    for number, (name, *speeds) in enumerate(table):
        color = theme.article if name == ARTICLE else theme.ink if number else theme.muted
        y = bottom + 0.3 + LINE * number
        draw_lines(axes, MARGIN, y, [Line(name, color)])
        for index, speed in enumerate(speeds):
            (text,) = wrapped(speed, 8.5, wide - 0.1, 1) or [""]
            draw_lines(axes, left + wide * index, y, [Line(text, color)])
    return figure


def render_hero(
    pair: tuple[Result, Result | None], official_ms: float | None, kind: str, theme: Theme = LIGHT
) -> bytes:
    """Return one GPU's staircase, read in two seconds on a phone, as PNG or SVG bytes.

    Args:
        pair: as in `render`.
        official_ms: a step of NVIDIA's own code on the same GPU, or None.
    """
    return drawing.save(lambda: draw_hero(read_machine(*pair), official_ms, theme), kind, theme)


def draw_hero(machine: Machine, official_ms: float | None, theme: Theme) -> Any:
    """Draw NVIDIA's own step, each rung with the article's step as an outline, and the top."""
    rows = [(row.title, row.step_ms, row.article_ms) for row in machine.shown.rows if row.step_ms]
    steps = [(title, ms, article, theme.busy) for title, ms, article in rows]
    if official_ms:
        steps.insert(0, ("NVIDIA's own code", official_ms, None, theme.muted))
    if machine.top:
        steps.append((f"all {machine.rungs} rungs", machine.top.step_ms, None, theme.busy))
    figure, axes = drawing.sheet(HERO, 1.1 + HERO_ROW * len(steps) + 0.35)
    first, last = rows[0][1], steps[-1][1]
    title = f"StyleGAN2 on an {machine.name}: {short_ms(first)} to {short_ms(last)} ms a step"
    drawing.fitted(figure, 0.02, 0.975, title, 15, fontweight="bold", va="top")
    outline = f"outline: {ARTICLE}, {machine.shown.reference.split(',')[0]}"
    axes.text(
        0.13, 0.72, f"each bar is a rung with those before it; {outline}", fontsize=10, color=theme.muted
    )
    scale = (HERO - HERO_BARS - 0.7) / max(max(ms, article or 0.0) for _, ms, article, _ in steps)
    for number, (name, ms, article, color) in enumerate(steps):
        y = 1.1 + HERO_ROW * number
        axes.text(HERO_BARS - 0.12, y, name, ha="right", va="center", fontsize=12)
        if article:
            axes.barh(
                y, scale * article, 0.27, left=HERO_BARS, color="none", edgecolor=theme.article, zorder=3
            )
            at = HERO_BARS + scale * max(article, ms) + 0.07
            axes.text(at, y, short_ms(article), va="center", fontsize=11, color=theme.article)
        axes.barh(y, scale * ms, 0.27, left=HERO_BARS, color=color, linewidth=0)
        text, end = short_ms(ms), scale * ms
        wide = measured(text, 12) + 0.1
        if article and max(wide, end - wide) < scale * article < end:
            end = scale * article  # the outline's end would cross the figure
        inside = wide < end
        x, ha = HERO_BARS + end + (-0.06 if inside else 0.07), "right" if inside else "left"
        ink = theme.ground if inside else theme.ink
        axes.text(x, y, text, ha=ha, va="center", fontsize=12, fontweight="bold", color=ink)
    details = f"{machine.shown.workload}, milliseconds a step"
    axes.text(0.13, 1.1 + HERO_ROW * len(steps) + 0.08, details, fontsize=10, color=theme.muted)
    return figure


def read_machine(article: Result, longer: Result | None) -> Machine:
    """Return the rungs of a GPU under its short name."""
    shown = view(article)
    timed = [row for row in view(longer).rows if row.step_ms] if longer else []
    name = shorten_gpu(shown.machine.split(",")[0])
    if longer is None or not timed:
        return Machine(name, shown, None, 0)
    return Machine(name, shown, timed[-1], rungs_up_to(longer, timed[-1].name), timed[0].step_ms)


def shorten_gpu(name: str) -> str:
    """Return the name of a GPU without its maker and its kind of memory: `H100 80GB`."""
    return " ".join(re.sub(r"\b(NVIDIA|Tesla|HBM\w*)\b", " ", name).split())[:16] or name


def rungs_up_to(result: Result, name: str) -> int:
    """Return how many rungs of its ladder a rung holds, itself included. A run may have timed some of them alone."""
    ladder, known = result.ladder.name, catalog.list_ladders()
    order = [step.name for step in catalog.load_ladder(ladder).rungs] if ladder in known else []
    return (order if name in order else [rung.name for rung in result.rungs]).index(name) + 1


def _list_groups(machines: Sequence[Machine]) -> list[tuple[str, list[Bar]]]:
    """Return the bars of each rung under its title: a machine each, then the article's. The top of all comes last."""
    groups = []
    for row in machines[0].shown.rows:
        bars = [Bar(each.name, mine) for each in machines if (mine := each.find_row(row.name))]
        groups.append((row.title, [*bars, *([Bar(ARTICLE, row, row.article_ms)] if row.article_ms else [])]))
    tops = [Bar(each.name, each.top, gains=False) for each in machines if each.top]
    counts = {each.rungs for each in machines if each.top}
    name = f"all {max(counts)} rungs of the ladder full" if len(counts) == 1 else "the top of the ladder full"
    return [*groups, *([(name, tops)] if tops else [])]


def _draw_bar(axes: Any, strip: Strip, y: float, bar: Bar, right: float, theme: Theme) -> None:
    """Draw a machine's name and bar, or why there is none."""
    row, color = bar.row, theme.article if bar.article else theme.ink
    draw_lines(axes, MARGIN + NAMES, y, [Line(bar.machine, color)])
    if bar.article:
        wide = strip.scale * bar.article
        axes.barh(y, wide, strip.thick - 0.02, left=strip.left, zorder=2, color=theme.ground, edgecolor=color)
        draw_lines(axes, strip.left + wide + 0.06, y, [Line(short_ms(bar.article), color, 9)])
    elif row.step_ms:
        chart.draw_step(axes, strip, y, row, theme, is_known=row.gpu is not None, size=9)
    else:
        reason = f"{row.status}: {row.reason}" if row.reason else row.status
        color = theme.muted if row.status in chart.QUIET else theme.bad
        draw_lines(axes, strip.left, y, [Line(wrapped(reason, 8.5, right - strip.left, 1)[0], color)])


def _list_cells(bar: Bar, theme: Theme) -> list[list[Line]]:
    """Return the gain by GPU time and by the step, and the total by both."""
    row, gpu = bar.row, bar.row.gpu
    if bar.article:
        return [[], [], [], [Line(format_factor(row.article_total), theme.article, 9)]]
    if row.step_ms is None:
        return [[], [], [], []]
    gains = [[_show_gain(seen, theme)] if seen and bar.gains else [] for seen in (gpu and gpu.seen, row.seen)]
    total = Line(format_factor(row.total), theme.busy, 9, True)
    return [*gains, [Line(format_factor(gpu.total) if gpu else "", theme.ink, 9)], [total]]


def _show_gain(seen: Seen, theme: Theme) -> Line:
    if seen.verdict in (FASTER, SLOWER):
        return Line(fine_factor(seen.ratio), theme.ink if seen.verdict == FASTER else theme.bad, 8.5, True)
    if seen.verdict == LESS_THAN and seen.below is not None:
        return Line(less_than(seen.below).replace("less than ", "< "), theme.muted)
    word = "too few" if seen.verdict == TOO_FEW else seen.verdict
    return Line(word or fine_factor(seen.ratio), theme.muted)


def _list_speeds(machines: Sequence[Machine], batch: int) -> list[list[str]]:
    """Return the lines of the table of a whole training: headings, then a GPU each, then the article and others.

    A cell has seconds for a thousand images and hours: `19.0 s/kimg, 132 h`.
    """

    def describe(s_kimg: float | None) -> str:
        return "" if s_kimg is None else f"{short_ms(s_kimg)} s/kimg, {short_ms(s_kimg * IMAGES / 3.6e6)} h"

    ends = machines[0].shown.rows[0], machines[0].shown.rows[-1]
    tops = any(each.top for each in machines)
    lines = [["a whole training", *(end.title for end in ends), *(["the top of full"] if tops else [])]]
    for each in machines:
        rows = [*(each.find_row(end.name) for end in ends), *([each.top] if tops else [])]
        lines.append(
            [each.name, *(describe(row.step_ms / batch if row and row.step_ms else None) for row in rows)]
        )
    if all(end.article_ms for end in ends):
        lines.append([ARTICLE, *(describe((end.article_ms or 0.0) / batch) for end in ends)])
    empty = [""] * (len(lines[0]) - 1)
    lines[0].append("NVIDIA's own")
    return [*lines, *([gpu, *empty, describe(s_kimg)] for gpu, s_kimg in PUBLISHED.items())]


def _list_notes(machines: Sequence[Machine]) -> list[str]:
    """Return the small print: what would mislead if it were left out."""
    rows = [row for each in machines for row in each.shown.rows]
    first = "vs previous: bold if the interval lies beyond the noise floor; < X%: a larger difference is ruled out."
    if any(each.top for each in machines):
        first += " Totals of the ladder full are over the baseline of its own run."
    if any(row.step_ms and not row.gpu for row in rows):
        first += " A grey bar: its GPU time is unknown."
    first += f" {chart.ABOVE}." if chart.is_above(rows) else ""
    notes = [
        first,
        f"s/kimg: seconds for a thousand images; h: hours for {IMAGES // 10**6} million, of steps alone, with lazy"
        " regularization, without metrics and snapshots.",
    ]
    if any(row.article_ms for row in rows):
        reference = machines[0].shown.reference
        notes.append(f"The article: {TITLE}, {reference}; its GPU time is unknown, and it is not a target.")
    return [*notes, PUBLISHED_AS]
