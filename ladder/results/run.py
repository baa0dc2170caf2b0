"""A ladder's run: what its file stores, and the result that follows from it.

`Run` is the file: the header, the plan, and what was observed of each rung. `Result` is a run with every figure and
verdict that `ladder.results.judging.derive_result` computes from it. No file holds these.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ladder.core.protocol import AMBIGUOUS, FASTER, LESS_THAN, SLOWER, TOO_FEW
from ladder.core.records import (
    Amount,
    Bytes,
    Cores,
    Count,
    Factor,
    Fields,
    Identifier,
    LogRatio,
    Ms,
    Name,
    Names,
    Notes,
    Rate,
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
from ladder.plan.content import DIGITS
from ladder.results.file import Header, KernelProfile, Phase, Round, Status, Tenancy

Mode = Literal["cumulative", "solo", "leave-one-out", "mistakes", "levers", "recipe"]
# Of a rung; until 25 November 2026 what bounds it: host or gpu.
Kind = Annotated[str, text_matching("captured|eager|host|gpu", "captured, eager, host or gpu")]
Floors = Annotated[dict[Kind, "Noise"], size_between(4)] | None
Verdict = Literal["faster", "slower", "less than", "ambiguous", "too few generations"]
assert Verdict.__args__ == (FASTER, SLOWER, LESS_THAN, AMBIGUOUS, TOO_FEW)  # type: ignore[attr-defined]
Pair = Annotated[list[Rate], size_between(2, 2)]
Rounds = Annotated[list[Round], size_between(1000)]
LadderDigest = Annotated[str, text_matching(rf"[0-9a-f]{{{DIGITS}}}", f"a digest of {DIGITS} digits")]
Gigabytes = Annotated[float, number_between(0.1, 1e5)]
Scalar = bool | int | float | Text | None


# --- what a file stores -----------------------------------------------------------------------------------------------


class Ladder(Record):
    """The ladder that a run was of, and which of its rungs."""

    name: Name
    title: Text
    rungs: Names
    digest: LadderDigest | None = None


class Protocol(Record, kw_only=True):
    """How a run measured. `rounds` are those that were planned last; `notes` are events: a resumed run, a merged one.

    `gpu_memory_limit_gb`: GiB of the card that was simulated; a run that had all of its own lacks it.
    """

    rounds: Annotated[int, number_between(1, 1000)]
    cycles: Annotated[int, number_between(1, 100_000)]
    cycle_steps: Annotated[int, number_between(16, 16)]
    seed: Annotated[int, number_between(0, 2**32)]
    mode: Mode
    fixed: bool
    quick: bool = False
    notes: Notes = msgspec.field(default_factory=list)
    budget_s: Seconds | None = None
    settle_s: Seconds | None = None  # of runs in visits, until 24 November 2026; `settle_cycles`, too
    settle_cycles: Count | None = None
    gpu_memory_limit_gb: Gigabytes | None = None


class RunGpu(Record):
    """The state of the GPU over a whole run."""

    state: Literal["known", "unknown"]
    tenancy: Tenancy
    rejected_visits: Count
    notes: Notes


class Inspection(Record):
    """What the profiled step of a rung showed."""

    error: Text | None = None
    gpu_busy_ms: Annotated[float, number_between(0, 1e8)] | None = None
    kernels_per_step: Annotated[float, number_between(0, 1e7)] | None = None
    peak_reserved_bytes: Bytes | None = None  # of the inspector, once it was prepared
    flops: Amount | None = None  # of an average step
    parameters: Annotated[int, number_between(0, 10**12)] | None = None  # of both networks


class FailedAt(Record):
    """The round in which a rung failed, and its memory then."""

    round: Count | None = None
    peak_rss_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    peak_allocated_bytes: Bytes | None = None
    device_used_bytes: Bytes | None = None


Room = Annotated[float, number_between(0, 0.5)]  # a missing tensor has an error of 1


class ParityEntry(Record):
    """Relative errors and budgets of one quantity: of the whole, and of the tensor nearest to its budget."""

    error: Amount | None = None
    budget: Room | None = None
    nearest: Text | None = None
    nearest_error: Amount | None = None
    nearest_budget: Room | None = None
    judged: Count | None = None
    unresolved: Count | None = None


class ParityBudget(Record):
    """How the budgets were made: so many times the spread of these spellings of plain PyTorch in this precision."""

    factor: Amount
    precision: Text
    spellings: Annotated[list[Text], size_between(32)]
    left_out: Annotated[list[Text], size_between(32)]


class ParityReference(Record):
    """How the FP64 reference was made, of a batch in chunks of so many samples."""

    made_on: Text
    batch: Count
    chunk: Count | None = None
    steps: Count | None = None
    notes: Annotated[list[Text], size_between(32)] = msgspec.field(default_factory=list)


class Parity(Record, kw_only=True):
    """A rung's parity with the reference (`ladder.parity.check`): errors and budgets, and problems, a line each."""

    problems: Notes = msgspec.field(default_factory=list)
    phases: dict[Phase, Annotated[dict[Identifier, ParityEntry], size_between(16)]] | None = None
    replays: dict[Phase, Annotated[dict[Identifier, Amount | Text], size_between(16)]] | None = None
    budget: ParityBudget | None = None
    reference: ParityReference | None = None
    seconds: Seconds | None = None


class Receipt(Record):
    """Whether one rung of a recipe was engaged, and what showed it (`ladder.receipts`)."""

    engaged: bool
    lines: Notes


Receipts = Annotated[dict[Name, Receipt], size_between(64)]


class Choice(Record, kw_only=True):
    """A row of a table that decided, and in which rungs: the tile of `kernels.choices`, or an op's own entry."""

    op: Identifier
    rungs: Names
    case: Annotated[str, text_matching(r"[ -~]{1,96}", "a line of printable ASCII")] | None = None
    entry: Annotated[str, text_matching(r"[ -~]{1,300}", "a line of printable ASCII")] | None = None
    direction: Identifier | None = None
    tile: Count | None = None
    columns: Count | None = None
    warps: Count | None = None
    per_sm: Count | None = None
    stages: Count | None = None
    itemsize: Count | None = None
    layout: Literal["nhwc", "nchw"] | None = None
    architecture: Count | None = None
    size: Literal["small", "medium", "large"] | None = None

    def __post_init__(self) -> None:
        tile = (self.direction, self.tile, self.columns, self.warps, self.per_sm, self.stages)
        if None in ((self.case, self.entry) if self.direction is None else tile):
            raise ValueError("neither a tile nor an entry with its case")


class Variant(Record):
    """What an entry of `mistakes` or `levers` changes beside its recipe (`ladder.plan.variants`)."""

    exempt: Text | None = None  # why parity is not judged
    updates: Annotated[int, number_between(1, 100)] = 1  # of D for each update of G
    workload: Annotated[dict[Identifier, Scalar], size_between(16)] = msgspec.field(default_factory=dict)


class Merged(Record):
    """One of the runs that a result was merged from."""

    started: Started
    rounds: Count
    cpu: Text
    cores: Cores


class Gain(Record, kw_only=True):
    """What a rung gains over another: the factor, its interval, and the floor that it was judged by.

    `floor`, `least` and `below`, the far end of the interval of a "less than", are log ratios.
    """

    against: Name
    ratio: Factor
    rounds: Count
    interval: Pair | None = None
    confidence: Share | None = None
    least: LogRatio | None = None
    below: LogRatio | None = None
    floor: LogRatio | None = None


class Noise(Record, kw_only=True):
    """The noise floor of one kind of rung, a log ratio, and the smallest difference that is seen."""

    floor: LogRatio
    rounds: Count
    stored_rounds: Count = 0
    resolution: LogRatio | None = None


class ReportedRung(Record, kw_only=True):
    """Figures of a rung by the statistics of the day of its run, whose rounds today's statistics do not know."""

    kind: Kind | None = None
    verdict: Verdict | None = None
    gain: Gain | None = None
    interval_ms: Pair | None = None
    speedup_previous: Factor | None = None
    speedup_total: Factor | None = None
    main_speedup_total: Factor | None = None
    total_interval: Pair | None = None


class Reported(Record, kw_only=True):
    """The judgement of a run in visits (until 24 November 2026) as it was reported then. It is never derived again."""

    rungs: Annotated[dict[Name, ReportedRung], size_between(100)]
    noise: Floors = None


class Twin(Record, kw_only=True):
    """The second measurement of a rung. The two differ by nothing but noise."""

    name: Name
    of: Name
    status: Status = "n/a"
    reason: Text | None = None
    recipe: Fields | None = None
    settings: Fields | None = None
    rounds: Rounds = msgspec.field(default_factory=list)
    failed_at: FailedAt | None = None


class Rung(Record, kw_only=True):
    """What was observed of one rung. "n/a" without a reason: its turn has not come."""

    name: Name
    title: Text
    status: Status = "n/a"
    reason: Text | None = None
    recipe: Fields | None = None
    settings: Fields | None = None
    article_ms: Ms | None = None
    variant: Variant | None = None
    inspection: Inspection | None = None
    parity: Parity | None = None
    receipts: Receipts | None = None
    rounds: Rounds = msgspec.field(default_factory=list)
    failed_at: FailedAt | None = None
    profile: KernelProfile | None = None
    elsewhere: Notes | None = None  # what other runs that were merged say of it

    @property
    def updates(self) -> int:
        """Return the updates of D, and batches of real images, in a step."""
        return self.variant.updates if self.variant else 1


class Run(Header, kw_only=True):
    """The file of one run of a ladder, or of several that were merged."""

    kind: Literal["ladder"]
    workload: Fields
    ladder: Ladder
    protocol: Protocol
    rungs: Annotated[list[Rung], size_between(100, 1)]
    twins: Annotated[list[Twin], size_between(100)] = msgspec.field(default_factory=list)
    gpu: RunGpu | None = None
    first_table_s: Seconds | None = None  # until the first generation was whole
    merged: Annotated[list[Merged], size_between(100, 2)] | None = None
    choices: Annotated[list[Choice], size_between(100)] | None = None
    stored_twins: dict[Kind, list[float]] | None = None  # of older files, and no longer of use
    reported_then: Reported | None = None


# --- what follows from it ---------------------------------------------------------------------------------------------


class JudgedParity(Parity, kw_only=True):
    """Parity with its verdict."""

    verdict: Literal["ok", "failed: parity"]
    reason: Text | None = None


class RungResult(Rung, kw_only=True):
    """A rung with every number that is derived from its rounds. Times in ms are of one step.

    `gpu_ms` is the GPU time of a step (the union of kernels and copies): median over generations, with an interval and
    a verdict of its own. `waiting_ms` is the wall time in which the GPU has no work.
    """

    parity: JudgedParity | None = None  # type: ignore[assignment]
    kind: Kind | None = None
    samples_ms: Samples = msgspec.field(default_factory=list)
    notes: Notes = msgspec.field(default_factory=list)
    step_ms: Ms | None = None
    q25_ms: Ms | None = None
    q75_ms: Ms | None = None
    interval_ms: Pair | None = None
    main_ms: Ms | None = None
    images_per_s: Annotated[float, number_between(1e-6, 1e9)] | None = None
    speedup_previous: Factor | None = None
    speedup_total: Factor | None = None
    main_speedup_total: Factor | None = None
    total_interval: Pair | None = None
    peak_reserved_bytes: Bytes | None = None
    peak_allocated_bytes: Bytes | None = None
    prepare_s: Seconds | None = None
    host_bound: Share | None = None
    gpu_busy_ms: Annotated[float, number_between(0, 1e8)] | None = None
    verdict: Verdict | None = None
    gain: Gain | None = None
    gpu_ms: Ms | None = None
    gpu_interval_ms: Pair | None = None
    waiting_ms: Annotated[float, number_between(0, 1e8)] | None = None
    gpu_speedup_previous: Factor | None = None
    gpu_speedup_total: Factor | None = None
    gpu_verdict: Verdict | None = None
    gpu_gain: Gain | None = None


class TopGain(Record):
    """What a rung gains at the top of its ladder, and what to do about it."""

    gain: float
    interval: list[float] | None
    advice: str
    clock: str = ""  # "GPU" or "step", which decided
    gpu_gain: float | None = None
    gpu_interval: list[float] | None = None


class HostTime(Record):
    """What the CPU needs for a rung's step in ms, and which parts of it changed most from the rung before."""

    ms: Ms
    change: str | None = None


class Result(Run, kw_only=True):
    """A run with the figures and verdicts that follow from it.

    `noise` is of wall time, `gpu_noise` of GPU time. `at_top` comes from the leave-one-out run that goes with it
    (`ladder.results.combine.series.with_top`), `host` from `ladder host` on the same host.
    """

    rungs: Annotated[list[RungResult], size_between(100, 1)]  # type: ignore[assignment]
    complete: bool = False
    baseline: Name | None = None
    noise: Floors = None
    gpu_noise: Floors = None
    at_top: dict[str, TopGain] | None = None
    host: dict[str, HostTime] | None = None
