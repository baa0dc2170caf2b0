"""The words and figures that only an entry of a study has (`ladder.plan.mistakes`, `ladder.plan.levers`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ladder.base.text import plain
from ladder.plan import levers, mistakes, modes
from ladder.report.sentences import of_step
from ladder.report.sentences import sentence as of_both
from ladder.results.run import RungResult
from ladder.results.words import Seen


def why(mode: str, name: str) -> str:
    """Return why an entry costs what it costs, or what it changes; "" for the first entry, and a foreign name."""
    if mode == modes.MISTAKES:
        return next((each.why for each in mistakes.MISTAKES if each.name == name), "")
    return (
        next((said for lever, _, said in levers.LEVERS if lever == name), "") if mode == modes.LEVERS else ""
    )


def sentence(mode: str, name: str, gpu: Seen, wall: Seen, waits: bool) -> str:
    """Return one sentence on an entry, without the full stop: `the GPU's work is ...; the step is ...: REASON`.

    Files of before GPU time was judged tell the step alone.
    """
    said, reason = of_both(gpu, wall, waits) if gpu.verdict else of_step(wall), why(mode, name)
    return f"{said}: {reason}" if said and reason else said


@dataclass(frozen=True)
class Cost:
    """The figures of a row that only entries of a study have."""

    updates: int = 1  # of D in a step, each on a batch of images
    image_ms: float | None = None
    flops: float | None = None  # of a step
    parameters: int | None = None


NOTHING = Cost()


def cost(rung: RungResult) -> Cost:
    """Return the figures of an entry."""
    seen, images = rung.inspection or None, rung.images_per_s
    counted = (seen.flops or None, seen.parameters or None) if seen else (None, None)
    return Cost(rung.updates, 1000 / images if images else None, *counted)


def exempt(rungs: Iterable[RungResult]) -> list[str]:
    """Return a line for each reason why parity of timed entries is not judged."""
    found: dict[str, list[str]] = {}
    for rung in rungs:
        if rung.variant and rung.variant.exempt and rung.status == "ok":
            found.setdefault(plain(rung.variant.exempt), []).append(plain(rung.name))
    return [f"{', '.join(names)}: exempt from parity: {reason}" for reason, names in found.items()]
