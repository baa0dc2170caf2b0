"""The profiles of rungs by `ladder profile`: the work of a step by category, and what changed from rung to rung."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ladder.base.records import build
from ladder.publish.report import html
from ladder.publish.report.found import File, Found
from ladder.publish.report.section import Reads, Section
from ladder.results import publishable
from ladder.results.parts import OVERLAP
from ladder.studies.profile import report
from ladder.studies.profile.record import Result
from ladder.studies.profile.schema import KIND

PLACE = 60
READS = (Reads(KIND, "profile"),)
LEAST_MS = 0.005  # less is 0.00 in a table
ORDER = "in brackets: the change against the profile to the left, in ms a step"


def section(found: Found) -> Section | None:
    """Return the categories of each profiled rung side by side, and all tables of each; None without a profile."""
    known = _in_order(found, [(file, build(Result, file.data)) for file in found.of(KIND)])
    if not known:
        return None
    results = [result for _, result in known]
    parts = [html.table(_categories(results), "Work of a step by category of each profiled rung")]
    parts.append(html.lines([ORDER] * (len(results) > 1)))
    parts += [_one(*each) for each in known]
    return Section(
        "profiles",
        "What a step consists of",
        html.joined(parts),
        "One process of each rung, as `ladder profile` sees it. It shows where time goes, and is no verdict.",
    )


def _in_order(found: Found, known: list[tuple[File, Result]]) -> list[tuple[File, Result]]:
    """Return the profiles in the order of the page's rungs, rungs of other ladders last."""
    places = {rung.name: place for place, rung in enumerate(found.main.rungs)}
    return sorted(known, key=lambda each: (places.get(each[1].rung, len(places)), each[1].rung, each[0].name))


def _categories(results: Sequence[Result]) -> list[list[str]]:
    """Return ms a step of every category, a column for each profile with the change against the one before."""
    once = all(each.once for each in results)  # older files count two kernels that ran at once twice
    work = [{row.name: row.shown_ms if once else row.ms for row in each.categories} for each in results]
    names = dict.fromkeys(row.name for each in results for row in each.categories)
    rows = [["ms a step", *(html.name(each.rung) for each in results)]]
    for name in sorted(names, key=lambda each: -max(row.get(each, 0.0) for row in work)):
        rows.append([html.name(name), *_changed([each.get(name, 0.0) for each in work])])
    overlaps = [each.overlap_ms if each.overlap_ms >= LEAST_MS else 0.0 for each in results]
    if any(overlaps) and not once:
        rows.append([OVERLAP, *_changed([0.0 - ms for ms in overlaps])])
    rows.append([report.together(results[0]), *_changed([each.gpu_ms for each in results])])
    rows.append(["step", *_changed([each.step_ms for each in results])])
    return rows


def _changed(sizes: Sequence[float]) -> list[str]:
    """Return sizes as text, with the change against the size before where there is one."""
    said = [f"{sizes[0]:.2f}"]
    for before, after in itertools.pairwise(sizes):
        apart = after - before
        said.append(f"{after:.2f} ({apart:+.2f})" if abs(apart) >= LEAST_MS else f"{after:.2f}")
    return said


def _one(file: File, result: Result) -> html.Markup:
    """Return all tables of a profile, folded under its sentence."""
    parts: list[html.Markup] = []
    for table in report.tables(result):
        if table.rows:
            rows = [list(table.head), *map(list, table.rows)]
            parts.append(html.table(rows, f"{table.title}, {file.name}", caption=table.title))
        parts.append(html.lines(table.lines))
    marks = [*map(publishable.told, file.marks)]
    about = f"{file.name}, {result.started[:10]}"
    return html.fold(
        report.sentence(result), html.joined([*parts, html.lines([*marks, about])]), on_paper=False
    )
