"""Pieces of generated Markdown: tables, links, intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ladder.base.text import escaped, ms, piped


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1, last: int = 0) -> str:
    """Return a Markdown table. The first `words` and the last `last` columns are text, those between are numbers."""
    texts = [*range(words), *range(len(head) - last, len(head))]
    return "\n".join(piped([head, *rows], texts, show=str)) + "\n"


def link(words: str, path: str) -> str:
    """Return a link to a file below `results/`."""
    return f"[{words}](@/results/{path})"


def absent(command: str) -> str:
    """Return the line in place of a table that no whole result fills yet."""
    return f"*No complete run yet: `{command}`.*\n"


def span(interval: Sequence[float] | None, form: str = "") -> str:
    """Return `LOW-HIGH` in a format, as milliseconds without one; empty where there is no interval."""
    if not interval:
        return ""
    low, high = (format(each, form) if form else ms(each) for each in interval)
    return f"{low}-{high}"


def under(*parts: str) -> str:
    """Return the line below a table: where it comes from, and why not to quote it."""
    return "\n*" + " · ".join(part for part in parts if part) + "*\n"


def text(words: str) -> str:
    """Return text of a result for a table's cell."""
    return escaped(words)
