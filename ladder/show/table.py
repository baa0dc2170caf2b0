"""One table for terminal, Markdown, CSV and HTML: columns have a kind, cells are values."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ladder.core import text as texts

PIPE_WIDTH = 120  # columns of what is no terminal
GAP = 2  # spaces between two columns


def _format_change(value: float) -> str:
    return f"{texts.round_number(100 * value, 2):+.2f}%"


FORMATS: dict[str, Callable[[Any], str]] = {
    "text": texts.clean_line,
    "verdict": texts.clean_line,
    "markdown": str,
    "date": texts.clean_line,
    "link": lambda value: value[0],  # (text, address), a link in HTML
    "ms": texts.format_ms,
    "ms_interval": lambda value: "-".join(map(texts.format_ms, value)),
    "more_ms": lambda value: f"{texts.round_number(value, 2):+.2f}",
    "speedup": texts.format_factor,
    "factor": texts.fine_factor,
    "ratio": "{:.3f}".format,
    "interval": lambda value: texts.format_bounds(tuple(value)),
    "percent": texts.format_percent,
    "share": "{:.1%}".format,
    "shares": lambda value: f"{100 * value[0]:.1f} to {100 * value[1]:.1f}%",
    "difference": texts.format_difference,
    "change": _format_change,
    "changes": lambda value: " to ".join(map(_format_change, value)),
    "amount": texts.format_amount,
    "microseconds": texts.format_amount,
    "decimal": "{:,.2f}".format,
    "count": "{:,.0f}".format,
    "launches": "{:,.1f}".format,
    "gib": lambda value: texts.format_amount(value / 2**30),
    "error": "{:.2g}".format,
    "saving": lambda value: f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}",
    "hours": lambda value: f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}",
    "seconds": lambda value: f"{texts.round_number(value, 1):+.1f}",
}
WORDS = ("text", "verdict", "markdown", "link", "date")  # kinds of columns that are aligned to the left


@dataclass(frozen=True)
class Column:
    """A column: its heading, the kind of its values, and when it leaves.

    Columns with the highest priority leave first where there is little room; priority 0 never leaves. A terminal shows
    a heading in as many lines as it has.
    """

    title: str
    kind: str = "text"
    priority: int = 0

    @property
    def lines(self) -> list[str]:
        """Return the lines of the heading."""
        return self.title.split("\n")

    @property
    def heading(self) -> str:
        """Return the heading in one line."""
        return " ".join(self.lines)

    @property
    def is_words(self) -> bool:
        """Return whether the cells are aligned to the left."""
        return self.kind in WORDS


@dataclass(frozen=True)
class Table:
    """Rows of values under columns. A value that is unknown is None and shown as an empty cell.

    A text in a column of numbers is shown as it is: why there is no number.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    def format_cells(self) -> list[list[str]]:
        """Return the rows as text, without the headings."""
        return [
            [format_value(column.kind, value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def drop_empty(self) -> Table:
        """Return the table without the columns in which no row has a value."""
        kept = [k for k in range(len(self.columns)) if any(row[k] not in (None, "") for row in self.rows)]
        return self._pick(kept or [0])

    def drop_columns(self, headings: Collection[str]) -> Table:
        """Return the table without the columns of these headings."""
        return self._pick([k for k, column in enumerate(self.columns) if column.heading not in headings])

    def fit_width(self, width: int) -> Table:
        """Return the table with the columns that fit, those of the lowest priority first."""
        cells = zip(*self.format_cells(), strict=True) if self.rows else [()] * len(self.columns)
        room = [max(map(len, [*each.lines, *cell])) for each, cell in zip(self.columns, cells, strict=True)]
        kept = list(range(len(self.columns)))
        while sum(room[k] + GAP for k in kept) - GAP > width:
            leaving = max(kept, key=lambda k: (self.columns[k].priority, k))
            if not self.columns[leaving].priority:
                break
            kept.remove(leaving)
        return self._pick(kept)

    def _pick(self, kept: list[int]) -> Table:
        rows = [[row[k] for k in kept] for row in self.rows]
        return replace(self, columns=[self.columns[k] for k in kept], rows=rows)


def join_lines(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines of names and what holds for them; names of which the same holds share a line."""
    names: dict[str, list[str]] = {}
    for name, line in lines:
        names.setdefault(line, []).append(name)
    return [f"{', '.join(each)}: {line}" for line, each in names.items()]


def format_value(kind: str, value: Any) -> str:
    """Return a value as every rendering but CSV shows it."""
    if value is None:
        return ""
    return FORMATS[kind if kind in WORDS or not isinstance(value, str) else "text"](value)


def render_text(table: Table, width: int = PIPE_WIDTH) -> str:
    """Return the table as lines of at most `width` columns; a cell that is still too wide is cut, never wrapped."""
    shown = table.fit_width(width)
    deep = max(len(column.lines) for column in shown.columns)
    heads = [[""] * (deep - len(column.lines)) + column.lines for column in shown.columns]
    cells = [*map(list, zip(*heads, strict=True)), *shown.format_cells()]
    words = [k for k, column in enumerate(shown.columns) if column.is_words]
    aligned = texts.align_rows(cells, words)
    lines = [line if len(line) <= width else f"{line[: width - 3]}..." for line in aligned]
    left_out = len(table.columns) - len(shown.columns)
    if left_out:
        lines.append(f"{texts.format_count(left_out, 'column')} left out for the width")
    return "\n".join([*([table.title] if table.title else []), *lines, *table.notes])


def render_markdown(table: Table) -> str:
    """Return the table as Markdown, its notes as a list."""
    words = [k for k, column in enumerate(table.columns) if column.is_words]
    safe = [str if column.kind == "markdown" else texts.escape_markdown for column in table.columns]
    cells = [[column.heading for column in table.columns], *table.format_cells()]
    cells = [[show(cell) for show, cell in zip(safe, row, strict=True)] for row in cells]
    notes = [f"- {texts.escape_markdown(note)}" for note in table.notes]
    title = [f"**{texts.escape_markdown(table.title)}**", ""] if table.title else []
    return "\n".join([*title, *texts.pipe_rows(cells, words, show=str), *([""] if notes else []), *notes])


def render_csv(tables: Sequence[Table]) -> str:
    """Return the tables as CSV with unrounded numbers; a table of several has a line with its title before it.

    A text that a spreadsheet would take for a formula gets an apostrophe.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for table in tables:
        if len(tables) > 1:
            writer.writerow([table.title])
        writer.writerow([column.heading for column in table.columns])
        writer.writerows([[_defuse(value) for value in row] for row in table.rows])
    return out.getvalue()


def _defuse(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
    if isinstance(value, list | tuple):
        return " to ".join(map(str, value))
    return value
