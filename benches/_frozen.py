"""What the lists of series have in common: a frozen measurement, its fingerprint, and what a bare `asv run` takes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Series:
    """One frozen measurement. `device` is where it is measured, `needs` are capabilities of `ladder.machine.system`."""

    device: str
    needs: tuple[str, ...]
    workload: dict[str, Any]
    recipe: dict[str, Any]
    fingerprint: str


def fingerprint(workload: dict[str, Any], recipe: dict[str, Any]) -> str:
    """Twelve hexadecimal digits of what is measured (`data`, a folder of this machine, does not count)."""
    what = {"workload": {k: v for k, v in workload.items() if k != "data"}, "recipe": recipe}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def default(retired: Iterable[tuple[str, str]]) -> str:
    """The regular expression of what runs without `--bench`: the ladder's rungs, but for retired series.

    A retired series keeps the values it has: asv leaves alone what is not selected. `--bench` still measures it.
    """
    gone = "|".join(re.escape(f"({workload!r}, {rung!r})") for workload, rung in sorted(retired))
    return rf"^rungs\.(?!.*(?:{gone})$)" if gone else r"^rungs\."
