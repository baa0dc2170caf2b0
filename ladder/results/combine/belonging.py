"""The conditions for merging rounds: what two runs must agree in, and what a run must not hold.

`ladder.results.combine.merging` asks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ladder.base.errors import UserError
from ladder.core.records import write_record, write_whole
from ladder.machine import environment
from ladder.plan import content
from ladder.results import code_digest, identity
from ladder.results import store as results
from ladder.results.derive import judge_parity
from ladder.results.run import Run
from ladder.results.types import Plain, head

_MACHINE = ("name", "gpu", "gpu_memory_gb", "device", *results.SOFTWARE, "driver", "python", "os")
_HOST = ("cpu", "cores")  # what may differ if it is asked for, on a GPU
_PROTOCOL = ("mode", "quick", "cycles", "cycle_steps", "gpu_memory_limit_gb")
_REFUSED = ("not engaged", "failed: parity")
_NONE = object()


def differences(first: Run, other: Run, anyway: bool = False) -> list[str]:
    """Return why rounds of the two do not belong together: each key with both values."""
    pair, heads = (first, other), (head(first), head(other))
    on_gpu = first.machine.device == "cuda"
    found = other_origin(first, other, anyway)
    ladders = [write_record(each.ladder) for each in pair]
    found += _differ(
        "ladder", ladders[0], ladders[1], ("digest", "name", "title")
    )  # some measured some rungs only
    whole = [write_whole(each.protocol) for each in pair]
    protocols = [{key: value for key, value in each.items() if value is not None} for each in whole]
    found += _differ("protocol", protocols[0], protocols[1], _PROTOCOL)
    known = anyway or code_digest.known(*heads)
    if not found and not known and bool(first.dirty) != bool(other.dirty):
        found.append(f"dirty: {first.dirty} and {other.dirty}")
    return found or _other_rungs(first, other, anyway and on_gpu)


def refuse_others(
    path: Path, other_path: Path, differ: Callable[[bool], list[str]], anyway: bool = False
) -> None:
    """Raise `UserError`, one line, if two files do not belong together. `differ` says why, with `--anyway` or not."""
    if found := differ(anyway):
        hint = "; --anyway merges them nevertheless" if not anyway and not differ(True) else ""
        raise UserError(f"{path} and {other_path} do not belong together: {'; '.join(found)}{hint}")


def refuse_the_same(found: Sequence[tuple[Path, Any]], visits: Callable[[Any], set[Any]]) -> None:
    """Raise `UserError`, one line, if two files hold a visit together."""
    seen: list[tuple[Path, set[Any]]] = []
    for path, result in found:
        own = visits(result)
        for other, theirs in seen:
            if own & theirs:
                raise UserError(f"{other} and {path} hold the same run of {result.started}")
        seen.append((path, own))


def other_origin(first: Any, other: Any, anyway: bool = False) -> list[str]:
    """Return how machine, code and workload of the two differ, of whatever kind they are."""
    heads = head(first), head(other)
    keys = _MACHINE if anyway and first.machine.device == "cuda" else (*_MACHINE, *_HOST)
    found = _differ("machine", heads[0]["machine"], heads[1]["machine"], keys)
    return found + code_digest.differences(*heads) + other_work(first, other)


def other_work(first: Any, other: Any) -> list[str]:
    """Return how workload, images and environment of the two differ, as far as both say: each with both values."""
    pair, heads = (first.workload, other.workload), (head(first), head(other))
    works = [content.fields_of(each) | {"data": each.get("data")} for each in pair]
    found = _differ("workload", works[0], works[1], sorted({*works[0], *works[1]}))
    if pair[0]["name"] != pair[1]["name"]:
        found.append(f"workload.name: {pair[0]['name']} and {pair[1]['name']}")
    if images := identity.other_images(*heads):
        found.append(f"images: {' and '.join(images)}")
    return found + [f"{name}: {was} and {now}" for name, was, now in environment.list_differences(*heads)]


def _differ(where: str, one: Plain, other: Plain, keys: Sequence[str]) -> list[str]:
    pairs = [(key, one.get(key, _NONE), other.get(key, _NONE)) for key in keys]
    return [f"{where}.{key}: {_said(a)} and {_said(b)}" for key, a, b in pairs if a != b]


def _said(value: Any) -> str:
    return "missing" if value is _NONE else str(value)


def _other_rungs(first: Run, other: Run, anyway: bool) -> list[str]:
    """Return rungs of one name that are two programs, or that one run did not let pass and another timed."""
    theirs, found = {rung.name: rung for rung in other.rungs}, []
    for one in first.rungs:
        if (two := theirs.get(one.name)) is None:
            continue
        where = f"rung {one.name}"
        for a, b in ((one, two), (two, one)):
            if a.status in _REFUSED and b.rounds:
                found.append(f"{where}: {one.status} and {two.status}")
        if not (one.rounds and two.rounds):
            continue
        for part in ("recipe", "settings"):
            a, b = getattr(one, part) or {}, getattr(two, part) or {}
            keys = sorted({*a, *b} - ({"cpu_threads"} if anyway else set()))
            found += _differ(f"{where}.{part}", a, b, keys)
    return found


def one_order(runs: Sequence[Run]) -> list[str]:
    """Return all rungs of the runs in the order of their ladder, of which a run may have measured a part (`--rungs`).

    Raises:
        UserError: the runs leave open, or contradict each other in, which of two rungs comes first.
    """
    left, order = [list(run.ladder.rungs) for run in runs], []
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


def unknown_code(result: Run) -> str | None:
    """Return why nobody can say which code a run measured, in one line, or None."""
    if code_digest.known(head(result)):
        return None
    if result.commit is None:
        return "commit: None: whether it measured the same code cannot be known"
    return "dirty: True: its code differs from its commit, nobody knows in what" if result.dirty else None


def unproven(run: Run) -> str | None:
    """Return the rung that was timed though its own checks object, in one line, or None.

    No genuine run writes that.
    """
    for rung in run.rungs:
        if rung.rounds and not all(each.engaged for each in (rung.receipts or {}).values()):
            return f"rung {rung.name}: not engaged, but timed"
        parity = judge_parity(rung.parity)
        if rung.rounds and parity and parity.verdict != "ok":
            return f"rung {rung.name}: {parity.verdict}, but timed"
    return None
