"""The pages and pictures beside the results of other commands, as this commit makes them from the same numbers.

A command writes them once, when it ends. Without this they would keep the words of that day's code.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ladder.base import files
from ladder.publish import gallery
from ladder.results import store as results
from ladder.studies import frame


def redraw_pages(root: Path) -> list[Path]:
    """Write the pages and pictures that differ from this commit's, and return them. New files are not made.

    Raises:
        UserError: git cannot name the results, or a result is missing or damaged.
    """
    changed = []
    for kind in (study.folder for study in frame.load_studies().values()):
        for source in gallery.list_tracked(root, f"results/{kind}"):
            for path, content in render_pages(source):
                if path.is_file() and path.read_bytes() != content:
                    files.write(path, content)
                    changed.append(path)
    return changed


def render_pages(source: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the page and the pictures of a result with their paths; nothing for a file of another kind."""
    data = results.read(source)
    if isinstance(data, dict) and (raw := frame.load_studies().get(str(data.get("kind")))) is not None:
        file = frame.decode_file(raw, data)
        yield source.with_suffix(".md"), frame.render_page(raw, file).encode()
        for kind in ("png", "svg"):
            if (picture := raw.draw(file, kind)) is not None:
                yield source.with_suffix(f".{kind}"), picture
