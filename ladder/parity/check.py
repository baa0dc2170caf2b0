"""The check that a rung computes what the plain-PyTorch baseline does: errors against FP64, within a measured budget.

The timed step (its graphs, its static buffers) runs all four phases from the shared state of
``ladder.parity.reference``, twice with different inputs. Given inputs are loaded where it otherwise draws them.
Losses and penalties, the gradient of every parameter, and the moves of weights and moving average are compared as
relative L2 errors. An update is compared, not the weight: beside a weight of 1 a missing update of 0.001 would not
show. Phases that are launched as one graph are run as one, in sequence (``ladder.parity.whole_steps``).

Gradients are read from copies, which the timed step does not make. So a step that passes stops keeping them, and its
graphs are captured anew. Losses, updates, Adam's state and moving average are then compared once more. That is the step
that is traced afterwards, and timed in other processes. Each of those is compared after its times were taken
(``compare_timed_step``): the very graphs whose times count.

The budget is how far plain PyTorch of the same precision strays from FP64 by itself. It is the largest error of
several spellings and algorithms, times a factor (``ladder.parity.budget``). Some quantities have an error above a
quarter in plain PyTorch itself (a scalar that cancels in BF16). They cannot be judged and are counted as unresolved.

There are checks beyond errors (``ladder.parity.freshness``). Two replays must differ, every fill must draw anew, and
phases must not share numbers. Batches must be the images whose turn it is. A cycle must draw, fetch and run each
phase when it is due.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch

from ladder.parity import adam_state, freshness, reference, whole_steps
from ladder.parity.budget import (
    FACTOR,
    LIMIT,
    RESOLVED,
    Errors,
    budgets,
    compare,
    get_spread,
    inputs_are_ours,
    is_whole,
    load,
    measure,
    precision_of,
    run_compared,
    settle_scales,
)
from ladder.parity.reference import Tell
from ladder.parity.whole_steps import Distances, Entry, Summary
from stylegan_lite.config import Workload
from stylegan_lite.step import TrainingStep


class Budget(TypedDict):
    """How a budget was made."""

    factor: float
    precision: str
    spellings: list[str]
    left_out: list[str]  # a line for each spelling that could not run


class MadeOn(TypedDict):
    """How a reference was made."""

    made_on: str  # device
    batch: int
    chunk: int  # samples at a time
    steps: int
    notes: list[str]


class Parity(TypedDict):
    """The outcome of a check."""

    verdict: str  # "ok" or "failed: parity"
    reason: str | None  # the worst finding
    problems: list[str]  # findings, a line each
    phases: Summary
    replays: Distances
    budget: Budget
    reference: MadeOn
    seconds: float


def check(
    step: TrainingStep, *, cache: Path | None = None, tell: Tell | None = None, seed: int = 0
) -> dict[str, Any]:
    """Compare a prepared step, whose ``keep_gradients`` was set before, with the reference.

    Returns a ``Parity``, as plain data for the worker's pipe.

    A step that passes is left in the shared state and as it is timed, without ``keep_gradients``. If the reference
    had to fall back to a smaller batch, a second step of the same recipe and that batch is compared instead.
    """
    begin, tell = time.perf_counter(), tell or (lambda text: None)
    if not step.keep_gradients:
        raise ValueError("parity: keep_gradients must be set before the step is prepared")
    problems = [*freshness.schedule(step), *freshness.draws_anew(step), *freshness.images(step)]
    ref = reference.get(step.workload, step.device, cache, tell)
    precision = precision_of(step.recipe)
    # not by the step's own words
    kinds = freshness.kinds(step.workload) if getattr(step, "together", []) else []
    spread = get_spread(ref, precision, step.device, tell, kinds)
    budget = budgets(spread["errors"], precision)
    other = ref.workload.batch != step.workload.batch
    compared, here = _rebuilt(step, ref.workload, seed) if other else step, ref.on(step.device)
    try:
        runs, distances = measure(compared, here, tell, kinds)
        outside = judge(runs, budget, spread["errors"])
        problems += same_replays(distances) + [problem for _, problem in outside]
        if not on_any_rank(compared, problems):
            tell("as it is timed")
            compared.stop_keeping()  # which captures the graphs anew
            problems += within_budget(compared, here, budget, spread["errors"], tell, kinds)
    finally:
        if other:
            compared.close()
    if other and not on_any_rank(step, problems):
        step.stop_keeping()
    phases = summary(runs, budget, spread["errors"])
    if kinds:
        phases, distances = whole_steps.fold_summary(phases), whole_steps.fold_distances(distances)
    parity: Parity = {
        "verdict": "failed: parity" if problems else "ok",
        "reason": problems[0] if problems else None,
        "problems": problems[:8],
        "phases": phases,
        "replays": distances,
        "budget": {
            "factor": FACTOR,
            "precision": spread["precision"],
            "spellings": spread["spellings"],
            "left_out": spread["left_out"],
        },
        "reference": {
            "made_on": ref.made_on,
            "batch": ref.workload.batch,
            "chunk": ref.chunk,
            "steps": reference.STEPS,
            "notes": ref.notes,
        },
        "seconds": round(time.perf_counter() - begin, 2),
    }
    return dict(parity)


def on_any_rank(step: TrainingStep, problems: Sequence[object]) -> bool:
    """Return whether any rank has a problem. Ranks that went on alone would wait in an all-reduce for ever."""
    ranks = getattr(step, "ranks", None)  # an older commit's step has none
    return bool(problems) if ranks is None else ranks.any(bool(problems), step.device)


def _rebuilt(step: TrainingStep, workload: Workload, seed: int) -> TrainingStep:
    small = TrainingStep(workload, step.recipe, device=step.device, seed=seed)
    small.keep_gradients = True
    small.prepare()
    return small


def within_budget(
    step: TrainingStep,
    ref: reference.Reference,
    budget: Errors,
    spread: Errors,
    tell: Tell,
    kinds: list[tuple[str, ...]],
) -> list[str]:
    """Compare all but gradients of a step that keeps no copies of them, with the graphs it has. Return the problems.

    One set of inputs is enough if nothing is outside the budget: the set that the buffers did not hold at the capture.
    """
    settle_scales(step, ref, kinds)
    runs: list[Errors] = []
    problems: list[tuple[float, str]] = []
    for number in range(reference.REPLAYS):
        runs.append(_errors_as_timed(step, ref, number, kinds, tell))
        problems = judge(runs, {key: room for key, room in budget.items() if key in runs[0]}, spread)
        if not on_any_rank(step, problems):
            break
    return [f"as it is timed: {problem}" for _, problem in problems]


class Comparison(TypedDict):
    """One line each, or None: the worst finding, and why the step could not be compared."""

    problem: str | None
    left_out: str | None


def compare_timed_step(step: TrainingStep, tell: Tell) -> Comparison:
    """Compare a step that has just been timed, with its own graphs and buffers. It is of no use afterwards.

    Gradients are not compared, as a timed step keeps no copies of them. Losses, updates, Adam's state and the moving
    average are.

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
        problems = within_budget(step, ref.on(step.device), budget, spread, tell, kinds)
    except torch.OutOfMemoryError:  # beside other processes: the reference stays on the CPU
        torch.cuda.empty_cache()
        problems = within_budget(step, ref, budget, spread, tell, kinds)
    return {"problem": problems[0].removeprefix("as it is timed: ") if problems else None, "left_out": None}


def _errors_as_timed(
    step: TrainingStep, ref: reference.Reference, number: int, kinds: list[tuple[str, ...]], tell: Tell
) -> Errors:
    errors: Errors = {}
    with inputs_are_ours(step):
        load(step, ref.draws()[number])
        for name, outcomes, exact in run_compared(step, ref, number, kinds, tell, "as it is timed"):
            right = whole_steps.add_adam(ref, exact, name, outcomes[name])
            right = {quantity: named for quantity, named in right.items() if quantity != "gradient"}
            errors |= compare(name, outcomes[name], whole_steps.on(right, step.device))
    return errors


def judge(runs: list[Errors], budget: Errors, spread: Errors) -> list[tuple[float, str]]:
    """Return every resolved quantity outside its budget as (times its budget, one line).

    The worst of each phase and quantity come first, then the others, each worst first. Adam's state comes after the
    quantities that cause it.

    Outside means in every replay, or for a whole (a loss, all gradients) by more than ``LIMIT`` in one. A single
    replay may be unlucky: an activation within rounding of zero takes the other slope of the leaky ReLU. In a small
    layer that is a thousand times the usual error. A wrong computation is wrong for all inputs.
    """
    problems: list[tuple[float, str, tuple[str, str]]] = []
    for key, room in budget.items():
        if spread[key] > RESOLVED:
            continue
        errors = [run[key] for run in runs]
        error, limit = min(errors), room
        if error <= room and is_whole(key):
            error, limit = max(errors), max(room, LIMIT if room else 0.0)
        if error > limit:
            phase, quantity, what = key.split("/", 2)
            where = f"{phase} {quantity}" + ("" if what == quantity else f" of {_in_words(what)}")
            line = f"{where}: error {error:.2g}, budget {limit:.2g}"
            problems.append((error / max(limit, 1e-12), line, (phase, quantity)))
    problems.sort(reverse=True)
    first = {kind: line for _, line, kind in reversed(problems)}
    problems.sort(key=lambda each: (each[1] != first[each[2]], each[2][1] in adam_state.QUANTITIES))
    return [(times, line) for times, line, _ in problems]


def summary(runs: list[Errors], budget: Errors, spread: Errors) -> Summary:
    """Return phase -> quantity -> figures: error and budget of the whole, the tensor nearest to its budget, counts.

    The error of the whole is the larger of the replays'. That of the nearest tensor is the smaller, which is judged.
    """
    table: dict[str, dict[str, list[str]]] = {}
    for key in runs[0]:
        table.setdefault(key.split("/")[0], {}).setdefault(key.split("/")[1], []).append(key)
    return {
        phase: {quantity: _entry(keys, runs, budget, spread) for quantity, keys in quantities.items()}
        for phase, quantities in table.items()
    }


def _entry(keys: list[str], runs: list[Errors], budget: Errors, spread: Errors) -> Entry:
    error = {key: min(run[key] for run in runs) for key in keys}
    whole = next((key for key in keys if is_whole(key)), keys[0])
    judged = [key for key in keys if spread[key] <= RESOLVED]
    nearest = max(judged or keys, key=lambda key: error[key] / max(budget[key], 1e-12))
    return {
        "error": max(run[whole] for run in runs),
        "budget": budget[whole],
        "nearest": _in_words(nearest.split("/", 2)[2]),
        "nearest_error": error[nearest],
        "nearest_budget": budget[nearest],
        "judged": len(judged),
        "unresolved": len(keys) - len(judged),
    }


def _in_words(name: str) -> str:
    """Return a tensor's name; a pool of tensors is "all weight", all pools together are "everything"."""
    return "everything" if name == "*all" else name.replace("*", "all ")


def same_replays(distances: Distances) -> list[str]:
    """Return a line for each phase whose two replays are not a tenth as far apart as the reference's."""
    return [
        f"{phase}: two replays with different inputs give the same gradients (distance {d['rung']:.2g}, "
        f"reference {d['reference']:.2g})"
        for phase, d in distances.items()
        if not d["rung"] > d["reference"] / 10
    ]
