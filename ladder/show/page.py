"""A page of sections: texts, tables, folds, bars and charts, rendered to one HTML file without a network."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias
from urllib.parse import quote

if TYPE_CHECKING:
    from jinja2 import Environment

from ladder.show.table import Table
from ladder.show.themes import DARK, LIGHT, Theme

# Colours of the page beside those of the charts. Text on a colour keeps a contrast of 4.5:1, which a test counts.
PALETTES = {
    LIGHT: {
        "good": "#1A6E34", "line": "#D5DAE0", "link": "#005A8C", "soft": "#F6F7F9", "warn": "#FFF3E6",
        "open": "#8A4B00", "more": "#C9CDD2", "on": "#FFFFFF",
        "k0": "#0072B2", "k1": "#5B4B9E", "k2": "#B34E00", "k3": "#1A6E34", "k4": "#A32020", "k5": "#7A5A00",
        "k6": "#9B2F7A", "k7": "#00727A", "k8": "#6B3FA0", "k9": "#52606D", "k10": "#5E6400", "k11": "#6B6B6B",
    },
    DARK: {
        "good": "#6CCB88", "line": "#343C45", "link": "#7CC5F0", "soft": "#1A2027", "warn": "#2E2417",
        "open": "#F0B060", "more": "#4A5561", "on": "#12161B",
        "k0": "#56B4E9", "k1": "#B0A3F0", "k2": "#F0A35E", "k3": "#6CCB88", "k4": "#FF8B80", "k5": "#E3C24A",
        "k6": "#EE92CF", "k7": "#4FCFD6", "k8": "#CDA0F5", "k9": "#A9B8C6", "k10": "#C3CC5A", "k11": "#A8A8A8",
    },
}  # fmt: skip
# A figure's room, in percent of the narrowest chart with figures: around it, and for each of its characters.
MARGIN, CHARACTER = 1.5, 2.4
ROOM = 1.02  # the longest bar of a chart leaves two percent
LEAST_SPAN = 1.1  # of a row over time: its highest value over its lowest
ROW_HEIGHT, ROW_ROOM = 48, 8  # pixels: of a row over time, and at least above and below its points
LINE_Y, STOP = 24, 3  # pixels: the middle of an interval below a bar, and half the height of its ends


@dataclass(frozen=True)
class Part:
    """A part of a bar: its length in the unit of the chart, its colour's class, and figures to write into it.

    The first figure that fits is written.
    """

    size: float
    tone: str
    figures: Sequence[str] = ()


@dataclass(frozen=True)
class Bar:
    """A row of a chart: a bar of parts, or a reason why there is none."""

    name: str
    parts: Sequence[Part] = ()
    figure: str = ""  # beside the bar
    words: Sequence[tuple[str, str]] = ()  # (clock or subject, its answer)
    interval: tuple[float, float] | None = None
    missing: str = ""


@dataclass(frozen=True)
class Bars:
    """A chart of bars, a row each. `legend` has (class, name); `most` is the longest length, else that of a bar.

    Its pictures have no width of their own, so they fit a phone. All figures stand beside them as text.
    """

    kind: ClassVar[str] = "bars"
    bars: Sequence[Bar]
    label: str
    legend: Sequence[tuple[str, str]] = ()
    most: float = 0.0

    @property
    def width(self) -> float:
        """Return the length that fills the chart: the longest with two percent of room."""
        return ROOM * max([self.most, *(sum(part.size for part in bar.parts) for bar in self.bars)])

    def place_parts(self, bar: Bar) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield (tone, left, width, middle, figure) of the parts of a bar, in percent of the chart's width."""
        at = 0.0
        for part in bar.parts:
            share = 100 * max(part.size, 0.0) / self.width
            room = (each for each in part.figures if share >= MARGIN + CHARACTER * len(each))
            left, width, middle = (f"{value:.3f}" for value in (at, share, at + share / 2))
            yield part.tone, left, width, middle, next(room, "")
            at += share

    def place_interval(self, bar: Bar) -> list[tuple[str, str, int, int]]:
        """Return (x1, x2, y1, y2) of the lines of an interval. An end beyond the chart has no stop."""
        if bar.interval is None:
            return []
        left, right = (100 * end / self.width for end in bar.interval)
        lines = [(left, right, LINE_Y, LINE_Y)]
        lines += [(x, x, LINE_Y - STOP, LINE_Y + STOP) for x in (left, right) if x <= 100]
        return [(f"{min(a, 100):.3f}", f"{min(b, 100):.3f}", c, d) for a, b, c, d in lines]


@dataclass(frozen=True)
class Point:
    """A value at a place, as a share of the chart's width. A pointer on it shows what it is about."""

    at: float
    value: float
    about: str


@dataclass(frozen=True)
class Mark:
    """A place where a line changed: a share of the width, the class of its colour, its name, and what is known."""

    at: float
    tone: str
    name: str
    about: str


@dataclass(frozen=True)
class Line:
    """A row of a chart over time: runs of points, each in the colour of a class, and marks."""

    name: str
    runs: Sequence[tuple[str, Sequence[Point]]]
    marks: Sequence[Mark] = ()
    figure: str = ""


@dataclass(frozen=True)
class Lines:
    """A chart over time, a row each. `ends` stand under the first and the last place.

    A row spans its own values, at least `LEAST_SPAN` of them: noise of 1% is a tenth of its height.
    """

    kind: ClassVar[str] = "lines"
    rows: Sequence[Line]
    label: str
    legend: Sequence[tuple[str, str]] = ()
    ends: tuple[str, str] = ("", "")

    def place_points(self, row: Line) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
        """Yield (tone, [(x, y, about)]) of each run of a row: x in percent of the width, y in pixels."""
        values = [point.value for _, points in row.runs for point in points]
        low, high = min(values), max(values)
        span = max(high / low, LEAST_SPAN)
        for tone, points in row.runs:
            heights = [math.log(point.value / math.sqrt(low * high), span) for point in points]
            yield (
                tone,
                [
                    (
                        f"{100 * point.at:.3f}",
                        f"{ROW_HEIGHT / 2 - height * (ROW_HEIGHT - 2 * ROW_ROOM):.2f}",
                        point.about,
                    )
                    for point, height in zip(points, heights, strict=True)
                ],
            )


@dataclass(frozen=True)
class Card:
    """A framed part: a title, blocks, and links as (text, address)."""

    title: str
    blocks: Sequence[Block]
    links: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Cards:
    """Cards side by side, which fill the width."""

    kind: ClassVar[str] = "cards"
    cards: Sequence[Card]


@dataclass(frozen=True)
class Since:
    """A date that hides the earlier rows of the section's tables; the first and the last that make sense."""

    kind: ClassVar[str] = "since"
    label: str
    first: str
    last: str


@dataclass(frozen=True)
class Code:
    """Lines of code as they are."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True)
class Chart:
    """A wide picture as SVG, in both themes if it is drawn in both. On a narrow screen it scrolls by itself."""

    kind: ClassVar[str] = "chart"
    alt: str
    light: bytes
    dark: bytes | None = None


@dataclass(frozen=True)
class Files:
    """Files inside the page, to be saved from it: (name, about) of each, and their data by name."""

    kind: ClassVar[str] = "files"
    rows: Sequence[tuple[str, str]]
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Fold:
    """A part that a reader opens. Paper shows it open; without `on_paper` only if the reader opened it."""

    kind: ClassVar[str] = "fold"
    summary: str
    blocks: Sequence[Block]
    name: str = ""  # stands before the summary
    is_muted: bool = False
    is_open: bool = False
    on_paper: bool = True


# A text is a paragraph, several are a list; words between backticks are code.
Block: TypeAlias = "str | Sequence[str] | Table | Bars | Lines | Cards | Since | Code | Chart | Files | Fold"


@dataclass(frozen=True)
class Section:
    """A section of a page. `about` is a line under its title; `id` is its address on the page."""

    id: str
    title: str
    about: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Head:
    """The outcome above the sections. Tiles are large figures: (what it is, figure, what stands beside it)."""

    title: str
    heading: str
    facts: Sequence[str]
    marks: Sequence[str]  # why not to quote the page
    tiles: Sequence[tuple[str, str, str]]
    home: str = ""  # where the line above the heading leads
    kicker: str = "The optimization ladder"  # that line


def list_colors(theme: Theme) -> dict[str, str]:
    """Return the page's colours by the names in its style sheet."""
    return {**vars(theme), **PALETTES[theme]}


# --- the template -----------------------------------------------------------------------------------------------------

FOLDER = Path(__file__).parent / "templates"
_TONES = {
    "good": ("faster", "ADOPT", "ok"),
    "bad": ("slower", "SKIP", "BROKEN", "failed", "not engaged", "confirmed"),
    "open": (
        "ambiguous", "undecided", "too few generations", "not yet proved", "not decided", "no verdict",
        "candidate", "unclear",
    ),
}  # fmt: skip


def split_code(text: str) -> list[str]:
    """Return the pieces of a line between backticks: every second one is code. An odd backtick is a letter."""
    pieces = show_line(text).split("`")
    return pieces if len(pieces) % 2 else [show_line(text)]


def show_line(text: object) -> str:
    """Return text in one line without control and direction characters, however long."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)).split())


def find_tone(text: str) -> str:
    """Return the class of a word that a reader must see, by the end of the text; "" for all others."""
    return next(
        (tone for tone, words in _TONES.items() for word in words if f" {text}".endswith(f" {word}")), ""
    )


def make_digest(text: str) -> str:
    """Return what a page's policy says of a script or style sheet that may be in it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def make_svg_address(svg: bytes) -> str:
    """Return a picture as an address. Its text stays text, because base64 hides from compression what repeats."""
    return f"data:image/svg+xml,{quote(b' '.join(svg.split()), safe='/:=;,.()-_!*~@$?+')}"


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # what draws no page needs no Jinja2

    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "split_code": split_code, "line": show_line, "tone": find_tone, "digest": make_digest,
        "svg_address": make_svg_address,
    }  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def render_page(head: Head, sections: Sequence[Section]) -> str:
    """Return the whole page; every value is escaped. The same content gives the same text."""
    from markupsafe import Markup

    def render(name: str, **values: Any) -> Markup:
        return Markup(_environment().get_template(name).render(**values))

    style = render("page.css", light=list_colors(LIGHT), dark=list_colors(DARK))
    script = Markup((FOLDER / "page.js").read_text(encoding="utf-8"))
    return str(render("page.html", style=style, script=script, head=head, sections=sections))
