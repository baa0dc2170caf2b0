"""The parts of a chart's rows: names, bars, and columns of words and numbers. Each is drawn onto a sheet in inches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ladder.core.protocol import FASTER, SLOWER
from ladder.core.text import format_amount as short_ms  # milliseconds; the interval is in the table
from ladder.core.text import format_bounds, format_factor
from ladder.plan import modes
from ladder.report.drawing import fitted, measured, sheet, wrapped
from ladder.report.view import Interval, Row, View, shown_top, turn_row
from ladder.results.words import Seen, answer
from ladder.show.themes import LIGHT, Theme

BUSY, IDLE, ARTICLE = LIGHT.busy, LIGHT.idle, LIGHT.article
INK, MUTED, GRID, GAP = LIGHT.ink, LIGHT.muted, LIGHT.grid, LIGHT.gap
NAMED = {
    modes.CUMULATIVE: "each rung with those before it", modes.SOLO: "each rung alone on the baseline",
    modes.LEAVE_ONE_OUT: "all rungs but the one named", modes.MISTAKES: "mistakes beside a clean step",
    modes.LEVERS: "models beside the unchanged one", modes.RECIPE: "a recipe beside the baseline",
}  # fmt: skip
ABOVE = "GPU time is of other, profiled cycles, and may exceed the step's"
QUIET = ("n/a", "skipped")  # a rung without a number for a reason that is nobody's fault
WIDTH, MARGIN = 10.0, 0.2  # inches of a sheet
PART, NAME, SMALL = 8.0, 9.5, 8.0  # points of the figures in a bar, of a rung's name, and of small print
LINE = 0.155  # inches from a line of a cell to the next
# How far an error bar may reach beyond the longest bar, in parts of that bar: one process that was held up widens an
# interval by ten times, and drawn whole it would press all bars flat. An arrow says where it goes on.
BEYOND = 0.6


@dataclass(frozen=True)
class Strip:
    """The place of the rows' bars on a sheet, in inches. `most`: milliseconds of the longest bar that fits."""

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
        """The length of a millisecond."""
        return self.width / self.most

    @property
    def bar(self) -> float:
        """The thickness of a bar."""
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
        """The width of the widest line in inches, the heading's included; 0 where every cell is empty."""
        widths = [
            measured(each.text, each.size, each.bold) for cell in self.cells for each in cell if each.text
        ]
        return max([*widths, *(measured(line, 8.5) for line in self.heading.split("\n"))]) if widths else 0.0


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


# --- bars -------------------------------------------------------------------------------------------------------------


def bars_limit(shown: View) -> float:
    """Return the milliseconds at which error bars end."""
    return (1 + BEYOND) * max([row.step_ms for row in shown.rows if row.step_ms], default=0.0)


def most_ms(shown: View) -> float:
    """Return the milliseconds of the longest bar, or of the longest error bar as drawn."""
    timed = [row for row in shown.rows if row.step_ms]
    ends = [min(row.interval[1], bars_limit(shown)) for row in timed if row.interval]
    return max([*(row.step_ms or 0.0 for row in timed), *ends], default=1.0)


def busy_ms(row: Row) -> float:
    """Return the milliseconds of a step in which the GPU works; all of them where that is unknown."""
    step_ms = row.step_ms or 0.0
    if row.gpu:
        return min(row.gpu.ms, step_ms)
    return step_ms if row.host_bound is None else step_ms * (1 - row.host_bound)


def is_above(rows: Iterable[Row]) -> bool:
    """Return whether the GPU time of a row, as a chart tells it, exceeds the step's."""
    return any(row.gpu and row.step_ms and short_ms(row.gpu.ms) != short_ms(busy_ms(row)) for row in rows)


def draw_bars(axes: Any, shown: View, strip: Strip, theme: Theme = LIGHT) -> None:
    """Draw the bar of each rung with its figures and its interval."""
    for index, row in enumerate(shown.rows):
        if row.step_ms is None:
            continue
        y = strip.middle(index) - 0.04
        draw_step(axes, strip, y, row, theme, is_known=row.gpu is not None or not shown.has_gpu_time)
        if row.interval:
            below = y + strip.bar / 2 + 0.045
            draw_interval(axes, strip, below, row.interval, bars_limit(shown), theme.ink)


def draw_step(
    axes: Any, strip: Strip, y: float, row: Row, theme: Theme, is_known: bool, size: float = 10
) -> None:
    """Draw a bar in two tones: the GPU works, then it waits. Figures stand in it where they fit, the step behind it.

    The bar ends with the step. GPU time is of other cycles and may be longer; its figure is that of the tables.
    """
    busy, step = busy_ms(row), row.step_ms or 0.0
    waits = short_ms(step - busy)
    parts = [
        (
            0.0,
            busy,
            theme.busy if is_known else theme.muted,
            theme.ground,
            [short_ms(row.gpu.ms)] if row.gpu else [],
        ),
        (busy, step, theme.idle, theme.ink, [f"waits {waits}", waits] if row.gpu else []),
    ]
    for begin, end, tone, color, texts in parts:
        if end > begin:
            left, wide = strip.left + strip.scale * begin, strip.scale * (end - begin)
            axes.barh(y, wide, strip.bar, left=left, color=tone, zorder=2, linewidth=0)
            text = next((each for each in texts if measured(each, PART) <= wide - 0.08), "")
            axes.text(
                left + wide / 2, y, text, ha="center", va="center", fontsize=PART, color=color, zorder=4
            )
    end = strip.left + strip.scale * step + 0.06
    axes.text(end, y, short_ms(step), va="center", fontsize=size, fontweight="bold", zorder=4)


def draw_interval(axes: Any, strip: Strip, y: float, interval: Interval, limit: float, color: str) -> None:
    """Draw an error bar as a line with two ends; an arrow stands in place of an end beyond the limit."""
    drawn = [min(end, limit) for end in interval]
    places = [strip.left + strip.scale * end for end in drawn]
    axes.plot(places, [y, y], color=color, linewidth=1.1, solid_capstyle="butt", zorder=5)
    for end, shown, place in zip(interval, drawn, places, strict=True):
        marker = "|" if end == shown else ">"
        axes.plot([place], [y], marker=marker, markersize=4.5, color=color, zorder=6)


def draw_legend(axes: Any, x: float, y: float, tones: Sequence[tuple[str, str, bool]]) -> None:
    """Name the tones of the bars in a line, each (colour, words, whether it is an outline alone)."""
    for color, words, outline in tones:
        inside = "none" if outline else color
        axes.barh(y - 0.045, 0.24, 0.13, left=x, color=inside, edgecolor=color, linewidth=outline)
        axes.text(x + 0.32, y, words, fontsize=9)
        x += 0.32 + measured(words, 9) + 0.3


# --- words ------------------------------------------------------------------------------------------------------------


def draw_lines(axes: Any, x: float, y: float, lines: Sequence[Line], ha: str = "left") -> None:
    """Write the lines of a cell around the middle of its row."""
    for number, line in enumerate(lines):
        at = y + LINE * (number - (len(lines) - 1) / 2)
        axes.text(
            x, at, line.text, ha=ha, va="center_baseline", color=line.color, fontsize=line.size,
            fontweight="bold" if line.bold else "normal",
        )  # fmt: skip


def draw_names(axes: Any, shown: View, strip: Strip, left: float, theme: Theme) -> None:
    """Write the title of each rung, in at most two lines, from `left` to the bars."""
    for index, row in enumerate(shown.rows):
        lines = wrapped(row.title, NAME, strip.left - left - 0.12)
        color = theme.ink if row.step_ms else theme.muted
        draw_lines(axes, left, strip.middle(index), [Line(text, color, NAME) for text in lines])


def draw_gaps(
    axes: Any, shown: View, strip: Strip, columns: Sequence[Column], right: float, theme: Theme
) -> None:
    """Draw the rows without a number: the status, and the reason in at most two lines, up to the first full cell."""
    begins = [*edges(columns, right)]
    for index, row in enumerate(shown.rows):
        if row.step_ms is not None:
            continue
        pairs = zip(begins, columns, strict=True)
        full = [x for x, column in pairs if any(line.text for line in column.cells[index])]
        width, y = min([x - 0.1 for x in full], default=right) - strip.left, strip.middle(index)
        axes.barh(y, width, strip.tall - 0.1, left=strip.left, color=theme.gap, linewidth=0, zorder=1)
        status = Line(row.status, theme.muted if row.status in QUIET else theme.bad, 9, True)
        draw_lines(axes, strip.left + 0.1, y, [status])
        begin = 0.22 + measured(row.status, 9, bold=True)
        reason = wrapped(row.reason, 8.5, width - begin - 0.1) if width - begin > 0.5 else []
        draw_lines(axes, strip.left + begin, y, [Line(text, theme.ink) for text in reason])


def columns_of(shown: View, theme: Theme = LIGHT) -> list[Column]:
    """Return the columns to the right of the bars that have something in them, from left to right."""
    whole, leave_out = shown.mode == modes.CUMULATIVE, shown.mode == modes.LEAVE_ONE_OUT
    clocks, gains, intervals = [], [], []
    for row in (turn_row(row, shown) for row in shown.rows):
        pairs = [("step", row.seen, row.gain)]
        if shown.has_gpu_time:
            pairs.insert(0, ("GPU", row.gpu.seen if row.gpu else Seen(), row.gpu.gain if row.gpu else None))
        words = [_show_answer(seen, theme) for _, seen, _ in pairs]
        of_clock = zip(pairs, words, strict=True)
        clocks.append([Line(clock if word.text else "", theme.muted) for (clock, *_), word in of_clock])
        gains.append(words)
        intervals.append([Line(format_bounds(gain).rstrip("x"), theme.muted, 8) for *_, gain in pairs])
    tops = []  # in a leave-one-out run the rows themselves are about the top
    for row in shown.rows:
        is_sure = row.advice in ("ADOPT", "SKIP")
        color = theme.bad if row.advice == "SKIP" else theme.ink if is_sure else theme.muted
        lines = [Line("" if leave_out else shown_top(row), theme.ink), Line(row.advice, color, 8, is_sure)]
        tops.append([line for line in lines if line.text])
    totals = [[Line(format_factor(row.total) if whole else "", theme.busy, 10.5, True)] for row in shown.rows]
    article = [
        [Line(format_factor(row.article_total) if whole else "", theme.article, 9.5)] for row in shown.rows
    ]
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


def edges(columns: Sequence[Column], right: float) -> list[float]:
    """Return the left edge of each column in inches, where the last one ends at `right`."""
    lefts: list[float] = []
    for column in reversed(columns):
        lefts.insert(0, right - column.width)
        right = lefts[0] - column.gap
    return lefts


def draw_columns(
    axes: Any, columns: Sequence[Column], ys: Sequence[float], top: float, right: float, theme: Theme
) -> None:
    """Draw columns, the last of them up to `right`: headings above `top`, and the cells of the rows at `ys`."""
    for left, column in zip(edges(columns, right), columns, strict=True):
        x, color = left + (column.width if column.ha == "right" else 0), column.color or theme.muted
        axes.text(x, top - 0.1, column.heading, ha=column.ha, va="baseline", color=color, fontsize=8.5)
        for y, cell in zip(ys, column.cells, strict=True):
            draw_lines(axes, x, y, cell, column.ha)
