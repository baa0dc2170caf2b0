"""The kind of a result of `ladder precision`; `ladder.studies.precision.record` has the rules of its fields."""

from __future__ import annotations

from ladder.base.rules import alike
from ladder.results.check import study
from ladder.studies.precision import record
from ladder.studies.precision.batch_search import largest
from ladder.studies.precision.record import Result


def contradiction(result: Result) -> str | None:
    """Return, in one line, which numbers do not follow from their samples, or None."""
    for row, derived in zip(result.rows, record.derive(result.rows), strict=True):
        named = f"{row.precision} on the {row.on}"
        for key in ("step_ms", *record.TIMED):
            if not alike(getattr(row, key), getattr(derived, key)):
                return f"{named}: {key} is not what its rounds say"
        if any(each.beside and each.device_gib is not None for each in row.rounds):
            return f"{named}: device_gib of a round that had others beside it"
        if row.largest and row.largest.batch is not None and row.largest.batch != largest(row.largest.tried):
            return f"{named}: the largest batch is none of those that fitted"
    ours = [claim.ours for claim in record.claims(result.rows)]
    if len(ours) != len(result.claims) or not all(
        alike(claim.ours, wanted) for claim, wanted in zip(result.claims, ours, strict=True)
    ):
        return "claims: not what the rows say"
    return None


KIND = study("precision", Result, contradiction)
