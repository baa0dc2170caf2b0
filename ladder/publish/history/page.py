"""The site's history: what became slower and since when, and for each GPU the time of every rung over commits."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core import git
from ladder.core.text import format_ms, make_slug
from ladder.plan import catalog
from ladder.publish.history import notes as asvnotes
from ladder.publish.history import screening, series
from ladder.publish.history.screening import CANDIDATE, CONFIRMED, ORDER, UNCLEAR, Step
from ladder.publish.history.series import Series
from ladder.show.page import Card, Cards, Fold, Head, Line, Lines, Mark, Point, Section, Since, render_page
from ladder.show.table import Column, Table, format_value

ASV = "asv"  # the folder of asv's pages
FRONT, OVERVIEW = "index.html", "history.html"
OPEN = (CONFIRMED, CANDIDATE, UNCLEAR)  # what somebody must look at
TONES = ("busy", "k2", "k3", "k8")  # of lines with different software
ABOUT = (
    "Medians of one process at each commit. A dashed line marks a commit since which the rung takes 1% more or less. A"
    " row is as high as 10% of its time, or as its own range where that is wider."
)
ABOUT_SLOWER = (
    "Lasting steps of 1% or more in asv's record. A candidate rests on single processes; `make bench-compare` of the"
    " two commits confirms or refutes it."
)
States = Mapping[tuple[Any, ...], str]  # the status of a step by its series and commit


@dataclass(frozen=True)
class Branch:
    """The commits of the published branch: the place of each, and the day on which it was written (UTC)."""

    places: Mapping[str, int]
    days: Mapping[str, str]

    def sort_commits(self, commits: Iterable[str]) -> list[str]:
        """Return those commits that the branch has, in its order."""
        return sorted({*commits} & self.places.keys(), key=self.places.__getitem__)

    def format_commit(self, commit: str) -> str:
        """Return the short hash with the day."""
        return f"{commit[:8]}, {self.days.get(commit, '')}".removesuffix(", ")


def read_branch(places: Mapping[str, int], root: Path) -> Branch:
    """Return the commits of these places with their days in the repository ``root``."""
    read_day = functools.partial(datetime.datetime.fromtimestamp, tz=datetime.timezone.utc)
    dates = git.read_dates(root, places).items()
    return Branch(places, {commit: f"{read_day(at):%Y-%m-%d}" for commit, at in dates})


def write_histories(site: Path, accepted: Path, steps: Sequence[Step], branch: Branch) -> list[Card]:
    """Write the pages of the history of asv's validated files in ``accepted`` into the folder ``site``.

    Return a card for what became slower (``steps``), and one for each GPU, or CPU without one.
    """
    groups: dict[str, list[Series]] = {}
    for one in series.read(accepted):
        if one.rung and series.UNCOMMITTED not in one.facts and branch.sort_commits(one.values):
            groups.setdefault(name_device(one), []).append(one)
    states = {identify_line(step.series, step.bad): step.status for step in steps}
    count = sum(step.status in OPEN for step in steps)
    cards = [
        Card(
            "What became slower",
            [f"{count} steps to look at"],
            [("What became slower, and since when", OVERVIEW)],
        )
    ]
    for name in sorted(groups, key=lambda name: (not any(one.is_gpu for one in groups[name]), name)):
        commits = branch.sort_commits(commit for one in groups[name] for commit in one.values)
        days = dict.fromkeys(branch.days[each] for each in (commits[0], commits[-1]) if each in branch.days)
        about = "GPU time" if any(one.is_gpu for one in groups[name]) else "Step time"
        about += " of every rung over commits"
        address, span = f"history-{make_slug(name)}.html", f"{len(commits)} commits, {' to '.join(days)}"
        cards.append(Card(name, [span], [(f"{about}, {name}", address)]))
        head = Head(f"{name}: {about}", name, [about, span], [], [], OVERVIEW, "Speed over commits")
        sections = list_charts(groups[name], states, branch)
        (site / address).write_text(render_page(head, sections), encoding="utf-8")
    if groups:
        (site / OVERVIEW).write_text(render_overview(steps, cards[1:], branch), encoding="utf-8")
    return cards if groups else []


def name_device(one: Series) -> str:
    """Return the name of a series' GPU; where there is none, of the CPU or the machine."""
    return one.card if one.card != "none" else one.facts.get("cpu") or one.machine


def identify_line(one: Series, commit: str) -> tuple[Any, ...]:
    """Return a key for a series at a commit, which a result of the screening and a mark of a chart share."""
    return one.machine, one.environment, one.benchmark, one.params, commit


# --- what became slower -----------------------------------------------------------------------------------------------


def render_overview(steps: Sequence[Step], cards: Sequence[Card], branch: Branch) -> str:
    """Return the page that leads to all others: what became slower, the newest first, and a card for each GPU."""
    days = sorted({branch.days[step.bad] for step in steps if step.bad in branch.days})
    is_open, settled = (
        [step for step in steps if (step.status in OPEN) == wanted] for wanted in (True, False)
    )
    slower: list[Any] = [Since("Slower since", days[0], days[-1])] if days else ["Nothing became slower."]
    slower += [tabulate_steps(is_open, branch)] if is_open else []
    fold = f"Accepted, refuted or explained by other software: {len(settled)}"
    slower += [Fold(fold, [tabulate_steps(settled, branch)])] if settled else []
    link = "asv's own pages", f"{ASV}/index.html"
    machines = [*cards, Card("Every benchmark", ["asv's own pages need `asv preview`."], [link])]
    sections = [
        Section("slower", "What became slower", ABOUT_SLOWER, slower),
        Section("machines", "One GPU at a time", "GPU time is that of a GPU in any host.", [Cards(machines)]),
    ]
    about = (
        "Every rung at every measured commit: what became slower, since when, and whether that is confirmed."
    )
    return render_page(Head("History", "Speed over commits", [about], [], [], FRONT), sections)


def tabulate_steps(steps: Sequence[Step], branch: Branch) -> Table:
    """Return a row for each slowdown, the newest first."""
    columns = [
        Column("since", "date"), Column("what"), Column("more", "change"), Column("GPU time", "change"),
        Column("status"), Column("commit"), Column("machine"), Column("why"),
    ]  # fmt: skip
    rows = [
        [
            *(branch.days.get(step.bad, ""), step.series.name, step.share, step.gpu_share, step.status),
            f"{f'{step.good[:8]}..' if step.between else ''}{step.bad[:8]}",
            *(step.series.machine, step.why),
        ]
        for step in sorted(steps, key=lambda step: (ORDER.index(step.status), -step.share))
    ]
    return Table(columns, sorted(rows, key=lambda row: row[0], reverse=True)).drop_empty()


# --- a GPU ------------------------------------------------------------------------------------------------------------


def list_charts(every: Sequence[Series], states: States, branch: Branch) -> list[Section]:
    """Return a section for each workload: its GPU time, and the wall time of each host in a fold."""
    sections = []
    for workload in sorted({one.params[0] for one in every}):
        mine = [one for one in every if one.params[0] == workload]
        gpu, wall = ([one for one in mine if one.is_gpu == is_gpu] for is_gpu in (True, False))
        blocks: list[Any] = draw_rungs(gpu, states, branch) if gpu else []
        for machine in sorted({one.machine for one in wall}):
            drawn = draw_rungs([one for one in wall if one.machine == machine], states, branch)
            blocks.append(Fold(f"Wall time of a step on {machine}", drawn, is_open=not gpu))
        title = f"{workload}: {'GPU' if gpu else 'wall'} milliseconds a step"
        sections.append(Section(make_slug(workload), title, ABOUT, blocks))
    return sections


def draw_rungs(every: Sequence[Series], states: States, branch: Branch) -> list[Any]:
    """Return a row of a chart for each rung, and its numbers in a fold. Another software is another line."""
    commits = branch.sort_commits(commit for one in every for commit in one.values)
    names = {one.params[1] for one in every}  # a rung that has left the ladder stands behind the others
    rungs = [rung.name for rung in catalog.load_ladder("full").rungs if rung.name in names]
    rungs += sorted(names.difference(rungs))
    several = list(dict.fromkeys(series.list_software(one) for one in every))
    titles = {each: ", ".join(name_software(each, several)) for each in several}
    tones = {each: TONES[number % len(TONES)] for number, each in enumerate(several)}
    rows, cells = [], []
    for rung in rungs:
        runs, marks = [], list[Mark]()
        for one in (one for one in every if one.params[1] == rung):
            software = series.list_software(one)
            ms = {commit: 1000 * one.values[commit] for commit in branch.sort_commits(one.values)}
            points = [
                Point(
                    place_commit(commits, each), value, f"{branch.format_commit(each)}: {format_ms(value)} ms"
                )
                for each, value in ms.items()
            ]
            runs.append((tones[software], points))
            marks += list_marks(one, commits, states, branch)
            cells.append([rung, titles[software] if several[1:] else None, *map(ms.get, commits)])
        last = max((points[-1] for _, points in runs), key=lambda point: point.at)
        rows.append(Line(rung, runs, marks, f"{format_ms(last.value)} ms"))
    legend = [(tones[each], titles[each]) for each in several if several[1:]]
    ends = branch.format_commit(commits[0]), branch.format_commit(commits[-1])
    columns = [
        Column("rung"),
        Column("with"),
        *(Column(branch.format_commit(each), "ms") for each in commits),
    ]
    table = Table(columns, cells).drop_empty()
    chart = Lines(rows, "Milliseconds of each rung over commits", legend, ends)
    return [chart, Fold("The same in milliseconds", [table])]


def place_commit(commits: Sequence[str], commit: str) -> float:
    """Return where a commit stands, as a share of the width: all have the same room."""
    return (commits.index(commit) + 0.5) / len(commits)


def list_marks(one: Series, commits: Sequence[str], states: States, branch: Branch) -> list[Mark]:
    """Return a mark for each lasting change of a series: at its commit, with the verdict and new software."""
    marks = []
    for good, bad, share in screening.find_changes(one, branch.places):
        status = states.get(identify_line(one, bad), "regained since") if share > 0 else "not compared"
        tone = (
            "bad" if status == CONFIRMED else "open" if status in OPEN else "muted" if share > 0 else "good"
        )
        notes = (
            asvnotes.find_conditions(asvnotes.read_note(one.files[each]), one.benchmark)
            for each in (good, bad)
        )
        words = [f"{format_value('change', share)}, {status}", *asvnotes.list_excuses(*notes)]
        marks.append(Mark(place_commit(commits, bad), tone, bad[:8], ", ".join(words)))
    return marks


def name_software(software: tuple[str, ...], several: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the parts that name a set of libraries: its torch, and what distinguishes it from the others."""
    return [*software[:1], *(part for part in software[1:] if any(part not in other for other in several))]
