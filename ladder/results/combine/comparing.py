"""The comparison of two results: whether a commit, a torch or a driver made any rung faster or slower.

Generations of two runs share no moment, so they are not paired: Welch's interval on the logarithms of the times, a
noise floor that is the larger of the two runs', Holm over the rungs. The step's time and GPU time are compared apart.
What differs between two sessions of one machine (temperature, neighbours) is in neither interval: two runs of each
say more than one.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import asdict as as_fields

from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.core.protocol import FASTER, INSIDE, SLOWER
from ladder.results import derive, loading, parts, sources, store
from ladder.results.combine import gains
from ladder.results.combine.merging import compare_fields, list_work_differences
from ladder.results.publishable import publishable
from ladder.results.run import Noise, Result, RungResult
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

    The same of GPU time, where both results have it. `below` is X of "less than X%", a log ratio.
    """

    name: str
    before_ms: float | None
    after_ms: float | None
    ratio: float | None
    interval: tuple[float, float] | None
    verdict: str
    reason: str
    below: float | None = None
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
    machines, protocols = as_fields(before.machine), as_fields(before.protocol)
    lines = compare_fields("machine", machines, as_fields(after.machine), gains.MACHINE)
    lines += list_work_differences(before, after)
    return lines + compare_fields("protocol", protocols, as_fields(after.protocol), _PROTOCOL)


def software(before: Result, after: Result) -> list[str]:
    """Return what software differs, a line each. It may be compared, as code may; the two are no longer one series."""
    versions = [(key, *(getattr(each.machine, key) for each in (before, after))) for key in store.SOFTWARE]
    return [f"{key}: {was} and {now}" for key, was, now in versions if was != now]


def compare(before: Result, after: Result, anyway: bool = False) -> list[Compared]:
    """Return a verdict for each rung of `before` that both have; `faster` means that `after` is.

    Raises `UserError` if they are not comparable (unless `anyway`) or have no rung in common. A simulated card is never
    comparable with another, nor a run with itself.
    """
    cards = [each.protocol.gpu_memory_limit_gb for each in (before, after)]
    if cards[0] != cards[1]:
        both = " and ".join(f"{each:g} GiB" if each else "all of it" for each in cards)
        raise UserError(f"not comparable: --gpu-memory: {both}; another card was simulated")
    if sources.visits(before) & sources.visits(after):
        raise UserError("not comparable: visits of one run are in both, so both say the same")
    if (lines := differences(before, after)) and not anyway:
        raise UserError(f"not comparable: {'; '.join(lines)}; --anyway compares them nevertheless")
    others = {rung.name: rung for rung in after.rungs}
    pairs = [(rung, others[rung.name]) for rung in before.rungs if rung.name in others]
    if not pairs:
        raise UserError("not comparable: no rung is in both")
    reasons = {a.name: _explain_gap(a, b, before, after) for a, b in pairs}
    names = [name for name, reason in reasons.items() if not reason]
    kinds = {rung.name: rung.kind or "host" for rung in (*after.rungs, *before.rungs)}
    steps, works = (
        _judge(names, kinds, [_take_side(each, is_gpu) for each in (before, after)], is_gpu)
        for is_gpu in (False, True)
    )
    rows = []
    for a, b in pairs:
        step, gpu = steps.get(a.name, Seen()), works.get(a.name)
        own = (step.ratio, step.interval, step.verdict, reasons[a.name], step.below)
        on_gpu = (a.gpu_ms, b.gpu_ms, gpu.ratio, gpu.interval, gpu.verdict, gpu.below) if gpu else ()
        rows.append(Compared(a.name, a.step_ms, b.step_ms, *own, *on_gpu))  # type: ignore[call-arg]
    return rows


def _explain_gap(a: RungResult, b: RungResult, before: Result, after: Result) -> str:
    for when, rung in (("first", a), ("second", b)):
        if not derive.is_timed(rung):
            return f"{rung.status} in the {when}"
    one, two = a.recipe or {}, b.recipe or {}
    if any(one[key] != two[key] for key in one.keys() & two.keys()):
        return "another recipe"  # a field that only one commit knows is at its default there
    return "" if before.noise and after.noise else UNKNOWN_NOISE


Side = tuple[derive.Values, dict[str, Noise]]  # times in ms by rung and generation, noise by kind of rung


def _take_side(result: Result, is_gpu: bool) -> Side:
    if is_gpu:
        return derive.gpu_values(result), result.gpu_noise or {}
    return derive.wall_values(result), result.noise or {}


def _judge(names: list[str], kinds: dict[str, str], sides: list[Side], is_gpu: bool) -> dict[str, Seen]:
    """Return the answers on one quantity of the rungs that both sides have, with Holm's correction over them."""
    shared = [name for name in names if all(times.get(name) and noise for times, noise in sides)]
    questions, effects = [], []
    for name in shared:
        first, second = (np.log(list(times[name].values())) for times, _ in sides)
        few = min(len(first), len(second)) < nested.LEAST_GENERATIONS
        welch = None if few else estimates.welch_interval(first, second)
        difference = welch and nested.Difference(*welch[:3], min(len(first), len(second)))
        floors = [_find_floor(kinds[name], noise) for _, noise in sides]
        questions.append(answers.make_question(difference, floors, len(shared), gpu=is_gpu))
        effects.append(float(np.exp(np.mean(first) - np.mean(second))))
    judged = {}
    for name, ratio, each in zip(shared, effects, answers.answer_questions(questions), strict=True):
        interval = each.interval and (math.exp(each.interval[0]), math.exp(each.interval[1]))
        judged[name] = Seen(each.verdict, ratio, each.below, interval=interval)
    return judged


def seen(before: Result, name: str, after: Result, other: str, *, gpu: bool) -> Seen:
    """Return the answer on a rung of one result and a rung of another: GPU time, or the step's time.

    The verdict is "" where a side has no values, or where its noise is unknown.
    """
    sides: list[Side] = []
    for result, rung in ((before, name), (after, other)):
        kind = next((each.kind for each in result.rungs if each.name == rung), None) or "host"
        times, noise = _take_side(result, gpu)
        sides.append(({"": times.get(rung, {})}, {"": noise[kind]} if kind in noise else noise))
    return _judge([""], {"": ""}, sides, gpu).get("", Seen())


def _find_floor(kind: str, noise: dict[str, Noise]) -> answers.Floor:
    """Return the floor of a kind of rung; the largest that there is, in a run without that kind's."""
    own = noise[kind] if kind in noise else max(noise.values(), key=lambda each: each.floor)
    return answers.Floor(own.floor, own.resolution or own.floor)


def heading(result: Result) -> str:
    """Return what tells one side from the other, in a line."""
    machine, at = result.machine, texts.at_commits(sources.commits(result), result.dirty)
    words = [machine.gpu or machine.cpu, f"PyTorch {machine.torch}", at, result.started[:16]]
    return ", ".join(str(each) for each in words if each)


def show(before: Path, after: Path, anyway: bool, as_json: bool) -> bool:
    """Print the comparison of two files; return whether any rung is slower. Raises `UserError` as `compare` does."""
    first, second = loading.load_run(before), loading.load_run(after)
    rows = compare(first, second, anyway)
    two = gains.other_machine(first, second)
    unlike = {row.name: row.reason for row in rows if row.reason != UNKNOWN_NOISE}
    worth = gains.compare(first, second, unlike) if two else []
    if as_json:
        of = {row.name: asdict(row) for row in worth}
        print(
            json.dumps([asdict(row) | {"gains": of.get(row.name)} for row in rows], indent=1, allow_nan=False)
        )
        return any(row.is_slower for row in rows)
    lines = [f"before: {heading(first)}", f"after:  {heading(second)}"]
    lines += [f"warning: {line}" for line in differences(first, second)]
    for when, result in (("before", first), ("after", second)):
        lines += [f"warning: {when}: {line}" for line in publishable(result)]
    lines = [
        *map(texts.clean_line, lines),
        *(f"another series: {texts.clean_line(line)}" for line in software(first, second)),
    ]
    wide = max(len(row.name) for row in rows)
    clocks = any(row.gpu_verdict for row in rows)
    for row in rows:
        step = Seen(row.verdict, row.ratio, row.below, interval=row.interval)
        line = _format(row.before_ms, row.after_ms, step, row.reason)
        lines.append(f"{row.name:<{wide}} {'step ' * clocks}{line}".rstrip())
        if row.gpu_verdict:
            work = Seen(row.gpu_verdict, row.gpu_ratio, row.gpu_below, interval=row.gpu_interval)
            line = _format(row.gpu_before_ms, row.gpu_after_ms, work)
            lines.append(f"{'':<{wide}} GPU  {line}".rstrip())
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


def _format(before: float | None, after: float | None, seen: Seen, reason: str = "") -> str:
    """Return both times, the factor (nothing where it is inside the noise), its interval and the word."""
    times = f"{texts.format_ms(before):>9} -> {texts.format_ms(after):<9}"
    ratio = "" if seen.verdict in INSIDE else texts.format_factor(seen.ratio)
    return f"{times} {ratio:>7}  {texts.format_bounds(seen.interval):<16} {word(seen) or reason}"
