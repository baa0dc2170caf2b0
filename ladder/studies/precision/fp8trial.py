"""What FP8 comes to under parity: `python -m ladder.fp8trial` writes results/precision/<machine>-fp8.json and .md.

A step in BF16 and the same with fully connected layers in FP8 are compared with FP64, by the budget of BF16; beside it
stands what PyTorch offers in FP8 at all. Nothing is timed. `ladder precision` does the same on a GPU, and times it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ladder.base import git, text
from ladder.base.files import write
from ladder.base.paths import ROOT
from ladder.machine import system
from ladder.parity import check as parity
from ladder.plan import catalog
from ladder.report import checks
from ladder.results import store as results
from ladder.results.types import Parity, build
from ladder.studies.precision import fp8 as fp8probe
from stylegan_lite import make_step
from stylegan_lite.config import Workload

OUT = ROOT / "results" / "precision"
RECIPES = {
    "BF16": {"precision": "bf16"},
    "BF16, fully connected layers in FP8": {"precision": "bf16", "dense": "fp8"},
}


def run(
    name: str, fields: dict[str, Any], device: str, out: Path = OUT, cache: Path | None = None
) -> dict[str, Any]:
    """Both recipes on one workload; what was found, written."""
    begin, facts = time.monotonic(), system.facts(device)
    commit, dirty = git.commit_of(ROOT)
    found: dict[str, Any] = {
        "schema": 1,
        "what": "fp8-trial",
        "machine": facts,
        "commit": commit,
        "dirty": dirty,
    }
    found |= {
        "workload": {"name": name, **fields, "data": None},
        "offers": fp8probe.ask(device),
        "recipes": {},
    }
    for title, recipe in RECIPES.items():
        step = make_step(Workload.from_dict(fields).to_dict(), recipe, device=device)
        step.keep_gradients = True
        step.prepare()
        seen = parity.check(step, cache=cache)
        share = checks.parity_share(build(Parity, seen))
        found["recipes"][title] = {"verdict": seen["verdict"], "reason": seen["reason"], "share": share}
    found["seconds"] = round(time.monotonic() - begin, 1)
    path = results.place(out / f"{text.slug(facts['name'])}-fp8.json", found)
    results.write(path, text.fit(found))
    write(path.with_suffix(".md"), markdown(text.fit(found)))
    return found


def markdown(found: dict[str, Any]) -> str:
    facts = found["machine"]
    commit = results.commit_words(found)
    lines = [
        f"# FP8 under parity on {facts['gpu'] or facts['cpu']}",
        "",
        f"Workload {found['workload']['name']}, judged by the budget of BF16. PyTorch {facts['torch']},"
        f" commit {commit}, {found['seconds']:.0f} s; nothing was timed.",
        "",
        "| recipe | parity | of its budget | worst |",
        "|---|---|---:|---|",
    ]
    for title, row in found["recipes"].items():
        share = "" if row["share"] is None else f"{row['share']:.2f}"
        lines.append(f"| {title} | {row['verdict']} | {share} | {row['reason'] or ''} |")
    return "\n".join([*lines, "", *(f"- {what}: {said}" for what, said in found["offers"].items())]) + "\n"


def main() -> int:
    device = system.choose_device(None)
    name, fields = catalog.load_workload("tiny" if device == "cpu" else "article")
    found = run(name, fields, device)
    print(markdown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
