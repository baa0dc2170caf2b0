"""Say what a result must not hold: a machine not named after its hardware, headline times without samples, and the
like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ladder.base import text
from ladder.base import text as texts
from ladder.base.rules import Problem, Rule, shown
from ladder.results import code_digest as measured
from ladder.results import identity, plausible, schema, store


def _contradiction(data: dict[str, Any]) -> str | None:
    """Return what cannot be in a run that its schema takes, in one line, or None."""
    machine, rungs = data["machine"], data["rungs"]
    hardware = machine["gpu"] if machine["device"] == "cuda" else machine["cpu"]
    if hardware is None or machine["name"] != texts.slug(hardware):
        return f"machine.name: {machine['name']!r} is not made from its hardware, {shown(hardware)}"
    names = [rung["name"] for rung in rungs]
    if names != data["ladder"]["rungs"] or len(set(names)) < len(names):
        return "rungs: not those of ladder.rungs, each once and in that order"
    if data["baseline"] not in (None, *names):
        return f"baseline: no rung is named {data['baseline']!r}"
    if problem := (
        measured.contradiction(data) or identity.misnamed(data["workload"]) or identity.misordered(data)
    ):
        return problem
    least = plausible.floor_ms(machine, data["workload"])
    for rung in [*rungs, *data.get("twins", [])]:
        problem = None if "of" in rung else _rung_contradiction(rung)
        if rung["status"] == "ok":
            problem = problem or plausible.too_fast(rung, least)
        if problem:
            return f"rung {rung['name']}: {problem}"
    if data["complete"] and not any(rung["samples_ms"] for rung in rungs):
        return "complete, but nothing was measured"
    return None


def _rung_contradiction(rung: dict[str, Any]) -> str | None:
    samples, numbers = rung["samples_ms"], [r["round"] for r in rung["rounds"]]
    if len(set(numbers)) < len(numbers):
        return "a round is there twice"
    if rung["rounds"] and not set(samples) <= {each for r in rung["rounds"] for each in r["samples_ms"]}:
        return "samples_ms are not those of its rounds"
    if rung["step_ms"] is None:
        return None
    if rung["status"] != "ok":
        return f'a step time, but the status "{rung["status"]}"'
    if not samples:
        return "a step time without samples"
    for key in ("step_ms", "q25_ms", "q75_ms"):
        if rung[key] is not None and not min(samples) * 0.999999 <= rung[key] <= max(samples) * 1.000001:
            return f"{key} is not among its samples"
    return None


@dataclass(frozen=True)
class Kind:
    """One kind of result beside a ladder's run: what its file may hold, and how it is judged."""

    name: str
    rule: Rule
    contradiction: Callable[[dict[str, Any]], str | None] = lambda data: None
    notes: bool = False  # whether `protocol.notes` say why it must not be quoted
    hardware: bool = True  # whether it has a machine that is named after its hardware


def problem_of(data: Any) -> str | None:
    """Return what is wrong with a ladder's run, in one line, or None."""
    return _in_words(schema.RESULT(data)) or store.check(data) or _contradiction(data)


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
    hardware = machine["gpu"] if machine.get("device", "cpu") == "cuda" else machine["cpu"]
    hardware = hardware["brand_raw"] if isinstance(hardware, dict) else hardware
    names = hardware and (text.slug(hardware), text.slug(machine["gpu"] or hardware))
    if not names or machine["name"] not in names:
        return f"machine.name: {machine['name']!r} is not made from its hardware"
    return identity.misnamed(data["workload"]) if isinstance(data.get("workload"), dict) else None
