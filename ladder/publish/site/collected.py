"""The content of the front page: the best ladder of each machine and workload, and the paths of the raw results."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ladder.base import text
from ladder.base.errors import UserError
from ladder.base.text import plain
from ladder.plan import catalog, content, modes
from ladder.publish import gallery
from ladder.publish.history import series as asvseries
from ladder.publish.validation import validate
from ladder.report import panels
from ladder.report.view import View, view
from ladder.results import identity, loading, ranking, sources
from ladder.results import store as results
from ladder.results.combine import series
from ladder.results.publishable import publishable
from ladder.results.ranking import Stored
from ladder.results.types import Result

FULL = "full"  # the ladder whose rungs asv measures


@dataclass(frozen=True)
class Raw:
    """One published result file."""

    path: str  # relative to the site's folder
    machine: str
    workload: str
    ladder: str
    mode: str
    started: str
    marks: tuple[str, ...]


@dataclass(frozen=True)
class Panel:
    """One machine's ladder."""

    machine: str  # its short name, as in the folders of results
    shown: View
    result: Result | None  # absent if only asv measured the machine
    raw: tuple[str, ...]  # paths relative to the site's folder

    @property
    def is_part(self) -> bool:
        """Return whether it shows some rungs of a run of another ladder."""
        return self.result is not None and self.result.part_of is not None

    @property
    def single(self) -> bool:
        return self.result is None


@dataclass(frozen=True)
class Group:
    """The same ladder and workload on several machines, which may share a scale.

    ``tops``: of each machine the run whose highest rung is the top of the ladder, mostly that of its panel.
    ``highest``: of each machine without one the run that came highest.
    """

    workload: str
    ladder: str
    title: str
    panels: tuple[Panel, ...]
    tops: tuple[Panel, ...] = ()
    highest: tuple[Panel, ...] = ()

    @property
    def most(self) -> float:
        """Return the milliseconds of the longest bar or error bar of all panels."""
        return max(panels.most_ms(panel.shown) for panel in self.panels)


def publish(folder: Path, into: Path) -> tuple[list[tuple[Path, Result]], list[str]]:
    """Copy the valid results of `ladder run` below ``folder`` to ``into``.

    Returns:
        (the copies with their content, one line for each refused file)
    """
    found, refused = [], []
    there = {loading.show_path(path): path for path in sorted(folder.rglob("*.json"))}
    for judged in validate.validate([folder]) if there else []:
        if judged.problem:
            refused.append(f"{judged.path}: {judged.problem}")
            continue
        source = there[judged.path]
        try:
            result = results.load(source)
        except UserError:
            refused.append(f"{judged.path}: not a result of `ladder run`, whose folder this is")
            continue
        # Named after the machine, not after the folder of the file.
        copy = into / text.slug(result.machine.name) / source.name
        if copy.exists():
            refused.append(f"{judged.path}: another file of this machine has its name")
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        found.append((copy, result))
    return found, refused


def raw(found: Iterable[tuple[Path, Result]], site: Path) -> list[Raw]:
    """Return all published result files, by machine and workload, newest first."""
    made = [
        Raw(
            path.relative_to(site).as_posix(),
            plain(result.machine.name),
            plain(result.workload["name"]),
            plain(result.ladder.name),
            plain(ranking.mode(result)),
            plain(result.started)[:16].replace("T", " "),
            tuple(map(plain, publishable(result))),
        )
        for path, result in found
    ]
    made.sort(key=lambda each: each.started, reverse=True)
    return sorted(made, key=lambda each: (each.machine, each.workload, each.ladder))


def groups(found: list[Stored], points: list[asvseries.Point], site: Path) -> list[Group]:
    """Return the ladders by workload, GPUs before CPUs. A machine measured only by asv joins as a single run."""
    kept = gallery.with_article(sources.without_sources(result for _, result in found))
    climbed: dict[tuple[str, str], dict[str, list[Result]]] = {}
    called = identity.labels(result.workload for result in kept)
    for result in kept:
        if ranking.mode(result) == modes.CUMULATIVE:
            work, ladder = result.workload, result.ladder
            names = called[work["name"], content.of_workload(work)], ladder.name
            said = ladder.digest  # a user's ladders with one name may differ in their order
            if said and not names[1].endswith(said):
                names = names[0], f"{names[1]}-{said}"
            climbed.setdefault(names, {}).setdefault(result.machine.name, []).append(result)
    paired = {(result.machine.name, result.workload["name"]) for result in kept}
    made = []
    for (workload, ladder), machines in climbed.items():
        shown, tops, highest = _panels(machines, found, site)
        rungs = max((panel.result.ladder.rungs for panel in shown if panel.result), key=len)
        every = (*shown, *_single(points, paired, workload, rungs))
        made.append(Group(workload, ladder, shown[0].shown.title, every, tuple(tops), tuple(highest)))
    for workload in {point.workload for point in points} - {group.workload for group in made}:
        names = [step.name for step in catalog.load_ladder(FULL).rungs]
        seen = {name for point in points if point.workload == workload for name, _ in point.ms}
        single = _single(points, paired, workload, [name for name in names if name in seen])
        made.append(Group(workload, FULL, catalog.load_ladder(FULL).title, tuple(single)))
    made = [group for group in made if group.panels]
    return sorted(made, key=lambda group: (_on_cpu(group), group.workload != "article", _name(group)))


def _panels(
    machines: dict[str, list[Result]], found: list[Stored], site: Path
) -> tuple[list[Panel], list[Panel], list[Panel]]:
    """Return the panel of each machine's best run, that of the run with the ladder's top, and else of the highest."""
    others = [result for _, result in found]

    def panel(result: Result) -> Panel:
        whole, (path, _) = series.with_top(result, others), _run_of(result, found)
        return Panel(plain(result.machine.name), view(whole), whole, (path.relative_to(site).as_posix(),))

    shown: list[Panel] = []
    tops: list[Panel] = []
    highest: list[Panel] = []
    for _, runs in sorted(machines.items()):
        best, top = max(runs, key=ranking.rank), gallery.best_top(runs)
        shown.append(panel(best))
        if (answer := top or gallery.highest(runs)) is not None:
            (tops if top else highest).append(shown[-1] if answer is best else panel(answer))
    return shown, tops, highest


def _run_of(result: Result, found: list[Stored]) -> Stored:
    """Return the stored run that a result is, or whose rungs it shows."""
    own = [each for each in found if each[1] is result]
    return own[0] if own else next(each for each in found if each[1].rungs[0] is result.rungs[0])


def _name(group: Group) -> tuple[str, bool, str]:
    return group.workload, group.ladder != "article", group.ladder


def _on_cpu(group: Group) -> bool:
    devices = {panel.result.machine.device for panel in group.panels if panel.result}
    return devices == {"cpu"} or (not devices and group.workload == "tiny")


def _single(
    points: list[asvseries.Point], paired: set[tuple[str, str]], workload: str, rungs: list[str]
) -> list[Panel]:
    mine = [point for point in points if point.workload == workload]
    return [
        Panel(point.machine, shown, None, (f"results/asv/{point.path}",))
        for point, shown in asvseries.single_runs(mine, paired, rungs)
    ]
