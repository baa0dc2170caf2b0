"""The explanation of each step of the staircase: what the difference of two neighbours consists of."""

from __future__ import annotations

from itertools import pairwise

from ladder.publish.report import html
from ladder.publish.report.found import Found
from ladder.publish.report.section import Section
from ladder.report import explain
from ladder.report.explain import Explained, Side
from ladder.results import parts

PLACE = 50


def section(found: Found) -> Section | None:
    """Return the explanations of neighbours, None if no two of them have a profile."""
    if found.staircase is None:
        return None
    main, path = found.main, found.main_path
    sides = [
        Side(path, main, rung, each)
        for rung in main.rungs
        if rung.status == "ok" and (each := parts.parts_of(rung))
    ]
    explained = [explain.explain(*pair) for pair in pairwise(sides)]
    if not explained:
        return None
    if len(explained) > 1:
        explained.append(explain.explain(sides[0], sides[-1]))
    return Section(
        "steps",
        "Why: each step explained",
        html.joined([_one(each) for each in explained]),
        "As `ladder explain A B` says it. A difference inside the noise, or not decided, is not explained.",
    )


def _one(found: Explained) -> html.Markup:
    first, second = found.names
    table = html.table([explain.head(found), *explain.rows(found)], f"{first} and {second} by category")
    return html.fold(
        html.Markup('<strong>{} → {}</strong> <span class="{}">{}</span>').format(
            first, second, "" if found.differs else "muted", html.marked(_sentence(found))
        ),
        html.joined([table, html.lines(explain.notes(found))]),
    )


def _sentence(found: Explained) -> str:
    """Return the sentence of an explanation without the name that the line begins with."""
    return explain.sentence(found).removeprefix(f"{found.names[1]}: ")
