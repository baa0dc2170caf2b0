"""The verdicts of a result: which rung is compared with which, by which noise floor. All follows from the raw rounds.

    cumulative      each rung against the applicable one before it
    solo            each rung against the baseline
    leave-one-out   everything against everything but the rung: what the rung gains at the top

A twin is a rung that is measured twice in every round; the two differ by nothing but noise.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ladder.base.errors import UserError
from ladder.machine import environment
from ladder.plan import content, modes
from ladder.results import derive, plausible, sources, types
from ladder.results import store as results
from ladder.results.types import Gain, Noise, Plain, Result, RungResult, TopGain, plain
from ladder.stats import estimates, verdicts

KINDS = (verdicts.HOST, verdicts.GPU)
MOST_STORED = 200  # log ratios of earlier twins of each kind: enough to know a spread
TWIN = ".twin"
_SAME_MACHINE = (*results.SERIES, "driver")


def new_twin(rung: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a rung's twin, as a file has it."""
    return {
        "name": rung["name"] + TWIN,
        "of": rung["name"],
        "status": "n/a",
        "reason": None,
        "recipe": rung["recipe"],
        "settings": None,
        "rounds": [],
    }


def twins_of(names: list[str], quick: bool) -> list[str]:
    """Return which rungs have a twin: the lowest (as a rule bound by the host) and the highest (by the GPU).

    In `leave-one-out` that is `all` alone: everything is compared with it.
    """
    if quick or len(names) < 2:
        return names[:1]
    top = modes.ALL if modes.ALL in names else names[-1]
    return list(dict.fromkeys([names[0], top]))


def add_twins(result: dict[str, Any]) -> None:
    """Give a growing result the twins of the lowest and the highest rung that can run here."""
    runnable = {rung["name"]: rung for rung in result["rungs"] if rung["reason"] is None}
    names = twins_of(list(runnable), result["protocol"]["quick"])
    result["twins"] = [new_twin(runnable[name]) for name in names]


def judge(result: Result) -> Result:
    """Return the result with kind, gain and verdict of every rung, and its noise floors. After `derive.derive`."""
    if result.twins:
        result = replace(result, twins=[derive.settled(twin) for twin in result.twins])
    result, invalid = quarantine(result)
    if invalid:
        result = derive.derive(result)
    base = next((rung for rung in result.rungs if rung.name == result.baseline), None)
    result = replace(result, rungs=[_not_judged(rung, base, result.machine.device) for rung in result.rungs])
    result = replace(result, noise=noise(result))
    asked = comparisons(result)
    verdicts_ = verdicts.judge([comparison for _, _, comparison in asked])
    judged = {
        rung.name: replace(rung, verdict=verdict.verdict, gain=_gain(against, comparison, verdict))
        for (rung, against, comparison), verdict in zip(asked, verdicts_, strict=True)
    }
    floors = {
        kind: replace(each, resolution=resolution([c for rung, _, c in asked if rung.kind == kind]))
        for kind, each in (result.noise or {}).items()
    }
    return replace(result, rungs=[judged.get(rung.name, rung) for rung in result.rungs], noise=floors)


def _not_judged(rung: RungResult, base: RungResult | None, device: str) -> RungResult:
    """Return a rung with its kind and its interval against the baseline, and without a verdict."""
    timed, interval = derive.is_timed(rung), None
    if timed and base is not None and base.name != rung.name:
        ratios = estimates.paired_ratios(derive.round_medians(base), derive.round_medians(rung))
        interval = _pair(estimates.log_interval(ratios))
    kind = _kind(rung, device) if timed else None
    return replace(rung, kind=kind, verdict=None, gain=None, total_interval=interval)


def _gain(against: str, comparison: verdicts.Comparison, verdict: verdicts.Verdict) -> Gain:
    return Gain(
        against=against,
        ratio=float(np.exp(verdict.effect)),
        interval=verdict.interval and [float(np.exp(bound)) for bound in verdict.interval],
        confidence=verdict.confidence,
        least=verdict.least,
        floor=comparison.floor,
        rounds=verdict.rounds,
    )


def judge_anew(result: Result, recipes: Mapping[str, Plain]) -> Result:
    """Return the result with every derived number and verdict computed from its rounds.

    `recipes` are the planned ones, as `derive.mark_skipped` takes them.
    """
    result, marked = derive.mark_skipped(judge(derive.derive(result)), recipes)
    return judge(derive.derive(result)) if marked else result


def refresh(result: dict[str, Any], recipes: Mapping[str, Plain]) -> None:
    """Bring every derived number and verdict of a growing result up to date. Raw rounds are not touched."""
    before = types.build(Result, result)
    write_back(result, before, judge_anew(before, recipes))


def write_back(result: dict[str, Any], before: Result, after: Result) -> None:
    """Enter in a growing result what differs between the result as it was read and as it was made of that."""
    result |= _changes(before, after, ("rungs", "twins"))
    parts: list[tuple[str, Any, Any]] = [
        ("rungs", before.rungs, after.rungs),
        ("twins", before.twins or [], after.twins or []),
    ]
    for key, olds, news in parts:
        for record, old, new in zip(result.get(key, []), olds, news, strict=True):
            record.update(_changes(old, new))


def _changes(old: Any, new: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    names = [field.name for field in fields(new) if field.name not in without]
    return {name: plain(getattr(new, name)) for name in names if getattr(new, name) is not getattr(old, name)}


def quarantine(result: Result) -> tuple[Result, list[str]]:
    """Mark every rung and twin that was faster than the machine can compute as `invalid`.

    A time below that limit means that work was skipped. It stays in the file, and counts for nothing.

    Returns:
        (the result, the names of what was marked)
    """
    least = plausible.floor_ms(plain(result.machine), result.workload)
    found: list[str] = []

    def marked(rung: derive.Record) -> derive.Record:
        if not (derive.is_timed(rung) and (reason := plausible.too_fast(rung, least))):
            return rung
        found.append(rung.name)
        failed_at = types.build(types.FailedAt, {"round": rung.rounds[-1].round})
        return replace(rung, status="invalid", reason=reason, failed_at=failed_at)

    changed: dict[str, Any] = {"rungs": [marked(rung) for rung in result.rungs]}
    if result.twins:
        changed["twins"] = [marked(twin) for twin in result.twins]
    return (replace(result, **changed), found) if found else (result, found)


def noise(result: Result) -> dict[str, Noise]:
    """Return, for each kind of rung that has twins, the floor (a log ratio) and the rounds that it is made of."""
    own: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for kind, found in twin_ratios(result):
        own[kind].append(found)
    made = {}
    for kind in KINDS:
        stored = (result.stored_twins or {}).get(kind, [])
        if (floor := verdicts.noise_floor(own[kind], stored)) is not None:
            counts = {"rounds": sum(map(len, own[kind])), "stored_rounds": len(stored)}
            made[kind] = types.build(Noise, {"floor": floor, **counts})
    return made


def twin_ratios(result: Result) -> Iterable[tuple[str, list[float]]]:
    """Yield (kind, log ratios by round) of each pair of twins that has any."""
    by_name = {rung.name: rung for rung in result.rungs}
    for twin in result.twins or []:
        rung = by_name.get(twin.of)
        if rung is None or not derive.is_timed(rung) or twin.status != "ok":
            continue
        found = estimates.log_ratios(derive.round_medians(rung), derive.round_medians(twin))
        if found:
            yield _kind(rung, result.machine.device), found


def _kind(rung: RungResult, device: str) -> str:
    """Return what bounds a rung: the host or the GPU.

    In some older files the profiled step was captured with copies of gradients. It kept the GPU busy for longer than
    the timed step takes, so it has no share; such a rung is bound by the GPU.
    """
    beyond = rung.host_bound is None and rung.gpu_busy_ms
    return verdicts.kind(0.0 if beyond else rung.host_bound, device)


def comparisons(result: Result) -> list[tuple[RungResult, str, verdicts.Comparison]]:
    """Return (rung, name it is compared with, log ratios and floor) for each verdict; none at all without twins."""
    floors = {kind: each.floor for kind, each in (result.noise or {}).items()}
    mode = result.protocol.mode or modes.CUMULATIVE
    timed = [rung for rung in result.rungs if derive.is_timed(rung)]
    whole = next((rung for rung in timed if rung.name == modes.ALL), None)
    base = next((rung for rung in result.rungs[:1] if derive.is_timed(rung)), None)
    made, previous = [], None
    for rung in timed:
        against = {modes.SOLO: base, modes.LEAVE_ONE_OUT: whole}.get(mode, previous)
        previous = rung
        if mode == modes.LEAVE_ONE_OUT and rung.name in (modes.ALL, result.baseline):
            continue
        if against is None or against is rung:
            continue
        values = estimates.log_ratios(derive.round_medians(against), derive.round_medians(rung))
        if mode == modes.LEAVE_ONE_OUT:  # without it against with it: positive where having it is faster
            values = [-value for value in values]
        floor = verdicts.floor_of([types.given(rung.kind), types.given(against.kind)], floors)
        if floor is not None and values:
            made.append((rung, against.name, verdicts.Comparison(values, floor)))
    return made


def resolution(comparisons: Iterable[verdicts.Comparison]) -> float | None:
    """Return the smallest difference that such comparisons would see, as a rule: d plus the half-width. Or None."""
    halves = [(max(verdicts.LEAST_DIFFERENCE, c.floor), verdicts.half_width(c.values)) for c in comparisons]
    return estimates.median([least + half for least, half in halves if half is not None])


def stored_twins(folder: Path, result: Result, own: Path | None = None) -> dict[str, list[float]]:
    """Return log ratios of the twins of earlier runs in `folder` on this machine and software, of this workload.

    The newest come first. Quick runs do not count, nor files that cannot be read, nor `own`, the file of this run. A
    file that holds visits of this run or of a merged one does not count either: the same noise would count twice.
    """
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    earlier = []
    for path in Path(folder).glob("*.json"):
        if own is not None and path.name == Path(own).name:
            continue
        try:
            other = results.load(path)
        except UserError:
            continue
        if other.twins and not other.protocol.quick and _same(other, result):
            earlier.append(other)
    mine = sources.visits(result)
    earlier = [
        o for o in sources.without_sources(earlier) if sources.one_host(o) and not mine & sources.visits(o)
    ]
    for other in sorted(earlier, key=lambda each: each.started, reverse=True):
        for kind, values in twin_ratios(other):
            found[kind] = (found[kind] + values)[:MOST_STORED]
    return found


def _same(other: Result, result: Result) -> bool:
    """Return whether two runs measured the same workload on the same machine, software and environment."""
    workloads = (other.workload, result.workload)
    return (
        all(getattr(other.machine, key) == getattr(result.machine, key) for key in _SAME_MACHINE)
        and content.of_workload(workloads[0]) == content.of_workload(workloads[1])
        and workloads[0].get("data") == workloads[1].get("data")
        and not environment.differences(types.head(other), types.head(result))
    )


def _pair(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def top_gains(result: Result) -> dict[str, TopGain]:
    """Return, from a leave-one-out result, what each rung gains at the top, and what to do about it."""
    return {
        rung.name: TopGain(
            gain=rung.gain.ratio,
            interval=rung.gain.interval,
            advice=modes.advice(rung.gpu_verdict or "", rung.verdict),
            gpu_gain=rung.gpu_gain.ratio if rung.gpu_gain else None,
            gpu_interval=rung.gpu_gain.interval if rung.gpu_gain else None,
        )
        for rung in result.rungs
        if rung.gain and rung.verdict
    }
