"""The check that a rung computes what the plain-PyTorch baseline does: errors against FP64, within a measured budget.

The timed step (its graphs, its static buffers) runs all four phases from the shared state of
``ladder.parity.reference``, twice with different inputs. Given inputs are loaded where it otherwise draws them.
Losses and penalties, the gradient of every parameter, and the moves of weights and moving average are compared as
relative L2 errors. An update is compared, not the weight: beside a weight of 1 a missing update of 0.001 would not
show. Phases that are launched as one graph are run as one, in sequence.

Gradients are read from copies, which the timed step does not make. So a step that passes stops keeping them, its graphs
are captured anew, and all but gradients is compared once more. That is the step that is traced afterwards, and timed in
other processes. Each of those is compared after its times were taken (``compare_timed_step``).

The budget is how far plain PyTorch of the same precision strays from FP64 by itself (``ladder.parity.budget``). Some
quantities have an error above a quarter in plain PyTorch itself (a scalar that cancels in BF16). They cannot be judged
and are counted as unresolved. What errors cannot show is in ``ladder.parity.freshness``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch

import stylegan_lite
from ladder.parity import adam_state, freshness, reference
from ladder.parity.budget import (
    FACTOR,
    LIMIT,
    RESOLVED,
    Distance,
    Errors,
    add_adam,
    compare_phase,
    derive_budgets,
    get_spread,
    is_whole,
    measure_errors,
    move_outcome,
    precision_of,
    run_compared,
    settle_scales,
)
from ladder.parity.reference import Reference, Tell, inputs_are_ours, load_inputs
from stylegan_lite.step import TrainingStep


class Entry(TypedDict):
    """Error and budget of one quantity: of the whole, and of the tensor nearest to its budget.

    The error of the whole is the larger of the replays'. The error of the nearest tensor is the smaller, which is
    judged.
    """

    error: float
    budget: float
    nearest: str
    nearest_error: float
    nearest_budget: float
    judged: int
    unresolved: int


Summary = dict[str, dict[str, Entry]]  # phase -> quantity -> figures


class Parity(TypedDict):
    """The outcome of a check."""

    verdict: str  # "ok" or "failed: parity"
    reason: str | None  # the worst finding
    problems: list[str]  # findings, a line each
    phases: Summary
    replays: dict[str, Distance]  # by phase
    budget: dict[str, Any]  # factor, precision, spellings, and a line for each spelling that could not run
    reference: dict[str, Any]  # device, batch, samples at a time, steps before it, and notes
    seconds: float


def check_step(
    step: TrainingStep, *, cache: Path | None = None, tell: Tell | None = None, seed: int = 0
) -> dict[str, Any]:
    """Compare a prepared step, whose ``keep_gradients`` was set before, with the reference.

    Returns a ``Parity``, as plain data for the worker's pipe.

    A step that passes is left in the shared state and as it is timed, without ``keep_gradients``. If the reference
    had to fall back to a smaller batch, a second step of the same recipe and that batch is compared instead.
    """
    begin = time.perf_counter()
    if not step.keep_gradients:
        raise ValueError("parity: keep_gradients must be set before the step is prepared")
    problems = [*freshness.check_schedule(step), *freshness.draws_anew(step), *freshness.check_images(step)]
    ref = get_reference(step, cache, tell)
    spread = get_spread(ref, precision_of(step.recipe), step.device)
    factor, notes = choose_factor(step)
    budget = derive_budgets(spread["errors"], spread["precision"], factor, step.owners)
    compared = step
    if other := ref.workload.batch != step.workload.batch:
        workload, recipe = ref.workload.to_dict(), step.recipe.to_dict()
        compared = stylegan_lite.make_step(workload, recipe, device=step.device, seed=seed)
        compared.keep_gradients = True
        compared.prepare()
    here = ref if other else ref.on(step.device)
    try:
        runs, distances = measure_errors(compared, here)
        problems += find_same_replays(distances) + judge_runs(runs, budget, spread["errors"])
        if not on_any_rank(compared, problems):
            ref.tell("as it is timed")
            compared.stop_keeping()  # which captures the graphs anew
            timed = compare_as_timed(compared, here, budget, spread["errors"])
            problems += [f"as it is timed: {problem}" for problem in timed]
    finally:
        if other:
            compared.close()
    if other and not on_any_rank(step, problems):
        step.stop_keeping()
    # by phase: of the kind of step whose replays are nearest to each other
    replays: dict[str, Distance] = {}
    for label, each in sorted(
        distances.items(), key=lambda pair: pair[1]["rung"] / max(pair[1]["reference"], 1e-12)
    ):
        replays.setdefault(label.split(" ", 1)[0], each)
    parity: Parity = {
        "verdict": "failed: parity" if problems else "ok",
        "reason": problems[0] if problems else None,
        "problems": problems[:8],
        "phases": summarize_runs(runs, budget, spread["errors"]),
        "replays": replays,
        "budget": {"factor": factor} | {key: spread[key] for key in ("precision", "spellings", "left_out")},
        "reference": {
            "made_on": ref.made_on,
            "batch": ref.workload.batch,
            "chunk": ref.chunk,
            "steps": reference.STEPS,
            "notes": [*ref.notes, *notes],
        },
        "seconds": round(time.perf_counter() - begin, 2),
    }
    return dict(parity)


def choose_factor(step: TrainingStep) -> tuple[float, list[str]]:
    """Return the factor of a step's budget. A pair may ask for a wider one, with a reason, which is stored."""
    wider, reason = getattr(step.pair, "tolerance", (1.0, ""))
    return FACTOR * max(1.0, wider), [f"budget {wider:g} times as wide: {reason}"] if wider > 1 else []


def get_reference(step: TrainingStep, cache: Path | None, tell: Tell | None) -> Reference:
    """Return the reference of a step: of whole steps if it launches them so, not by the step's own words."""
    kinds = freshness.list_kinds(step) if getattr(step, "together", []) else []
    return reference.get_reference(step.workload, step.device, cache, tell, kinds)


def on_any_rank(step: TrainingStep, problems: Sequence[object]) -> bool:
    """Return whether any rank has a problem. Ranks that went on alone would wait in an all-reduce for ever."""
    ranks = getattr(step, "ranks", None)  # an older commit's step has none
    return bool(problems) if ranks is None else ranks.any(bool(problems), step.device)


def compare_as_timed(step: TrainingStep, ref: Reference, budget: Errors, spread: Errors) -> list[str]:
    """Compare all but gradients of a step that keeps no copies of them, with the graphs it has. Return the problems.

    One set of inputs is enough if nothing is outside the budget: the set that the buffers did not hold at the capture.
    """
    settle_scales(step, ref)
    runs: list[Errors] = []
    problems: list[str] = []
    for number, inputs in enumerate(ref.draws(step)):
        errors: Errors = {}
        with inputs_are_ours(step):
            load_inputs(step, inputs)
            for name, outcomes, exact in run_compared(step, ref, number, "as it is timed"):
                right = add_adam(ref, step, exact, name, outcomes[name])
                right = {quantity: named for quantity, named in right.items() if quantity != "gradient"}
                errors |= compare_phase(name, outcomes[name], move_outcome(right, step.device))
        runs.append(errors)
        problems = judge_runs(runs, {key: room for key, room in budget.items() if key in errors}, spread)
        if not on_any_rank(step, problems):
            break
    return problems


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
    ref = get_reference(step, None, tell)
    if (fits := ref.workload.batch) != step.workload.batch:
        why = f"its batch of {step.workload.batch} does not fit a reference of {fits}"
        return {"problem": None, "left_out": why}
    precision = precision_of(step.recipe)
    spread = get_spread(ref, precision, step.device)["errors"]
    budget = derive_budgets(spread, precision, choose_factor(step)[0], step.owners)
    try:
        problems = compare_as_timed(step, ref.on(step.device), budget, spread)
    except torch.OutOfMemoryError:  # beside other processes: the reference stays on the CPU
        torch.cuda.empty_cache()
        problems = compare_as_timed(step, ref, budget, spread)
    return {"problem": problems[0] if problems else None, "left_out": None}


def judge_runs(runs: list[Errors], budget: Errors, spread: Errors) -> list[str]:
    """Return a line for every resolved quantity outside its budget.

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
    return [line for _, line, _ in problems]


def summarize_runs(runs: list[Errors], budget: Errors, spread: Errors) -> Summary:
    """Return phase -> quantity -> figures; of whole steps those of the kind that is nearest to its budget."""
    groups: dict[tuple[str, str], list[str]] = {}
    for key in runs[0]:
        label, quantity, _ = key.split("/", 2)
        groups.setdefault((label, quantity), []).append(key)
    table: Summary = {}
    for (label, quantity), keys in groups.items():
        error = {key: min(run[key] for run in runs) for key in keys}
        near = {key: error[key] / max(budget[key], 1e-12) for key in keys}
        whole = next((key for key in keys if is_whole(key)), keys[0])
        judged = [key for key in keys if spread[key] <= RESOLVED]
        nearest = max(judged or keys, key=lambda key: near[key])
        entry: Entry = {
            "error": max(run[whole] for run in runs),
            "budget": budget[whole],
            "nearest": _in_words(nearest.split("/", 2)[2]),
            "nearest_error": error[nearest],
            "nearest_budget": budget[nearest],
            "judged": len(judged),
            "unresolved": len(keys) - len(judged),
        }
        of_phase = table.setdefault(label.split(" ", 1)[0], {})
        other = of_phase.get(quantity)
        if other is None or near[nearest] > other["nearest_error"] / max(other["nearest_budget"], 1e-12):
            of_phase[quantity] = entry
    return table


def _in_words(name: str) -> str:
    """Return a tensor's name; a pool of tensors is "all weight", all pools together are "everything"."""
    return "everything" if name == "*all" else name.replace("*", "all ")


def find_same_replays(distances: dict[str, Distance]) -> list[str]:
    """Return a line for each phase whose two replays are not a tenth as far apart as the reference's."""
    return [
        f"{phase}: two replays with different inputs give the same gradients (distance {d['rung']:.2g}, "
        f"reference {d['reference']:.2g})"
        for phase, d in distances.items()
        if not d["rung"] > d["reference"] / 10
    ]
