"""The recommendation of a result: the recipe that follows from the advice on each rung, and the hours that it saves.

From runs to a table: `recommend` computes everything from result files, as `docs/recommend.md` states it;
`tabulate_rungs` and `tabulate_units` show it. The code of each rung in plain PyTorch comes from docs/adopt.md.
"""

from __future__ import annotations

import functools
import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ladder.core import text
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.plain import Fields, Plain
from ladder.plan import catalog, modes
from ladder.report import advising
from ladder.report.advising import LEFT_OUT, SKIP, STAIRCASE, UNDECIDED, Advised, Sources
from ladder.report.view import View, contains, list_ladder, view
from ladder.results import publishable, ranking
from ladder.results.run import Result, RungResult
from ladder.results.words import answer
from ladder.show.table import Column, Table, join_lines, render_markdown, render_text
from stylegan_lite.config import ConfigError, Recipe

IMAGES = 25_000_000  # of a whole training of StyleGAN2 (Karras et al. 2020, arXiv:1912.04958)
THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
SAVES = "saves: by the clock that decided; savings of single rungs do not add up to the whole"
NO_RECIPE = "this version cannot run these rungs together; measure anew with `ladder run`"


@dataclass(frozen=True)
class Units:
    """The time of a step in units of practice. Hours and money are those of the whole training."""

    ms: float
    s_per_kimg: float  # as ms for an image
    images_per_s: float
    hours: float
    money: float | None


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The recommendation for one machine and workload."""

    sources: Sources
    shown: View  # of the main result
    batch: int
    images: int
    price: float | None  # an hour
    rungs: Sequence[Advised]
    recipe_rungs: Sequence[str]  # the rungs of the recipe, in order
    recipe: Fields | None  # all fields; missing where this version cannot make it
    baseline_name: str | None
    baseline: Units | None
    timed_as: str  # the entry of the result whose time is shown as the recipe's
    is_timed: bool  # whether that entry ran this very recipe
    recommended: Units
    prepare_s: float | None  # more seconds of preparing than the baseline's
    marks: Sequence[str]  # why not to quote it
    remarks: Sequence[str]

    @property
    def saved_ms(self) -> float | None:
        """Milliseconds a step that the recipe saves against the baseline."""
        return self.baseline.ms - self.recommended.ms if self.baseline else None

    @property
    def pays_back(self) -> int | None:
        """Steps after which the recipe's preparing is paid back."""
        return advising.count_steps(self.prepare_s, self.saved_ms)

    def hours(self, saved_ms: float | None) -> float | None:
        """Return the hours of the whole training that so many milliseconds a step are."""
        return None if saved_ms is None else saved_ms / self.batch * self.images / 3.6e6


def images_of(words: str) -> int:
    """Return a number of images given as `25M`, `200k` or `1000000`. Raises UserError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kmg]?)", words.strip().lower())
    number = float(match[1]) * THOUSANDS[match[2]] if match else 0.0
    if not 1 <= number <= 1e15:
        raise UserError(f"--images {text.clean_line(words)!r}: give a number of images: 25M, 200k or 1000000")
    return round(number)


def price_of(words: str) -> float:
    """Return the price of an hour given as `2.5/h` or `2.5`. Raises UserError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(?:/h)?", words.strip().lower())
    if not match or not 0 < float(match[1]) <= 1e9:
        raise UserError(f"--price {text.clean_line(words)!r}: give the price of an hour, such as 2.5/h")
    return float(match[1])


def count(number: int) -> str:
    """Return a number of images as it is given: 25M, 200k."""
    units = [(size, letter) for size, letter in ((10**6, "M"), (10**3, "k")) if number % (size // 100) == 0]
    return next((f"{number / size:g}{letter}" for size, letter in units if number >= size), f"{number:,}")


def units(ms: float, batch: int, images: int, price: float | None) -> Units:
    """Return the units of a step of `ms` milliseconds and `batch` images."""
    hours = ms / batch * images / 3.6e6
    return Units(ms, ms / batch, 1000 * batch / ms, hours, None if price is None else hours * price)


def recommend(sources: Sources, images: int = IMAGES, price: float | None = None) -> Recommendation:
    """Return the recommendation that results give.

    Raises:
        UserError: no rung has a number.
    """
    result, rungs, stairs = sources.main, advising.advise(sources), sources.staircase
    batch, runs = int(result.workload["batch"]), [run for run in (stairs, sources.left_out) if run]
    timed = [rung for rung in _list_timed(result) if stairs or rung.name == modes.ALL]
    if not timed:
        raise UserError("no rung of the result has a number: nothing can be recommended")
    names, recipe, remarks = _choose_recipe(sources, timed[-1], rungs)
    # The entry that ran this very recipe, the staircase's first; else the highest rung that passed.
    entries = [(rung, run) for run in runs for rung in _list_timed(run)]
    same = [each for each in entries if each[0].recipe is not None and _is_same(each[0].recipe, recipe)]
    best, source = same[0] if same else (timed[-1], result)
    bases = {id(run): rung for run in runs for rung in run.rungs if stairs and rung.name == stairs.baseline}
    base, beside = bases.get(id(stairs)), bases.get(id(source))
    without = f"{modes.ALL} without " if source is sources.left_out and best.name != modes.ALL else ""
    unsure = [each.name for each in rungs if each.advice == UNDECIDED and each.clock]
    if unsure:
        remarks.append(f"undecided, and in the recipe as they were timed: {', '.join(unsure)}")
    return Recommendation(
        sources=sources, shown=view(result), batch=batch, images=images, price=price, rungs=rungs,
        recipe_rungs=names, recipe=recipe, baseline_name=base.name if base else None,
        baseline=units(base.step_ms, batch, images, price) if base and base.step_ms else None,
        timed_as=without + best.name, is_timed=bool(same),
        recommended=units(best.step_ms or 0.0, batch, images, price),
        prepare_s=advising.derive_preparing(best, beside) if beside else None,
        marks=list(dict.fromkeys(mark for run in runs for mark in view(run).marks)), remarks=remarks,
    )  # fmt: skip


def _list_timed(result: Result) -> list[RungResult]:
    rival = advising.find_rival(result)
    return [rung for rung in result.rungs if rung.status == "ok" and rung.step_ms and rung.name != rival]


def _is_same(recipe: Mapping[str, Any], other: Fields | None) -> bool:
    """Return whether a stored recipe, perhaps of the changed fields alone, equals one of all on equal hosts."""
    recipe = Recipe().to_dict() | dict(recipe)
    return other is not None and recipe.keys() == other.keys() and contains(recipe, other)


def _choose_recipe(
    sources: Sources, top: RungResult, rungs: Sequence[Advised]
) -> tuple[list[str], Fields | None, list[str]]:
    """Return the rungs of the recommended recipe, its fields, and what a reader must know of it.

    It is the recipe of the highest rung that passed, without the rungs that are SKIP. On the staircase a rung stays
    if another one needs it, and all that need it make up for its cost. A leave-one-out run left these out together,
    so they go together. The recipe is made of the changes that the rungs of the whole ladder have today, as far as
    the top contains them or the run timed them.
    """
    result, recipe = sources.main, Recipe().to_dict() | dict(top.recipe or {})
    timed = {rung.name for rung in result.rungs if rung.status == "ok"}
    ours = [name for name in list_ladder(result) if name in catalog.list_rungs()]
    known = {name: catalog.load_rung(name).change for name in ours}
    changes = {name: each for name, each in known.items() if name in timed or contains(recipe, each)}
    skips = {each.name: each for each in rungs if each.advice == SKIP}
    remarks = []
    if not _is_same(recipe, _join_changes(changes)):
        remarks.append("the rungs have changed since this run: the recipe is made of today's")
    for name, advised in skips.items():
        if name not in changes:  # It went with a rung that it rests on.
            continue
        rest = changes
        for each in (name, *advised.between):
            rest = modes.drop_rung(each, rest)
        lost = [each for each in changes if each not in rest and each not in (*skips, *advised.between)]
        gains = [each.seen.ratio or 1.0 for each in rungs if each.name in (name, *lost)]
        if lost and advised.source == STAIRCASE and math.prod(gains) >= 1.0:
            remarks.append(f"{name} stays in the recipe although it is SKIP: needed by {', '.join(lost)}")
        else:
            remarks += [f"{', '.join(lost)}: left out with {name}, as it was measured"] if lost else []
            changes = rest
    return list(changes), _join_changes(changes), remarks


def _join_changes(changes: Mapping[str, Fields]) -> Fields | None:
    """Return all fields of the recipe of some rungs, None if this version refuses it."""
    fields: Fields = {}
    for change in changes.values():
        fields |= change
    try:
        return Recipe.from_dict(fields, where="it").to_dict()
    except ConfigError:
        return None


# --- what is shown ----------------------------------------------------------------------------------------------------


def tabulate_rungs(advice: Recommendation) -> Table:
    """Return the advice on each rung, with money where a price is known."""
    columns = [
        Column("rung"), Column("advice"), Column("by", "text", 4), Column("gain", "amount", 1),
        Column("interval", "interval", 5), Column("saves ms/step", "saving", 2), Column("hours", "hours"),
        Column("prepares, s", "seconds", 7), Column("pays back after", "amount", 6), Column("money", "decimal", 3),
    ]  # fmt: skip
    rows = []
    for each in advice.rungs:
        by = ", ".join(filter(None, (each.clock, "left out" if each.source == LEFT_OUT else "", each.why)))
        hours, seen = advice.hours(each.saved_ms), each.seen
        money = None if hours is None or advice.price is None else hours * advice.price
        figures = (each.saved_ms, hours, each.prepare_s, _describe_steps(each.pays_back), money)
        rows.append([each.name, each.advice, by, answer(seen), seen.interval, *figures])
    return Table(columns, rows).drop_empty()


def tabulate_units(advice: Recommendation) -> Table:
    """Return the times in units of practice: the baseline, the recipe, and what it saves."""
    columns = [
        Column(""), Column("ms/step", "ms"), Column("s/kimg", "decimal"), Column("images/s", "amount", 1),
        Column(f"hours for {count(advice.images)} images", "hours"), Column("money", "decimal"),
    ]  # fmt: skip
    base, best = advice.baseline, advice.recommended
    name = "recommended" if advice.is_timed else f"{advice.timed_as}, timed"
    rows: list[list[Any]] = [[name, *vars(best).values()]]
    if base:
        saved = base.ms - best.ms, base.s_per_kimg - best.s_per_kimg, None, base.hours - best.hours
        money = None if base.money is None or best.money is None else base.money - best.money
        rows = [[advice.baseline_name, *vars(base).values()], *rows, ["saved", *saved, money]]
    return Table(columns, rows).drop_empty()


def _describe_steps(number: int | None) -> str:
    return "" if number is None else f"{number:,} steps" if number else "at once"


def list_reasons(rungs: Sequence[Advised]) -> list[str]:
    """Return the advice on each rung, why, and the command that would decide; rungs with equal words share a line."""
    return join_lines(
        (each.name, f"{each.advice}: {each.reason}" + (f"; decide: `{each.decide}`" if each.decide else ""))
        for each in rungs
    )


def list_notes(advice: Recommendation) -> list[str]:
    """Return the lines under the figures."""
    lines = list(advice.remarks)
    if advice.recipe is None:
        lines.append(f"no recipe: {NO_RECIPE}")
    elif not advice.is_timed:
        lines.append(f"this very recipe was not timed: the figures are those of {advice.timed_as}")
    if advice.pays_back and advice.prepare_s:
        lines.append(
            f"the recipe: {advice.prepare_s:.1f} s more preparing than {advice.baseline_name}, paid back after"
            f" {_describe_steps(advice.pays_back)}"
        )
    if adopted := find_anchors(advice.recipe_rungs):
        lines.append(f"in a loop of your own: {PAGE} has {', '.join(adopted)}")
    return [*lines, SAVES]


def render_terminal(
    advice: Recommendation, whose: str, files: Mapping[str, str], other_code: str | None = None
) -> str:
    """Return the recommendation for a terminal. Its first line names the machine whose result it is.

    Args:
        files: by kind the name of each result that the advice comes from.
        other_code: a leave-one-out run of other code, which advises by itself alone.
    """
    lines = [whose, advice.shown.workload]
    for kind, result in ((STAIRCASE, advice.sources.staircase), (LEFT_OUT, advice.sources.left_out)):
        if result:
            days = f"generations: {ranking.fewest_rounds(result)}, {result.started[:10]}"
            lines.append(f"{kind}: {files.get(kind, 'stored')} ({days})")
        else:
            lines.append(f"{kind}: none{f' of this code; of other code: {other_code}' if other_code else ''}")
    lines += [*advice.marks, "", render_text(tabulate_rungs(advice)), "", *list_reasons(advice.rungs), ""]
    lines += [render_text(tabulate_units(advice)), "", f"recipe: {', '.join(advice.recipe_rungs)}"]
    lines += list_notes(advice)
    return "".join(each if each.isprintable() or each == "\n" else " " for each in "\n".join(lines))


def render_advice(advice: Recommendation, whose: str) -> str:
    """Return the recommendation as a section of Markdown, with the code of its rungs in plain PyTorch."""
    lines = [f"### What to switch on: {text.escape_markdown(advice.shown.machine)}", ""]
    lines += [text.escape_markdown(f"{whose}; {advice.shown.workload}"), ""]
    lines += [f"**{text.escape_markdown(mark)}**\n" for mark in advice.marks]
    lines += [render_markdown(tabulate_rungs(advice)), "", render_markdown(tabulate_units(advice)), ""]
    notes = [*list_reasons(advice.rungs), f"recipe: {', '.join(advice.recipe_rungs)}", *list_notes(advice)]
    lines += [f"- {text.escape_markdown(line)}" for line in notes]
    return "\n".join([*lines, *list_code(advice.recipe_rungs)]) + "\n"


def write_data(advice: Recommendation, whose: str, files: Mapping[str, str]) -> Plain:
    """Return the recommendation as plain data for JSON. Times in ms a step, intervals of factors."""
    rungs = [
        {
            "rung": each.name, "title": each.title, "advice": each.advice, "source": each.source or None,
            "clock": each.clock or None, "verdict": each.seen.verdict or None, "gain": each.seen.ratio,
            "interval": each.seen.interval and list(each.seen.interval), "reason": each.reason, "decide": each.decide,
            "saved_ms": each.saved_ms, "saved_hours": advice.hours(each.saved_ms), "prepare_s": each.prepare_s,
            "pays_back_steps": each.pays_back, "in_recipe": each.name in advice.recipe_rungs,
        }
        for each in advice.rungs
    ]  # fmt: skip
    return {
        "from": whose, "files": files, "machine": advice.shown.machine, "workload": advice.shown.workload,
        "batch": advice.batch, "images": advice.images,
        "price_per_hour": advice.price, "not_publishable": list(advice.marks),
        "rungs": rungs,
        "baseline": advice.baseline and {"rung": advice.baseline_name, **asdict(advice.baseline)},
        "recommended": {
            "timed_as": advice.timed_as, "is_timed": advice.is_timed, **asdict(advice.recommended),
            "prepare_s": advice.prepare_s, "pays_back_steps": advice.pays_back,
        },
        "recipe": advice.recipe, "recipe_rungs": list(advice.recipe_rungs),
        "adopt": find_anchors(advice.recipe_rungs), "remarks": list(advice.remarks),
    }  # fmt: skip


def recipe_yaml(advice: Recommendation, whose: str) -> str:
    """Return the recommended recipe as YAML with its changed fields, as `ladder train --recipe FILE` reads it."""
    assert advice.recipe is not None
    usual = asdict(Recipe())  # with the fields that plain data leave out at their defaults
    about = [f"The recipe that `ladder recommend` gives: {whose}", advice.shown.workload]
    about += textwrap.wrap(f"rungs: {', '.join(advice.recipe_rungs)}", 110)
    about += map(publishable.told, advice.marks)
    about += [] if advice.is_timed else [f"not timed itself; the figures are those of {advice.timed_as}"]
    changed = [f"{key}: {json.dumps(value)}" for key, value in advice.recipe.items() if value != usual[key]]
    return "\n".join([*(f"# {text.clean_line(line)}" for line in about), *(changed or ["{}"])]) + "\n"


# --- the rungs in plain PyTorch ---------------------------------------------------------------------------------------

PAGE = "docs/adopt.md"


class AdoptSection(NamedTuple):
    """A section of docs/adopt.md: its title, the rungs that it has in backticks, its anchor, its blocks of code."""

    title: str
    rungs: list[str]
    anchor: str
    blocks: list[str]


@functools.cache
def read_sections() -> list[AdoptSection]:
    """Return the sections of the page with headings of the third level, in order."""
    sections = []
    for part in re.split(r"^(?=##)", (ROOT / PAGE).read_text(encoding="utf-8"), flags=re.MULTILINE):
        if match := re.match(r"### (.*)\n", part):
            anchor = re.sub(r"[^\w\- ]", "", match[1].lower()).replace(" ", "-")
            blocks = re.findall(r"^```py\n(.+?)^```", part, re.MULTILINE | re.DOTALL)
            sections.append(AdoptSection(match[1], re.findall(r"`(\w+)`", match[1]), anchor, blocks))
    return sections


def find_anchors(rungs: Sequence[str]) -> dict[str, str]:
    """Return the page and anchor of each of these rungs that has a plain form."""
    known = {name: each.anchor for each in read_sections() for name in each.rungs}
    return {name: f"{PAGE}#{known[name]}" for name in rungs if name in known}


def list_code(rungs: Sequence[str]) -> list[str]:
    """Return the lines of the code that these rungs are in plain PyTorch, in the page's order.

    A section of no rung is among them if their code uses a name that it defines.
    """
    chosen = [each for each in read_sections() if {*each.rungs} & {*rungs}]
    used = set(re.findall(r"\w+", "\n".join(block for each in chosen for block in each.blocks)))
    lines: list[str] = []
    for each in read_sections():
        defined = re.findall(r"^(?:def )?(\w+)(?: =|\()", "\n".join(each.blocks), re.MULTILINE)
        if each.blocks and (each in chosen or (not each.rungs and used & {*defined})):
            named = ", ".join(f"`{name}`" for name in each.rungs if name in rungs)
            lines += ["", f"In a loop of your own, {named or each.title} ({PAGE}#{each.anchor}):"]
            lines += [line for block in each.blocks for line in ("", "```python", block.rstrip("\n"), "```")]
    return lines
