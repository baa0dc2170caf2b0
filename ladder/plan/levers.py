"""Levers that change the model, beside the unchanged one (`ladder run --mode levers`). They are no optimizations.

Each entry runs one recipe on another workload: the fields `convolution`, `block_layers`, widths and depths. The recipe
is the top of the article's ladder with `conv_double_backward`. PyTorch's own second derivative of a convolution in
groups takes seconds, and would hide all else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ladder.base.plain import Fields
from ladder.plan import catalog
from ladder.plan.catalog import Planned
from ladder.plan.variants import Variant

STUDY = "levers"
TITLE = "Levers that change the model: no optimizations"
UNCHANGED = "unchanged"
EXEMPT = "another model: its tests compare gradients, not a run"
ALSO = "conv_double_backward"
LEVERS: tuple[tuple[str, str, str], ...] = (
    ("separable", "depthwise-separable convolutions", "3x3 of each channel by itself, then 1x1"),
    ("grouped", "grouped convolutions", "3x3 in 8 groups of channels, then 1x1"),
    ("inverted_residual", "inverted residuals", "1x1 to twice the channels, 3x3 of each, then 1x1"),
    ("half_width", "half width", "half the channels in every layer"),
    ("half_depth", "half depth", "one convolution in a block instead of two, half the mapping layers"),
)


def names() -> list[str]:
    """Return the names of all entries, in order."""
    return [UNCHANGED, *(name for name, *_ in LEVERS)]


def fields_of(name: str, workload: Mapping[str, Any]) -> Fields:
    """Return the fields of the workload that a lever changes."""
    if name == "half_width":
        return {key: max(1, workload[key] // 2) for key in ("channel_base", "channel_max")}
    if name == "half_depth":
        return {"block_layers": 1, "mapping_layers": max(1, workload["mapping_layers"] // 2)}
    return {"convolution": name}


def plan(
    ladder: catalog.Ladder,
    capabilities: dict[str, str | None],
    only: Iterable[str] | None = None,
    workload: Mapping[str, Any] | None = None,
) -> list[Planned]:
    """Return the unchanged model and each lever beside it, or those that `only` names.

    Without a workload the names alone hold.

    Raises:
        UserError: `only` names something else.
    """
    chosen = catalog.chosen(names(), only, "the levers")
    recipe = {**top(ladder, capabilities), **catalog.load_rung(ALSO).change}
    base = Variant(STUDY, "the model of the workload", patched=False)
    made = [Planned(UNCHANGED, "the unchanged model", recipe, None, None, base)]
    for name, title, why in LEVERS:
        if name in chosen:
            changed = {} if workload is None else fields_of(name, workload)
            skipped = None if workload is None else _impossible(workload, changed)
            variant = Variant(STUDY, why, EXEMPT, workload=changed)
            made.append(Planned(name, title, None if skipped else recipe, skipped, None, variant))
    return made


def top(ladder: catalog.Ladder, capabilities: dict[str, str | None]) -> Fields:
    """Return the recipe of the ladder's highest rung that runs here."""
    climbed = catalog.climb(ladder, capabilities)
    return next((rung.recipe for rung in reversed(climbed) if rung.recipe is not None), {})


def _impossible(workload: Mapping[str, Any], changed: Fields) -> str | None:
    from stylegan_lite.config import ConfigError, Workload

    try:
        Workload.from_dict({**workload, **changed}, where="this workload")
    except ConfigError as error:
        return str(error)
    return None
