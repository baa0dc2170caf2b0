"""What an entry changes beside its recipe: the step by a patch, or the model by fields of the workload.

Plain data, which goes to a worker by the name of a study and of the entry. The study's module under `ladder.studies`
has two functions: `apply(step, name)` patches a built step, `examine(step, name)` shows that the entry is in force.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from ladder.core.plain import Fields
from ladder.receipts import Issued


class Examination(TypedDict):
    """The answer of `examine`: the entry's receipt, and figures for the inspection's record."""

    receipts: dict[str, Issued]
    inspection: dict[str, float]


@dataclass(frozen=True)
class Variant:
    """One entry of a study."""

    study: str  # the module under `ladder.studies`
    why: str  # it costs what it costs, or what it changes; a clause that ends a sentence
    exempt: str | None = None  # why parity is not judged
    patched: bool = True  # another step or model than its recipe says: the rungs' receipts do not apply
    workload: Fields = field(default_factory=dict)  # the fields that it changes
    updates: int = 1  # of D for each update of G, each on a batch of its own

    def stored(self) -> dict[str, object]:
        """Return what a result's file keeps of it."""
        return {"exempt": self.exempt, "updates": self.updates, "workload": dict(self.workload)}
