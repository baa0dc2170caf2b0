"""The kinds of result that `ladder validate` knows beside a ladder's run.

Each study states the permitted content of its file itself. The records below are those of the project's own checks:
faults, asv's overhead and others. Unlisted keys are refused, so a new key must be added there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ladder.base import text
from ladder.core import records as r
from ladder.core.records import Record, between, locate_problem, matching, read_record, size
from ladder.publish.regressions import schema as comparison
from ladder.results import publishable
from ladder.results.check import Kind
from ladder.results.code_digest import Head
from ladder.results.file import Machine
from ladder.results.store import KIND_KEYS
from ladder.studies import frame
from ladder.studies.kernelbench import tuning
from ladder.training import canary_file

ShortLine = Annotated[str, matching(r"[ -~]{1,300}", "a line of at most 300 printable ASCII characters")]
Difference = Annotated[float, between(-1e6, 1e6)]  # of times, possibly negative


class _Made(Record, kw_only=True):
    schema: Literal[1]
    commit: r.Commit | None = None
    dirty: bool | None = None


# --- asv's overhead, planted faults -----------------------------------------------------------------------------------


class _AsvMachine(Record, kw_only=True):
    name: r.Name
    gpu: r.Text | None = None
    cores: r.Count
    cpu: r.Text
    python: r.Text
    torch: r.Text
    os: r.Text


class _AsvRepeat(Record):
    run_of_one_s: r.Seconds
    run_of_all_s: r.Seconds
    overhead_s: Difference
    once_s: Difference
    checkout_s: Annotated[list[r.Seconds], size(1001)]


class AsvOverhead(_Made, kw_only=True):
    """What asv costs for each commit."""

    kind: Literal["asv overhead"]
    machine: _AsvMachine
    commits: r.Count
    overhead_s: Difference
    once_s: Difference
    rows: Annotated[list[_AsvRepeat], size(100)]


def _table(what: str, *texts: str, **others: Any) -> Any:
    """Return the type of a table of planted faults: columns of text, and others by their types, which may be null."""
    fields = [(name, kind, None) for name, kind in others.items()]
    row = msgspec.defstruct(what, [*((name, r.Text) for name in texts), *fields], bases=(Record,))
    rows = Annotated[list[row], size(10_000)]  # type: ignore[valid-type]
    columns = [("what", Literal[what]), ("machine", Machine), ("rows", rows)]  # type: ignore[valid-type]
    return msgspec.defstruct(what, columns, bases=(_Made,), kw_only=True)


# --- make bench-kernels: a file that names no kind --------------------------------------------------------------------


class _Cpu(Record):
    brand_raw: r.Text


class _BenchmarkMachine(Machine, kw_only=True):
    cpu: _Cpu  # type: ignore[assignment]
    node: r.Text
    machine: r.Text


class _CommitInfo(Record):
    id: Annotated[str, matching(r"unknown|[0-9a-f]{40}", "a commit of 40 hexadecimal digits")]
    dirty: bool


class _Op(Record):
    name: ShortLine
    direction: Literal["forward", "backward", "double backward"]


class _Ran(Record):
    ran: ShortLine | None = None
    direction: Literal["forward", "backward", "double backward"] | None = None
    calls: r.Count | None = None
    l2: Literal["cold", "hot"] | None = None


class _BenchmarkOptions(Record):
    disable_gc: bool
    timer: r.Text
    min_rounds: r.Count
    max_time: r.Seconds
    min_time: r.Seconds
    warmup: bool | r.Count


_AMOUNTS = "min max mean stddev median iqr q1 q3 ld15iqr hd15iqr ops total"
_COUNTS = "rounds iqr_outliers stddev_outliers iterations"


_Numbers: Any = msgspec.defstruct(
    "_Numbers",
    [(name, r.Amount) for name in _AMOUNTS.split()] + [(name, r.Count) for name in _COUNTS.split()],
    bases=(Record,),
)


class _BenchmarkStats(_Numbers):
    outliers: Annotated[str, matching(r"\d+;\d+", "two counts")]
    data: Annotated[list[r.Seconds], size(10_000)]


class _Benchmark(Record, kw_only=True):
    group: ShortLine | None = None
    name: ShortLine
    fullname: ShortLine
    params: _Op | None = None
    param: ShortLine | None = None
    extra_info: _Ran
    options: _BenchmarkOptions
    stats: _BenchmarkStats


class Benchmarked(Record, kw_only=True):
    """The file of pytest-benchmark."""

    machine_info: _BenchmarkMachine
    commit_info: _CommitInfo
    benchmarks: Annotated[list[_Benchmark], size(10_000)]
    datetime: Annotated[str, matching(r"20\d\d-\d\d-\d\dT[0-9:.+]{8,24}", "a time")]
    version: r.Text
    note: ShortLine | None = None


# --- how they are judged ----------------------------------------------------------------------------------------------


def _find_problem(record: Any) -> str | None:
    """Return what no genuine file of one of these kinds holds, in one line, or None."""
    if isinstance(record, comparison.Compared):
        return comparison.find_problem(record)
    machine = record.machine_info if isinstance(record, Benchmarked) else record.machine
    cpu = machine.cpu.brand_raw if isinstance(machine, _BenchmarkMachine) else machine.cpu
    hardware = [machine.gpu] if getattr(machine, "device", "cpu") == "cuda" else [cpu, machine.gpu]
    if machine.name not in [text.slug(each) for each in hardware if each]:
        return f"machine.name: {machine.name!r} is not made from its hardware"
    if isinstance(machine, _BenchmarkMachine) and (machine.node, machine.machine) != (
        machine.name,
        machine.os,
    ):
        return "machine_info: node and machine are not its name and its system"
    return None


def _as_kind(name: str, record: Any) -> Kind:
    """Return how `ladder validate` judges the files of a record."""

    def refuse(data: Any) -> tuple[str, str] | None:
        return locate_problem(record, data)

    def find(data: dict[str, Any]) -> str | None:
        return _find_problem(read_record(record, data))

    def caution(data: dict[str, Any]) -> list[str]:
        dirty = [publishable.DIRTY] * bool(data.get("dirty"))
        return dirty + [publishable.PARTIAL] * (data.get("complete") is False)

    return Kind(name, refuse, find, hardware=False, cautions=caution)


CHECKS = {
    "asv overhead": AsvOverhead,
    "pytest-benchmark": Benchmarked,
    "faults": _table(
        "faults", "fault", "injected", "outcome", "test",
        count=r.Count, number=bool | None, kept=bool | None,
    ),
    "hostile": _table("hostile", "file", "planted", "refused", "test"),
    "planted-bugs": _table(
        "planted-bugs", "bug", "planted", "caught_by", "test",
        **dict.fromkeys(("phase", "quantity", "tensor"), r.Text | None),
        **dict.fromkeys(("error", "budget", "over_budget"), r.Amount | None),
    ),
    "sabotaged-rungs": _table("sabotaged-rungs", "rung", "sabotage", "planted", "caught_by", "test"),
    "compare": comparison.Compared,
}  # fmt: skip
_ALL = (
    *tuning.KINDS,
    canary_file.KIND,
    *(_as_kind(name, record) for name, record in CHECKS.items()),
    *map(frame.as_kind, frame.load_studies().values()),
)
RUN = "ladder"  # of `ladder run`
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}
UNNAMED = {"benchmarks": "pytest-benchmark"}  # recognized by a key that no other kind has


def kind_of(data: Head) -> Any:
    """Return the kind that a file states, or None where it states none."""
    for key in KIND_KEYS:
        if key in data:
            return data[key]
    return next((kind for key, kind in UNNAMED.items() if key in data and "schema" not in data), None)


def marks(data: Head) -> list[str]:
    """Return why an accepted file must not be quoted."""
    kind = KINDS[kind_of(data)]
    if kind.cautions is not None:
        return kind.cautions(dict(data))
    return list(data["protocol"]["notes"]) if kind.notes else []
