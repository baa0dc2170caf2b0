"""The verdicts of a result: which rung is compared with which, by which noise floor. Everything from the raw rounds.

    cumulative      each rung against the applicable one before it
    solo            each rung against the baseline
    leave-one-out   everything against everything but the rung: what the rung gains at the top

A twin is a rung that is measured twice in every round; the two differ by nothing but noise.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ladder.base.errors import UserError
from ladder.machine import environment
from ladder.plan import content, modes
from ladder.results import plausible as floor
from ladder.results import record, sources
from ladder.results import store as results
from ladder.stats import estimates, verdicts

KINDS = (verdicts.HOST, verdicts.GPU)
MOST_STORED = 200  # log ratios of earlier twins of each kind: enough to know a spread
TWIN = ".twin"
_SAME_MACHINE = (*results.SERIES, "driver")


def new_twin(rung: dict[str, Any]) -> dict[str, Any]:
    """The record of a rung's twin."""
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
    """Which rungs have a twin: the lowest (as a rule bound by the host) and the highest (by the GPU).

    In `leave-one-out` that is `all` alone: everything is compared with it.
    """
    if quick or len(names) < 2:
        return names[:1]
    top = modes.ALL if modes.ALL in names else names[-1]
    return list(dict.fromkeys([names[0], top]))


def add_twins(result: dict[str, Any]) -> None:
    """The records of the twins: of the lowest and the highest rung that can run here."""
    runnable = {rung["name"]: rung for rung in result["rungs"] if rung["reason"] is None}
    names = twins_of(list(runnable), result["protocol"]["quick"])
    result["twins"] = [new_twin(runnable[name]) for name in names]


def judge(result: dict[str, Any]) -> None:
    """Fill in kind, gain and verdict of every rung, and the noise floors. After `record.derive`."""
    for twin in result.get("twins", []):
        record.settle_status(twin)
    if quarantine(result):
        result["baseline"] = record.derive(result["rungs"], result["workload"]["batch"])
    device = result["machine"]["device"]
    by_name = {rung["name"]: rung for rung in result["rungs"]}
    for rung in result["rungs"]:
        timed = _timed(rung)
        rung["kind"] = _kind(rung, device) if timed else None
        rung.update(verdict=None, gain=None, total_interval=None)
        base = by_name.get(result["baseline"])
        if timed and base is not rung:
            ratios = estimates.paired_ratios(record.round_medians(base), record.round_medians(rung))
            rung["total_interval"] = _pair(estimates.log_interval(ratios))
    result["noise"] = noise(result)
    asked = comparisons(result)
    for kind, found in result["noise"].items():
        found["resolution"] = resolution([c for rung, _, c in asked if rung["kind"] == kind])
    for (rung, against, comparison), verdict in zip(
        asked, verdicts.judge([c for _, _, c in asked]), strict=True
    ):
        rung["verdict"] = verdict.verdict
        rung["gain"] = {
            "against": against,
            "ratio": float(np.exp(verdict.effect)),
            "interval": verdict.interval and [float(np.exp(bound)) for bound in verdict.interval],
            "confidence": verdict.confidence,
            "least": verdict.least,
            "floor": comparison.floor,
            "rounds": verdict.rounds,
        }


def quarantine(result: dict[str, Any]) -> list[str]:
    """Mark every rung and twin that was faster than the machine can compute as `invalid`; returns their names.

    Such a time is that of work that was not done; it stays in the file, and counts for nothing.
    """
    least, found = floor.floor_ms(result["machine"], result["workload"]), []
    for rung in [*result["rungs"], *result.get("twins", [])]:
        if _timed(rung) and (reason := floor.too_fast(rung, least)):
            rung.update(status="invalid", reason=reason, failed_at={"round": rung["rounds"][-1]["round"]})
            found.append(rung["name"])
    return found


def noise(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """For each kind of rung of which there are twins: floor (log ratio), and of how many rounds it is made."""
    own: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for kind, values in twin_ratios(result):
        own[kind].append(values)
    made = {}
    for kind in KINDS:
        stored = (result.get("stored_twins") or {}).get(kind, [])
        if (floor := verdicts.noise_floor(own[kind], stored)) is not None:
            made[kind] = {"floor": floor, "rounds": sum(map(len, own[kind])), "stored_rounds": len(stored)}
    return made


def twin_ratios(result: dict[str, Any]) -> Iterable[tuple[str, list[float]]]:
    """(kind, log ratios by round) of each pair of twins that has any."""
    by_name = {rung["name"]: rung for rung in result["rungs"]}
    for twin in result.get("twins", []):
        rung = by_name.get(twin["of"])
        if rung is None or not _timed(rung) or twin["status"] != "ok":
            continue
        values = estimates.log_ratios(record.round_medians(rung), record.round_medians(twin))
        if values:
            yield _kind(rung, result["machine"]["device"]), values


def _kind(rung: dict[str, Any], device: str) -> str:
    """A rung whose profiled step kept the GPU busy for longer than the timed one takes has no share, but it is the
    GPU's: that step was captured with copies of gradients, in files from before it was captured anew."""
    beyond = rung["host_bound"] is None and rung.get("gpu_busy_ms")
    return verdicts.kind(0.0 if beyond else rung["host_bound"], device)


def comparisons(result: dict[str, Any]) -> list[tuple[dict, str, verdicts.Comparison]]:
    """(rung, name it is compared with, log ratios and floor), one for each verdict. None at all without twins."""
    floors = {kind: found["floor"] for kind, found in result["noise"].items()}
    mode, timed = result["protocol"].get("mode", modes.CUMULATIVE), [r for r in result["rungs"] if _timed(r)]
    whole = next((rung for rung in timed if rung["name"] == modes.ALL), None)
    base = next((rung for rung in result["rungs"][:1] if _timed(rung)), None)
    made, previous = [], None
    for rung in timed:
        against = {modes.SOLO: base, modes.LEAVE_ONE_OUT: whole}.get(mode, previous)
        previous = rung
        if mode == modes.LEAVE_ONE_OUT and rung["name"] in (modes.ALL, result["baseline"]):
            continue
        if against is None or against is rung:
            continue
        values = estimates.log_ratios(record.round_medians(against), record.round_medians(rung))
        if mode == modes.LEAVE_ONE_OUT:  # without it against with it: positive where having it is faster
            values = [-value for value in values]
        floor = verdicts.floor_of([rung["kind"], against["kind"]], floors)
        if floor is not None and values:
            made.append((rung, against["name"], verdicts.Comparison(values, floor)))
    return made


def resolution(comparisons: Iterable[verdicts.Comparison]) -> float | None:
    """The smallest difference that such comparisons would call one, as a rule: d plus the half-width. Or None."""
    halves = [(max(verdicts.LEAST_DIFFERENCE, c.floor), verdicts.half_width(c.values)) for c in comparisons]
    return estimates.median([least + half for least, half in halves if half is not None])


def stored_twins(folder: Path, result: dict[str, Any], own: Path | None = None) -> dict[str, list[float]]:
    """Log ratios of the twins of earlier runs in `folder` on this machine and software, of this workload.

    The newest come first; quick runs do not count, nor does what cannot be read, nor `own`, the file of this run, nor
    a file that holds visits of this run or of a merged one: the same noise would count twice.
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
        if other.get("twins") and not other["protocol"].get("quick") and _same(other, result):
            earlier.append(other)
    mine = sources.visits(result)
    earlier = [
        o for o in sources.without_sources(earlier) if sources.one_host(o) and not mine & sources.visits(o)
    ]
    for other in sorted(earlier, key=lambda each: each["started"], reverse=True):
        for kind, values in twin_ratios(other):
            found[kind] = (found[kind] + values)[:MOST_STORED]
    return found


def _same(other: dict[str, Any], result: dict[str, Any]) -> bool:
    machines = (other["machine"], result["machine"])
    workloads = (other["workload"], result["workload"])
    return (
        all(machines[0].get(key) == machines[1].get(key) for key in _SAME_MACHINE)
        and content.of_workload(workloads[0]) == content.of_workload(workloads[1])
        and workloads[0].get("data") == workloads[1].get("data")
        and not environment.differences(other, result)
    )


def _timed(rung: dict[str, Any]) -> bool:
    return rung["status"] == "ok" and bool(rung["rounds"])


def _pair(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else list(interval)


def top_gains(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """From a leave-one-out result: for each rung its gain at the top, interval, and what to do about it."""
    found = {}
    for rung in result["rungs"]:
        gain = rung.get("gain")
        if isinstance(gain, dict) and rung.get("verdict") in modes.ADVICE:
            gained = {"gain": gain.get("ratio"), "interval": gain.get("interval")}
            found[rung["name"]] = {**gained, "advice": modes.ADVICE[rung["verdict"]]}
    return found
