"""What a workload, a ladder and a set of images are, by what they hold: a name or a path decides nothing.

A preset's name stands for its fields. Whoever uses the name for other fields gets another name, and a stranger's file
that does so is refused. Two workloads of one name with other fields are two series.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder.plan.catalog import _find_preset
from ladder.plan.content import fields_of, of_workload
from ladder.results.run import Run

ARTICLE = "article"  # a ladder
# What presets held until they were changed: results of then keep their name. Whoever changes a preset adds to it.
EARLIER = {"tiny": ("43b5b3",)}  # lr, r1_gamma and ema_images of StyleGAN2, until 21 November 2026


def misnamed(workload: Mapping[str, Any]) -> str | None:
    """In one line why a workload that has a preset's name is not that preset, or None.

    A field without a default that the file lacks is not known, and held against nobody.
    """
    name = workload["name"]
    if (preset := _find_preset(name)) is None or of_workload(workload) in EARLIER.get(name, ()):
        return None
    held, right = fields_of(workload), fields_of(preset)
    for key in sorted(held.keys() & right.keys()):
        if held[key] != right[key]:
            return f"workload: named like the preset {name}, whose {key} is {right[key]}, not {held[key]}"
    return None


def misordered(result: Run) -> str | None:
    """Return in one line why ladder or rungs of a result are not ours that have their names, or None.

    The article's order never changes. Other ladders and rungs have changed. A result is held to what they are now where
    it says that they were the same.
    """
    from ladder.plan import beside, catalog, modes

    name, mode = result.ladder.name, result.protocol.mode
    if mode in modes.STUDIES:
        first = beside.load_beside(mode).first
        if name != mode or result.ladder.rungs[:1] != [first]:
            return f"ladder: mode {mode} measures {first} and what stands beside it"
    if name not in catalog.list_ladders():
        return None
    now = _of_now(result)
    names = [rung for rung in result.ladder.rungs if rung != modes.ALL]
    if (now or name == ARTICLE) and not _is_part(names, catalog.list_order(catalog.load_ladder(name))):
        return f"ladder: named like {name}, but with other rungs or in another order"
    if not now or result.protocol.mode == modes.LEAVE_ONE_OUT:
        return None
    for rung in result.rungs:
        recipe = rung.recipe if rung.rounds else None
        if recipe and rung.name in catalog.list_rungs():
            change = catalog.load_rung(rung.name).change
            lacks = [key for key in change if key != "workers" and recipe.get(key) != change[key]]
            if lacks:  # how many loader processes there are depends on the machine
                return f"rung {rung.name}: its recipe's {lacks[0]} is {recipe.get(lacks[0])}, not {change[lacks[0]]}"
    return None


def _is_part(names: list[str], order: list[str]) -> bool:
    """Whether these are names of `order`, in that order."""
    left = iter(order)
    return all(name in left for name in names)


def _of_now(result: Run) -> bool:
    """Return whether a result says that rungs and ladders were what they are here."""
    return (result.measured_code or {}).get("rungs") == _rungs_now()


@functools.cache
def _rungs_now() -> str:
    from ladder.results import code_digest

    return code_digest.digest_rungs()


def of_images(path: str | Path | None) -> dict[str, Any] | None:
    """{"count", "digest"} of a user's prepared images, by what they hold; None for ours, which the code decides.

    The digest is kept beside the folder `path`, where that can be written: a large set takes seconds.
    """
    from ladder.images import prepare as images

    if path is None:
        return None
    folder = Path(path)
    try:
        made = json.loads(folder.with_name("manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if made.get("source") != images.USER:
        return None
    names = sorted(file.name for file in folder.glob("*.jpg"))
    kept = folder.with_name("digest")
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(kept.read_text())
        if found.keys() == {"count", "digest"} and found["count"] == len(names):
            return found
    whole = hashlib.sha256()
    for name in names:
        whole.update(hashlib.sha256((folder / name).read_bytes()).digest())
    found = {"count": len(names), "digest": whole.hexdigest()[:16]}
    with contextlib.suppress(OSError):
        kept.write_text(json.dumps(found))
    return found
