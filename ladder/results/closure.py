"""Which files of this package a module is made of: its own, and those of all that it imports, wherever it does."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = "ladder"


def files(root: Path, modules: Iterable[str]) -> list[Path]:
    """The files of the package in `root` that these modules need, in order; imports inside functions count.

    A name that is made at run time is not seen: who imports so (rungs, by their name) names the modules here.
    """
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _file(root, name)
        if name not in found and path is not None:
            found[name] = path
            waiting += [name.rpartition(".")[0], *_imported(path, name)]
    return sorted(found.values())


def _file(root: Path, name: str) -> Path | None:
    if name.partition(".")[0] != PACKAGE:
        return None
    whole = root.joinpath(*name.split("."))
    places = (whole.with_suffix(".py"), whole / "__init__.py")
    return next((path for path in places if path.is_file()), None)


def _imported(path: Path, name: str) -> Iterator[str]:
    """Every name that may be a module, as the file spells it: `from a import b` is `a` and perhaps `a.b`."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            there = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield there
            yield from (f"{there}.{each.name}" for each in node.names)
