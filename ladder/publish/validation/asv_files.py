"""asv's files as a stranger may send them: machine.json, results, our notes beside them, benchmarks.json.

asv trusts its input: a wrong type, a NaN in place of a number or a name with HTML reaches its page. The records
declare every permitted key and value; the functions refuse what no single value shows, such as a result that is not
among its samples, or a step that is faster than its GPU can compute. A file's name decides its kind.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from ladder.core import records as r
from ladder.core import text
from ladder.core.errors import UserError
from ladder.core.records import Record, describe_value, number_between, read_record, size_between
from ladder.core.records import text_matching as matching
from ladder.plan import catalog
from ladder.results import plausible, store
from ladder.results.file import Variable
from ladder.results.publishable import DIRTY

MOST_BYTES = 2**20
NOTES = "notes"
NEVER_TAKEN = "regenerated when the site is made, never taken from here"
WRONG_DATE = "date: not that of its commit"
MOST_COMBINATIONS = 20_000  # of parameters; asv expands all of them
_RESULTS = re.compile(r"[0-9a-f]{8}-.+\.json")
_LONGEST_ENVIRONMENT = 128  # from this length on, asv names the file after a digest

T = TypeVar("T")
_WORD = r"[A-Za-z_]\w{0,63}"
BenchmarkName = Annotated[str, matching(rf"{_WORD}(\.{_WORD}){{1,3}}", "the name of a benchmark")]
Library = Annotated[str, matching(r"(pip\+)?[a-z][a-z0-9_.-]{0,39}", "the name of a library")]
LibraryVersion = Annotated[str, matching(r"[A-Za-z0-9.+_-]{0,40}", "a version")]
Python = Annotated[str, matching(r"\d{1,2}\.\d{1,3}", "a version of Python like 3.12")]
Environment = Annotated[str, matching(r"[a-z0-9][a-z0-9._+-]{0,199}", "the name of an environment")]
SeriesName = Annotated[str, matching(r"[A-Za-z0-9 ._()+:@,/'#=-]{1,200}", "the name of a series")]
Stage = Annotated[str, matching(r"<build>|<setup_cache [\w.:/ -]{1,96}>", "a duration")]
Gigabytes = Annotated[str, matching(r"none|\d{1,15}( GB)?", "an amount of memory like 126 GB")]
Milliseconds = Annotated[int, number_between(14 * 10**11, 41 * 10**11)]  # since 1970; from 2014 on
Time = Annotated[float, number_between(1e-9, 1e6)]  # seconds of a timing benchmark
Quantity = Annotated[float, number_between(0, 2**50)]  # bytes, counts
_PLAIN = rf"(?!(.*[ '=:(,])?/\w)({text.TEXT.pattern})"  # excludes paths of a machine
PlainText = Annotated[str, matching(_PLAIN, "plain text without absolute paths")]
Fact = Annotated[str, matching(rf"[A-Za-z0-9.+_-]{{0,40}}|{_PLAIN}", "plain text without absolute paths")]
Choices = Annotated[list[r.Text], size_between(2000)]
Values = Annotated[list[T], size_between(MOST_COMBINATIONS)]
Parameters = Annotated[list[Annotated[list[PlainText], size_between(MOST_COMBINATIONS, 1)]], size_between(8)]


class Facts(Record):
    """What asv records of a machine; all are texts."""

    machine: r.Name
    os: PlainText
    arch: PlainText
    cpu: PlainText
    num_cpu: Annotated[str, matching(r"[1-9]\d{0,4}", "a number of cores, as text")]
    ram: Gigabytes
    gpu: PlainText
    gpu_memory: Gigabytes


class Machine(Facts):
    """The file machine.json."""

    version: Literal[1]


class Row(Record, Generic[T], array_like=True):
    """asv's columns of one benchmark, without empty ones at the end; a value for each combination of parameters.

    A result that failed or does not apply is None. The bounds of one sample are infinite.
    """

    result: Values[T | None] | None
    params: Parameters
    version: Annotated[str, matching(r"[A-Za-z0-9._-]{1,64}", "a version")] | None = None
    started_at: Milliseconds | None = None
    duration: r.Seconds | None = None
    stats_ci_99_a: Values[float | None] | None = None
    stats_ci_99_b: Values[float | None] | None = None
    stats_q_25: Values[T | None] | None = None
    stats_q_75: Values[T | None] | None = None
    stats_number: Values[r.Positive | None] | None = None
    stats_repeat: Values[r.Positive | None] | None = None
    samples: Values[Annotated[list[T], size_between(100_000)] | None] | None = None
    profile: None = None  # a marshal dump would be unsafe to load


COLUMNS = list(Row.__struct_fields__)
STATISTICS = COLUMNS[5:12]


class Results(Record):
    """asv's file of one commit. `params` has the facts of the machine, Python's version and the requirements."""

    commit_hash: r.Commit
    env_name: Environment
    date: Milliseconds
    params: Annotated[dict[Library, Fact], size_between(40)]
    python: Python
    requirements: Annotated[dict[Library, LibraryVersion], size_between(24)]
    env_vars: Annotated[dict[Variable, PlainText], size_between(16)]
    result_columns: list[str]
    results: Annotated[dict[BenchmarkName, list[Any]], size_between(500, 1)]  # of `Row`
    durations: Annotated[dict[Stage, r.Seconds], size_between(100)]
    version: Literal[2]


class Conditions(Record):
    """What may change between results of one series."""

    started: r.Started
    driver: r.Text | None = None
    kernel_release: PlainText | None = None
    cudnn: r.Text | None = None


class Note(Conditions, kw_only=True):
    """Our note beside a result of asv (`ladder.publish.history.notes`)."""

    schema: Literal[1]
    commit: r.Commit
    environment: Environment
    benchmarks: Annotated[dict[BenchmarkName, Conditions], size_between(2000)] | None = None
    choices: Annotated[dict[SeriesName, Choices], size_between(2000)] | None = None
    variables: Annotated[dict[Variable, r.Text], size_between(64)] | None = None


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
    """Return the JSON of one of asv's files. In results, NaN says that a benchmark does not apply.

    Raises:
        ValueError: the file is not valid JSON; one line.
    """
    return store.parse(raw, constants=kind == "results")


def find_problem(data: Any, kind: str, path: Path) -> str | None:
    """Return one line on what is wrong with an asv file from a stranger, or None."""
    try:
        if kind == "machine":
            return _find_wrong_name(read_record(Machine, data), path.parent.name)
        if kind == "note":
            note = read_record(Note, data)
            return _find_wrong_file(note.commit, note.environment, path)
        if kind == "results":
            return _find_contradiction(read_record(Results, data), path)
        entries = {key: entry for key, entry in read_record(dict[str, Any], data).items() if key != "version"}
        read_record(dict[BenchmarkName, dict[r.Identifier, Any]], entries)  # never taken, so this is enough
    except UserError as error:
        return str(error)
    return None


def list_marks(data: Any, kind: str) -> list[str]:
    """Return why an accepted file must not be quoted, or is not used."""
    if kind == "benchmarks":
        return [NEVER_TAKEN]
    return [DIRTY] if kind == "results" and "tree" in data["requirements"] else []


def digest_measurement(data: Any, kind: str) -> str | None:
    """Return a digest that is equal exactly for files with the same measurement, or None for other files."""
    if kind != "results":
        return None
    what = {name: row[0] for name, row in data["results"].items() if is_time(name)}
    if not any(number(value) is not None for values in what.values() for value in values or ()):
        # Memory peaks can repeat to the byte; the times at which they were measured do not.
        what = {name: [*row[3:5], row[0]] for name, row in data["results"].items()}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def is_time(benchmark: str) -> bool:
    """Return whether a benchmark of this name measures seconds (`benches.SamplesBenchmark`, asv's own types)."""
    return benchmark.rpartition(".")[2].startswith(("samples_", "time_"))


def drop_infinite(data: Any) -> Any:
    """Return the data of a file without infinite bounds, which are the interval of one sample."""
    if isinstance(data, dict | list):
        pairs = data.items() if isinstance(data, dict) else enumerate(data)
        cleared = {key: drop_infinite(value) for key, value in pairs}
        return cleared if isinstance(data, dict) else list(cleared.values())
    return None if isinstance(data, float) and math.isinf(data) else data


def number(value: Any) -> float | None:
    """Return a value of asv as a number, or None if it failed or does not apply."""
    return None if value is None or math.isnan(value) else value


def combinations(row: list[Any]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (position in the columns, parameter values without quotes) of each combination in a row."""
    for index, values in enumerate(itertools.product(*row[1])):
        yield index, tuple(value.strip("'") for value in values)


# --- what no single value shows ---------------------------------------------------------------------------------------


def _find_wrong_name(facts: Facts, folder: str) -> str | None:
    hardware = facts.cpu if facts.gpu == "none" else facts.gpu
    # Six digits distinguish two machines with the same GPU.
    if not re.fullmatch(rf"{re.escape(text.make_slug(hardware))}(-[0-9a-f]{{6}})?", facts.machine):
        return f"machine: {describe_value(facts.machine)} is not made from its hardware, {describe_value(hardware)}"
    if facts.machine != folder:
        return f"machine: {describe_value(facts.machine)} in the folder of {describe_value(folder)}"
    if (facts.gpu == "none") != (facts.gpu_memory == "none"):
        return "gpu_memory: there is a GPU without memory, or memory without a GPU"
    return None


def _find_wrong_file(commit: str, environment: str, path: Path) -> str | None:
    if len(environment) >= _LONGEST_ENVIRONMENT:
        environment = "env-" + hashlib.md5(environment.encode()).hexdigest()
    if path.name != f"{commit[:8]}-{environment}.json":
        return "the file is not named after its commit and environment"
    return None


def _find_contradiction(data: Results, path: Path) -> str | None:
    if data.result_columns != COLUMNS:
        return "result_columns: not asv's columns in asv's order"
    expected = {"python": data.python, **data.requirements}
    if different := [key for key in expected if data.params.get(key) != expected[key]]:
        return f"params: {different[0]!r} is not as in the requirements"
    facts = {key: value for key, value in data.params.items() if key not in expected}
    machine = read_record(Facts, facts, "params")
    if problem := _find_wrong_name(machine, path.parent.name):
        return f"params.{problem}"
    for name, columns in data.results.items():
        if columns and isinstance(columns[0], list):  # NaN: does not apply
            columns = [[None if each != each else each for each in columns[0]], *columns[1:]]
        kind: Any = Row[Time] if is_time(name) else Row[Quantity]
        row: Row[float] = read_record(kind, columns, f"results.{name}")
        if problem := _find_row_contradiction(row) or _find_impossible_time(name, row, machine):
            return f"{name}: {problem}"
    return _find_wrong_file(data.commit_hash, data.env_name, path)


def _find_row_contradiction(row: Row[float]) -> str | None:
    count = math.prod(len(values) for values in row.params)
    if count > MOST_COMBINATIONS:
        return f"{count} combinations of parameters, expected at most {MOST_COMBINATIONS}"
    if any(len(set(values)) < len(values) for values in row.params):
        return "params: a value is given twice"
    columns = {key: getattr(row, key) for key in ("result", *STATISTICS)}
    for key, values in columns.items():
        if values is not None and len(values) != count:
            return f"{key}: {len(values)} entries for {count} combinations of parameters"
    cells = zip(*(values or [None] * count for values in columns.values()), strict=True)
    for index, (value, *bounds, low, high, _, repeat, samples) in enumerate(cells):
        where, statistics = f"[{index}]: ", (*bounds, low, high, repeat, samples)
        if value is None:
            if any(each is not None for each in statistics):
                return f"{where}statistics of what has no result"
            continue
        if samples:
            low, high = min(samples), max(samples)
            if repeat not in (None, len(samples)):
                return f"{where}{len(samples)} samples, and repeat is {repeat}"
        if low is not None and high is not None and not 0.9999 * low <= value <= 1.0001 * high:
            return f"{where}the result is not among its samples"
        for bound in (each for each in bounds if each is not None):
            if math.isinf(bound) and repeat != 1:
                return f"{where}an infinite interval of more than one sample"
            if not (math.isinf(bound) or -1e15 <= bound <= 2.0**51):  # with two samples it may be negative
                return f"{where}a bound of {bound}"
    return None


def _find_impossible_time(name: str, row: Row[float], facts: Facts) -> str | None:
    """Return the complaint about a step that is faster than its GPU can compute, or None."""
    if not name.endswith((".samples_step_time", ".samples_gpu_time")) or row.result is None:
        return None
    for index, values in combinations([row.result, row.params]):
        seconds = row.result[index]
        least = _derive_least_ms(values[0] if values else "", facts.gpu, int(facts.num_cpu))
        if seconds is not None and 1000 * seconds < least:
            return (
                f"quarantined: [{index}]: {1000 * seconds:.3g} ms is faster than this GPU can compute:"
                f" at least {least:.3g} ms"
            )
    return None


@functools.lru_cache(maxsize=256)
def _derive_least_ms(workload: str, gpu: str, cores: int) -> float:
    """Return the floor of a preset workload in ms. For an unknown workload, it is the lowest floor of all presets."""
    names = [workload] if workload in catalog.list_workloads() else catalog.list_workloads()
    machine = {"device": "cpu" if gpu == "none" else "cuda", "gpu": gpu, "cores": cores}
    floors = [plausible.floor_ms(machine, catalog.load_workload(name)[1]) for name in names]
    return min((least[0] for least in floors if least is not None), default=0.0)
