"""The staircase: one picture of a ladder that is understood without the text around it.

Each rung is one row. Beside its name stands a bar of milliseconds a step, split into GPU work and waiting. To the right
of it stand the gain by each clock with its interval and verdict, and the total beside the article's. A rung without a
number is a labelled row. The same result gives the same bytes. `gpus` draws its picture from the same parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core import files
from ladder.core.errors import UserError
from ladder.core.protocol import FASTER, SLOWER
from ladder.core.text import format_amount as short_ms  # milliseconds; the interval is in the table
from ladder.core.text import format_bounds, format_factor
from ladder.plan import modes
from ladder.report import drawing
from ladder.report.drawing import fitted, measured, sheet, wrapped
from ladder.report.view import Interval, Row, View, shown_top, turn_row, view
from ladder.results import words
from ladder.results.run import Result
from ladder.results.words import Seen, answer
from ladder.show.themes import LIGHT, Theme

NAMED = {
    modes.CUMULATIVE: "each rung with those before it", modes.SOLO: "each rung alone on the baseline",
    modes.LEAVE_ONE_OUT: "all rungs but the one named", modes.MISTAKES: "mistakes beside a clean step",
    modes.LEVERS: "models beside the unchanged one", modes.RECIPE: "a recipe beside the baseline",
}  # fmt: skip
ABOVE = "GPU time is of other, profiled cycles, and may exceed the step's"
WAITS = "GPU waiting; together the step, lower is better"
QUIET = ("n/a", "skipped")  # a rung without a number for a reason that is nobody's fault
WIDTH, MARGIN, ROW = 10.0, 0.2, 0.44  # inches of a sheet, and of a row
NAMES = (2.1, 2.4, 2.7)  # inches from the margin to the bars: the first in which no name is cut, or the last
PART, NAME, SMALL = 8.0, 9.5, 8.0  # points of the figures in a bar, of a rung's name, and of small print
LINE = 0.155  # inches from a line of a cell to the next
# How far an error bar may reach beyond the longest bar, in parts of that bar: one process that was held up widens an
# interval by ten times, and drawn whole it would press all bars flat. An arrow says where it goes on.
BEYOND = 0.6


@dataclass(frozen=True)
class Strip:
    """The place of the bars on a sheet: inches from the left, inches of a millisecond, inches of a bar's thickness."""

    left: float
    scale: float
    thick: float


@dataclass(frozen=True)
class Line:
    """A line of a cell."""

    text: str
    color: str
    size: float = 8.5
    bold: bool = False


@dataclass(frozen=True)
class Column:
    """A column of words or numbers: its heading, and the lines of each row's cell."""

    heading: str
    cells: Sequence[Sequence[Line]]
    ha: str = "left"
    gap: float = 0.22  # inches to the column on its left
    color: str = ""  # of the heading; muted without it

    @property
    def width(self) -> float:
        """The width of the widest line in inches, the heading's included; 0 where every cell is empty."""
        lines = [each for cell in self.cells for each in cell if each.text]
        lines += [Line(text, "") for text in self.heading.split("\n")] if lines else []
        return max((measured(each.text, each.size, each.bold) for each in lines), default=0.0)


# --- the staircase ----------------------------------------------------------------------------------------------------


def draw(result: Result, path: Path) -> None:
    """Write the chart of one result as PNG or SVG, by the suffix of `path`; whole or not at all.

    Raises:
        UserError: another suffix, or the file cannot be written; one line.
    """
    files.write_file(path, render(result, kind_of(path)))


def kind_of(path: Path) -> str:
    """Return "png" or "svg", by the suffix of a chart's file. Raises UserError for another one."""
    kind = Path(path).suffix.lower()
    if kind not in (".png", ".svg"):
        raise UserError(f"{path}: a chart is written as .png or .svg")
    return kind[1:]


def render(result: Result, kind: str, theme: Theme = LIGHT) -> bytes:
    """Return the chart as PNG or SVG bytes; a function of `result` alone (and of the version of matplotlib)."""
    return drawing.save(lambda: draw_figure(view(result), theme), kind, theme)


def draw_figure(shown: View, theme: Theme = LIGHT) -> Any:
    """Lay out in inches, from the top: headline, marks, legend, a row for each rung, small print."""
    right, rows = WIDTH - MARGIN, shown.rows
    marks = [line for text in shown.marks for line in wrapped(text, 9, right - MARGIN)]
    top = 1.38 + 0.19 * len(marks)
    details = f"{shown.workload}   |   {shown.machine}"
    bottom = top + ROW * len(rows)
    figure, axes = lay_sheet(bottom, _describe(shown), details, _list_notes(shown), theme)
    for index, line in enumerate(marks):
        axes.text(MARGIN, 0.89 + 0.19 * index, line, color=theme.bad, fontsize=9, fontweight="bold")

    columns = _list_columns(shown, theme)
    begins = place_columns(columns, right)
    titles = [(row.title, width) for width in NAMES for row in rows]
    cut = {width for title, width in titles if wrapped(title, NAME, width - 0.12)[-1].endswith("...")}
    left = MARGIN + next((width for width in NAMES if width not in cut), NAMES[-1])
    label = max([measured(short_ms(row.step_ms), 10, True) for row in rows if row.step_ms], default=0.0)
    width = min(begins, default=right) - 0.35 - label - left
    strip = Strip(left, width / most_ms(shown), 0.58 * ROW)
    tones = [(theme.busy, "milliseconds a step, lower is better", False)]
    if shown.has_gpu_time or any(row.rung.host_bound is not None for row in rows):
        tones = [(theme.busy, "GPU working", False), (theme.idle, WAITS, False)]
    if shown.has_gpu_time and any(row.step_ms and not row.gpu for row in rows):
        tones.append((theme.muted, "GPU time unknown", False))
    draw_legend(axes, top - 0.4, tones)
    heading = "entry" if shown.is_study else NAMED[shown.mode]  # a study's own name is the chart's title
    for x, text in ((MARGIN, heading), (left, "ms per step")):
        axes.text(x, top - 0.1, text, color=theme.muted, fontsize=8.5)

    ys = [top + ROW * (index + 0.5) for index in range(len(rows))]
    for index, (row, y) in enumerate(zip(rows, ys, strict=True)):
        draw_rule(axes, y - ROW / 2, theme)
        color = theme.ink if row.step_ms else theme.muted
        title = [Line(text, color, NAME) for text in wrapped(row.title, NAME, left - MARGIN - 0.12)]
        draw_lines(axes, MARGIN, y, title)
        if row.step_ms is None:
            pairs = zip(begins, columns, strict=True)
            full = [x for x, column in pairs if any(line.text for line in column.cells[index])]
            _draw_gap(axes, row, left, min([x - 0.1 for x in full], default=right), y, theme)
            continue
        is_known = row.gpu is not None or not shown.has_gpu_time
        draw_step(axes, strip, y - 0.04, row, theme, is_known=is_known)
        if row.interval:
            below = y + strip.thick / 2 + 0.005
            _draw_interval(axes, strip, below, row.interval, _limit_bars(shown), theme.ink)
    draw_rule(axes, bottom, theme)
    draw_columns(axes, columns, ys, top, theme)
    return figure


def _describe(shown: View) -> str:
    """Return machine and outcome: `NVIDIA H200: 96.4 to 25.3 ms a step, 3.81x`."""
    timed = [row for row in shown.rows if row.step_ms]
    if not timed:
        outcome = "no rung has a number"
    elif shown.mode != modes.CUMULATIVE:
        outcome = NAMED[shown.mode]
    else:
        first, last = timed[0], timed[-1]
        times = " to ".join(dict.fromkeys([short_ms(first.step_ms), short_ms(last.step_ms)]))
        total = words.whole(first.step_ms, last.step_ms, last.total, last.total_interval)
        outcome = f"{times} ms a step" + (f", {total}" if total and last is not first else "")
    return f"{shown.machine.split(',')[0]}: {outcome}{f' ({shown.marks[0]})' if shown.marks else ''}"


def _list_notes(shown: View) -> list[str]:
    """Return the small print: what would mislead if it were left out."""
    intervals = [row.interval for row in shown.rows if row.interval and row.step_ms]
    lines = [f"under a bar: 95% interval over {shown.unit}s"] if intervals else []
    if any(interval[1] > _limit_bars(shown) for interval in intervals):
        lines.append("an arrow: it goes on, to what the table says")
    lines += [ABOVE] if is_above(shown.rows) else []
    lines += shown.noise
    if any(row.article_ms for row in shown.rows):
        lines.append(f"article: {shown.reference}; another machine, not a target")
    must = [remark for remark in shown.remarks if remark.startswith(("speedups refer", "part of "))]
    notes = [shown.protocol, ". ".join(f"{line[0].upper()}{line[1:]}" for line in lines), *must]
    return [f"{note[0].upper()}{note[1:]}." for note in notes if note]


def _draw_gap(axes: Any, row: Row, left: float, right: float, y: float, theme: Theme) -> None:
    """Draw a row without a number: the status, and the reason in at most two lines."""
    axes.barh(y, right - left, ROW - 0.1, left=left, color=theme.gap, linewidth=0, zorder=1)
    status = Line(row.status, theme.muted if row.status in QUIET else theme.bad, 9, True)
    draw_lines(axes, left + 0.1, y, [status])
    begin = left + 0.22 + measured(row.status, 9, bold=True)
    reason = wrapped(row.reason, 8.5, right - begin - 0.1) if right - begin > 0.5 else []
    draw_lines(axes, begin, y, [Line(text, theme.ink) for text in reason])


def _list_columns(shown: View, theme: Theme) -> list[Column]:
    """Return the columns to the right of the bars that have something in them, from left to right."""
    whole, leave_out = shown.mode == modes.CUMULATIVE, shown.mode == modes.LEAVE_ONE_OUT
    clocks, gains, intervals, tops, totals, article = ([] for _ in range(6))
    for row in (turn_row(row, shown) for row in shown.rows):
        pairs = [("step", row.seen)]
        if shown.has_gpu_time:
            pairs.insert(0, ("GPU", row.gpu.seen if row.gpu else Seen()))
        answers = [_show_answer(seen, theme) for _, seen in pairs]
        of_clock = zip(pairs, answers, strict=True)
        clocks.append([Line(clock if said.text else "", theme.muted) for (clock, _), said in of_clock])
        gains.append(answers)
        intervals.append(
            [Line(format_bounds(seen.interval).rstrip("x"), theme.muted, 8) for _, seen in pairs]
        )
        is_sure = row.advice in ("ADOPT", "SKIP")
        color = theme.bad if row.advice == "SKIP" else theme.ink if is_sure else theme.muted
        # in a leave-one-out run the rows themselves are about the top
        lines = [Line("" if leave_out else shown_top(row), theme.ink), Line(row.advice, color, 8, is_sure)]
        tops.append([line for line in lines if line.text])
        totals.append([Line(format_factor(row.total) if whole else "", theme.busy, 10.5, True)])
        article.append([Line(format_factor(row.article_total) if whole else "", theme.article, 9.5)])
    columns = [
        *([Column("", clocks)] if shown.has_gpu_time else []), Column(shown.versus, gains, gap=0.08),
        Column("interval", intervals, "right", gap=0.1),
        Column("advice" if leave_out else "gain at top", tops),
        Column("total", totals, "right", color=theme.busy),
        Column("article", article, "right", color=theme.article),
    ]  # fmt: skip
    return [column for column in columns if column.width]


def _show_answer(seen: Seen, theme: Theme) -> Line:
    color = {FASTER: theme.ink, SLOWER: theme.bad, "": theme.ink}.get(seen.verdict, theme.muted)
    return Line(answer(seen), color, bold=seen.verdict in (FASTER, SLOWER))


# --- parts of a picture -----------------------------------------------------------------------------------------------


def lay_sheet(above: float, title: str, details: str, notes: Sequence[str], theme: Theme) -> tuple[Any, Any]:
    """Return figure and axes with a title, a line of details, and small print below `above` inches."""
    lines = [line for note in notes for line in wrapped(note, SMALL, WIDTH - 2 * MARGIN, 4)]
    height = above + 0.3 + 0.17 * len(lines)
    figure, axes = sheet(WIDTH, height)
    fitted(figure, MARGIN / WIDTH, 1 - 0.16 / height, title, 15, fontweight="bold", va="top")
    fitted(figure, MARGIN / WIDTH, 1 - 0.5 / height, details, 10, va="top")
    for index, line in enumerate(lines):
        axes.text(MARGIN, above + 0.25 + 0.17 * index, line, color=theme.muted, fontsize=SMALL)
    return figure, axes


def draw_rule(axes: Any, y: float, theme: Theme) -> None:
    """Draw the line between two rows."""
    axes.plot([MARGIN, WIDTH - MARGIN], [y, y], color=theme.grid, linewidth=0.8, zorder=0)


def _limit_bars(shown: View) -> float:
    """Return the milliseconds at which error bars end."""
    return (1 + BEYOND) * max([row.step_ms for row in shown.rows if row.step_ms], default=0.0)


def most_ms(shown: View) -> float:
    """Return the milliseconds of the longest bar, or of the longest error bar as drawn."""
    timed = [row for row in shown.rows if row.step_ms]
    ends = [min(row.interval[1], _limit_bars(shown)) for row in timed if row.interval]
    return max([*(row.step_ms or 0.0 for row in timed), *ends], default=1.0)


def busy_ms(row: Row) -> float:
    """Return the milliseconds of a step in which the GPU works; all of them where that is unknown."""
    step_ms = row.step_ms or 0.0
    if row.gpu:
        return min(row.gpu.ms, step_ms)
    return step_ms * (1 - (row.rung.host_bound or 0.0))


def is_above(rows: Iterable[Row]) -> bool:
    """Return whether the GPU time of a row, as a chart tells it, exceeds the step's."""
    return any(row.gpu and row.step_ms and short_ms(row.gpu.ms) != short_ms(busy_ms(row)) for row in rows)


def draw_step(
    axes: Any, strip: Strip, y: float, row: Row, theme: Theme, is_known: bool, size: float = 10
) -> None:
    """Draw a bar in two tones: the GPU works, then it waits. Figures stand in it where they fit, the step behind it.

    The bar ends with the step. GPU time is of other cycles and may be longer; its figure is that of the tables.
    """
    busy, step = busy_ms(row), row.step_ms or 0.0
    waits = short_ms(step - busy)
    tone = theme.busy if is_known else theme.muted
    parts = [
        (0.0, busy, tone, theme.ground, [short_ms(row.gpu.ms)] if row.gpu else []),
        (busy, step, theme.idle, theme.ink, [f"waits {waits}", waits] if row.gpu else []),
    ]
    for begin, end, tone, color, texts in parts:
        if end > begin:
            left, wide = strip.left + strip.scale * begin, strip.scale * (end - begin)
            axes.barh(y, wide, strip.thick, left=left, color=tone, zorder=2, linewidth=0)
            text, x = (
                next((each for each in texts if measured(each, PART) <= wide - 0.08), ""),
                left + wide / 2,
            )
            axes.text(x, y, text, ha="center", va="center", fontsize=PART, color=color, zorder=4)
    end = strip.left + strip.scale * step + 0.06
    axes.text(end, y, short_ms(step), va="center", fontsize=size, fontweight="bold", zorder=4)


def _draw_interval(axes: Any, strip: Strip, y: float, interval: Interval, limit: float, color: str) -> None:
    """Draw an error bar as a line with two ends; an arrow stands in place of an end beyond the limit."""
    places = [strip.left + strip.scale * min(end, limit) for end in interval]
    axes.plot(places, [y, y], color=color, linewidth=1.1, solid_capstyle="butt", zorder=5)
    for end, place in zip(interval, places, strict=True):
        axes.plot([place], [y], marker=">" if end > limit else "|", markersize=4.5, color=color, zorder=6)


def draw_legend(axes: Any, y: float, tones: Sequence[tuple[str, str, bool]]) -> None:
    """Name the tones of the bars in a line, each (colour, words, whether it is an outline alone)."""
    x = MARGIN
    for color, text, outline in tones:
        inside = "none" if outline else color
        axes.barh(y - 0.045, 0.24, 0.13, left=x, color=inside, edgecolor=color, linewidth=outline)
        axes.text(x + 0.32, y, text, fontsize=9)
        x += 0.32 + measured(text, 9) + 0.3


def draw_lines(axes: Any, x: float, y: float, lines: Sequence[Line], ha: str = "left") -> None:
    """Write the lines of a cell around the middle of its row."""
    for number, line in enumerate(lines):
        at, weight = y + LINE * (number - (len(lines) - 1) / 2), "bold" if line.bold else "normal"
        style = {"va": "center_baseline", "color": line.color, "fontsize": line.size, "fontweight": weight}
        axes.text(x, at, line.text, ha=ha, **style)


def place_columns(columns: Sequence[Column], right: float) -> list[float]:
    """Return the left edge of each column in inches, where the last one ends at `right`."""
    lefts: list[float] = []
    for column in reversed(columns):
        lefts.insert(0, right - column.width)
        right = lefts[0] - column.gap
    return lefts


def draw_columns(axes: Any, columns: Sequence[Column], ys: Sequence[float], top: float, theme: Theme) -> None:
    """Draw columns up to the right margin: headings above `top`, and the cells of the rows at `ys`."""
    for left, column in zip(place_columns(columns, WIDTH - MARGIN), columns, strict=True):
        x, color = left + (column.width if column.ha == "right" else 0), column.color or theme.muted
        axes.text(x, top - 0.1, column.heading, ha=column.ha, va="baseline", color=color, fontsize=8.5)
        for y, cell in zip(ys, column.cells, strict=True):
            draw_lines(axes, x, y, cell, column.ha)
