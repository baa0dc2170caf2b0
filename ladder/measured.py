"""What a measured number depends on: the sources of what is timed and of what times it, one digest for each part.

Commits that differ in documents, charts, verdicts or tests alone measure one program in one way, so rounds of both may
stand in one result (`ladder.merging`, `ladder.resuming`). What only judges is not listed: verdicts, noise floors and
tables are computed anew from the rounds, and a rung that shows other receipts or another parity is refused for that.
Neither is what a result says itself: recipes, settings, workload, protocol and software are compared value by value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ladder import sources
from ladder.files import COMPILED, below, digest
from ladder.pool import ROOT

KEY = "measured_code"
DIGITS = 16
# The worker with all that it loads before it has been timed; who starts it, watches it and writes down what it says;
# and who makes the images that its loaders decode.
ENGINE = (
    *("worker", "asides", "capturing", "errors", "gpustate", "nvml", "threads"),
    *("measure", "sidebyside", "visiting", "pool", "record"),
    *("images", "photographs", "userimages"),
)
Result = dict[str, Any]


def digests(root: Path = ROOT, code: Path | None = None, also: tuple[str, ...] = ()) -> dict[str, str]:
    """A digest of each part; `code` is where the measured packages come from if not from `root`.

    `also`: modules of `ladder` that are part of the engine of a measurement other than a run.
    """
    ladder = root / "ladder"
    rungs = [*below(ladder / "rungs", (".py",)), *below(ladder / "ladders", (".yaml",))]
    engine = [ladder / f"{name}.py" for name in (*ENGINE, *also)]
    packages = {
        name: below((code or root) / name, (".py", *COMPILED)) for name in ("kernels", "stylegan_lite")
    }
    made = {name: digest(code or root, files) for name, files in packages.items()}
    made |= {"rungs": digest(root, rungs), "engine": digest(root, engine)}
    return {part: value[:DIGITS] for part, value in made.items()}


def differences(first: Result, other: Result) -> list[str]:
    """Where the two may have measured other code, each with both values; by commit unless both know their digests."""
    commits = [sources.commits(each) for each in (first, other)]
    said = " and ".join(", ".join(each) or "None" for each in commits)
    at = [] if sorted(commits[0]) == sorted(commits[1]) else [f"commit: {said}"]
    if not known(first, other):
        return at
    parts = sorted({*first[KEY], *other[KEY]})
    pairs = [(part, first[KEY].get(part), other[KEY].get(part)) for part in parts]
    found = [f"{KEY}.{part}: {mine} and {theirs}" for part, mine, theirs in pairs if mine != theirs]
    return found and [*found, *at]


def known(*results: Result) -> bool:
    """Whether each of the results says which code it measured, committed or not."""
    return all(each.get(KEY) for each in results)


def same(first: Result, other: Result) -> bool:
    """Whether the two measured the same code, as far as they tell."""
    clean = known(first, other) or first.get("dirty") == other.get("dirty")
    return clean and not differences(first, other)


def contradiction(result: Result) -> str | None:
    """What is wrong with the commits that a result names, in one line, or None."""
    commits = result.get("commits")
    if not commits:
        return None
    if len(set(commits)) < len(commits) or result["commit"] not in (None, *commits):
        return "commits: not several, the result's own among them"
    return None if known(result) else f"commits: several, and no {KEY} says that they are the same"
