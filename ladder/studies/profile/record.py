"""The records of `ladder profile`: its options, what its file holds, and what follows from that. Pure functions.

Times are in ms, of a step unless a field says otherwise. On a CPU all times are operators' own times.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ladder.core import text as texts
from ladder.core.options import Seed, declare_option
from ladder.core.records import Amount, Bytes, Count, Fields, Line, Ms, Name, Percent, Record, Samples, Text
from ladder.core.records import number_between as between
from ladder.core.records import size_between as at_most
from ladder.receipts import categories
from ladder.results.file import PARTS_EXCEED, KernelFamily, KernelProfile, Phase
from ladder.studies import batch_search, frame
from ladder.studies.frame import StudyFile

STEP, LARGEST, COUNTERS = "step", "largest batch", "counters"  # cases
GPU, CPU = "kernels", "operators"  # what ran, on a GPU and on a CPU
UNKNOWN, BETWEEN = "unknown", "between phases"
MOST_OTHER = 0.05  # share of `other` from which on the classifier needs another pattern
BOUND_PERCENT = 60.0  # of a peak from which on it bounds a kernel, as in Nsight Compute's own rules
FILLED = 0.5  # of the SMs: a launch with fewer blocks leaves most of the GPU without work
# The article's expectation of GPU time, and the categories that stand for it here.
ARTICLE = (
    ("convolutions", 0.35, 0.40, (categories.CONVOLUTION, categories.MATMUL)),
    ("normalization", 0.15, 0.20, (categories.NORMALIZATION, "fused: normalization")),
    ("nonlinearities", 0.10, 0.15, (categories.ELEMENTWISE, "fused: activation")),
    ("conversion and allocation", 0.10, 0.15, (categories.LAYOUT, categories.COPIES, categories.BOOKKEEPING)),
)

Duration = Annotated[float, between(0, 1e8)]
Launches = Annotated[float, between(0, 1e7)]
Kind = Literal["kernel", "memset", "copy"]  # what the GPU runs
LADDER = "The ladder of the rung. [default: article, or full if article lacks it]"
TRACE = "Write one step of each kind as a Chrome trace: .json.gz or .json."
SEARCH = "Also search the largest batch that fits; up to three minutes."
COUNT = "Also count in the heaviest kernels with Nsight Compute; minutes."
REPORT = "Also write a report of Nsight Systems."
SEED = "Seed for weights, latents and the order of images."
RUNG = declare_option("The rung, with all below it.", argument=True, metavar="RUNG")


class Options(frame.Options):
    """The options of `ladder profile`."""

    rung: Annotated[Name | None, RUNG] = None
    ladder: Annotated[str | None, declare_option(LADDER, metavar="NAME|FILE")] = None
    trace: Annotated[Path | None, declare_option(TRACE, metavar="FILE")] = None
    largest_batch: Annotated[bool, declare_option(SEARCH)] = False
    ncu: Annotated[bool, declare_option(COUNT)] = False
    nsys: Annotated[Path | None, declare_option(REPORT, metavar="FILE")] = None
    seed: Annotated[Seed, declare_option(SEED)] = 0


class Case(frame.Case):
    """The step has its ladder and its recipe (all fields); other cases have nothing."""

    ladder: Name | None = None
    recipe: Fields | None = None


class PhaseWork(Record):
    """The work of one phase, and how often it runs in a step."""

    name: Text
    ms: Duration
    launches: Launches
    runs: Annotated[float, between(0, 1e4)] | None = None


class Gap(Record):
    """The moments inside runs of phases in which nothing ran, by what ended before and what began behind them."""

    before: Kind
    after: Kind
    ms: Duration
    number: Launches  # in a step
    median_us: Duration


class Layer(Record):
    """The work of one layer, forward and backward."""

    name: Text
    ms: Duration
    backward_ms: Duration
    launches: Launches


class Moment(Record):
    """The memory at a moment of a phase's eager run, beside lasting tensors. Workspaces count as activations."""

    at_ms: Duration
    gradients: Bytes
    activations: Bytes


class Memory(Record, kw_only=True):
    """Memory by category in bytes, and by time in one eager run of each phase. An unknown size is None."""

    peak_allocated: Bytes | None = None
    peak_reserved: Bytes | None = None
    device_used: Bytes | None = None
    parameters: Bytes  # with the moving average, buffers and compute copies
    optimizer: Bytes
    buffers: Bytes  # inputs and images
    graph_pools: Bytes | None = None
    timeline: Annotated[dict[Phase, Annotated[list[Moment], at_most(64)]], at_most(32)] = {}

    @property
    def lasting(self) -> int:
        """Return the bytes of tensors that live as long as the step."""
        return self.parameters + self.optimizer + self.buffers


class Heavy(Record, kw_only=True):
    """A heavy kernel by its label of `ladder.receipts.kernel_names`, and the phase that has most of it.

    The names of all its functions begin with `function`, and `word` stands in the arguments of their templates.
    """

    kernel: Line
    function: Text
    word: Text | None = None
    ms: Duration
    launches: Launches
    phase: Text
    phase_ms: Duration


class Pass(Record):
    """A kernel of ours in a step, the bytes of the tensors that it is given, and copies of as many.

    `known_ms` are those of the launches whose tensors are known: at least 0.9 of all, or all three are None.
    """

    kernel: Line
    ms: Duration
    launches: Launches
    bytes: Bytes | None = None
    known_ms: Duration | None = None
    copy_ms: Duration | None = None


class Step(Record, kw_only=True):
    """All that one process showed of a rung's step."""

    walls_ms: Samples  # of timed cycles, without the profiler
    cycles: Count | None = None  # whose median is the only wall time, in older files
    gpu_ms: Ms  # of the traced cycle: the union over streams; on a CPU the sum of own times
    profile: KernelProfile
    work: dict[Text, Amount] = {}  # by category: FLOPs of convolutions and matmuls, bytes of others, if known
    replaced: dict[Text, Fields] = {}  # by category: what fused kernels replaced, in an older file
    phases: Annotated[list[PhaseWork], at_most(34, 1)]
    layers: Annotated[list[Layer], at_most(500)] = []
    no_layers: Line | None = None  # why there are none
    heaviest: Annotated[list[Heavy], at_most(64)]
    passes: Annotated[list[Pass], at_most(200)] | None = None  # on a GPU
    gaps: Annotated[list[Gap], at_most(9)] | None = None  # on a GPU
    uneven: Annotated[list[Text], at_most(16)] = []  # phases whose runs differ in their kernels
    memory: Memory

    def __post_init__(self) -> None:
        families = self.profile.families
        whole, own = sum(each.ms for each in families), sum(each.own_ms or 0.0 for each in families)
        for name, parts in (("phases", self.phases), ("layers", self.layers), ("heaviest", self.heaviest)):
            if (ms := sum(part.ms for part in parts)) > PARTS_EXCEED * whole:
                raise ValueError(f"{name}: {ms:.4g} ms are more than all kernels of the step, {whole:.4g} ms")
        if max(own, self.gpu_ms - whole) > PARTS_EXCEED * self.gpu_ms:
            raise ValueError(
                f"gpu_ms: {self.gpu_ms:.4g} is less than its families have of their own, {own:.4g}"
            )


class Counted(Record, kw_only=True):
    """Nsight Compute's figures of a kernel's longest launch: percent of the peak, and bytes of a sector of 32.

    A file has a `sentence` only where there are no figures: why. Else it follows from them.
    """

    kernel: Line
    us: Duration | None = None
    sm: Percent | None = None
    dram: Percent | None = None
    l1_hits: Percent | None = None
    sector_bytes: Annotated[float, between(0, 64)] | None = None
    sentence: Line | None = None
    blocks: Count | None = None  # of the launch
    sms: Count | None = None  # multiprocessors of the GPU


class Search(batch_search.Search):
    """The search for the largest batch, and the images a second at it."""

    images_per_s: Amount | None = None


class Observed(frame.Observation, kw_only=True):
    """The findings of a case."""

    step: Step | None = None
    largest: Search | None = None
    counters: Annotated[list[Counted], at_most(64)] | None = None

    def list_times(self) -> list[float]:
        return self.step.walls_ms if self.step else []


File = StudyFile[Options, Case, Observed]


class Category(Record):
    """The work of one category. `share` is of the sum of all categories, as they are shown.

    `ms` are those of all its kernels. `own_ms` count for no other category, so all together are the GPU time; one
    older file lacks them. `rate` is in 1e12 a second.
    """

    name: str
    ms: float
    own_ms: float | None
    share: float
    launches: float
    rate: float | None
    unit: str | None
    replaced: Fields | None

    @property
    def shown_ms(self) -> float:
        """Return the milliseconds that are shown."""
        return self.ms if self.own_ms is None else self.own_ms


class PhaseRow(PhaseWork):
    """The work of one phase, with the ms of a run."""

    run_ms: float | None = None


class Layers(Record):
    """The layers of a step, the share of work whose layer is unknown, or why there are no layers."""

    rows: list[Layer]
    unknown: float | None = None
    reason: str | None = None


class Expected(Record):
    """The article's expectation of a group of categories, and its share here, both of GPU time."""

    name: str
    low: float
    high: float
    share: float


class Largest(Search):
    """The largest batch that fitted."""

    batch: int | None = None


class Protocol(Record):
    """How the step was profiled, and why the figures must not be quoted. `cycles` are timed; one more is traced."""

    of: str
    cycles: int
    notes: list[str]


class Profile(Record, kw_only=True):
    """What `ladder report --json` prints beside the header; of a step that was not profiled only the first four."""

    ladder: str | None
    rung: str | None
    recipe: Fields | None
    protocol: Protocol
    step_ms: float | None = None
    gpu_ms: float | None = None
    profile: KernelProfile | None = None
    categories: list[Category] = []
    phases: list[PhaseRow] = []
    layers: Layers | None = None
    expected: list[Expected] = []
    memory: Memory | None = None
    heaviest: list[Heavy] | None = None
    passes: list[Pass] | None = None
    gaps: list[Gap] | None = None
    counters: list[Counted] | None = None
    largest: Largest | None = None


def read_step(file: File) -> Step | None:
    """Return the step that a file holds, if it was profiled."""
    return file.observed[STEP].step if STEP in file.observed else None


def derive_profile(file: File, cautions: list[str]) -> Profile:
    """Return what follows from a file."""
    case, step, on_gpu = file.cases.get(STEP, Case()), read_step(file), file.machine.device == "cuda"
    cycles = (step.cycles or len(step.walls_ms)) if step else 0
    protocol = Protocol(GPU if on_gpu else CPU, cycles, cautions)
    profile = Profile(ladder=case.ladder, rung=file.options.rung, recipe=case.recipe, protocol=protocol)
    if step is None:
        return profile
    counters, search = (file.observed.get(key, Observed()) for key in (COUNTERS, LARGEST))
    rows, memory = derive_categories(step), step.memory
    if not on_gpu:  # only PyTorch's own allocations are seen
        moments = [each for moments in memory.timeline.values() for each in moments]
        most = max((each.gradients + each.activations for each in moments), default=0)
        memory = msgspec.structs.replace(memory, peak_allocated=memory.lasting + most)
    layers = Layers([], reason=step.no_layers)
    if step.no_layers is None:
        unknown = sum(row.ms for row in step.layers if row.name == UNKNOWN)
        layers = Layers(step.layers, round(unknown / (sum(row.ms for row in step.layers) or 1.0), 5))
    phases = [(row, row.runs and round(row.ms / row.runs, 5)) for row in step.phases]
    return msgspec.structs.replace(
        profile,
        step_ms=round(statistics.median(step.walls_ms), 5),
        gpu_ms=step.gpu_ms,
        profile=step.profile,
        categories=rows,
        phases=[PhaseRow(*(*msgspec.structs.astuple(row), run_ms)) for row, run_ms in phases],
        layers=layers,
        expected=[
            Expected(name, low, high, round(sum(each.share for each in rows if each.name.startswith(own)), 5))
            for name, low, high, own in ARTICLE
            if "pair" not in (file.workload or {})
        ],
        memory=memory,
        heaviest=step.heaviest,
        passes=step.passes,
        gaps=step.gaps,
        counters=counters.counters and [derive_bound(row) for row in counters.counters],
        largest=search.largest
        and Largest(**msgspec.structs.asdict(search.largest), batch=search.largest.find_batch()),
    )


def derive_categories(step: Step) -> list[Category]:
    """Return the rows of categories, the heaviest first."""
    families: dict[str, list[KernelFamily]] = {}
    for row in step.profile.families:
        families.setdefault(categories.name_category(row.name), []).append(row)
    is_once = all(row.own_ms is not None for row in step.profile.families)
    ms = {name: sum(row.ms for row in rows) for name, rows in families.items()}
    own = {name: sum(row.own_ms or 0.0 for row in rows) for name, rows in families.items()}
    shown = own if is_once else ms
    total = sum(shown.values()) or 1.0
    rows = []
    for name, members in families.items():
        rate = step.work[name] / ms[name] / 1e9 if step.work.get(name) and ms[name] else None
        unit = "TFLOP/s" if name in (categories.CONVOLUTION, categories.MATMUL) else "TB/s"
        rows.append(
            Category(
                name=name,
                ms=round(ms[name], 5),
                own_ms=round(own[name], 5) if is_once else None,
                share=round(shown[name] / total, 5),
                launches=round(sum(row.launches for row in members), 4),
                rate=None if rate is None else float(f"{rate:.4g}"),
                unit=None if rate is None else unit,
                replaced=step.replaced.get(name),
            )
        )
    return sorted(rows, key=lambda row: -row.shown_ms)


def share_of_other(rows: list[Category]) -> float:
    """Return the share of names that the classifier does not know."""
    return next((row.share for row in rows if row.name == categories.OTHER), 0.0)


def derive_bound(row: Counted) -> Counted:
    """Return the counters with what bounds the kernel: the part of both peaks that it reaches, or its few blocks."""
    if row.us is None:
        return row
    bound = "latency bound"
    if row.sm is None or row.dram is None:
        bound = "no number for one of the peaks"
    elif max(row.sm, row.dram) >= BOUND_PERCENT:
        bound = "memory bound" if row.dram >= row.sm else "compute bound"
    elif row.blocks and row.sms and row.blocks < row.sms:
        short = "does not fill the GPU" if row.blocks < FILLED * row.sms else bound
        bound = f"{short}: {texts.format_count(row.blocks, 'block')} for {row.sms} SMs"
    return msgspec.structs.replace(row, sentence=bound)
