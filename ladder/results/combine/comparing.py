"""Two results side by side: did a commit, a torch, a driver make any rung faster or slower?

Rounds of two runs share no moment, so they are not paired: Welch's interval on the logarithms of the round medians, a
noise floor that is the larger of the two runs', Holm over the rungs. What differs between two sessions of one machine
(temperature, neighbours) is in neither interval: two runs of each say more than one.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.machine import environment
from ladder.plan import content
from ladder.results import identity, record, sources
from ladder.results import store as results
from ladder.results.publishable import publishable
from ladder.stats import estimates, verdicts

_MACHINE = ("gpu", "cpu", "cores", "device")
_PROTOCOL = ("quick", "mode", "cycle_steps")


@dataclass(frozen=True)
class Compared:
    """One rung: ms a step in both, how many times faster the second is, and the verdict ("" with `reason` if none)."""

    name: str
    before_ms: float | None
    after_ms: float | None
    ratio: float | None
    interval: tuple[float, float] | None
    verdict: str
    reason: str


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Why the two cannot be compared, a line each: what differs that is not the code or the software."""
    found = []
    for key in _MACHINE:
        was, now = before["machine"].get(key), after["machine"].get(key)
        if was != now:
            found.append(f"{key}: {was} and {now}")
    works = [
        content.fields_of(each["workload"]) | {k: each["workload"].get(k) for k in ("name", "data")}
        for each in (before, after)
    ]
    for key in sorted({*works[0], *works[1]}):
        was, now = works[0].get(key), works[1].get(key)
        if was != now:
            found.append(f"workload {key}: {was} and {now}")
    if images := identity.other_images(before, after):
        found.append(f"images: {' and '.join(images)}")
    found += [f"{name}: {was} and {now}" for name, was, now in environment.differences(before, after)]
    for key in _PROTOCOL:
        was, now = before["protocol"].get(key), after["protocol"].get(key)
        if was != now:
            found.append(f"protocol {key}: {was} and {now}")
    return found


def software(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What software differs, a line each. To be asked for, as code is; but the two are no longer one series."""
    machines = before["machine"], after["machine"]
    versions = [(key, *(machine.get(key) for machine in machines)) for key in results.SOFTWARE]
    return [f"{key}: {was} and {now}" for key, was, now in versions if was != now]


def compare(before: dict[str, Any], after: dict[str, Any], anyway: bool = False) -> list[Compared]:
    """A verdict for each rung of `before` that both have; `faster` means that `after` is.

    Raises `UserError` if they are not comparable (unless `anyway`) or have no rung in common.
    """
    if (found := differences(before, after)) and not anyway:
        raise UserError(f"not comparable: {'; '.join(found)}; --anyway compares them nevertheless")
    others = {rung["name"]: rung for rung in after["rungs"]}
    pairs = [(rung, others[rung["name"]]) for rung in before["rungs"] if rung["name"] in others]
    if not pairs:
        raise UserError("not comparable: no rung is in both")
    asked = [(a, b) for a, b in pairs if not _why_not(a, b, before, after)]
    judged = dict(zip([a["name"] for a, _ in asked], _judge(asked, before, after), strict=True))
    return [_row(a, b, judged.get(a["name"]), _why_not(a, b, before, after)) for a, b in pairs]


def _why_not(a: dict[str, Any], b: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> str:
    for when, rung in (("first", a), ("second", b)):
        if rung["status"] != "ok" or not rung["rounds"]:
            return f"{rung['status']} in the {when}"
    recipes = a.get("recipe") or {}, b.get("recipe") or {}
    if any(recipes[0][key] != recipes[1][key] for key in recipes[0].keys() & recipes[1].keys()):
        return "another recipe"  # a field that only one commit knows is at its default there
    return "" if _floor(a, b, before, after) is not None else "no twins were measured: the noise is unknown"


def _floor(
    a: dict[str, Any], b: dict[str, Any], before: dict[str, Any], after: dict[str, Any]
) -> float | None:
    known = []
    for rung, result in ((a, before), (b, after)):
        floors = {kind: each.get("floor") for kind, each in (result.get("noise") or {}).items()}
        floor = verdicts.floor_of([rung.get("kind") or verdicts.HOST], floors)
        if floor is None:
            return None
        known.append(floor)
    return max(known)


def _judge(
    asked: list[tuple[dict, dict]], before: dict[str, Any], after: dict[str, Any]
) -> list[verdicts.Verdict]:
    summaries, effects, rounds = [], [], []
    for pair in asked:
        first, second = (np.log(list(record.round_medians(rung).values())) for rung in pair)
        welch = estimates.welch_interval(first, second)
        summaries.append(welch and welch[:3])
        effects.append(float(np.median(first) - np.median(second)))
        rounds.append(min(len(first), len(second)))
    floors = [_floor(a, b, before, after) or 0.0 for a, b in asked]
    return verdicts.decide(summaries, floors, effects, rounds)


def _row(a: dict[str, Any], b: dict[str, Any], verdict: verdicts.Verdict | None, reason: str) -> Compared:
    times = a["step_ms"], b["step_ms"]
    if verdict is None:
        return Compared(a["name"], *times, None, None, "", reason)
    interval = verdict.interval and tuple(float(np.exp(bound)) for bound in verdict.interval)
    return Compared(a["name"], *times, float(np.exp(verdict.effect)), interval, verdict.verdict, "")


def heading(result: dict[str, Any]) -> str:
    """What tells one side from the other, in a line."""
    machine = result["machine"]
    parts = [
        machine.get("gpu") or machine.get("cpu") or machine["name"],
        f"PyTorch {machine.get('torch')}",
        texts.at_commits(sources.commits(result), result.get("dirty")),
        result["started"][:16],
    ]
    return ", ".join(str(part) for part in parts if part)


def show(before: Path, after: Path, anyway: bool, as_json: bool) -> bool:
    """Print the comparison of two files; whether any rung is slower. Raises `UserError` as `compare` does."""
    first, second = results.load(before), results.load(after)
    rows = compare(first, second, anyway)
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1, allow_nan=False))
        return any(row.verdict == verdicts.SLOWER for row in rows)
    lines = [texts.plain(f"before: {heading(first)}"), "after:  " + texts.plain(heading(second))]
    lines += [f"warning: {line}" for line in map(texts.plain, differences(first, second))]
    for when, result in (("before", first), ("after", second)):
        lines += [f"warning: {when}: {line}" for line in map(texts.plain, publishable(result))]
    lines += [f"another series: {line}" for line in map(texts.plain, software(first, second))]
    wide = max(len(row.name) for row in rows)
    for row in rows:
        times = f"{texts.ms(row.before_ms):>9} -> {texts.ms(row.after_ms):<9}"
        said = f"{texts.between(row.interval):<16} {row.verdict or row.reason}"
        lines.append(f"{row.name:<{wide}} {times} {factor(row):>7}  {said}".rstrip())
    print("\n".join(lines))
    return any(row.verdict == verdicts.SLOWER for row in rows)


def factor(row: Compared) -> str:
    """How many times faster, unless that is inside the noise."""
    return "" if row.verdict == verdicts.NO_GAIN else texts.factor(row.ratio)
