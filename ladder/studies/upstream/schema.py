"""The kind of a result of `ladder upstream`; `ladder.studies.upstream.record` has the rules of its fields."""

from __future__ import annotations

from ladder.base.protocol import IN_ORDER
from ladder.base.records import plain
from ladder.base.rules import alike
from ladder.results import plausible, store
from ladder.results.check import study
from ladder.studies.upstream import record
from ladder.studies.upstream.record import Patched, Result


def contradiction(result: Result) -> str | None:
    """Return, in one line, which numbers do not follow from the stored rounds, or None."""
    if [each.side for each in result.programs] != record.sides(bool(result.patched)):
        between = ", the patched one" if result.patched else ""
        return f"programs: not NVIDIA's{between} and ours, in that order"
    derived = record.derive(result)
    for found, wanted in zip(result.programs, derived.programs, strict=True):
        if not alike(found.step_ms, wanted.step_ms):
            return f"{found.side}: step_ms is not what its rounds say"
        if found.status == "ok" and not found.rounds:
            return f"{found.side}: ok without a round"
    if not alike(*(each.ratio.median if each.ratio else None for each in (result, derived))):
        return "ratio: not what the rounds say"
    if (
        result.patched
        and derived.patched
        and (problem := _of_patched(result, result.patched, derived.patched))
    ):
        return f"patched.{problem}"
    if problem := store.missing_note(derived.protocol.notes, result.protocol.notes):
        return problem
    ours, least = result.program(record.OURS), plausible.floor_ms(plain(result.machine), result.workload)
    if ours.status == "ok" and (problem := plausible.program_too_fast(plain(ours), least)):
        return f"ours: {problem}"
    return None


def _of_patched(result: Result, found: Patched, derived: Patched) -> str | None:
    """Return, in one line, what contradicts the rounds or the errors of the patched clone, or None."""
    for key in ("ratio", "gpu_ratio"):
        if not alike(*(ratio.median if (ratio := getattr(each, key)) else None for each in (found, derived))):
            return f"{key}: not what the rounds say"
    parity, timed = found.parity, bool(result.program(record.PATCHED).rounds)
    if parity and parity.verdict == "ok" and (problem := parity.problem()):
        return f"parity: ok with {problem}"
    if parity and parity.verdict == "ok" and set(parity.phases) != set(IN_ORDER):
        return "parity: ok without every phase"
    if timed and not (parity and parity.verdict == "ok"):
        return "parity: timed without it"
    return None


KIND = study("upstream", Result, contradiction)
