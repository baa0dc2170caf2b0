"""The profiles of rungs by `ladder profile`: the work of a step by category, and what changed from rung to rung."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ladder.publish.report import html
from ladder.publish.report.found import File, Found
from ladder.publish.report.section import Reads, Section
from ladder.results import publishable
from ladder.results.parts import OVERLAP
from ladder.show.table import Column, Table, render_html
from ladder.studies import frame
from ladder.studies.profile.record import Profile
from ladder.studies.profile.study import STUDY, name_whole, tabulate_profile, write_sentences

PLACE = 60
KIND = frame.as_kind(STUDY)
READS = (Reads(KIND, "profile"),)
LEAST_MS = 0.005  # less is 0.00 in a table
ORDER = "in brackets: the change against the profile to the left, in ms a step"


def section(found: Found) -> Section | None:
    """Return the categories of each profiled rung side by side, and all tables of each; None without a profile."""
    known = [(file, STUDY.derive(frame.decode_file(STUDY, file.data))) for file in found.of(KIND)]
    known = _put_in_order(found, [each for each in known if each[1].categories])
    if not known:
        return None
    parts = [render_html(_compare_categories([profile for _, profile in known]))]
    parts.append(html.lines([ORDER] * (len(known) > 1)))
    parts += [_show_one(*each) for each in known]
    return Section(
        "profiles",
        "What a step consists of",
        html.joined(parts),
        "One process of each rung, as `ladder profile` sees it. It shows where time goes, and is no verdict.",
    )


def _put_in_order(found: Found, known: list[tuple[File, Profile]]) -> list[tuple[File, Profile]]:
    """Return the profiles in the order of the page's rungs, rungs of other ladders last."""
    places = {rung.name: place for place, rung in enumerate(found.main.rungs)}
    return sorted(
        known, key=lambda each: (places.get(each[1].rung or "", len(places)), each[1].rung, each[0].name)
    )


def _compare_categories(profiles: Sequence[Profile]) -> Table:
    """Return ms a step of every category, a column for each profile with the change against the one before."""
    once = all(each.is_once for each in profiles)  # older files count two kernels that ran at once twice
    work = [{row.name: row.shown_ms if once else row.ms for row in each.categories} for each in profiles]
    names = dict.fromkeys(row.name for each in profiles for row in each.categories)
    rows = [
        [name, *_format_changes([each.get(name, 0.0) for each in work])]
        for name in sorted(names, key=lambda each: -max(row.get(each, 0.0) for row in work))
    ]
    overlaps = [each.overlap_ms if each.overlap_ms >= LEAST_MS else 0.0 for each in profiles]
    if any(overlaps) and not once:
        rows.append([OVERLAP, *_format_changes([0.0 - ms for ms in overlaps])])
    rows.append([name_whole(profiles[0]), *_format_changes([each.gpu_ms or 0.0 for each in profiles])])
    rows.append(["step", *_format_changes([each.step_ms or 0.0 for each in profiles])])
    columns = [Column("ms a step"), *(Column(each.rung or "", "ms") for each in profiles)]
    return Table(columns, rows)


def _format_changes(sizes: Sequence[float]) -> list[str]:
    """Return sizes as text, with the change against the size before where there is one."""
    cells = [f"{sizes[0]:.2f}"]
    for before, after in itertools.pairwise(sizes):
        apart = after - before
        cells.append(f"{after:.2f} ({apart:+.2f})" if abs(apart) >= LEAST_MS else f"{after:.2f}")
    return cells


def _show_one(file: File, profile: Profile) -> html.Markup:
    """Return all tables of a profile, folded under its sentence."""
    raw = frame.decode_file(STUDY, file.data)
    marks = [*map(publishable.told, file.marks), f"{file.name}, {raw.started[:10]}"]
    parts = [*map(render_html, tabulate_profile(profile)), html.lines(marks)]
    return html.fold(write_sentences(raw, profile)[1], html.joined(parts), on_paper=False)
