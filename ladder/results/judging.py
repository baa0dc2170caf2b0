"""The verdicts of a result: which rung is compared with which, by which noise floor. All follows from the raw rounds.

    cumulative      each rung against the applicable one before it
    solo            each rung against the baseline
    leave-one-out   everything against everything but the rung: what the rung gains at the top
    the others      each entry against the first

A twin is a rung that is measured twice in every round; the two differ by nothing but noise.
"""

import itertools
import math

import numpy as np
from msgspec.structs import asdict, replace

from ladder.plan import modes
from ladder.results import derive, sources
from ladder.results.run import Gain, Noise, Result, Run, Rung, Twin
from ladder.stats import answers, estimates
from ladder.stats.answers import Quantity

TWIN = ".twin"


def derive_result(run: Run) -> Result:
    """Return the result that follows from a run: every figure, verdict and note, and whether it is complete."""
    result = derive.derive_numbers(derive.begin_result(run))
    result = derive.finish_result(judge(result))
    if (then := run.reported_then) is None:
        return result
    rungs = [
        replace(rung, **asdict(then.rungs[rung.name])) if rung.name in then.rungs else rung
        for rung in result.rungs
    ]
    return replace(result, rungs=rungs, noise=then.noise, gpu_noise=None)


def twins_of(names: list[str], quick: bool) -> list[str]:
    """Return which rungs have a twin: the lowest (as a rule bound by the host) and the highest (by the GPU).

    In `leave-one-out` that is `all` alone: everything is compared with it.
    """
    top = names[:1] if quick else names[-1:]
    return list(dict.fromkeys([*names[:1], *([modes.ALL] if modes.ALL in names else top)]))


def plan_twins(rungs: list[Rung], mode: str, quick: bool) -> list[Twin]:
    """Return the twins of the rungs that can run here; in a study of the first entry alone: all stand beside it."""
    runnable = {rung.name: rung for rung in rungs if rung.recipe is not None}
    names = twins_of(list(runnable), quick or mode in modes.STUDIES)
    return [Twin(name=name + TWIN, of=name, recipe=runnable[name].recipe) for name in names]


def judge(result: Result) -> Result:
    """Return the result with kind, gain and verdict of every rung, and its noise floors. After `derive_numbers`.

    Wall time and GPU time are judged apart, each with Holm's correction over its own verdicts.
    """
    wall, gpu = measured(result)
    steps, works = _judge_pairs(result, wall), _judge_pairs(result, gpu)
    rungs = []
    for rung in result.rungs:
        (verdict, gain), (gpu_verdict, gpu_gain) = (
            each.get(rung.name, (None, None)) for each in (steps, works)
        )
        rungs.append(replace(
            rung, kind=derive.kind(rung, result.machine.device) if derive.is_timed(rung) else None,
            total_interval=_find_total(wall, result.baseline, rung.name), verdict=verdict, gain=gain,
            gpu_verdict=gpu_verdict, gpu_gain=gpu_gain,
        ))  # fmt: skip
    return replace(result, rungs=rungs, noise=_find_noise(result, wall), gpu_noise=_find_noise(result, gpu))


def measured(result: Result) -> tuple[Quantity, Quantity]:
    """Return the wall times and the GPU times of a result."""
    kinds = {rung.name: derive.kind(rung, result.machine.device) for rung in sources.records(result)}
    twins = [(twin.of, twin.name) for twin in result.twins or []]
    wall, gpu = (
        {name: {number: math.log(ms) for number, ms in each.items()} for name, each in values.items()}
        for values in (derive.wall_values(result), derive.gpu_values(result))
    )
    return answers.make_quantity(wall, kinds, twins, is_gpu=False), answers.make_quantity(
        gpu, kinds, twins, is_gpu=True
    )


def pairs(result: Result) -> list[tuple[str, str, str]]:
    """Return (rung, reference, other) of each comparison of a run. A gain is positive where the other is faster."""
    mode = result.protocol.mode
    timed = [rung.name for rung in result.rungs if derive.is_timed(rung)]
    if mode == modes.CUMULATIVE:
        return [(name, before, name) for before, name in itertools.pairwise(timed)]
    if mode in modes.BESIDE:
        base = result.rungs[0].name
        return [(name, base, name) for name in timed if name != base and base in timed]
    if modes.ALL not in timed:
        return []
    rest = [name for name in timed if name not in (modes.ALL, result.baseline)]
    return [(name, name, modes.ALL) for name in rest]  # positive where having the rung is faster


def _list_shared(result: Result, of: Quantity) -> list[tuple[str, str, str]]:
    """Return the pairs that have a generation in common."""
    return [each for each in pairs(result) if of.paired(*each[1:])]


def _judge_pairs(result: Result, of: Quantity) -> dict[str, tuple[str, Gain]]:
    """Return verdict and gain of each rung that is compared with another, in one quantity."""
    judged, shared = {}, _list_shared(result, of)
    for (name, *pair), answer in zip(shared, of.answers([(a, b) for _, a, b in shared]), strict=True):
        values = list(of.paired(*pair).values())
        judged[name] = (
            answer.verdict,
            Gain(
                against=next(each for each in pair if each != name),
                ratio=float(np.exp(np.mean(values))),
                interval=answer.interval and [float(np.exp(bound)) for bound in answer.interval],
                confidence=answer.confidence,
                least=answer.least if answer.interval else None,
                below=answer.below,
                floor=answer.floor if answer.interval else None,
                rounds=len(values),
            ),
        )
    return judged


def _find_noise(result: Result, of: Quantity) -> dict[str, Noise]:
    """Return the floor of each kind, a log ratio, and the generations that it is made of."""
    floors = of.floors(len(_list_shared(result, of)))
    return {
        kind: Noise(floor=each.floor, rounds=of.groups[kind].generations, resolution=each.resolution)
        for kind, each in floors.items()
    }


def _find_total(wall: Quantity, base: str | None, name: str) -> list[float] | None:
    """Return the 95% interval of a rung's factor over the baseline, or None."""
    total = wall.difference(base, name) if base and base != name else None
    if total is None:
        return None
    half = estimates.t_quantile(0.5 + estimates.CONFIDENCE / 2, total.freedom) * total.error
    bounds = estimates.within_everything(total.mean - half, total.mean + half)
    return [float(np.exp(bound)) for bound in bounds]


def wants_generations(result: Result) -> bool:
    """Return whether one more generation is worth it: fewer than three are there, or fewer than twelve and wide ones.

    Wide is a half-width of more than 0.5% in GPU time, or in wall time where the run has no GPU time. The widths
    alone decide.
    """
    wall, gpu = measured(result)
    of = gpu if gpu.kinds else wall
    done = max((group.generations for group in of.groups.values()), default=0)
    return answers.wants_generations(done, [of.difference(*pair) for _, *pair in pairs(result)])
