"""The plan of `ladder map`: cells of batch and resolution, and four recipes in each.

The recipes are the top of a ladder with both of two rungs, without the first, without the second, and without both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ladder.base.errors import UserError
from ladder.base.plain import Fields
from ladder.machine import system
from ladder.plan import catalog, modes, needs
from ladder.results.types import Plain
from stylegan_lite.config import ConfigError, Recipe, Workload, suggestion

PAIR = ("cuda_graphs", "channels_last")
BATCHES = {"cuda": (4, 8, 16, 32, 64), "cpu": (4, 8)}
RESOLUTIONS = {"cuda": (32, 64, 128, 256), "cpu": (16, 32)}
Cell = tuple[int, int]  # resolution, batch


@dataclass(frozen=True)
class Plan:
    """The user's request. ``recipes`` are by the rungs that they leave out; the first leaves out none."""

    name: str
    workload: Plain
    device: str
    ladder: str
    rungs: tuple[str, str]
    recipes: dict[tuple[str, ...], Fields]
    cells: tuple[Cell, ...]
    cycles: int = 2
    seed: int = 0
    minutes: float | None = None

    def of(self, cell: Cell) -> Plain:
        """Return the workload of a cell."""
        return self.workload | {"resolution": cell[0], "batch": cell[1]}


def make(
    name: str, workload: Plain, device: str, ladder_name: str, rungs: Sequence[str], cells: Sequence[Cell], *,
    seed: int = 0, minutes: float | None = None,
) -> Plan:  # fmt: skip
    """Return the plan of a map.

    Raises:
        UserError: a rung is not there or cannot run here, or a cell is no workload; one line.
    """
    ladder = catalog.load_ladder(ladder_name)
    able = needs.possible(system.capabilities(device), workload)
    climbed = catalog.climb(replace(ladder, rival=None), able)
    base, *rest = [rung for rung in climbed if rung.recipe is not None]
    changes = {rung.name: catalog.load_rung(rung.name).change for rung in rest}
    skipped = {rung.name: rung.skipped for rung in climbed if rung.skipped is not None}
    pair = _pair(rungs, changes, skipped, ladder.name)
    start = catalog.load_rung(base.name).change
    recipes = {out: _recipe(start, changes, out) for out in _outs(pair)}
    if len({str(recipe) for recipe in recipes.values()}) < len(recipes):
        raise UserError(
            f"--rung: {' and '.join(pair)} are not apart in ladder {ladder.name}: take another pair"
        )
    found = Plan(name, workload, device, ladder.name, pair, recipes, tuple(cells), seed=seed, minutes=minutes)
    for cell in cells:
        try:
            Workload.from_dict(found.of(cell) | {"data": None}, where=f"{cell[0]}x{cell[0]}, batch {cell[1]}")
        except ConfigError as error:
            raise UserError(str(error)) from None
    return found


def grid(resolutions: Sequence[int], batches: Sequence[int]) -> list[Cell]:
    """Return the cells of a map, from small to large."""
    return [(resolution, batch) for resolution in sorted(resolutions) for batch in sorted(batches)]


def _outs(pair: tuple[str, str]) -> list[tuple[str, ...]]:
    return [(), pair[:1], pair[1:], pair]


def _recipe(base: Fields, changes: dict[str, Fields], out: tuple[str, ...]) -> Fields:
    """Return the recipe of a ladder without some rungs, and without those that extend or rest on them."""
    for name in out:
        changes = modes.without(name, changes) if name in changes else changes
    laid = dict(base)
    for change in changes.values():
        laid |= change
    return Recipe.from_dict(laid, where="it").to_dict()


def _pair(
    asked: Sequence[str], changes: dict[str, Fields], skipped: dict[str, str], ladder: str
) -> tuple[str, str]:
    """Return the two rungs: those asked for, else the article's policy's, else the first two that run here."""
    names = list(changes)
    if not asked:
        usual = PAIR if {*PAIR} <= {*names} else names[:2]
        if len(usual) < 2:
            raise UserError(f"ladder {ladder}: fewer than two of its rungs run here")
        return usual[0], usual[1]
    if len({*asked}) != 2:
        raise UserError("--rung: name two rungs, --rung A --rung B; the map shows where each matters")
    for name in asked:
        if name in skipped:
            raise UserError(f"--rung: {name} cannot run here: {skipped[name]}")
        if name not in changes:
            raise UserError(f"--rung: ladder {ladder} has no change {name!r}{suggestion(name, names)}")
    return asked[0], asked[1]
