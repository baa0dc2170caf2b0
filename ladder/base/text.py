"""Numbers and display text in words: what table, Markdown, chart and comparison write alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

WIDEST = 10.0  # times as high at its upper end: two rounds of a noisy rung say nothing, in nine digits
NO_TIME = "the time (--minutes) was used up"


def between(interval: tuple[float, float] | None) -> str:
    """An interval of factors, fine enough for a quarter of a percent: 0.998-1.003x; "any" where it excludes nothing."""
    if not interval:
        return ""
    return "any" if interval[1] > WIDEST * interval[0] else f"{interval[0]:.3f}-{interval[1]:.3f}x"


def at_commits(commits: Sequence[str], dirty: bool | None) -> str:
    """Where code was: "commit 0123456789 with changes"; of many commits the first and the last. Empty if unknown."""
    short = [commit[:10] for commit in commits]
    if len(short) > 3:
        short = [short[0], f"{len(short) - 2} more", short[-1]]
    said = f"commit{'s' if len(short) > 1 else ''} {', '.join(short)}" if short else ""
    return f"{said}{' with changes' if dirty else ''}" if said else ""


def percent(share: float) -> str:
    """A share as percent with two digits that mean something."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def plain(text: object) -> str:
    """Display text in one line: control and direction characters gone, at most 200 characters."""
    kept = "".join(c if c.isprintable() else " " for c in str(text))
    return " ".join(kept.split())[:200]


def printable(text: object) -> str:
    """Make text from outside (a file's name, a message) safe for a terminal: one line, all of it, controls spelled out.

    Control and direction characters and bytes that are no text become escapes: ESC is ``\\x1b``, a newline ``\\n``.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def ms(value: float | None) -> str:
    """Milliseconds with the digits that mean something: 312, 90.4, 27.31."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def factor(value: float | None) -> str:
    """A speedup: 1.18x."""
    return "" if value is None else f"{value:.2f}x"


def amount(value: float | None) -> str:
    """Images a second, GiB: three digits."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def pair(value: object) -> tuple[float, float] | None:
    if isinstance(value, list) and len(value) == 2 and all(number(x) for x in value):
        return float(value[0]), float(value[1])
    return None


def number(value: object, zero: bool = False) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value) if value > 0 or (zero and value == 0) else None
    return None
