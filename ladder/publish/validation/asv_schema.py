"""The permitted content of a stranger's asv files: machine.json, results, our notes beside them, benchmarks.json.

asv trusts its input: a wrong type, a NaN in place of a number or a name with HTML reaches its page. So every
permitted key is listed here, as in `ladder.results.schema`. Module `asv_checks` beside this one makes the checks
that need more than one value.
"""

from __future__ import annotations

import math
from typing import Any, TypedDict

from ladder.base import text
from ladder.base.rules import (
    Problem,
    Rule,
    either,
    fields,
    items,
    mapping,
    maybe,
    number,
    one_of,
    pattern,
    shown,
)
from ladder.machine import environment
from ladder.results.schema import CONDITIONS as CONDITIONS_OF_A_RUN
from ladder.results.values import A_COMMIT, PART, STARTED, TEXT

VERSION = 1  # asv's version of machine.json
RESULTS_VERSION = BENCHMARKS_VERSION = 2
MOST_COMBINATIONS = 20_000  # of parameters; asv expands all of them
COLUMNS = [
    "result",
    "params",
    "version",
    "started_at",
    "duration",
    "stats_ci_99_a",
    "stats_ci_99_b",
    "stats_q_25",
    "stats_q_75",
    "stats_number",
    "stats_repeat",
    "samples",
    "profile",
]


class Results(TypedDict):
    """The contents of asv's file of one commit. A row has the values of COLUMNS, without empty ones at the end."""

    commit_hash: str
    env_name: str
    date: int  # milliseconds since 1970
    params: dict[str, str]  # of the machine and the environment
    python: str
    requirements: dict[str, str]
    env_vars: dict[str, str]
    result_columns: list[str]
    results: dict[str, list[Any]]
    durations: dict[str, float]
    version: int


NAME = pattern(
    r"[A-Za-z_]\w{0,63}(\.[A-Za-z_]\w{0,63}){1,3}", "the name of a benchmark, like rungs.Rung.samples_x"
)
LIBRARY = pattern(r"(pip\+)?[a-z][a-z0-9_.-]{0,39}", "the name of a library")
LIBRARY_VERSION = pattern(r"[A-Za-z0-9.+_-]{0,40}", "a version")
PYTHON = pattern(r"\d{1,2}\.\d{1,3}", "a version of Python like 3.12: no path of an interpreter")
ENVIRONMENT = pattern(r"[a-z0-9][a-z0-9._+-]{0,199}", "the name of an environment")
AMOUNT_OF_MEMORY = pattern(r"none|\d{1,15}( GB)?", "an amount of memory like 126 GB")
MILLISECONDS = number(1.4e12, 4.1e12, whole=True)  # since 1970; from 2014 on
SECONDS = number(0, 1e8)
TIME = number(1e-9, 1e6)  # seconds of a timing benchmark
AMOUNT = number(0, 2**50)  # bytes, counts
BOUND = number(-1e15, 2.0**51)  # bound of an interval; with two samples it may be negative
WHOLE = number(1, 1e9, whole=True)

PLAIN = pattern(  # excludes paths of a machine
    rf"(?!(.*[ '=:(,])?/\w)({text.TEXT.pattern})",
    f"plain text without absolute paths (1 to {text.LONGEST_TEXT} of letters, digits and  ._()+:@,/'#=-)",
)
FACTS = {
    "machine": PART,
    "os": PLAIN,
    "arch": PLAIN,
    "cpu": PLAIN,
    "num_cpu": pattern(r"[1-9]\d{0,4}", "a number of cores, as text"),
    "ram": AMOUNT_OF_MEMORY,
    "gpu": PLAIN,
    "gpu_memory": AMOUNT_OF_MEMORY,
}
MACHINE = fields(FACTS | {"version": number(VERSION, VERSION, whole=True)})

SERIES = pattern(r"[A-Za-z0-9 ._()+:@,/'#=-]{1,200}", "the name of a series")
CONDITIONS = {"started": STARTED, "driver": maybe(TEXT), "kernel_release": maybe(PLAIN)}
ADDED_CONDITIONS = {"cudnn": maybe(TEXT)}  # older notes lack them
NOTE = fields(  # facts that may change between results of one series
    {"schema": number(1, 1, whole=True), "commit": A_COMMIT, "environment": ENVIRONMENT, **CONDITIONS},
    {
        **ADDED_CONDITIONS,
        "benchmarks": mapping(NAME, fields(CONDITIONS, ADDED_CONDITIONS), 2000),
        "choices": mapping(SERIES, items(TEXT, 2000), 2000),
        "variables": CONDITIONS_OF_A_RUN[environment.KEY],
    },
)


def _value(measure: Rule) -> Rule:
    """Return a rule for a number, null (failed) or NaN (does not apply)."""

    def check(value: Any) -> Problem | None:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        return measure(value)

    return check


def _bound(value: Any) -> Problem | None:
    """Check a bound of an interval, which is infinite for one sample.

    Module `asv_checks` compares bounds with samples.
    """
    return None if value is None or (isinstance(value, float) and math.isinf(value)) else BOUND(value)


def is_time(benchmark: str) -> bool:
    """Return whether a benchmark of this name measures seconds (`benches.SamplesBenchmark`, asv's own types)."""
    return benchmark.rpartition(".")[2].startswith(("samples_", "time_"))


def row(benchmark: str) -> Rule:
    """Return the rule for a benchmark's row: a value for each of COLUMNS in order, without empty ones at the end."""
    measure = TIME if is_time(benchmark) else AMOUNT
    most = MOST_COMBINATIONS
    rules = {
        "result": items(_value(measure), most),
        "params": items(items(PLAIN, most, least=1), 8),
        "version": pattern(r"[A-Za-z0-9._-]{1,64}", "a version"),
        "started_at": MILLISECONDS,
        "duration": SECONDS,
        "stats_ci_99_a": items(_bound, most),
        "stats_ci_99_b": items(_bound, most),
        "stats_q_25": items(maybe(measure), most),
        "stats_q_75": items(maybe(measure), most),
        "stats_number": items(maybe(WHOLE), most),
        "stats_repeat": items(maybe(WHOLE), most),
        "samples": items(maybe(items(measure, 100_000)), most),
        "profile": one_of(None),  # a marshal dump, which is unsafe to load
    }

    def check(value: Any) -> Problem | None:
        if not isinstance(value, list) or not 2 <= len(value) <= len(COLUMNS):
            return "", f"expected a list of 2 to {len(COLUMNS)} columns"
        for column, each in zip(COLUMNS, value, strict=False):
            needed = column == "params"
            if (each is not None or needed) and (problem := rules[column](each)):
                return f".{column}{problem[0]}", problem[1]
        return None

    return check


def _rows(value: Any) -> Problem | None:
    if not isinstance(value, dict):
        return "", f"{shown(value)} is not an object"
    if not 1 <= len(value) <= 500:
        return "", f"{len(value)} benchmarks, expected 1 to 500"
    for name, each in value.items():
        if problem := NAME(name):
            return "", problem[1]
        if problem := row(name)(each):
            return f".{name}{problem[0]}", problem[1]
    return None


def _columns(value: Any) -> Problem | None:
    return None if value == COLUMNS else ("", "not asv's columns in asv's order")


REQUIREMENTS = mapping(LIBRARY, LIBRARY_VERSION, 24)
RESULTS = fields(
    {
        "commit_hash": A_COMMIT,
        "env_name": ENVIRONMENT,
        "date": MILLISECONDS,
        "params": mapping(
            pattern(r"(pip\+)?[a-z][a-z0-9_.-]{0,39}", "a plain key"), either(LIBRARY_VERSION, PLAIN), 40
        ),
        "python": PYTHON,
        "requirements": REQUIREMENTS,
        "env_vars": mapping(pattern(r"[A-Z][A-Z0-9_]{0,63}", "the name of a variable"), PLAIN, 16),
        "result_columns": _columns,
        "results": _rows,
        "durations": mapping(pattern(r"<build>|<setup_cache [\w.:/ -]{1,96}>", "a duration"), SECONDS, 100),
        "version": number(RESULTS_VERSION, RESULTS_VERSION, whole=True),
    }
)

OPTION = either(maybe(one_of(True, False)), number(-1e15, 1e15), TEXT)
CODE = pattern(r"[\n -~]{0,100000}", "source code in printable ASCII")
BENCHMARK = fields(
    {
        "code": CODE,
        "name": NAME,
        "param_names": items(pattern(r"[a-z_]\w{0,63}", "the name of a parameter"), 8),
        "params": items(items(TEXT, MOST_COMBINATIONS, least=1), 8),
        "type": one_of("time", "track", "memory", "peakmemory"),
        "unit": TEXT,
        "version": pattern(r"[A-Za-z0-9._-]{1,64}", "a version"),
    },
    {
        "timeout": maybe(SECONDS),
        "pretty_name": TEXT,
        "pretty_source": CODE,
        "setup_cache_key": maybe(TEXT),
        "setup_cache_timeout": SECONDS,
        **dict.fromkeys(
            ("number", "min_run_count", "rounds", "repeat", "sample_time", "warmup_time"), OPTION
        ),
        "tags": items(TEXT, 16),
    },
)


def benchmarks(value: Any) -> Problem | None:
    """Check benchmarks.json, asv's list of benchmarks."""
    if not isinstance(value, dict):
        return "", f"{shown(value)} is not an object"
    version = number(BENCHMARKS_VERSION, BENCHMARKS_VERSION, whole=True)
    if problem := version(value.get("version")):
        return f"version{problem[0]}", problem[1]
    return mapping(NAME, BENCHMARK, 500)({key: each for key, each in value.items() if key != "version"})


RULES: dict[str, Rule] = {"machine": MACHINE, "results": RESULTS, "note": NOTE, "benchmarks": benchmarks}
