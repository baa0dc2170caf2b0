"""The content of a workload, apart from its name: its fields and a digest of them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ladder.core.plain import Fields

DIGITS = 6  # of a workload's or ladder's content

OF_CODE = (
    "model",
    "settings",
    "sizes",
    "repository",
)  # of a user's pair: never stored; its digest and sizes stand for them
_NOT_CONTENT = ("name", "data", *OF_CODE)


@functools.cache
def _default_fields() -> Fields:
    """Return the fields that a workload may leave out.

    Imported late: if asv measures a commit, the class is that commit's.
    """
    from stylegan_lite.config import Workload

    fields = {field.name: field.default for field in dataclasses.fields(Workload)}
    return {k: v for k, v in fields.items() if k not in _NOT_CONTENT and v is not dataclasses.MISSING}


def digest_content(content: Any, digits: int = DIGITS) -> str:
    """Return the first hexadecimal digits of the SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:digits]


def fields_of(workload: Mapping[str, Any]) -> Fields:
    """Return every field that decides the work of a step, with defaults for those that a file leaves out.

    The name and the images are not among them.
    """
    own = {key: value for key, value in workload.items() if key not in _NOT_CONTENT}
    return {  # 1.0 is 1, as YAML and JSON write both
        key: int(value) if isinstance(value, float) and value.is_integer() else value
        for key, value in (_default_fields() | own).items()
    }


def of_workload(workload: Mapping[str, Any]) -> str:
    """Return a digest that is equal for two workloads iff their fields are, whatever their names.

    A new field with a default changes no digest.
    """
    usual = fields_of({})
    return digest_content({k: v for k, v in fields_of(workload).items() if k not in usual or v != usual[k]})
