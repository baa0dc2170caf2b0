"""What a measured number depends on: the sources of what is timed and of what times it, one digest for each part.

Commits that differ in documents, charts, verdicts or tests alone measure one program in one way, so rounds of both
may stand in one result (`ladder.results.combine.merging`, `ladder.results.combine.resuming`). What only judges is not
listed: verdicts, noise floors and tables are computed anew from the rounds, and a rung that shows other receipts or
another parity is refused for that. Only `change` and `needs` of a rung's file are hashed, and only the order of a
ladder's, so receipts and explanations may be corrected. Recipes, settings, workload, protocol and software are in the
result itself; they are compared value by value.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ladder.base.files import COMPILED, below, digest
from ladder.base.paths import ROOT
from ladder.results import sources
from ladder.results.values import CODE_DIGITS

KEY = "measured_code"
DIGITS = CODE_DIGITS
MAKES_A_RUNG = ("change", "needs")
# A digest, and that of the same code after a change of words alone. Each may have followed another.
EARLIER = {
    # Until 23 November 2026 every byte of a rung's and a ladder's file counted: such a digest, and that of those files.
    "97cbb728d8b30849": "a23c60d086c20765",
    # On 27 November 2026 messages changed, and what the server of workers says of one that has ended.
    "5c74667a07b6078c": "9b63bdc1ab2184b2",
    # On 28 November 2026 what the ops and the training step refuse changed, twice,
    "65ad0c29e1ebee4b": "013d5d458906a9a2",
    "013d5d458906a9a2": "acfb2f1d07c156e6",
    "c23d2a7787912498": "1001c2644c2e03b3",
    "1001c2644c2e03b3": "172512943082338b",
    # and after how long a stopped rank is ended.
    "9b63bdc1ab2184b2": "d3579ebf82383b1b",
}
# The worker with all that it loads before it has been timed; who starts it, watches it and writes down what it says;
# and who makes the images that its loaders decode.
ENGINE = (
    *("engine/worker", "engine/timed_rung", "engine/asides", "engine/capturing", "engine/joining"),
    *("base/errors", "base/paths", "base/protocol"),
    *("machine/gpu_state", "machine/nvml", "machine/threads", "machine/neighbours"),
    *("engine/run", "engine/run_state", "engine/lanes", "engine/visit", "engine/pool", "results/record"),
    *(
        "engine/channel",
        "engine/forkserver",
        "engine/rounds",
        "engine/outcomes",
        "engine/profiling",
        "engine/gpu_time",
        "machine/stillness",
    ),
    *(
        "images/prepare",
        "images/store",
        "images/photographs",
        "images/user",
        "images/colour",
        "images/damage",
    ),
)
Head = Mapping[str, Any]  # of a result of any kind, as its file has it (`ladder.results.types.head`)


def digests(root: Path = ROOT, code: Path | None = None, also: tuple[str, ...] = ()) -> dict[str, str]:
    """Return a digest of each part; `code` is where the measured packages come from if not from `root`.

    `also`: modules of `ladder` that are part of the engine of a measurement other than a run.
    """
    ladder = root / "ladder"
    engine = [ladder / f"{name}.py" for name in (*ENGINE, *also)]
    packages = {
        name: below((code or root) / name, (".py", *COMPILED)) for name in ("kernels", "stylegan_lite")
    }
    made = {name: digest(code or root, files) for name, files in packages.items()}
    made |= {"rungs": _rungs(ladder), "engine": digest(root, engine)}
    return {part: value[:DIGITS] for part, value in made.items()}


def _rungs(ladder: Path) -> str:
    """Return the digest of every rung's change and needs, and of the order of each ladder."""
    rungs = {path.stem: _made_of(path) for path in below(ladder / "rungs", (".py",))}
    orders = {path.stem: _order(path) for path in below(ladder / "ladders", (".yaml",))}
    return hashlib.sha256(json.dumps([rungs, orders], sort_keys=True).encode()).hexdigest()


def _made_of(path: Path) -> dict[str, str]:
    """Return the source of a rung's change and needs, and of what these name in its file.

    It is read, because another checkout's cannot be imported.
    """
    text = path.read_text()
    defined: dict[str, ast.stmt] = {}
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [getattr(node, "name", None), *(getattr(each, "id", None) for each in targets)]
        defined |= {name: node for name in names if name}
    found: dict[str, str] = {}
    waiting = [name for name in MAKES_A_RUNG if name in defined]
    while waiting:
        if (name := waiting.pop()) not in found:
            found[name] = ast.get_source_segment(text, defined[name]) or ""
            named = {each.id for each in ast.walk(defined[name]) if isinstance(each, ast.Name)}
            waiting += sorted(named & defined.keys())
    return found


def _order(path: Path) -> list[str]:
    """Return a ladder's rungs, then its rival."""
    ladder = yaml.safe_load(path.read_bytes())
    rungs = [next(iter(each)) if isinstance(each, dict) else each for each in ladder["rungs"]]
    return [str(each) for each in (*rungs, ladder.get("rival"))]


def differences(first: Head, other: Head) -> list[str]:
    """Return where the two may have measured other code, each with both values.

    They are told by commit unless both know their digests.
    """
    commits = [sources.commits(each) for each in (first, other)]
    said = " and ".join(", ".join(each) or "None" for each in commits)
    at = [] if sorted(commits[0]) == sorted(commits[1]) else [f"commit: {said}"]
    if not known(first, other):
        return at
    parts = sorted({*first[KEY], *other[KEY]})
    pairs = [(part, first[KEY].get(part), other[KEY].get(part)) for part in parts]
    found = [
        f"{KEY}.{part}: {mine} and {theirs}"
        for part, mine, theirs in pairs
        if _newest(mine) != _newest(theirs)
    ]
    return found and [*found, *at]


def _newest(found: str | None) -> str | None:
    """Return the digest that the same code has today."""
    while found in EARLIER:
        found = EARLIER[found]
    return found


def known(*results: Head) -> bool:
    """Return whether each of the results says which code it measured, committed or not."""
    return all(each.get(KEY) for each in results)


def same(first: Head, other: Head) -> bool:
    """Return whether the two measured the same code, as far as they tell."""
    clean = known(first, other) or first.get("dirty") == other.get("dirty")
    return clean and not differences(first, other)


def contradiction(result: Head) -> str | None:
    """Return what is wrong with the commits that a result names, in one line, or None."""
    commits = result.get("commits")
    if not commits:
        return None
    if len(set(commits)) < len(commits) or result["commit"] not in (None, *commits):
        return "commits: not several, the result's own among them"
    return None if known(result) else f"commits: several, and no {KEY} says that they are the same"
