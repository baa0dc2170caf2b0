"""The types of plain data, as YAML and JSON files hold them."""

from __future__ import annotations

from typing import Any

Scalar = str | int | float | bool | None
Fields = dict[str, Scalar]  # field -> value, of a workload or a recipe
Plain = dict[str, Any]  # an object of JSON that is no record
