"""The nightly run's work with the screened history: it measures candidates and writes issues.

An issue is about one confirmed commit, or about a range where the commits in between have no number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from ladder.base import text
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.machine import system
from ladder.plan import catalog
from ladder.publish.history.screening import CONFIRMED, Step, format_bisect, measured_together
from ladder.publish.regressions import comparing
from ladder.publish.regressions.report import escape

MARK = "<!-- ladder regression {where} -->"  # one issue for each: whoever opens them looks for it first
LADDER = "full"
Tell = Callable[[str], None]


def confirm_steps(
    steps: Sequence[Step], most: int, out: Path, minutes: float | None, tell: Tell, root: Path = ROOT
) -> int:
    """Measure the commits of up to `most` groups of this machine's candidates. Return the number of groups measured.

    Candidates between the same two commits, of one workload, are measured together. A group that cannot be measured is
    told, and the others go on. It has a rung that left the ladder or changed its recipe, or `comparing` refuses it.
    """
    device = system.choose_device()
    facts = system.facts(device)
    torch = str(facts["torch"]).partition("+")[0]
    mine = [
        step
        for step in steps
        if step.to_compare and step.series.machine == facts["name"] and step.series.torch in (None, "", torch)
    ]
    if not mine:
        tell(f"nothing to confirm: no candidate's step was timed by {facts['name']} with torch {torch}")
    todays = _todays()
    for name in dict.fromkeys(step.series.name for step in mine if step.series.rung[1] not in todays):
        tell(f"{name}: not what {LADDER} has under that name today, so no comparison can confirm it")
    mine = [step for step in mine if step.series.rung[1] in todays]
    key = lambda step: (step.good, step.bad, step.series.rung[0])  # noqa: E731
    groups = [list(group) for _, group in itertools.groupby(sorted(mine, key=key), key)]
    groups.sort(key=lambda group: -max(step.share for step in group))
    measured = 0
    for group in groups:
        if measured == most:
            break
        good, bad = group[0].good, group[0].bad
        workload, rungs = measured_together(group)
        tell(f"confirming {good[:10]}..{bad[:10]}: {workload}, {', '.join(rungs)}")
        request = comparing.Request(
            good, bad, rungs, LADDER, workload, budget=minutes, device=device, out=out
        )
        try:
            comparing.measure(request, tell, root)
            measured += 1
        except UserError as error:
            tell(f"not measured: {error}")
    return measured


def _todays() -> set[str]:
    """Return the rungs whose series are of the ladder's recipes of today.

    A rung whose recipe changed goes on as `NAME-2` in asv's list (benches/series.py); NAME is the earlier recipe.
    """
    try:
        listed = (ROOT / "results" / "asv" / "benchmarks.json").read_text(encoding="utf-8")
    except OSError:
        listed = ""
    names = (step.name for step in catalog.load_ladder(LADDER).rungs)
    return {name for name in names if f"\"'{name}-2'\"" not in listed}


def write_issues(steps: Sequence[Step]) -> list[dict[str, str]]:
    """Return {"mark", "title", "body"}, escaped, for each commit or range with a confirmed regression."""
    key = lambda step: (step.bad, step.good)  # noqa: E731
    confirmed = sorted((step for step in steps if step.status == CONFIRMED), key=key)
    issues = []
    for (bad, good), group in itertools.groupby(confirmed, key=key):
        steps = sorted(group, key=lambda step: -step.share)
        names = ", ".join(dict.fromkeys(step.series.name for step in steps))
        mark = MARK.format(where=f"{good}..{bad}" if steps[0].between else bad)
        since = f"between {good[:10]} and {bad[:10]}" if steps[0].between else f"since {bad[:10]}"
        issues.append({"mark": mark, "title": f"Slower {since}: {names}"[:200], "body": _body(mark, steps)})
    return issues


def _body(mark: str, steps: Sequence[Step]) -> str:
    good, bad, between = steps[0].good, steps[0].bad, steps[0].between
    sentence = f"Commit {bad} made these series slower; it and the one before it were measured side by side."
    if between:
        sentence = (
            f"These series became slower after commit {good}, by commit {bad} at the latest. The two were measured "
            f"side by side; the {between} commits between them were not, so which of them it was is not known."
        )
    table = [("series", "machine", "step in the history", "confirmed", "beside it")]
    for step in steps:
        share = f"{100 * step.share:+.1f}%"
        table.append((step.series.name, step.where, share, step.why, "; ".join(step.remarks)))
    lines = [mark, sentence, "", *text.piped(table, words=range(5), show=escape)]
    commands = dict.fromkeys(filter(None, map(format_bisect, steps))) if between else {}
    if commands:
        lines += ["", "To bisect, on such a machine:", "", "```", *commands, "```"]
    accept = (
        "To accept it, add an entry to `benches/known-regressions.yaml` (commit, series, reason, expires)."
    )
    return "\n".join([*lines, "", accept]) + "\n"
