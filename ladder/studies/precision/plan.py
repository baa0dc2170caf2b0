"""The plan of `ladder precision`: which precisions are measured, on which base, for how long.

Each of FP32, TF32, BF16 and FP16 is measured twice. One row is the baseline in that precision, otherwise unchanged.
The other is the top of the ladder `full` in that precision. There each phase has its own graph, so that parity sees
each phase. FP8 is tried where PyTorch offers it: in the fully connected layers, beside BF16.

Every number comes from a fresh worker process (`ladder.engine.worker`), timed one at a time. A round visits all rows
in random order (`ladder.studies.precision.run`). The largest batch is found by preparing steps, which runs every phase
once. The batch doubles until it does not fit, then is bisected, within a limit of seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ladder.base.errors import UserError
from ladder.machine import system
from ladder.plan import catalog, needs
from ladder.results.types import Plain
from ladder.studies.precision.batch_search import LARGEST
from ladder.studies.precision.record import NAMES, TIMED, Row, Rows, title
from stylegan_lite.config import ConfigError, Recipe, suggestion

Tell = Callable[[str], None]
BASES = ("baseline", "top")
FLOATS: dict[str, dict[str, str]] = {
    "fp32": {"precision": "fp32", "fp32_precision": "ieee"},
    "tf32": {"precision": "fp32", "fp32_precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fp8": {"precision": "bf16", "dense": "fp8"},
}
NO_TF32 = "TF32 is a mode of NVIDIA's Tensor Cores"


@dataclass(frozen=True)
class Plan:
    """The user's request. Seconds limit each row's search for its largest batch; 0 skips it."""

    workload: Plain
    device: str
    precisions: tuple[str, ...] = tuple(NAMES)
    bases: tuple[str, ...] = BASES
    ladder: str = "full"
    rounds: int = 3
    cycles: int = 2
    seed: int = 0
    parity: bool = True
    batch_seconds: float = 60.0
    batch_bases: tuple[str, ...] = ("baseline",)
    most_batch: int = LARGEST
    memory_gib: float | None = None
    steps: int = 4000
    scale: dict[str, float] = field(default_factory=dict)  # loss_scale, loss_scale_interval of the history


def rows(plan: Plan) -> Rows:
    """Return a row for each precision on each base, with its recipe or the reason why it has none."""
    capabilities = needs.possible(system.capabilities(plan.device), plan.workload)
    climbed = catalog.climb(catalog.load_ladder(plan.ladder), capabilities)
    top = next((r.recipe for r in reversed(climbed) if r.recipe is not None), None) or {}
    found = []
    for base in plan.bases:
        below = {} if base == "baseline" else top | {"whole_step_graph": False}
        for precision in plan.precisions:
            try:
                recipe = _recipe(below, precision, plan.device, capabilities)
            except ConfigError as error:
                found.append(new_row(precision, base, None, str(error)))
            else:
                found.append(new_row(precision, base, recipe))
    return {title(row): row for row in found}


def new_row(precision: str, base: str, recipe: Plain | None, reason: str | None = None) -> Row:
    """Return a row of which nothing is measured, or that cannot run for `reason`."""
    return Row(
        precision=precision, on=base, status="ok" if reason is None else "n/a", reason=reason, recipe=recipe, rounds=[],
        parity=None, largest=None, step_ms=None, interval_ms=None, **dict.fromkeys(TIMED),
    )  # fmt: skip


def _recipe(below: Plain, precision: str, device: str, can: dict[str, str | None]) -> Plain:
    """Return the base's recipe in another precision. Raises ConfigError where this machine cannot run it."""
    change = dict(FLOATS[precision])
    if device == "cpu":
        if precision == "tf32":
            raise ConfigError(NO_TF32)
        change.pop("fp32_precision", None)
    if precision in ("bf16", "fp8") and can["bf16"]:
        raise ConfigError(can["bf16"])
    recipe = Recipe.from_dict(below | change)
    recipe.refuse_on(device)
    return recipe.to_dict()


def ask(precisions: str | None) -> tuple[str, ...]:
    """Return the names in a comma-separated list. Raises UserError for an unknown name."""
    if precisions is None:
        return tuple(NAMES)
    names = tuple(dict.fromkeys(name.strip() for name in precisions.split(",") if name.strip()))
    unknown = [name for name in names or (precisions,) if name not in NAMES]
    if unknown:
        raise UserError(f"no precision {unknown[0]!r}{suggestion(unknown[0], NAMES)}")
    return names
