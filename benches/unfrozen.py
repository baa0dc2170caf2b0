"""What `benches/series.py` lacks of the ladder `full`, as lines to append there: `python -m benches.unfrozen`.

A rung that stands there with another recipe than the ladder's is named, and nothing is printed for it: as long as no
result of it exists its line may be corrected, afterwards it gets a new name.
"""

from __future__ import annotations

from typing import Any

from benches import series

LADDER = "full"
WHERE = {"article": "cuda", "tiny": "cpu"}


def planned(device: str) -> dict[str, tuple[tuple[str, ...], dict[str, Any]]]:
    """Rung -> (what it needs, its recipe) for those that run on this device; data_loading as on 8 cores or more."""
    from ladder.machine import system
    from ladder.plan import catalog
    from ladder.rungs import data_loading

    there = system.capabilities("cpu") if device == "cpu" else dict.fromkeys(system.CAPABILITIES)
    found, needs = {}, ["cuda"] if device == "cuda" else []
    for rung in catalog.climb(catalog.load_ladder(LADDER), there):
        if rung.recipe is None:
            continue
        wanted = catalog.load_rung(rung.name).needs  # some of the workload, which is frozen with it
        needs += [need for need in wanted if need in system.CAPABILITIES and need not in needs]
        recipe = dict(rung.recipe)
        if "workers" in recipe and recipe["workers"] == data_loading.change["workers"]:
            recipe["workers"] = 8
        found[rung.name] = tuple(needs), recipe
    return found


def _called(value: Any) -> str:
    """The name that a value has in benches/series.py."""
    names = [name for name, each in vars(series).items() if name[0] == "_" and name[1:2] != "_"]
    return next((name for name in names if getattr(series, name) == value), repr(value).replace("'", '"'))


def lines() -> list[str]:
    """Python to append, and comments on what cannot be."""
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
