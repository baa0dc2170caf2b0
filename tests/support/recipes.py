"""The recipes that the entries of a made-up result would have run."""

from __future__ import annotations

from typing import Any

from ladder.plan import catalog, modes
from stylegan_lite.config import Recipe


def of(names: list[str]) -> dict[str, Any]:
    """Return all fields of the recipe of some rungs."""
    fields: dict[str, Any] = {}
    for name in names:
        fields |= catalog.load_rung(name).change
    return Recipe.from_dict(fields).to_dict()


def given(made: dict[str, Any]) -> dict[str, Any]:
    """Give each rung of a staircase its recipe, and each entry of a leave-one-out run those of the others."""
    names = made["ladder"]["rungs"]
    if made["ladder"]["name"] in catalog.list_ladders():
        names = [step.name for step in catalog.load_ladder(made["ladder"]["name"]).rungs]
    changes = {name: catalog.load_rung(name).change for name in names}
    for rung in made["rungs"]:
        if made["protocol"].get("mode") != modes.LEAVE_ONE_OUT:
            held = names[: names.index(rung["name"]) + 1]
        elif rung["name"] == modes.ALL:
            held = names
        else:
            held = list(modes.drop_rung(rung["name"], changes))
        rung["recipe"] = of(held)
    return made
