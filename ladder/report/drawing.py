"""What every chart shares: letters, how a figure becomes a file, text that fits."""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ladder.core.errors import UserError
from ladder.core.text import clean_line
from ladder.show.themes import LIGHT, Theme

STYLE = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same letters everywhere
    "font.size": 9.5,
    "text.parse_math": False,  # a `$` in a machine's name is a dollar sign
    "svg.hashsalt": "ladder",
    "svg.fonttype": "path",
}

DPI, WIDEST = 160, 1600  # pixels of an inch, and of the widest picture: wider ones have fewer an inch


def save(make: Callable[[], Any], kind: str, theme: Theme | None = None) -> bytes:
    """Return the figure that `make` draws, in the style of every chart, as PNG or SVG bytes.

    The same figure gives the same bytes, whatever the user's settings of matplotlib. Without a theme text is black,
    where it has no colour of its own, on white.

    Raises:
        UserError: whatever keeps it from being drawn; one line.
    """
    colours = {"text.color": theme.ink, "axes.facecolor": theme.ground} if theme else {}
    out = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # letters that the font does not have are drawn as boxes
            matplotlib = _import_matplotlib()
            from matplotlib.backends.backend_agg import FigureCanvasAgg

            with matplotlib.rc_context():
                matplotlib.rcdefaults()  # not the settings of whoever draws
                matplotlib.rcParams.update(STYLE | colours)
                figure = make()
                FigureCanvasAgg(figure)
                figure.savefig(
                    out, format=kind, dpi=min(DPI, WIDEST / figure.get_figwidth()),
                    metadata={"Date": None, "Creator": None} if kind == "svg" else {"Software": None},
                    facecolor=theme.ground if theme else "white",
                )  # fmt: skip
    except Exception as error:  # whatever it is, the numbers are there without the picture
        raise UserError(f"a chart cannot be drawn: {type(error).__name__}: {clean_line(error)}") from error
    return out.getvalue()


def _import_matplotlib() -> ModuleType:
    """Import matplotlib without the user's settings: MPLBACKEND (a notebook sets it), matplotlibrc, log messages."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of folders and fonts on stderr
    if "matplotlib" not in sys.modules:
        theirs = {key: os.environ.get(key) for key in ("MPLBACKEND", "MATPLOTLIBRC")}
        os.environ |= {"MPLBACKEND": "agg", "MATPLOTLIBRC": os.devnull}
        try:
            importlib.import_module("matplotlib")
        finally:
            for key, value in theirs.items():
                os.environ.pop(key) if value is None else os.environ.update({key: value})
    return importlib.import_module("matplotlib")


def sheet(width: float, height: float) -> tuple[Any, Any]:
    """Return an empty figure and axes that fill it, without an axis: x to the right and y downwards, in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def measured(text: str, size: float, bold: bool = False) -> float:
    """Return the width of a line of text in inches, with some room for the hinting of its letters."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    letters = FontProperties(size=size, weight="bold" if bold else "normal")
    return 1.04 * text_to_path.get_text_width_height_descent(text, letters, ismath=False)[0] / 72


def wrapped(text: str, size: float, width: float, most: int = 2) -> list[str]:
    """Return the text in lines of at most `width` inches; "..." stands for the rest where `most` lines are full."""
    lines: list[str] = []
    for word in text.split():
        if lines and (len(lines) > most or measured(f"{lines[-1]} {word}", size) <= width):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    lines[most - 1 :] = [" ".join(lines[most - 1 :])] if lines[most - 1 :] else []
    return [_cut(line, size, width) for line in lines]


def _cut(text: str, size: float, width: float, bold: bool = False) -> str:
    """Return a text that fits the width, "..." for what does not."""
    if measured(text, size, bold) <= width:
        return text
    text = text[: int(len(text) * width / measured(text, size, bold)) + 4]
    while text and measured(f"{text}...", size, bold) > width:
        text = text[:-1]
    return f"{text.rstrip(' ,;:-')}..."


def fitted(figure: Any, x: float, y: float, text: str, size: float, **more: Any) -> None:
    """Write text that is made smaller until it fits the figure's width; at 8 points it is cut."""
    room, bold = figure.get_figwidth() * (1 - 2 * x), more.get("fontweight") == "bold"
    while size > 8 and measured(text, size, bold) > room:
        size -= 0.5
    figure.text(x, y, _cut(text, size, room, bold), fontsize=size, **more)


def draw_heading(figure: Any, title: str, under: str, lines: Sequence[str] = ()) -> None:
    """Write a title above a figure, lines of 9 points below the title, and a line at the figure's foot."""
    high = figure.get_figheight()
    fitted(figure, 0.02, 1 - 0.42 / high, title, 15, fontweight="bold", color=LIGHT.ink)
    for number, line in enumerate(lines):
        figure.text(0.02, 1 - (0.74 + 0.19 * number) / high, line, fontsize=9, color=LIGHT.ink)
    fitted(figure, 0.02, 0.14 / high, under, 8, color=LIGHT.muted)


def clear_axes(axes: Any, grid: str = "y") -> None:
    """Leave a grid along one axis and its labels; no frame, no ticks."""
    axes.set_frame_on(False)
    axes.grid(axis=grid, color=LIGHT.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=LIGHT.ink, labelsize=8.5)


LEAST = 0.02  # of the colours' range of a heat map: noise must not look like a finding


def heatmap(
    axes: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    theme: Theme,
    word: Callable[[float | None], str],
    instead: Sequence[Sequence[str]] = (),
    most: float = 0.0,
) -> None:
    """Draw values around 0 onto axes.

    Args:
        values: by row and column; None is an empty cell.
        word: writes a value.
        instead: by row and column, words of cells without a value.
        most: a value that the colours must reach, so that several maps share them.
    """
    from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
    from matplotlib.patches import Rectangle

    most = max([most, LEAST, *(abs(value) for row in values for value in row if value is not None)])
    colours = LinearSegmentedColormap.from_list("gains", [theme.article, theme.gap, theme.busy])
    norm = TwoSlopeNorm(0.0, -most, most)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            colour = None if value is None else colours(norm(value))
            text = word(value) if value is not None else (instead[y][x] if instead else "")
            if colour is not None:
                place = (x - 0.5, y - 0.5)
                axes.add_patch(Rectangle(place, 1, 1, facecolor=colour, edgecolor=theme.ground, linewidth=2))
            ink = theme.muted if colour is None else pick_ink(colour)
            axes.text(x, y, text, ha="center", va="center", fontsize=8, color=ink)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    tilted = {"rotation": 30, "ha": "right"} if any(len(name) > 5 for name in columns) else {}
    axes.set_xticks(range(len(columns)), columns, **tilted)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_frame_on(False)
    axes.tick_params(length=0, labelcolor=theme.ink, labelsize=8.5)


def pick_ink(colour: Sequence[float]) -> str:
    """Return black or white, whichever stands out more from a colour: by 4.5 to 1 at least (WCAG's contrast)."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return "#000000" if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 else "#FFFFFF"
