"""The records of `ladder scale`, which are the schema of its file, and pure functions that derive its figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace

from ladder.base.records import needed, optional, plain, record, rule_of
from ladder.base.rules import alike, items, number, one_of
from ladder.machine import environment, neighbours
from ladder.results import plausible, publishable
from ladder.results import store as results
from ladder.results import values as v
from ladder.results.schema import RATE
from ladder.results.types import Absent, Merged, Plain, StudyHeader
from ladder.stats import estimates

WEAK, STRONG = "weak", "strong"
DERIVED = ("step_ms", "images_per_s", "efficiency", "low", "high", "comm_ms", "exposed_ms", "peak_bytes")
GPUS = number(1, 4096, whole=True)
BATCH = number(1, 2**20, whole=True)
GENERATIONS, VISITS = number(1, 100, whole=True), number(1, 1000, whole=True)  # what the command takes
GENERATION = number(0, 9_999, whole=True)  # of a hundred merged runs
NOT_MEASURED = "not measured"  # the reason of a point that can be, and has no runs yet
FEWEST = results.FEWEST_ROUNDS  # generations of a point that is quoted
FEW_OF = f"fewer than {FEWEST} generations of "  # the beginning of a note that names ways


@record
class Run:
    """One process group of one generation.

    A sample is the slowest rank's cycle. Communication is that of a profiled step, the least of all ranks: one that
    waits for another waits inside NCCL's kernel. The exposed part is the most of all ranks.
    """

    generation: int = needed(GENERATION)
    samples_ms: list[float] = needed(items(v.MS, 100_000, least=1))
    gpu_ms: float | None = needed(v.MS)
    comm_ms: float | None = needed(v.AMOUNT)
    exposed_ms: float | None = needed(v.AMOUNT)
    peak_reserved_bytes: int | None = needed(v.BYTES)
    peak_allocated_bytes: int | None = needed(v.BYTES)
    device_used_bytes: int | None = needed(v.BYTES)
    peak_rss_bytes: int = needed(v.BYTES)
    prepare_s: float = needed(v.SECONDS)
    rejected: int = needed(v.COUNT)
    others_cpu: float | None = needed(v.SHARE)


@record
class Point:
    """One way on so many GPUs, its process groups, and the figures that follow from them.

    `batch` is the total. Efficiency compares with the same way on the fewest GPUs: 1 is perfect.
    """

    way: str = needed(v.PART)
    scaling: str = needed(one_of(WEAK, STRONG))
    gpus: int = needed(GPUS)
    batch: int = needed(BATCH)
    recipe: Plain = needed(v.RECIPE)
    status: str = needed(v.STATUS)
    reason: str | None = needed(v.TEXT)
    runs: list[Run] = needed(items(rule_of(Run), 1000))
    step_ms: float | None = needed(v.MS)
    images_per_s: float | None = needed(v.AMOUNT)
    efficiency: float | None = needed(RATE)
    low: float | None = needed(v.BOUND)
    high: float | None = needed(v.BOUND)
    comm_ms: float | None = needed(v.AMOUNT)
    exposed_ms: float | None = needed(v.AMOUNT)
    peak_bytes: float | None = needed(v.AMOUNT)


@record
class Proof:
    """The receipts and the parity of one way on several GPUs, whose batch is one group a rank."""

    way: str = needed(v.PART)
    gpus: int = needed(GPUS)
    batch: int = needed(BATCH)
    status: str = needed(v.STATUS)
    reason: str | None = needed(v.TEXT)
    parity: str | None = needed(v.TEXT)
    lines: list[str] = needed(v.NOTES)


@record
class Protocol:
    """How the points were measured, and why the figures must not be quoted."""

    generations: int = needed(GENERATIONS)
    visits: int = needed(VISITS)
    seed: int = needed(v.COUNT)
    backend: str = needed(one_of("nccl", "gloo"))
    notes: list[str] = needed(v.NOTES)


@record
class Result(StudyHeader):
    """A result of `ladder scale`."""

    kind: str = needed(one_of("scaled"))
    protocol: Protocol = needed(rule_of(Protocol))
    proofs: list[Proof] = needed(items(rule_of(Proof), 100))
    points: list[Point] = needed(items(rule_of(Point), 1000, least=1))
    merged: list[Merged] | Absent = optional(items(rule_of(Merged), 100, least=2))


def derive(result: Result) -> Result:
    """Return the result with its figures and notes."""
    points = [_derived(point, fewest_of(point, result.points)) for point in result.points]
    few, seen = short(points), any(point.runs for point in points)
    unproved = sorted({p.way for p in points if p.gpus > 1 and p.runs} - _proved(result.proofs))
    also = [f"{FEW_OF}{', '.join(few)}: not to be quoted"] * bool(few)
    also += [f"parity and receipts of {', '.join(unproved)} were not seen here"] * bool(unproved)
    also += neighbours.marks({neighbours.KEY: run.others_cpu} for point in points for run in point.runs)
    also += environment.said(result.environment or None)
    also += [publishable.HOSTS] * (len({(run.cpu, run.cores) for run in result.merged or []}) > 1)
    # The ways that lack generations are named: other ways of a result that was stopped are whole.
    whole, rounds = result.complete or bool(few), FEWEST if seen else 0
    notes = results.cautions(result.machine.device, rounds, result.dirty, whole, also)
    own = [note for note in result.protocol.notes if note.startswith("simulated")]
    return replace(result, points=points, protocol=replace(result.protocol, notes=[*own, *notes]))


def _proved(proofs: Iterable[Proof]) -> set[str]:
    return {proof.way for proof in proofs if proof.status == "ok"}


def fewest_of(point: Point, points: list[Point]) -> Point:
    """Return the point of the same way and scaling on the fewest GPUs that has runs."""
    alike_ = [p for p in points if (p.way, p.scaling) == (point.way, point.scaling) and p.runs]
    return min(alike_, key=lambda p: p.gpus, default=point)


def paired(point: Point, points: list[Point]) -> int:
    """Return in how many generations a point stands beside that on the fewest GPUs."""
    return len(of_generations(point).keys() & of_generations(fewest_of(point, points)).keys())


def too_few(point: Point, points: list[Point]) -> bool:
    """Return whether a point was measured in too few generations to be quoted."""
    return bool(point.runs) and paired(point, points) < FEWEST


def short(points: list[Point]) -> list[str]:
    """Return the names of the ways with too few generations, with their GPUs if other points have enough."""
    found, scalings = [], {point.scaling for point in points if point.runs}
    for way, scaling in dict.fromkeys((point.way, point.scaling) for point in points):
        mine = [p for p in points if (p.way, p.scaling) == (way, scaling) and p.runs]
        few = [str(point.gpus) for point in mine if too_few(point, points)]
        name = way if len(scalings) == 1 else f"{scaling} {way}"
        if few:
            found.append(name if len(few) == len(mine) else f"{name} on {' and '.join(few)}")
    return found


def of_generations(point: Point) -> dict[int, float]:
    """Return the median ms of a step in each generation."""
    return {run.generation: statistics.median(run.samples_ms) for run in point.runs if run.samples_ms}


def _derived(point: Point, fewest: Point) -> Point:
    own, theirs = of_generations(point), of_generations(fewest)
    if not own:
        return replace(point, **dict.fromkeys(DERIVED))
    step_ms = statistics.median(own.values())
    # Images a second and GPU, relative to the fewest GPUs: one formula for weak and strong scaling.
    unit = (point.batch / point.gpus) / (fewest.batch / fewest.gpus)
    ratios = [unit * ratio for ratio in estimates.paired_ratios(theirs, own)]
    alone = point.gpus == fewest.gpus or len(ratios) < FEWEST
    bounds = None if alone else estimates.log_interval(ratios)
    low, high = bounds or (None, None)
    return replace(
        point,
        step_ms=step_ms,
        images_per_s=1000 * point.batch / step_ms,
        efficiency=statistics.median(ratios) if ratios else None,
        low=low,
        high=high,
        comm_ms=_median(run.comm_ms for run in point.runs),
        exposed_ms=_median(run.exposed_ms for run in point.runs),
        peak_bytes=_median(run.peak_reserved_bytes for run in point.runs),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return statistics.median(known) if known else None


def _named(point: Point) -> str:
    return f"{point.way}, {point.scaling}, {point.gpus} GPUs"


def _impossible(result: Result) -> str | None:
    """Return, in one line, what the command never asks for, or None: a batch, or a point twice."""
    seen: set[tuple[str, str, int]] = set()
    totals = {point.batch for point in result.points if point.scaling == STRONG}
    if len(totals) > 1:
        return f"strong scaling: total batches {' and '.join(map(str, sorted(totals)))}, expected one"
    for point in result.points:
        weak = result.workload["batch"] * point.gpus
        if point.scaling == WEAK and point.batch != weak:
            return f"{_named(point)}: batch {point.batch}, expected {weak}, the workload's on each"
        if (key := (point.way, point.scaling, point.gpus)) in seen:
            return f"{_named(point)}: there twice"
        seen.add(key)
        if (point.status == "ok") != bool(point.runs):
            return f"{_named(point)}: {point.status} {'with' if point.runs else 'without'} a run"
    return None


def contradiction(result: Result) -> str | None:
    """Return, in one line, which numbers do not follow from the runs or are impossible, or None."""
    if problem := _impossible(result):
        return problem
    derived = derive(result)
    for found, wanted in zip(result.points, derived.points, strict=True):
        name = _named(found)
        if len({run.generation for run in found.runs}) < len(found.runs):
            return f"{name}: a generation is there twice"
        for key in DERIVED:
            if not alike(getattr(found, key), getattr(wanted, key)):
                return f"{name}: {key} is not what its runs say"
        share = result.workload | {"batch": max(1, found.batch // found.gpus)}
        least = plausible.floor_ms(plain(result.machine), share)
        if least and any(ms < least[0] for run in found.runs for ms in run.samples_ms):
            return f"{name}: faster than these GPUs can compute"
    return results.missing_note(derived.protocol.notes, result.protocol.notes)
