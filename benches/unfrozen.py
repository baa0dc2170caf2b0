"""The rungs of the ladder `full` that `benches/series.py` lacks, as lines to append: `python -m benches.unfrozen`.

A rung that stands there with another recipe is named in a comment only. Its line may be corrected until a result
of it exists; after that, the rung needs a new name.
"""

from __future__ import annotations

from typing import Any

from benches import series

LADDER = "full"
WHERE = {"article": "cuda", "tiny": "cpu"}


def planned(device: str) -> dict[str, tuple[tuple[str, ...], dict[str, Any]]]:
    """Return rung -> (its needs, its recipe) for the rungs that run on this device.

    data_loading has its recipe for 8 cores or more.
    """
    from ladder.machine import system
    from ladder.plan import catalog
    from ladder.rungs import data_loading

    there = system.list_capabilities("cpu") if device == "cpu" else dict.fromkeys(system.CAPABILITIES)
    found, needs = {}, ["cuda"] if device == "cuda" else []
    for rung in catalog.plan_climb(catalog.load_ladder(LADDER), there):
        if rung.recipe is None:
            continue
        wanted = catalog.load_rung(
            rung.name
        ).needs  # includes needs of the workload, which is frozen with the series
        needs += [need for need in wanted if need in system.CAPABILITIES and need not in needs]
        recipe = dict(rung.recipe)
        if "workers" in recipe and recipe["workers"] == data_loading.change["workers"]:
            recipe["workers"] = 8
        found[rung.name] = tuple(needs), recipe
    return found


def _called(value: Any) -> str:
    """Return the name of a value in benches/series.py."""
    names = [name for name, each in vars(series).items() if name[0] == "_" and name[1:2] != "_"]
    return next((name for name in names if getattr(series, name) == value), repr(value).replace("'", '"'))


def lines() -> list[str]:
    """Return the Python lines to append, and comments on rungs that cannot be appended."""
    from stylegan_lite.config import Recipe

    out, new, before = [], [], dict.fromkeys(WHERE, "_BASELINE")
    for workload, device in WHERE.items():
        whole, last = dict(series.SERIES[workload, "baseline"].recipe), {}
        for name, (needs, recipe) in planned(device).items():
            change = {key: value for key, value in recipe.items() if last.get(key, whole.get(key)) != value}
            frozen = series.SERIES.get((workload, name))
            if frozen is None:
                variable = f"_{'CPU_' * (device == 'cpu')}{name.upper().replace('-', '_')}"
                whole |= change
                mark = series.fingerprint(series.SERIES[workload, "baseline"].workload, whole)
                if name not in new and name not in series.RUNGS:
                    new.append(name)
                    out.append(f'RUNGS: "{name}",')
                of = f'"{device}", {_called(needs)}, _{workload.upper()}, {variable}, "{mark}"'
                out.append(f"{variable} = {before[workload]} | {change}".replace("'", '"'))
                out.append(f'("{workload}", "{name}"): Series({of}),')
                before[workload] = variable
            else:
                whole = dict(frozen.recipe)
                before[workload] = _called(frozen.recipe)
                same = Recipe.from_dict(frozen.recipe) == Recipe.from_dict(recipe)
                if not same and (workload, name) not in series.RETIRED:
                    out.append(
                        f"# {workload} {name} is {LADDER}'s no longer: {change} on top of what is below it"
                    )
            last = recipe
    return out


if __name__ == "__main__":
    print("\n".join(lines()) or f"benches/series.py has every rung of {LADDER}")
