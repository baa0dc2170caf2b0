"""The budget of a precision: how far plain PyTorch strays from FP64 by itself, in several spellings of the step."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch

from ladder.base.errors import describe
from ladder.base.files import one_at_a_time, replacing
from ladder.base.plain import Fields
from ladder.parity import adam_state, reference, spread, whole_steps
from ladder.parity.reference import Reference
from ladder.parity.spread import Errors, Tell, is_exact, kind_of, measure
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.step import TrainingStep

# How far a rung may stray, in units of the worst plain spelling of its precision. Judged by the others, no spelling
# needed more than 2.16 (results/archive/parity).
FACTOR = 2.5
RESOLVED = 0.25  # relative error of plain PyTorch above which a quantity is not judged
LIMIT = 0.5  # no budget is wider: a missing tensor has an error of 1
FLOOR = {"fp32": 1e-6, "tf32": 2**-12, "bf16": 2**-9, "fp16": 2**-12}  # one rounding is never outside


def spellings(workload: Workload, precision: str, device: str) -> list[Fields]:
    """Return plain-PyTorch ways to compute the same step in one precision: recipes, plus cuDNN's flags on a GPU."""
    grouped, var_mean = {"modconv": "grouped"}, {"instance_norm": "var_mean"}
    one, other = (grouped, {}) if workload.norm == "demod" else ({}, var_mean)
    found: list[Fields] = [
        {},
        {"resample": "folded", "channels_last": True, **other},
        {"resample": "channels_as_batch", **one},
        {"resample": "bilinear", "channels_last": True, **var_mean},
    ]
    if device == "cpu":
        found += [{"resample": "depthwise", **other}]
    else:  # cuDNN differentiates a depthwise convolution twice in seconds, longer than all others together
        found += [{}, {"cudnn": "deterministic"}, {"cudnn": "benchmark"}]  # {} again: its own nondeterminism
    base: Fields = {"precision": precision}
    if precision == "tf32":
        base = {"precision": "fp32", "fp32_precision": "tf32"}
    return [base | recipe for recipe in found]


def precision_of(recipe: Recipe) -> str:
    """Return the precision by which a recipe is judged. FP32 with TF32 in every matmul rounds like no other FP32."""
    tf32 = recipe.precision == "fp32" and getattr(recipe, "fp32_precision", None) == "tf32"
    return "tf32" if tf32 else recipe.precision


class Spread(TypedDict):
    """The errors of the spellings of one precision, as their file has them."""

    precision: str
    spellings: list[str]
    left_out: list[str]  # a line for each spelling that could not run
    made_of: Mapping[str, Any]  # decides whether it must be made anew
    errors: Errors  # the largest of all spellings and replays


def get_spread(
    ref: Reference, precision: str, device: str, tell: Tell, kinds: list[tuple[str, ...]] | None = None
) -> Spread:
    """Return the largest error of each tensor over all spellings and replays, kept beside the reference.

    It is made anew if its way of making, or the kinds of steps, have changed.
    """
    gpu = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    slug = "".join(c if c.isalnum() else "-" for c in f"{precision} {gpu}".lower())
    path = ref.folder / f"spread-{slug}{'-together' if kinds else ''}.json"
    sources = reference.made_by(__file__, spread.__file__, whole_steps.__file__, adam_state.__file__)
    made_of = {"by": sources, "spellings": spellings(ref.workload, precision, device)}
    made_of |= {"kinds": [*map(list, kinds or ())], "cudnn": torch.backends.cudnn.version()}
    with one_at_a_time(path):
        made: Spread | None = _kept(path, made_of)
        if made is None:
            runs, left_out = run_spellings(ref, precision, device, tell, kinds)
            made = {
                "precision": precision,
                "spellings": list(runs),
                "left_out": left_out,
                "made_of": made_of,
                "errors": worst(runs),
            }
            _write(path, made)
    return made


def _kept(path: Path, made_of: Mapping[str, Any]) -> Any:
    """Return the content of a file, or None if it is missing or made of something else."""
    made = json.loads(path.read_text()) if path.exists() else None
    return made if made and made.get("made_of") == made_of else None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content))


def run_spellings(
    ref: Reference,
    precision: str,
    device: str,
    tell: Tell,
    kinds: list[tuple[str, ...]] | None = None,
) -> tuple[dict[str, list[Errors]], list[str]]:
    """Return (spelling -> errors of each replay, a line for each spelling that could not run).

    Raises:
        RuntimeError: fewer than two ran; one alone does not show a spread.
    """
    runs: dict[str, list[Errors]] = {}
    left_out = []
    ref = ref.on(device)
    for number, recipe in enumerate(spellings(ref.workload, precision, device)):
        label = ", ".join(f"{k}: {v}" for k, v in recipe.items())
        try:
            errors = _errors_of(ref, recipe, device, tell, kinds)
            runs[label if label not in runs else f"{label}, run {number + 1}"] = errors
        except (RuntimeError, NotImplementedError) as error:  # no kernel for it, or no memory
            left_out.append(f"{label}: {describe(error)}")
        if device == "cuda":
            torch.cuda.empty_cache()
    if len(runs) < 2:
        raise RuntimeError(f"parity: no budget: fewer than two plain spellings ran ({'; '.join(left_out)})")
    return runs, left_out


def worst(runs: dict[str, list[Errors]]) -> Errors:
    """Return the largest error of each quantity over all spellings and replays."""
    found: Errors = {}
    for errors in itertools.chain.from_iterable(runs.values()):
        found = {name: max(error, found.get(name, 0.0)) for name, error in errors.items()}
    return found


def _errors_of(
    ref: Reference,
    recipe: Fields,
    device: str,
    tell: Tell,
    kinds: list[tuple[str, ...]] | None = None,
) -> list[Errors]:
    recipe = dict(recipe)
    cudnn = recipe.pop("cudnn", None)
    before = {flag: getattr(torch.backends.cudnn, flag) for flag in ("deterministic", "benchmark")}
    if cudnn:
        setattr(torch.backends.cudnn, str(cudnn), True)
    try:
        step = TrainingStep(ref.workload, Recipe.from_dict(recipe), device=device, seed=0)
        step.keep_gradients = True
        return measure(step, ref, lambda text: tell(f"budget, {text}"), kinds, budget=True)[0]
    finally:
        for flag, value in before.items():
            setattr(torch.backends.cudnn, flag, value)


def budgets(spread: Errors, precision: str, factor: float = FACTOR) -> Errors:
    """Return ``factor`` x the spread of each tensor, or of the median tensor of its kind if that is larger.

    The median guards tensors of few numbers, whose spellings may all be close by luck. The budget is 0 if nothing may
    move. An update or moment gets at least the budget of the gradients it is computed from: see ``_made_of``.
    """
    groups: dict[str, list[float]] = {}
    for name, error in spread.items():
        groups.setdefault(_group(name), []).append(error)
    usual = {group: statistics.median(errors) for group, errors in groups.items()}
    budget = {}
    for name, error in spread.items():
        wide = factor * max(error, min(usual[_group(name)], RESOLVED), FLOOR[precision])
        budget[name] = 0.0 if is_exact(name) else min(wide, LIMIT)
    for name in budget:
        judged = [budget[each] for each in _made_of(name) if spread.get(each, 1.0) <= RESOLVED]
        budget[name] = max([budget[name], *judged])
    return budget


def _made_of(name: str) -> list[str]:
    """Return the gradients that a tensor's update, or its moments, are made of: one for each phase of its network.

    A gradient may stray as far as its own budget. An update that Adam makes of it then strays by as much or less (a
    second moment by up to twice). The spread of an update does not show this: if two phases update one number, their
    errors cancel in one spelling and add in another.
    """
    phase, quantity, tensor = name.split("/", 2)
    if quantity not in ("update", *adam_state.MOMENTS) or tensor.startswith("*"):
        return []
    return [f"{each}/gradient/{tensor}" for each in whole_steps.of_network(phase)]


def _group(key: str) -> str:
    """Return the group of a tensor: those of one kind in one quantity of one phase have comparable errors."""
    phase, quantity, name = key.split("/", 2)
    return f"{phase}/{quantity}/{name if name.startswith('*') else kind_of(name)}"
