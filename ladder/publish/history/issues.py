"""The nightly run's work with the screened history: it measures candidates and writes issues.

An issue is about one confirmed commit, or about a range where the commits in between have no number.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.machine import system
from ladder.plan import catalog
from ladder.publish.history.screening import (
    CONFIRMED,
    Step,
    format_bisect,
    group_candidates,
    list_remarks,
    list_rungs,
)
from ladder.show.table import Column, Table, render_markdown
from ladder.studies import frame
from ladder.studies.commits import study

MARK = "<!-- ladder regression {where} -->"  # one issue for each: whoever opens them looks for it first
LADDER = "full"
COLUMNS = [Column(title) for title in ("series", "machine", "step in the history", "confirmed", "beside it")]
Tell = Callable[[str], None]


def confirm_steps(steps: Sequence[Step], most: int, out: Path, minutes: float | None, tell: Tell) -> int:
    """Measure the commits of up to `most` groups of this machine's candidates. Return the number of groups measured.

    Candidates between the same two commits, of one workload, are measured together. A group whose rung left the ladder
    or changed its recipe is not measured, and one that is refused does not stop the others.
    """
    device = system.choose_device()
    facts = system.describe_machine(device)
    torch = str(facts["torch"]).partition("+")[0]
    own = facts["name"], (None, "", torch)
    mine = group_candidates([s for s in steps if s.series.machine == own[0] and s.series.torch in own[1]])
    if not mine:
        tell(f"nothing to confirm: no candidate's step was timed by {facts['name']} with torch {torch}")
    recipes = _list_recipes()
    measured = 0
    for group in mine:
        if measured == most:
            break
        known = [step for step in group if step.series.rung[1] in recipes]
        for name in dict.fromkeys(step.series.name for step in group if step not in known):
            tell(f"{name}: not what {LADDER} has under that name today, so no comparison can confirm it")
        if not known:
            continue
        good, bad, workload, rungs = group[0].good, group[0].bad, group[0].series.params[0], list_rungs(known)
        tell(f"confirming {good[:10]}..{bad[:10]}: {workload}, {', '.join(rungs)}")
        try:
            compare_commits(good, bad, rungs, workload, device, out, minutes)
            measured += 1
        except UserError as error:
            tell(f"not measured: {error}")
    return measured


def compare_commits(
    good: str, bad: str, rungs: list[str], workload: str, device: str, out: Path, minutes: float | None
) -> None:
    """Measure two commits as `ladder bench-compare` does; its tables go to stderr. Raises UserError."""
    options = study.Options(base=good, head=bad, rungs=",".join(rungs), ladder=LADDER)
    request = frame.Request(workload=workload, device=device, out=out, budget=minutes)
    with contextlib.redirect_stdout(sys.stderr):
        job = frame.resolve_job(study.STUDY, options, request, system.describe_machine(device))
        frame.run_study(study.STUDY, job)


def _list_recipes() -> set[str]:
    """Return the rungs whose series are of the ladder's recipes of today.

    A rung whose recipe changed goes on as `NAME-2` in asv's list (benches/series.py); NAME is the earlier recipe.
    """
    listed = (ROOT / "results" / "asv" / "benchmarks.json").read_text(encoding="utf-8")
    names = (step.name for step in catalog.load_ladder(LADDER).rungs)
    return {name for name in names if f"\"'{name}-2'\"" not in listed}


def write_issues(steps: Sequence[Step]) -> list[dict[str, str]]:
    """Return {"mark", "title", "body"}, escaped, for each commit or range with a confirmed regression."""

    def find_range(step: Step) -> tuple[str, str]:
        return step.bad, step.good

    issues = []
    confirmed = sorted((step for step in steps if step.status == CONFIRMED), key=find_range)
    for (bad, good), group in itertools.groupby(confirmed, key=find_range):
        rows = sorted(group, key=lambda step: -step.share)
        names = ", ".join(dict.fromkeys(step.series.name for step in rows))
        between = rows[0].between
        mark = MARK.format(where=f"{good}..{bad}" if between else bad)
        since = f"between {good[:10]} and {bad[:10]}" if between else f"since {bad[:10]}"
        sentence = (
            f"Commit {bad} made these series slower; it and the one before it were measured side by side."
        )
        if between:
            sentence = (
                f"These series became slower after commit {good}, by commit {bad} at the latest. The two were measured"
                f" side by side; the {between} commits between them were not, so which of them it was is not known."
            )
        cells = [
            [
                one.series.name,
                one.series.machine,
                f"{100 * one.share:+.1f}%",
                one.why,
                "; ".join(list_remarks([one])),
            ]
            for one in rows
        ]
        lines = [mark, sentence, "", study.break_mentions(render_markdown(Table(COLUMNS, cells))), ""]
        if between and (commands := dict.fromkeys(filter(None, map(format_bisect, rows)))):
            lines += ["To bisect, on such a machine:", "", "```", *commands, "```", ""]
        lines += [
            "To accept it, add an entry to `benches/known-regressions.yaml` (commit, series, reason, expires)."
        ]
        title = f"Slower {since}: {names}"[:200]
        issues.append({"mark": mark, "title": title, "body": "\n".join(lines) + "\n"})
    return issues
