"""What result files of every kind have in common: who measured, where, when, with which code, and the rounds.

A file holds facts and observations. Medians, intervals, verdicts, notes and whether it is complete follow from these
and are derived when it is read.
"""

from __future__ import annotations

import statistics
from typing import Annotated, Literal

from msgspec import Meta

from ladder.core.records import (
    Amount,
    Bytes,
    Clock,
    CodeDigest,
    Commit,
    Cores,
    Count,
    Digest,
    Fields,
    Identifier,
    Ms,
    Name,
    Notes,
    Percent,
    Record,
    Samples,
    Seconds,
    Share,
    Started,
    Text,
    number_between,
    size_between,
    text_matching,
)

SCHEMA: Literal[2] = 2
Status = Literal["ok", "n/a", "skipped", "failed", "oom", "invalid", "not engaged", "failed: parity"]
OUT = ("skipped", "failed", "oom", "invalid", "not engaged", "failed: parity")  # takes a rung out of a run
Phase = Identifier  # StyleGAN2 has G_main, D_main, G_pl and D_r1; a user's pair its own
Variable = Annotated[str, text_matching(r"[A-Z][A-Z0-9_]{0,63}", "the name of a variable")]
Violation = Literal["power", "thermal", "board_limit", "reliability"]
Tenancy = Literal["alone", "shared", "unknown"]
Difference = Annotated[float, number_between(-1e8, 1e8)]


class Machine(Record):
    """The hardware and software that a result was measured on."""

    name: Name
    python: Text
    cpu: Text
    cores: Cores
    ram_gb: Annotated[float, Meta(ge=0, le=1e6)]
    os: Text
    device: Literal["cuda", "cpu"]
    gpu: Text | None = None
    gpu_memory_gb: Annotated[float, Meta(ge=0.1, le=1e5)] | None = None
    driver: Text | None = None
    cuda: Text | None = None
    cudnn: Text | None = None
    torch: Text | None = None
    triton: Text | None = None


class Images(Record):
    """A user's images, by what they hold."""

    count: Count
    digest: Digest


class Header(Record, kw_only=True):
    """The beginning of every result file.

    `workload` has the fields of `stylegan_lite.config.Workload` and its name; kinds without a workload lack it.
    `commits` are several if all of them measured the same code. `seconds` is how long measuring took.
    """

    schema: Literal[2]
    kind: Name
    machine: Machine
    workload: Fields | None = None
    environment: Annotated[dict[Variable, Text], size_between(64)] | None = None
    images: Images | None = None
    commit: Commit | None = None
    commits: Annotated[list[Commit], size_between(100, 2)] | None = None
    dirty: bool | None = None
    measured_code: Annotated[dict[Identifier, CodeDigest], size_between(8)] | None = None
    started: Started
    seconds: Seconds = 0.0


# --- rounds: one process of a rung in one generation ------------------------------------------------------------------


class GpuState(Record, kw_only=True):
    """The state of the GPU during a visit (`ladder.machine.gpu_state`); `reason` if it could not be watched."""

    state: Literal["known", "unknown"]
    tenancy: Tenancy
    reason: Text | None = None
    polls: Count | None = None
    longest_gap_ms: Annotated[float, number_between(0, 1e8)] | None = None
    sm_mhz: Clock | None = None
    sm_mhz_min: Clock | None = None
    memory_mhz: Clock | None = None
    temperature_c: Annotated[float, number_between(-100, 300)] | None = None
    power_w: Annotated[float, number_between(0, 1e5)] | None = None
    reasons: Annotated[list[Name], size_between(16)] | None = None
    violation_ms: (
        Annotated[dict[Violation, Annotated[float, number_between(-1e12, 1e12)]], size_between(16)] | None
    ) = None
    ecc_errors: Annotated[float, number_between(-1e12, 1e12)] | None = None
    foreign_processes: Count | None = None
    display_processes: Count | None = None
    drift_bytes: Bytes | None = None
    quiet_percent: Percent | None = None


PARTS_EXCEED = 1.02  # by rounding, and no more, the parts of a time exceed the whole


class ProfiledCycle(Record):
    """One cycle under the profiler, after the last timed one. Times in ms and counts are of one step."""

    gpu_ms: Ms  # union of kernels and copies over all streams
    wall_ms: Ms  # with the profiler's own cost: never a sample
    kernels: Annotated[float, number_between(0, 1e7)]
    sm_mhz: Clock | None = None

    def __post_init__(self) -> None:
        if self.gpu_ms > PARTS_EXCEED * self.wall_ms:
            raise ValueError(f"gpu_ms: {self.gpu_ms:g} is more than the wall time, {self.wall_ms:g}")


class KernelFamily(Record):
    """A family of kernels, or one kernel, of a profiled step.

    ``ms`` are all its milliseconds. ``own_ms`` are those that count for this family alone where kernels ran at once.
    """

    name: Text
    ms: Annotated[float, number_between(0, 1e8)]
    launches: Annotated[float, number_between(0, 1e7)]
    own_ms: Annotated[float, number_between(0, 1e8)] | None = None


class KernelProfile(Record):
    """What a rung's profiled step consists of: by family, and its heaviest kernels with the rest as one row."""

    families: Annotated[list[KernelFamily], size_between(200)]
    kernels: Annotated[list[KernelFamily], size_between(41)]

    def __post_init__(self) -> None:
        kernels, families = (sum(each.ms for each in rows) for rows in (self.kernels, self.families))
        if kernels > PARTS_EXCEED * families:
            raise ValueError(
                f"kernels: {kernels:.4g} ms of kernels are more than {families:.4g} ms of families"
            )


class Round(Record, kw_only=True):
    """One process of a rung in one generation. Times in ms are of one step, samples in the order of time.

    `passes` are those over all rungs that each sample was taken in. `lazy_ms` is what a phase adds; noise may
    exceed it.
    """

    round: Count
    samples_ms: Samples  # one for each timed cycle
    passes: Annotated[list[Count], size_between(100_000)] | None = None
    profiled: Annotated[list[ProfiledCycle], size_between(8)] | None = None
    gpu_void: Text | None = None  # why the profiled cycles do not count
    after: Text | None = None  # "ok", or why the step was not compared after timing
    still_s: Seconds | None = None  # longest wait for a visited process to be idle
    event_ms: Samples | None = None
    main_ms: Ms | None = None  # without the lazy phases
    lazy_ms: Annotated[dict[Phase, Difference], size_between(16)] | None = None
    prepare_s: Seconds | None = None
    capture_s: Seconds | None = None
    cache_s: Seconds | None = None
    compile_s: Seconds | None = None
    compile_kernels_s: Seconds | None = None
    start_s: Seconds | None = None
    build_s: Seconds | None = None
    visit_s: Seconds | None = None
    beside: Count | None = None
    lead_in_cycles: Count | None = None
    settled: bool | None = None
    peak_rss_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    peak_allocated_bytes: Bytes | None = None
    device_used_bytes: Bytes | None = None
    alloc_retries: Count | None = None
    canary_s: Annotated[float, number_between(1e-9, 10)] | None = None
    gpu: GpuState | None = None
    rejected: Notes | None = None
    others_cpu: Share | None = None


# --- looks: a recipe timed in one process, without generations ----------------------------------------------------


class Look(Record, kw_only=True):
    """The times of one process, in ms a step, and what disturbed it. Missing is what was not measured, or is unknown.

    `company` are others on the GPU, `gpu_void` why there is no GPU time beside the wall time.
    """

    wall_ms: Annotated[list[Ms], size_between(1000, 1)] | None = None
    gpu_ms: Annotated[list[Ms], size_between(1000, 1)] | None = None
    kernels: Amount | None = None
    prepare_s: Seconds
    device_gib: Annotated[float, number_between(0, 1e6)] | None = None
    others_cpu: Share | None = None
    tenancy: Tenancy | None = None
    company: Text | None = None
    gpu_void: Text | None = None

    def __post_init__(self) -> None:
        if (
            self.wall_ms
            and self.gpu_ms
            and statistics.median(self.gpu_ms) > 1.25 * statistics.median(self.wall_ms)
        ):
            raise ValueError("gpu_ms: far more than wall_ms")
