"""The HTML that sections are made of: tables, lists, folds, bars and pictures. Every text is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from markupsafe import Markup

from ladder.base.text import plain

LOUD = {
    "faster": "good",
    "ADOPT": "good",
    "ok": "good",
    "slower": "bad",
    "SKIP": "bad",
    "BROKEN": "bad",
    "failed": "bad",
    "not engaged": "bad",
    "ambiguous": "open",
    "undecided": "open",
    "too few generations": "open",
    "not yet proved": "open",
    "not decided": "open",
    "no verdict": "open",
}
NUMBER = re.compile(r"[-+]?\d")
WIDE = 20  # columns: the headings of a wider table stand upright on paper
HIGH, THICK, TICKS = 30, 18, 24  # pixels: a bar's picture, the bar, and the middle of its interval
# A figure's room, in percent of the narrowest chart with figures: around it, and for each of its characters.
MARGIN, CHARACTER = 1.5, 2.4
_PLAIN = "/:=;,.()-_!*~@$?+"  # what an address of a picture holds as it stands


def joined(parts: Iterable[Markup]) -> Markup:
    """Return pieces of HTML one below another."""
    return Markup("\n").join(parts)


def text(said: str, kind: str = "") -> Markup:
    """Return a paragraph, of a class of the style sheet if one is given."""
    return Markup('<p class="{}">{}</p>').format(kind, marked(said))


def marked(said: str) -> Markup:
    """Return text in which commands stand between backticks, as HTML."""
    pieces = plain_line(said).split("`")
    if len(pieces) % 2 == 0:
        return Markup("{}").format(plain_line(said))
    codes = (Markup("<code>{}</code>" if k % 2 else "{}").format(each) for k, each in enumerate(pieces))
    return Markup().join(codes)


def lines(said: Iterable[str], kind: str = "notes") -> Markup:
    """Return a list of lines; nothing without any."""
    items = [Markup("<li>{}</li>").format(marked(each)) for each in said if each]
    return Markup('<ul class="{}">{}</ul>').format(kind, joined(items)) if items else Markup()


def plain_line(said: str) -> str:
    """Return text in one line without control and direction characters, however long."""
    kept = "".join(each if each.isprintable() else " " for each in said)
    return " ".join(kept.split())


def fold(summary: str | Markup, body: Markup, *, is_open: bool = False, on_paper: bool = True) -> Markup:
    """Return a part that a reader opens. Paper shows it open; without ``on_paper`` only if the reader opened it."""
    return Markup("<details{}{}><summary>{}</summary>\n{}\n</details>").format(
        Markup("") if on_paper else Markup(' class="aside"'),
        Markup(" open") if is_open else "",
        marked(summary) if type(summary) is str else summary,
        body,
    )


def table(rows: Sequence[Sequence[str]], label: str, *, caption: str = "") -> Markup:
    """Return a table that scrolls by itself. Columns that are empty below their heading are left out.

    Args:
        rows: the headings, then the cells as text. The first column names the rows.
        label: names the table for a reader who does not see it.
    """
    first, *rest = rows
    kinds = [_kind([row[k] for row in rest if row[k]]) if k else "" for k in range(len(first))]
    kept = [k for k in range(len(first)) if k == 0 or any(row[k] for row in rest)]
    head = [Markup('<th scope="col" class="{}">{}</th>').format(kinds[k], plain_line(first[k])) for k in kept]
    body = [
        Markup("<tr>{}</tr>").format(Markup().join(_cell(row[k], kinds[k], is_name=k == 0) for k in kept))
        for row in rest
    ]
    told = Markup("<caption>{}</caption>").format(plain_line(caption)) if caption else ""
    wide = " wide" * (len(kept) > WIDE)
    return Markup(
        '<div class="scroll{}" role="region" tabindex="0" aria-label="{}"><table>{}<thead><tr>{}</tr></thead>\n'
        "<tbody>{}</tbody></table></div>"
    ).format(wide, plain_line(label), told, Markup().join(head), joined(body))


def _kind(cells: Sequence[str]) -> str:
    """Return the class of a column: "number" if at least half of its cells begin as numbers do."""
    return "number" if cells and 2 * sum(bool(NUMBER.match(each)) for each in cells) >= len(cells) else ""


def _cell(said: str, kind: str, *, is_name: bool) -> Markup:
    said = plain_line(said)
    if is_name:
        return Markup('<th scope="row">{}</th>').format(said)
    return Markup('<td class="{}">{}</td>').format(" ".join(filter(None, (kind, loud(said)))), said)


def loud(said: str) -> str:
    """Return the class of a word that a reader must see, by the end of the text; "" if it is a quiet one."""
    return next((kind for word, kind in LOUD.items() if said == word or said.endswith(f" {word}")), "")


def code(said: str) -> Markup:
    """Return lines of code as they are."""
    return Markup(
        '<div class="scroll" role="region" tabindex="0" aria-label="Code"><pre>{}</pre></div>'
    ).format(said)


def picture(alt: str, light: bytes, dark: bytes) -> Markup:
    """Return a drawn picture as SVG in both themes. The browser shows the one for its background."""
    return Markup(
        '<picture><source media="(prefers-color-scheme: dark)" srcset="{}"><img src="{}" alt="{}"></picture>'
    ).format(_embedded(dark), _embedded(light), alt)


def chart(alt: str, light: bytes, dark: bytes) -> Markup:
    """Return a wide picture that keeps legible letters on a narrow screen, and scrolls there by itself."""
    return Markup('<div class="scroll chart" role="region" tabindex="0" aria-label="Chart">{}</div>').format(
        picture(alt, light, dark)
    )


def _embedded(svg: bytes) -> str:
    """Return a picture as an address. Its text stays text, because base64 hides from compression what repeats."""
    return f"data:image/svg+xml,{quote(b' '.join(svg.split()), safe=_PLAIN)}"


# --- bars -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A part of a bar: its length in the unit of the chart, its colour's class, and figures to write into it.

    The first figure that fits is written.
    """

    size: float
    kind: str
    figures: Sequence[str] = ()


@dataclass(frozen=True)
class Bar:
    """A row of a chart: a bar of parts, or a reason why there is none."""

    name: str
    parts: Sequence[Part] = ()
    figure: str = ""  # beside the bar
    words: Sequence[tuple[str, str]] = field(default=())  # (clock or subject, what is said of it)
    interval: tuple[float, float] | None = None
    missing: str = ""


def bars(rows: Sequence[Bar], most: float, label: str) -> Markup:
    """Return a chart of bars, a row each, as a list. ``most`` is the length of the longest that fits.

    Its pictures have no width of their own, so they fit a phone. All figures stand beside them as text.
    """
    kind = "said" if any(row.words for row in rows) else "short"
    items = [_row(row, most) for row in rows]
    return Markup('<ol class="bars {}" aria-label="{}">{}</ol>').format(kind, label, joined(items))


def _row(row: Bar, most: float) -> Markup:
    said = [
        Markup('<span class="gain"><span class="clock">{}</span> <span class="{}">{}</span></span>').format(
            clock, loud(words.partition(" (")[0]), words
        )
        for clock, words in row.words
    ]
    shown = _svg(row, most) if row.parts else Markup('<span class="missing">{}</span>').format(row.missing)
    return Markup(
        '<li><span class="name">{}</span><span class="drawn">{}</span><span class="figure">{}</span>'
        '<span class="gains">{}</span></li>'
    ).format(row.name, shown, row.figure, Markup().join(said))


def _svg(row: Bar, most: float) -> Markup:
    made, at = [], 0.0
    for part in row.parts:
        share = 100 * max(part.size, 0.0) / most
        made.append(
            Markup('<rect class="{}" x="{}%" y="2" width="{}%" height="{}"/>').format(
                part.kind, _places(at), _places(share), THICK
            )
        )
        fitting = [each for each in part.figures if share >= MARGIN + CHARACTER * len(each)]
        if fitting:
            made.append(
                Markup('<text class="on {}" x="{}%" y="15">{}</text>').format(
                    part.kind, _places(at + share / 2), fitting[0]
                )
            )
        at += share
    made += _interval(row.interval, most) if row.interval else []
    return Markup('<svg width="100%" height="{}" aria-hidden="true" focusable="false">{}</svg>').format(
        HIGH, Markup().join(made)
    )


def _interval(interval: tuple[float, float], most: float) -> list[Markup]:
    """Return an interval under a bar as a line with two ends; an end beyond the chart has no stop."""
    left, right = (100 * end / most for end in interval)
    ends = [(left, right, TICKS, TICKS)] + [(x, x, TICKS - 3, TICKS + 3) for x in (left, right) if x <= 100]
    return [
        Markup('<line class="interval" x1="{}%" x2="{}%" y1="{}" y2="{}"/>').format(
            _places(min(a, 100.0)), _places(min(b, 100.0)), c, d
        )
        for a, b, c, d in ends
    ]


def _places(value: float) -> str:
    return f"{value:.3f}"


def legend(tones: Sequence[tuple[str, str]]) -> Markup:
    """Return the names of colours, each (class, words)."""
    made = [
        Markup('<li><svg width="14" height="14" aria-hidden="true"><rect class="{}" width="14" height="14"/>'
               "</svg> {}</li>").format(kind, words)
        for kind, words in tones
    ]  # fmt: skip
    return Markup('<ul class="legend">{}</ul>').format(Markup().join(made))


def tiles(found: Sequence[tuple[str, str, str]]) -> Markup:
    """Return large figures side by side, each (what it is, figure, what stands beside it)."""
    made = [
        Markup("<div><dt>{}</dt><dd><strong>{}</strong><span>{}</span></dd></div>").format(*each)
        for each in found
    ]
    return Markup('<dl class="tiles">{}</dl>').format(Markup().join(made))


def name(said: object) -> str:
    """Return a name from a file as one short line."""
    return plain(said)
