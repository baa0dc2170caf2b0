"""Numbers and text as tables, Markdown, charts and comparisons all write them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ladder.core.errors import one_line
from ladder.core.protocol import AMBIGUOUS, LESS_THAN

FAR = 1000.0  # digits of a factor beyond it say nothing
NO_TIME = "the time (--minutes) was used up"
MOST_OPEN = math.log(2)  # log ratio: a reader can act on "less than X%" up to a factor of two, 100%


def at_commits(commits: Sequence[str], dirty: bool | None) -> str:
    """Return "commit 0123456789 with changes". Many commits become the first and the last. Empty if unknown."""
    short = [commit[:10] for commit in commits]
    if len(short) > 3:
        short = [short[0], f"{len(short) - 2} more", short[-1]]
    said = f"commit{'s' if len(short) > 1 else ''} {', '.join(short)}" if short else ""
    return f"{said}{' with changes' if dirty else ''}" if said else ""


def format_bounds(interval: tuple[float, float] | None) -> str:
    """Return an interval of factors, fine enough for a quarter of a percent: 0.998-1.003x.

    It always has its ends. One beyond `FAR` is told in words: "0.200 to over 1000x".
    """
    if not interval:
        return ""
    near = all(1 / FAR <= each <= FAR for each in interval)
    return ("-" if near else " to ").join(map(_format_end, interval)) + "x"


def _format_end(value: float) -> str:
    if 1 / FAR <= value <= FAR:
        return f"{value:.3f}"
    return f"over {FAR:g}" if value > 1 else f"under {1 / FAR:g}"


def format_percent(share: float) -> str:
    """Return a share as percent with two significant digits."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def format_difference(logs: float) -> str:
    """Return a difference of logarithms as percent: 0.9 is 150%, 0.01 is 1%."""
    return format_percent(math.expm1(logs))


def choose_word(below: float, widest: float = MOST_OPEN) -> str:
    """Return the word for a difference inside the noise: `less than`, or `ambiguous` where that says too little.

    Args:
        below: log ratio, the far end of the interval.
        widest: the largest far end that says enough in its run. A noisy run states 390%, so `MOST_OPEN` limits it.
    """
    return LESS_THAN if below <= min(widest, MOST_OPEN) else AMBIGUOUS


def less_than(below: float) -> str:
    """Return "less than 0.41%" for a difference of at most this log ratio, rounded up to two digits."""
    share = 100 * math.expm1(below)
    unit = 10.0 ** (math.floor(math.log10(share)) - 1) if share > 0 else 1.0
    value = math.ceil(share / unit - 1e-6) * unit
    return f"less than {value:.2g}%" if value < 10 else f"less than {value:.0f}%"


def clean_line(text: object) -> str:
    """Return display text in one line: no control and direction characters, at most 200 characters."""
    kept = "".join(c if c.isprintable() else " " for c in str(text))
    return " ".join(kept.split())[:200]


def escape_controls(text: object) -> str:
    """Return text from outside (a file's name, a message) safe for a terminal: one line, controls spelled out.

    Control and direction characters and bytes that are no text become escapes: ESC is ``\\x1b``, a newline ``\\n``.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def format_ms(value: float | None) -> str:
    """Return milliseconds with four digits, below 10 with three: 1,312, 312.0, 27.31, 9.06."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 999.95 else f"{value:.1f}" if value >= 99.995 else f"{value:.2f}"


def format_factor(value: float | None) -> str:
    """Return a speedup: 1.18x."""
    return "" if value is None else f"{value:.2f}x"


def fine_factor(value: float | None) -> str:
    """Return a speedup, with a third decimal near 1: 1.18x, 1.006x."""
    return f"{value:.3f}x" if value and abs(math.log(value)) < 0.02 else format_factor(value)


def format_amount(value: float | None) -> str:
    """Return milliseconds, images a second or GiB with three digits: 312, 90.4, 9.06."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def round_number(value: float, digits: int) -> float:
    """Return a number rounded to that many decimals, which no format then writes as -0.0."""
    return round(value, digits) + 0.0


def format_count(number: int, word: str) -> str:
    """Return "1 round", "2 rounds", "1,024 subsets": a number of things whose plural takes an s."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def as_number(value: object, zero: bool = False) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value) if value > 0 or (zero and value == 0) else None
    return None


LONGEST_TEXT = 96

TEXT = re.compile(rf"[A-Za-z0-9 ._()+:@,/'#=-]{{1,{LONGEST_TEXT}}}")

_SPELLED = str.maketrans('[]{}<>"`;|\\×µ!?*', "()()()'',//xu..x") | {37: " percent", 38: "+"}


def make_slug(text: str) -> str:
    """Return a file-name part of [a-z0-9._-]: 'Intel(R) Xeon(R) CPU @ 2.20GHz' -> 'intel-xeon-cpu-2.20ghz'."""
    text = re.sub(r"\((r|tm|c)\)", " ", text.lower())
    return re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9._]+", "-", text)).strip("-._") or "unknown"


def format_stamp(time: str) -> str:
    """Return a UTC time as a file-name part: 2026-11-21T10:15:00+00:00 -> 20261121T101500Z."""
    return re.sub(r"[-:]|\.\d+|\+00:00$", "", time).rstrip("Z") + "Z"


def last_line(said: str, otherwise: str = "no message") -> str:
    """Return the last line of what a program said, fit to be published; `otherwise` if it said nothing."""
    lines = [line for line in said.splitlines() if line.strip()]
    return one_line(lines[-1] if lines else otherwise)


def make_display(text: str) -> str:
    """Return `text` as a result may hold it: at most 96 characters, each a letter, digit or one of ` ._()+:@,/'#=-`.

    An exception's message becomes a reason this way: "Triton Error [CUDA]" -> "Triton Error (CUDA)".
    """
    text = re.sub(r"[^A-Za-z0-9 ._()+:@,/'#=-]", "-", " ".join(text.split()).translate(_SPELLED))
    return (text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3].rstrip() + "...") or "-"


def fit_texts(data: Any) -> Any:
    """Return a copy of plain data in which `ladder validate` accepts every text. Keys are left alone."""
    if isinstance(data, str):
        return data if TEXT.fullmatch(data) else make_display(data)
    if isinstance(data, dict):
        return {key: fit_texts(value) for key, value in data.items()}
    return [fit_texts(value) for value in data] if isinstance(data, list | tuple) else data


def escape_markdown(text: str) -> str:
    """Return text that Markdown and HTML show unchanged, also in a table cell and behind a bullet."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", text)
    return re.sub(r"(?i)(https?|www)([:.])", r"\1&#8203;\2", text)  # no autolinks


def align_rows(table: Sequence[Sequence[str]], words: Collection[int] | None = None) -> list[str]:
    """Return the rows of a table as lines of a terminal.

    The columns `words` go to the left, the others to the right. Without `words` all go to the left.
    """
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    left = range(len(wide)) if words is None else words
    return [
        "  ".join(
            row[k].ljust(room) if k in left else row[k].rjust(room) for k, room in enumerate(wide)
        ).rstrip()
        for row in table
    ]


def pipe_rows(
    table: Sequence[Sequence[str]],
    words: Collection[int] = (0,),
    show: Callable[[str], str] = escape_markdown,
) -> list[str]:
    """Return the rows of a table, the first its head, as lines of Markdown.

    The columns `words` go to the left, the others to the right. `show` makes the cells safe.
    """
    head, *rows = (f"| {' | '.join(map(show, row))} |" for row in table)
    rule = "".join("|---" if k in words else "|---:" for k in range(len(table[0])))
    return [head, f"{rule}|", *rows]
