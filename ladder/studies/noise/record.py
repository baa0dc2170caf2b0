"""The records of `ladder noise`, which are the schema of its file, and pure functions that derive its figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace

from ladder.base.records import needed, plain, record, rule_of
from ladder.base.rules import alike, items, number, one_of
from ladder.base.text import percent
from ladder.machine import environment, neighbours
from ladder.results import check, derive
from ladder.results import store as results
from ladder.results import values as v
from ladder.results.raw import KnownGpu, Round
from ladder.results.schema import LINE
from ladder.results.types import Noise, StudyHeader
from ladder.results.types import Result as Run
from ladder.stats import answers, estimates

WALL, GPU = "wall", "gpu"
CLOCKS, NEIGHBOURS, HOST, NOTHING = "clocks", "neighbours", "host", "nothing that was seen"
UNSTEADY = 0.005  # of the SM clock between visits, from which on it is told as the limit
TWICE = 2.0  # wall time that scatters so many times as GPU time is limited by the host
SCATTER = number(0, 100)


@record
class Clocks:
    """Whether a locked clock was asked for, the clock that was locked, and why none was."""

    asked: bool = needed(v.FLAG)
    locked_mhz: int | None = needed(v.CLOCK)
    reason: str | None = needed(LINE)


@record
class Sight:
    """The changes that one clock can show. All are differences of logarithms: 0.01 is 1%."""

    resolution: float | None = needed(v.FLOOR)  # a change from here on is seen, as a rule
    floor: float | None = needed(v.FLOOR)  # two copies of one program differ by less
    between: float | None = needed(SCATTER)  # scatter of processes, one sd
    inside: float | None = needed(SCATTER)  # scatter of the cycles of a process, one sd
    generations: int = needed(v.COUNT)


@record
class Limit:
    """The limit of one clock, and the numbers that say so."""

    clock: str = needed(one_of(WALL, GPU))
    by: str = needed(one_of(CLOCKS, NEIGHBOURS, HOST, NOTHING))
    sentence: str = needed(LINE)


@record
class Protocol:
    """How the two copies were measured, and why the figures must not be quoted."""

    minutes: float = needed(number(0, 1e6))
    seed: int = needed(v.COUNT)
    notes: list[str] = needed(v.NOTES)


@record
class Result(StudyHeader):
    """A result of `ladder noise`, with the run that it is derived from."""

    kind: str = needed(one_of("noise"))
    rung: str = needed(v.PART)
    protocol: Protocol = needed(rule_of(Protocol))
    clocks: Clocks = needed(rule_of(Clocks))
    run: Run = needed(rule_of(Run))
    wall: Sight = needed(rule_of(Sight))
    gpu_time: Sight | None = needed(rule_of(Sight))
    limits: list[Limit] = needed(items(rule_of(Limit), 2))


def derive_from(result: Result) -> Result:
    """Return the result with every figure that follows from its run."""
    run = result.run
    values = derive.wall_values(run), derive.gpu_values(run)
    wall = _sight(run.noise or {}, values[0], _cycles(run, lambda each: each.samples_ms))
    gpu = None
    if any(each.profiled for each in rounds(run)):
        profiled = _cycles(
            run, lambda each: [cycle.gpu_ms for cycle in each.profiled or () if not each.gpu_void]
        )
        gpu = _sight(run.gpu_noise or {}, values[1], profiled)
    also = neighbours.marks(plain(each) for each in rounds(run)) + environment.said(
        result.environment or None
    )
    also += [note for note in (run.gpu.notes if run.gpu else []) if note not in also]
    also += ["fewer than three generations: nothing is known yet"] * (wall.resolution is None)
    notes = results.cautions(
        result.machine.device, results.FEWEST_ROUNDS, result.dirty, result.complete, also
    )
    return replace(
        result,
        wall=wall,
        gpu_time=gpu,
        limits=limits(run, wall, gpu),
        protocol=replace(result.protocol, notes=notes),
    )


def rounds(run: Run) -> list[Round]:
    """Return all rounds of both copies."""
    return [each for copy in (*run.rungs, *(run.twins or ())) for each in copy.rounds]


Cycles = list[dict[int, list[float]]]  # logarithms of the cycles of each copy, by generation


def _cycles(run: Run, of: Callable[[Round], list[float]]) -> Cycles:
    copies = (*run.rungs, *(run.twins or ()))
    return [{each.round: [*map(math.log, of(each))] for each in derive.counted(copy)} for copy in copies]


def _sight(noise: Mapping[str, Noise], values: derive.Values, cycles: Cycles) -> Sight:
    """Return what a clock can show.

    Few generations may agree by chance. So the scatter of the cycles inside them is a bound, too.
    """
    found = next(iter(noise.values()), None)
    floor, resolution = (found.floor, found.resolution or None) if found else (None, None)
    bound = _bound_inside(cycles)
    if floor is not None and resolution is not None and bound is not None:
        resolution = max(resolution, max(answers.LEAST_DIFFERENCE, bound) + bound)
        floor = max(floor, bound)
    pairs = list(values.values())
    apart: list[float] = []
    if len(pairs) == 2:
        common = pairs[0].keys() & pairs[1].keys()
        apart = [math.log(pairs[0][each] / pairs[1][each]) for each in sorted(common)]
    inside = [statistics.variance(each) for copy in cycles for each in copy.values() if len(each) > 1]
    return Sight(
        resolution=resolution,
        floor=floor,
        between=_rounded(statistics.stdev(apart) / math.sqrt(2)) if len(apart) > 1 else None,
        inside=_rounded(math.sqrt(statistics.mean(inside))) if inside else None,
        generations=len(apart),
    )


def _bound_inside(cycles: Cycles) -> float | None:
    """Return the 95% bound on the difference of both copies that the scatter of their cycles alone leaves.

    Cycles of a generation are paired in order, so the effect of a pass cancels. Returns None without two pairs.
    """
    if len(cycles) != 2:
        return None
    errors: list[tuple[float, int]] = []  # variance of a generation's mean difference, and degrees of freedom
    for at in sorted(cycles[0].keys() & cycles[1].keys()):
        apart = [one - other for one, other in zip(cycles[0][at], cycles[1][at], strict=False)]
        if len(apart) > 1:
            errors.append((statistics.variance(apart) / len(apart), len(apart) - 1))
    if not errors:
        return None
    freedom = sum(each for _, each in errors)
    pooled = sum(variance * each for variance, each in errors) / freedom
    return estimates.t_quantile(0.975, freedom) * math.sqrt(pooled / len(errors))


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


# --- what limits ------------------------------------------------------------------------------------------------------


def limits(run: Run, wall: Sight, gpu: Sight | None) -> list[Limit]:
    """Return what limits each clock that has a scatter."""
    found = []
    if wall.between is not None:
        found.append(_of_wall(run, wall, gpu))
    if gpu is not None and gpu.between is not None:
        found.append(_of_gpu(run, gpu))
    return found


def _of_wall(run: Run, wall: Sight, gpu: Sight | None) -> Limit:
    between, others = wall.between or 0.0, neighbours.of_rounds(plain(each) for each in rounds(run))
    said = f"step times of processes scatter by {_percent(between)}, cycles of a process by {_percent(wall.inside)}"
    if others is not None and others > neighbours.MOST:
        return _limit(WALL, NEIGHBOURS, f"{said}; others took {_percent(others)} of the CPU")
    if gpu is None or gpu.between is None:
        return _limit(
            WALL,
            HOST,
            f"{said}; on a CPU the host does all the work" if run.machine.device == "cpu" else said,
        )
    said += f"; GPU time scatters by {_percent(gpu.between)}"
    if between > TWICE * gpu.between:
        waits = next((each.host_bound for each in run.rungs if each.host_bound is not None), None)
        waiting = "" if waits is None else f"; the GPU waits in {_percent(waits)} of the step"
        return _limit(WALL, HOST, said + waiting)
    return _limit(WALL, _of_gpu(run, gpu).by, f"{said}: the GPU's own scatter is most of it")


def _of_gpu(run: Run, gpu: Sight) -> Limit:
    said = f"GPU time of processes scatters by {_percent(gpu.between)}"
    known = [each.gpu for each in rounds(run) if isinstance(each.gpu, KnownGpu)]
    if shared := [each for each in known if each.tenancy == "shared"]:
        return _limit(
            GPU, NEIGHBOURS, f"{said}; the GPU was shared in {len(shared)} of {len(known)} processes"
        )
    clocks = [each.sm_mhz for each in known if each.sm_mhz]
    if not clocks:
        return _limit(GPU, NOTHING, f"{said}; NVML tells no clock here")
    low, high = min(clocks), max(clocks)
    why = sorted({reason for each in known for reason in each.reasons or () if reason != "idle"})
    seen = f"the SM clock was {low:.0f} to {high:.0f} MHz" + (f" ({', '.join(why)})" if why else "")
    return _limit(GPU, CLOCKS if high / low - 1 >= UNSTEADY else NOTHING, f"{said}; {seen}")


def _limit(clock: str, by: str, said: str) -> Limit:
    return Limit(clock=clock, by=by, sentence=f"{by}: {said}")


def _percent(value: float | None) -> str:
    return "an unknown share" if value is None else percent(value)


# --- the check of a file ----------------------------------------------------------------------------------------------


def contradiction(result: Result) -> str | None:
    """Return, in one line, which numbers do not follow from the run, or None."""
    if problem := check.problem_of(plain(result.run)):
        return f"run: {problem}"
    if [each.name for each in result.run.rungs] != [result.rung]:
        return f"run: its rungs are not {result.rung} alone"
    if plain(result.run.machine) != plain(result.machine):
        return "run: of another machine"
    wanted = derive_from(result)
    for name, found, made in (
        ("wall", result.wall, wanted.wall),
        ("gpu_time", result.gpu_time, wanted.gpu_time),
    ):
        if (found is None) != (made is None):
            return f"{name}: not what its run says"
        for key in ("resolution", "floor", "between", "inside"):
            if found is not None and not alike(getattr(found, key), getattr(made, key)):
                return f"{name}.{key}: not what its run says"
    if plain(result.limits) != plain(wanted.limits):
        return "limits: not what its run says"
    return results.missing_note(wanted.protocol.notes, result.protocol.notes)
