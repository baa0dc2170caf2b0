"""`ladder history`: asv's record over commits, screened for steps that stayed and were confirmed.

asv's step detection at 1% finds candidates. Its points are few samples of few processes, on days of their own, so a
candidate alerts nobody. Only a bench-compare of the two commits beside a candidate makes it `confirmed`.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ladder.base import git
from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.publish.history import notes as asvnotes
from ladder.publish.history import series as recorded
from ladder.publish.history.series import Series
from ladder.publish.regressions import judging, known, report
from ladder.publish.regressions.judging import BROKEN
from ladder.publish.regressions.schema import Answered, Judged, JudgedRung
from ladder.publish.validation import asv_accepted
from ladder.show.table import format_value
from ladder.stats import answers

THRESHOLD = 0.01
MOST_CHOICES = 4  # that are named beside a step
MOST_RUNGS = 4  # of one comparison, the largest steps: twelve visits a round
CONFIRMED, REFUTED, UNCLEAR, CANDIDATE, DRIVER, CUDNN, KNOWN = (
    "confirmed", "refuted", "unclear", "candidate", "driver change", "cuDNN change", "known",
)  # fmt: skip
ORDER = (CONFIRMED, CANDIDATE, UNCLEAR, DRIVER, CUDNN, KNOWN, REFUTED)
_BY_VERDICT = {
    answers.SLOWER: CONFIRMED,
    BROKEN: CONFIRMED,
    answers.AMBIGUOUS: UNCLEAR,
    answers.FASTER: REFUTED,
    answers.LESS: REFUTED,
}


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
    def remarks(self) -> list[str]:
        """Return what else changed at its place, the tuning choices cut short."""
        return list_remarks([self])

    @property
    def to_compare(self) -> tuple[str, str] | None:
        """Return (workload, rung) that a comparison would decide about; None if none would, or one has."""
        return self.series.rung if self.status == CANDIDATE else None

    @property
    def gpu_share(self) -> float | None:
        """Return by how much the GPU time of the two commits differs: 0.02 is 2% more.

        A commit without GPU time has None, and so has a series that is no wall time.
        """
        known = self.series.gpu
        return known[self.bad] / known[self.good] - 1 if {self.good, self.bad} <= known.keys() else None

    @property
    def summary(self) -> str:
        """Return `article/bf16 +2.0%`, and behind a wall time `(GPU time +0.1%)`."""
        gpu = "" if self.gpu_share is None else f" (GPU time {100 * self.gpu_share:+.1f}%)"
        return f"{self.series.name} {100 * self.share:+.1f}%{gpu}"

    @property
    def where(self) -> str:
        return f"{self.series.machine}, {self.series.environment}"

    @property
    def at(self) -> str:
        """Return the commit that brought the step, or the range that has it."""
        return f"in {self.good[:10]}..{self.bad[:10]}" if self.between else f"at {self.bad[:10]}"


def screen_accepted(folder: Path, *arguments: Any) -> tuple[list[Step], list[str]]:
    """Screen the files that a site would be made from; return a line for each file left out, too.

    Args:
        asked: the arguments of `screen` behind the folder.

    Raises:
        UserError: there is no such folder, or no file in it.
    """
    with tempfile.TemporaryDirectory(prefix="asv-history-") as temporary:
        judged = asv_accepted.accepted(folder, Path(temporary) / "asv", root=None)
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
    order = git.read(root, "rev-list", "--first-parent", "--reverse", branch, "--").splitlines()
    place = {commit: number for number, commit in enumerate(order)}
    every, lines = recorded.read(folder), list[str]()
    comparisons = _comparisons(compared, lines)
    lines += _left_out(
        {commit for one in every for commit in one.values if commit not in place}, branch, root
    )
    steps = []
    for one in every:
        for step in find_steps(one, place, threshold):
            _settle(step, comparisons, entries, every, root)
            steps.append(step)
    return sorted(steps, key=lambda s: (ORDER.index(s.status), place[s.bad], -s.share)), lines


def _left_out(commits: set[str], branch: str, root: Path) -> list[str]:
    """Return a line on commits that are not on the branch, and one on those that a shallow clone cannot know."""
    lacking = commits - git.dates(root, commits).keys() if git.is_shallow(root) else set()
    lines = []
    if elsewhere := commits - lacking:
        lines.append(f"{len(elsewhere)} measured commits are not on {branch}: left out")
    if lacking:
        lines.append(f"{len(lacking)} measured commits are not in this shallow clone: left out; {git.DEEPEN}")
    return lines


def find_steps(one: Series, place: dict[str, int], threshold: float = THRESHOLD) -> list[Step]:
    """Return the upward steps of a series that explain why its latest level is worse than its best."""
    from asv.step_detect import detect_regressions, detect_steps

    commits = sorted((commit for commit in one.values if commit in place), key=place.__getitem__)
    if len(commits) < 2:
        return []
    values, weights = ([each[commit] for commit in commits] for each in (one.values, one.weights))
    *_, regressions = detect_regressions(detect_steps(values, weights), threshold)
    steps = []
    for before, after, was, now in regressions or []:
        good, bad = commits[before], commits[after]
        between, rooted = place[bad] - place[good] - 1, place[good] == 0
        steps.append(Step(one, good, bad, now / was - 1, between, rooted))
    return steps


def _comparisons(folder: Path, lines: list[str]) -> list[Judged]:
    """Return every comparison in a folder, judged anew, the newest last."""
    comparisons = []
    for path in sorted(folder.rglob("*.json")) if folder.is_dir() else []:
        try:
            comparisons.append(judging.load(path))
        except UserError as error:
            lines.append(str(error))
    return sorted(comparisons, key=lambda each: each.started)


def _settle(
    step: Step,
    comparisons: list[Judged],
    entries: Sequence[known.Entry],
    every: Sequence[Series],
    root: Path,
) -> None:
    """Fill in the status of a step, and the other changes at its place."""
    one = step.series
    before, after = one.files[step.good], one.files[step.bad]
    notes = asvnotes.read_note(before), asvnotes.read_note(after)
    series = asvnotes.name_series(one.benchmark, one.params)
    step.choices += asvnotes.list_choice_changes(*notes, series)
    conditions = [asvnotes.find_conditions(note, one.benchmark) for note in notes]
    changes = asvnotes.find_changes(*conditions)
    step.conditions += [f"{asvnotes.NAMES[name]} {change}" for name, change in changes.items()]
    excuses = [
        f"a {asvnotes.NAMES[name]} change: {changes[name]}" for name in asvnotes.EXCUSES if name in changes
    ]
    accepted = [e for e in entries if e.is_of(one.accepted_as, one.machine)]
    verdict = _verdict(step, comparisons)
    in_range = known.list_in_force(accepted, step.good, step.bad, root)
    if in_range and not (verdict and verdict[2] == BROKEN):  # what is broken cannot be accepted
        step.status, step.why = KNOWN, in_range[0].describe()
    elif verdict:
        step.status, step.why, _ = verdict
    elif levels := _both_levels(step, every):
        step.status, step.why = REFUTED, levels
    elif excuses:
        step.status = DRIVER if "driver" in changes else CUDNN
        step.why = f"coincides with {' and '.join(excuses)}"
    elif one.rung is None:
        step.why = "not measured by bench-compare: look at it"
    else:
        step.why = _to_be_confirmed([step])


def _both_levels(step: Step, every: Sequence[Series]) -> str | None:
    """Name a commit that reserved as little as before a step of memory, and as much as after it; None without one.

    The allocator reserves whole segments, and their number differs between processes of one program. A commit that has
    both amounts, on two hosts with one GPU and software, shows that the code did not bring the step.
    """
    one = step.series
    if not one.is_memory:
        return None
    alike = [each for each in every if _measured(each) == _measured(one)]
    for commit in dict.fromkeys(commit for each in alike for commit in each.values):
        values = [(each.values[commit], each.machine) for each in alike if commit in each.values]
        (least, here), (most, there) = min(values), max(values)
        if least <= one.values[step.good] and most >= one.values[step.bad]:
            least, most = (round(value / 2**20) for value in (least, most))
            return f"processes differ: {commit[:10]} has {least:,} MiB on {here}, {most:,} on {there}"
    return None


def _measured(one: Series) -> tuple[str, tuple[str, ...], str, str]:
    """Return what a series measures, with which software and GPU; hosts of one kind have it in common."""
    return one.benchmark, one.params, one.environment, one.card


def _to_be_confirmed(steps: Sequence[Step]) -> str:
    """Return the command that compares two commits in the rungs of the largest steps between them."""
    first, (workload, rungs) = steps[0], measured_together(steps)
    return (
        f"to be confirmed: make bench-compare BASE={first.good[:10]} HEAD={first.bad[:10]}"
        f" WORKLOAD={workload} RUNGS={','.join(rungs)}"
    )


def measured_together(steps: Sequence[Step]) -> tuple[str, list[str]]:
    """Return the workload of steps and the rungs of the largest, as many as one comparison takes."""
    worst = sorted(steps, key=lambda step: -step.share)[:MOST_RUNGS]
    rungs = [step.series.rung for step in worst if step.series.rung]
    return rungs[0][0], list(dict.fromkeys(rung for _, rung in rungs))


def list_remarks(steps: Sequence[Step]) -> list[str]:
    """Return what else changed where steps are: some tuning choices and how many more, then conditions."""
    choices = list(dict.fromkeys(choice for step in steps for choice in step.choices))
    more = len(choices) - MOST_CHOICES
    return [
        *(f"tuning: {choice}" for choice in choices[:MOST_CHOICES]),
        *[f"tuning: {more} more choices changed"] * (more > 0),
        *dict.fromkeys(condition for step in steps for condition in step.conditions),
    ]


def format_bisect(step: Step) -> str | None:
    """Return the command that bisects a step's range; None if the series has no plain name.

    asv compares the first commit of a range with the others, so `good` must be in the range. Without --skip-save asv
    would search the other series of a result file, too.
    """
    span = step.bad[:10] if step.rooted else f"{step.good[:10]}~1..{step.bad[:10]}"
    pattern = step.series.pattern
    return pattern and f'asv find --skip-save {span} "{pattern}"'


def _verdict(step: Step, comparisons: list[Judged]) -> tuple[str, str, str] | None:
    """Return (status, reason, verdict) of the newest comparison of the two commits; None where there is none.

    The comparison must be of this rung on this machine, with this torch.
    """
    for result in reversed(comparisons):
        machine = result.machine
        same = (result.base.commit, result.head.commit, machine.name, result.workload["name"])
        if step.series.rung is None or same != (
            step.good,
            step.bad,
            step.series.machine,
            step.series.rung[0],
        ):
            continue
        if step.series.torch not in (None, "", str(machine.torch).partition("+")[0]):
            continue
        for row in (_answer(each, step) for each in result.rungs if each.name == step.series.rung[1]):
            if row and row.verdict:
                status = _BY_VERDICT[row.verdict]
                if row.verdict == answers.LESS and (row.below or 0.0) > math.log1p(step.share):
                    status = UNCLEAR  # a difference as large as the step is not excluded
                return status, f"bench-compare: {_describe(row)}", row.verdict
    return None


def _answer(rung: JudgedRung, step: Step) -> Answered | None:
    """Return what a comparison says of the quantity that the step is in; a broken rung is broken in both."""
    return rung.gpu if step.series.is_gpu and rung.verdict != BROKEN else rung


def _describe(row: Answered) -> str:
    """Return the verdict of a comparison with the change, its interval and the number of generations."""
    change, interval = report.derive_change(row)
    if change is None:
        return report.describe_verdict(row)
    shown = f"{format_value('change', change)} ({format_value('changes', interval)})"
    return f"{report.describe_verdict(row)}, {shown} in {texts.counted(row.rounds, 'generation')}"


def render_text(steps: Sequence[Step], lines: Sequence[str]) -> str:
    """Return the steps for a terminal, confirmed ones first, and those between the same two commits together.

    Steps that are the same on several machines are told once.
    """
    shown = [*map(texts.plain, lines)]
    groups: dict[tuple[str, ...], list[Step]] = {}
    for step in steps:
        groups.setdefault((step.status, step.good, step.bad, step.where), []).append(step)
    paragraphs: dict[tuple[str, ...], list[str]] = {}  # machines by what is shown of them
    for together in groups.values():
        first = together[0]
        head = f"{first.status} {first.at}", first.series.environment
        paragraphs.setdefault((*head, *_paragraph(together)), []).append(first.series.machine)
    for (head, environment, *within), machines in paragraphs.items():
        shown.append(texts.plain(f"{head} ({', '.join([*machines, environment])}):"))
        shown += [f"  {texts.plain(line)}" for line in within]
    count = sum(step.status == CONFIRMED for step in steps)
    return "\n".join([*shown, f"{count} confirmed of {texts.counted(len(steps), 'step')}"])


def _paragraph(steps: list[Step]) -> list[str]:
    """Return lines on steps of one status between the same commits: each series, what to do, what else changed."""
    first, sentences = steps[0], []
    alike: dict[str, list[Step]] = {}  # steps of which one line says what to do
    for step in steps:
        alike.setdefault(step.to_compare[0] if step.to_compare else step.why, []).append(step)
    for rows in alike.values():
        sentences += [step.summary for step in rows]
        sentences.append(_to_be_confirmed(rows) if rows[0].to_compare else rows[0].why)
    sentences += list_remarks(steps)
    if first.between and first.status in (CONFIRMED, CANDIDATE, UNCLEAR):
        which = f" for {first.series.name}" if len(steps) > 1 else ""
        sentences.append(
            f"{first.between} commits between the two were not measured; this bisects them{which}:"
        )
        sentences.append(format_bisect(first) or "asv find, by a regular expression of the series")
    return sentences


def write_step(step: Step) -> dict[str, Any]:
    """Return a step as JSON."""
    one = step.series
    return {
        "status": step.status, "series": one.name, "machine": one.machine, "environment": one.environment,
        "good": step.good, "bad": step.bad, "share": step.share, "gpu_share": step.gpu_share,
        "unmeasured": step.between, "why": step.why, "remarks": step.remarks,
    }  # fmt: skip
