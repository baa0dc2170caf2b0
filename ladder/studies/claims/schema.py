"""The types of a result of `ladder kernels --claims`, which are also its schema; see `ladder.results.types`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ladder.base.errors import UserError
from ladder.base.records import needed, read, record, rule_of
from ladder.base.rules import items, mapping, number, one_of, pattern
from ladder.results import store as results
from ladder.results import values
from ladder.results.types import Origin
from ladder.results.values import AMOUNT, BYTES, COUNT, FLAG, MICROSECONDS, NOTES, TEXT
from ladder.studies.kernelbench.schema import MINUTES, Summary

SHARE = number(0, 1.2)  # achieved occupancy is an average and may slightly exceed 1
NAME = pattern(r"[A-Za-z0-9 .,:+_-]{1,96}", "the name of an experiment or of a contender")
KERNEL = pattern(r"[A-Za-z_0-9 <>,.:()&*~-]{1,96}", "the name of a kernel")


@record
class ExperimentResult:
    """The times of an experiment's contenders, in microseconds, a value for each repeat."""

    name: str = needed(NAME)
    shape: list[int] = needed(items(COUNT, 8, least=1))
    itemsize: int = needed(COUNT)
    method: str | None = needed(one_of("graph", "events"))
    bytes: dict[str, int] = needed(mapping(NAME, BYTES, 32))
    samples_us: dict[str, list[float]] = needed(mapping(NAME, items(MICROSECONDS, 1000), 32))
    reasons: dict[str, str] = needed(mapping(NAME, TEXT, 32))
    notes: list[str] = needed(NOTES)
    us: dict[str, Summary] = needed(mapping(NAME, rule_of(Summary), 32))


@record
class Launched:
    """A kernel that was launched, and the resources of one thread or block. `source` says who launched it."""

    source: str = needed(NAME)
    kernel: str = needed(KERNEL)
    language: str = needed(one_of("Triton", "CUDA C++"))
    grid: list[int] = needed(items(COUNT, 3))
    threads: int = needed(COUNT)  # a block
    registers: int | None = needed(COUNT)  # a thread
    shared_bytes: int | None = needed(COUNT)  # a block
    local_bytes: int | None = needed(COUNT)  # spilled, a thread


@record
class Kernel(Launched):
    """A kernel with its occupancy, theoretical and achieved, and how many of its forms spill registers."""

    blocks: int | None = needed(COUNT)  # on one multiprocessor
    occupancy: float | None = needed(SHARE)
    limited_by: str | None = needed(TEXT)
    achieved: float | None = needed(SHARE)
    forms: int = needed(COUNT)
    spilling: int | None = needed(COUNT)


@record
class Counted:
    """Sums of Nsight Compute's counters over the kernels of one contender."""

    dram_read: float | None = needed(AMOUNT)
    dram_written: float | None = needed(AMOUNT)
    load_requests: float | None = needed(AMOUNT)
    load_sectors: float | None = needed(AMOUNT)
    store_requests: float | None = needed(AMOUNT)
    store_sectors: float | None = needed(AMOUNT)
    ns: float | None = needed(AMOUNT)
    occupancy: float | None = needed(SHARE)
    sectors_a_load: float | None = needed(AMOUNT)
    sectors_a_store: float | None = needed(AMOUNT)


@record
class ClaimResult:
    """A claim of the article: its figure, ours, and the verdict."""

    name: str = needed(NAME)
    figure: list[float] | None = needed(items(AMOUNT, 2, least=2))
    unit: str = needed(one_of("x", "percent", "us", "ms", "MB"))
    ours: Summary | None = needed(rule_of(Summary))
    verdict: str = needed(
        one_of("holds", "more", "less", "does not hold", "ambiguous", "not separated", "n/a")
    )
    reason: str | None = needed(TEXT)


@record
class PrecisionRow:
    """A claim of `ladder precision` against FP32."""

    claim: str = needed(NAME)
    precision: str = needed(NAME)
    on: str = needed(NAME)
    ours: float = needed(AMOUNT)
    interval: list[float] | None = needed(values.PAIR)


@record
class Protocol:
    """How the claims were measured. `counters` says why Nsight Compute did not count."""

    minutes: float = needed(MINUTES)
    quick: bool = needed(FLAG)
    smoke: bool = needed(FLAG)
    seed: int = needed(COUNT)
    l2_bytes: int = needed(BYTES)
    evict: int = needed(COUNT)
    graph_ms: float = needed(number(0, 1e6))
    notes: list[str] = needed(NOTES)
    counters: str | None = needed(TEXT)


@record
class Claims(Origin):
    """A result of `ladder kernels --claims`."""

    schema: int = needed(number(results.SCHEMA, results.SCHEMA, whole=True))
    kind: str = needed(one_of("claims"))
    protocol: Protocol = needed(rule_of(Protocol))
    experiments: list[ExperimentResult] = needed(items(rule_of(ExperimentResult), 100, least=1))
    kernels: list[Kernel] = needed(items(rule_of(Kernel), 2000))
    counters: dict[str, Counted] = needed(mapping(NAME, rule_of(Counted), 1000))
    errors: dict[str, float] = needed(mapping(NAME, AMOUNT, 32))
    kernels_per_step: float | None = needed(AMOUNT)
    precision: list[PrecisionRow] = needed(items(rule_of(PrecisionRow), 200))
    claims: list[ClaimResult] = needed(items(rule_of(ClaimResult), 100, least=1))


def load(path: Path) -> Claims:
    """Return the result in one file. `UserError`, in one line, where the file holds none."""
    data = results.read(path)
    try:
        return of_data(data)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def of_data(data: Any) -> Claims:
    """Return the result that a file's data hold. `UserError`, in one line, where they hold none."""
    return read(Claims, data)
