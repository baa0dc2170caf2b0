"""The checks of a stranger's asv file that need more than one value.

Module `asv_schema` beside it checks single values. A file's name decides its kind: machine.json, benchmarks.json,
COMMIT-ENVIRONMENT.json, or our note of that name in the folder notes. A file is refused in one line if asv could
not have written it here. It is also refused if its steps are faster than its GPU can compute.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ladder.base import text
from ladder.base.rules import shown
from ladder.plan import catalog
from ladder.publish.validation import asv_schema
from ladder.results import plausible
from ladder.results import store as results
from ladder.results.types import Plain

MOST_BYTES = 2**20
NOTES = "notes"
NEVER_TAKEN = "regenerated when the site is made, never taken from here"
DIRTY = "dirty: not publishable: the code differs from its commit"
_RESULTS = re.compile(r"[0-9a-f]{8}-.+\.json")
_LONGEST_ENVIRONMENT = 128  # from this length on, asv names the file after a digest


def kind_of(path: Path) -> str | None:
    """Return the kind of asv's file with this name, or None for a file of ours.

    Kinds are "machine", "benchmarks", "results" and "note".
    """
    if path.name in ("machine.json", "benchmarks.json"):
        return path.stem
    if _RESULTS.fullmatch(path.name):
        return "note" if path.parent.name == NOTES else "results"
    return None


def parse(raw: bytes, kind: str) -> Any:
    """Return the JSON of one of asv's files.

    In results, NaN says that a benchmark does not apply.

    Raises:
        ValueError: the file is not valid JSON; one line.
    """
    return results.parse(raw, constants=kind == "results")


def check(data: Any, kind: str, path: Path) -> str | None:
    """Return one line on what is wrong with an asv file from a stranger, or None."""
    if problem := asv_schema.RULES[kind](data):
        where, what = problem
        return f"{where.lstrip('.')}: {what}" if where else what
    if kind == "machine":
        return _machine_problem(data, path.parent.name)
    if kind == "note":
        return _named_after(data["commit"], data["environment"], path)
    return _contradiction(data, path) if kind == "results" else None


def marks(data: Any, kind: str) -> list[str]:
    """Return why an accepted file must not be quoted, or is not used."""
    if kind == "benchmarks":
        return [NEVER_TAKEN]
    return [DIRTY] if kind == "results" and "tree" in data["requirements"] else []


def fingerprint(data: Any, kind: str) -> str | None:
    """Return a digest that is equal exactly for files with the same measurement, or None for other files."""
    if kind != "results":
        return None
    what = {name: row[0] for name, row in data["results"].items() if asv_schema.is_time(name)}
    if not any(number(value) is not None for values in what.values() for value in values or ()):
        # Memory peaks can repeat to the byte; the times at which they were measured do not.
        what = {name: [*row[3:5], row[0]] for name, row in data["results"].items()}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def number(value: Any) -> float | None:
    """Return a value of asv as a number, or None if it failed or does not apply."""
    return None if value is None or math.isnan(value) else value


def device_of(params: Mapping[str, str]) -> str:
    return "cpu" if params["gpu"] == "none" else "cuda"


def combinations(row: list[Any]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (position in the columns, parameter values) of each combination in a row.

    The values come without their quotes.
    """
    for index, values in enumerate(itertools.product(*row[1])):
        yield index, tuple(value.strip("'") for value in values)


# --- what no single value shows -----------------------------------------------------------------------------------


def _machine_problem(facts: Mapping[str, str], folder: str) -> str | None:
    hardware = facts["cpu"] if facts["gpu"] == "none" else facts["gpu"]
    made = text.slug(hardware)
    if not re.fullmatch(
        rf"{re.escape(made)}(-[0-9a-f]{{6}})?", facts["machine"]
    ):  # the digits distinguish two machines with the same GPU
        return f"machine: {shown(facts['machine'])} is not made from its hardware, {shown(hardware)}"
    if facts["machine"] != folder:
        return f"machine: {shown(facts['machine'])} in the folder of {shown(folder)}"
    if (facts["gpu"] == "none") != (facts["gpu_memory"] == "none"):
        return "gpu_memory: there is a GPU without memory, or memory without a GPU"
    return None


def _named_after(commit: str, environment: str, path: Path) -> str | None:
    if len(environment) >= _LONGEST_ENVIRONMENT:
        environment = "env-" + hashlib.md5(environment.encode()).hexdigest()
    if path.name != f"{commit[:8]}-{environment}.json":
        return "the file is not named after its commit and environment"
    return None


def _contradiction(data: asv_schema.Results, path: Path) -> str | None:
    params = data["params"]
    for key, rule in asv_schema.FACTS.items():
        if problem := rule(params.get(key)):
            return f"params.{key}{problem[0]}: {problem[1]}"
    expected = {"python": data["python"], **data["requirements"]}
    for key, value in params.items():
        if key not in asv_schema.FACTS and expected.get(key) != value:
            return f"params.{key}: neither a fact of the machine nor in the requirements"
    if missing := [key for key in expected if key not in params]:
        return f"params: {missing[0]!r} is missing"
    if problem := _machine_problem(params, path.parent.name):
        return f"params.{problem}"
    if problem := _named_after(data["commit_hash"], data["env_name"], path):
        return problem
    for name, row in data["results"].items():
        row = row + [None] * (len(asv_schema.COLUMNS) - len(row))
        if problem := _row_contradiction(row) or _too_fast(name, row, params):
            return f"{name}: {problem}"
    return None


def _row_contradiction(row: list[Any]) -> str | None:
    columns = dict(zip(asv_schema.COLUMNS, row, strict=True))
    count = math.prod(len(values) for values in columns["params"])
    if count > asv_schema.MOST_COMBINATIONS:
        return f"{count} combinations of parameters, expected at most {asv_schema.MOST_COMBINATIONS}"
    for values in columns["params"]:
        if len(set(values)) < len(values):
            return "params: a value is given twice"
    for key, values in columns.items():
        if isinstance(values, list) and key != "params" and len(values) != count:
            return f"{key}: {len(values)} entries for {count} combinations of parameters"
    none = [None] * count
    found = {key: none if values is None else values for key, values in columns.items()}
    for index, value in enumerate(found["result"]):
        seen = _Statistics(*(found[key][index] for key in _Statistics._fields))
        if problem := _value_contradiction(number(value), seen):
            return f"[{index}]: {problem}"
    return None


class _Statistics(NamedTuple):
    """The statistics of one value, by asv's names of their columns."""

    stats_ci_99_a: float | None
    stats_ci_99_b: float | None
    stats_q_25: float | None
    stats_q_75: float | None
    stats_number: float | None
    stats_repeat: float | None
    samples: list[float] | None


def _value_contradiction(value: float | None, seen: _Statistics) -> str | None:
    if value is None:
        return "statistics of what has no result" if any(each is not None for each in seen) else None
    low, high = seen.stats_q_25, seen.stats_q_75
    if samples := seen.samples:
        low, high = min(samples), max(samples)
        if seen.stats_repeat not in (None, len(samples)):
            return f"{len(samples)} samples, and repeat is {seen.stats_repeat}"
    if low is not None and high is not None and not 0.9999 * low <= value <= 1.0001 * high:
        return "the result is not among its samples"
    bounds = [seen.stats_ci_99_a, seen.stats_ci_99_b]
    if any(b is not None and math.isinf(b) for b in bounds) and seen.stats_repeat != 1:
        return "an infinite interval of more than one sample"
    return None


def _too_fast(name: str, row: list[Any], params: Mapping[str, str]) -> str | None:
    """Return the complaint about a step that is faster than its GPU can compute, or None."""
    if not name.endswith((".samples_step_time", ".samples_gpu_time")) or row[0] is None:
        return None
    machine: dict[str, str | int] = {
        "device": device_of(params),
        "gpu": params["gpu"],
        "cores": int(params["num_cpu"]),
    }
    least: dict[str, float] = {}
    for index, values in combinations(row):
        seconds, workload = number(row[0][index]), values[0] if values else ""
        if seconds is None:
            continue
        if workload not in least:
            least[workload] = _least_ms(workload, machine)
        if 1000 * seconds < least[workload]:
            return (
                f"quarantined: [{index}]: {1000 * seconds:.3g} ms is faster than this GPU can compute:"
                f" at least {least[workload]:.3g} ms"
            )
    return None


def _least_ms(name: str, machine: Mapping[str, str | int]) -> float:
    """Return the floor of a preset workload in ms. For an unknown workload, it is the lowest floor of all presets."""
    presets = _workloads()
    found = [
        plausible.floor_ms(machine, each)
        for each in ([presets[name]] if name in presets else presets.values())
    ]
    return min((least[0] for least in found if least is not None), default=0.0)


@functools.cache
def _workloads() -> dict[str, Plain]:
    return {name: catalog.load_workload(name)[1] for name in catalog.workloads()}
