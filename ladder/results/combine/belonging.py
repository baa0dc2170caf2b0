"""Which rounds may merge: what two runs must agree in, and what one must not hold. See
`ladder.results.combine.merging`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ladder.base.errors import UserError
from ladder.machine import environment
from ladder.plan import content, modes
from ladder.results import code_digest, identity
from ladder.results import store as results

Result = dict[str, Any]
_MACHINE = ("name", "gpu", "gpu_memory_gb", "device", *results.SOFTWARE, "driver", "python", "os")
_HOST = ("cpu", "cores")  # what may differ if it is asked for, on a GPU
_PROTOCOL = ("mode", "quick", "cycles", "cycle_steps", "settle_s", "settle_cycles")
_REFUSED = ("not engaged", "failed: parity")
_NONE = object()


def differences(first: Result, other: Result, anyway: bool = False) -> list[str]:
    """Why rounds of the two do not belong together: each key with both values."""
    on_gpu = first["machine"]["device"] == "cuda"
    keys = _MACHINE if anyway and on_gpu else (*_MACHINE, *_HOST)
    found = _differ("machine", first["machine"], other["machine"], keys)
    found += code_digest.differences(first, other)
    found += other_work(first, other)
    ladders = [
        {key: value for key, value in each["ladder"].items() if key != "rungs"} for each in (first, other)
    ]
    both = all(
        "digest" in each for each in ladders
    )  # of a user's ladder, unless an earlier version made the file
    keys = sorted({*ladders[0], *ladders[1]} - (set() if both else {"digest"}))
    found += _differ("ladder", *ladders, keys)  # without its rungs: a run may have measured some only
    protocols = [{"mode": modes.CUMULATIVE, **each["protocol"]} for each in (first, other)]
    found += _differ("protocol", *protocols, _PROTOCOL)
    known = anyway or code_digest.known(first, other)
    if not found and not known and bool(first["dirty"]) != bool(other["dirty"]):
        found.append(f"dirty: {first['dirty']} and {other['dirty']}")
    return found or _other_rungs(first, other, anyway and on_gpu)


def other_work(first: Result, other: Result) -> list[str]:
    """What the two trained, on which images and in which environment, as far as both say: each with both values."""
    pair = (first, other)
    works = [content.fields_of(each["workload"]) | {"data": each["workload"].get("data")} for each in pair]
    names = [each["workload"]["name"] for each in pair]
    found = _differ("workload", *works, sorted({*works[0], *works[1]}))
    if names[0] != names[1]:
        found.append(f"workload.name: {names[0]} and {names[1]}")
    if images := identity.other_images(first, other):
        found.append(f"images: {' and '.join(images)}")
    return found + [f"{name}: {was} and {now}" for name, was, now in environment.differences(first, other)]


def _differ(where: str, one: dict[str, Any], other: dict[str, Any], keys: Sequence[str]) -> list[str]:
    pairs = [(key, one.get(key, _NONE), other.get(key, _NONE)) for key in keys]
    return [f"{where}.{key}: {_said(a)} and {_said(b)}" for key, a, b in pairs if a != b]


def _said(value: Any) -> str:
    return "missing" if value is _NONE else str(value)


def _other_rungs(first: Result, other: Result, anyway: bool) -> list[str]:
    """Rungs of one name that are two programs, or that one run did not let pass and another timed."""
    theirs, found = {rung["name"]: rung for rung in other["rungs"]}, []
    for one in first["rungs"]:
        if (two := theirs.get(one["name"])) is None:
            continue
        where = f"rung {one['name']}"
        for a, b in ((one, two), (two, one)):
            if a["status"] in _REFUSED and b["rounds"]:
                found.append(f"{where}: {one['status']} and {two['status']}")
        if not (one["rounds"] and two["rounds"]):
            continue
        for part in ("recipe", "settings"):
            a, b = one.get(part) or {}, two.get(part) or {}
            keys = sorted({*a, *b} - ({"cpu_threads"} if anyway else set()))
            found += _differ(f"{where}.{part}", a, b, keys)
    return found


def one_order(runs: Sequence[Result]) -> list[str]:
    """All rungs of the runs in the order of their ladder, of which a run may have measured a part (`--rungs`).

    Raises:
        UserError: the runs leave open, or contradict each other in, which of two rungs comes first.
    """
    left, order = [list(run["ladder"]["rungs"]) for run in runs], []
    while heads := list(dict.fromkeys(names[0] for names in left if names)):
        free = [name for name in heads if not any(name in names[1:] for names in left)]
        if len(free) != 1:
            raise UserError(
                f"these do not belong together: rungs: no run says which of {' and '.join(free or heads)} comes first;"
                " a run that has both does"
            )
        order += free
        left = [names[names[:1] == free :] for names in left]
    return order


def unknown_code(result: Result) -> str | None:
    """Why nobody can say which code a run measured, in one line, or None."""
    if code_digest.known(result):
        return None
    if result["commit"] is None:
        return "commit: None: whether it measured the same code cannot be known"
    return "dirty: True: its code differs from its commit, nobody knows in what" if result["dirty"] else None


def unproven(result: Result) -> str | None:
    """A rung that was timed though its own checks object: no genuine run writes that."""
    for rung in result["rungs"]:
        receipts, parity = rung.get("receipts") or {}, rung.get("parity") or {"verdict": "ok"}
        if rung["rounds"] and not all(each["engaged"] for each in receipts.values()):
            return f"rung {rung['name']}: not engaged, but timed"
        if rung["rounds"] and parity["verdict"] != "ok":
            return f"rung {rung['name']}: {parity['verdict']}, but timed"
    return None
