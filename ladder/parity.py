"""Does a rung still compute what the plain-PyTorch baseline does? Errors against FP64, judged by a measured budget.

The step that is timed (its graphs, its static buffers) runs all four phases from the shared state of
``ladder.reference``, with given inputs loaded where it otherwise draws them, twice with different inputs. Losses and
penalties, the gradient of every parameter, and what weights and moving average moved by are compared as relative L2
errors. An update is compared, not the weight: beside a weight of 1 a missing update of 0.001 would not show.

The budget is how far plain PyTorch of the same precision strays from FP64 by itself: the largest error of ``spread``'s
spellings and algorithms, times ``FACTOR``. What plain PyTorch itself gets wrong by more than ``RESOLVED`` (a scalar
that cancels in BF16) cannot be judged; it is counted as unresolved.

Beyond errors: two replays must differ, every fill must draw anew, phases must not share numbers, and a cycle must run
each phase at its interval.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder import reference
from ladder.errors import describe
from ladder.files import replacing
from ladder.reference import Draw, Outcome, Reference
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.step import CYCLE, PHASES, TrainingStep

FACTOR = 4.0  # a rung may stray this many times as far as the worst plain spelling of its precision
RESOLVED = 0.25  # relative error of plain PyTorch above which a quantity is not judged
LIMIT = 0.5  # no budget is wider: what is missing has an error of 1
FLOOR = {"fp32": 1e-6, "bf16": 2**-9}  # one rounding is never outside
SMALLEST = 1e-6  # of a phase's whole gradient or update: what is smaller counts as zero

Errors = dict[str, float]  # "phase/quantity/name" -> relative L2 error; names starting with * pool tensors
Tell = Callable[[str], None]


def check(
    step: TrainingStep, *, cache: Path | None = None, tell: Tell | None = None, seed: int = 0
) -> dict[str, Any]:
    """Compare a prepared step, whose ``keep_gradients`` was set before, with the reference.

    It leaves the step in the shared state. Where the reference had to fall back to a smaller batch, a second step of
    the same recipe and that batch is compared instead.

    Returns plain data: ``verdict`` "ok" or "failed: parity", ``reason`` (the worst finding), ``problems``, ``phases``
    (phase -> quantity -> error, budget, the tensor nearest to its budget), ``replays`` (relative distance between the
    two), ``budget`` and ``reference`` (how they were made), ``seconds``.
    """
    begin, tell = time.perf_counter(), tell or (lambda text: None)
    if not step.keep_gradients:
        raise ValueError("parity: keep_gradients must be set before the step is prepared")
    problems = [*schedule(step), *draws_anew(step)]
    ref = reference.get(step.workload, step.device, cache, tell)
    spread = get_spread(ref, step.recipe.precision, step.device, tell)
    budget = budgets(spread["errors"], step.recipe.precision)
    other = ref.workload.batch != step.workload.batch
    if other:
        step = _rebuilt(step, ref.workload, seed)
    try:
        runs, distances = measure(step, ref, tell)
    finally:
        if other:
            step.close()
    found = judge(runs, budget, spread["errors"])
    problems += same_replays(distances) + [problem for _, problem in found]
    return {
        "verdict": "failed: parity" if problems else "ok",
        "reason": problems[0] if problems else None,
        "problems": problems[:8],
        "phases": summary(runs, budget, spread["errors"]),
        "replays": distances,
        "budget": {"factor": FACTOR, **{k: spread[k] for k in ("precision", "spellings", "left_out")}},
        "reference": {
            "made_on": ref.made_on,
            "batch": ref.workload.batch,
            "chunk": ref.chunk,
            "steps": reference.STEPS,
            "notes": ref.notes,
        },
        "seconds": round(time.perf_counter() - begin, 2),
    }


def _rebuilt(step: TrainingStep, workload: Workload, seed: int) -> TrainingStep:
    small = TrainingStep(workload, step.recipe, device=step.device, seed=seed)
    small.keep_gradients = True
    small.prepare()
    return small


# Running


def measure(step: TrainingStep, ref: Reference, tell: Tell) -> tuple[list[Errors], dict[str, dict[str, float]]]:
    """Errors of each replay, and how far the replays' gradients are apart: {"phase": {"rung": d, "reference": d}}."""
    runs: list[Errors] = []
    first: dict[str, dict[str, Tensor]] = {}
    distances = {}
    with inputs_are_ours(step):
        for number, inputs in enumerate(ref.draws()):
            load(step, inputs)  # all phases first: phases that share a buffer then see the wrong numbers
            errors: Errors = {}
            for phase in PHASES:
                reference.adopt(step, ref.state)
                seen = reference.observe(step, phase, lambda phase=phase: step.run_phase(phase))
                errors |= compare(phase, seen, ref.outcomes[number][phase])
                if number == 0:
                    first[phase] = seen["gradient"]
                else:
                    exact = [outcome[phase]["gradient"] for outcome in ref.outcomes[:2]]
                    distances[phase] = {
                        "rung": distance(first[phase], seen["gradient"]),
                        "reference": distance(*exact),
                    }
                tell(f"{phase}, replay {number + 1}")
            runs.append(errors)
    return runs, distances


@contextlib.contextmanager
def inputs_are_ours(step: TrainingStep) -> Iterator[None]:
    """Phases run as they do when timed, except that nothing is drawn into their buffers."""
    for inputs in step.inputs.values():
        inputs.fill = lambda: None
    try:
        yield
    finally:
        for inputs in step.inputs.values():
            inputs.__dict__.pop("fill", None)


def load(step: TrainingStep, inputs: Draw) -> None:
    """Copy given numbers into the step's static buffers, each into its view (layouts differ between recipes)."""
    for phase, drawn in inputs.phases.items():
        buffers = step.inputs[phase]
        buffers.z.copy_(drawn.z)
        buffers.uniform.copy_(drawn.uniform)
        for buffer, noise in zip(buffers.noise, drawn.noise, strict=True):
            buffer.copy_(noise)
        if drawn.image_noise is not None:
            buffers.image_noise.copy_(drawn.image_noise)
    step.real.copy_(inputs.real)


# Errors


def compare(phase: str, seen: Outcome, exact: Outcome) -> Errors:
    """Relative L2 error of each tensor, of all of a kind together (*weight, *bias, ...), and of everything (*all)."""
    errors: Errors = {}
    for quantity, named in exact.items():
        if quantity == "untouched":
            errors[f"{phase}/untouched/others"] = float(seen[quantity]["others"])
            continue
        sums = {name: _squares(seen[quantity][name], expected) for name, expected in named.items()}
        total = sum(size for _, size in sums.values())
        pools: dict[str, list[float]] = {}
        for name, (wrong, size) in sums.items():
            errors[f"{phase}/{quantity}/{name}"] = _relative(wrong, size, total)
            for pool in ("*all", f"*{_kind(name)}") if len(sums) > 1 else ():
                pools.setdefault(pool, [0.0, 0.0])
                pools[pool][0] += wrong
                pools[pool][1] += size
        errors |= {f"{phase}/{quantity}/{pool}": _relative(*pair, total) for pool, pair in pools.items()}
    return errors


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Relative L2 distance between two sets of tensors as wholes."""
    pairs = [_squares(a[name], b[name]) for name in b]
    return math.sqrt(sum(wrong for wrong, _ in pairs) / max(sum(size for _, size in pairs), 1e-300))


def _squares(value: Tensor, exact: Tensor) -> tuple[float, float]:
    exact = exact.to(value.device).double()
    pair = torch.stack([(value.double() - exact).square().sum(), exact.square().sum()]).tolist()
    return pair[0], pair[1]


def _relative(wrong: float, size: float, total: float) -> float:
    if wrong == 0:
        return 0.0
    error = math.sqrt(wrong / max(size, SMALLEST**2 * total, 1e-60)) if math.isfinite(wrong) else math.inf
    return min(error, 1e9)  # NaN and infinity too: errors are stored as JSON


def _kind(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _group(key: str) -> str:
    """Tensors of one kind in one quantity of one phase: their errors are comparable."""
    phase, quantity, name = key.split("/", 2)
    return f"{phase}/{quantity}/{name if name.startswith('*') else _kind(name)}"


# The budget


def spellings(workload: Workload, precision: str, device: str) -> list[dict[str, Any]]:
    """Plain-PyTorch ways to compute the same step in one precision: recipes, plus cuDNN's flags on a GPU."""
    grouped, var_mean = {"modconv": "grouped"}, {"instance_norm": "var_mean"}
    one, other = (grouped, {}) if workload.norm == "demod" else ({}, var_mean)
    found: list[dict[str, Any]] = [
        {},
        {"resample": "folded", "channels_last": True, **other},
        {"resample": "depthwise", **one},
        {"resample": "channels_as_batch", **other},
        {"resample": "bilinear", "channels_last": True, **var_mean},
    ]
    if device == "cuda":
        found += [{}, {"cudnn": "deterministic"}, {"cudnn": "benchmark"}]  # {} again: its own nondeterminism
    return [{"precision": precision, **recipe} for recipe in found]


def get_spread(ref: Reference, precision: str, device: str, tell: Tell) -> dict[str, Any]:
    """The largest error of each tensor over all spellings and replays; kept beside the reference."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    slug = "".join(c if c.isalnum() else "-" for c in f"{precision} {gpu}".lower())
    path = ref.folder / f"spread-{slug}.json"
    if not path.exists():
        made = _spread(ref, precision, device, tell)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(made))
    return json.loads(path.read_text())


def _spread(ref: Reference, precision: str, device: str, tell: Tell) -> dict[str, Any]:
    worst: Errors = {}
    used, left_out = [], []
    for recipe in spellings(ref.workload, precision, device):
        label = ", ".join(f"{k}: {v}" for k, v in recipe.items())
        try:
            for errors in _errors_of(ref, recipe, device, tell):
                worst = {name: max(error, worst.get(name, 0.0)) for name, error in errors.items()}
            used.append(label)
        except (RuntimeError, NotImplementedError) as error:  # no kernel for it, or no memory
            left_out.append(f"{label}: {describe(error)}")
        if device == "cuda":
            torch.cuda.empty_cache()
    if len(used) < 2:
        raise RuntimeError(f"parity: no budget: fewer than two plain spellings ran ({'; '.join(left_out)})")
    return {"precision": precision, "spellings": used, "left_out": left_out, "errors": worst}


def _errors_of(ref: Reference, recipe: dict[str, Any], device: str, tell: Tell) -> list[Errors]:
    recipe = dict(recipe)
    cudnn = recipe.pop("cudnn", None)
    before = {flag: getattr(torch.backends.cudnn, flag) for flag in ("deterministic", "benchmark")}
    if cudnn:
        setattr(torch.backends.cudnn, cudnn, True)
    try:
        step = TrainingStep(ref.workload, Recipe(**recipe), device=device, seed=0)
        step.keep_gradients = True
        return measure(step, ref, lambda text: tell(f"budget, {text}"))[0]
    finally:
        for flag, value in before.items():
            setattr(torch.backends.cudnn, flag, value)


def budgets(spread: Errors, precision: str) -> Errors:
    """``FACTOR`` x the spread of each tensor, or of the median tensor of its kind if that is larger.

    The median guards tensors of few numbers, where every spelling may have been close by luck. 0 where nothing may move.
    """
    groups: dict[str, list[float]] = {}
    for name, error in spread.items():
        groups.setdefault(_group(name), []).append(error)
    usual = {group: statistics.median(errors) for group, errors in groups.items()}
    budget = {}
    for name, error in spread.items():
        wide = FACTOR * max(error, min(usual[_group(name)], RESOLVED), FLOOR[precision])
        budget[name] = 0.0 if "/untouched/" in name else min(wide, LIMIT)
    return budget


# The verdict


def judge(runs: list[Errors], budget: Errors, spread: Errors) -> list[tuple[float, str]]:
    """Every resolved quantity outside its budget, as (times its budget, one line), worst first."""
    found = []
    for number, errors in enumerate(runs):
        for name, error in errors.items():
            if spread[name] <= RESOLVED and error > budget[name]:
                phase, quantity, what = name.split("/", 2)
                where = f"{phase} {quantity}" + ("" if what == quantity else f" of {what}")
                line = f"{where}, replay {number + 1}: error {error:.2g}, budget {budget[name]:.2g}"
                found.append((error / max(budget[name], 1e-12), line))
    return sorted(found, reverse=True)


def summary(runs: list[Errors], budget: Errors, spread: Errors) -> dict[str, dict[str, Any]]:
    """phase -> quantity -> error and budget of the whole, the tensor nearest to its budget, and how many were judged."""
    table: dict[str, dict[str, Any]] = {}
    for key in runs[0]:
        table.setdefault(key.split("/")[0], {}).setdefault(key.split("/")[1], []).append(key)
    return {
        phase: {quantity: _entry(keys, runs, budget, spread) for quantity, keys in quantities.items()}
        for phase, quantities in table.items()
    }


def _entry(keys: list[str], runs: list[Errors], budget: Errors, spread: Errors) -> dict[str, Any]:
    error = {key: max(run[key] for run in runs) for key in keys}
    whole = next((key for key in keys if key.endswith("/*all")), keys[0])
    judged = [key for key in keys if spread[key] <= RESOLVED]
    nearest = max(judged or keys, key=lambda key: error[key] / max(budget[key], 1e-12))
    return {
        "error": error[whole],
        "budget": budget[whole],
        "nearest": nearest.split("/", 2)[2],
        "nearest_error": error[nearest],
        "nearest_budget": budget[nearest],
        "judged": len(judged),
        "unresolved": len(keys) - len(judged),
    }


def same_replays(distances: dict[str, dict[str, float]]) -> list[str]:
    """Phases whose two replays, with different inputs, are less than half as far apart as the reference's."""
    return [
        f"{phase}: two replays with different inputs give the same gradients (distance {d['rung']:.2g}, "
        f"reference {d['reference']:.2g})"
        for phase, d in distances.items()
        if not d["rung"] > d["reference"] / 2
    ]


# What errors cannot show


def draws_anew(step: TrainingStep) -> list[str]:
    """Buffers that a fill leaves as they were, phases with the same numbers, or a real batch that stays."""
    problems = []
    first: dict[str, list[Tensor]] = {}
    for phase in step.inputs:
        step._fill(phase)
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
    step.run_phase, step.feed.next = ran.append, lambda: None
    try:
        step.cycle()
    finally:
        del step.run_phase, step.feed.next
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


__all__ = ["FACTOR", "budgets", "check", "compare", "measure", "spellings"]
