"""The recommendation, and every rung's time in units of practice."""

from __future__ import annotations

from ladder.base.errors import UserError
from ladder.base.text import amount, ms
from ladder.publish.report import html
from ladder.publish.report.found import Found
from ladder.publish.report.section import Section
from ladder.publish.report.sections import energy
from ladder.report import gpus, recommend, recommend_text

PLACE = 20
PUBLISHED_AT = 256  # the resolution of NVIDIA's figures


def section(found: Found) -> Section | None:
    """Return what to switch on, None where no rung has a number."""
    try:
        made = recommend.recommend(found.sources, price=found.price)
    except UserError:
        return None
    parts = [
        html.text(f"Recipe: {', '.join(made.kept)}"),
        html.table(recommend_text.figures(made), "The recommended recipe in units of practice"),
        html.table([recommend_text.head(made), *recommend_text.rows(made)], "Advice on each rung"),
        html.lines(recommend_text.below(made)),
        html.fold("Why, rung by rung", html.lines(recommend_text.reasons(made))),
        html.fold(
            "Every rung in units of practice",
            html.joined([html.table(_units(found, made), "Units of practice"), html.lines(_notes(found))]),
        ),
    ]
    if made.recipe is not None:
        told = recommend_text.recipe_yaml(made, found.whose)
        parts.append(html.fold("The recipe as YAML, for `ladder train --recipe`", html.code(told)))
    return Section("advice", "What to switch on", html.joined(parts), _about(found))


def _about(found: Found) -> str:
    files = ", ".join(f"{kind} {name}" for kind, name in found.names.items())
    return f"As `ladder recommend` says it, from {files}."


def _units(found: Found, made: recommend.Recommendation) -> list[list[str]]:
    head = ["rung", "ms/step", "s/kimg", "images/s", f"hours for {recommend.count(made.images)} images"]
    rows = [[*head, *(["money"] if made.price is not None else []), "J/step"]]
    joules = energy.by_recipe(found)
    for rung in found.main.rungs:
        if rung.status != "ok" or not rung.step_ms:
            continue
        each = recommend.units(rung.step_ms, made.batch, made.images, made.price)
        cells = [ms(each.ms), f"{each.s_per_kimg:.2f}", amount(each.images_per_s), f"{each.hours:,.1f}"]
        cells += [] if each.money is None else [f"{each.money:,.2f}"]
        rows.append([html.name(rung.name), *cells, joules(rung.recipe)])
    for each in gpus.PUBLISHED if _has_published(found) else ():
        hours = each.s_kimg * made.images / 3.6e6
        cells = ["", f"{each.s_kimg:.2f}", amount(1000 / each.s_kimg), f"{hours:,.1f}"]
        cells += [] if made.price is None else [""]
        rows.append([f"{gpus.PUBLISHER}, {each.gpu}", *cells, ""])
    return rows


def _has_published(found: Found) -> bool:
    """Return whether the published figures are of this resolution."""
    return found.main.workload.get("resolution") == PUBLISHED_AT


def _notes(found: Found) -> list[str]:
    return [gpus.PUBLISHED_AS] if _has_published(found) else []
