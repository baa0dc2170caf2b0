"""The recommendation of a result: advice on each rung, the recipe that follows, and its time in units of practice.

Everything is computed from result files. `docs/recommend.md` states the rules. Pure functions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ladder.base.errors import UserError
from ladder.base.plain import Fields
from ladder.base.text import plain
from ladder.plan import modes
from ladder.report import advising
from ladder.report.advising import SKIP, STAIRCASE, UNDECIDED, Advised, Sources
from ladder.report.view import view
from ladder.results.run import Result, RungResult
from stylegan_lite.config import ConfigError, Recipe

IMAGES = 25_000_000  # of a whole training of StyleGAN2 (Karras et al. 2020, arXiv:1912.04958)
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmg]?)", re.IGNORECASE)
_PRICE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/h)?", re.IGNORECASE)


@dataclass(frozen=True)
class Units:
    """The time of a step in units of practice. Hours and money are those of the whole training."""

    ms: float
    s_per_kimg: float  # as ms for an image
    images_per_s: float
    hours: float
    money: float | None


@dataclass(frozen=True)
class Recommendation:
    """The recommendation for one machine and workload."""

    sources: Sources
    machine: str
    workload: str
    batch: int
    images: int
    price: float | None  # an hour
    rungs: tuple[Advised, ...]
    kept: tuple[str, ...]  # the rungs of the recipe, in order
    recipe: Fields | None  # all fields; missing where this version cannot make it
    baseline_name: str | None
    baseline: Units | None
    timed_as: str  # the entry of the result whose time is shown as the recipe's
    is_timed: bool  # whether that entry ran this very recipe
    recommended: Units
    prepare_s: float | None  # more seconds of preparing than the baseline's
    marks: tuple[str, ...]  # why not to quote it
    remarks: tuple[str, ...]

    @property
    def saved_ms(self) -> float | None:
        """Milliseconds a step that the recipe saves against the baseline."""
        return self.baseline.ms - self.recommended.ms if self.baseline else None

    @property
    def pays_back(self) -> int | None:
        """Steps after which the recipe's preparing is paid back."""
        return advising.steps_to_pay_back(self.prepare_s, self.saved_ms)

    def hours(self, saved_ms: float | None) -> float | None:
        """Return the hours of the whole training that so many milliseconds a step are."""
        return None if saved_ms is None else saved_ms / self.batch * self.images / 3.6e6


def images_of(text: str) -> int:
    """Return a number of images given as `25M`, `200k` or `1000000`. Raises UserError."""
    found = _COUNT.fullmatch(text.strip())
    number = float(found[1]) * _THOUSANDS[found[2].lower()] if found else 0.0
    if not 1 <= number <= 1e15:
        raise UserError(f"--images {plain(text)!r}: give a number of images, such as 25M, 200k or 1000000")
    return round(number)


def price_of(text: str) -> float:
    """Return the price of an hour given as `2.5/h` or `2.5`. Raises UserError."""
    found = _PRICE.fullmatch(text.strip())
    if not found or not 0 < float(found[1]) <= 1e9:
        raise UserError(f"--price {plain(text)!r}: give the price of an hour, such as 2.5/h")
    return float(found[1])


def units(ms: float, batch: int, images: int, price: float | None) -> Units:
    """Return the units of a step of `ms` milliseconds and `batch` images."""
    hours = ms / batch * images / 3.6e6
    return Units(ms, ms / batch, 1000 * batch / ms, hours, None if price is None else hours * price)


def recommend(sources: Sources, images: int = IMAGES, price: float | None = None) -> Recommendation:
    """Return the recommendation that results give.

    Raises:
        UserError: no rung has a number.
    """
    result, rungs = sources.main, advising.advise(sources)
    shown, batch = view(result), int(result.workload["batch"])
    top = _top(sources)
    kept, recipe, remarks = _recipe(sources, top, rungs)
    timed, source = _timed(sources, recipe) or (top, result)
    base = _baseline(sources)
    longer = advising.more_preparing(source, timed.name, base.name) if base else None
    without = f"{modes.ALL} without " if source is sources.left_out and timed.name != modes.ALL else ""
    assert timed.step_ms is not None
    return Recommendation(
        sources=sources,
        machine=shown.machine,
        workload=shown.workload,
        batch=batch,
        images=images,
        price=price,
        rungs=tuple(rungs),
        kept=tuple(kept),
        recipe=recipe,
        baseline_name=base.name if base else None,
        baseline=units(base.step_ms, batch, images, price) if base and base.step_ms else None,
        timed_as=without + timed.name,
        is_timed=recipe is not None and _timed(sources, recipe) is not None,
        recommended=units(timed.step_ms, batch, images, price),
        prepare_s=longer,
        marks=_marks(sources),
        remarks=(*remarks, *_open(rungs), *_rival(sources)),
    )


def _marks(sources: Sources) -> tuple[str, ...]:
    found = [mark for each in (sources.staircase, sources.left_out) if each for mark in view(each).marks]
    return tuple(dict.fromkeys(found))


def _open(rungs: list[Advised]) -> list[str]:
    """Return a line on the rungs that are in the recipe although nothing is decided about them."""
    names = [each.name for each in rungs if each.advice == UNDECIDED and each.clock]
    return [f"undecided, and in the recipe as they were timed: {', '.join(names)}"] if names else []


def _rival(sources: Sources) -> list[str]:
    """Return a line on the top of another ladder that the staircase timed beside it."""
    if sources.staircase is None or (name := advising.rival(sources.staircase)) is None:
        return []
    row = next((each for each in view(sources.staircase).rows if each.name == name), None)
    return [f"{row.title} against this ladder's top: {row.sentence}"] if row and row.sentence else []


def _baseline(sources: Sources) -> RungResult | None:
    result = sources.staircase
    return next((rung for rung in result.rungs if rung.name == result.baseline), None) if result else None


def _timed_rungs(result: Result) -> list[RungResult]:
    other = advising.rival(result)
    return [rung for rung in result.rungs if rung.status == "ok" and rung.step_ms and rung.name != other]


def _top(sources: Sources) -> RungResult:
    """Return the highest rung that passed; of a leave-one-out run the whole ladder."""
    found = _timed_rungs(sources.main)
    if sources.staircase is None:
        found = [rung for rung in found if rung.name == modes.ALL]
    if not found:
        raise UserError("no rung of the result has a number: nothing can be recommended")
    return found[-1]


def _whole(recipe: Mapping[str, Any]) -> Fields:
    """Return a recipe with every field; a file may hold the changed ones alone."""
    return Recipe().to_dict() | dict(recipe)


def _same(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Return whether two recipes with every field are equal on equal hosts."""
    if one is None or other is None:
        return False
    return one.keys() == other.keys() and advising.contains(one, other)


def _timed(sources: Sources, recipe: Fields | None) -> tuple[RungResult, Result] | None:
    """Return the entry that ran this very recipe, and its result; the staircase's first. Returns None if none did."""
    for result in filter(None, (sources.staircase, sources.left_out)):
        for rung in _timed_rungs(result):
            if rung.recipe is not None and _same(_whole(rung.recipe), recipe):
                return rung, result
    return None


def _recipe(
    sources: Sources, top: RungResult, rungs: list[Advised]
) -> tuple[list[str], Fields | None, list[str]]:
    """Return the rungs of the recommended recipe, its fields, and what a reader must know of it.

    It is the recipe of the highest rung that passed, without the rungs that are SKIP. On the staircase a rung stays
    if another one needs it. A leave-one-out run left these out together, so they go together.
    """
    held = _whole(top.recipe or {})
    changes = advising.changes_in(sources.main, held)
    skips = {each.name: each for each in rungs if each.advice == SKIP}
    said = []
    if not _same(laid := _laid(changes), held):
        said.append("the rungs have changed since this run: the recipe is made of today's")
    for name, advised in skips.items():
        if name not in changes:  # It went with a rung that it rests on.
            continue
        rest = changes
        for each in (name, *advised.between):
            rest = modes.without(each, rest)
        lost = [each for each in changes if each not in rest and each not in (*skips, *advised.between)]
        if lost and advised.source == STAIRCASE:
            said.append(f"{name} stays in the recipe although it is SKIP: needed by {', '.join(lost)}")
        elif (shorter := _laid(rest)) is None or shorter == laid:
            said.append(f"{name} stays in the recipe although it is SKIP: the other rungs contain its change")
        else:
            said += [f"{', '.join(lost)}: left out with {name}, as it was measured"] if lost else []
            changes, laid = rest, shorter
    return list(changes), laid, said


def _laid(changes: Mapping[str, Fields]) -> Fields | None:
    """Return all fields of the recipe of some rungs, None if this version refuses it."""
    fields: Fields = {}
    for change in changes.values():
        fields |= change
    try:
        return Recipe.from_dict(fields, where="it").to_dict()
    except ConfigError:
        return None


def count(number: int) -> str:
    """Return a number of images as it is given: 25M, 200k."""
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if number >= size and math.isclose(number / size, round(number / size, 2)):
            return f"{number / size:g}{letter}"
    return f"{number:,}"
