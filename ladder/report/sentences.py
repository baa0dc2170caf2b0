"""The sentence under a table that says what a rung does to the GPU's work and to the step. Pure functions."""

from __future__ import annotations

import math

from ladder.base.text import factor, less_than, percent, plain
from ladder.plan import modes
from ladder.results.values import AMBIGUOUS, FASTER, INSIDE, LESS_THAN, SLOWER, TOO_FEW
from ladder.results.words import Seen

WAITS = 0.04  # a step whose GPU waits for this share of it has its pace from the CPU
ALONE = "with it, "  # of a rung that was left out by itself
_NEAR = 0.02  # a log ratio below it is told in percent
MORE = math.log(1.05)  # a step that changes by so much more than the GPU's work has another reason, too
_OPEN = {AMBIGUOUS: "the change of {} stays ambiguous", TOO_FEW: "{} has too few generations for a verdict"}


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


def at_the_top(said: str, title: str) -> str:
    """Return a sentence on the whole ladder against the entry of a leave-one-out run: what was left out comes first.

    The entry's title names the rungs that were left out together, because they need the first: `without A and without
    B`, `without A and 3 that need it`. The gain is that of all of them.
    """
    names = title.removeprefix("without ").split(" and without ")
    alone = len(names) == 1 and not names[0].endswith(modes.NEED_IT)
    these = ALONE if alone else f"with {plain(' and '.join(names))}, "
    return these + said if said else ""


def of_step(wall: Seen) -> str:
    """Return the part on the step alone; "" where nothing is known."""
    if wall.verdict == TOO_FEW:
        return "too few generations for a verdict"
    return _wall(wall) if wall.verdict else ""


def _gpu(seen: Seen) -> str:
    if seen.verdict in (FASTER, SLOWER):
        return f"the GPU's work is {_by(seen.ratio)} {seen.verdict}"
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
        if gpu.verdict == wall.verdict and gpu.ratio and size > abs(math.log(gpu.ratio)) + MORE:
            return f", because the GPU also waits {'less' if wall.verdict == FASTER else 'longer'}"
    return ", the CPU sets the pace" if waits else ""
