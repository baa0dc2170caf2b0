"""The contradictions that no genuine result holds, as a machine that is not named after its hardware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ladder.base import text
from ladder.base.errors import UserError
from ladder.base.records import build, rule_of
from ladder.base.rules import Problem, Rule, shown
from ladder.results import code_digest, identity, plausible, sources, store, values
from ladder.results.types import Result, RungResult, head, plain

T = TypeVar("T")


def contradiction(result: Result) -> str | None:
    """Return what cannot be in a run that its types allow, in one line, or None."""
    machine, rungs = result.machine, result.rungs
    hardware = machine.gpu if machine.device == "cuda" else machine.cpu
    if hardware is None or machine.name != text.slug(hardware):
        return f"machine.name: {machine.name!r} is not made from its hardware, {shown(hardware)}"
    names = [rung.name for rung in rungs]
    if names != result.ladder.rungs or len(set(names)) < len(names):
        return "rungs: not those of ladder.rungs, each once and in that order"
    if result.baseline not in (None, *names):
        return f"baseline: no rung is named {result.baseline!r}"
    if problem := (
        code_digest.contradiction(head(result))
        or identity.misnamed(result.workload)
        or identity.misordered(result)
    ):
        return problem
    facts = plain(machine)
    least = plausible.floor_ms(facts, result.workload)
    for rung in sources.records(result):
        problem = _rung_contradiction(rung) if isinstance(rung, RungResult) else None
        if rung.status == "ok":
            own = plausible.floor_of(rung, facts, result.workload, least)
            problem = problem or plausible.too_fast(rung, own)
        if problem:
            return f"rung {rung.name}: {problem}"
    if result.complete and not any(rung.samples_ms for rung in rungs):
        return "complete, but nothing was measured"
    return None


def _rung_contradiction(rung: RungResult) -> str | None:
    samples, numbers = rung.samples_ms, [each.round for each in rung.rounds]
    if len(set(numbers)) < len(numbers):
        return "a round is there twice"
    if rung.rounds and not set(samples) <= {ms for each in rung.rounds for ms in each.samples_ms}:
        return "samples_ms are not those of its rounds"
    if rung.step_ms is None:
        return None
    if rung.status != "ok":
        return f'a step time, but the status "{rung.status}"'
    if not samples:
        return "a step time without samples"
    for key in ("step_ms", "q25_ms", "q75_ms"):
        value = getattr(rung, key)
        if value is not None and not min(samples) * 0.999999 <= value <= max(samples) * 1.000001:
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
    cautions: Callable[[dict[str, Any]], list[str]] | None = (
        None  # why a file of raw observations is not to be quoted
    )


def study(name: str, cls: type[T], contradiction: Callable[[T], str | None]) -> Kind:
    """Return the kind of a study's result, of the records of a class that nothing may contradict."""

    def contradicted(data: dict[str, Any]) -> str | None:
        return code_digest.contradiction(data) or contradiction(build(cls, data))

    return Kind(name, rule_of(cast(Any, cls)), contradicted, notes=True)


def problem_of(data: Any) -> str | None:
    """Return what is wrong with the data of a ladder's run, in one line, or None."""
    try:
        result = store.of_data(data)
    except UserError as error:
        return str(error)
    return plain_problem(result) or contradiction(result)


def plain_problem(result: Result) -> str | None:
    """Return what is wrong with the workload, a recipe or settings, in one line, or None.

    Readers take them as they are, as those of another commit have other fields; a stranger's are held to today's.
    """
    if problem := values.WORKLOAD(result.workload):
        return _in_words((f".workload{problem[0]}", problem[1]))
    for index, rung in enumerate(sources.records(result)):
        place = f"rungs[{index}]" if index < len(result.rungs) else f"twins[{index - len(result.rungs)}]"
        for key, rule in (("recipe", values.RECIPE), ("settings", values.SETTINGS)):
            value = getattr(rung, key)
            if value is not None and (problem := rule(value)):
                return _in_words((f"{place}.{key}{problem[0]}", problem[1]))
    return None


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
