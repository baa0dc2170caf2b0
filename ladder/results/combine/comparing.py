"""The comparison of two results: whether a commit, a torch or a driver made any rung faster or slower.

Generations of two runs share no moment, so they are not paired: Welch's interval on the logarithms of the times, a
noise floor that is the larger of the two runs', Holm over the rungs. The step's time and GPU time are compared apart.
What differs between two sessions of one machine (temperature, neighbours) is in neither interval: two runs of each
say more than one.
"""

import dataclasses
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.machine import environment
from ladder.plan import content
from ladder.results import derive, identity, loading, parts, sources
from ladder.results import store as results
from ladder.results.combine import gains
from ladder.results.publishable import publishable
from ladder.results.run import Noise, Result, RungResult
from ladder.results.types import head
from ladder.results.values import FASTER, INSIDE, SLOWER
from ladder.results.words import Seen, word
from ladder.stats import answers, estimates, nested

UNKNOWN_NOISE = "the noise of one of them is unknown"
APART = 0.02  # of a logarithm: a reader who divides the two times sees it
MEANS = (
    "times are medians, factors are ratios of geometric means over generations: under noise they point apart"
)
_PROTOCOL = ("quick", "mode", "cycle_steps", "gpu_memory_limit_gb")


@dataclass(frozen=True)
class Compared:
    """One rung: ms a step in both, how many times faster the second is, and the verdict ("" with `reason` if none).

    The same of GPU time, where both results have it.
    """

    name: str
    before_ms: float | None
    after_ms: float | None
    ratio: float | None
    interval: tuple[float, float] | None
    verdict: str
    reason: str
    below: float | None = None  # log ratio, X of "less than X%"
    gpu_before_ms: float | None = None
    gpu_after_ms: float | None = None
    gpu_ratio: float | None = None
    gpu_interval: tuple[float, float] | None = None
    gpu_verdict: str = ""
    gpu_below: float | None = None

    @property
    def is_slower(self) -> bool:
        """Whether a user loses: the step is slower, or the GPU works for longer and the step hides it."""
        return SLOWER in (self.verdict, self.gpu_verdict) and self.verdict != FASTER


def differences(before: Result, after: Result) -> list[str]:
    """Return why the two cannot be compared, a line each: what differs beside code and software."""
    found = []
    for key in gains.MACHINE:
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
    found += [f"{name}: {was} and {now}" for name, was, now in environment.list_differences(*heads)]
    for key in _PROTOCOL:
        was, now = (getattr(each.protocol, key) for each in (before, after))
        if was != now:
            found.append(f"protocol {key}: {was} and {now}")
    return found


def software(before: Result, after: Result) -> list[str]:
    """Return what software differs, a line each. It may be compared, as code may; the two are no longer one series."""
    versions = [(key, *(getattr(each.machine, key) for each in (before, after))) for key in results.SOFTWARE]
    return [f"{key}: {was} and {now}" for key, was, now in versions if was != now]


def compare(before: Result, after: Result, anyway: bool = False) -> list[Compared]:
    """Return a verdict for each rung of `before` that both have; `faster` means that `after` is.

    Raises `UserError` if they are not comparable (unless `anyway`) or have no rung in common. A simulated card is never
    comparable with another, nor a run with itself.
    """
    cards = [each.protocol.gpu_memory_limit_gb for each in (before, after)]
    if cards[0] != cards[1]:
        said = " and ".join(f"{each:g} GiB" if each else "all of it" for each in cards)
        raise UserError(f"not comparable: --gpu-memory: {said}; another card was simulated")
    if sources.visits(before) & sources.visits(after):
        raise UserError("not comparable: visits of one run are in both, so both say the same")
    if (found := differences(before, after)) and not anyway:
        raise UserError(f"not comparable: {'; '.join(found)}; --anyway compares them nevertheless")
    others = {rung.name: rung for rung in after.rungs}
    pairs = [(rung, others[rung.name]) for rung in before.rungs if rung.name in others]
    if not pairs:
        raise UserError("not comparable: no rung is in both")
    reasons = {a.name: _why_not(a, b, before, after) for a, b in pairs}
    names = [name for name, reason in reasons.items() if not reason]
    kinds = {rung.name: rung.kind or "host" for rung in (*after.rungs, *before.rungs)}
    steps = _judge(
        names, kinds, [(derive.wall_values(each), each.noise or {}) for each in (before, after)], gpu=False
    )
    work = _judge(
        names, kinds, [(derive.gpu_values(each), each.gpu_noise or {}) for each in (before, after)], gpu=True
    )
    made = []
    for a, b in pairs:
        row = Compared(a.name, a.step_ms, b.step_ms, None, None, "", reasons[a.name])
        if step := steps.get(a.name):
            row = replace(
                row, ratio=step.ratio, interval=step.interval, verdict=step.verdict, below=step.below
            )
        if gpu := work.get(a.name):
            row = replace(
                row,
                gpu_before_ms=a.gpu_ms,
                gpu_after_ms=b.gpu_ms,
                gpu_ratio=gpu.ratio,
                gpu_interval=gpu.interval,
                gpu_verdict=gpu.verdict,
                gpu_below=gpu.below,
            )
        made.append(row)
    return made


def _why_not(a: RungResult, b: RungResult, before: Result, after: Result) -> str:
    for when, rung in (("first", a), ("second", b)):
        if not derive.is_timed(rung):
            return f"{rung.status} in the {when}"
    recipes = a.recipe or {}, b.recipe or {}
    if any(recipes[0][key] != recipes[1][key] for key in recipes[0].keys() & recipes[1].keys()):
        return "another recipe"  # a field that only one commit knows is at its default there
    return "" if before.noise and after.noise else UNKNOWN_NOISE


@dataclass(frozen=True)
class _Answer:
    """The answer on one rung and quantity: factor, its interval, the word, and X of "less than X%"."""

    ratio: float
    interval: tuple[float, float] | None
    verdict: str
    below: float | None


Side = tuple[derive.Values, dict[str, Noise]]  # times in ms by rung and generation, noise by kind of rung


def _judge(names: list[str], kinds: dict[str, str], sides: list[Side], *, gpu: bool) -> dict[str, _Answer]:
    """Return the answers on one quantity of the rungs that both sides have, with Holm's correction over them."""
    shared = [name for name in names if all(times.get(name) and noise for times, noise in sides)]
    questions, effects = [], []
    for name in shared:
        first, second = (np.log(list(times[name].values())) for times, _ in sides)
        few = min(len(first), len(second)) < nested.LEAST_GENERATIONS
        welch = None if few else estimates.welch_interval(first, second)
        difference = welch and nested.Difference(*welch[:3], min(len(first), len(second)))
        floors = [_floor(kinds[name], noise) for _, noise in sides]
        questions.append(answers.question(difference, floors, len(shared), gpu=gpu))
        effects.append(float(np.exp(np.mean(first) - np.mean(second))))
    found = answers.answer(questions)
    return {
        name: _Answer(ratio, _factors(each.interval), each.verdict, each.below)
        for name, ratio, each in zip(shared, effects, found, strict=True)
    }


def seen(before: Result, name: str, after: Result, other: str, *, gpu: bool) -> Seen:
    """Return the answer on a rung of one result and a rung of another: GPU time, or the step's time.

    The verdict is "" where a side has no values, or where its noise is unknown.
    """
    sides: list[Side] = []
    for result, rung in ((before, name), (after, other)):
        kind = next((each.kind for each in result.rungs if each.name == rung), None) or "host"
        noise = (result.gpu_noise if gpu else result.noise) or {}
        times = (derive.gpu_values if gpu else derive.wall_values)(result).get(rung, {})
        sides.append(({"": times}, {"": noise[kind]} if kind in noise else noise))
    found = _judge([""], {"": ""}, sides, gpu=gpu).get("")
    return Seen(found.verdict, found.ratio, found.below) if found else Seen()


def _floor(kind: str, noise: dict[str, Noise]) -> answers.Floor:
    """Return the floor of a kind of rung; the largest that there is, in a run without that kind's."""
    found = noise[kind] if kind in noise else max(noise.values(), key=lambda each: each.floor)
    return answers.Floor(found.floor, found.resolution or found.floor)


def _factors(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return interval and (float(np.exp(interval[0])), float(np.exp(interval[1])))


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
    first, second = loading.load_run(before), loading.load_run(after)
    rows = compare(first, second, anyway)
    two = gains.other_machine(first, second)
    unlike = {row.name: row.reason for row in rows if row.reason != UNKNOWN_NOISE}
    worth = gains.compare(first, second, unlike) if two else []
    if as_json:
        of = {row.name: dataclasses.asdict(row) for row in worth}
        data = [dataclasses.asdict(row) | {"gains": of.get(row.name)} for row in rows]
        print(json.dumps(data, indent=1, allow_nan=False))
        return any(row.is_slower for row in rows)
    lines = [texts.plain(f"before: {heading(first)}"), "after:  " + texts.plain(heading(second))]
    lines += [f"warning: {line}" for line in map(texts.plain, differences(first, second))]
    for when, result in (("before", first), ("after", second)):
        lines += [f"warning: {when}: {line}" for line in map(texts.plain, publishable(result))]
    lines += [f"another series: {line}" for line in map(texts.plain, software(first, second))]
    wide = max(len(row.name) for row in rows)
    clocks = any(row.gpu_verdict for row in rows)
    for row in rows:
        step = Seen(row.verdict, row.ratio, row.below)
        said = _said(row.before_ms, row.after_ms, step, row.interval, row.reason)
        lines.append(f"{row.name:<{wide}} {'step ' * clocks}{said}".rstrip())
        if row.gpu_verdict:
            work = Seen(row.gpu_verdict, row.gpu_ratio, row.gpu_below)
            said = _said(row.gpu_before_ms, row.gpu_after_ms, work, row.gpu_interval, "")
            lines.append(f"{'':<{wide}} GPU  {said}".rstrip())
            if made_of := _made_of(first, second, row):
                lines.append(f"{'':<{wide}}      {made_of}")
    if any(map(_points_apart, rows)):
        lines.append(MEANS)
    if two:
        lines += gains.lines(first, second, worth)
    print("\n".join(lines))
    return any(row.is_slower for row in rows)


def _made_of(before: Result, after: Result, row: Compared) -> str:
    """Return what a difference of GPU time is made of; "" inside the noise, or where a profile is missing."""
    if row.gpu_verdict not in (FASTER, SLOWER):
        return ""
    was, now = (
        next(parts.parts_of(rung) for rung in each.rungs if rung.name == row.name) for each in (before, after)
    )
    return parts.made_of(was, now) if was and now else ""


def _points_apart(row: Compared) -> bool:
    """Return whether a factor that is shown does not follow from the two times beside it."""
    for verdict, ratio, before, after in (
        (row.verdict, row.ratio, row.before_ms, row.after_ms),
        (row.gpu_verdict, row.gpu_ratio, row.gpu_before_ms, row.gpu_after_ms),
    ):
        shown = verdict not in INSIDE and ratio and before and after
        if shown and abs(math.log(before / after / ratio)) > APART:
            return True
    return False


def _said(
    before: float | None, after: float | None, seen: Seen, interval: tuple[float, float] | None, reason: str
) -> str:
    """Return both times, the factor (nothing where it is inside the noise), its interval and the word."""
    times = f"{texts.ms(before):>9} -> {texts.ms(after):<9}"
    ratio = "" if seen.verdict in INSIDE else texts.factor(seen.ratio)
    return f"{times} {ratio:>7}  {texts.bounds(interval):<16} {word(seen) or reason}"
