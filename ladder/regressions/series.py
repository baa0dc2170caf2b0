"""What asv has recorded, as series over commits: read from `results/asv`, a line for each file that is none."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ladder import results, texts
from ladder.errors import UserError, one_line

STEP_TIME = re.compile(r"(?:.*\.)?samples_step_time")  # what bench-compare measures too
_LARGEST = 2**22
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass
class Series:
    """One benchmark with its parameters on one machine in one environment: value and weight by commit."""

    machine: str
    environment: str
    benchmark: str
    params: tuple[str, ...]
    torch: str | None
    values: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float | None] = field(default_factory=dict)

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
        combinations = [tuple(map(_plain, each)) for each in itertools.product(*params)]
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
    for benchmark, version, each, value, weight in taken:
        key = (machine, environment, benchmark, str(version), *each)
        torch = result.params.get("torch")
        one = found.setdefault(key, Series(machine, environment, benchmark, each, torch))
        one.values[commit], one.weights[commit] = value, weight


def _plain(parameter: Any) -> str:
    """asv stores the repr of a parameter: `'bf16'`."""
    text = str(parameter)
    return texts.plain(text[1:-1] if len(text) > 1 and text[0] == text[-1] == "'" else text)


Notes = dict[tuple[str, str, str], dict[str, Any]]  # (machine, commit, environment) -> a note


def notes(folder: Path) -> Notes:
    """What lies beside results in <machine>/notes: driver, kernel release, tuning choices. What is none is left out."""
    found = {}
    for path in sorted(folder.glob("*/notes/*.json")):
        try:
            if path.is_symlink() or path.stat().st_size > _LARGEST:
                continue
            note = results.parse(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(note, dict) and isinstance(note.get("commit"), str):
            found[path.parent.parent.name, note["commit"], str(note.get("environment"))] = note
    return found


def changed(
    before: dict[str, Any] | None, after: dict[str, Any] | None, key: str, benchmark: str
) -> str | None:
    """`580.65 -> 590.10` if both notes say it and it differs; what a benchmark says itself goes before the note's."""
    seen = []
    for note in (before, after):
        own = ((note or {}).get("benchmarks") or {}).get(benchmark)
        value = (own if isinstance(own, dict) and key in own else note or {}).get(key)
        seen.append(results.display(str(value)) if value else None)
    return f"{seen[0]} -> {seen[1]}" if all(seen) and seen[0] != seen[1] else None


def changed_choices(before: dict[str, Any] | None, after: dict[str, Any] | None, series: Series) -> list[str]:
    """Tuning choices that only one of the two made, at most four."""
    rows = [_rows(note, series) for note in (before, after)]
    if None in rows:
        return []
    only = [f"no longer {row}" for row in rows[0] if row not in rows[1]]
    only += [f"now {row}" for row in rows[1] if row not in rows[0]]
    return only[:4]


def _rows(note: dict[str, Any] | None, series: Series) -> list[str] | None:
    """The choices of a series as lines; those of all where they are not told apart."""
    choices = (note or {}).get("choices")
    if isinstance(choices, dict):
        wanted = [
            key
            for key in choices
            if all(part in re.split(r"[^A-Za-z0-9_.-]+", key) for part in series.params)
        ]
        choices = (
            [row for key in wanted if isinstance(choices[key], list) for row in choices[key]]
            if wanted
            else None
        )
    if not isinstance(choices, list):
        return None
    return [_line(row) for row in choices]


def _line(row: Any) -> str:
    if isinstance(row, dict):
        row = " ".join(f"{key}={value}" for key, value in row.items() if key != "rungs")
    return results.display(str(row))
