"""The energy of a step, and whether its speed lasts: from the results of `ladder sustain`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ladder.base.text import amount
from ladder.publish.report import html
from ladder.publish.report.found import File, Found
from ladder.publish.report.section import Reads, Section
from ladder.results import publishable
from ladder.results.types import Plain
from ladder.show.table import render_html
from ladder.studies import frame
from ladder.studies.sustain import STUDY, Sustained, derive_energy, format_energy
from stylegan_lite.config import Recipe

PLACE = 75
KIND = frame.as_kind(STUDY)
READS = (Reads(KIND, "sustained"),)


def section(found: Found) -> Section | None:
    """Return what sustained runs say, None without any."""
    files = found.of(KIND)
    if not files:
        return None
    return Section(
        "energy",
        "Energy, and whether the speed lasts",
        html.joined(_one(found, file) for file in files),
        "One process of each rung for a while, as `ladder sustain` follows it; sustained is the later half.",
    )


def _one(found: Found, file: File) -> html.Markup:
    raw = frame.decode_file(STUDY, file.data)
    derived: Sustained = STUDY.derive(raw)
    used = [(rung.name, each) for rung in derived.rungs if (each := derive_energy(rung))]
    batch = int((raw.workload or {})["batch"] or 1)
    practice = [["rung", "J a step", "J an image", "kWh for 25M images", "seconds", "read from"]]
    for name, each in used:
        image = each.step_j / batch
        cells = [format_energy(each), f"{image:.3g}", amount(image * 25e6 / 3.6e6)]
        practice.append([html.name(name), *cells, f"{each.seconds:.0f}", each.source])
    other = [rung.name for rung in derived.rungs if not _timed(found, rung.recipe)]
    notes = [*map(publishable.told, file.marks)]
    notes += [f"another recipe than any rung of this page: {', '.join(map(html.name, other))}"] * bool(other)
    notes += ["no ten seconds in a row know power or energy: the energy of a step is unknown"] * (not used)
    (sustained,) = STUDY.list_tables(raw)
    return html.joined(
        [
            render_html(dataclasses.replace(sustained, title=f"{file.name}, {raw.started[:10]}")),
            html.table(practice, f"Energy, {file.name}") if used else html.Markup(),
            html.lines(notes),
        ]
    )


def _whole(recipe: Plain) -> Plain:
    return Recipe().to_dict() | recipe


def _timed(found: Found, recipe: Plain) -> bool:
    """Return whether a rung of the page has this very recipe."""
    whole = _whole(recipe)
    return any(rung.recipe and _whole(rung.recipe) == whole for rung in found.main.rungs)


def by_recipe(found: Found) -> Callable[[Plain | None], str]:
    """Return a function that gives the joules of a step with a recipe as text, "" where no file has it."""
    known = [
        (_whole(rung.recipe), format_energy(derive_energy(rung)))
        for file in found.of(KIND)
        for rung in STUDY.derive(frame.decode_file(STUDY, file.data)).rungs
    ]

    def joules(recipe: Plain | None) -> str:
        return "" if recipe is None else next((told for held, told in known if held == _whole(recipe)), "")

    return joules
