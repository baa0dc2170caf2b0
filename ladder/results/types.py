"""The header of results whose records stand on `ladder.base.records`, and the records that all results share."""

from __future__ import annotations

from typing import Any

from ladder.base.records import ABSENT as ABSENT
from ladder.base.records import Absent, needed, optional, record, rule_of
from ladder.base.records import build as build
from ladder.base.records import given as given
from ladder.base.records import plain as plain
from ladder.base.records import read as read
from ladder.base.rules import items, mapping, number
from ladder.results import values as v
from ladder.results.file import Images, Machine
from ladder.results.file import KernelFamily as KernelFamily
from ladder.results.file import KernelProfile as KernelProfile
from ladder.results.file import ProfiledCycle as ProfiledCycle
from ladder.results.file import Round as Round
from ladder.results.run import Inspection as Inspection
from ladder.results.run import JudgedParity
from ladder.results.run import Merged as Merged
from ladder.results.run import Noise as Noise
from ladder.results.run import Receipt as Receipt
from ladder.results.run import RunGpu as RunGpu

Parity = JudgedParity
Plain = dict[str, Any]  # a recipe, a workload or settings, as a file has them


@record
class Origin:
    """Who measured, where, when and with which code."""

    machine: Machine = needed(rule_of(Machine))
    commit: str | None = needed(v.A_COMMIT)
    dirty: bool | None = needed(v.FLAG)
    complete: bool = needed(v.FLAG)
    started: str = needed(v.STARTED)
    seconds: float = needed(v.SECONDS)
    # Several commits where all of them measured the same code.
    commits: list[str] | Absent = optional(items(v.A_COMMIT, 100, least=2))
    measured_code: dict[str, str] | Absent = optional(mapping(v.IDENTIFIER, v.CODE_DIGEST, 8))
    environment: dict[str, str] | Absent = optional(v.ENVIRONMENT)
    images: Images | Absent = optional(rule_of(Images))


@record
class Header(Origin):
    """The origin of a result of one workload."""

    workload: Plain = needed(v.NAMED)


@record
class StudyHeader(Header):
    """The head of a result of another kind, which always says which code was measured."""

    schema: int = needed(number(v.SCHEMA, v.SCHEMA, whole=True))
    workload: Plain = needed(v.WORKLOAD)
    measured_code: dict[str, str] = needed(mapping(v.IDENTIFIER, v.CODE_DIGEST, 8))


def head(result: Any) -> Plain:
    """Return what a result of any kind says of itself: all of its header, nothing of what was measured.

    Commit and dirty may be None. What else is unknown is left out.
    """
    found = {name: plain(getattr(result, name, ABSENT)) for name in _HEAD}
    return {
        name: value
        for name, value in found.items()
        if value is not ABSENT and (value is not None or name in ("commit", "dirty"))
    }


_HEAD = tuple(Header.__dataclass_fields__)
