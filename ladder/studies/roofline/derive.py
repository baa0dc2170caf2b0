"""The records of `ladder doctor --roofline`, the floor that follows from them, and where the distance to it lies.

The highest of all rates on record counts: results of the same GPU (`results/roofline/`), copies of kernel tuning
(`results/kernels/*-tuning.json`), today's measurement, and the traced step: a part of a step that beats its ceilings,
which are measured alone and hot, has the traced time as its floor. Floors only come down.

Rates are in FLOP/s, or bytes/s for copies. Times are in ms of a step unless a field says otherwise.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ladder.core import records
from ladder.core.errors import UserError
from ladder.core.options import declare_option
from ladder.core.records import Fields, Record, locate_problem, number_between, size_between, text_matching
from ladder.core.text import make_slug
from ladder.plan import content
from ladder.receipts import kernel_families
from ladder.results import store
from ladder.results.file import Phase
from ladder.studies import frame
from ladder.studies.frame import RungCase, StudyFile

FAMILIES = (kernel_families.FORWARD, kernel_families.DGRAD, kernel_families.WGRAD)
KINDS = dict(zip(("forward", "input gradient", "weight gradient"), FAMILIES, strict=True))
UNCLEAR = (kernel_families.UNTOLD, kernel_families.SGEMM)  # their time is charged to each kind
CONVOLUTIONS, OTHERS, IDLE = "convolutions", "other kernels", "nothing runs"
PARTS = (*KINDS, CONVOLUTIONS, OTHERS)  # of a step, which a trace can tell apart
COPY = "copy"
CEILINGS = (COPY, "matmul bf16", "matmul tf32", "matmul fp32")
CEILING = {"bf16": "matmul bf16", "fp16": "matmul bf16", "fp32": "matmul tf32"}  # cuDNN may use TF32 for FP32
NARROW = 4  # most channels at which a convolution can merge with the pass beside it: from and to RGB
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}
# FLOP/s that a BF16 channels_last convolution of 3x3 kernels reaches from a batch of 8 and 64 channels up, by machine.
LEAST = {"nvidia-h200": {"forward": 340e12, "input gradient": 290e12, "weight gradient": 290e12}}

_SHAPE = r"([1-9]\d{0,5}x[1-9]\d{0,5}x[1-9]\d{0,5}x[1-9]\d{0,5})"
CONVOLUTION = (
    rf"({'|'.join(KINDS)}), {_SHAPE} \* {_SHAPE}, stride ([1-9]), padding (\d\d?), (bf16|fp16|fp32|fp64)"
    r" (channels_last|nchw)"
)
ConvolutionName = Annotated[str, text_matching(CONVOLUTION, "a convolution")]
RateName = Annotated[str, text_matching(r"[A-Za-z0-9 ,.*_x-]{1,120}", "the name of a rate")]
Speed = Annotated[float, number_between(1e3, 1e18)]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """A convolution as cuDNN computes it; ``image`` [N, I, H, W] is the side that ``weight`` [O, I, k, k] slides over.

    A transposed convolution is the input gradient of its mirror image.
    """

    kind: str
    image: Shape
    weight: Shape
    stride: int
    padding: int
    dtype: str

    @property
    def result(self) -> Shape:  # of the other side, [N, O, H', W']
        (n, _, h, w), (o, _, k, l), margin = self.image, self.weight, 2 * self.padding
        return n, o, (h + margin - k) // self.stride + 1, (w + margin - l) // self.stride + 1

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.result) * math.prod(self.weight[1:])

    @property
    def is_narrow(self) -> bool:
        return min(self.weight[:2]) <= NARROW

    @property
    def is_pointwise(self) -> bool:
        return self.weight[-1] == 1

    @property
    def bytes(self) -> int:
        """Return the bytes of the three tensors. A narrow convolution omits its wide side: another pass moves it."""
        sides = math.prod(self.image), math.prod(self.result)
        return SIZES[self.dtype] * (math.prod(self.weight) + (min(sides) if self.is_narrow else sum(sides)))

    def key(self, layout: str) -> str:
        """Return the name of its rate in result files. Equal texts mean equal measurements."""
        shapes = " * ".join("x".join(map(str, shape)) for shape in (self.image, self.weight))
        return f"{self.kind}, {shapes}, stride {self.stride}, padding {self.padding}, {self.dtype} {layout}"


def parse_op(name: str) -> Op:
    """Return the convolution of a name, as `Op.key` writes it. Raises ValueError if it has no result."""
    match = re.fullmatch(CONVOLUTION, name)
    assert match is not None, name
    kind, image, weight, stride, padding, dtype, _ = match.groups()
    shapes = [tuple(map(int, shape.split("x"))) for shape in (image, weight)]
    op = Op(kind, shapes[0], shapes[1], int(stride), int(padding), dtype)
    if min(op.result) < 1:
        raise ValueError(f"{name} has no result")
    return op


class Options(frame.Options):
    """The options of `ladder doctor --roofline`."""

    rung: Annotated[records.Name | None, declare_option("This rung, with all below it.")] = None
    ladder: Annotated[str, declare_option("The ladder of the rung.", metavar="NAME|FILE")] = "full"


class Work(Record):
    """The work of one run of a phase that a file stores: the number of each convolution, and bytes by purpose."""

    convolutions: Annotated[dict[ConvolutionName, records.Count], size_between(10_000)]
    matmul_flops: records.Amount
    matmul_bytes: records.Bytes
    bytes: Annotated[dict[records.Line, records.Bytes], size_between(32)]


class Rate(Record):
    """A rate, and who recorded it."""

    value: Speed
    source: records.Line


class Today(Record):
    """The rates of a measurement by name, and the reasons for those that it lacks."""

    rates: Annotated[dict[RateName, Speed], size_between(10_000)]
    skipped: Annotated[dict[RateName, records.Line], size_between(10_000)]
    seconds: records.Seconds


class Kernels(Record):
    """A family of kernels of a traced step: microseconds and kernels a step, and its heaviest kernel."""

    family: records.Line
    us: records.Amount
    kernels: records.Amount
    heaviest: records.Line


class Timed(Record, kw_only=True):
    """A timed and traced step: medians of each phase alone, of a step between events, and by the wall clock.

    One old file has no phases. In `busy_ms` of a traced step any kernel ran.
    """

    phases_ms: Annotated[dict[Phase, records.Ms], size_between(4)]
    step_ms: records.Ms
    wall_ms: records.Ms
    busy_ms: records.Ms
    families: Annotated[list[Kernels], size_between(1000, 1)]
    settings: Fields


class Observed(frame.Observation, kw_only=True):
    """The step of a rung, the rates of the day, and the higher ones on record. `floors_commit`: of `--again`."""

    ANSWER = "step"
    work: Annotated[dict[Phase, Work], size_between(4, 4)] | None = None
    step: Timed | None = None
    today: Today | None = None
    recorded: Annotated[dict[RateName, Rate], size_between(10_000)] = {}
    floors_commit: records.Commit | None = None

    def list_times(self) -> list[float]:
        return [self.step.step_ms] if self.step else []


File = StudyFile[Options, RungCase, Observed]
Works = Mapping[Any, Work]  # by phase


class Lowered(Record):
    """The ms of a part at its ceilings, and the lower ones of a traced step."""

    alone_ms: float
    ms: float
    source: str


class Convolution(Record):
    """The FLOPs of a shape in a step, and its rate."""

    name: str
    flops: float
    rate: float
    source: str


class Group(Record):
    """A part of a step's time beside its part of the floor."""

    ms: float
    floor_ms: float
    of_distance: float | None = None


class Family(Kernels):
    """A family of kernels with its group and its shares of the step and of the distance to the floor."""

    group: str
    of_step: float
    of_distance: float | None


class Measured(Timed, kw_only=True):
    """The timed step beside the floor: families are rows of `Family`."""

    times_light: float
    distance_ms: float
    groups: dict[str, Group]


class Roofline(Record, kw_only=True):
    """What `ladder report --json` prints beside the header; without a measured step the floor alone.

    A phase, and the amortized `step`, have FLOPs, bytes and ms by name; `light_ms` is the floor. `in_step` has the
    parts that a traced step lowered, `recorded` the rates for later floors.
    """

    ladder: str | None
    rung: str
    recipe: Fields
    layout: str
    gpu: str
    ceilings: dict[str, Rate] = {}
    phases: dict[str, dict[str, float]] = {}
    step: dict[str, float] = {}
    in_step: dict[str, Lowered] = {}
    convolutions: list[Convolution] = []
    measured: Measured | None = None
    today: Today | None = None
    recorded: dict[str, float] | None = None
    floors_commit: str | None = None


@dataclass(frozen=True)
class Frozen:
    """The two times that a score stands on, in ms a step, and their files below results/."""

    since: str
    floor_ms: float
    floor_of: str
    base_ms: float  # the strongest step without kernels of ours
    base_of: str


FLOOR_OF = "roofline/nvidia-h200-article-full-fused_modulation.json"
BASE_OF = "ladder/nvidia-h200/article-compile_autotune-20261122T231746Z.json, shifted_resample"
ARTICLE = Frozen("2026-11-24", 7.930263751668179, FLOOR_OF, 24.459283937495968, BASE_OF)
FROZEN = {
    ("nvidia-h200", "f5e814"): ARTICLE
}  # by machine and digest of the workload; scores of all days compare


def find_frozen(machine: str, workload: Fields) -> Frozen | None:
    """Return the frozen times of a machine and workload, None where there are none."""
    return FROZEN.get((machine, content.of_workload(workload)))


def derive_score(step_ms: float, base_ms: float, floor_ms: float | None) -> float | None:
    """Return the speed-of-light score of SOL-ExecBench: 1 at the floor, 0.5 at the base, 0 for an endless step.

    None where it does not exist: no floor is known, or step or base are below it.
    """
    if floor_ms is None or not floor_ms < base_ms or step_ms < floor_ms:
        return None
    return 1 / (1 + (step_ms - floor_ms) / (base_ms - floor_ms))


class Rates:
    """The rates of one GPU by name: a copy, matmuls, convolutions (`Op.key`) and parts of traced steps."""

    def __init__(self, gpu: str) -> None:
        self.gpu = gpu
        self.known: dict[str, Rate] = {}

    def add(self, rates: Mapping[str, float | Rate], source: str = "") -> None:
        """Join rates; those without a source come from ``source``. Only a higher rate replaces a stored rate."""
        for key, value in rates.items():
            rate = value if isinstance(value, Rate) else Rate(value, source)
            if key not in self.known or rate.value > self.known[key].value:
                self.known[key] = rate

    def get_rate(self, key: str) -> Rate:
        """Return the rate of a name, or of a dtype's matmul, which no convolution of that dtype exceeds."""
        if (key := CEILING.get(key, key)) not in self.known:
            why = f"no rate of {key!r} is recorded for {self.gpu}"
            raise UserError(f"{why}: run `ladder doctor --roofline` there")
        return self.known[key]

    def copy_seconds(self, amount: float) -> float:
        return amount / self.get_rate(COPY).value

    def time_convolution(self, op: Op, layout: str) -> tuple[float, str]:
        """Return (seconds, source) of one convolution at its best.

        A measured shape has its own rate, never below `LEAST`. Another shape gets the highest rate of its kind, and
        takes at least as long as copying its tensors. A convolution from or to RGB takes the time of copying its
        narrow side, however slow cuDNN was.
        """
        if op.is_narrow:
            return self.copy_seconds(op.bytes), f"bytes; {self.get_rate(COPY).source}"
        if best := self.known.get(op.key(layout)):
            is_large = op.weight[-1] == 3 and op.image[0] >= 8 and min(op.weight[:2]) >= 64
            if is_large and (op.dtype, layout) == ("bf16", "channels_last"):
                least = LEAST.get(self.gpu, {}).get(op.kind, 0.0)
                best = best if best.value >= least else Rate(least, "facts, low end")
            return op.flops / best.value, best.source
        beginning, end = f"{op.kind}, ", f", {op.dtype} {layout}"
        alike = [rate for key, rate in self.known.items() if key.startswith(beginning) and key.endswith(end)]
        best = max(alike or [self.get_rate(op.dtype)], key=lambda rate: rate.value)
        return max(op.flops / best.value, self.copy_seconds(op.bytes)), f"not measured; {best.source}"


def read_copies(path: Path, gpu: str) -> dict[str, float]:
    """Return the highest rate of a copy in a file of kernels.tuning, or {} for another GPU or another kind of file."""
    from ladder.studies.kernelbench.tuning import NAMES, Tuning

    try:
        result = store.read(path)
    except UserError:
        return {}
    if not isinstance(result, dict) or result.get("kind") not in NAMES or locate_problem(Tuning, result):
        return {}
    runs = [run for row in result["timed"] for run in row["runs"] if run.get("bytes")]
    took = [(run["bytes"], run.get(f"{by}copy_microseconds")) for run in runs for by in ("", "driver_")]
    rates = [size / us * 1e6 for size, us in took if us]
    return {COPY: max(rates)} if rates and make_slug(result["gpu"]) == gpu else {}


def layout_of(recipe: Fields) -> str:
    return "channels_last" if recipe.get("channels_last") else "nchw"


def list_frequencies(workload: Fields) -> dict[str, float]:
    """Return how often each phase runs in a step."""
    pl, r1 = (1 / float(workload[name]) for name in ("pl_interval", "r1_interval"))  # type: ignore[arg-type]
    return {"G_main": 1.0, "D_main": 1.0, "G_pl": pl, "D_r1": r1}


def weigh_ops(works: Works, workload: Fields) -> dict[Op, float]:
    """Return the FLOPs a step of each distinct convolution."""
    weights: dict[Op, float] = {}
    for phase, often in list_frequencies(workload).items():
        for name, times in works[phase].convolutions.items():
            op = parse_op(name)
            weights[op] = weights.get(op, 0.0) + op.flops * times * often
    return weights


def sum_amounts(works: Works, workload: Fields) -> dict[str, float]:
    """Return a step's work by the parts that a trace can tell apart (`PARTS`): FLOPs, and bytes of other kernels."""
    amounts = dict.fromkeys(PARTS, 0.0)
    for op, flops in weigh_ops(works, workload).items():
        for part in () if op.is_pointwise else (op.kind, CONVOLUTIONS):
            amounts[part] += flops
    often = list_frequencies(workload)
    amounts[OTHERS] = sum(sum(works[phase].bytes.values()) * times for phase, times in often.items())
    return amounts


def name_rate(part: str, amount: float, recipe: Fields) -> str:
    """Return the name of a traced step's rate in result files."""
    what = "bytes" if part == OTHERS else "FLOPs"
    return f"step of {amount:.0f} {what}, {part}, {recipe['precision']} {layout_of(recipe)}"


def group_of(row: Kernels) -> str:
    return CONVOLUTIONS if kernel_families.is_convolution(row.family) else OTHERS


def derive_step_rates(
    amounts: Mapping[str, float], rows: Iterable[Kernels], recipe: Fields, matmul: float
) -> dict[str, float]:
    """Return the rates of a traced step by `name_rate`. The time of a kind of convolution is an upper limit.

    A convolution's rate above the matmul rate is left out: some of its kernels then had names of other kernels.
    """
    ms = dict.fromkeys(PARTS, 0.0)
    for row in rows:
        for part in (group_of(row), *(kind for kind in KINDS if row.family in (KINDS[kind], *UNCLEAR))):
            ms[part] += row.us / 1000
    rates = {part: 1000 * amount / ms[part] for part, amount in amounts.items() if amount and ms[part]}
    fitting = [part for part in rates if part == OTHERS or rates[part] <= matmul]
    return {name_rate(part, amounts[part], recipe): rates[part] for part in fitting}


def split_distance(timed: Timed, step: dict[str, float]) -> Measured:
    """Return the timed step, and where its time beyond the floor goes: by group, and by family of kernels.

    Other kernels have the floor of bytes, matmuls and 1x1 convolutions, as cuDNN's kernels for these are named as
    matmuls. Inside a group the floor is allotted to families in proportion to their time.
    """
    gap = timed.step_ms - step["light_ms"]
    took = {
        name: sum(row.us for row in timed.families if group_of(row) == name) / 1000
        for name in (CONVOLUTIONS, OTHERS)
    }
    pairs = {
        CONVOLUTIONS: (took[CONVOLUTIONS], step["convolutions_ms"] - step["pointwise_ms"]),
        OTHERS: (took[OTHERS], step["bytes_ms"] + step["matmul_ms"] + step["pointwise_ms"]),
        IDLE: (max(0.0, timed.step_ms - timed.busy_ms), 0.0),
    }
    families: list[Kernels] = []
    for row in timed.families:
        whole, floor = pairs[group_of(row)]
        ms = row.us / 1000
        beyond = ms * (1 - floor / whole) if whole else 0.0
        of_distance = beyond / gap if gap else None
        shares = group_of(row), ms / timed.step_ms, of_distance
        families.append(Family(*(*msgspec.structs.astuple(row), *shares)))
    groups = {name: Group(*pair, (pair[0] - pair[1]) / gap if gap else None) for name, pair in pairs.items()}
    own = msgspec.structs.asdict(timed) | {"families": families, "groups": groups}
    return Measured(**own, times_light=timed.step_ms / step["light_ms"], distance_ms=gap)


def derive_floor(base: Roofline, works: Works, workload: Fields, rates: Rates) -> Roofline:
    """Return the record with the floor of each phase and of the amortized step, and every rate that it uses.

    Raises UserError if a rate that is needed is not on record.
    """
    often, amounts = list_frequencies(workload), sum_amounts(works, workload)
    weights = dict(sorted(weigh_ops(works, workload).items(), key=lambda item: -item[1]))
    seconds = {op: rates.time_convolution(op, base.layout) for op in weights}
    times: dict[str, dict[str, float]] = {}  # ms of a run of each phase at the ceilings
    flops: dict[str, int] = {}
    for phase in often:
        work, ms = works[phase], dict.fromkeys((*KINDS, *(f"1x1 {kind}" for kind in KINDS)), 0.0)
        ops = [(parse_op(name), n) for name, n in work.convolutions.items()]
        for op, n in ops:
            ms[f"1x1 {op.kind}" if op.is_pointwise else op.kind] += 1000 * n * seconds[op][0]
        ms["bytes"] = 1000 * rates.copy_seconds(sum(work.bytes.values()))
        computed = work.matmul_flops / rates.get_rate("fp32").value
        ms["matmul"] = 1000 * max(computed, rates.copy_seconds(work.matmul_bytes))
        times[phase], flops[phase] = ms, sum(op.flops * n for op, n in ops)
    alone = {part: sum(times[phase][part] * n for phase, n in often.items()) for part in times["G_main"]}
    factors = dict.fromkeys(alone, 1.0)  # by which the traced step lowers these times
    lowered: dict[str, Lowered] = {}
    for part in PARTS:
        own = [part]
        if part not in KINDS:
            own = [each for each in alone if (each in KINDS) == (part == CONVOLUTIONS)]
        if rate := rates.known.get(name_rate(part, amounts[part], base.recipe)):
            before, after = (
                sum(alone[each] * factors[each] for each in own),
                1000 * amounts[part] / rate.value,
            )
            if after < before:
                factors |= {each: factors[each] * after / before for each in own}
                lowered[part] = Lowered(before, after, rate.source)
    peak = rates.get_rate(str(base.recipe["precision"])).value
    phases: dict[str, dict[str, float]] = {}
    for phase in often:
        ms = {part: time * factors[part] for part, time in times[phase].items()}
        kinds = {kind: ms[kind] + ms[f"1x1 {kind}"] for kind in KINDS}
        moved = works[phase].bytes
        phases[phase] = {
            "flops": flops[phase],
            **{f"{kind.replace(' ', '_')}_ms": value for kind, value in kinds.items()},
            "convolutions_ms": sum(kinds.values()),
            "pointwise_ms": sum(ms[f"1x1 {kind}"] for kind in KINDS),
            **{f"{purpose.replace(' ', '_')}_bytes": value for purpose, value in moved.items()},
            "bytes": sum(moved.values()),
            "bytes_ms": ms["bytes"],
            "matmul_ms": ms["matmul"],
            "light_ms": sum(ms.values()),
            "peak_ms": 1000 * flops[phase] / peak
            + ms["bytes"]
            + ms["matmul"],  # convolutions at the matmul rate
        }
    names = phases["G_main"]
    return msgspec.structs.replace(
        base,
        ceilings={key: rates.known[key] for key in CEILINGS if key in rates.known},
        phases=phases,
        step={key: sum(phases[each].get(key, 0.0) * n for each, n in often.items()) for key in names},
        in_step=lowered,
        convolutions=[
            Convolution(op.key(base.layout), weights[op], op.flops / took, source)
            for op, (took, source) in seconds.items()
        ],
    )


def derive_roofline(file: File) -> Roofline:
    """Return the floor and the distance of a file; of a rung that was not observed only what was planned.

    Raises UserError if a rate that is needed is not in the file.
    """
    ((rung, case),) = file.cases.items()
    layout, gpu = layout_of(case.recipe), file.machine.name
    base = Roofline(ladder=file.ladder, rung=rung, recipe=case.recipe, layout=layout, gpu=gpu)
    each = file.observed.get(rung, Observed())
    if each.work is None or each.step is None or each.today is None or file.workload is None:
        return base
    rates = Rates(gpu)
    rates.add(each.today.rates, "today")  # first, so that they keep this source
    rates.add(each.recorded)
    peak = rates.get_rate(str(case.recipe["precision"])).value
    traced = derive_step_rates(sum_amounts(each.work, file.workload), each.step.families, case.recipe, peak)
    rates.add(traced, "today")
    floor = derive_floor(base, each.work, file.workload, rates)
    own = f"{'-'.join(map(make_slug, list_names(file)))}.json"  # later floors know what the file replaced
    recorded = Counter(each.today.rates | traced)
    recorded |= Counter({key: rate.value for key, rate in each.recorded.items() if rate.source == own})
    return msgspec.structs.replace(
        floor,
        measured=split_distance(each.step, floor.step),
        today=each.today,
        recorded=dict(sorted(recorded.items())),
        floors_commit=each.floors_commit,
    )


def list_names(file: File) -> list[str]:
    """Return the words of a file's name: machine, workload, ladder and rung."""
    return [file.machine.name, str((file.workload or {}).get("name")), file.ladder or "", *file.cases]
