"""What the nightly run does with the screened history: measures candidates, and writes one issue a confirmed commit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ladder import machine
from ladder.pool import ROOT
from ladder.regressions import asking
from ladder.regressions.history import CANDIDATE, CONFIRMED, Step
from ladder.regressions.report import escape

MARK = "<!-- ladder regression {commit} -->"  # one issue for each: whoever opens them looks for it first
MOST_RUNGS = 4  # of one comparison, the largest steps: twelve visits a round
Tell = Callable[[str], None]


def confirm(
    steps: Sequence[Step], most: int, out: Path, minutes: float | None, tell: Tell, root: Path = ROOT
) -> int:
    """Measure the commits of up to `most` groups of candidates of this machine; returns how many were measured.

    Candidates between the same two commits, of one workload, are measured together.
    """
    device = machine.choose_device()
    facts = machine.facts(device)
    torch = str(facts["torch"]).partition("+")[0]
    mine = [
        step
        for step in steps
        if step.status == CANDIDATE
        and step.series.rung
        and step.series.machine == facts["name"]
        and step.series.torch in (None, "", torch)
    ]
    key = lambda step: (step.good, step.bad, step.series.rung[0])  # noqa: E731
    groups = [list(group) for _, group in itertools.groupby(sorted(mine, key=key), key)]
    groups.sort(key=lambda group: -max(step.share for step in group))
    for group in groups[:most]:
        worst = sorted(group, key=lambda step: -step.share)[:MOST_RUNGS]
        good, bad, workload = key(worst[0])
        rungs = list(dict.fromkeys(step.series.rung[1] for step in worst))
        tell(f"confirming {good[:10]}..{bad[:10]}: {workload}, {', '.join(rungs)}")
        asking.measure(
            asking.Request(good, bad, rungs, "full", workload, None, minutes, 0, device, out), tell, root
        )
    return len(groups[:most])


def write(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """One issue for each commit with a confirmed regression: {"mark", "title", "body"}, texts escaped."""
    confirmed = sorted((step for step in steps if step.status == CONFIRMED), key=lambda step: step.bad)
    made = []
    for commit, group in itertools.groupby(confirmed, key=lambda step: step.bad):
        found = sorted(group, key=lambda step: -step.share)
        names = ", ".join(dict.fromkeys(step.series.name for step in found))
        mark = MARK.format(commit=commit)
        title = f"Slower since {commit[:10]}: {names}"
        made.append({"mark": mark, "title": title[:200], "body": _body(mark, commit, found)})
    return made


def _body(mark: str, commit: str, found: Sequence[Step]) -> str:
    lines = [mark, f"Commit {commit} made these series slower; both commits were measured side by side.", ""]
    lines += ["| series | machine | step in the history | confirmed | beside it |", "|---|---|---|---|---|"]
    for step in found:
        row = [step.series.name, step.where, f"{100 * step.share:+.1f}%", step.why, "; ".join(step.remarks)]
        lines.append("| " + " | ".join(map(escape, row)) + " |")
    good = found[0].good
    if found[0].between:
        lines += [
            "",
            f"{found[0].between} commits before it were not measured; `asv find {good}..{commit}` bisects.",
        ]
    accept = (
        "To accept it, add an entry to `benches/known-regressions.yaml` (commit, series, reason, expires)."
    )
    return "\n".join([*lines, "", accept]) + "\n"
