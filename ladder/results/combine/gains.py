"""The comparison of gains on two machines: which rung is worth more on one of them, and in which kernels that lies.

A gain is the difference of two rungs in the same generations of one run, so the speed of its machine cancels. Two
machines' gains are independent: their variances add, the floor is the largest of both runs, Holm over the rungs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ladder.core.protocol import FASTER, INSIDE, SLOWER
from ladder.core.text import clean_line, fine_factor, format_bounds, less_than, round_number
from ladder.plan import modes
from ladder.receipts import categories
from ladder.results import code_digest, judging, parts
from ladder.results.run import Result
from ladder.stats import answers
from ladder.stats.answers import Quantity
from ladder.stats.nested import Difference

MACHINE = ("gpu", "cpu", "cores", "device")
WORDS = {FASTER: "gains more", SLOWER: "gains less"}  # on the second machine
DIFFERS = tuple(WORDS.values())
OTHER_CODE = "the two measured other code, so a gain that differs may be the code's"
_SEEN = 0.0005  # a share that is told as 0.0%
_OVER = {modes.CUMULATIVE: "over the rung before", modes.LEAVE_ONE_OUT: "on top of all others"}
Pair = tuple[str, str]  # the rung that a gain is over, and the rung that gains


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


def other_machine(before: Result, after: Result) -> bool:
    """Return whether two machines measured, so that gains say more than times."""
    return any(getattr(before.machine, key) != getattr(after.machine, key) for key in MACHINE)


def other_code(before: Result, after: Result) -> bool:
    """Return whether the two may have measured other code."""
    return bool(code_digest.list_differences(before, after))


def compare(before: Result, after: Result, reasons: Mapping[str, str]) -> list[Row]:
    """Return the gains of each rung that both results compare with the rung before it, or with another.

    Args:
        reasons: by rung of both, why its two times cannot be compared; "" if they can.
    """
    pairs, others = ({name: (a, b) for name, a, b in judging.pairs(each)} for each in (before, after))
    gaps = {name: _explain_gap(pairs[name], others[name], reasons) for name in pairs if name in others}
    asked = {name: pairs[name] for name, reason in gaps.items() if not reason}
    steps, works = (_judge(asked, both) for both in zip(*map(judging.measured, (before, after)), strict=True))
    rows = []
    for name, reason in gaps.items():
        step, gpu = steps.get(name), works.get(name)
        place = "" if reason else _find_place(before, after, pairs[name], step, gpu)
        rows.append(Row(name, reason, step, gpu, place))
    return rows


def _explain_gap(first: Pair, second: Pair, reasons: Mapping[str, str]) -> str:
    if first != second:
        return f"over {first[0]} in the first, over {second[0]} in the second"
    return next((f"{name}: {reasons[name]}" for name in first if reasons.get(name)), "")


def _judge(asked: Mapping[str, Pair], sides: tuple[Quantity, Quantity]) -> dict[str, Gain]:
    """Return the answers on one quantity of the rungs that both sides have."""
    shared = {name: pair for name, pair in asked.items() if all(side.paired(*pair) for side in sides)}
    floors = [side.floors(len(shared)) for side in sides]
    questions, effects = [], []
    for pair in shared.values():
        known = [
            each.get(side.kinds[name]) for side, each in zip(sides, floors, strict=True) for name in pair
        ]
        questions.append(answers.make_question(_apart(sides, pair), known, len(shared), gpu=sides[0].is_gpu))
        means = [list(side.paired(*pair).values()) for side in sides]
        effects.append([sum(values) / len(values) for values in means])
    return {
        name: Gain(
            math.exp(first),
            math.exp(second),
            math.exp(second - first),
            each.interval and (math.exp(each.interval[0]), math.exp(each.interval[1])),
            WORDS.get(each.verdict, each.verdict),
            each.below,
        )
        for name, (first, second), each in zip(
            shared, effects, answers.answer_questions(questions), strict=True
        )
    }


def _apart(sides: tuple[Quantity, Quantity], pair: Pair) -> Difference | None:
    """Return by how much the second side's gain is larger, or None where a side has too few generations."""
    first, second = (side.difference(*pair) for side in sides)
    if first is None or second is None:
        return None
    parts_ = [(each.error**2, each.freedom) for each in (first, second)]
    variance = sum(part for part, _ in parts_)
    weights = sum(part**2 / freedom for part, freedom in parts_)
    freedom = variance**2 / weights if weights else first.freedom + second.freedom
    least = min(first.generations, second.generations)
    return Difference(second.mean - first.mean, math.sqrt(variance), freedom, least)


# --- where a difference lies ----------------------------------------------------------------------------------------


def _find_place(before: Result, after: Result, pair: Pair, step: Gain | None, gpu: Gain | None) -> str:
    """Return where gains that differ do so: in kernels, or in the waiting; "" where none differs for sure."""
    if gpu and gpu.verdict in DIFFERS:
        return _find_kernels(before, after, pair)
    if step and step.verdict in DIFFERS and gpu and gpu.verdict in INSIDE:
        return "the GPU's work gains alike: the difference lies in the waiting"
    return ""


def _find_kernels(before: Result, after: Result, pair: Pair) -> str:
    """Return the categories in which two gains of GPU time differ, and the family of kernels that differs most.

    A share is the GPU time that the rung saves there, of all GPU time without the rung. Where all four profiles show
    it, each instant counts for one family, so together the shares are what the rung saves.
    """
    sides = []
    for when, result in (("first", before), ("second", after)):
        rungs = [next(rung for rung in result.rungs if rung.name == name) for name in pair]
        without, rung = map(parts.parts_of, rungs)
        if without is None or rung is None:
            return f"in which kernels is unknown: no profile in the {when}"
        sides.append((rungs, without.gpu_ms, parts.once(without, rung)))
    once = all(counts_once for *_, counts_once in sides)
    saved: list[dict[str, float]] = []
    for rungs, gpu_ms, _ in sides:
        was, now = (parts.by_family(rung, once) for rung in rungs)
        saved.append({name: (was.get(name, 0.0) - now.get(name, 0.0)) / gpu_ms for name in was | now})
    shares: dict[str, list[float]] = {}
    largest: dict[str, tuple[float, str]] = {}  # by category, of the family that differs most
    families: dict[str, int] = {}
    for family in saved[0] | saved[1]:
        name, pair_of_shares = categories.name_category(family), [each.get(family, 0.0) for each in saved]
        shares[name] = [a + b for a, b in zip(shares.get(name, (0.0, 0.0)), pair_of_shares, strict=True)]
        apart = abs(pair_of_shares[1] - pair_of_shares[0])
        largest[name] = max(largest.get(name, (-1.0, "")), (apart, family), key=lambda each: each[0])
        families[name] = families.get(name, 0) + 1
    order = sorted(shares, key=lambda name: -abs(shares[name][1] - shares[name][0]))
    least = parts.LEAST * abs(shares[order[0]][1] - shares[order[0]][0]) if order else 0.0
    named = []
    for name in order[: parts.MOST]:
        if abs(shares[name][1] - shares[name][0]) >= max(_SEEN, least):
            both = " and ".join(f"{round_number(100 * share, 1):.1f}%" for share in shares[name])
            most = f" (most of it: {clean_line(largest[name][1])})" if families[name] > 1 else ""
            named.append(f"{clean_line(name)} {both}{most}")
    return f"saved of the GPU time without it: {', '.join(named)}" if named else ""


# --- the lines --------------------------------------------------------------------------------------------------------


def lines(before: Result, after: Result, rows: list[Row]) -> list[str]:
    """Return the lines on the gains: a sentence for each clock, then each rung by each clock."""
    if not rows:
        return ["gains: no rung is compared with another in both"]
    first, second = (clean_line(each.machine.gpu or each.machine.cpu) for each in (before, after))
    first, second = (first, second) if first != second else ("the first", "the second")
    made = [f"warning: {OTHER_CODE}"] if other_code(before, after) else []
    made.append(f"gains {_OVER.get(before.protocol.mode, 'over the first')}, on {first} and on {second}:")
    wide, clocks = max(len(row.name) for row in rows), any(row.gpu for row in rows)
    for row in rows:
        name = f"{row.name:<{wide}} "
        if row.reason or not row.step:
            made.append(name + (row.reason or "no generation in common"))
            continue
        made.append(f"{name}{'step ' * clocks}{_format(row.step)}")
        made += [f"{'':<{wide}} GPU  {_format(row.gpu)}"] if row.gpu else []
        made += [f"{'':<{wide}}      {row.lies_in}"] if row.lies_in else []
    for clock, gains in (("GPU time", [row.gpu for row in rows]), ("step", [row.step for row in rows])):
        if line := summary(zip((row.name for row in rows), gains, strict=True), second):
            made.append(f"{clock}: {line}")
    return made


def _format(gain: Gain) -> str:
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
    others = {gain.verdict for gain in known.values()} - set(INSIDE)
    made = []
    if agree:
        count = f"all {len(agree)}" if len(agree) == len(known) else f"{len(agree)} of {len(known)}"
        made.append(f"{count} gains {_describe_agreement(agree)}")
    for verdict in [*(each for each in DIFFERS if each in others), *sorted(others - set(DIFFERS))]:
        named = ", ".join(clean_line(name) for name, gain in known.items() if gain.verdict == verdict)
        made.append(f"{verdict} on {second}: {named}" if verdict in DIFFERS else f"{verdict}: {named}")
    return "; ".join(made)


def _describe_agreement(gains: Sequence[Gain]) -> str:
    """Return how closely gains agree at least: `agree within 1.2%`."""
    return less_than(max(gain.below or 0.0 for gain in gains)).replace("less than", "agree within")
