"""The records of `ladder profile`, which are the schema of its file, and what may not contradict itself in one.

Times are in ms, of a step unless said. On a CPU all times are operators' own times.
"""

from __future__ import annotations

import math

from ladder.base.records import ABSENT, Absent, needed, optional, record, rule_of
from ladder.base.rules import items, mapping, number, one_of
from ladder.receipts import categories
from ladder.results import values as v
from ladder.results.raw import KernelProfile
from ladder.results.schema import LINE
from ladder.results.types import Plain, StudyHeader
from ladder.studies.precision.record import Largest as Searched

DURATION = number(0, 1e8)
LAUNCHES = number(0, 1e7)
ROUNDED = 0.005  # ms: parts are rounded, and there may be some hundreds of them
UNKNOWN_PHASE = "unknown"
BETWEEN = "between phases"
KINDS = ("kernel", "memset", "copy")  # what the GPU runs


@record
class Replaced:
    """The work whose place fused kernels took: at which rung, what others lost there, and what the fused ones took."""

    at: str = needed(v.PART)
    lost_ms: float = needed(DURATION)
    fused_ms: float = needed(DURATION)
    source: str = needed(LINE)  # the file


@record
class Category:
    """The work of one category in a step. `share` is of the sum of all categories, as they are shown.

    ``ms`` are those of all its kernels. ``own_ms`` count for no other category, so all together are the GPU time.
    """

    name: str = needed(v.TEXT)
    ms: float = needed(DURATION)
    own_ms: float | Absent = optional(DURATION)  # older files lack it
    share: float = needed(v.SHARE)
    launches: float = needed(LAUNCHES)
    rate: float | None = needed(v.AMOUNT)  # in 1e12 a second
    unit: str | None = needed(one_of("TFLOP/s", "TB/s"))
    replaced: Replaced | None = needed(rule_of(Replaced))

    @property
    def shown_ms(self) -> float:
        """Return the milliseconds that are shown."""
        return self.ms if self.own_ms is ABSENT else self.own_ms


@record
class Phase:
    """The work of one phase: ms of a step, ms of a run, and how often it runs in a step."""

    name: str = needed(v.TEXT)
    ms: float = needed(DURATION)
    run_ms: float | None = needed(DURATION)
    runs: float | None = needed(number(0, 1e4))
    launches: float = needed(LAUNCHES)


@record
class Gap:
    """The moments inside runs of phases in which nothing ran: what ended before them, and what began behind them."""

    before: str = needed(one_of(*KINDS))
    after: str = needed(one_of(*KINDS))
    ms: float = needed(DURATION)
    number: float = needed(LAUNCHES)  # in a step
    median_us: float = needed(DURATION)


@record
class Layer:
    """The work of one layer, forward and backward."""

    name: str = needed(v.TEXT)
    ms: float = needed(DURATION)
    backward_ms: float = needed(DURATION)
    launches: float = needed(LAUNCHES)


@record
class Layers:
    """The layers of a step, the share of work whose layer is unknown, or why there are no layers."""

    rows: list[Layer] = needed(items(rule_of(Layer), 500))
    unknown: float | None = needed(v.SHARE)
    reason: str | None = needed(LINE)


@record
class Expected:
    """The article's expectation of a group of categories, and its share here, both of GPU time."""

    name: str = needed(v.TEXT)
    low: float = needed(v.SHARE)
    high: float = needed(v.SHARE)
    share: float = needed(v.SHARE)


@record
class Moment:
    """The memory at a moment of a phase's eager run, in bytes beside those that never change."""

    at_ms: float = needed(DURATION)
    gradients: int = needed(v.BYTES)
    activations: int = needed(v.BYTES)  # with workspaces and all else that is allocated meanwhile


@record
class Memory:
    """Memory by category in bytes, and by time in one eager run of each phase. An unknown size is None."""

    peak_allocated: int | None = needed(v.BYTES)
    peak_reserved: int | None = needed(v.BYTES)
    device_used: int | None = needed(v.BYTES)
    parameters: int = needed(v.BYTES)  # with the moving average, buffers and compute copies
    optimizer: int = needed(v.BYTES)
    buffers: int = needed(v.BYTES)  # inputs and images
    graph_pools: int | None = needed(v.BYTES)
    timeline: dict[str, list[Moment]] = needed(mapping(v.PHASE, items(rule_of(Moment), 64), 4))
    notes: list[str] = needed(items(LINE, 16))


@record
class Heavy:
    """A heavy kernel: its work in a step, and the phase that has most of it.

    `function` is the beginning of the names of all functions that have this label, and `word` stands in the arguments
    of their templates.
    """

    kernel: str = needed(LINE)  # a label of `ladder.receipts.kernel_names`
    function: str = needed(v.TEXT)
    word: str | None = needed(v.TEXT)
    ms: float = needed(DURATION)
    launches: float = needed(LAUNCHES)
    phase: str = needed(v.TEXT)
    phase_ms: float = needed(DURATION)


@record
class Pass:
    """A kernel of ours in a step, the bytes of the tensors that it is given, and copies of as many.

    `known_ms` are those of the launches whose tensors are known: at least 0.9 of all, or nothing is told.
    """

    kernel: str = needed(LINE)
    ms: float = needed(DURATION)
    launches: float = needed(LAUNCHES)
    bytes: int | None = needed(v.BYTES)
    known_ms: float | None = needed(DURATION)
    copy_ms: float | None = needed(DURATION)


@record
class Counted:
    """Nsight Compute's figures of a kernel's longest launch: percent of the peak, and bytes of a sector of 32.

    `blocks` are those of the launch, and `sms` the multiprocessors that the GPU has for them.
    """

    kernel: str = needed(LINE)
    us: float | None = needed(DURATION)
    sm: float | None = needed(v.PERCENT)
    dram: float | None = needed(v.PERCENT)
    l1_hits: float | None = needed(v.PERCENT)
    sector_bytes: float | None = needed(number(0, 64))
    sentence: str = needed(LINE)
    blocks: int | Absent | None = optional(v.COUNT)
    sms: int | Absent | None = optional(v.COUNT)


@record
class Largest(Searched):
    """The largest batch that fitted, with the tries, and the images a second there."""

    images_per_s: float | None = needed(v.AMOUNT)


@record
class Protocol:
    """How the step was profiled, and why the figures must not be quoted."""

    of: str = needed(one_of("kernels", "operators"))
    cycles: int = needed(v.COUNT)  # timed ones; one more is traced
    notes: list[str] = needed(v.NOTES)


@record
class Result(StudyHeader):
    """A result of `ladder profile`."""

    kind: str = needed(one_of("profile"))
    ladder: str = needed(v.PART)
    rung: str = needed(v.PART)
    recipe: Plain = needed(v.RECIPE)
    protocol: Protocol = needed(rule_of(Protocol))
    step_ms: float = needed(v.MS)  # by the wall clock, without the profiler
    gpu_ms: float = needed(v.MS)  # of the traced cycle: the union over streams; on a CPU the sum of own times
    profile: KernelProfile = needed(rule_of(KernelProfile))
    categories: list[Category] = needed(items(rule_of(Category), 200, least=1))
    phases: list[Phase] = needed(items(rule_of(Phase), 8, least=1))
    layers: Layers = needed(rule_of(Layers))
    expected: list[Expected] = needed(items(rule_of(Expected), 16))
    memory: Memory = needed(rule_of(Memory))
    heaviest: list[Heavy] | Absent = optional(items(rule_of(Heavy), 64))
    passes: list[Pass] | Absent = optional(items(rule_of(Pass), 200))  # on a GPU
    gaps: list[Gap] | Absent = optional(items(rule_of(Gap), len(KINDS) ** 2))  # on a GPU
    counters: list[Counted] | Absent = optional(items(rule_of(Counted), 64))
    largest: Largest | Absent = optional(rule_of(Largest))

    @property
    def total_ms(self) -> float:
        """Return the sum of all categories."""
        return sum(each.ms for each in self.categories)

    @property
    def overlap_ms(self) -> float:
        """Return the milliseconds that two kernels ran at once."""
        return self.total_ms - self.gpu_ms

    @property
    def once(self) -> bool:
        """Return whether each instant counts for one category. Older files count it for each kernel."""
        return all(each.own_ms is not ABSENT for each in self.categories)


def contradiction(result: Result) -> str | None:
    """Return, in one line, which numbers do not follow from others, or None."""
    by_family: dict[str, float] = {}
    for family in result.profile.families:
        name = categories.category(family.name)
        by_family[name] = by_family.get(name, 0.0) + family.ms
    shown = sum(each.shown_ms for each in result.categories)
    if result.once and not _near(shown, result.gpu_ms):
        return "categories: together they are not gpu_ms"
    for each in result.categories:
        if not _near(by_family.pop(each.name, -1.0), each.ms):
            return f"categories: {each.name} is not the sum of its families"
        if not math.isclose(each.share, each.shown_ms / (shown or 1), abs_tol=1e-3):
            return f"categories: the share of {each.name} is not its part of the sum"
    if by_family:
        return f"categories: {next(iter(by_family))} is missing"
    for what, rows in (("phases", result.phases), ("layers", result.layers.rows)):
        if rows and not _near(sum(row.ms for row in rows), result.total_ms):  # type: ignore[attr-defined]
            return f"{what}: their sum is not that of the categories"
    heavy = result.heaviest or []
    if any(row.phase_ms > row.ms + ROUNDED for row in heavy) or not _within(heavy, result.total_ms):
        return "heaviest: longer than what it is a part of"
    if result.overlap_ms < -ROUNDED * 10:
        return "gpu_ms: longer than the sum of the categories"
    return None


def _within(rows: list[Heavy], total: float) -> bool:
    return sum(row.ms for row in rows) <= total + ROUNDED


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-3, abs_tol=ROUNDED)
