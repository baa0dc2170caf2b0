"""Marked regions of the documents, filled from committed results.

A region is `<!-- table: NAME ARGUMENT... -->`, lines that are replaced, and `<!-- end -->`. NAME is a function of
`TABLES`. Nothing but these regions is changed.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable
from pathlib import Path

from ladder.base import files
from ladder.base.errors import UserError
from ladder.publish.pages import explained, ladders, machines, studies, targets
from ladder.publish.pages.committed import Committed, checked_out

TABLES: dict[str, Callable[..., str]] = {
    **ladders.TABLES,
    **explained.TABLES,
    **machines.TABLES,
    **studies.TABLES,
    **targets.TABLES,
}
OPENING = re.compile(r"^<!-- table: ([^>]*?) -->$", re.MULTILINE)
REGION = re.compile(r"^(<!-- table: ([^>]*?) -->\n)(.*?)^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
HERE = "(@/"  # a link's beginning, for the folder of the checkout


def list_documents(root: Path) -> list[Path]:
    """Return the documents that may hold regions. Pages that are generated whole hold none."""
    written = [path for path in sorted((root / "docs").glob("*.md")) if not machines.is_made(path)]
    return [root / "README.md", *written]


def fill_documents(root: Path) -> list[Path]:
    """Fill the documents of a checkout and return the changed ones. Raises UserError before a file is written."""
    changed = {}
    with checked_out(root) as committed:
        for path in list_documents(root):
            text = path.read_text(encoding="utf-8")
            if (new := fill_text(text, path.relative_to(root), committed)) != text:
                changed[path] = new
        made = machines.render_pages(committed)
    for path, text in changed.items():
        files.write(path, text)
    return [*changed, *machines.write_pages(root, made)]


def fill_text(text: str, page: Path, committed: Committed) -> str:
    """Return a document with its regions filled; `page` is its path below the checkout.

    Raises:
        UserError: an unknown table, a wrong argument, a missing result or a region without end, with page and line.
    """

    def region(found: re.Match[str]) -> str:
        try:
            body = render_table(found[2].split(), committed)
        except UserError as error:
            raise UserError(f"{page}:{_line(text, found.start())}: {error}") from None
        up = "(" + "../" * (len(page.parts) - 1)
        return f"{found[1]}{body.replace(HERE, up).rstrip()}\n{found[4]}"

    whole = {found.start() for found in REGION.finditer(text) if not OPENING.search(found[3])}
    for found in OPENING.finditer(text):
        if found.start() not in whole:
            line = _line(text, found.start())
            raise UserError(f"{page}:{line}: the region has no line `<!-- end -->`")
    return REGION.sub(region, text)


def render_table(words: list[str], committed: Committed) -> str:
    """Return the Markdown of one table: its name, then its arguments. Raises UserError."""
    name, *arguments = words or [""]
    if name not in TABLES:
        near = difflib.get_close_matches(name, TABLES, 1)
        raise UserError(f"no table {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    wanted = list(inspect.signature(TABLES[name]).parameters)[1:]
    if len(arguments) != len(wanted):
        raise UserError(f"table {name!r} takes {' '.join(wanted).upper() or 'no argument'}")
    return TABLES[name](committed, *arguments)


def _line(text: str, start: int) -> int:
    return text.count("\n", 0, start) + 1
