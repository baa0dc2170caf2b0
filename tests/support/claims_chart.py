"""The picture of docs/claims.md, drawn from the table beside it: `python -m tests.support.claims_chart`."""

from __future__ import annotations

import re
from math import log
from pathlib import Path
from typing import Any

from ladder.report import drawing
from ladder.show.themes import LIGHT

PAGE = Path(__file__).resolve().parents[2] / "docs" / "claims.md"
WIDTH, ROW, TOP, NAMES, FIGURES = (
    9.6,
    0.36,
    0.95,
    4.05,
    1.75,
)  # inches; the last two at the left and at the right
REACH = 40  # times the article's figure, at both ends of the axis


def read_rows(text: str) -> list[tuple[str, str, str]]:
    """Return (claim, the article's figure, ours) of each row of the table that has both figures."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    ]
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 6 and re.match(r"\d", row[1])]


def read_range(figure: str) -> tuple[float, float]:
    """Return the ends of a figure: `85-95%` is 85 and 95, `2.3x` twice 2.3."""
    ends = [float(each) for each in re.findall(r"\d+(?:\.\d+)?", figure)]
    return ends[0], ends[-1]


def draw(rows: list[tuple[str, str, str]]) -> Any:
    """Draw ours in multiples of the middle of the article's figure, which stands with ours in a column at the right."""
    figure, axes = drawing.sheet(WIDTH, TOP + ROW * len(rows) + 0.3)
    drawing.fitted(
        figure,
        0.02,
        0.97,
        "Ours on one H200, in multiples of the article's figure",
        15,
        fontweight="bold",
        va="top",
    )
    left, right, bottom = NAMES, WIDTH - FIGURES, TOP + ROW * len(rows)

    def place(value: float) -> float:
        return left + (right - left) * (log(value, REACH) + 1) / 2

    for value in (0.1, 1, 10):
        axes.plot(
            [place(value)] * 2,
            [TOP - 0.1, bottom],
            color=LIGHT.article if value == 1 else LIGHT.grid,
            zorder=1,
        )
        axes.text(place(value), TOP - 0.18, f"{value:g}x", ha="center", fontsize=8.5, color=LIGHT.muted)
    axes.text(right + 0.1, TOP - 0.18, "ours for the article's", fontsize=8.5, color=LIGHT.muted)
    for number, (claim, theirs, ours) in enumerate(rows):
        y, (low, high) = TOP + ROW * (number + 0.5), read_range(theirs)
        middle, value = (low + high) / 2, read_range(ours)[0]
        (name,) = drawing.wrapped(claim, 9, left - 0.25, 1)
        axes.text(left - 0.12, y, name, ha="right", va="center", fontsize=9, color=LIGHT.ink)
        band = place(high / middle) - place(low / middle)
        axes.barh(
            y, band, ROW / 2, left=place(low / middle), color=LIGHT.article, alpha=0.25, linewidth=0, zorder=0
        )
        axes.plot([place(value / middle)], [y], "o", color=LIGHT.busy, markersize=8, zorder=3)
        axes.text(right + 0.1, y, f"{ours} for {theirs}", va="center", fontsize=9, color=LIGHT.ink)
    return figure


def main() -> None:
    rows = read_rows(PAGE.read_text(encoding="utf-8"))
    (PAGE.parent / "images" / "claims.png").write_bytes(drawing.save(lambda: draw(rows), "png", LIGHT))


if __name__ == "__main__":
    main()
