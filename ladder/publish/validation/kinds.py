"""The kinds of result that `ladder validate` knows beside a ladder's run.

Each study states the permitted content of its file itself. The records below are those of the project's own checks:
faults, asv's overhead and others. Unlisted keys are refused, so a new key must be added there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ladder.core import records as r
from ladder.core import text
from ladder.core.plain import Plain
from ladder.core.records import Record, number_between, read_record, size_between, text_matching, write_whole
from ladder.results import publishable
from ladder.results.file import Machine
from ladder.results.loading import Kind
from ladder.results.store import KIND_KEYS
from ladder.studies import frame
from ladder.studies.kernelbench import tuning

RUN, BENCHMARKS = "ladder", "pytest-benchmark"  # of `ladder run`, and of `make bench-kernels`
ShortLine = Annotated[str, text_matching(r"[ -~]{1,300}", "a line of at most 300 printable ASCII characters")]
Cell = bool | r.Real | ShortLine | None
Difference = Annotated[float, number_between(-1e6, 1e6)]  # of times, possibly negative


class Checked(Record, kw_only=True):
    """A table of the project's own checks: planted faults, hostile files, and what caught them."""

    schema: Literal[1]
    commit: r.Commit | None = None
    dirty: bool | None = None
    what: Literal["faults", "hostile", "planted-bugs", "sabotaged-rungs"]
    machine: Machine
    rows: Annotated[list[dict[r.Identifier, Cell]], size_between(10_000)]


class AsvOverhead(Record, kw_only=True):
    """What asv costs for each commit."""

    schema: Literal[1]
    commit: r.Commit | None = None
    dirty: bool | None = None
    kind: Literal["asv overhead"]
    machine: dict[r.Identifier, r.Count | r.Text | None]
    commits: r.Count
    overhead_s: Difference
    once_s: Difference
    rows: Annotated[list[dict[r.Identifier, Difference | list[r.Seconds]]], size_between(100)]


# --- make bench-kernels: a file of pytest-benchmark, which names no kind ----------------------------------------------


class _Cpu(Record):
    brand_raw: r.Text


class _BenchmarkMachine(Machine, kw_only=True):
    cpu: _Cpu  # type: ignore[assignment]
    node: r.Text
    machine: r.Text


class _CommitInfo(Record):
    id: Annotated[str, text_matching(r"unknown|[0-9a-f]{40}", "a commit of 40 hexadecimal digits")]
    dirty: bool


class _Benchmark(Record, kw_only=True):
    group: ShortLine | None = None
    name: ShortLine
    fullname: ShortLine
    params: dict[r.Identifier, Cell] | None = None
    param: ShortLine | None = None
    extra_info: dict[r.Identifier, Cell]
    options: dict[r.Identifier, Cell]
    stats: dict[r.Identifier, Any]  # cells, and the seconds of each round under `data`


class Benchmarked(Record, kw_only=True):
    """The file of pytest-benchmark."""

    machine_info: _BenchmarkMachine
    commit_info: _CommitInfo
    benchmarks: Annotated[list[_Benchmark], size_between(10_000)]
    datetime: Annotated[str, text_matching(r"20\d\d-\d\d-\d\dT[0-9:.+]{8,24}", "a time")]
    version: r.Text
    note: ShortLine | None = None


def _find_wrong_figures(file: Benchmarked) -> str | None:
    """Return what is wrong with the machine's name or the figures of a benchmark, or None. Raises UserError, too."""
    for index, benchmark in enumerate(file.benchmarks):
        cells, seconds = dict(benchmark.stats), benchmark.stats.get("data", [])
        cells.pop("data", None)
        where = f"benchmarks[{index}].stats"
        read_record(Annotated[list[r.Seconds], size_between(10_000)], seconds, f"{where}.data")
        read_record(dict[r.Identifier, Cell], cells, where)
    return _find_misnamed(file)


# --- how they are judged ----------------------------------------------------------------------------------------------


def _find_misnamed(record: Any) -> str | None:
    """Return why the name of a file's machine is not made from its hardware, or None."""
    machine = write_whole(record.machine_info if isinstance(record, Benchmarked) else record.machine)
    cpu, gpu = machine["cpu"], machine.get("gpu")
    cpu = cpu if isinstance(cpu, str) else cpu["brand_raw"]
    first = gpu if machine.get("device", "cpu") == "cuda" else cpu
    if first and machine["name"] in (text.make_slug(first), text.make_slug(gpu or cpu)):
        return None
    return f"machine.name: {machine['name']!r} is not made from its hardware"


def _list_cautions(record: Any) -> list[str]:
    dirty = [publishable.DIRTY] * bool(getattr(record, "dirty", None))
    return dirty + [publishable.PARTIAL] * (getattr(record, "complete", None) is False)


CHECKS = (
    Kind("asv overhead", AsvOverhead, _find_misnamed, _list_cautions),
    Kind(BENCHMARKS, Benchmarked, _find_wrong_figures),
    *(
        Kind(what, Checked, _find_misnamed, _list_cautions)
        for what in ("faults", "hostile", "planted-bugs", "sabotaged-rungs")
    ),
)
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        *tuning.KINDS,
        *CHECKS,
        *map(frame.as_kind, frame.load_studies().values()),
    )
}


def kind_of(data: Plain) -> Any:
    """Return the kind that a file states, or None where it states none. pytest-benchmark's has a key of its own."""
    stated = [data[key] for key in KIND_KEYS if key in data]
    if not stated and "benchmarks" in data and "schema" not in data:
        return BENCHMARKS
    return stated[0] if stated else None


def list_marks(data: Plain) -> list[str]:
    """Return why an accepted file must not be quoted."""
    kind = KINDS[kind_of(data)]
    return kind.list_cautions(read_record(kind.record, data))
