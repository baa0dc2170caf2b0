"""The raw records of a run: what one process of a rung showed in one generation, and the GPU's state meanwhile.

Every number of a result follows from these (`ladder.results.derive`).
"""

from __future__ import annotations

from ladder.base.records import Absent, needed, optional, record, rule_of
from ladder.base.rules import either, items, mapping, number, one_of
from ladder.results import values as v


@record
class UnknownGpu:
    """The state of a GPU that could not be watched during a visit."""

    state: str = needed(one_of("unknown"))
    reason: str = needed(v.TEXT)
    tenancy: str = needed(one_of("unknown"))


@record
class KnownGpu:
    """The state of the GPU during a visit (`ladder.machine.gpu_state`)."""

    state: str = needed(one_of("known"))
    polls: int = needed(v.COUNT)
    tenancy: str = needed(v.TENANCY)
    longest_gap_ms: float | Absent | None = optional(number(0, 1e8))
    sm_mhz: float | Absent | None = optional(v.CLOCK)
    sm_mhz_min: float | Absent | None = optional(v.CLOCK)
    memory_mhz: float | Absent | None = optional(v.CLOCK)
    temperature_c: float | Absent | None = optional(number(-100, 300))
    power_w: float | Absent | None = optional(number(0, 1e5))
    reasons: list[str] | Absent | None = optional(items(v.PART, 16))
    violation_ms: dict[str, float] | Absent | None = optional(
        mapping(one_of("power", "thermal", "board_limit", "reliability"), v.ANY_NUMBER, 16)
    )
    ecc_errors: float | Absent | None = optional(v.ANY_NUMBER)
    foreign_processes: int | Absent | None = optional(v.COUNT)
    display_processes: int | Absent | None = optional(v.COUNT)
    drift_bytes: int | Absent | None = optional(v.BYTES)
    quiet_percent: float | Absent | None = optional(v.PERCENT)


@record
class ProfiledCycle:
    """One cycle under the profiler, after the last timed one. Times in ms and counts are of one step."""

    gpu_ms: float = needed(v.MS)  # union of kernels and copies over all streams
    wall_ms: float = needed(v.MS)  # with the profiler's own cost: never a sample
    kernels: float = needed(number(0, 1e7))
    sm_mhz: float | None = needed(v.CLOCK)


@record
class KernelFamily:
    """A family of kernels (`ladder.receipts.kernel_families`), or one kernel, of a profiled step.

    ``ms`` are all its milliseconds. ``own_ms`` are those that count for this family alone where kernels ran at once
    (`ladder.receipts.spans.once`); older files and single kernels lack them.
    """

    name: str = needed(v.TEXT)
    ms: float = needed(number(0, 1e8))
    launches: float = needed(number(0, 1e7))
    own_ms: float | Absent = optional(number(0, 1e8))


@record
class KernelProfile:
    """What a rung's profiled step consists of: by family, and its heaviest kernels with the rest as one row."""

    families: list[KernelFamily] = needed(items(rule_of(KernelFamily), 200))
    kernels: list[KernelFamily] = needed(items(rule_of(KernelFamily), 41))


@record
class Round:
    """One process of a rung in one generation. Times in ms are of one step."""

    round: int = needed(v.COUNT)
    samples_ms: list[float] = needed(v.SAMPLES)  # one for each timed cycle
    # The pass over all rungs that each sample was taken in; older files lack it.
    passes: list[int] | Absent = optional(items(v.COUNT, 100_000))
    profiled: list[ProfiledCycle] | Absent | None = optional(items(rule_of(ProfiledCycle), 8))
    gpu_void: str | Absent | None = optional(v.TEXT)  # why the profiled cycles do not count
    after: str | Absent | None = optional(v.TEXT)  # "ok", or why the step was not compared after timing
    still_s: float | Absent | None = optional(v.SECONDS)  # longest wait for a visited process to be idle
    event_ms: list[float] | Absent | None = optional(v.SAMPLES)
    main_ms: float | Absent | None = optional(v.MS)  # without the lazy phases
    # What a phase adds to a step; noise may exceed it.
    lazy_ms: dict[str, float] | Absent | None = optional(mapping(v.PHASE, number(-1e8, 1e8), 16))
    prepare_s: float | Absent = optional(v.SECONDS)
    capture_s: float | Absent | None = optional(v.SECONDS)
    cache_s: float | Absent | None = optional(v.SECONDS)
    compile_s: float | Absent | None = optional(v.SECONDS)
    compile_kernels_s: float | Absent | None = optional(v.SECONDS)
    start_s: float | Absent | None = optional(v.SECONDS)
    build_s: float | Absent | None = optional(v.SECONDS)
    visit_s: float | Absent | None = optional(v.SECONDS)
    beside: int | Absent | None = optional(v.COUNT)
    lead_in_cycles: int | Absent = optional(v.COUNT)
    settled: bool | Absent | None = optional(v.FLAG)
    peak_rss_bytes: int | Absent | None = optional(v.BYTES)
    peak_reserved_bytes: int | Absent | None = optional(v.BYTES)
    peak_allocated_bytes: int | Absent | None = optional(v.BYTES)
    device_used_bytes: int | Absent | None = optional(v.BYTES)
    alloc_retries: int | Absent | None = optional(v.COUNT)
    canary_s: float | Absent | None = optional(number(1e-9, 10))
    gpu: UnknownGpu | KnownGpu | Absent | None = optional(either(rule_of(UnknownGpu), rule_of(KnownGpu)))
    rejected: list[str] | Absent = optional(v.NOTES)
    others_cpu: float | Absent | None = optional(v.SHARE)
