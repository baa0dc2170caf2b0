"""The explanation of a difference: what the GPU work of two rungs consists of, from result files alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.base.protocol import FASTER, INSIDE, SLOWER
from ladder.base.text import aligned, escaped, piped, plain
from ladder.plan import modes
from ladder.report import view
from ladder.results import derive, judging, parts
from ladder.results.combine import comparing
from ladder.results.parts import OVERLAP, Parts, Work
from ladder.results.run import Result, RungResult
from ladder.results.words import UNDECIDED, Seen, word

GIB = 2**30
SEEN = 0.005  # ms: less is 0.00 in a table
LAUNCHES = ("launches before", "launches after")


@dataclass(frozen=True)
class Side:
    """A rung of a result with the parts of its step."""

    path: Path
    result: Result
    rung: RungResult
    parts: Parts


@dataclass(frozen=True)
class Explained:
    """Two rungs, and the answers on the GPU's work and on the step. An answer's ratio above 1 is a gain."""

    before: Side
    after: Side
    gpu: Seen
    step: Seen

    @property
    def differs(self) -> bool:
        """Whether the GPU's work differs beyond the noise floor."""
        return self.gpu.verdict in (FASTER, SLOWER)

    @property
    def names(self) -> tuple[str, str]:
        """The names of the two sides: those of the rungs if they differ."""
        first, second = plain(self.before.rung.name), plain(self.after.rung.name)
        return (first, second) if first != second else (f"{first} before", f"{second} after")


def explain(before: Side, after: Side) -> Explained:
    """Return two rungs with the answers on their difference."""
    if before.result is not after.result:
        pair = (before.result, before.rung.name, after.result, after.rung.name)
        return Explained(before, after, comparing.seen(*pair, gpu=True), comparing.seen(*pair, gpu=False))
    return Explained(before, after, _answer(before, after, gpu=True), _answer(before, after, gpu=False))


def _answer(before: Side, after: Side, *, gpu: bool) -> Seen:
    """Return the answer on two rungs of one result: the verdict of its table, or one of their own."""
    first, second = before.rung, after.rung
    if (before.result.protocol.mode or modes.CUMULATIVE) != modes.LEAVE_ONE_OUT:
        if found := _judged(first, second, gpu=gpu):
            return found
        if found := _judged(second, first, gpu=gpu):
            turned = {FASTER: SLOWER, SLOWER: FASTER}.get(found.verdict, found.verdict)
            return Seen(turned, found.ratio and 1 / found.ratio, found.below)
    of = judging.measured(before.result)[gpu]
    if not of.paired(first.name, second.name):
        return Seen()
    (answer,) = of.answers([(first.name, second.name)])
    return Seen(answer.verdict, None if answer.effect is None else math.exp(answer.effect), answer.below)


def _judged(first: RungResult, second: RungResult, *, gpu: bool) -> Seen | None:
    """Return the stored answer on the second rung if it was judged against the first."""
    gain, verdict = (second.gpu_gain, second.gpu_verdict) if gpu else (second.gain, second.verdict)
    if not gain or not verdict or gain.against != first.name:
        return None
    return Seen(verdict, gain.ratio, gain.below)


# --- what is told ---------------------------------------------------------------------------------------------------


def sentence(found: Explained) -> str:
    """Return what the difference is made of, in a sentence; or that there is none, or that it is not decided."""
    first, second = found.names
    if not found.differs:
        why = word(found.gpu) or "the noise of GPU time is unknown"
        told = "no difference" if found.gpu.verdict in INSIDE else UNDECIDED
        return f"{told}: the GPU's work of {first} and {second} is not told apart ({why})"
    apart = found.after.parts.gpu_ms - found.before.parts.gpu_ms
    said = f"{abs(apart):.2f} ms {'less' if apart < 0 else 'more'} GPU work than {first}"
    return f"{second}: {said}: {parts.made_of(found.before.parts, found.after.parts)}"


def notes(found: Explained) -> list[str]:
    """Return the lines under the table: both clocks, memory, kernels, and the cycle that the parts belong to."""
    first, second = found.before.rung, found.after.rung
    waits = (second.host_bound or 0) >= view.WAITS
    clocks = view.describe_gain(found.gpu, found.step, waits)
    lines = [f"{found.names[1]}: {clocks}"] * bool(clocks)
    held = [
        f"{name} {_gib(was)} -> {_gib(now)} GiB" for name, was, now in _memory(first, second) if was and now
    ]
    lines += [f"memory: {', '.join(held)}"] * bool(held)
    if found.differs:
        lines += _kernels(found)
    at = [f"{each.parts.gpu_ms:.2f} ms in generation {each.parts.generation + 1}" for each in _sides(found)]
    lines.append(
        f"parts are of the first profiled cycle of one process: {' and '.join(at)}; nothing is scaled"
    )
    if found.differs and _overlaps(found):
        lines.append(_overlap(found))
    return lines


def _kernels(found: Explained) -> list[str]:
    if found.before.parts.named_earlier != found.after.parts.named_earlier:
        return ["kernels by name: not compared, because one file has the names of an earlier version"]
    lines = parts.came_and_went(found.before.parts, found.after.parts)
    least = max(each.parts.unlisted_ms for each in _sides(found))
    if lines and least:
        lines.append(f"of the heaviest kernels by name: one below {least:.2f} ms may have run in both")
    return lines


def _overlaps(found: Explained) -> bool:
    return max(each.parts.overlap_ms for each in _sides(found)) >= SEEN


def _overlap(found: Explained) -> str:
    if not parts.once(found.before.parts, found.after.parts):
        return (
            f"{OVERLAP}: two kernels ran at once, and both parts count it; the parts without it are GPU time"
        )
    ran = " and ".join(f"{each.parts.overlap_ms:.2f}" for each in _sides(found))
    return (
        f"beside another kernel ran {ran} ms more: an instant counts for the kernel of the busier stream alone;"
        " kernels by name have all their milliseconds"
    )


def _sides(found: Explained) -> tuple[Side, Side]:
    return found.before, found.after


def _memory(first: RungResult, second: RungResult) -> list[tuple[str, int | None, int | None]]:
    """Return (name, bytes before, bytes after) of each measure of memory."""
    held = [
        max((each.device_used_bytes or 0 for each in derive.counted(rung)), default=0) or None
        for rung in (first, second)
    ]
    return [
        ("allocated", first.peak_allocated_bytes, second.peak_allocated_bytes),
        ("on the device", held[0], held[1]),
    ]


def _gib(size: int | None) -> str:
    return f"{(size or 0) / GIB:.2f}"


# --- the table ------------------------------------------------------------------------------------------------------


def head(found: Explained) -> list[str]:
    """Return the headings of the table."""
    return ["ms a step", *found.names, "change", *LAUNCHES]


def rows(found: Explained) -> list[list[str]]:
    """Return the rows of the table: categories if there is a difference, then GPU time, waiting and step."""
    a, b = found.before.parts, found.after.parts
    made = []
    if found.differs:
        made = [_row(plain(row.category), row.before, row.after) for row in parts.changes(a, b)]
        if _overlaps(found) and not parts.once(a, b):
            made.append(_row(OVERLAP, Work(-a.overlap_ms), Work(-b.overlap_ms)))
    made.append(_row("GPU time of that cycle", Work(a.gpu_ms, a.launches), Work(b.gpu_ms, b.launches)))
    first, second = found.before.rung, found.after.rung
    for name, was, now in (
        ("GPU time, all generations", first.gpu_ms, second.gpu_ms),
        ("waiting", first.waiting_ms, second.waiting_ms),
        ("step", first.step_ms, second.step_ms),
    ):
        if isinstance(was, float | int) and isinstance(now, float | int):
            made.append(_row(name, Work(was), Work(now)))
    return made


def _row(name: str, was: Work, now: Work) -> list[str]:
    launched = [f"{each.launches:,.1f}" if was.launches or now.launches else "" for each in (was, now)]
    return [name, _ms(was.ms), _ms(now.ms), _ms(now.ms - was.ms, "+"), *launched]


def _ms(value: float, sign: str = "") -> str:
    """Return milliseconds with two decimals. Nothing has no sign."""
    told = f"{value:{sign}.2f}"
    return told if float(told) else "0.00"


def text(found: Explained) -> str:
    """Return the explanation for a terminal."""
    lines = aligned([head(found), *rows(found)], words=(0,))
    return "\n".join([sentence(found), "", *_headings(found), "", *lines, "", *notes(found)])


def markdown(found: Explained) -> str:
    """Return the explanation as a section of Markdown."""
    lines = [f"### {escaped(' and '.join(found.names))}", "", escaped(sentence(found)), ""]
    lines += [*(f"- {escaped(line)}" for line in _headings(found)), ""]
    return "\n".join([*lines, table(found), *(f"- {escaped(line)}" for line in notes(found))]) + "\n"


def table(found: Explained) -> str:
    """Return the table alone as Markdown."""
    return "\n".join(piped([head(found), *rows(found)])) + "\n"


def _headings(found: Explained) -> list[str]:
    """Return the lines on where the numbers come from: one for one file, two for two, with what sets them apart."""
    made = [
        plain(f"{each.result.workload['name']}, {comparing.heading(each.result)}, {each.path}")
        for each in _sides(found)
    ]
    if found.before.result is found.after.result:
        return made[:1]
    apart = comparing.differences(found.before.result, found.after.result)
    apart += comparing.software(found.before.result, found.after.result)
    return [f"before: {made[0]}", f"after:  {made[1]}", *(f"differs: {plain(line)}" for line in apart)]


def data(found: Explained) -> dict[str, Any]:
    """Return the explanation as plain data: exact numbers, ms and launches of a step, bytes."""
    a, b = found.before.parts, found.after.parts
    changed = parts.changes(a, b) if found.differs else []
    return {
        "sentence": sentence(found),
        "differs": found.differs,
        "gpu_verdict": found.gpu.verdict or None,
        "step_verdict": found.step.verdict or None,
        "before": _side(found.before, found.after),
        "after": _side(found.after, found.before),
        "categories": [
            {
                "category": row.category,
                "before_ms": row.before.ms,
                "after_ms": row.after.ms,
                "change_ms": row.ms,
                "launches_before": row.before.launches,
                "launches_after": row.after.launches,
            }
            for row in changed
        ],
        "appeared": _named(parts.appeared(a, b).items() if found.differs else ()),
        "went": _named(parts.appeared(b, a).items() if found.differs else ()),
    }


def _side(side: Side, other: Side) -> dict[str, Any]:
    rung = side.rung
    return {
        "file": str(side.path),
        "rung": rung.name,
        "gpu_ms": side.parts.gpu_ms,
        "overlap_ms": side.parts.overlap_ms,
        "launches": side.parts.launches,
        "generation": side.parts.generation,
        "median_gpu_ms": rung.gpu_ms or None,
        "waiting_ms": rung.waiting_ms if rung.gpu_ms else None,
        "step_ms": rung.step_ms,
        "allocated_bytes": _memory(rung, other.rung)[0][1],
        "device_bytes": _memory(rung, other.rung)[1][1],
    }


def _named(kernels: Iterable[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"name": name, "ms": ms} for name, ms in kernels]
