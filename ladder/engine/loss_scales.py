"""The loss scales of an FP16 training over its steps, noted on the device while it trains and read once at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NETWORKS = ("G", "D")
MOST_CHANGES = (
    4000  # a scale moves a few times, then once in an interval: kept whole unless something is wrong
)


def follow_scales(
    step: Any, steps: int, on_step: Callable[[int], None] = lambda number: None
) -> dict[str, Any]:
    """Train for `steps` and return both scales at each step where they, or the counts of skipped updates, changed.

    Each step costs two small launches more; nothing waits for the device.
    """
    import torch

    if not step.scales:
        raise ValueError("loss scales: this recipe has none, they belong to precision: fp16")
    values = [value for name in NETWORKS for value in (step.scales[name].scale, step.scales[name].skipped)]
    noted = torch.zeros(steps, len(values), dtype=torch.float64, device=step.device)
    for number in range(steps):
        step.step()
        noted[number].copy_(torch.stack([value.double() for value in values]))
        on_step(number + 1)
    lines, changes = noted.tolist(), []
    for number, (g_scale, g_skipped, d_scale, d_skipped) in enumerate(lines, start=1):
        line = [g_scale, d_scale, int(g_skipped), int(d_skipped)]
        if not changes or changes[-1][1:] != line:
            changes.append([number, *line])
    updates = {name: int(step.scales[name].updates) for name in NETWORKS}
    skipped = {name: int(step.scales[name].skipped) for name in NETWORKS}
    return {
        "steps": steps,
        "initial": step.recipe.loss_scale,
        "changes": changes[:MOST_CHANGES],
        "updates": updates,
        "skipped": skipped,
    }
