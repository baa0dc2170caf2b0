"""The ways in which several GPUs train together, each a rung of a distributed ladder, and the points to measure."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from ladder.base.errors import UserError
from ladder.base.plain import Fields
from ladder.plan import catalog
from ladder.plan.needs import RANKS
from ladder.studies.scale.record import STRONG, WEAK, Point
from stylegan_lite import shares
from stylegan_lite.config import Recipe, Workload, suggestion

EAGER: Fields = {"cuda_graphs": False, "whole_step_graph": False}
TOP = "the top"  # the highest rung of a ladder


@dataclass(frozen=True)
class Way:
    """One way. Its recipe has no number of ranks yet; alone it is the same recipe without a reduction."""

    name: str
    recipe: Fields | None  # absent if this machine cannot run it
    skipped: str | None = None

    def on(self, gpus: int) -> Fields:
        """Return the recipe on so many GPUs."""
        recipe = dict(self.recipe or {})
        if gpus == 1:
            recipe.pop("reduce", None)
            return recipe
        return recipe | {"ranks": gpus}


# Name -> the ladder, its rung, and fields laid over the recipe.
WAYS: dict[str, tuple[str, str, Fields]] = {
    "data_parallel": ("distributed_data_parallel", "data_parallel", {}),
    "ddp": ("distributed_ddp", "ddp", {}),
    "flat": ("distributed", "flat_reduce", {}),
    "captured": ("distributed", "captured_reduce", {}),
    "flat-top": ("distributed", TOP, EAGER),
    "top": ("distributed", TOP, {}),
}


def load(names: tuple[str, ...], able: dict[str, str | None]) -> list[Way]:
    """Return the ways of these names (all, if none is named) on a machine with these capabilities."""
    for name in names:
        if name not in WAYS:
            raise UserError(f"no way {name!r}{suggestion(name, WAYS)}")
    return [_way(name, able) for name in dict.fromkeys(names or WAYS)]


def _way(name: str, able: dict[str, str | None]) -> Way:
    ladder_name, rung, over = WAYS[name]
    ladder = catalog.load_ladder(ladder_name)
    rung = ladder.rungs[-1].name if rung == TOP else rung
    climbed = {each.name: each for each in catalog.climb(ladder, able | {RANKS: None})}
    found = climbed[rung]
    return Way(name, None if found.recipe is None else found.recipe | over, found.skipped)


@dataclass(frozen=True)
class Asked:
    """One point to measure: a way on so many GPUs, with a total batch. `problem` says why it cannot be."""

    way: Way
    scaling: str
    gpus: int
    batch: int
    problem: str | None

    @property
    def series(self) -> tuple[str, str]:
        """Return the way and the scaling, whose points are compared with each other."""
        return self.way.name, self.scaling

    @property
    def processes(self) -> int:
        """Return how many processes its step has."""
        return shares.processes(Recipe.from_dict(self.way.on(self.gpus)))


def points(
    ways: list[Way], workload: Fields, gpus: list[int], scalings: tuple[str, ...], total: int
) -> list[Asked]:
    """Return the points of all ways: weak ones with the workload's batch on each GPU, strong ones with `total`."""
    found = []
    for way in ways:
        for scaling in (WEAK, STRONG):
            for n in gpus if scaling in scalings else ():
                batch = int(workload["batch"]) * n if scaling == WEAK else total
                found.append(Asked(way, scaling, n, batch, problem(way, workload | {"batch": batch}, n)))
    return found


def again(ways: list[Way], workload: Fields, earlier: Iterable[Point]) -> list[Asked]:
    """Return the points of an earlier run, to be measured again. `ways` are its ways."""
    known = {way.name: way for way in ways}
    return [
        Asked(
            way,
            each.scaling,
            each.gpus,
            each.batch,
            problem(way, workload | {"batch": each.batch}, each.gpus),
        )
        for each in earlier
        for way in [known[each.way]]
    ]


def shifts(indices: list[int], points: list[Asked], cores: int, chance: random.Random) -> list[list[int]]:
    """Return the points that are alive together: ways of one scaling, in random order, with a core for each process.

    One way is always allowed.
    """
    found: list[list[int]] = []
    scalings = sorted({points[k].scaling for k in indices})
    for scaling in chance.sample(scalings, len(scalings)):
        names, room = sorted({points[k].way.name for k in indices if points[k].scaling == scaling}), 0
        for name in chance.sample(names, len(names)):
            mine = [k for k in indices if points[k].series == (name, scaling)]
            needed = sum(points[k].processes for k in mine)
            if needed > room:
                found.append([])
                room = cores
            found[-1] += mine
            room -= needed
    return found


def problem(way: Way, workload: Fields, gpus: int) -> str | None:
    """Return why a way cannot train the workload, whose batch is the total, on so many GPUs; or None."""
    if way.recipe is None:
        return way.skipped
    return shares.problem_with(Recipe.from_dict(way.on(gpus)), Workload.from_dict(workload | {"data": None}))
