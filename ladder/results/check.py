"""The kinds of result beside a ladder's run, and what no genuine one holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ladder.base import text
from ladder.base.rules import Rule
from ladder.results import identity


@dataclass(frozen=True)
class Kind:
    """One kind of result beside a ladder's run: what its file may hold, and how it is judged."""

    name: str
    rule: Rule
    contradiction: Callable[[dict[str, Any]], str | None] = lambda data: None
    hardware: bool = True  # whether it has a machine that is named after its hardware
    cautions: Callable[[dict[str, Any]], list[str]] = lambda data: []  # why its figures are not to be quoted


def problem_of_kind(data: Any, kind: Kind) -> str | None:
    """Return what is wrong with a result of another kind, in one line, or None."""
    if fault := kind.rule(data):
        where, what = fault
        return f"{where.lstrip('.')}: {what}" if where else what
    if kind.hardware and (problem := _misnamed(data)):
        return problem
    return kind.contradiction(data)


def _misnamed(data: dict[str, Any]) -> str | None:
    """Return why the names of machine and workload are not made from what they hold, or None."""
    machine = data.get("machine") or data.get("machine_info")
    if machine is None:
        return None
    machine = {"gpu": None, **machine}
    hardware = machine["gpu"] if machine.get("device", "cpu") == "cuda" else machine["cpu"]
    hardware = hardware["brand_raw"] if isinstance(hardware, dict) else hardware
    names = hardware and (text.slug(hardware), text.slug(machine["gpu"] or hardware))
    if not names or machine["name"] not in names:
        return f"machine.name: {machine['name']!r} is not made from its hardware"
    return identity.misnamed(data["workload"]) if isinstance(data.get("workload"), dict) else None
