"""The kind of a result of `ladder upstream`; `ladder.studies.upstream.record` has the rules of its fields."""

from __future__ import annotations

from ladder.base.records import build, plain, rule_of
from ladder.base.rules import alike
from ladder.results import code_digest, plausible
from ladder.results.check import Kind
from ladder.results.types import head
from ladder.studies.upstream import record
from ladder.studies.upstream.record import Result


def contradiction(result: Result) -> str | None:
    """Return, in one line, which numbers do not follow from the stored rounds, or None."""
    if problem := code_digest.contradiction(head(result)):
        return problem
    if [each.side for each in result.programs] != [record.UPSTREAM, record.OURS]:
        return "programs: not NVIDIA's and ours, in that order"
    derived = record.derive(result)
    for found, wanted in zip(result.programs, derived.programs, strict=True):
        if not alike(found.step_ms, wanted.step_ms):
            return f"{found.side}: step_ms is not what its rounds say"
        if found.status == "ok" and not found.rounds:
            return f"{found.side}: ok without a round"
    ratios = [each.ratio.median if each.ratio else None for each in (result, derived)]
    if not alike(*ratios):
        return "ratio: not what the rounds say"
    if missing := [note for note in derived.protocol.notes if note not in result.protocol.notes]:
        return f"protocol.notes: lack {missing[0]!r}"
    ours, least = result.programs[1], plausible.floor_ms(plain(result.machine), result.workload)
    if ours.status == "ok" and (problem := plausible.program_too_fast(plain(ours), least)):
        return f"ours: {problem}"
    return None


KIND = Kind("upstream", rule_of(Result), lambda data: contradiction(build(Result, data)), notes=True)
