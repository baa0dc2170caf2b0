"""The comparison of two results: whether a commit, a torch or a driver made any rung faster or slower.

Rounds of two runs share no moment, so they are not paired: Welch's interval on the logarithms of the round medians, a
noise floor that is the larger of the two runs', Holm over the rungs. What differs between two sessions of one machine
(temperature, neighbours) is in neither interval: two runs of each say more than one.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.machine import environment
from ladder.plan import content
from ladder.results import derive, identity, sources
from ladder.results import store as results
from ladder.results.publishable import publishable
from ladder.results.types import Result, RungResult, given, head
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


def differences(before: Result, after: Result) -> list[str]:
    """Return why the two cannot be compared, a line each: what differs beside code and software."""
    found = []
    for key in _MACHINE:
        was, now = getattr(before.machine, key), getattr(after.machine, key)
        if was != now:
            found.append(f"{key}: {was} and {now}")
    works = [
        content.fields_of(each.workload) | {k: each.workload.get(k) for k in ("name", "data")}
        for each in (before, after)
    ]
    for key in sorted({*works[0], *works[1]}):
        was, now = works[0].get(key), works[1].get(key)
        if was != now:
            found.append(f"workload {key}: {was} and {now}")
    heads = head(before), head(after)
    if images := identity.other_images(*heads):
        found.append(f"images: {' and '.join(images)}")
    found += [f"{name}: {was} and {now}" for name, was, now in environment.differences(*heads)]
    for key in _PROTOCOL:
        was, now = (given(getattr(each.protocol, key)) for each in (before, after))
        if was != now:
            found.append(f"protocol {key}: {was} and {now}")
    return found


def software(before: Result, after: Result) -> list[str]:
    """Return what software differs, a line each. It may be compared, as code may; the two are no longer one series."""
    versions = [(key, *(getattr(each.machine, key) for each in (before, after))) for key in results.SOFTWARE]
    return [f"{key}: {was} and {now}" for key, was, now in versions if was != now]


def compare(before: Result, after: Result, anyway: bool = False) -> list[Compared]:
    """Return a verdict for each rung of `before` that both have; `faster` means that `after` is.

    Raises `UserError` if they are not comparable (unless `anyway`) or have no rung in common.
    """
    if (found := differences(before, after)) and not anyway:
        raise UserError(f"not comparable: {'; '.join(found)}; --anyway compares them nevertheless")
    others = {rung.name: rung for rung in after.rungs}
    pairs = [(rung, others[rung.name]) for rung in before.rungs if rung.name in others]
    if not pairs:
        raise UserError("not comparable: no rung is in both")
    asked = [(a, b) for a, b in pairs if not _why_not(a, b, before, after)]
    judged = dict(zip([a.name for a, _ in asked], _judge(asked, before, after), strict=True))
    return [_row(a, b, judged.get(a.name), _why_not(a, b, before, after)) for a, b in pairs]


def _why_not(a: RungResult, b: RungResult, before: Result, after: Result) -> str:
    for when, rung in (("first", a), ("second", b)):
        if not derive.is_timed(rung):
            return f"{rung.status} in the {when}"
    recipes = a.recipe or {}, b.recipe or {}
    if any(recipes[0][key] != recipes[1][key] for key in recipes[0].keys() & recipes[1].keys()):
        return "another recipe"  # a field that only one commit knows is at its default there
    return "" if _floor(a, b, before, after) is not None else "no twins were measured: the noise is unknown"


def _floor(a: RungResult, b: RungResult, before: Result, after: Result) -> float | None:
    known = []
    for rung, result in ((a, before), (b, after)):
        floors = {kind: each.floor for kind, each in (result.noise or {}).items()}
        floor = verdicts.floor_of([rung.kind or verdicts.HOST], floors)
        if floor is None:
            return None
        known.append(floor)
    return max(known)


def _judge(
    asked: list[tuple[RungResult, RungResult]], before: Result, after: Result
) -> list[verdicts.Verdict]:
    summaries, effects, rounds = [], [], []
    for pair in asked:
        first, second = (np.log(list(derive.round_medians(rung).values())) for rung in pair)
        welch = estimates.welch_interval(first, second)
        summaries.append(welch and welch[:3])
        effects.append(float(np.median(first) - np.median(second)))
        rounds.append(min(len(first), len(second)))
    floors = [_floor(a, b, before, after) or 0.0 for a, b in asked]
    return verdicts.decide(summaries, floors, effects, rounds)


def _row(a: RungResult, b: RungResult, verdict: verdicts.Verdict | None, reason: str) -> Compared:
    times = a.step_ms, b.step_ms
    if verdict is None:
        return Compared(a.name, *times, None, None, "", reason)
    interval = None
    if verdict.interval:
        low, high = verdict.interval
        interval = float(np.exp(low)), float(np.exp(high))
    return Compared(a.name, *times, float(np.exp(verdict.effect)), interval, verdict.verdict, "")


def heading(result: Result) -> str:
    """Return what tells one side from the other, in a line."""
    machine = result.machine
    parts = [
        machine.gpu or machine.cpu,
        f"PyTorch {machine.torch}",
        texts.at_commits(sources.commits(head(result)), result.dirty),
        result.started[:16],
    ]
    return ", ".join(str(part) for part in parts if part)


def show(before: Path, after: Path, anyway: bool, as_json: bool) -> bool:
    """Print the comparison of two files; return whether any rung is slower. Raises `UserError` as `compare` does."""
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
    """Return how many times faster, in words; nothing where it is inside the noise."""
    return "" if row.verdict == verdicts.NO_GAIN else texts.factor(row.ratio)
