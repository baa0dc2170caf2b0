"""`ladder history`: asv's record over commits, screened for steps that stayed and were confirmed.

asv's step detection at 1% finds candidates. Its points are few samples of few processes, on days of their own, so a
candidate alerts nobody. Only a bench-compare of the two commits beside a candidate makes it `confirmed`. The nightly
run measures candidates, and writes an issue for a confirmed commit, or for a range whose commits have no number.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ladder.core import git
from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.machine import system
from ladder.plan import catalog
from ladder.publish.history import notes as asvnotes
from ladder.publish.history import series as recorded
from ladder.publish.history.series import Series
from ladder.publish.validation import validate
from ladder.show.table import Column, Table, format_value, render_markdown
from ladder.stats import answers
from ladder.studies import frame
from ladder.studies.commits import judging, known, study
from ladder.studies.commits.judging import BROKEN
from ladder.studies.commits.record import Answered, File

THRESHOLD = 0.01
MOST_CHOICES = 4  # that are named beside a step
MOST_RUNGS = 4  # of one comparison, the largest steps: twelve visits a round
CONFIRMED, REFUTED, UNCLEAR, CANDIDATE, DRIVER, CUDNN, KNOWN = (
    "confirmed", "refuted", "unclear", "candidate", "driver change", "cuDNN change", "known",
)  # fmt: skip
ORDER = (CONFIRMED, CANDIDATE, UNCLEAR, DRIVER, CUDNN, KNOWN, REFUTED)
_BY_VERDICT = {
    answers.SLOWER: CONFIRMED, BROKEN: CONFIRMED, answers.AMBIGUOUS: UNCLEAR, answers.FASTER: REFUTED,
    answers.LESS: REFUTED,
}  # fmt: skip
MARK = "<!-- ladder regression {where} -->"  # one issue for each: whoever opens them looks for it first
LADDER = "full"
COLUMNS = [Column(title) for title in ("series", "machine", "step in the history", "confirmed", "beside it")]


@dataclass
class Step:
    """A series that became slower after the commit `good`, by `bad` at the latest, and has stayed so."""

    series: Series
    good: str
    bad: str
    share: float  # 0.02: 2% slower
    between: int  # commits from good to bad that were not measured
    rooted: bool = False  # `good` is the first commit: there is none before it
    status: str = CANDIDATE
    why: str = ""
    choices: list[str] = field(default_factory=list)  # tuning choices that changed
    conditions: list[str] = field(default_factory=list)  # another driver, another cuDNN

    @property
    def gpu_share(self) -> float | None:
        """Return by how much the GPU time of the two commits differs: 0.02 is 2% more. None where it is unknown."""
        gpu = self.series.gpu
        return gpu[self.bad] / gpu[self.good] - 1 if {self.good, self.bad} <= gpu.keys() else None


def screen_accepted(folder: Path, *arguments: Any) -> tuple[list[Step], list[str]]:
    """Screen the files that a site would be made from; return a line for each file left out, too.

    `arguments` are those of `screen` behind the folder.

    Raises:
        UserError: there is no such folder, or no file in it.
    """
    with tempfile.TemporaryDirectory(prefix="asv-history-") as temporary:
        judged = validate.accept_asv(folder, Path(temporary) / "asv", root=None)
        if not judged:
            raise UserError(f"{folder}: no results of asv in it; `asv run` writes them to results/asv")
        steps, lines = screen(Path(temporary) / "asv", *arguments)
    return steps, [f"{each.path}: {each.problem}" for each in judged if each.problem] + lines


def screen(
    folder: Path,
    compared: Path,
    entries: Sequence[known.Entry],
    branch: str,
    threshold: float,
    root: Path = ROOT,
) -> tuple[list[Step], list[str]]:
    """Return (steps, lines that a reader must know). Raises `UserError`."""
    order = git.read_output(root, "rev-list", "--first-parent", "--reverse", branch, "--").splitlines()
    place = {commit: number for number, commit in enumerate(order)}
    every, lines, comparisons = recorded.read(folder), list[str](), list[File]()
    for path in sorted(compared.rglob("*.json")):
        try:
            comparisons.append(frame.read_file(study.STUDY, path))
        except UserError as error:
            lines.append(str(error))
    comparisons.sort(key=lambda each: each.started)
    if elsewhere := {commit for one in every for commit in one.values if commit not in place}:
        shallow = f", perhaps for this clone is shallow: {git.DEEPEN}" if git.is_shallow(root) else ""
        lines.append(f"{len(elsewhere)} measured commits are not on {branch}: left out{shallow}")
    steps = [step for one in every for step in find_steps(one, place, threshold)]
    for step in steps:
        _settle(step, comparisons, entries, every, root)
    for group in group_candidates(steps):
        command = format_comparison(group)
        for step in group:
            step.why = command
    return sorted(steps, key=lambda s: (ORDER.index(s.status), place[s.bad], -s.share)), lines


def find_steps(one: Series, place: Mapping[str, int], threshold: float = THRESHOLD) -> list[Step]:
    """Return the upward steps of a series that explain why its latest level is worse than its best."""
    from asv.step_detect import detect_regressions

    commits, levels = _detect_levels(one, place)
    steps = []
    for before, after, was, now in detect_regressions(levels, threshold)[2] or []:
        good, bad = commits[before], commits[after]
        between, rooted = place[bad] - place[good] - 1, place[good] == 0
        steps.append(Step(one, good, bad, now / was - 1, between, rooted))
    return steps


def find_changes(one: Series, place: Mapping[str, int]) -> list[tuple[str, str, float]]:
    """Return (commit before, commit, share) of each change of a series' level by THRESHOLD, up or down."""
    commits, levels = _detect_levels(one, place)
    return [
        (commits[before[1] - 1], commits[after[0]], after[2] / before[2] - 1)
        for before, after in itertools.pairwise(levels)
        if abs(after[2] / before[2] - 1) >= THRESHOLD
    ]


def _detect_levels(one: Series, place: Mapping[str, int]) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return a series' commits in order, and its levels: the first place, that behind the last one, the value."""
    from asv.step_detect import detect_steps

    commits = sorted((commit for commit in one.values if commit in place), key=place.__getitem__)
    values, weights = ([each[commit] for commit in commits] for each in (one.values, one.weights))
    return commits, detect_steps(values, weights) if len(commits) > 1 else []


def _settle(
    step: Step, comparisons: list[File], entries: Sequence[known.Entry], every: Sequence[Series], root: Path
) -> None:
    """Fill in the status of a step, and the other changes at its place."""
    one = step.series
    before, after = (asvnotes.read_note(one.files[commit]) for commit in (step.good, step.bad))
    series = asvnotes.name_series(one.benchmark, one.params)
    step.choices += asvnotes.list_choice_changes(before, after, series)
    changes = asvnotes.find_changes(
        *(asvnotes.find_conditions(note, one.benchmark) for note in (before, after))
    )
    step.conditions += [f"{asvnotes.NAMES[name]} {change}" for name, change in changes.items()]
    excuses = [
        f"a {asvnotes.NAMES[key]} change: {changes[key]}" for key in asvnotes.EXCUSES if key in changes
    ]
    mine = [entry for entry in entries if entry.is_of(one.accepted_as, one.machine)]
    accepted, answer = known.list_in_force(mine, step.good, step.bad, root), _find_answer(step, comparisons)
    if accepted and not (answer and answer.verdict == BROKEN):  # what is broken cannot be accepted
        step.status, step.why = KNOWN, accepted[0].describe()
    elif answer:
        step.status, step.why = _BY_VERDICT[str(answer.verdict)], f"bench-compare: {_describe(answer)}"
        if answer.verdict == answers.LESS and (answer.below or 0.0) > math.log1p(step.share):
            step.status = UNCLEAR  # a difference as large as the step is not excluded
    elif levels := _find_both_levels(step, every):
        step.status, step.why = REFUTED, levels
    elif excuses:
        step.status = DRIVER if "driver" in changes else CUDNN
        step.why = f"coincides with {' and '.join(excuses)}"
    else:
        step.why = "not measured by bench-compare: look at it"


def _find_answer(step: Step, comparisons: list[File]) -> Answered | None:
    """Return the newest verdict on the two commits, in the quantity of the step; None where there is none.

    The comparison must be of this rung on this machine, with this torch. A broken rung is broken in both quantities.
    """
    one = step.series
    for file in reversed(comparisons):
        case, torch = next(iter(file.cases.values())), str(file.machine.torch).partition("+")[0]
        pair = case.base.commit, case.head.commit, file.machine.name
        if pair != (step.good, step.bad, one.machine) or one.torch not in (None, "", torch):
            continue
        for rung in judging.judge(file).rungs:
            if one.rung == ((file.workload or {})["name"], rung.name):
                answer = rung.gpu if one.is_gpu and rung.verdict != BROKEN else rung
                if answer and answer.verdict:
                    return answer
    return None


def _describe(answer: Answered) -> str:
    """Return the verdict of a comparison with the change, its interval and the number of generations."""
    (change, interval), verdict = study.derive_change(answer), study.describe_verdict(answer)
    if change is None:
        return verdict
    shown = f"{format_value('change', change)} ({format_value('changes', interval)})"
    return f"{verdict}, {shown} in {texts.format_count(answer.rounds, 'generation')}"


def _find_both_levels(step: Step, every: Sequence[Series]) -> str | None:
    """Name a commit that reserved as little as before a step of memory, and as much as after it; None without one.

    The allocator reserves whole segments, and their number differs between processes of one program. A commit that has
    both amounts, on two hosts with one GPU and software, shows that the code did not bring the step.
    """
    one = step.series
    fields = ("benchmark", "params", "environment", "card")
    alike = [each for each in every if all(getattr(each, name) == getattr(one, name) for name in fields)]
    for commit in dict.fromkeys(commit for each in alike for commit in each.values) if one.is_memory else ():
        values = [(each.values[commit], each.machine) for each in alike if commit in each.values]
        (least, here), (most, there) = min(values), max(values)
        if least <= one.values[step.good] and most >= one.values[step.bad]:
            least, most = (round(value / 2**20) for value in (least, most))
            return f"processes differ: {commit[:10]} has {least:,} MiB on {here}, {most:,} on {there}"
    return None


# --- what is shown ----------------------------------------------------------------------------------------------------


def group_candidates(steps: Sequence[Step]) -> list[list[Step]]:
    """Return the candidates that one comparison decides about: of two commits and a workload, the largest first."""
    groups: dict[tuple[str, ...], list[Step]] = {}
    for step in sorted(steps, key=lambda step: -step.share):
        if step.series.rung and step.status == CANDIDATE:
            groups.setdefault((step.good, step.bad, step.series.rung[0]), []).append(step)
    return list(groups.values())


def list_rungs(steps: Sequence[Step]) -> list[str]:
    """Return the rungs of the largest steps, as many as one comparison takes."""
    return list(dict.fromkeys(step.series.rung[1] for step in steps if step.series.rung))[:MOST_RUNGS]


def format_comparison(steps: Sequence[Step]) -> str:
    """Return the command that compares two commits in the rungs of the largest steps between them."""
    first = steps[0]
    return (
        f"to be confirmed: make bench-compare BASE={first.good[:10]} HEAD={first.bad[:10]}"
        f" WORKLOAD={first.series.params[0]} RUNGS={','.join(list_rungs(steps))}"
    )


def list_remarks(steps: Sequence[Step]) -> list[str]:
    """Return what else changed where steps are: the first tuning choices, then conditions."""
    choices = dict.fromkeys(f"tuning: {choice}" for step in steps for choice in step.choices)
    conditions = dict.fromkeys(condition for step in steps for condition in step.conditions)
    return [*[*choices][:MOST_CHOICES], *conditions]


def format_bisect(step: Step) -> str | None:
    """Return the command that bisects a step's range; None if the series has no plain name.

    asv compares the first commit of a range with the others, so `good` must be in the range. Without --skip-save asv
    would search the other series of a result file, too.
    """
    span = step.bad[:10] if step.rooted else f"{step.good[:10]}~1..{step.bad[:10]}"
    pattern = step.series.pattern
    return pattern and f'asv find --skip-save {span} "{pattern}"'


def render_text(steps: Sequence[Step], lines: Sequence[str]) -> str:
    """Return the steps for a terminal, confirmed ones first, and those with one explanation together."""
    groups: dict[tuple[str, ...], list[Step]] = {}
    for step in steps:
        groups.setdefault((step.status, step.good, step.bad, step.why), []).append(step)
    shown = list(map(texts.clean_line, lines))
    for (status, good, bad, why), rows in groups.items():
        within = []
        for step in rows:
            gpu = "" if step.gpu_share is None else f" (GPU time {100 * step.gpu_share:+.1f}%)"
            within.append(f"{step.series.name} {100 * step.share:+.1f}%{gpu} on {step.series.machine}")
        within += [why, *list_remarks(rows)]
        if (between := rows[0].between) and status in (CONFIRMED, CANDIDATE, UNCLEAR):
            within.append(f"{between} commits between the two were not measured; this bisects them:")
            within.append(format_bisect(rows[0]) or "asv find, by a regular expression of the series")
        shown.append(f"{status} {f'in {good[:10]}..' if between else 'at '}{bad[:10]}:")
        shown += [f"  {texts.clean_line(line)}" for line in within]
    count = sum(step.status == CONFIRMED for step in steps)
    return "\n".join([*shown, f"{count} confirmed of {texts.format_count(len(steps), 'step')}"])


def write_step(step: Step) -> dict[str, Any]:
    """Return a step as JSON."""
    one = step.series
    return {
        "status": step.status, "series": one.name, "machine": one.machine, "environment": one.environment,
        "good": step.good, "bad": step.bad, "share": step.share, "gpu_share": step.gpu_share,
        "unmeasured": step.between, "why": step.why, "remarks": list_remarks([step]),
    }  # fmt: skip


# --- the nightly run: candidates are measured, confirmed steps become issues ------------------------------------------


def confirm_steps(
    steps: Sequence[Step], most: int, out: Path, minutes: float | None, tell: Callable[[str], None]
) -> int:
    """Measure the commits of up to `most` groups of this machine's candidates. Return the number of groups measured.

    Candidates between the same two commits, of one workload, are measured together. A group whose rung left the ladder
    or changed its recipe is not measured, and one that is refused does not stop the others.
    """
    device = system.choose_device()
    facts = system.describe_machine(device)
    torch, measured, recipes = str(facts["torch"]).partition("+")[0], 0, _list_recipes()
    mine = [s for s in steps if s.series.machine == facts["name"] and s.series.torch in (None, "", torch)]
    groups = group_candidates(mine)
    if not groups:
        tell(f"nothing to confirm: no candidate's step was timed by {facts['name']} with torch {torch}")
    for group in groups:
        if measured == most:
            break
        current = [step for step in group if step.series.rung[1] in recipes]
        for name in dict.fromkeys(step.series.name for step in group if step not in current):
            tell(f"{name}: not what {LADDER} has under that name today, so no comparison can confirm it")
        if not current:
            continue
        good, bad, workload, rungs = (
            group[0].good,
            group[0].bad,
            group[0].series.params[0],
            list_rungs(current),
        )
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
        title = f"Slower {f'between {good[:10]} and' if between else 'since'} {bad[:10]}: {names}"[:200]
        cells = []
        for each in rows:
            share, remarks = f"{100 * each.share:+.1f}%", "; ".join(list_remarks([each]))
            cells.append([each.series.name, each.series.machine, share, each.why, remarks])
        lines = [
            mark,
            f"These series became slower after commit {good}, by commit {bad} at the latest. The two were measured side"
            f" by side; commits between them that were not: {between}.",
            "",
            study.break_mentions(render_markdown(Table(COLUMNS, cells))),
            "",
        ]
        if between and (commands := dict.fromkeys(filter(None, map(format_bisect, rows)))):
            lines += ["To bisect, on such a machine:", "", "```", *commands, "```", ""]
        accept = "To accept it, add an entry to `benches/known-regressions.yaml` (commit, series, reason, expires)."
        issues.append({"mark": mark, "title": title, "body": "\n".join([*lines, accept]) + "\n"})
    return issues
