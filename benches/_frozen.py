"""The common parts of the lists of series: a frozen measurement, its fingerprint, and the default selection."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Series:
    """One frozen measurement.

    `device` is the device it runs on, `needs` are capabilities of `ladder.machine.system`.
    """

    device: str
    needs: tuple[str, ...]
    workload: dict[str, Any]
    recipe: dict[str, Any]
    fingerprint: str


def fingerprint(workload: dict[str, Any], recipe: dict[str, Any]) -> str:
    """Return twelve hexadecimal digits of workload and recipe.

    `data`, a folder of this machine, is left out.
    """
    what = {"workload": {k: v for k, v in workload.items() if k != "data"}, "recipe": recipe}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def default(retired: Iterable[tuple[str, str]]) -> str:
    """Return the regular expression of the benchmarks that run without `--bench`.

    They are the ladder's rungs without retired series. asv leaves unselected benchmarks alone, so a retired series
    keeps its values. Option `--bench` still measures it.
    """
    gone = "|".join(re.escape(f"({workload!r}, {rung!r})") for workload, rung in sorted(retired))
    return rf"^rungs\.(?!.*(?:{gone})$)" if gone else r"^rungs\."
