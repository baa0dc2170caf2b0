"""The comparison of two results: whether a commit, a torch or a driver made any rung faster or slower.

Generations of two runs share no moment, so they are not paired: Welch's interval on the logarithms of the times, a
noise floor that is the larger of the two runs', Holm over the rungs. The step's time and GPU time are compared apart.
What differs between two sessions of one machine (temperature, neighbours) is in neither interval: two runs of each
say more than one.

Between two machines, gains are compared, too. A gain is the difference of two rungs in the same generations of one
run, so the speed of its machine cancels. Two machines' gains are independent: their variances add, the floor is the
largest of both runs, Holm over the rungs.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import asdict as as_fields

from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.core.protocol import FASTER, INSIDE, SLOWER
from ladder.core.text import clean_line, fine_factor, format_bounds
from ladder.plan import modes
from ladder.receipts import categories
from ladder.results import code_digest, derive, judging, loading, parts, sources, store
from ladder.results.combine.merging import compare_fields, list_work_differences
from ladder.results.publishable import publishable
from ladder.results.run import Noise, Result, RungResult
from ladder.results.words import Seen, word
from ladder.stats import answers, estimates, nested
from ladder.stats.answers import Floor, Quantity, Question

UNKNOWN_NOISE = "the noise of one of them is unknown"
OTHER_CODE = "the two measured other code, so a gain that differs may be the code's"
MACHINE = ("gpu", "cpu", "cores", "device")
WORDS = {FASTER: "gains more", SLOWER: "gains less"}  # on the second machine
DIFFERS = tuple(WORDS.values())
_PROTOCOL = ("quick", "mode", "cycle_steps", "gpu_memory_limit_gb")
_LEAST_SHARE = 0.0005  # a smaller one is written as 0.0%
_OVER = {modes.CUMULATIVE: "over the rung before", modes.LEAVE_ONE_OUT: "on top of all others"}
Pair = tuple[str, str]  # the rung that a gain is over, and the rung that gains


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


@dataclass(frozen=True)
class Gain:
    """A rung's gain on two machines by one clock. The ratio is above 1 if it gains more on the second.

    `verdict` says so in words: "gains more", "gains less", "less than", or why nothing is known.
    """

    before: float
    after: float
    ratio: float
    interval: tuple[float, float] | None
    verdict: str
    below: float | None


@dataclass(frozen=True)
class Row:
    """One rung's gains by both clocks, or why there are none. `lies_in` says where a difference lies."""

    name: str
    reason: str
    step: Gain | None = None
    gpu: Gain | None = None
    lies_in: str = ""


# --- times ------------------------------------------------------------------------------------------------------------


def differences(before: Result, after: Result) -> list[str]:
    """Return why the two cannot be compared, a line each: what differs beside code and software."""
    machines, protocols = as_fields(before.machine), as_fields(before.protocol)
    lines = compare_fields("machine", machines, as_fields(after.machine), MACHINE)
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
    cards = [each.protocol.gpu_memory_limit_gb or "all" for each in (before, after)]
    if cards[0] != cards[1]:
        raise UserError(
            f"not comparable: --gpu-memory: {cards[0]} and {cards[1]}; another card was simulated"
        )
    if sources.visits(before) & sources.visits(after):
        raise UserError("not comparable: visits of one run are in both, so both say the same")
    if (lines := differences(before, after)) and not anyway:
        raise UserError(f"not comparable: {'; '.join(lines)}; --anyway compares them nevertheless")
    others = {rung.name: rung for rung in after.rungs}
    pairs = [(rung, others[rung.name]) for rung in before.rungs if rung.name in others]
    if not pairs:
        raise UserError("not comparable: no rung is in both")
    reasons = {a.name: _explain_gap(a, b, before, after) for a, b in pairs}
    names = {name: name for name, reason in reasons.items() if not reason}
    steps, works = (_judge(before, after, names, gpu=gpu) for gpu in (False, True))
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


def seen(before: Result, name: str, after: Result, other: str, *, gpu: bool) -> Seen:
    """Return the answer on a rung of one result and a rung of another: GPU time, or the step's time.

    The verdict is "" where a side has no values, or where its noise is unknown.
    """
    return _judge(before, after, {name: other}, gpu=gpu).get(name, Seen())


def _judge(before: Result, after: Result, names: Mapping[str, str], *, gpu: bool) -> dict[str, Seen]:
    """Return the answers on one quantity of rungs of the first result and, by name, those of the second."""
    pair = before, after
    values = [derive.gpu_values(each) if gpu else derive.wall_values(each) for each in pair]
    noises = [(each.gpu_noise if gpu else each.noise) or {} for each in pair]
    kinds = [{rung.name: rung.kind or "" for rung in each.rungs} for each in pair]
    shared = [
        each for each in names.items() if all(noises) and values[0].get(each[0]) and values[1].get(each[1])
    ]
    questions = {}
    for both in shared:
        first, second = (np.log(list(times[name].values())) for times, name in zip(values, both, strict=True))
        count = min(len(first), len(second))
        welch = estimates.welch_interval(first, second) if count >= nested.LEAST_GENERATIONS else None
        difference = welch and nested.Difference(*welch[:3], count)
        floors = [
            _find_floor(kind[name], noise) for kind, name, noise in zip(kinds, both, noises, strict=True)
        ]
        question = answers.make_question(difference, floors, len(shared), gpu=gpu)
        questions[both[0]] = float(np.exp(np.mean(first) - np.mean(second))), question
    return _answer_questions(questions)


def _find_floor(kind: str, noise: dict[str, Noise]) -> Floor:
    """Return the floor of a kind of rung; the largest that there is, in a run without that kind's."""
    own = noise[kind] if kind in noise else max(noise.values(), key=lambda each: each.floor)
    return Floor(own.floor, own.resolution or own.floor)


def _answer_questions(questions: Mapping[str, tuple[float, Question]]) -> dict[str, Seen]:
    """Return the answer to each rung's question, which stands behind its ratio, with Holm's correction over all."""
    replies = answers.answer_questions([question for _, question in questions.values()])
    return {
        name: Seen(
            each.verdict, ratio, each.below,
            interval=each.interval and (math.exp(each.interval[0]), math.exp(each.interval[1])),
        )
        for (name, (ratio, _)), each in zip(questions.items(), replies, strict=True)
    }  # fmt: skip


def heading(result: Result) -> str:
    """Return what tells one side from the other, in a line."""
    machine, at = result.machine, texts.at_commits(sources.commits(result), result.dirty)
    words = [machine.gpu or machine.cpu, f"PyTorch {machine.torch}", at, result.started[:16]]
    return ", ".join(str(each) for each in words if each)


def show(before: Path, after: Path, anyway: bool, as_json: bool) -> bool:
    """Print the comparison of two files; return whether any rung is slower. Raises `UserError` as `compare` does."""
    first, second = loading.load_run(before), loading.load_run(after)
    rows = compare(first, second, anyway)
    is_other = any(getattr(first.machine, key) != getattr(second.machine, key) for key in MACHINE)
    unlike = {row.name: row.reason for row in rows if row.reason != UNKNOWN_NOISE}
    worth = compare_gains(first, second, unlike) if is_other else []
    if as_json:
        of = {row.name: asdict(row) for row in worth}
        data = [asdict(row) | {"gains": of.get(row.name)} for row in rows]
        print(json.dumps(data, indent=1, allow_nan=False))
        return any(row.is_slower for row in rows)
    lines = [f"before: {heading(first)}", f"after:  {heading(second)}"]
    lines += [f"warning: {line}" for line in differences(first, second)]
    for when, result in (("before", first), ("after", second)):
        lines += [f"warning: {when}: {line}" for line in publishable(result)]
    lines = [*map(clean_line, [*lines, *(f"another series: {line}" for line in software(first, second))])]
    wide, clocks = max(len(row.name) for row in rows), any(row.gpu_verdict for row in rows)
    for row in rows:
        step = Seen(row.verdict, row.ratio, row.below, interval=row.interval)
        line = _format_times(row.before_ms, row.after_ms, step, row.reason)
        lines.append(f"{row.name:<{wide}} {'step ' * clocks}{line}".rstrip())
        if row.gpu_verdict:
            work = Seen(row.gpu_verdict, row.gpu_ratio, row.gpu_below, interval=row.gpu_interval)
            lines.append(
                f"{'':<{wide}} GPU  {_format_times(row.gpu_before_ms, row.gpu_after_ms, work)}".rstrip()
            )
        if row.gpu_verdict in (FASTER, SLOWER):
            was, now = (parts.parts_of(_find_rung(each, row.name)) for each in (first, second))
            lines += [f"{'':<{wide}}      {parts.made_of(was, now)}"] if was and now else []
    if is_other:
        lines += _list_gains(first, second, worth)
    print("\n".join(lines))
    return any(row.is_slower for row in rows)


def _find_rung(result: Result, name: str) -> RungResult:
    return next(rung for rung in result.rungs if rung.name == name)


def _format_times(before: float | None, after: float | None, seen: Seen, reason: str = "") -> str:
    """Return both times, the factor (nothing where it is inside the noise), its interval and the word."""
    times = f"{texts.format_ms(before):>9} -> {texts.format_ms(after):<9}"
    ratio = "" if seen.verdict in INSIDE else texts.format_factor(seen.ratio)
    return f"{times} {ratio:>7}  {format_bounds(seen.interval):<16} {word(seen) or reason}"


# --- gains on two machines --------------------------------------------------------------------------------------------


def other_code(before: Result, after: Result) -> bool:
    """Return whether the two may have measured other code."""
    return bool(code_digest.list_differences(before, after))


def compare_gains(before: Result, after: Result, reasons: Mapping[str, str]) -> list[Row]:
    """Return the gains of each rung that both results compare with the rung before it, or with another.

    Args:
        reasons: by rung of both, why its two times cannot be compared; "" if they can.
    """
    pairs, others = ({name: (a, b) for name, a, b in judging.pairs(each)} for each in (before, after))
    gaps = {}
    for name in [name for name in pairs if name in others]:
        gaps[name] = next((f"{each}: {reasons[each]}" for each in pairs[name] if reasons.get(each)), "")
        if pairs[name] != others[name]:
            gaps[name] = f"over {pairs[name][0]} in the first, over {others[name][0]} in the second"
    alike = {name: pairs[name] for name, reason in gaps.items() if not reason}
    clocks = zip(*map(judging.measured, (before, after)), strict=True)
    steps, works = (_judge_gains(alike, both) for both in clocks)
    rows = []
    for name, reason in gaps.items():
        step, gpu, place = steps.get(name), works.get(name), ""
        if gpu and gpu.verdict in DIFFERS:
            place = _find_kernels(before, after, pairs[name])
        elif step and step.verdict in DIFFERS and gpu and gpu.verdict in INSIDE:
            place = "the GPU's work gains alike: the difference lies in the waiting"
        rows.append(Row(name, reason, step, gpu, place))
    return rows


def _judge_gains(pairs: Mapping[str, Pair], sides: tuple[Quantity, Quantity]) -> dict[str, Gain]:
    """Return the answers on one quantity of the rungs that both sides have."""
    shared = {name: pair for name, pair in pairs.items() if all(side.paired(*pair) for side in sides)}
    floors = [side.floors(len(shared)) for side in sides]
    questions, means = {}, {}
    for name, pair in shared.items():
        known = [
            each.get(side.kinds[rung]) for side, each in zip(sides, floors, strict=True) for rung in pair
        ]
        question = answers.make_question(_apart(sides, pair), known, len(shared), gpu=sides[0].is_gpu)
        first, second = (float(np.mean(list(side.paired(*pair).values()))) for side in sides)
        means[name] = math.exp(first), math.exp(second)
        questions[name] = math.exp(second - first), question
    return {
        name: Gain(
            *means[name], questions[name][0], each.interval, WORDS.get(each.verdict, each.verdict), each.below
        )
        for name, each in _answer_questions(questions).items()
    }


def _apart(sides: tuple[Quantity, Quantity], pair: Pair) -> nested.Difference | None:
    """Return by how much the second side's gain is larger, or None where a side has too few generations."""
    first, second = (side.difference(*pair) for side in sides)
    if first is None or second is None:
        return None
    variances = [(each.error**2, each.freedom) for each in (first, second)]
    variance = sum(part for part, _ in variances)
    weights = sum(part**2 / freedom for part, freedom in variances)
    freedom = variance**2 / weights if weights else first.freedom + second.freedom
    least = min(first.generations, second.generations)
    return nested.Difference(second.mean - first.mean, math.sqrt(variance), freedom, least)


def _find_kernels(before: Result, after: Result, pair: Pair) -> str:
    """Return the categories in which two gains of GPU time differ, and the family of kernels that differs most.

    A share is the GPU time that the rung saves there, of all GPU time without the rung. Where all four profiles show
    it, each instant counts for one family, so together the shares are what the rung saves.
    """
    sides = [[_find_rung(result, name) for name in pair] for result in (before, after)]
    steps = [[*map(parts.parts_of, rungs)] for rungs in sides]
    for when, step in zip(("first", "second"), steps, strict=True):
        if None in step:
            return f"in which kernels is unknown: no profile in the {when}"
    is_once = all(each and each.own is not None for step in steps for each in step)
    saved: list[dict[str, float]] = []
    for rungs, (without, _) in zip(sides, steps, strict=True):
        was, now = (parts.by_family(rung, is_once) for rung in rungs)
        gpu_ms = without.gpu_ms if without else math.nan
        saved.append({name: (was.get(name, 0.0) - now.get(name, 0.0)) / gpu_ms for name in was | now})
    groups: dict[str, dict[str, list[float]]] = defaultdict(dict)  # both shares by category and family
    for family in saved[0] | saved[1]:
        groups[categories.name_category(family)][family] = [each.get(family, 0.0) for each in saved]
    sums = {
        name: [sum(shares) for shares in zip(*group.values(), strict=True)] for name, group in groups.items()
    }
    apart = {name: abs(second - first) for name, (first, second) in sums.items()}
    order, named = sorted(apart, key=lambda name: -apart[name]), []
    for name in order[: parts.MOST]:
        if apart[name] >= max(_LEAST_SHARE, parts.LEAST * apart[order[0]]):
            group, both = (
                groups[name],
                " and ".join(f"{texts.round_number(100 * each, 1):.1f}%" for each in sums[name]),
            )
            most = max(group, key=lambda family: abs(group[family][1] - group[family][0]))
            of = f" (most of it: {clean_line(most)})" if len(group) > 1 else ""
            named.append(f"{clean_line(name)} {both}{of}")
    return f"saved of the GPU time without it: {', '.join(named)}" if named else ""


def _list_gains(before: Result, after: Result, rows: list[Row]) -> list[str]:
    """Return the lines on the gains: each rung by each clock, then a sentence for each clock."""
    if not rows:
        return ["gains: no rung is compared with another in both"]
    first, second = (clean_line(each.machine.gpu or each.machine.cpu) for each in (before, after))
    first, second = (first, second) if first != second else ("the first", "the second")
    lines = [f"warning: {OTHER_CODE}"] if other_code(before, after) else []
    lines.append(f"gains {_OVER.get(before.protocol.mode, 'over the first')}, on {first} and on {second}:")
    wide, clocks = max(len(row.name) for row in rows), any(row.gpu for row in rows)
    for row in rows:
        name = f"{row.name:<{wide}} "
        if row.reason or not row.step:
            lines.append(name + (row.reason or "no generation in common"))
            continue
        lines.append(f"{name}{'step ' * clocks}{_format_gain(row.step)}")
        lines += [f"{'':<{wide}} GPU  {_format_gain(row.gpu)}"] if row.gpu else []
        lines += [f"{'':<{wide}}      {row.lies_in}"] if row.lies_in else []
    for clock, gains in (("GPU time", [row.gpu for row in rows]), ("step", [row.step for row in rows])):
        if line := summary(zip((row.name for row in rows), gains, strict=True), second):
            lines.append(f"{clock}: {line}")
    return lines


def _format_gain(gain: Gain) -> str:
    ratio = "" if _agrees(gain) else fine_factor(gain.ratio)
    factors = f"{fine_factor(gain.before):>7} {fine_factor(gain.after):>7}"
    return f"{factors}  {ratio:>7}  {format_bounds(gain.interval):<16} {told(gain)}".rstrip()


def told(gain: Gain) -> str:
    """Return in words how a gain on the second machine compares: `gains less`, `agree within 1.2%`, `ambiguous`."""
    return _describe_agreement([gain]) if _agrees(gain) else gain.verdict


def _agrees(gain: Gain) -> bool:
    return gain.verdict in INSIDE and gain.below is not None


def summary(gains: Iterable[tuple[str, Gain | None]], second: str) -> str:
    """Return in one sentence which gains agree, and which do not; "" where nothing is known of any.

    What differs comes first, then what is open.
    """
    known = {name: gain for name, gain in gains if gain}
    agree = [gain for gain in known.values() if gain.verdict in INSIDE]
    clauses = [f"{len(agree)} of {len(known)} gains {_describe_agreement(agree)}"] if agree else []
    others = sorted({gain.verdict for gain in known.values()} - {*INSIDE, *DIFFERS})
    for verdict in (*DIFFERS, *others):
        if named := ", ".join(clean_line(name) for name, gain in known.items() if gain.verdict == verdict):
            clauses.append(f"{verdict} on {second}: {named}" if verdict in DIFFERS else f"{verdict}: {named}")
    return "; ".join(clauses)


def _describe_agreement(gains: Sequence[Gain]) -> str:
    """Return how closely gains agree at least: `agree within 1.2%`."""
    return texts.less_than(max(gain.below or 0.0 for gain in gains)).replace("less than", "agree within")
