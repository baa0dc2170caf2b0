"""The construction of the front page, and the exchange of a finished site for the old one, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ladder.base import stopping
from ladder.base.errors import UserError
from ladder.base.text import slug
from ladder.publish import gallery
from ladder.publish.history import series as asvseries
from ladder.publish.report import found as reportfound
from ladder.publish.report import page as reportpage
from ladder.publish.site import collected, front
from ladder.report import chart, gpus
from ladder.report.themes import DARK, LIGHT
from ladder.results.ranking import Stored

REPORTS = "reports"  # the folder of full reports in the site
ASV = "asv"  # the folder of asv's pages in the site
_OURS = (
    f"{ASV}/info.json",
    "info.json",
)  # marks of our site, and of one that asv made without this publisher


def write_front(site: Path, ladder_results: Path, accepted: Path, revisions: Mapping[str, int]) -> list[str]:
    """Write the front page, the full charts, the full reports and the raw results into ``site``.

    Args:
        site: the site's folder.
        ladder_results: results of `ladder run`; beside it lie the folders of other kinds of result.
        accepted: asv's results, validated.
        revisions: commit -> its number on the branch.

    Returns:
        One line for each refused result of `ladder run`.
    """
    site = Path(site)
    found, refused = collected.publish(ladder_results, site / "results" / "ladder")
    points = asvseries.points(accepted)
    groups = collected.groups(found, [point for point in points if point.commit in revisions], site)
    asv_files = _copy_asv(accepted, site, revisions)
    charts: dict[int, list[tuple[str, str]]] = {}
    reports: dict[tuple[str, ...], str] = {}
    measured = [(panel, group) for group in groups for panel in group.panels if panel.result is not None]
    measured.sort(key=lambda each: each[0].is_part)  # a whole run names its report
    for panel, group in measured:
        if panel.raw not in reports:
            reports[panel.raw] = _report(panel, _stem(panel, group), found, site, ladder_results.parent)
        charts[id(panel)] = [*_charts(panel, group, site), (front.FULL_REPORT, reports[panel.raw])]
    told = [(panel, group) for group in groups for panel in (*group.tops, *group.highest)]
    for panel, group in told:
        if panel.raw not in reports:  # a run that a card alone shows
            reports[panel.raw] = _report(
                panel, f"{_stem(panel, group)}-top", found, site, ladder_results.parent
            )
        charts.setdefault(id(panel), [(front.FULL_REPORT, reports[panel.raw])])
    gpu_points = asvseries.points(accepted, asvseries.GPU_STEP)
    histories = front.Histories(
        asvseries.history(points, revisions), asvseries.history(gpu_points, revisions)
    )
    names = {point.machine: point.name for point in (*gpu_points, *points)}
    raw, compared = collected.raw(found, site), _compared(found)
    text = front.page(groups, histories, raw, asv_files, charts, names, compared)
    (site / "index.html").write_text(text, encoding="utf-8")
    return refused


def _compared(found: list[Stored]) -> front.Picture | None:
    """Return the picture that compares GPUs, as README has it; None where no GPU qualifies."""
    if not (pairs := gallery.compared([result for _, result in found])):
        return None
    light, dark = (gpus.render(pairs, "svg", theme=theme) for theme in (LIGHT, DARK))
    return front.Picture(
        "Each rung on each GPU, and a whole training: the tables below have its numbers", light, dark
    )


def _stem(panel: collected.Panel, group: collected.Group) -> str:
    """Return the name of a panel's files without suffix. It stays when a newer result takes the panel's place."""
    return "-".join(map(slug, (panel.machine, group.workload, group.ladder)))


def _charts(panel: collected.Panel, group: collected.Group, site: Path) -> list[tuple[str, str]]:
    (site / "charts").mkdir(exist_ok=True)
    made = []
    for words, suffix, theme in (("whole chart", "", LIGHT), ("dark chart", "-dark", DARK)):
        name = f"charts/{_stem(panel, group)}{suffix}.svg"
        (site / name).write_bytes(chart.render(panel.result, "svg", theme))
        made.append((words, name))
    return made


def _report(panel: collected.Panel, stem: str, found: list[Stored], site: Path, results: Path) -> str:
    """Write the page of one machine, workload and ladder, and return its path in the site."""
    run = next(each for each in found if each[0] == site / panel.raw[0])
    made = reportfound.around(run, found, results)
    name = f"{REPORTS}/{stem}.html"
    reportpage.write(made, site / name)
    return name


def _copy_asv(accepted: Path, site: Path, revisions: Mapping[str, int]) -> list[str]:
    """Copy asv's results of commits on the branch, with their machines' records, and return their paths."""
    copied = []
    for path in sorted(accepted.glob("*/*.json")):
        if path.name == "machine.json" or json.loads(path.read_bytes())["commit_hash"] not in revisions:
            continue
        target = site / "results" / "asv" / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        for name in ("machine.json", path.name):
            shutil.copyfile(path.with_name(name), target.with_name(name))
        copied.append(target.relative_to(site).as_posix())
    return copied


@contextmanager
def replacing(html: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``html`` that replaces ``html`` if the block succeeds.

    Raises:
        UserError: ``html`` is not a published site, or its parent folder cannot be written.
    """
    html = Path(os.path.abspath(html))
    if html.is_symlink() or (html.exists() and not _replaceable(html)):
        raise UserError(
            f"{html}: holds something else than a published site; name another folder with --html-dir"
        )
    work = None
    try:
        with stopping.held_back():
            try:
                html.parent.mkdir(parents=True, exist_ok=True)
                work = Path(tempfile.mkdtemp(prefix=f".{html.name}-", dir=html.parent))
            except OSError as error:
                raise UserError(f"{html}: cannot be written: {error.strerror}") from None
        made = work / "site"
        made.mkdir()
        yield made
        with stopping.held_back():
            try:
                if html.exists():
                    os.replace(html, work / "before")
                os.replace(made, html)
            except BaseException:  # what is in the working folder goes
                if (work / "before").exists() and not html.exists():
                    os.replace(work / "before", html)
                raise
    finally:
        with stopping.held_back():
            if work:
                shutil.rmtree(work, ignore_errors=True)


def _replaceable(html: Path) -> bool:
    return html.is_dir() and (not any(html.iterdir()) or any((html / name).is_file() for name in _OURS))
