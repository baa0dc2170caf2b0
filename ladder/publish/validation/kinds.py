"""The kinds of result that `ladder validate` knows beside a ladder's run.

Each study states the permitted content of its file itself. The records below are those of the project's own checks:
canary, faults and others. Unlisted keys are refused, so a new key must be added there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ladder.base import text
from ladder.core import records as r
from ladder.core.records import Record, between, locate_problem, matching, read_record, size
from ladder.publish.regressions import schema as comparison
from ladder.results import identity, publishable, values
from ladder.results.check import Kind
from ladder.results.code_digest import Head
from ladder.results.file import Images, Machine, Variable
from ladder.results.store import KIND_KEYS
from ladder.results.types import build
from ladder.studies import frame
from ladder.studies.kernelbench import tuning_schema
from ladder.studies.kernelbench.schema import KIND as KERNELS
from ladder.studies.precision.schema import KIND as PRECISION
from ladder.studies.roofline import in_step
from ladder.studies.roofline.schema import KIND as ROOFLINE
from ladder.studies.roofline.schema import Result as Roofline
from ladder.studies.scale.schema import KIND as SCALED
from ladder.studies.upstream.schema import KIND as UPSTREAM

ShortLine = Annotated[str, matching(r"[ -~]{1,300}", "a line of at most 300 printable ASCII characters")]
Difference = Annotated[float, between(-1e6, 1e6)]  # of times, possibly negative


class Made(Record, kw_only=True):
    """The code that a file was made with."""

    schema: Literal[1]
    commit: r.Commit | None = None
    dirty: bool | None = None


# --- ladder train --canary --------------------------------------------------------------------------------------------


class Trained(Record):
    """A training with one seed."""

    seed: r.Count
    distance: r.Amount | None = None
    levels: Annotated[dict[Annotated[str, matching(r"\d{1,5}", "a size")], r.Amount], size(16)] | None = None
    reason: ShortLine | None = None


class CanaryRung(Record, kw_only=True):
    """The trainings of a rung."""

    name: r.Name
    title: r.Text
    recipe: r.Fields | None = None
    skipped: ShortLine | None = None
    distance: r.Amount | None = None
    verdict: Literal["as good", "better", "worse", "broke"] | None = None
    runs: Annotated[list[Trained], size(1000)]


class Canary(Made, kw_only=True):
    """The file of `ladder train --canary`."""

    kind: Literal["canary"]
    machine: Machine
    workload: r.Fields
    environment: Annotated[dict[Variable, r.Text], size(64)] | None = None
    images: Images | None = None
    measured_code: Annotated[dict[r.Identifier, r.CodeDigest], size(8)] | None = None
    started: r.Started | None = None
    ladder: r.Name
    steps: r.Count
    seeds: r.Count
    samples: r.Count
    complete: bool
    notes: r.Notes
    band: Annotated[list[r.Amount], size(2, 2)] | None = None
    seconds: r.Seconds
    rungs: Annotated[list[CanaryRung], size(100, 1)]


# --- asv's overhead, planted faults -----------------------------------------------------------------------------------


class AsvMachine(Record, kw_only=True):
    """Where asv's overhead was measured."""

    name: r.Name
    gpu: r.Text | None = None
    cores: r.Count
    cpu: r.Text
    python: r.Text
    torch: r.Text
    os: r.Text


class AsvRepeat(Record):
    """One measurement of asv's overhead."""

    run_of_one_s: r.Seconds
    run_of_all_s: r.Seconds
    overhead_s: Difference
    once_s: Difference
    checkout_s: Annotated[list[r.Seconds], size(1001)]


class AsvOverhead(Made, kw_only=True):
    """What asv costs for each commit."""

    kind: Literal["asv overhead"]
    machine: AsvMachine
    commits: r.Count
    overhead_s: Difference
    once_s: Difference
    rows: Annotated[list[AsvRepeat], size(100)]


class Fault(Record, kw_only=True):
    """A fault that a test injected."""

    fault: r.Text
    injected: r.Text
    outcome: r.Text
    test: r.Text
    count: r.Count
    number: bool | None = None
    kept: bool | None = None


class HostileFile(Record):
    """A file that a test planted among results."""

    file: r.Text
    planted: r.Text
    refused: r.Text
    test: r.Text


class PlantedBug(Record):
    """A bug that parity caught."""

    bug: r.Text
    planted: r.Text
    caught_by: r.Text
    test: r.Text
    phase: r.Text | None = None
    quantity: r.Text | None = None
    tensor: r.Text | None = None
    error: r.Amount | None = None
    budget: r.Amount | None = None
    over_budget: r.Amount | None = None


class SabotagedRung(Record):
    """A rung that a test kept from being engaged."""

    rung: r.Text
    sabotage: r.Text
    planted: r.Text
    caught_by: r.Text
    test: r.Text


def _table(what: str, row: Any) -> Any:
    """Return the type of a table of planted faults."""
    import msgspec

    rows = Annotated[list[row], size(10_000)]  # type: ignore[valid-type]
    fields = [("what", Literal[what]), ("machine", Machine), ("rows", rows)]  # type: ignore[valid-type]
    return msgspec.defstruct(what, fields, bases=(Made,), kw_only=True)


# --- make bench-kernels: a file that names no kind --------------------------------------------------------------------


class Cpu(Record):
    """The CPU in the form that pytest-benchmark needs."""

    brand_raw: r.Text


class BenchmarkMachine(Machine, kw_only=True):
    """The machine of `tests.bench_plugin`; `node` and `machine` are its name and its system."""

    cpu: Cpu  # type: ignore[assignment]
    node: r.Text
    machine: r.Text


class CommitInfo(Record):
    """The commit, or "unknown"."""

    id: Annotated[str, matching(r"unknown|[0-9a-f]{40}", "a commit of 40 hexadecimal digits")]
    dirty: bool


class Op(Record):
    """What a benchmark calls."""

    name: ShortLine
    direction: Literal["forward", "backward", "double backward"]


class Ran(Record):
    """How it was called."""

    ran: ShortLine | None = None
    direction: Literal["forward", "backward", "double backward"] | None = None
    calls: r.Count | None = None
    l2: Literal["cold", "hot"] | None = None


class BenchmarkOptions(Record):
    """pytest-benchmark's options."""

    disable_gc: bool
    timer: r.Text
    min_rounds: r.Count
    max_time: r.Seconds
    min_time: r.Seconds
    warmup: bool | r.Count


class BenchmarkStats(Record):
    """pytest-benchmark's statistics, in seconds of a call."""

    min: r.Amount
    max: r.Amount
    mean: r.Amount
    stddev: r.Amount
    median: r.Amount
    iqr: r.Amount
    q1: r.Amount
    q3: r.Amount
    ld15iqr: r.Amount
    hd15iqr: r.Amount
    ops: r.Amount
    total: r.Amount
    rounds: r.Count
    iqr_outliers: r.Count
    stddev_outliers: r.Count
    iterations: r.Count
    outliers: Annotated[str, matching(r"\d+;\d+", "two counts")]
    data: Annotated[list[r.Seconds], size(10_000)]


class Benchmark(Record, kw_only=True):
    """A benchmark of an op."""

    group: ShortLine | None = None
    name: ShortLine
    fullname: ShortLine
    params: Op | None = None
    param: ShortLine | None = None
    extra_info: Ran
    options: BenchmarkOptions
    stats: BenchmarkStats


class Benchmarked(Record, kw_only=True):
    """The file of pytest-benchmark."""

    machine_info: BenchmarkMachine
    commit_info: CommitInfo
    benchmarks: Annotated[list[Benchmark], size(10_000)]
    datetime: Annotated[str, matching(r"20\d\d-\d\d-\d\dT[0-9:.+]{8,24}", "a time")]
    version: r.Text
    note: ShortLine | None = None


# --- how they are judged ----------------------------------------------------------------------------------------------


def _find_problem(record: Any) -> str | None:
    """Return what no genuine file of one of these kinds holds, in one line, or None."""
    machine = record.machine_info if isinstance(record, Benchmarked) else record.machine
    cpu = machine.cpu.brand_raw if isinstance(machine, BenchmarkMachine) else machine.cpu
    hardware = [machine.gpu] if getattr(machine, "device", "cpu") == "cuda" else [cpu, machine.gpu]
    if machine.name not in [text.slug(each) for each in hardware if each]:
        return f"machine.name: {machine.name!r} is not made from its hardware"
    if isinstance(machine, BenchmarkMachine) and (machine.node, machine.machine) != (
        machine.name,
        machine.os,
    ):
        return "machine_info: node and machine are not its name and its system"
    if isinstance(record, comparison.Compared):
        return comparison.find_problem(record)
    if isinstance(record, Canary):
        checks = [("workload", values.WORKLOAD, record.workload)]
        checks += [(f"{each.name}.recipe", values.RECIPE, each.recipe or {}) for each in record.rungs]
        wrong = [
            f"{place}{problem[0]}: {problem[1]}" for place, rule, value in checks if (problem := rule(value))
        ]
        return wrong[0] if wrong else identity.misnamed(record.workload)
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
    "canary": Canary,
    "asv overhead": AsvOverhead,
    "pytest-benchmark": Benchmarked,
    "faults": _table("faults", Fault),
    "hostile": _table("hostile", HostileFile),
    "planted-bugs": _table("planted-bugs", PlantedBug),
    "sabotaged-rungs": _table("sabotaged-rungs", SabotagedRung),
    "compare": comparison.Compared,
}
_ALL = (
    KERNELS,
    PRECISION,
    ROOFLINE,
    SCALED,
    UPSTREAM,
    *tuning_schema.KINDS,
    *(_as_kind(name, record) for name, record in CHECKS.items()),
    *map(frame.as_kind, frame.load_studies().values()),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}
UNNAMED = {"benchmarks": "pytest-benchmark"}  # recognized by a key that no other kind has


def kind_of(data: Head) -> Any:
    """Return the kind that a file states, or None for a ladder's result."""
    for key in KIND_KEYS:
        if key in data:
            return data[key]
    return next((kind for key, kind in UNNAMED.items() if key in data and "schema" not in data), None)


def marks(data: Head) -> list[str]:
    """Return why an accepted file must not be quoted."""
    kind = KINDS[kind_of(data)]
    if kind.cautions is not None:
        return kind.cautions(dict(data))
    found = list(data["protocol"]["notes"]) if kind.notes else []
    if kind is ROOFLINE:
        if data["dirty"]:
            found.append("dirty work tree: not to be published")
        found += [
            f"no floor: {name} took less" for name in in_step.below(build(Roofline, data).measured.groups)
        ]
    return found
