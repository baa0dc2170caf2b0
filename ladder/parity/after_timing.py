"""Parity of a step that has just been timed: its own graphs and buffers, on the reference's state and inputs.

The check before timing (`ladder.parity.check`) sees another process. This one sees the very graphs whose times count.
Gradients are not compared, as a timed step keeps no copies of them: losses, updates, Adam's state and the moving
average are.
"""

from __future__ import annotations

from typing import TypedDict

import torch

from ladder.parity import check, freshness, reference
from ladder.parity.budget import budgets, get_spread, precision_of
from ladder.parity.spread import Tell
from stylegan_lite.step import TrainingStep


class Found(TypedDict):
    """One line each, or None: the worst finding, and why the step could not be compared."""

    problem: str | None
    left_out: str | None


def compare(step: TrainingStep, tell: Tell) -> Found:
    """Compare a step, which is of no use afterwards. Within the parity budget it has no problem.

    The timed buffers do not fit a reference that had to fall back to a smaller batch.
    """
    ref = reference.get(step.workload, step.device, None, tell)
    if (fits := ref.workload.batch) != step.workload.batch:
        why = f"its batch of {step.workload.batch} does not fit a reference of {fits}"
        return {"problem": None, "left_out": why}
    kinds = freshness.kinds(step.workload) if getattr(step, "together", []) else []
    precision = precision_of(step.recipe)
    spread = get_spread(ref, precision, step.device, tell, kinds)["errors"]
    budget = budgets(spread, precision)
    try:
        found = check.within_budget(step, ref.on(step.device), budget, spread, tell, kinds)
    except torch.OutOfMemoryError:  # beside other processes: the reference stays on the CPU
        torch.cuda.empty_cache()
        found = check.within_budget(step, ref, budget, spread, tell, kinds)
    return {"problem": found[0].removeprefix("as it is timed: ") if found else None, "left_out": None}
