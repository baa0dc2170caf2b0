"""The request of a command, resolved once. Everything below the command line takes it whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.base.plain import Fields


@dataclass(frozen=True)
class Job:
    """What is to be measured, on which device, and where its files go.

    `workload` has all fields of `stylegan_lite.config.Workload`, with the path of its images; `source` is what a
    result file names in place of that path. `machine` are the facts of `ladder.machine.system.facts`. `options` is
    the record of the command's own options.
    """

    device: str
    name: str  # of the workload
    workload: Fields
    source: str | None
    machine: dict[str, Any]
    options: Any
    out: Path
    resume: Path | None = None
    minutes: float | None = None  # begin nothing new after these
    quiet: bool = False
