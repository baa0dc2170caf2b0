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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta

from ladder.base import text
from ladder.base.errors import UserError
from ladder.core.records import (
    Commit,
    Name,
    Record,
    Started,
    Text,
    between,
    describe_value,
    matching,
    read_record,
    size,
)
from ladder.core.records import Seconds as Duration
from ladder.plan import catalog
from ladder.results import plausible
from ladder.results import store as results
from ladder.results.file import Variable
from ladder.results.types import Plain

MOST_BYTES = 2**20
NOTES = "notes"
NEVER_TAKEN = "regenerated when the site is made, never taken from here"
DIRTY = "dirty: not publishable: the code differs from its commit"
MOST_COMBINATIONS = 20_000  # of parameters; asv expands all of them
_RESULTS = re.compile(r"[0-9a-f]{8}-.+\.json")
_LONGEST_ENVIRONMENT = 128  # from this length on, asv names the file after a digest

T = TypeVar("T")
BenchmarkName = Annotated[
    str,
    matching(
        r"[A-Za-z_]\w{0,63}(\.[A-Za-z_]\w{0,63}){1,3}", "the name of a benchmark, like rungs.Rung.samples_x"
    ),
]
LIBRARY, LIBRARY_VERSION = r"(pip\+)?[a-z][a-z0-9_.-]{0,39}", r"[A-Za-z0-9.+_-]{0,40}"
Environment = Annotated[str, matching(r"[a-z0-9][a-z0-9._+-]{0,199}", "the name of an environment")]
Gigabytes = Annotated[str, matching(r"none|\d{1,15}( GB)?", "an amount of memory like 126 GB")]
Milliseconds = Annotated[int, between(14 * 10**11, 41 * 10**11)]  # since 1970; from 2014 on
Time = Annotated[float, between(1e-9, 1e6)]  # seconds of a timing benchmark
Quantity = Annotated[float, between(0, 2**50)]  # bytes, counts
Repeats = Annotated[int, between(1, 10**9)]
VersionText = Annotated[str, matching(r"[A-Za-z0-9._-]{1,64}", "a version")]
PLAIN = rf"(?!(.*[ '=:(,])?/\w)({text.TEXT.pattern})"  # excludes paths of a machine
PlainText = Annotated[
    str,
    matching(
        PLAIN,
        f"plain text without absolute paths (1 to {text.LONGEST_TEXT} of letters, digits and  ._()+:@,/'#=-)",
    ),
]
Values = Annotated[list[T], size(MOST_COMBINATIONS)]
Code = Annotated[str, matching(r"[\n -~]{0,100000}", "source code in printable ASCII")]
Parameters = Annotated[
    list[Annotated[list[PlainText], size(MOST_COMBINATIONS, 1)]],
    size(8),
]


class Facts(Record):
    """What asv records of a machine; all are texts."""

    machine: Name
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
    version: VersionText | None = None
    started_at: Milliseconds | None = None
    duration: Duration | None = None
    stats_ci_99_a: Values[float | None] | None = None
    stats_ci_99_b: Values[float | None] | None = None
    stats_q_25: Values[T | None] | None = None
    stats_q_75: Values[T | None] | None = None
    stats_number: Values[Repeats | None] | None = None
    stats_repeat: Values[Repeats | None] | None = None
    samples: Values[Annotated[list[T], size(100_000)] | None] | None = None
    profile: None = None  # a marshal dump would be unsafe to load


COLUMNS = list(Row.__struct_fields__)


class Results(Record):
    """asv's file of one commit. `params` has the facts of the machine, Python's version and the requirements."""

    commit_hash: Commit
    env_name: Environment
    date: Milliseconds
    params: Annotated[
        dict[
            Annotated[str, matching(LIBRARY, "a plain key")],
            Annotated[str, matching(rf"{LIBRARY_VERSION}|{PLAIN}", "plain text without absolute paths")],
        ],
        size(40),
    ]
    python: Annotated[
        str, matching(r"\d{1,2}\.\d{1,3}", "a version of Python like 3.12: no path of an interpreter")
    ]
    requirements: Annotated[
        dict[
            Annotated[str, matching(LIBRARY, "the name of a library")],
            Annotated[str, matching(LIBRARY_VERSION, "a version")],
        ],
        size(24),
    ]
    env_vars: Annotated[dict[Variable, PlainText], size(16)]
    result_columns: list[str]
    results: Annotated[dict[BenchmarkName, list[Any]], size(500, 1)]  # of `Row`
    durations: Annotated[
        dict[
            Annotated[str, matching(r"<build>|<setup_cache [\w.:/ -]{1,96}>", "a duration")],
            Duration,
        ],
        size(100),
    ]
    version: Literal[2]


class Conditions(Record):
    """What may change between results of one series."""

    started: Started
    driver: Text | None = None
    kernel_release: PlainText | None = None
    cudnn: Text | None = None


class Note(Conditions, kw_only=True):
    """Our note beside a result of asv (`ladder.publish.history.notes`)."""

    schema: Literal[1]
    commit: Commit
    environment: Environment
    benchmarks: Annotated[dict[BenchmarkName, Conditions], size(2000)] | None = None
    choices: (
        Annotated[
            dict[
                Annotated[str, matching(r"[A-Za-z0-9 ._()+:@,/'#=-]{1,200}", "the name of a series")],
                Annotated[list[Text], size(2000)],
            ],
            size(2000),
        ]
        | None
    ) = None
    variables: Annotated[dict[Variable, Text], size(64)] | None = None


Option = bool | Annotated[float, Meta(ge=-1e15, le=1e15)] | Text | None


class Benchmark(Record, kw_only=True):
    """An entry of benchmarks.json, asv's list of benchmarks."""

    code: Code
    name: BenchmarkName
    param_names: Annotated[
        list[Annotated[str, matching(r"[a-z_]\w{0,63}", "the name of a parameter")]], size(8)
    ]
    params: Annotated[list[Annotated[list[Text], size(MOST_COMBINATIONS, 1)]], size(8)]
    type: Literal["time", "track", "memory", "peakmemory"]
    unit: Text
    version: VersionText
    timeout: Duration | None = None
    pretty_name: Text | None = None
    pretty_source: Code | None = None
    setup_cache_key: Text | None = None
    setup_cache_timeout: Duration | None = None
    number: Option = None
    min_run_count: Option = None
    rounds: Option = None
    repeat: Option = None
    sample_time: Option = None
    warmup_time: Option = None
    tags: Annotated[list[Text], size(16)] | None = None


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
        entries = dict(read_record(dict[str, Any], data))
        version: Any = Literal[2]
        read_record(version, entries.pop("version", None), "version")
        read_record(dict[BenchmarkName, Benchmark], entries)
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


def _find_wrong_name(facts: Facts, folder: str) -> str | None:
    hardware = facts.cpu if facts.gpu == "none" else facts.gpu
    # Six digits distinguish two machines with the same GPU.
    if not re.fullmatch(rf"{re.escape(text.slug(hardware))}(-[0-9a-f]{{6}})?", facts.machine):
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
    facts = {key: value for key, value in data.params.items() if key not in expected}
    machine = read_record(Facts, facts, "params")
    if different := [key for key in expected if data.params.get(key) != expected[key]]:
        return f"params: {different[0]!r} is not as in the requirements"
    if problem := _find_wrong_name(machine, path.parent.name):
        return f"params.{problem}"
    if problem := _find_wrong_file(data.commit_hash, data.env_name, path):
        return problem
    for name, columns in data.results.items():
        values = columns[0] if columns else None
        if isinstance(values, list):  # NaN: does not apply
            columns = [[None if each != each else each for each in values], *columns[1:]]
        kind: Any = Row[Time] if is_time(name) else Row[Quantity]
        row: Row[float] = read_record(kind, columns, f"results.{name}")
        if problem := _find_row_contradiction(row) or _find_impossible_time(name, row, machine):
            return f"{name}: {problem}"
    return None


def _find_row_contradiction(row: Row[float]) -> str | None:
    count = math.prod(len(values) for values in row.params)
    if count > MOST_COMBINATIONS:
        return f"{count} combinations of parameters, expected at most {MOST_COMBINATIONS}"
    if any(len(set(values)) < len(values) for values in row.params):
        return "params: a value is given twice"
    columns: dict[str, list[Any]] = {}
    for key in ("result", *COLUMNS[5:12]):
        values = getattr(row, key)
        if values is not None and len(values) != count:
            return f"{key}: {len(values)} entries for {count} combinations of parameters"
        columns[key] = [None] * count if values is None else values
    for index, (value, *statistics) in enumerate(zip(*columns.values(), strict=True)):
        if problem := _find_value_contradiction(value, *statistics):
            return f"[{index}]: {problem}"
    return None


def _find_value_contradiction(value: float | None, *statistics: Any) -> str | None:
    if value is None:
        return "statistics of what has no result" if any(each is not None for each in statistics) else None
    *bounds, low, high, _, repeat, samples = statistics
    if samples:
        low, high = min(samples), max(samples)
        if repeat not in (None, len(samples)):
            return f"{len(samples)} samples, and repeat is {repeat}"
    if low is not None and high is not None and not 0.9999 * low <= value <= 1.0001 * high:
        return "the result is not among its samples"
    for bound in (each for each in bounds if each is not None):
        if math.isinf(bound) and repeat != 1:
            return "an infinite interval of more than one sample"
        if not (math.isinf(bound) or -1e15 <= bound <= 2.0**51):  # with two samples a bound may be negative
            return f"a bound of {bound}"
    return None


def _find_impossible_time(name: str, row: Row[float], facts: Facts) -> str | None:
    """Return the complaint about a step that is faster than its GPU can compute, or None."""
    if not name.endswith((".samples_step_time", ".samples_gpu_time")) or row.result is None:
        return None
    for index, values in combinations([row.result, row.params]):
        seconds = row.result[index]
        least = _least_ms(values[0] if values else "", facts.gpu, int(facts.num_cpu))
        if seconds is not None and 1000 * seconds < least:
            return (
                f"quarantined: [{index}]: {1000 * seconds:.3g} ms is faster than this GPU can compute:"
                f" at least {least:.3g} ms"
            )
    return None


@functools.lru_cache(maxsize=256)
def _least_ms(workload: str, gpu: str, cores: int) -> float:
    """Return the floor of a preset workload in ms. For an unknown workload, it is the lowest floor of all presets."""
    machine = {"device": device_of({"gpu": gpu}), "gpu": gpu, "cores": cores}
    presets = _load_workloads()
    floors = [
        plausible.floor_ms(machine, each)
        for each in ([presets[workload]] if workload in presets else presets.values())
    ]
    return min((least[0] for least in floors if least is not None), default=0.0)


@functools.cache
def _load_workloads() -> dict[str, Plain]:
    return {name: catalog.load_workload(name)[1] for name in catalog.workloads()}
