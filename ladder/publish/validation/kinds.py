"""The kinds of result that `ladder validate` knows beside a ladder's run.

Each study states the permitted content of its file in its own `record.py` or `schema.py`. Unlisted keys are refused,
so a new key must be added there. Module `schema_checks` has the project's own checks.
"""

from __future__ import annotations

from typing import Any

from ladder.publish.validation import schema_checks
from ladder.results import publishable
from ladder.results.check import Kind
from ladder.results.code_digest import Head
from ladder.results.store import KIND_KEYS
from ladder.results.types import build
from ladder.studies import frame
from ladder.studies.kernelbench import tuning_schema
from ladder.studies.kernelbench.schema import KIND as KERNELS
from ladder.studies.precision.schema import KIND as PRECISION
from ladder.studies.roofline import in_step
from ladder.studies.roofline.schema import KIND as ROOFLINE
from ladder.studies.roofline.schema import Result as Roofline
from ladder.studies.upstream.schema import KIND as UPSTREAM

_ALL = (
    KERNELS,
    PRECISION,
    ROOFLINE,
    UPSTREAM,
    *tuning_schema.KINDS,
    *schema_checks.KINDS,
    *map(frame.as_kind, frame.load_studies().values()),
)
RUN = "ladder"  # of `ladder run`
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}
UNNAMED = {"benchmarks": "pytest-benchmark"}  # recognized by a key that no other kind has


def kind_of(data: Head) -> Any:
    """Return the kind that a file states, or None where it states none."""
    for key in KIND_KEYS:
        if key in data:
            return data[key]
    return next((kind for key, kind in UNNAMED.items() if key in data and "schema" not in data), None)


def marks(data: Head) -> list[str]:
    """Return why an accepted file must not be quoted."""
    kind = KINDS[kind_of(data)]
    if kind.cautions is not None:
        return kind.cautions(dict(data))
    found = list(data["protocol"]["notes"]) if kind.notes else []
    if kind is ROOFLINE:
        if data["dirty"]:
            found.append("dirty work tree: not to be published")
        found += [
            f"no floor: {name} took less" for name in in_step.below(build(Roofline, data).measured.groups)
        ]
    if kind in schema_checks.KINDS:
        found += [publishable.DIRTY] * bool(data.get("dirty"))
        found += [publishable.PARTIAL] * (data.get("complete") is False)
    return found
