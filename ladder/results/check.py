"""The kinds of result beside a ladder's run, and what no genuine one holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ladder.base import text
from ladder.base.records import build, rule_of
from ladder.base.rules import Problem, Rule
from ladder.results import code_digest, identity

T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """One kind of result beside a ladder's run: what its file may hold, and how it is judged."""

    name: str
    rule: Rule
    contradiction: Callable[[dict[str, Any]], str | None] = lambda data: None
    notes: bool = False  # whether `protocol.notes` say why it must not be quoted
    hardware: bool = True  # whether it has a machine that is named after its hardware
    cautions: Callable[[dict[str, Any]], list[str]] | None = (
        None  # why a file of raw observations is not to be quoted
    )


def study(name: str, cls: type[T], contradiction: Callable[[T], str | None]) -> Kind:
    """Return the kind of a study's result, of the records of a class that nothing may contradict."""

    def contradicted(data: dict[str, Any]) -> str | None:
        return code_digest.contradiction(data) or contradiction(build(cls, data))

    return Kind(name, rule_of(cast(Any, cls)), contradicted, notes=True)


def problem_of_kind(data: Any, kind: Kind) -> str | None:
    """Return what is wrong with a result of another kind, in one line, or None."""
    if problem := _in_words(kind.rule(data)):
        return problem
    if kind.hardware and (problem := _misnamed(data)):
        return problem
    return kind.contradiction(data)


def _in_words(problem: Problem | None) -> str | None:
    if problem is None:
        return None
    where, what = problem
    return f"{where.lstrip('.')}: {what}" if where else what


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
