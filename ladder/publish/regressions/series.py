"""What asv has recorded, as series over commits: read from `results/asv`, a line for each file that is none."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from ladder.base import text as texts
from ladder.base.errors import UserError, one_line

STEP_TIME = re.compile(r"(?:.*\.)?samples_step_time")  # what bench-compare measures too
_LARGEST = 2**22
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TYPED = re.compile(r"[A-Za-z0-9_.,'() -]{1,140}")  # may stand in a command that somebody copies into a shell


@dataclass
class Series:
    """One benchmark with its parameters on one machine in one environment: value and weight by commit."""

    machine: str
    environment: str
    benchmark: str
    params: tuple[str, ...]
    torch: str | None
    quoted: tuple[str, ...] = ()  # the parameters as asv writes them: "'bf16'"
    values: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float | None] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`article/bf16` for the step time of a rung, else the benchmark with its parameters."""
        if self.rung:
            return "/".join(self.rung)
        return f"{self.benchmark}({', '.join(self.params)})" if self.params else self.benchmark

    @property
    def rung(self) -> tuple[str, str] | None:
        """(workload, rung) where this is a step time that two commits can be compared by."""
        return (
            (self.params[0], self.params[1])
            if STEP_TIME.fullmatch(self.benchmark) and len(self.params) == 2
            else None
        )

    @property
    def pattern(self) -> str | None:
        """The regular expression that selects this series alone of all that asv knows; None if it is no plain name."""
        full = f"{self.benchmark}({', '.join(self.quoted)})" if self.quoted else self.benchmark
        return re.sub(r"([().])", r"\\\1", full) if _TYPED.fullmatch(full) else None


def read(folder: Path) -> tuple[list[Series], list[str]]:
    """(series, a line for each file that was left out). Raises `UserError` if there is no such folder."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; `asv run` makes it")
    found: dict[tuple[str, ...], Series] = {}
    refused = []
    for machine in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        for path in sorted(machine.glob("*.json")):
            if path.name == "machine.json":
                continue
            try:
                _take(path, machine.name, found)
            except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
                why = one_line(str(error)) or type(error).__name__
                refused.append(texts.plain(f"{machine.name}/{path.name}: not a result of asv: {why}"))
    return list(found.values()), refused


def _take(path: Path, machine: str, found: dict[tuple[str, ...], Series]) -> None:
    from asv import _stats, util
    from asv.results import Results

    if path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST:
        raise ValueError("not a regular file of modest size")
    try:
        result = Results.load(str(path), machine_name=machine)
    except util.UserError as error:
        raise ValueError(str(error)) from None
    commit, environment = result.commit_hash, result.env_name
    if not (isinstance(commit, str) and _COMMIT.fullmatch(commit) and _NAME.fullmatch(environment)):
        raise ValueError("no commit or environment")
    taken = []  # all of a file or nothing
    for benchmark in result.get_all_result_keys():
        params = result.get_result_params(benchmark) or []
        combinations = [tuple(map(str, each)) for each in itertools.product(*params)]
        values = result.get_result_value(benchmark, params)
        stats = result.get_result_stats(benchmark, params)
        version = result.benchmark_version.get(benchmark)
        for each, value, said in zip(combinations, values, stats, strict=True):
            if (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and math.isfinite(value)
                and value > 0
            ):
                taken.append((benchmark, version, each, float(value), _stats.get_weight(said)))
    for benchmark, version, quoted, value, weight in taken:
        each = tuple(map(_plain, quoted))
        key = (machine, environment, benchmark, str(version), *each)
        torch = result.params.get("torch")
        one = found.setdefault(key, Series(machine, environment, benchmark, each, torch, quoted))
        one.values[commit], one.weights[commit], one.files[commit] = value, weight, path


def _plain(parameter: str) -> str:
    """asv stores the repr of a parameter: `'bf16'`."""
    return texts.plain(
        parameter[1:-1] if len(parameter) > 1 and parameter[0] == parameter[-1] == "'" else parameter
    )
