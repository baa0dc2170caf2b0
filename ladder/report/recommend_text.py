"""The words of a recommendation: for a terminal, as Markdown, as plain data, and its recipe as YAML."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from ladder.base import text
from ladder.report import adopting
from ladder.report.advising import LEFT_OUT, STAIRCASE, Advised
from ladder.report.recommend import Recommendation, Units, count
from ladder.results import parts, publishable, ranking
from ladder.results.run import Result
from ladder.results.types import Plain
from ladder.results.words import answer
from stylegan_lite.config import Recipe

UNTIMED = "this very recipe was not timed: the figures are those of {}"
SAVES = (
    "saves: by the clock that decided, GPU work or step; savings of single rungs do not add up to the whole"
)
PARTS = 2  # categories of a rung's GPU work that a terminal shows
WORK = "what changes in the GPU's work, by category (all that is known: --markdown FILE)"
HEAD = [
    "rung",
    "advice",
    "by",
    "gain",
    "interval",
    "saves ms/step",
    "hours",
    "prepares, s",
    "pays back after",
]


def rows(found: Recommendation) -> list[list[str]]:
    """Return the cells of each rung under `HEAD`."""
    return [_row(found, each) for each in found.rungs]


def _row(found: Recommendation, each: Advised) -> list[str]:
    money = found.price is not None and each.saved_ms is not None
    hours = _hours(found.hours(each.saved_ms))
    paid = (found.hours(each.saved_ms) or 0.0) * (found.price or 0.0)
    by = f"{each.clock}{', left out' if each.source == LEFT_OUT else ''}"
    cells = [
        each.name,
        each.advice,
        by,
        answer(each.seen),
        text.bounds(each.interval),
        _saved(each.saved_ms),
    ]
    cells += [
        hours,
        "" if each.prepare_s is None else f"{text.rounded(each.prepare_s, 1):+.1f}",
        _steps(each.pays_back),
    ]
    return [*cells, *([f"{paid:,.2f}"] if money else [""] if found.price is not None else [])]


def head(found: Recommendation) -> list[str]:
    """Return the headings of the rungs, with money where a price is known."""
    return [*HEAD, *(["money"] if found.price is not None else [])]


def figures(found: Recommendation) -> list[list[str]]:
    """Return the table of the times in units of practice: a heading, the baseline, the recipe, what it saves."""
    heading = ["", "ms/step", "s/kimg", "images/s", f"hours for {count(found.images)} images"]
    made = [[*heading, *(["money"] if found.price is not None else [])]]
    if found.baseline:
        made.append([str(found.baseline_name), *_units(found.baseline)])
    made.append(["recommended" if found.is_timed else f"{found.timed_as}, timed", *_units(found.recommended)])
    if found.baseline and found.saved_ms is not None:
        one, other = found.baseline, found.recommended
        cells = [_saved(found.saved_ms), f"{one.s_per_kimg - other.s_per_kimg:.2f}", ""]
        cells.append(_hours(one.hours - other.hours))
        if one.money is not None and other.money is not None:
            cells.append(f"{one.money - other.money:,.2f}")
        made.append(["saved", *cells])
    return made


def _units(each: Units) -> list[str]:
    cells = [text.ms(each.ms), f"{each.s_per_kimg:.2f}", text.amount(each.images_per_s), _hours(each.hours)]
    return [*cells, *([] if each.money is None else [f"{each.money:,.2f}"])]


def _hours(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def _saved(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def _steps(number: int | None) -> str:
    if not number:
        return "" if number is None else "at once"
    return f"{number:,} step{'' if number == 1 else 's'}"


def reasons(found: Recommendation) -> list[str]:
    """Return the advice on each rung, why, and the command that would decide an open verdict.

    Rungs with equal words share a line.
    """
    return _joined((each, each.reason) for each in found.rungs)


def _joined(said: Iterable[tuple[Advised, str]]) -> list[str]:
    lines: dict[str, list[str]] = {}
    for each, why in said:
        decide = f"; decide: `{each.decide}`" if each.decide else ""
        lines.setdefault(f"{each.advice}: {why}{decide}", []).append(each.name)
    return [f"{', '.join(names)}: {why}" for why, names in lines.items()]


def _short(found: Recommendation) -> list[str]:
    """Return the reasons for a terminal: what the table does not say, then what the GPU's work is made of."""
    made = [[each.name, parts.made_of(*each.profiles, PARTS)] for each in found.rungs if each.profiles]
    lines = _joined((each, each.said) for each in found.rungs if not each.told)
    return [*lines, *(["", f"{WORK}:", *text.aligned(made, words=(0, 1))] if made else [])]


def below(found: Recommendation) -> list[str]:
    """Return the lines under the figures."""
    lines = list(found.remarks)
    if found.recipe is None:
        lines.append(
            "no recipe: this version cannot run these rungs together; measure anew with `ladder run`"
        )
    elif not found.is_timed:
        lines.append(UNTIMED.format(found.timed_as))
    if found.pays_back and found.prepare_s:
        more = f"{found.prepare_s:.1f} s more preparing"
        lines.append(
            f"the recipe: {more} than {found.baseline_name}, paid back after {_steps(found.pays_back)}"
        )
    return [*lines, *adopting.lines(found.kept), SAVES]


def source_lines(found: Recommendation, files: dict[str, str], other_code: str | None = None) -> list[str]:
    """Return a line for each result that the advice comes from; `files` names them.

    `other_code` names a leave-one-out run of other code, which advises by itself alone.
    """
    none = f"none of this code; of other code: {other_code}" if other_code else "none"
    results = {STAIRCASE: found.sources.staircase, LEFT_OUT: found.sources.left_out}
    return [f"{kind}: {_source(each, files.get(kind)) if each else none}" for kind, each in results.items()]


def _source(result: Result, file: str | None) -> str:
    rounds = ranking.fewest_rounds(result)
    made = f"{rounds} generation{'' if rounds == 1 else 's'}, {result.started[:10]}"
    return f"{file} ({made})" if file else made


def of_terminal(
    found: Recommendation, whose: str, files: dict[str, str], other_code: str | None = None
) -> str:
    """Return the recommendation for a terminal. Its first line says whose result it is."""
    lines = [whose, found.workload, *source_lines(found, files, other_code), *found.marks, ""]
    lines += _aligned([head(found), *rows(found)])
    lines += ["", *_short(found), "", *_aligned(figures(found)), ""]
    lines += [f"recipe: {', '.join(found.kept)}", *below(found)]
    return "\n".join(map(_line, lines))


def _line(said: str) -> str:
    return "".join(each if each.isprintable() else " " for each in said)


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns. A column that is empty in every row but the first is left out."""
    first, *rest = table
    kept = [k for k in range(len(first)) if any(row[k] for row in rest)]
    return text.aligned([[row[k] for k in kept] for row in table])


def markdown(found: Recommendation, whose: str) -> str:
    """Return the recommendation as a section of Markdown."""
    made = [
        f"### What to switch on: {text.escaped(found.machine)}",
        "",
        text.escaped(f"{whose}; {found.workload}"),
        "",
    ]
    made += [f"**{text.escaped(mark)}**\n" for mark in found.marks]
    made += [tables(found), ""]
    lines = [*reasons(found), f"recipe: {', '.join(found.kept)}", *below(found)]
    made += [f"- {text.escaped(line)}" for line in lines]
    return "\n".join([*made, *adopting.markdown(found.kept)]) + "\n"


def tables(found: Recommendation) -> str:
    """Return both tables as Markdown: the rungs, then the units of practice."""
    of_rungs = text.piped([head(found), *rows(found)], range(3))
    return "\n".join([*of_rungs, "", *text.piped(figures(found))])


def data_of(found: Recommendation, whose: str, files: dict[str, str]) -> Plain:
    """Return the recommendation as plain data for JSON. Times in ms a step, intervals of factors."""
    rungs = [
        {
            "rung": each.name, "title": each.title, "advice": each.advice, "source": each.source or None,
            "clock": each.clock or None, "verdict": each.seen.verdict or None, "gain": each.seen.ratio,
            "interval": each.interval and list(each.interval), "reason": each.reason, "decide": each.decide,
            "saved_ms": each.saved_ms, "saved_hours": found.hours(each.saved_ms), "prepare_s": each.prepare_s,
            "pays_back_steps": each.pays_back, "in_recipe": each.name in found.kept,
        }
        for each in found.rungs
    ]  # fmt: skip
    return {
        "from": whose, "files": files, "machine": found.machine, "workload": found.workload, "batch": found.batch,
        "images": found.images, "price_per_hour": found.price, "not_publishable": list(found.marks), "rungs": rungs,
        "baseline": found.baseline and {"rung": found.baseline_name, **asdict(found.baseline)},
        "recommended": {
            "timed_as": found.timed_as, "is_timed": found.is_timed, **asdict(found.recommended),
            "prepare_s": found.prepare_s, "pays_back_steps": found.pays_back,
        },
        "recipe": found.recipe, "recipe_rungs": list(found.kept),
        "adopt": adopting.anchors(found.kept), "remarks": list(found.remarks),
    }  # fmt: skip


def recipe_yaml(found: Recommendation, whose: str) -> str:
    """Return the recommended recipe as YAML with its changed fields, as `ladder train --recipe FILE` reads it."""
    assert found.recipe is not None
    usual = asdict(Recipe())  # with the fields that plain data leave out at their defaults
    said = [
        f"The recipe that `ladder recommend` gives: {whose}",
        found.workload,
        *textwrap.wrap(f"rungs: {', '.join(found.kept)}", 110),
    ]
    said += map(publishable.told, found.marks)
    said += [] if found.is_timed else [UNTIMED.format(found.timed_as)]
    lines = [f"# {text.plain(each)}" for each in said]
    changed = [f"{key}: {json.dumps(value)}" for key, value in found.recipe.items() if value != usual[key]]
    return "\n".join([*lines, *(changed or ["{}"])]) + "\n"
