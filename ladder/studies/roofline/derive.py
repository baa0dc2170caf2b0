"""What follows from rates and counted work: the floor of a step, and where its distance to the measured step lies.

A ceiling is measured alone, on inputs that come from memory, in a loop that heats the GPU. In a step the same kernel
may find its inputs in the L2 cache and higher clocks. So each part of a step also has a rate from the trace: the work
in its floor over the time in which it ran. If it is above the ceilings' rate, that part of the floor takes the traced
time. So a floor is never above the measurement.

The highest of four sources counts: earlier facts (`ceilings.yaml`), earlier results of the same GPU
(`results/roofline/`), copies from its kernels' tuning (`results/kernels/*-tuning.json`), and today's measurement. So
the floor can only come down: a bad day or a throttled card never make a step look closer to the limit than it is.
docs/profile.md explains what counts and what does not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ladder.base import yamlfile
from ladder.base.errors import UserError
from ladder.base.text import slug
from ladder.core.records import Fields
from ladder.plan import content
from ladder.receipts import kernel_families
from ladder.results import store as results
from ladder.studies.roofline.record import (
    CEILING,
    CEILINGS,
    CONVOLUTIONS,
    COPY,
    IDLE,
    KINDS,
    OTHERS,
    PARTS,
    Convolution,
    Family,
    File,
    Group,
    Kernels,
    Lowered,
    Measured,
    Observed,
    Op,
    Rate,
    Roofline,
    Timed,
    Work,
    parse_op,
)

FACTS = Path(__file__).resolve().parent / "ceilings.yaml"
UNCLEAR = (
    kernel_families.UNTOLD,
    kernel_families.SGEMM,
)  # of unknown kind: their time is charged to each kind
POINTWISE = {f"1x1 {kind}": kind for kind in KINDS}

Amounts = dict[str, float]  # by part: FLOPs a step, or bytes for other kernels
Works = Mapping[Any, Work]  # by phase


# --- the score: two frozen times, so that scores of different days compare --------------------------------------------


@dataclass(frozen=True)
class Frozen:
    """The two times that a score stands on, in ms a step."""

    machine: str
    work: str  # digest of the workload's fields
    since: str
    floor_ms: float
    floor_of: str  # the file below results/, as the next one
    base_ms: float
    base_of: str


# The base is plain PyTorch under torch.compile with autotuning: the strongest step without kernels of ours.
FROZEN = (
    Frozen(
        machine="nvidia-h200",
        work="f5e814",  # article
        since="2026-11-24",
        floor_ms=7.930263751668179,
        floor_of="roofline/nvidia-h200-article-full-fused_modulation.json",
        base_ms=24.459283937495968,
        base_of="ladder/nvidia-h200/article-compile_autotune-20261122T231746Z.json, shifted_resample",
    ),
)


def find_frozen(machine: str, workload: Fields) -> Frozen | None:
    """Return the frozen times of a machine and workload, None where there are none."""
    work = content.of_workload(workload)
    return next((each for each in FROZEN if (each.machine, each.work) == (machine, work)), None)


def derive_score(step_ms: float, base_ms: float, floor_ms: float | None) -> float | None:
    """Return the speed-of-light score of SOL-ExecBench: 1 at the floor, 0.5 at the base, 0 for an endless step.

    None where it does not exist: no floor is known, or step or base are below it.
    """
    if floor_ms is None or not floor_ms < base_ms or step_ms < floor_ms:
        return None
    return 1 / (1 + (step_ms - floor_ms) / (base_ms - floor_ms))


# --- rates ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """Facts of kinds of convolutions: FLOP/s between ``low`` and ``high``, depending on the shape.

    ``low`` holds for this kernel from this batch and these channels up.
    """

    kinds: list[str]
    dtype: str
    layout: str
    kernel: int
    batch: int
    channels: int
    low: float
    high: float

    def is_for(self, op: Op) -> bool:
        """Return whether the facts were measured on shapes like this shape."""
        batch, channels = op.image[0], min(op.weight[:2])
        return op.weight[-1] == self.kernel and batch >= self.batch and channels >= self.channels


@dataclass
class Rates:
    """The rates of one GPU. ``known``: by name, see `Op.key`; ``ranges`` of kinds of convolutions."""

    gpu: str
    known: dict[str, Rate] = field(default_factory=dict)
    ranges: list[Range] = field(default_factory=list)

    def add(self, rates: Mapping[str, float], source: str) -> None:
        """Join rates from ``source``. Only a higher rate replaces a stored rate."""
        self.join({key: Rate(value, source) for key, value in rates.items()})

    def join(self, rates: Mapping[str, Rate]) -> None:
        for key, rate in rates.items():
            if key not in self.known or rate.value > self.known[key].value:
                self.known[key] = rate

    def add_facts(self) -> None:
        """Join the committed facts of this GPU, if there are any."""
        if facts := read_facts().get(self.gpu):
            self.add({key: float(value) for key, value in facts["rates"].items()}, "facts")
            self.ranges = [
                Range(**each | {key: float(each[key]) for key in ("low", "high")})
                for each in facts["convolutions"]
            ]

    def copy_seconds(self, amount: float) -> float:
        return amount / self._need(COPY).value

    def ceiling(self, dtype: str) -> Rate:
        """Return the matmul rate, which no convolution of this dtype exceeds."""
        return self._need(CEILING.get(dtype, dtype))

    def convolution(self, op: Op, layout: str) -> tuple[float, str]:
        """Return (seconds, source) of one convolution at its best.

        A measured shape has its own rate, never below the low end of the facts that cover it. Another shape gets the
        highest rate of its kind, and takes at least as long as copying its tensors. A convolution from or to RGB
        takes the time of copying its narrow side, however slow cuDNN was.
        """
        if op.is_narrow:
            return self.copy_seconds(op.bytes), f"bytes; {self._need(COPY).source}"
        facts = next(
            (
                each
                for each in self.ranges
                if op.kind in each.kinds and (each.dtype, each.layout) == (op.dtype, layout)
            ),
            None,
        )
        if measured := self.known.get(op.key(layout)):
            low = facts.low if facts and facts.is_for(op) else 0.0
            best = measured if measured.value >= low else Rate(low, "facts, low end")
            return op.flops / best.value, best.source
        beginning, end = f"{op.kind}, ", f", {op.dtype} {layout}"
        alike = [rate for key, rate in self.known.items() if key.startswith(beginning) and key.endswith(end)]
        if facts:
            alike.append(Rate(facts.high, "facts, high end"))
        best = max(alike or [self.ceiling(op.dtype)], key=lambda rate: rate.value)
        seconds = max(op.flops / best.value, self.copy_seconds(op.bytes))
        return seconds, f"not measured; {best.source}"

    def _need(self, key: str) -> Rate:
        if key not in self.known:
            raise UserError(
                f"no rate of {key!r} is recorded for {self.gpu}: run `ladder doctor --roofline` there"
            )
        return self.known[key]


@functools.cache
def read_facts() -> dict[str, Any]:
    """Return the committed facts by name of the GPU. YAML reads 774e12 as text."""
    return yamlfile.read(FACTS)


def read_copies(path: Path, gpu: str) -> dict[str, float]:
    """Return the highest rate of a copy in a file of kernels.tuning, or {} for another GPU or another kind of file."""
    from ladder.studies.kernelbench.tuning import NAMES, locate_fault

    try:
        result = results.read(path)
    except UserError:
        return {}
    is_tuning = isinstance(result, dict) and result.get("kind") in NAMES and locate_fault(result) is None
    if not is_tuning or slug(result["gpu"]) != gpu:
        return {}
    times = [
        (run["bytes"], run[key])
        for row in result["timed"]
        for run in row["runs"]
        for key in ("copy_microseconds", "driver_copy_microseconds")
        if run.get("bytes") and run.get(key)
    ]
    return {COPY: max(moved / us * 1e6 for moved, us in times)} if times else {}


# --- work -------------------------------------------------------------------------------------------------------------


def list_frequencies(workload: Fields) -> dict[str, float]:
    """Return how often each phase runs in a step."""
    often = {"G_main": 1.0, "D_main": 1.0}
    for phase, name in (("G_pl", "pl_interval"), ("D_r1", "r1_interval")):
        often[phase] = 1 / float(workload[name])  # type: ignore[arg-type]
    return often


def weigh_ops(works: Works, workload: Fields) -> dict[Op, float]:
    """Return the FLOPs a step of each distinct convolution."""
    weights: dict[Op, float] = {}
    for phase, often in list_frequencies(workload).items():
        for name, times in works[phase].convolutions.items():
            op = parse_op(name)
            weights[op] = weights.get(op, 0.0) + op.flops * times * often
    return weights


def sum_amounts(works: Works, workload: Fields) -> Amounts:
    """Return a step's work by the parts that a trace can tell apart (`PARTS`), in FLOPs.

    Other kernels count in bytes. 1x1 convolutions are among them: cuDNN's kernels for them are named as matmuls.
    """
    amounts = dict.fromkeys(PARTS, 0.0)
    for op, flops in weigh_ops(works, workload).items():
        if not op.is_pointwise:
            amounts[op.kind] += flops
            amounts[CONVOLUTIONS] += flops
    often = list_frequencies(workload)
    amounts[OTHERS] = sum(sum(works[phase].bytes.values()) * times for phase, times in often.items())
    return amounts


# --- the traced step --------------------------------------------------------------------------------------------------


def name_rate(part: str, amount: float, recipe: Fields) -> str:
    """Return the name of a traced step's rate in result files."""
    what = "bytes" if part == OTHERS else "FLOPs"
    return f"step of {amount:.0f} {what}, {part}, {recipe['precision']} {layout_of(recipe)}"


def sum_parts(rows: Iterable[Kernels]) -> dict[str, float]:
    """Return each part's ms in a traced step, from its families of kernels. A kind's time is an upper limit."""
    took = dict.fromkeys(PARTS, 0.0)
    for row in rows:
        ms, name = row.us / 1000, row.family
        took[CONVOLUTIONS if kernel_families.is_convolution(name) else OTHERS] += ms
        for kind, own in KINDS.items():
            took[kind] += ms if name == own or name in UNCLEAR else 0.0
    return took


def derive_step_rates(
    amounts: Amounts, rows: Iterable[Kernels], recipe: Fields, matmul: float
) -> dict[str, float]:
    """Return the rates of a traced step by `name_rate`.

    A convolution's rate above the matmul rate is left out: some of its kernels then had names of other kernels.
    """
    took = sum_parts(rows)
    rates = {}
    for part, amount in amounts.items():
        if amount and took[part]:
            rate = 1000 * amount / took[part]
            if part == OTHERS or rate <= matmul:
                rates[name_rate(part, amount, recipe)] = rate
    return rates


def lower_parts(
    alone_ms: dict[str, float], amounts: Amounts, recipe: Fields, known: Mapping[str, Rate]
) -> tuple[dict[str, float], dict[str, Lowered]]:
    """Return by which factors each kind and the other kernels beat ``alone_ms``, and the reasons for factors below 1.

    ``alone_ms`` is the floor of a step by the ceilings. ``known`` are rates, each with its source.
    """
    factors: dict[str, float] = dict.fromkeys((*KINDS, OTHERS), 1.0)
    reasons: dict[str, Lowered] = {}
    for part in PARTS:
        rate = known.get(name_rate(part, amounts[part], recipe))
        mine = KINDS if part == CONVOLUTIONS else (part,)
        before = sum(alone_ms[each] * factors[each] for each in mine)
        after = 1000 * amounts[part] / rate.value if rate else before
        if rate and after < before:
            for each in mine:
                factors[each] *= after / before
            reasons[part] = Lowered(before, after, rate.source)
    return factors, reasons


# --- the floor --------------------------------------------------------------------------------------------------------


def layout_of(recipe: Fields) -> str:
    return "channels_last" if recipe.get("channels_last") else "nchw"


def derive_floor(base: Roofline, works: Works, workload: Fields, rates: Rates) -> Roofline:
    """Return the record with the floor of each phase and of the amortized step, and every rate that it uses.

    Raises:
        UserError: a rate that is needed is not on record.
    """
    layout, precision, often = base.layout, str(base.recipe["precision"]), list_frequencies(workload)
    times = {phase: _time_phase(works[phase], layout, rates) for phase in often}
    alone = {part: sum(times[phase][part] * n for phase, n in often.items()) for part in times["G_main"]}
    alone[OTHERS] = sum(alone[part] for part in ("bytes", "matmul", *POINTWISE))
    amounts = sum_amounts(works, workload)
    factors, reasons = lower_parts(alone, amounts, base.recipe, rates.known)
    ceiling = rates.ceiling(precision).value
    phases = {phase: _derive_phase(works[phase], times[phase], factors, ceiling) for phase in often}
    convolutions = []
    for op, flops in sorted(weigh_ops(works, workload).items(), key=lambda item: -item[1]):
        seconds, source = rates.convolution(op, layout)
        convolutions.append(Convolution(op.key(layout), flops, op.flops / seconds, source))
    return msgspec.structs.replace(
        base,
        ceilings={key: rates.known[key] for key in CEILINGS if key in rates.known},
        phases=phases,
        step={
            key: sum(phases[phase].get(key, 0.0) * n for phase, n in often.items())
            for key in phases["G_main"]
        },
        in_step=reasons,
        convolutions=convolutions,
    )


def _time_phase(work: Work, layout: str, rates: Rates) -> dict[str, float]:
    """Return milliseconds of a phase at the ceilings: each kind of convolution, 1x1 convolutions, bytes and matmuls."""
    times = dict.fromkeys((*KINDS, *POINTWISE), 0.0)
    for name, n in work.convolutions.items():
        op = parse_op(name)
        times[f"1x1 {op.kind}" if op.is_pointwise else op.kind] += 1000 * n * rates.convolution(op, layout)[0]
    computed = work.matmul_flops / rates.ceiling("fp32").value
    return times | {
        "bytes": 1000 * rates.copy_seconds(sum(work.bytes.values())),
        "matmul": 1000 * max(computed, rates.copy_seconds(work.matmul_bytes)),
    }


def _derive_phase(
    work: Work, times: dict[str, float], factors: dict[str, float], ceiling: float
) -> dict[str, float]:
    """Return FLOPs, bytes and milliseconds of a phase. ``peak_ms`` has convolutions at the matmul rate."""
    others = factors[OTHERS]
    flops = sum(parse_op(name).flops * n for name, n in work.convolutions.items())
    pointwise_ms = {kind: times[name] * others for name, kind in POINTWISE.items()}
    kinds = {kind: times[kind] * factors[kind] + pointwise_ms[kind] for kind in KINDS}
    copied, multiplied, convolved = times["bytes"] * others, times["matmul"] * others, sum(kinds.values())
    return {
        "flops": flops,
        **{f"{kind.replace(' ', '_')}_ms": value for kind, value in kinds.items()},
        "convolutions_ms": convolved,
        "pointwise_ms": sum(pointwise_ms.values()),
        **{f"{what.replace(' ', '_')}_bytes": value for what, value in work.bytes.items()},
        "bytes": sum(work.bytes.values()),
        "bytes_ms": copied,
        "matmul_ms": multiplied,
        "light_ms": convolved + copied + multiplied,
        "peak_ms": 1000 * flops / ceiling + copied + multiplied,
    }


# --- the distance -----------------------------------------------------------------------------------------------------


def split_distance(timed: Timed, step: dict[str, float]) -> Measured:
    """Return where the time beyond the floor goes: by group, and by family of kernels.

    Each group has its part of the floor: convolutions theirs, other kernels the bytes and matmuls, and idle time
    none. 1x1 convolutions count as other kernels, as cuDNN's kernels for them are named as matmuls. Inside a group
    the floor is allotted to families in proportion to their time.
    """
    gap = timed.step_ms - step["light_ms"]
    took = sum_parts(timed.families)
    convolved, others = took[CONVOLUTIONS], took[OTHERS]
    groups = {
        CONVOLUTIONS: (convolved, step["convolutions_ms"] - step["pointwise_ms"]),
        OTHERS: (others, step["bytes_ms"] + step["matmul_ms"] + step["pointwise_ms"]),
        IDLE: (max(0.0, timed.step_ms - timed.busy_ms), 0.0),
    }
    rows = []
    for row in timed.families:
        group = CONVOLUTIONS if kernel_families.is_convolution(row.family) else OTHERS
        ms, floor = groups[group]
        beyond = row.us / 1000 * (1 - floor / ms) if ms else 0.0
        share, of_distance = row.us / 1000 / timed.step_ms, beyond / gap if gap else None
        rows.append(Family(row.family, row.us, row.kernels, row.heaviest, group, share, of_distance))
    shares = {
        name: Group(ms, floor, (ms - floor) / gap if gap else None) for name, (ms, floor) in groups.items()
    }
    stored = msgspec.structs.asdict(timed) | {"families": rows}
    return Measured(**stored, times_light=timed.step_ms / step["light_ms"], distance_ms=gap, groups=shares)


def list_below(groups: Mapping[str, Group]) -> list[str]:
    """Return the groups that took less than their floor, which `lower_parts` should prevent."""
    return [name for name, group in groups.items() if group.ms < group.floor_ms * (1 - 1e-9)]


# --- a file -----------------------------------------------------------------------------------------------------------


def describe_rung(file: File) -> Roofline:
    """Return the record of a file without a floor."""
    rung, case = next(iter(file.cases.items()))
    return Roofline(
        ladder=file.ladder,
        rung=rung,
        recipe=case.recipe,
        layout=layout_of(case.recipe),
        gpu=file.machine.name,
    )


def derive_roofline(file: File) -> Roofline:
    """Return the floor and the distance of a file; of a rung that was not observed only what was planned.

    Raises:
        UserError: a rate that is needed is not in the file.
    """
    base = describe_rung(file)
    each = file.observed.get(base.rung, Observed())
    if each.work is None or each.step is None or each.today is None or file.workload is None:
        return base
    rates = Rates(base.gpu)
    rates.add(each.today.rates, "today")  # first, so that they keep this source
    rates.join(each.recorded)
    rates.add_facts()
    traced = derive_step_rates(
        sum_amounts(each.work, file.workload),
        each.step.families,
        base.recipe,
        rates.ceiling(str(base.recipe["precision"])).value,
    )
    rates.add(traced, "today")
    result = derive_floor(base, each.work, file.workload, rates)
    return msgspec.structs.replace(
        result,
        measured=split_distance(each.step, result.step),
        today=each.today,
        recorded=join_recorded(file, each, traced),
        floors_commit=each.floors_commit,
    )


def join_recorded(file: File, each: Observed, traced: dict[str, float]) -> dict[str, float]:
    """Return the rates that a file has for later floors: its own, and those of the file that it replaced."""
    assert each.today is not None
    own = f"{'-'.join(map(slug, list_names(file)))}.json"
    replaced = {key: rate.value for key, rate in each.recorded.items() if rate.source == own}
    sources = (each.today.rates, traced, replaced)
    keys = sorted(set().union(*sources))
    return {key: max(source[key] for source in sources if key in source) for key in keys}


def list_names(file: File) -> list[str]:
    """Return the words of a file's name: machine, workload, ladder and rung."""
    name = str((file.workload or {}).get("name"))
    return [file.machine.name, name, file.ladder or "", *file.cases]
