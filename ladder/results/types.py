"""The types of a ladder's result: what its file holds, read once and frozen.

Every field has the rule that its value obeys, so these classes are also the schema (`ladder.results.schema`). A key
that older files lack is `ABSENT`, which differs from null. `read` refuses what the rules refuse, `plain` gives the
file's data back. Recipes, workloads and settings of PyTorch stay plain: other commits have other fields. What a
stranger's may hold is checked by `ladder.results.check`.
"""

from __future__ import annotations

from typing import Any

from ladder.base.records import ABSENT as ABSENT
from ladder.base.records import Absent, needed, optional, record, rule_of, unstored
from ladder.base.records import build as build
from ladder.base.records import given as given
from ladder.base.records import plain as plain
from ladder.base.records import read as read
from ladder.base.rules import either, items, mapping, number, one_of, pattern
from ladder.plan import content
from ladder.results import values as v
from ladder.results.raw import KernelFamily as KernelFamily
from ladder.results.raw import KernelProfile, Round
from ladder.results.raw import KnownGpu as KnownGpu
from ladder.results.raw import ProfiledCycle as ProfiledCycle
from ladder.results.raw import UnknownGpu as UnknownGpu

Plain = dict[str, Any]  # a recipe, a workload or settings, as a file has them


@record
class Machine:
    """The hardware and software that a result was measured on."""

    name: str = needed(v.PART)
    gpu: str | None = needed(v.TEXT)
    gpu_memory_gb: float | None = needed(number(0.1, 1e5))
    driver: str | None = needed(v.TEXT)
    cuda: str | None = needed(v.TEXT)
    cudnn: str | None = needed(v.TEXT)
    torch: str | None = needed(v.TEXT)
    triton: str | None = needed(v.TEXT)
    python: str = needed(v.TEXT)
    cpu: str = needed(v.TEXT)
    cores: int = needed(v.CORES)
    ram_gb: float = needed(number(0, 1e6))
    os: str = needed(v.TEXT)
    device: str = needed(one_of("cuda", "cpu"))


@record
class Ladder:
    """The ladder that a run was of, and which of its rungs."""

    name: str = needed(v.PART)
    title: str = needed(v.TEXT)
    rungs: list[str] = needed(v.NAMES)
    digest: str | Absent = optional(
        pattern(rf"[0-9a-f]{{{content.DIGITS}}}", f"a digest of {content.DIGITS} digits")
    )


@record
class Protocol:
    """How a run measured. `rounds` are those that were planned last."""

    rounds: int = needed(number(1, 1000, whole=True))
    cycles: int = needed(number(1, 100_000, whole=True))
    cycle_steps: int = needed(number(16, 16, whole=True))
    seed: int = needed(number(0, 2**32, whole=True))
    quick: bool = needed(v.FLAG)
    notes: list[str] = needed(v.NOTES)
    settle_s: float | Absent = optional(v.SECONDS)
    settle_cycles: int | Absent = optional(v.COUNT)
    mode: str | Absent = optional(
        one_of("cumulative", "solo", "leave-one-out", "mistakes", "levers", "recipe")
    )
    fixed: bool | Absent = optional(v.FLAG)
    budget_s: float | Absent | None = optional(v.SECONDS)
    # GiB of the card that was simulated; a run that had all of its own lacks it.
    gpu_memory_limit_gb: float | Absent = optional(number(0.1, 1e5))


@record
class Images:
    """A user's images, by what they hold."""

    count: int = needed(v.COUNT)
    digest: str = needed(pattern(r"[0-9a-f]{16}", "a digest of 16 digits"))


@record
class RunGpu:
    """The state of the GPU over a whole run."""

    state: str = needed(one_of("known", "unknown"))
    tenancy: str = needed(v.TENANCY)
    rejected_visits: int = needed(v.COUNT)
    notes: list[str] = needed(v.NOTES)


@record
class Inspection:
    """What the profiled step of a rung showed."""

    error: str | None = needed(v.TEXT)
    gpu_busy_ms: float | Absent | None = optional(number(0, 1e8))
    kernels_per_step: float | Absent | None = optional(number(0, 1e7))
    peak_reserved_bytes: int | Absent | None = optional(v.BYTES)  # of the inspector, once it was prepared
    flops: float | Absent = optional(v.AMOUNT)  # of an average step
    parameters: int | Absent = optional(number(0, 1e12, whole=True))  # of both networks


@record
class FailedAt:
    """The round in which a rung failed, and its memory then."""

    round: int | None = needed(v.COUNT)
    peak_rss_bytes: int | Absent | None = optional(v.BYTES)
    peak_reserved_bytes: int | Absent | None = optional(v.BYTES)
    peak_allocated_bytes: int | Absent | None = optional(v.BYTES)
    device_used_bytes: int | Absent | None = optional(v.BYTES)


ERROR = number(0, 1e30)  # relative; a kernel may return anything
MADE = mapping(v.IDENTIFIER, either(v.SCALAR, items(v.TEXT, 32)), 16)


@record
class ParityEntry:
    """Errors and budgets of one quantity: of the whole, and of the tensor nearest to its budget."""

    error: float | None = needed(ERROR)
    budget: float | None = needed(ERROR)
    nearest: str | Absent = optional(v.TEXT)
    nearest_error: float | Absent | None = optional(ERROR)
    nearest_budget: float | Absent | None = optional(ERROR)
    judged: int | Absent = optional(v.COUNT)
    unresolved: int | Absent = optional(v.COUNT)


@record
class Parity:
    """A rung's parity with the reference (`ladder.parity.check`)."""

    verdict: str = needed(one_of("ok", "failed: parity"))
    reason: str | None = needed(v.TEXT)
    problems: list[str] = needed(v.NOTES)
    phases: dict[str, dict[str, ParityEntry]] | Absent = optional(
        mapping(v.PHASE, mapping(v.IDENTIFIER, rule_of(ParityEntry), 16), 16)
    )
    replays: dict[str, dict[str, float | str]] | Absent = optional(
        mapping(v.PHASE, mapping(v.IDENTIFIER, either(ERROR, v.TEXT), 16), 16)
    )
    budget: Plain | Absent = optional(MADE)
    reference: Plain | Absent = optional(MADE)
    seconds: float | Absent = optional(v.SECONDS)


@record
class Receipt:
    """Whether one rung of a recipe was engaged, and what showed it (`ladder.receipts.receipt`)."""

    engaged: bool = needed(v.FLAG)
    lines: list[str] = needed(v.NOTES)


@record
class Noted:
    """A row of another table than `kernels.choices` that decided."""

    op: str = needed(v.IDENTIFIER)
    case: str = needed(pattern(r"[ -~]{1,96}", v.ASCII))
    entry: str = needed(pattern(r"[ -~]{1,300}", v.ASCII))
    rungs: list[str] = needed(v.NAMES)


@record
class Choice:
    """A row of `kernels.choices` that decided: the tile that it says, and in which rungs."""

    op: str = needed(v.IDENTIFIER)
    direction: str = needed(v.IDENTIFIER)
    tile: int = needed(v.COUNT)
    columns: int = needed(v.COUNT)
    warps: int = needed(v.COUNT)
    per_sm: int = needed(v.COUNT)
    stages: int = needed(v.COUNT)
    rungs: list[str] = needed(v.NAMES)
    itemsize: int | Absent = optional(v.COUNT)
    layout: str | Absent = optional(one_of("nhwc", "nchw"))
    architecture: int | Absent = optional(v.COUNT)
    size: str | Absent = optional(one_of("small", "medium", "large"))


@record
class Gain:
    """What a rung gains over another: the factor, its interval, and the floor that it was judged by."""

    against: str = needed(v.PART)
    ratio: float = needed(v.FACTOR)
    interval: list[float] | None = needed(v.PAIR)
    rounds: int = needed(v.COUNT)
    confidence: float | Absent | None = optional(v.SHARE)
    least: float | Absent | None = optional(v.FLOOR)  # log ratios, as `floor` and `below`
    below: float | Absent | None = optional(v.FLOOR)  # the far end of the interval, for "less than"
    floor: float | Absent | None = optional(v.FLOOR)


@record
class Twin:
    """The second measurement of a rung. The two differ by nothing but noise."""

    name: str = needed(v.PART)
    of: str = needed(v.PART)
    status: str = needed(v.STATUS)
    reason: str | None = needed(v.TEXT)
    recipe: Plain | None = needed(v.OBJECT)
    settings: Plain | None = needed(v.OBJECT)
    rounds: list[Round] = needed(items(rule_of(Round), 1000))
    failed_at: FailedAt | Absent = optional(rule_of(FailedAt))


@record
class Variant:
    """What an entry of `mistakes` or `levers` changes beside its recipe (`ladder.plan.variants`)."""

    exempt: str | None = needed(v.TEXT)  # why parity is not judged
    updates: int = needed(number(1, 100, whole=True))  # of D for each update of G
    workload: Plain = needed(mapping(v.IDENTIFIER, v.SCALAR, 16))


@record
class RungResult:
    """What was measured of one rung: its rounds, and every number that is derived from them."""

    name: str = needed(v.PART)
    title: str = needed(v.TEXT)
    status: str = needed(v.STATUS)
    reason: str | None = needed(v.TEXT)
    recipe: Plain | None = needed(v.OBJECT)
    step_ms: float | None = needed(v.MS)
    q25_ms: float | None = needed(v.MS)
    q75_ms: float | None = needed(v.MS)
    speedup_previous: float | None = needed(v.FACTOR)
    speedup_total: float | None = needed(v.FACTOR)
    main_ms: float | None = needed(v.MS)
    main_speedup_total: float | None = needed(v.FACTOR)
    images_per_s: float | None = needed(number(1e-6, 1e9))
    peak_reserved_bytes: int | None = needed(v.BYTES)
    peak_allocated_bytes: int | None = needed(v.BYTES)
    prepare_s: float | None = needed(v.SECONDS)
    interval_ms: list[float] | None = needed(v.PAIR)
    host_bound: float | None = needed(v.SHARE)
    gpu_busy_ms: float | None = needed(v.MS)
    samples_ms: list[float] = needed(v.SAMPLES)
    rounds: list[Round] = needed(items(rule_of(Round), 1000))
    notes: list[str] = needed(v.NOTES)
    article_ms: float | None = needed(v.MS)
    settings: Plain | None = needed(v.OBJECT)
    inspection: Inspection | Absent | None = optional(rule_of(Inspection))
    failed_at: FailedAt | Absent = optional(rule_of(FailedAt))
    kind: str | Absent | None = optional(v.KIND)
    verdict: str | Absent | None = optional(v.VERDICT)
    gain: Gain | Absent | None = optional(rule_of(Gain))
    # GPU time of a step (the union of kernels and copies): median over generations, its interval, and verdicts of its
    # own. `waiting_ms` is the wall time in which the GPU has no work.
    gpu_ms: float | Absent | None = optional(v.MS)
    gpu_interval_ms: list[float] | Absent | None = optional(v.PAIR)
    waiting_ms: float | Absent | None = optional(number(0, 1e8))
    gpu_speedup_previous: float | Absent | None = optional(v.FACTOR)
    gpu_speedup_total: float | Absent | None = optional(v.FACTOR)
    gpu_verdict: str | Absent | None = optional(v.VERDICT)
    gpu_gain: Gain | Absent | None = optional(rule_of(Gain))
    profile: KernelProfile | Absent | None = optional(rule_of(KernelProfile))
    total_interval: list[float] | Absent | None = optional(v.PAIR)
    receipts: dict[str, Receipt] | Absent | None = optional(mapping(v.PART, rule_of(Receipt), 64))
    parity: Parity | Absent | None = optional(rule_of(Parity))
    elsewhere: list[str] | Absent = optional(v.NOTES)  # what other runs that were merged say of it
    variant: Variant | Absent = optional(rule_of(Variant))

    @property
    def updates(self) -> int:
        """Return the updates of D, and batches of real images, in a step."""
        return self.variant.updates if self.variant else 1


@record
class Merged:
    """One of the runs that a result was merged from."""

    started: str = needed(v.STARTED)
    rounds: int = needed(v.COUNT)
    cpu: str = needed(v.TEXT)
    cores: int = needed(v.CORES)


@record
class Noise:
    """The noise floor of one kind of rung, a log ratio, and the smallest difference that is seen."""

    floor: float = needed(v.FLOOR)
    rounds: int = needed(v.COUNT)
    stored_rounds: int = needed(v.COUNT)
    resolution: float | Absent | None = optional(v.FLOOR)


@record
class TopGain:
    """What a rung gains at the top of its ladder, and what to do about it. No file holds it."""

    gain: float
    interval: list[float] | None
    advice: str
    gpu_gain: float | None = None
    gpu_interval: list[float] | None = None


@record
class Origin:
    """Who measured, where, when and with which code."""

    machine: Machine = needed(rule_of(Machine))
    commit: str | None = needed(v.A_COMMIT)
    dirty: bool | None = needed(v.FLAG)
    complete: bool = needed(v.FLAG)
    started: str = needed(v.STARTED)
    seconds: float = needed(v.SECONDS)
    # Several commits where all of them measured the same code.
    commits: list[str] | Absent = optional(items(v.A_COMMIT, 100, least=2))
    measured_code: dict[str, str] | Absent = optional(mapping(v.IDENTIFIER, v.CODE_DIGEST, 8))
    environment: dict[str, str] | Absent = optional(v.ENVIRONMENT)
    images: Images | Absent = optional(rule_of(Images))


@record
class Header(Origin):
    """The origin of a result of one workload."""

    workload: Plain = needed(v.NAMED)


@record
class StudyHeader(Header):
    """The head of a result of another kind, which always says which code was measured."""

    schema: int = needed(number(v.SCHEMA, v.SCHEMA, whole=True))
    workload: Plain = needed(v.WORKLOAD)
    measured_code: dict[str, str] = needed(mapping(v.IDENTIFIER, v.CODE_DIGEST, 8))


@record
class Result(Header):
    """The result of one run of a ladder, or of several that were merged."""

    schema: int = needed(number(v.SCHEMA, v.SCHEMA, whole=True))
    ladder: Ladder = needed(rule_of(Ladder))
    protocol: Protocol = needed(rule_of(Protocol))
    baseline: str | None = needed(v.PART)
    rungs: list[RungResult] = needed(items(rule_of(RungResult), 100, least=1))
    twins: list[Twin] | Absent = optional(items(rule_of(Twin), 100))
    stored_twins: dict[str, list[float]] | Absent = optional(
        mapping(v.KIND, items(number(-100, 100), 1000), 4)
    )
    noise: dict[str, Noise] | Absent = optional(mapping(v.KIND, rule_of(Noise), 4))  # of wall time
    gpu_noise: dict[str, Noise] | Absent = optional(mapping(v.KIND, rule_of(Noise), 4))  # of GPU time
    gpu: RunGpu | Absent | None = optional(rule_of(RunGpu))
    first_table_s: float | Absent = optional(v.SECONDS)  # until the first generation was whole
    merged: list[Merged] | Absent = optional(items(rule_of(Merged), 100, least=2))
    choices: list[Noted | Choice] | Absent = optional(items(either(rule_of(Noted), rule_of(Choice)), 100))
    # From the leave-one-out run that goes with it (`ladder.results.combine.series.with_top`).
    at_top: dict[str, TopGain] | None = unstored(None)
    part_of: str | None = unstored(None)  # ladder of the run, where these are some of its rungs


def head(result: Origin) -> Plain:
    """Return what a result says of itself, as its file has it: all of `Header`, nothing of what was measured."""
    found = ((name, getattr(result, name, ABSENT)) for name in _HEAD)
    return {name: plain(value) for name, value in found if value is not ABSENT}


_HEAD = tuple(Header.__dataclass_fields__)
