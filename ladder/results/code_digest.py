"""What a measured number depends on: a digest of what is timed, for each part, and the number of what times it.

Commits that differ in documents, charts, verdicts or tests alone measure one program in one way, so rounds of both
may stand in one result (`ladder.results.combine.merging`, `ladder.results.combine.resuming`). What only judges is not
listed: verdicts, noise floors and tables are computed anew from the rounds, and a rung that shows other receipts or
another parity is refused for that. Only `change` and `needs` of a rung's file are hashed, and only the order of a
ladder's, so receipts and explanations may be corrected. Recipes, settings, workload, protocol and software are in the
result itself; they are compared value by value. Python counts by its tokens without comments, docstrings and imports.
Results of earlier versions hold digests of files, which are those of no code of today.
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

import yaml

from ladder.core.files import COMPILED, digest_sources, list_below, significant_tokens
from ladder.core.paths import ROOT
from ladder.results import sources
from ladder.results.file import Header

KEY = "measured_code"
DIGITS = 16  # of a digest
MAKES_A_RUNG = ("change", "needs")
# The engine starts, times and watches a rung or a case, and writes down what it observes. Raise its number after a
# change by which a time may differ: results of two numbers are not merged, and none is resumed with another.
# `tests/results/test_engine.py` lists its modules and fails when one has changed.
ENGINE = 1


def digests(root: Path = ROOT, code: Path | None = None) -> dict[str, str]:
    """Return a digest of each part of the measured code, and the engine's number.

    `code` is where the measured packages come from if not from `root`.
    """
    parts = {
        name: digest_sources(code or root, _sources((code or root) / name), by_tokens=True)
        for name in ("kernels", "stylegan_lite")
    }
    parts = {part: value[:DIGITS] for part, value in parts.items()}
    return parts | {"rungs": digest_rungs(root), "engine": str(ENGINE)}


def _sources(package: Path) -> list[Path]:
    """Return a package's sources without its tests."""
    return [path for path in list_below(package, (".py", *COMPILED)) if not path.name.startswith("test_")]


def digest_rungs(root: Path = ROOT) -> str:
    """Return the digest of every rung's change and needs, and of the order of each ladder."""
    ladder = root / "ladder"
    rungs = {path.stem: _tokens_of(path) for path in list_below(ladder / "rungs", (".py",))}
    orders = {path.stem: _order(path) for path in list_below(ladder / "ladders", (".yaml",))}
    return hashlib.sha256(json.dumps([rungs, orders], sort_keys=True).encode()).hexdigest()[:DIGITS]


def _tokens_of(path: Path) -> dict[str, list[str]]:
    """Return the tokens of a rung's change and needs, and of what these name in its file.

    It is read, because another checkout's cannot be imported.
    """
    text = path.read_text()
    defined: dict[str, ast.stmt] = {}
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [getattr(node, "name", None), *(getattr(each, "id", None) for each in targets)]
        defined |= {name: node for name in names if name}
    found: dict[str, list[str]] = {}
    waiting = [name for name in MAKES_A_RUNG if name in defined]
    while waiting:
        if (name := waiting.pop()) not in found:
            found[name] = significant_tokens(ast.get_source_segment(text, defined[name]) or "")
            named = {each.id for each in ast.walk(defined[name]) if isinstance(each, ast.Name)}
            waiting += sorted(named & defined.keys())
    return found


def _order(path: Path) -> list[str]:
    """Return a ladder's rungs, then its rival."""
    ladder = yaml.safe_load(path.read_bytes())
    rungs = [next(iter(each)) if isinstance(each, dict) else each for each in ladder["rungs"]]
    return [str(each) for each in (*rungs, ladder.get("rival"))]


def list_differences(first: Header, other: Header) -> list[str]:
    """Return where the two may have measured other code, each with both values.

    They are told apart by commit unless both know their digests.
    """
    if not is_known(first, other):
        commits = [sources.commits(each) for each in (first, other)]
        both = " and ".join(", ".join(each) or "None" for each in commits)
        return [] if sorted(commits[0]) == sorted(commits[1]) else [f"commit: {both}"]
    one, two = first.measured_code or {}, other.measured_code or {}
    return [
        f"{KEY}.{part}: {one.get(part)} and {two.get(part)}"
        for part in sorted({*one, *two})
        if one.get(part) != two.get(part)
    ]


def is_known(*headers: Header) -> bool:
    """Return whether each of the results says which code it measured, committed or not."""
    return all(each.measured_code for each in headers)


def is_same(first: Header, other: Header) -> bool:
    """Return whether the two measured the same code, as far as they say."""
    return (is_known(first, other) or first.dirty == other.dirty) and not list_differences(first, other)
