"""The training of a rank that writes nothing: the steps of the rank that does, one by one."""

from __future__ import annotations

from pathlib import Path

import stylegan_lite
from ladder.base.plain import Fields
from ladder.base.stopping import stop_between
from ladder.images.prepare import ImageSet
from ladder.training import checkpoint
from ladder.training.ranks import Ranks
from ladder.training.train import content_of


def follow(
    workload: Fields,
    recipe: Fields,
    images: ImageSet,
    ranks: Ranks,
    *,
    steps: int,
    device: str,
    seed: int = 0,
    resume: Path | None = None,
) -> None:
    """Train as a rank that writes nothing, in step with the one that calls `train`.

    Raises:
        KeyboardInterrupt: a rank was told to stop.
    """
    content = None if resume is None else content_of(resume, workload, images, device, steps)
    seed = seed if content is None else content["seed"]
    step = stylegan_lite.make_step({**workload, "data": images.path}, recipe, device=device, seed=seed)
    try:
        step.prepare()
        if resume is not None and content is not None:
            checkpoint.restore(resume, content, step)
        with stop_between() as stopped:
            agreed = ranks.agreed(stopped)
            # Like `ladder.training.train`, ask before each step whether to stop, and not after the last.
            while step.count < steps and not agreed():
                step.step()
            if step.count < steps:
                raise KeyboardInterrupt
    finally:
        step.close()
