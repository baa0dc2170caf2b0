"""What a workload holds, apart from its name: fields and a digest of them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

DIGITS = 6  # of a workload's or ladder's content

_NOT_CONTENT = ("name", "data")


@functools.cache
def _defaults() -> dict[str, Any]:
    """The fields that a workload need not name. Imported late: where asv measures a commit, the class is its own."""
    from stylegan_lite.config import Workload

    found = {field.name: field.default for field in dataclasses.fields(Workload)}
    return {k: v for k, v in found.items() if k not in _NOT_CONTENT and v is not dataclasses.MISSING}


def digest(content: Any, digits: int = DIGITS) -> str:
    """The first hexadecimal digits of the SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:digits]


def fields_of(workload: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the work of a step: every field, those that a file leaves out at their default.

    Neither the name is among them nor the images.
    """
    held = {key: value for key, value in workload.items() if key not in _NOT_CONTENT}
    return {key: _one_number(value) for key, value in (_defaults() | held).items()}


def _one_number(value: Any) -> Any:
    """1 for 1.0, as YAML and JSON write both."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def of_workload(workload: Mapping[str, Any]) -> str:
    """Equal for two workloads exactly if their fields are, whatever their names. A new field changes no digest."""
    usual = fields_of({})
    told = {k: v for k, v in fields_of(workload).items() if k not in usual or v != usual[k]}
    return digest(told)
