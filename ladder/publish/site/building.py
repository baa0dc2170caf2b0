"""The construction of the site, and the exchange of a finished one for the old, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ladder.core import stopping, text
from ladder.core.errors import UserError
from ladder.publish.history import series
from ladder.publish.report.inputs import gather_inputs
from ladder.publish.report.page import write_report
from ladder.publish.site import front
from ladder.publish.validation import validate
from ladder.results import loading
from ladder.results.ranking import Stored

ASV = "asv"  # the folder of asv's pages
_MARKS = (f"{ASV}/info.json", "info.json")  # of our site, and of one that asv made without this publisher


def write_front(site: Path, ladder_results: Path, accepted: Path, revisions: Mapping[str, int]) -> list[str]:
    """Write the front page, the full reports and the raw results into ``site``.

    Args:
        site: the site's folder.
        ladder_results: results of `ladder run`; beside it lie the folders of other kinds of result.
        accepted: asv's results, validated.
        revisions: commit -> its number on the branch.

    Returns:
        One line for each refused result of `ladder run`.
    """
    stored, refused = publish_results(ladder_results, site / "results" / "ladder")
    entries = front.choose_entries(stored, site)
    for entry in entries:
        write_report(gather_inputs(entry.run, stored, ladder_results.parent), site / entry.report)
    points, gpu_points = series.points(accepted), series.points(accepted, series.GPU_STEP)
    histories = front.collect_histories(points, gpu_points, revisions)
    files = publish_asv(accepted, site, revisions)
    sections = front.list_sections(entries, stored, histories, files, site)
    machines = len({entry.machine for entry in entries})
    (site / "index.html").write_text(front.render_front(sections, machines), encoding="utf-8")
    return refused


def publish_results(folder: Path, into: Path) -> tuple[list[Stored], list[str]]:
    """Copy the valid results of `ladder run` below ``folder`` to ``into``.

    Returns:
        (the copies with their content, one line for each refused file)
    """
    stored, refused = [], []
    files = {loading.show_path(path): path for path in sorted(folder.rglob("*.json"))}
    for judged in validate.validate([folder]) if files else []:
        if judged.problem:
            refused.append(f"{judged.path}: {judged.problem}")
            continue
        source = files[judged.path]
        try:
            result = loading.load_run(source)
        except UserError:
            refused.append(f"{judged.path}: not a result of `ladder run`, whose folder this is")
            continue
        # Named after the machine, not after the folder of the file.
        copy = into / text.make_slug(result.machine.name) / source.name
        if copy.exists():
            refused.append(f"{judged.path}: another file of this machine has its name")
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        stored.append((copy, result))
    return stored, refused


def publish_asv(accepted: Path, site: Path, revisions: Mapping[str, int]) -> list[str]:
    """Copy asv's results of commits on the branch, with their machines' records, and return their paths."""
    copied = []
    for path in sorted(accepted.glob("*/*.json")):
        if path.name != "machine.json" and json.loads(path.read_bytes())["commit_hash"] in revisions:
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
