"""What errors cannot show: that every replay draws its own numbers, and that a cycle runs every phase.

Parity loads given numbers, so it never sees how a step draws; and it runs phases itself, so it never sees which ones a
step would run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stylegan_lite.step import CYCLE, TrainingStep


def draws_anew(step: TrainingStep) -> list[str]:
    """Buffers that a fill leaves as they were, phases with the same numbers, or a real batch that stays."""
    problems = []
    first: dict[str, list[Tensor]] = {}
    for phase in step.inputs:
        step._fill(phase)
    for phase in step.inputs:  # all are filled by now: a buffer that two phases share shows
        first[phase] = [part.clone() for part in _parts(step, phase)]
    for phase, before in first.items():
        step._fill(phase)
        if any(_share_equal(a, b) > 0.01 for a, b in zip(before, _parts(step, phase), strict=True)):
            problems.append(f"{phase}: a replay is given the numbers of the one before")
    names = list(first)
    for k, phase in enumerate(names):
        for other in names[k + 1 :]:
            if any(_share_equal(a, b) > 0.01 for a, b in zip(first[phase], first[other], strict=False)):
                problems.append(f"{phase} and {other}: the phases share their latents or noise")
    feed = step.feed
    if feed.sampler.length > feed.batch:
        feed.next()
        real = step.real.clone()
        feed.next()
        if torch.equal(real, step.real):
            problems.append("two steps are given the same real images")
    return problems


def _parts(step: TrainingStep, phase: str) -> list[Tensor]:
    """Latents, cutoff and noise, in an order that pairs them between phases."""
    inputs = step.inputs[phase]
    image = [] if inputs.image_noise is None else [inputs.image_noise]
    return [inputs.z, inputs.uniform, *inputs.noise, *image]


def _share_equal(a: Tensor, b: Tensor) -> float:
    n = min(len(a), len(b))
    return float((a[:n] == b[:n]).double().mean()) if a.shape[1:] == b.shape[1:] else 0.0


def schedule(step: TrainingStep) -> list[str]:
    """Phases that a cycle does not run at their interval. Nothing is computed: the phases are only counted."""
    ran: list[str] = []
    count, w = step.count, step.workload
    step.run_phase, step.replay_together, step.feed.next = ran.append, ran.extend, lambda: None
    try:
        step.cycle()
    finally:
        del step.run_phase, step.replay_together, step.feed.next
        step.count = count
    expected = {
        "G_main": CYCLE,
        "G_pl": CYCLE // w.pl_interval,
        "D_main": CYCLE,
        "D_r1": CYCLE // w.r1_interval,
    }
    return [
        f"a cycle runs {phase} {ran.count(phase)} times, expected {times}"
        for phase, times in expected.items()
        if ran.count(phase) != times
    ]
