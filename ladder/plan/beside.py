"""The entries of `ladder run --mode mistakes` and `--mode levers`: each is measured beside the first one.

They are no ladders: an entry does not stand on the one before it. `mistakes.yaml` and `levers.yaml` beside this module
have them; a mistake that no recipe makes is a patch in `ladder.studies.mistakes`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ladder.core import records, yamlfile
from ladder.core.plain import Fields
from ladder.core.records import Record, read_record
from ladder.plan import catalog
from ladder.plan.catalog import Planned
from ladder.plan.variants import Variant

MISTAKES, LEVERS = "mistakes", "levers"
LAST, LEFT_OUT = "data_loading", "cuda_graphs"  # of the clean step
QUEUE: Fields = {"prefetch_factor": 1}  # each visit first drains so many steps of each idle worker
ALSO = "conv_double_backward"  # under the levers


class Entry(Record, kw_only=True):
    """An entry of a study: a change of the recipe, or of the workload, and the attributes of its `Variant`."""

    title: str
    why: str
    change: records.Fields = {}
    needs: list[str] = []
    exempt: str | None = None
    updates: int = 1
    workload: records.Fields = {}
    halve: list[str] = []

    def list_fields(self, workload: Mapping[str, Any]) -> Fields:
        """Return the fields of the workload that it changes."""
        return self.workload | {key: max(1, workload[key] // 2) for key in self.halve}


class Beside(Record, kw_only=True):
    """A study: the entry that the others stand beside, and the others by name. `exempt` holds for all of them."""

    title: str
    first: str
    first_title: str
    first_why: str | None = None
    exempt: str | None = None
    entries: dict[str, Entry]

    @property
    def names(self) -> list[str]:
        """Return the names of all entries, in order."""
        return [self.first, *self.entries]


@functools.cache
def load_beside(mode: str) -> Beside:
    """Return the entries of a mode."""
    path = Path(__file__).with_name(f"{mode}.yaml")
    return read_record(Beside, yamlfile.read_yaml(path), path.name)  # type: ignore[no-any-return]


def plan(
    mode: str,
    capabilities: dict[str, str | None],
    only: Iterable[str] | None = None,
    workload: Mapping[str, Any] | None = None,
) -> list[Planned]:
    """Return the first entry of a mode and each other one beside it, or those that `only` names.

    Without a workload the names of levers alone hold.

    Raises:
        UserError: `only` names something else.
    """
    study = load_beside(mode)
    chosen = catalog.choose_names(study.names, only, f"the {mode}")
    recipe = make_recipe(mode, catalog.load_ladder("article"), capabilities)
    base = Variant(mode, study.first_why, patched=False) if study.first_why else None
    planned = [Planned(study.first, study.first_title, recipe, None, None, base)]
    for name, entry in study.entries.items():
        if name in chosen:
            fields = {} if workload is None else entry.list_fields(workload)
            lacks = catalog.find_missing(entry.needs, capabilities) or _find_impossible(workload, fields)
            exempt = entry.exempt or study.exempt
            variant = Variant(mode, entry.why, exempt, workload=fields, updates=entry.updates)
            changed = None if lacks else {**recipe, **entry.change}
            planned.append(Planned(name, entry.title, changed, lacks, None, variant))
    return planned


def make_recipe(mode: str, ladder: catalog.Ladder, capabilities: dict[str, str | None]) -> Fields:
    """Return the recipe of the first entry, of the rungs that run here.

    The clean step has every rung up to `data_loading` but CUDA graphs; the unchanged model has the ladder's top.
    """
    climbed = [rung for rung in catalog.plan_climb(ladder, capabilities) if rung.recipe is not None]
    if mode == LEVERS:
        return {**(climbed[-1].recipe if climbed else {}), **catalog.load_rung(ALSO).change}  # type: ignore[dict-item]
    recipe: Fields = {}
    order = catalog.list_order(ladder)
    for rung in climbed:
        if rung.name != LEFT_OUT and order.index(rung.name) <= order.index(LAST):
            recipe |= catalog.load_rung(rung.name).change
    return recipe | QUEUE if recipe.get("workers") else recipe


def _find_impossible(workload: Mapping[str, Any] | None, changed: Fields) -> str | None:
    from stylegan_lite.config import ConfigError, Workload

    try:
        Workload.from_dict({**(workload or {}), **changed}, where="this workload") if changed else None
    except ConfigError as error:
        return str(error)
    return None
