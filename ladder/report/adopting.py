"""The plain-PyTorch form of rungs: the sections of docs/adopt.md that are named by them, and what these call.

The page is the one source.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ladder.base.paths import ROOT

PAGE = "docs/adopt.md"
_HEADING = re.compile(r"^### (.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```py\n(.+?)^```", re.MULTILINE | re.DOTALL)
_DEFINED = re.compile(r"^(?:def (\w+)|(\w+) =)", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """A section of the page: its title, the rungs that the title has in backticks, its anchor, its blocks of code."""

    title: str
    rungs: tuple[str, ...]
    anchor: str
    blocks: tuple[str, ...]


def read(page: str) -> list[Section]:
    """Return the page's sections with headings of the third level, in order."""
    starts = [*_HEADING.finditer(page)]
    ends = [re.search(r"^##", page[each.end() :], re.MULTILINE) for each in starts]
    return [
        Section(
            start[1],
            tuple(re.findall(r"`(\w+)`", start[1])),
            re.sub(r"[^\w\- ]", "", start[1].lower()).replace(" ", "-"),
            tuple(_BLOCK.findall(page[start.end() : start.end() + end.start() if end else len(page)])),
        )
        for start, end in zip(starts, ends, strict=True)
    ]


@functools.cache
def sections() -> list[Section]:
    """Return the sections of this checkout's page."""
    return read((ROOT / PAGE).read_text(encoding="utf-8"))


def anchors(rungs: Sequence[str]) -> dict[str, str]:
    """Return the page and anchor of each of these rungs that has a plain form."""
    found = {name: each.anchor for each in sections() for name in each.rungs}
    return {name: f"{PAGE}#{found[name]}" for name in rungs if name in found}


def lines(rungs: Sequence[str]) -> list[str]:
    """Return a line for a terminal that names the page, or none."""
    found = [*anchors(rungs)]
    return [f"in a loop of your own: {PAGE} has {', '.join(found)}"] if found else []


def markdown(rungs: Sequence[str]) -> list[str]:
    """Return the lines of the code that these rungs are in plain PyTorch, in the page's order.

    A section of no rung is among them if their code uses a name that it defines.
    """
    kept = [each for each in sections() if set(each.rungs) & set(rungs)]
    used = set(re.findall(r"\w+", "\n".join(block for each in kept for block in each.blocks)))
    made: list[str] = []
    for each in sections():
        helps = not each.rungs and used & {a or b for a, b in _DEFINED.findall("\n".join(each.blocks))}
        if each.blocks and (each in kept or helps):
            named = ", ".join(f"`{name}`" for name in each.rungs if name in rungs)
            made += ["", f"In a loop of your own, {named or each.title} ({PAGE}#{each.anchor}):"]
            made += [line for block in each.blocks for line in ("", "```python", block.rstrip("\n"), "```")]
    return made
