"""Make the generated parts of the documents: `python -m ladder.publish.pages`, which `make docs` runs.

A document has marked regions: `<!-- table: NAME ARGUMENT... -->`, lines that are replaced, and `<!-- end -->`. NAME is
a function of `TABLES`. Nothing else of a document is changed. The pages and pictures beside results are made anew.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ladder.core import files
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.publish import gallery
from ladder.publish.pages import machines, tables
from ladder.publish.pages.committed import Committed, check_out
from ladder.studies import frame

TABLES: dict[str, Callable[..., str]] = {
    "ablated": tables.render_files("ablation", slice(2)),  # without stored runs
    "recommended": tables.render_advice,
    "agreement": tables.render_agreement,
    "cards": tables.render_cards,
    "explained": tables.render_explanation,
    "gpus": tables.render_gpus,
    "kernels": tables.render_kernels,
    "machines": machines.render_machines,
    "mapped": tables.render_files("map", slice(-1)),  # without the times of cells
    "passes": tables.render_passes,
    "rungs": tables.render_run,
    "targets": tables.render_targets,
    "upstream": tables.render_files("upstream", slice(2)),
}
OPENING = re.compile(r"^<!-- table: ([^>]*?) -->$", re.MULTILINE)
REGION = re.compile(r"^(<!-- table: ([^>]*?) -->\n)(.*?)^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
HERE = "(@/"  # a link's beginning, for the folder of the checkout


def main(arguments: list[str]) -> int:
    """Fill every document, make the pages beside results, and print the names of the changed files.

    Return the exit status: 0, or 2 with one line.
    """
    try:
        if arguments:
            raise UserError("this command takes no arguments: tables come from all committed results")
        for path in [*fill_documents(ROOT), *redraw_pages(ROOT)]:
            print(path.relative_to(ROOT))
    except UserError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 2
    return 0


def list_documents(root: Path) -> list[Path]:
    """Return the documents that may hold regions. Pages that are generated whole hold none."""
    paths = sorted((root / "docs").glob("*.md"))
    return [root / "README.md", *(path for path in paths if not machines.is_generated(path))]


def fill_documents(root: Path) -> list[Path]:
    """Fill the documents of a checkout and return the changed ones. Raises UserError before a file is written."""
    changed = {}
    with check_out(root) as committed:
        for path in list_documents(root):
            text = path.read_text(encoding="utf-8")
            if (new := fill_text(text, path.relative_to(root), committed)) != text:
                changed[path] = new
        pages = machines.render_pages(committed)
    for path, text in changed.items():
        files.write_file(path, text)
    return [*changed, *machines.write_pages(root, pages)]


def fill_text(text: str, page: Path, committed: Committed) -> str:
    """Return a document with its regions filled; `page` is its path below the checkout.

    Raises:
        UserError: an unknown table, a wrong argument, a missing result or a region without end, with page and line.
    """

    def fail(start: int, problem: object) -> UserError:
        return UserError(f"{page}:{text.count(chr(10), 0, start) + 1}: {problem}")

    def fill(region: re.Match[str]) -> str:
        name, *arguments = region[2].split() or [""]
        if name not in TABLES:
            near = difflib.get_close_matches(name, TABLES, 1)
            raise fail(
                region.start(), f"no table {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            )
        try:
            inspect.signature(TABLES[name]).bind(committed, *arguments)
        except TypeError as error:
            raise fail(region.start(), f"table {name!r}: {error}") from None
        try:
            body = TABLES[name](committed, *arguments)
        except UserError as error:
            raise fail(region.start(), error) from None
        up = "(" + "../" * (len(page.parts) - 1)
        return f"{region[1]}{body.replace(HERE, up).rstrip()}\n{region[4]}"

    whole = {region.start() for region in REGION.finditer(text) if not OPENING.search(region[3])}
    for opening in OPENING.finditer(text):
        if opening.start() not in whole:
            raise fail(opening.start(), "the region has no line `<!-- end -->`")
    return REGION.sub(fill, text)


def redraw_pages(root: Path) -> list[Path]:
    """Write the pages and pictures beside results that differ from this commit's, and return them.

    A command writes them once, when it ends; else they would keep the words of that day's code. No new file is made.

    Raises:
        UserError: git cannot name the results, or a result is missing or damaged.
    """
    changed = []
    for folder in sorted({study.folder for study in frame.load_studies().values()}):
        for source in gallery.list_tracked(root, f"results/{folder}"):
            for path, content in render_pages(source):
                if path.is_file() and path.read_bytes() != content:
                    files.write_file(path, content)
                    changed.append(path)
    return changed


def render_pages(source: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the page and the pictures of a result with their paths; nothing for a file of another kind."""
    if (opened := frame.open_stored(source)) is not None:
        study, file = opened
        yield source.with_suffix(".md"), frame.render_page(study, file).encode()
        for kind in ("png", "svg"):
            if (picture := study.draw(file, kind)) is not None:
                yield source.with_suffix(f".{kind}"), picture


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
