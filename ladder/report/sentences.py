"""The sentence under a table that says what a rung does to the GPU's work and to the step. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ladder.base.text import factor, fine_factor, less_than, percent
from ladder.results.values import AMBIGUOUS, FASTER, INSIDE, LESS_THAN, SLOWER, TOO_FEW

WAITS = 0.04  # a step whose GPU waits for this share of it has its pace from the CPU
_NEAR = 0.02  # a log ratio below it is told in percent
_OPEN = {AMBIGUOUS: "the change of {} stays ambiguous", TOO_FEW: "{} has too few generations for a verdict"}


@dataclass(frozen=True)
class Seen:
    """The answer of a run on one quantity of a rung. A verdict of "" means that the run has no answer."""

    verdict: str = ""
    ratio: float | None = None  # above 1: less time than before
    below: float | None = None  # log ratio, X of "less than X%"


def word(seen: Seen) -> str:
    """Return the verdict as tables show it: `less than 0.41%` instead of `less than`."""
    return less_than(seen.below) if seen.verdict == LESS_THAN and seen.below is not None else seen.verdict


def answer(seen: Seen) -> str:
    """Return factor and word, the factor only where it says something: `1.13x faster`, `less than 0.41%`."""
    quiet = seen.verdict in (*INSIDE, TOO_FEW)
    return " ".join(part for part in ("" if quiet else fine_factor(seen.ratio), word(seen)) if part)


def sentence(gpu: Seen, wall: Seen, waits: bool) -> str:
    """Return a sentence on both quantities, without the rung's name and the full stop; "" where nothing is known.

    Args:
        gpu, wall: the answers on the GPU's work and on the step.
        waits: whether the GPU waits for a share of the step that counts (`WAITS`).
    """
    if not (gpu.verdict or wall.verdict):
        return ""
    if gpu.verdict == wall.verdict == TOO_FEW:
        return "too few generations for a verdict"
    return f"{_gpu(gpu)}; {_wall(wall)}{_why(gpu, wall, waits)}"


def _gpu(seen: Seen) -> str:
    if seen.verdict in (FASTER, SLOWER):
        less = "less" if seen.verdict == FASTER else "more"
        return f"the GPU's work takes {_by(seen.ratio)} {less} time"
    return _other(seen, "the GPU's work") or "the GPU's time is unknown"


def _wall(seen: Seen) -> str:
    if seen.verdict in (FASTER, SLOWER):
        return f"the step is {_by(seen.ratio)} {seen.verdict}"
    return _other(seen, "the step") or "the step has no verdict"


def _other(seen: Seen, name: str) -> str:
    if seen.verdict in INSIDE:
        return f"{name} shows {'no measurable' if seen.below is None else less_than(seen.below)} difference"
    return _OPEN.get(seen.verdict, "").format(name)


def _by(ratio: float | None) -> str:
    """Return a difference as a factor above 1, or as percent where it is small: `1.13x`, `0.6%`."""
    if not ratio:
        return "measurably"
    size = abs(math.log(ratio))
    return factor(math.exp(size)) if size >= _NEAR else percent(math.expm1(size))


def _why(gpu: Seen, wall: Seen, waits: bool) -> str:
    """Return why the two differ, where their verdicts show it: the GPU waits less or longer, or it waits at all."""
    if not (gpu.verdict and wall.verdict) or TOO_FEW in (gpu.verdict, wall.verdict):
        return ""
    if wall.verdict in (FASTER, SLOWER):
        contrary = gpu.verdict == (SLOWER if wall.verdict == FASTER else FASTER)
        size = abs(math.log(wall.ratio)) if wall.ratio else 0.0
        if contrary or (gpu.verdict == LESS_THAN and gpu.below is not None and size > gpu.below):
            return f", because the GPU waits {'less' if wall.verdict == FASTER else 'longer'}"
    return ", the CPU sets the pace" if waits else ""
