"""The parts of a chart's rows: names, bars, and columns of words and numbers. Each is drawn onto a sheet in inches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ladder.base.text import amount, bounds, factor
from ladder.plan import modes
from ladder.report import errorbars
from ladder.report.drawing import measured, wrapped
from ladder.report.themes import LIGHT, Theme
from ladder.report.view import Row, View, shown_top, turn_row
from ladder.results.values import FASTER, SLOWER
from ladder.results.words import Seen, answer

BUSY, IDLE, ARTICLE, BAD = LIGHT.busy, LIGHT.idle, LIGHT.article, LIGHT.bad
INK, MUTED, GRID, GAP = LIGHT.ink, LIGHT.muted, LIGHT.grid, LIGHT.gap
NAMED = {
    modes.CUMULATIVE: "each rung with those before it",
    modes.SOLO: "each rung alone on the baseline",
    modes.LEAVE_ONE_OUT: "all rungs but the one named",
    modes.MISTAKES: "mistakes beside a clean step",
    modes.LEVERS: "models beside the unchanged one",
    modes.RECIPE: "a recipe beside the baseline",
}
QUIET = ("n/a", "skipped")  # a rung without a number for a reason that is nobody's fault
PART, NAME = 8.0, 9.5  # points of the figures in a bar, and of a rung's name
LINE = 0.155  # inches from a line of a cell to the next


@dataclass(frozen=True)
class Strip:
    """The place of the rows' bars on a sheet, in inches. ``most``: milliseconds of the longest bar that fits."""

    left: float
    width: float
    top: float
    tall: float  # of a row
    most: float

    def middle(self, index: int) -> float:
        """Return the middle of a row."""
        return self.top + (index + 0.5) * self.tall

    @property
    def scale(self) -> float:
        """Return the length of a millisecond."""
        return self.width / self.most

    @property
    def bar(self) -> float:
        """Return the thickness of a bar."""
        return 0.58 * self.tall


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
        """Return the width of the widest line in inches, the heading's included; 0 where every cell is empty."""
        lines = [line for cell in self.cells for line in cell if line.text]
        heading = [measured(self.heading, 8.5)] if lines else [0.0]
        return max([*heading, *(measured(line.text, line.size, line.bold) for line in lines)])


def most_ms(shown: View) -> float:
    """Return the milliseconds of the longest bar, or of the longest error bar as drawn."""
    drawn = bars_window(shown)
    ends = [errorbars.within(row.interval, drawn)[1] for row in shown.rows if row.step_ms and row.interval]
    return max([row.step_ms for row in shown.rows if row.step_ms] + ends, default=1.0)


def bars_window(shown: View) -> tuple[float, float]:
    """Return the part of the scale that is drawn, in milliseconds."""
    return errorbars.window([row.step_ms for row in shown.rows if row.step_ms])


def is_cut(shown: View) -> bool:
    """Return whether an error bar goes beyond the picture."""
    return any(errorbars.is_cut(row.interval, bars_window(shown)) for row in shown.rows if row.step_ms)


def draw_bars(axes: Any, shown: View, strip: Strip, theme: Theme = LIGHT, size: float = 10) -> None:
    """Draw the bar of each rung with its figures and its interval. ``size``: points of the figure beside it."""
    drawn = bars_window(shown)
    for index, row in enumerate(shown.rows):
        if row.step_ms is None:
            continue
        y = strip.middle(index) - 0.04
        busy, known = busy_ms(row), row.gpu is not None or not shown.has_gpu_time
        draw_bar(axes, strip, y, (busy, row.step_ms), theme.busy if known else theme.muted, theme.idle)
        if row.gpu:
            draw_parts(axes, strip, y, row.gpu.ms, row.step_ms, theme)
        if row.interval:
            below = y + strip.bar / 2 + 0.045
            errorbars.draw(axes, below, row.interval, drawn, strip.left, strip.scale, theme.ink)
        end = strip.left + strip.scale * row.step_ms + 0.06
        axes.text(end, y, short_ms(row.step_ms), va="center", fontsize=size, fontweight="bold", zorder=4)


def draw_bar(axes: Any, strip: Strip, y: float, ends: tuple[float, float], busy: str, idle: str) -> None:
    """Draw a bar in two tones: up to the first end the GPU works, then it waits. The ends are milliseconds."""
    first, last = (strip.scale * end for end in ends)
    axes.barh(y, first, strip.bar, left=strip.left, color=busy, zorder=2, linewidth=0)
    if last > first:
        axes.barh(y, last - first, strip.bar, left=strip.left + first, color=idle, zorder=2, linewidth=0)


def draw_parts(
    axes: Any, strip: Strip, y: float, gpu: float, step: float, theme: Theme, waits: str = "waits "
) -> None:
    """Write into a bar, where there is room, how many milliseconds the GPU works and how many it waits.

    The bar ends with the step. GPU time is of other cycles and may be longer; its figure is that of the tables.
    """
    busy = min(gpu, step)
    parts = (
        (0.0, busy, (short_ms(gpu),), theme.ground),
        (busy, step, (f"{waits}{short_ms(step - busy)}", short_ms(step - busy)), theme.ink),
    )
    for begin, end, texts, color in parts:
        room = strip.scale * (end - begin) - 0.08
        if text := next((text for text in texts if measured(text, PART) <= room), ""):
            middle = strip.left + strip.scale * (begin + end) / 2
            axes.text(middle, y, text, ha="center", va="center", fontsize=PART, color=color, zorder=4)


def busy_ms(row: Row) -> float:
    """Return the milliseconds of a step in which the GPU works; all of them where that is unknown."""
    step_ms = row.step_ms or 0.0
    if row.gpu:
        return min(row.gpu.ms, step_ms)
    return step_ms if row.host_bound is None else step_ms * (1 - row.host_bound)


ABOVE = "GPU time is of other, profiled cycles, and may exceed the step's"


def is_above(rows: Iterable[Row]) -> bool:
    """Return whether the GPU time of a row, as a chart tells it, exceeds the step's."""
    return any(row.gpu and row.step_ms and short_ms(row.gpu.ms) != short_ms(busy_ms(row)) for row in rows)


def draw_gaps(
    axes: Any, shown: View, strip: Strip, columns: Sequence[Column], right: float, theme: Theme
) -> None:
    """Draw the rows without a number: the status, and the reason in at most two lines, up to the first full cell."""
    begins = [*edges(columns, right)]
    for index, row in enumerate(shown.rows):
        if row.step_ms is not None:
            continue
        full = [
            x
            for x, column in zip(begins, columns, strict=True)
            if any(line.text for line in column.cells[index])
        ]
        width, y = min([x - 0.1 for x in full], default=right) - strip.left, strip.middle(index)
        axes.barh(y, width, strip.tall - 0.1, left=strip.left, color=theme.gap, linewidth=0, zorder=1)
        color = theme.muted if row.status in QUIET else theme.bad
        status = wrapped(row.status, 9, width - 0.2, 1)[0]
        axes.text(
            strip.left + 0.1, y, status, va="center_baseline", color=color, fontsize=9, fontweight="bold"
        )
        begin = 0.22 + measured(status, 9, bold=True)
        reason = wrapped(row.reason, 8.5, width - begin - 0.1) if width - begin > 0.5 else []
        draw_lines(axes, strip.left + begin, y, [Line(text, theme.ink) for text in reason])


def names_width(shown: View, widths: Sequence[float]) -> float:
    """Return the first of the widths in inches in which no title is cut, or the last."""
    for width in widths:
        if not any(line.endswith("...") for row in shown.rows for line in _name(row, width)):
            return width
    return widths[-1]


def _name(row: Row, width: float) -> list[str]:
    return wrapped(row.title, NAME, width - 0.12)


def draw_names(axes: Any, shown: View, strip: Strip, left: float, theme: Theme) -> None:
    """Write the title of each rung, in at most two lines, from ``left`` to the bars."""
    for index, row in enumerate(shown.rows):
        color = theme.ink if row.step_ms else theme.muted
        lines = [Line(text, color, NAME) for text in _name(row, strip.left - left)]
        draw_lines(axes, left, strip.middle(index), lines)


def draw_lines(axes: Any, x: float, y: float, lines: Sequence[Line], ha: str = "left") -> None:
    """Write the lines of a cell around the middle of its row."""
    for number, line in enumerate(lines):
        at, weight = y + LINE * (number - (len(lines) - 1) / 2), "bold" if line.bold else "normal"
        axes.text(
            x,
            at,
            line.text,
            ha=ha,
            va="center_baseline",
            color=line.color,
            fontsize=line.size,
            fontweight=weight,
        )


def columns_of(shown: View, theme: Theme = LIGHT) -> list[Column]:
    """Return the columns to the right of the bars that have something in them, from left to right."""
    rows, whole = shown.rows, shown.mode == modes.CUMULATIVE
    leave_out = shown.mode == modes.LEAVE_ONE_OUT  # there the rows themselves are about the top
    top = [
        _lines(theme.ink, "" if leave_out else shown_top(row)) + _advice(row.advice, theme) for row in rows
    ]
    total = [_lines(theme.busy, factor(row.total) if whole else "", 10.5, True) for row in rows]
    article = [_lines(theme.article, factor(row.article_total) if whole else "", 9.5) for row in rows]
    made = [
        *_gains(shown, theme),
        Column("advice" if leave_out else "gain at top", top),
        Column("total", total, "right", color=theme.busy),
        Column("article", article, "right", color=theme.article),
    ]
    return [column for column in made if column.width]


def _lines(color: str, text: str, size: float = 8.5, bold: bool = False) -> list[Line]:
    return [Line(text, color, size, bold)] if text else []


def _advice(advice: str, theme: Theme) -> list[Line]:
    color = {"ADOPT": theme.ink, "SKIP": theme.bad}.get(advice, theme.muted)
    return _lines(color, advice, 8, advice in ("ADOPT", "SKIP"))


def _gains(shown: View, theme: Theme) -> list[Column]:
    """Return the columns of what each rung gains: by GPU time and by the step's time, a line each."""
    clocks, words, intervals = [], [], []
    for row in (turn_row(row, shown) for row in shown.rows):
        found = [("step", row.seen, row.gain)]
        if shown.has_gpu_time:
            gpu = row.gpu
            found.insert(0, ("GPU", gpu.seen if gpu else Seen(), gpu.gain if gpu else None))
        said = [answer(seen) for _, seen, _ in found]
        clocks.append(
            [Line(clock if text else "", theme.muted) for (clock, *_), text in zip(found, said, strict=True)]
        )
        words.append([_answer(text, seen, theme) for (_, seen, _), text in zip(found, said, strict=True)])
        intervals.append([Line(bounds(gain).rstrip("x"), theme.muted, 8) for *_, gain in found])
    made = [Column(shown.versus, words, gap=0.08), Column("interval", intervals, "right", gap=0.1)]
    return [Column("", clocks), *made] if shown.has_gpu_time else made


def _answer(text: str, seen: Seen, theme: Theme) -> Line:
    color = {FASTER: theme.ink, SLOWER: theme.bad}.get(
        seen.verdict, theme.ink if not seen.verdict else theme.muted
    )
    return Line(text, color, bold=seen.verdict in (FASTER, SLOWER))


def edges(columns: Sequence[Column], right: float) -> list[float]:
    """Return the left edge of each column in inches, where the last one ends at ``right``."""
    found = []
    for column in reversed(columns):
        right -= column.width
        found.insert(0, right)
        right -= column.gap
    return found


def draw_columns(axes: Any, columns: Sequence[Column], strip: Strip, right: float, theme: Theme) -> None:
    """Draw columns with their headings, the last of them up to ``right``."""
    for left, column in zip(edges(columns, right), columns, strict=True):
        x = left + (column.width if column.ha == "right" else 0)
        axes.text(
            x, strip.top - 0.1, column.heading, ha=column.ha, color=column.color or theme.muted, fontsize=8.5
        )
        for index, cell in enumerate(column.cells):
            draw_lines(axes, x, strip.middle(index), cell, column.ha)


def draw_legend(axes: Any, x: float, y: float, tones: Sequence[tuple[str, str, bool]]) -> None:
    """Name the tones of the bars in a line, each (colour, words, whether it is an outline alone)."""
    for color, words, outline in tones:
        axes.barh(
            y - 0.045,
            0.24,
            0.13,
            left=x,
            color="none" if outline else color,
            edgecolor=color,
            linewidth=outline,
        )
        axes.text(x + 0.32, y, words, fontsize=9)
        x += 0.32 + measured(words, 9) + 0.3


short_ms = amount  # milliseconds; the interval is in the table
