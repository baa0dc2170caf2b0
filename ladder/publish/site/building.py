"""The construction of the site, and the exchange of a finished one for the old, whole or not at all."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from ladder.base import stopping
from ladder.base.errors import UserError
from ladder.base.text import ms
from ladder.publish import gallery
from ladder.publish.history import series as asvseries
from ladder.publish.report.inputs import gather_inputs
from ladder.publish.report.page import write_report
from ladder.publish.site import collection, figures
from ladder.publish.site.collection import Group, History, Raw
from ladder.report import chart, gpus
from ladder.report.panels import short_ms
from ladder.report.themes import DARK, LIGHT, Theme
from ladder.results.run import Result

ASV, CHARTS = "asv", "charts"  # folders of the site: asv's pages, and pictures
TEMPLATES = Path(__file__).resolve().parent / "templates"
# Marks of our site, and of one that asv made without this publisher.
_MARKS = (f"{ASV}/info.json", "info.json")
# The page's own colours: green for `faster`, and the lines between rows. All others are the charts' colours.
_COLORS = {
    LIGHT: {"good": "#1A6E34", "line": "#D5DAE0", "mark": LIGHT.article, "link": "#005A8C"},
    DARK: {"good": "#6CCB88", "line": "#343C45", "mark": DARK.article, "link": "#7CC5F0"},
}


@dataclass(frozen=True)
class Content:
    """The content of the front page.

    ``reports``: the page of each full report, by the path of its run. ``has_gpus``: whether a picture compares GPUs.
    """

    groups: Sequence[Group] = ()
    histories: Sequence[History] = ()
    raw: Sequence[Raw] = ()
    asv_files: Sequence[str] = ()
    reports: Mapping[str, str] = field(default_factory=dict)
    has_gpus: bool = False


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
    stored, refused = collection.publish_results(ladder_results, site / "results" / "ladder")
    points = asvseries.points(accepted)
    groups = collection.collect_groups(stored, [each for each in points if each.commit in revisions], site)
    reports = collection.name_reports(groups)
    for path, result in stored:
        if name := reports.get(path.relative_to(site).as_posix()):
            write_report(gather_inputs((path, result), stored, ladder_results.parent), site / name)
    pairs = gallery.pair_gpus([result for _, result in stored])
    content = Content(
        groups,
        collection.collect_histories(points, asvseries.points(accepted, asvseries.GPU_STEP), revisions),
        collection.list_raw(stored, site),
        collection.publish_asv(accepted, site, revisions),
        reports,
        bool(pairs),
    )
    write_pictures(content, pairs, site)
    (site / "index.html").write_text(render_front(content), encoding="utf-8")
    return refused


def write_pictures(content: Content, pairs: list[tuple[Result, Result | None]], site: Path) -> None:
    """Write the pictures of the front page in both themes. ``pairs``: what `gallery.pair_gpus` gives."""
    pictures: dict[str, Callable[..., bytes]] = {}
    for group in content.groups:
        for panel in group.panels:
            bars = functools.partial(figures.draw_ladder, panel.shown, group.most)
            pictures[f"{panel.stem}-bars"] = bars
            if panel.result:
                pictures[panel.stem] = functools.partial(chart.render, panel.result, "svg")
    for history in content.histories:
        if history.commits > 1:
            pictures[history.stem] = functools.partial(figures.draw_history, history.drawn)
    if pairs:
        pictures["gpus"] = functools.partial(gpus.render, pairs, "svg")
    (site / CHARTS).mkdir(exist_ok=True)
    for name, draw in pictures.items():
        for suffix, theme in (("", LIGHT), ("-dark", DARK)):
            (site / CHARTS / f"{name}{suffix}.svg").write_bytes(draw(theme=theme))


def render_front(content: Content) -> str:
    """Return the front page as HTML. It has no script, and its pictures are files, so it works from a folder, too."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"ms": ms, "short_ms": short_ms, "address": quote}
    style = environment.get_template("front.css.jinja").render(light=colors(LIGHT), dark=colors(DARK))
    return environment.get_template("front.html.jinja").render(
        style=style,
        style_digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        content=content,
        cards=collection.collect_cards(content.groups, content.reports),
        machines=len({panel.machine for group in content.groups for panel in group.panels}),
        charts=CHARTS,
        asv_address=collection.asv_address,
    )


def colors(theme: Theme) -> dict[str, str]:
    """Return the page's colours by the names in its style sheet."""
    return {**vars(theme), **_COLORS[theme]}


@contextmanager
def replacing(html: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``html`` that replaces ``html`` if the block succeeds.

    Raises:
        UserError: ``html`` is not a published site, or its parent folder cannot be written.
    """
    html = Path(os.path.abspath(html))
    if html.is_symlink() or (html.exists() and not _is_site(html)):
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
        fresh = work / "site"
        fresh.mkdir()
        yield fresh
        with stopping.held_back():
            try:
                if html.exists():
                    os.replace(html, work / "before")
                os.replace(fresh, html)
            except BaseException:  # what is in the working folder goes
                if (work / "before").exists() and not html.exists():
                    os.replace(work / "before", html)
                raise
    finally:
        with stopping.held_back():
            if work:
                shutil.rmtree(work, ignore_errors=True)


def _is_site(html: Path) -> bool:
    return html.is_dir() and (not any(html.iterdir()) or any((html / name).is_file() for name in _MARKS))
