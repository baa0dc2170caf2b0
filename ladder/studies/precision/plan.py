"""What a precision costs and gives: milliseconds a step, memory, parity, the largest batch; FP32, TF32, BF16, FP16.

Each precision is measured twice: as the baseline in that precision, in which nothing else has changed, and on the top
of the ladder `full` with its precision exchanged (phases in graphs of their own, so that parity sees each of them).
FP8 is tried where PyTorch offers it: in the fully connected layers, beside BF16.

Every number comes from a fresh worker process (`ladder.engine.worker`), timed one at a time; a round visits all rows
in random order (`ladder.studies.precision.run`). How far a batch may grow is tried by building and preparing a step,
which runs every phase once: doubled until one does not fit, then bisected, within a limit of seconds.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ladder.base.errors import UserError
from ladder.engine import pool
from ladder.engine.lanes import MOST_AHEAD
from ladder.machine import system
from ladder.plan import catalog
from ladder.stats import estimates
from ladder.studies.precision.batch_search import LARGEST, cut_short, search
from ladder.studies.precision.run import Run, Session
from ladder.studies.precision.run import TimeUp as TimeUp  # what `save` of `measure` may raise
from stylegan_lite.config import ConfigError, Recipe, suggestion

Tell = Callable[[str], None]
NAMES = {"fp32": "FP32", "tf32": "TF32", "bf16": "BF16", "fp16": "FP16", "fp8": "FP8 dense, BF16"}
BASES = ("baseline", "top")
FLOATS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32", "fp32_precision": "ieee"},
    "tf32": {"precision": "fp32", "fp32_precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fp8": {"precision": "bf16", "dense": "fp8"},
}
NO_TF32 = "TF32 is a mode of NVIDIA's Tensor Cores"
TIMED = ("allocated_gib", "reserved_gib", "device_gib", "rss_gib")


@dataclass(frozen=True)
class Plan:
    """What is asked for; seconds are of each row's search for its largest batch, 0 for none."""

    workload: dict[str, Any]
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
    scale: dict[str, Any] = field(default_factory=dict)  # loss_scale, loss_scale_interval of the history


def rows(plan: Plan) -> list[dict[str, Any]]:
    """A row for each precision on each base, with its recipe or why it has none."""
    capabilities = catalog.possible(system.capabilities(plan.device), plan.workload)
    climbed = catalog.climb(catalog.load_ladder(plan.ladder), capabilities)
    top: dict[str, Any] = next((r.recipe for r in reversed(climbed) if r.recipe is not None), None) or {}
    found = []
    for base in plan.bases:
        below = {} if base == "baseline" else top | {"whole_step_graph": False}
        for precision in plan.precisions:
            row = {"precision": precision, "on": base, "status": "ok", "reason": None, "recipe": None}
            try:
                row["recipe"] = _recipe(below, precision, plan.device, capabilities)
            except ConfigError as error:
                row |= {"status": "n/a", "reason": str(error)}
            found.append(row | {"rounds": [], "parity": None, "largest": None})
    return found


def _recipe(below: dict[str, Any], precision: str, device: str, can: dict[str, str | None]) -> dict[str, Any]:
    """The recipe of the base in another precision; ConfigError, one line, where this machine cannot do it."""
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


# ---- measuring ---------------------------------------------------------------------------------------------------


def measure(
    plan: Plan,
    found: list[dict[str, Any]],
    tell: Tell,
    history: dict[str, Any] | None = None,
    save: Callable[[dict[str, Any] | None], None] = lambda history: None,
    workers: pool.Pool | None = None,
) -> dict[str, Any] | None:
    """Fill in what the rows lack, one part after the other, and return FP16's history; Ctrl-C leaves what is there.

    ``save`` gets the history, or None, after each part; `TimeUp` from it ends what can be gone on with later.
    ``workers`` are ended at the end.
    """
    with workers or pool.Pool() as workers:
        run = Run(plan, {title(row): row for row in able(found)}, workers, tell, lambda: save(history))
        if plan.parity:
            run.inspect_all()
        rng = random.Random(plan.seed)
        for number in range(plan.rounds):
            run.round(number, rng.shuffle)
        scaled = [row for row in able(found) if row["precision"] == "fp16"]
        if plan.steps and scaled and history is None:
            tell(f"{title(scaled[-1])}: loss scales over {plan.steps} steps")
            history = follow_scales(plan, scaled[-1], workers)
            save(history)
        for row in able(found) if plan.batch_seconds else ():
            if row["on"] in plan.batch_bases and row["precision"] != "fp8" and not is_settled(row):
                find_largest_batch(plan, row, tell, workers)
                save(history)
    return history


def begin_ahead(plan: Plan, found: list[dict[str, Any]], workers: pool.Pool) -> None:
    """Let workers import while something else is done. On a CPU they would take cores from it."""
    if plan.device == "cuda":
        workers.begin_ahead(min(len(able(found)), MOST_AHEAD))


def resumed(found: list[dict[str, Any]], before: list[dict[str, Any]]) -> None:
    """Take over, in place, what rows of the same recipe have; a row that failed is tried again."""
    known = {(row["on"], row["precision"]): row for row in before}
    for row in found:
        old = known.get((row["on"], row["precision"]))
        if old and old["recipe"] == row["recipe"]:
            row |= {key: old[key] for key in ("rounds", "parity", "largest")}
            if old["status"] == "failed: parity":
                row |= {key: old[key] for key in ("status", "reason")}


def able(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in found if row["status"] == "ok"]


def title(row: dict[str, Any]) -> str:
    return f"{NAMES[row['precision']]} on the {row['on']}"


def follow_scales(plan: Plan, row: dict[str, Any], workers: pool.Pool) -> dict[str, Any] | None:
    """Both loss scales over a training from the start."""
    recipe = row["recipe"] | plan.scale
    worker = workers.take()
    workers.begin_ahead(tries_ahead(plan) if plan.batch_seconds else 0)
    try:
        with Session(plan, recipe, worker) as session:
            session.build()
            found = session.worker.call("scales", steps=plan.steps)
    except pool.WorkerFailure as error:
        row["reason"] = f"loss scales: {error.reason}"
        return None
    how = {"on": row["on"], "interval": recipe["loss_scale_interval"]}
    return pool.plain(found) | how | {"images": plan.workload["data"] is not None}


# ---- the largest batch -------------------------------------------------------------------------------------------


def is_settled(row: dict[str, Any]) -> bool:
    return row["largest"] is not None and row["largest"]["settled"]


def find_largest_batch(plan: Plan, row: dict[str, Any], tell: Tell, workers: pool.Pool) -> None:
    """Fill in the largest batch of whole minibatch-std groups that fits, as `search` finds it.

    A search that was cut short before is gone on with; an interrupt leaves what was tried.
    """
    group = min(plan.workload["mbstd_group"], plan.workload["batch"])
    tried = [] if row["largest"] is None else [*row["largest"]["tried"]]

    def fits(batch: int) -> str | None:
        tell(f"{title(row)}: does a batch of {batch} fit?")
        worker = workers.take()
        workers.begin_ahead(tries_ahead(plan))
        try:
            with Session(plan, row["recipe"], worker, batch=batch, data=None) as session:
                session.build()
        except pool.WorkerFailure as error:
            return error.reason
        return None

    workers.start_ahead(1)  # importing is no part of the search's seconds
    try:
        row["largest"] = search(
            fits, first_try(plan, row), group, plan.batch_seconds, plan.most_batch, tried=tried
        )
    except KeyboardInterrupt:
        row["largest"] = cut_short(tried) if tried else None
        raise


def tries_ahead(plan: Plan) -> int:
    """Workers that import for the next tries while one tries: nothing is timed then, and a try takes no longer."""
    return 3 if plan.device == "cuda" else 1


def first_try(plan: Plan, row: dict[str, Any]) -> int:
    """The workload's batch, doubled while half of the GPU's memory should do."""
    batch = plan.workload["batch"]
    sizes = [each[key] or 0 for each in row["rounds"] for key in ("reserved_gib", "device_gib")]
    used = max(sizes, default=0)
    while used and plan.memory_gib and 2 * 2 * used < plan.memory_gib and 2 * batch <= plan.most_batch:
        batch, used = 2 * batch, 2 * used
    return batch


# ---- what follows from the samples -------------------------------------------------------------------------------


def derive(found: list[dict[str, Any]]) -> None:
    """Numbers of each row from its rounds, in place."""
    for row in found:
        by_round = medians(row)
        interval = estimates.log_interval(list(by_round.values()))
        row["step_ms"] = estimates.median(list(by_round.values()))
        row["interval_ms"] = interval and list(interval)
        for key in TIMED:
            sizes = [each[key] for each in row["rounds"] if each[key] is not None]
            row[key] = max(sizes, default=None)


def medians(row: dict[str, Any]) -> dict[int, float]:
    """Milliseconds a step of each round."""
    return {each["round"]: statistics.median(each["samples_ms"]) for each in row["rounds"]}


def pairs(found: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(FP32 or TF32, BF16 or FP16) on the same base."""
    by_name = {(row["on"], row["precision"]): row for row in found}
    for (base, precision), row in by_name.items():
        for against in ("fp32", "tf32") if precision in ("bf16", "fp16") else ():
            if (base, against) in by_name:
                yield by_name[base, against], row


def ask(precisions: str | None) -> tuple[str, ...]:
    """Names from a list with commas; `UserError`, one line, for one that is not known."""
    if precisions is None:
        return tuple(NAMES)
    names = tuple(dict.fromkeys(name.strip() for name in precisions.split(",") if name.strip()))
    unknown = [name for name in names or (precisions,) if name not in NAMES]
    if unknown:
        raise UserError(f"no precision {unknown[0]!r}{suggestion(unknown[0], NAMES)}")
    return names
