"""The errors of a step against the reference, and the budget for them.

Errors are of each tensor, of each kind of tensor, and of all together. The budget of a precision is how far plain
PyTorch strays from FP64 by itself, in several spellings of the step.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor

import stylegan_lite
from ladder.core.errors import format_error
from ladder.core.files import one_at_a_time, replace_file
from ladder.core.plain import Fields, Plain
from ladder.parity import adam_state, reference
from ladder.parity.reference import Outcome, Reference, inputs_are_ours, load_inputs
from stylegan_lite.config import Recipe, Workload
from stylegan_lite.step import TrainingStep
from stylegan_lite.step.settings import set_flags

# How far a rung may stray, in units of the worst plain spelling of its precision. Judged by the others, no spelling
# needed more than 2.16 (results/archive/parity).
FACTOR = 2.5
RESOLVED = 0.25  # relative error of plain PyTorch above which a quantity is not judged
LIMIT = 0.5  # no budget is wider: a missing tensor has an error of 1
SETTLING = 48  # rounds in which loss scales may halve; from 2^16 to nothing
SMALLEST = 1e-6  # of a phase's whole gradient or update: smaller tensors count as zero


class Distance(TypedDict):
    """The relative distance between the gradients of two replays."""

    rung: float
    reference: float


Errors = dict[str, float]  # "phase/quantity/name" -> relative L2 error; names starting with * pool tensors
EXACT = ("untouched", adam_state.STEPS)  # tensors that must not move, and Adam's step counts
FLOOR = {"fp32": 1e-6, "tf32": 2**-12, "bf16": 2**-9, "fp16": 2**-12}  # one rounding is never outside


def measure_errors(
    step: TrainingStep, ref: Reference, budget: bool = False
) -> tuple[list[Errors], dict[str, Distance]]:
    """Return errors of each replay, and distances of the replays' gradients by label.

    ``ref`` is best on the step's device (``Reference.on``): every phase of every step starts from its state. With
    ``budget`` the errors of Adam's state are also those of gradients that are None where they may be
    (``adam_state.passed_over``).
    """
    if not step.prepared:
        step.prepare()
    settle_scales(step, ref)
    runs: list[Errors] = []
    first: dict[str, tuple[dict[str, Tensor], Outcome]] = {}
    distances: dict[str, Distance] = {}
    with inputs_are_ours(step):
        for number, inputs in enumerate(ref.draws(step)):
            load_inputs(
                step, inputs
            )  # all phases first: phases that share a buffer then see the wrong numbers
            errors: Errors = {}
            for name, outcomes, exact in run_compared(step, ref, number, f"replay {number + 1}"):
                outcome = outcomes[name]
                errors |= compare_phase(name, outcome, add_adam(ref, step, exact, name, outcome))
                if budget and adam_state.STEPS in outcome:
                    place = next(iter(outcome["gradient"].values())).device
                    both = (list_gradients(each, name, place, step.owners) for each in (outcomes, exact))
                    owner = reference.owner_of(name, step.owners)
                    skipped = compare_phase(name, *adam_state.passed_over(ref.state, owner, *both))
                    errors |= {key: max(error, errors[key]) for key, error in skipped.items()}
                if number == 0:
                    first[name] = outcome["gradient"], exact[name]
                else:
                    gradient, right = first[name]
                    here, there = (
                        move_outcome(each, step.device)["gradient"] for each in (right, exact[name])
                    )
                    distances[name] = {
                        "rung": measure_distance(gradient, outcome["gradient"]),
                        "reference": measure_distance(here, there),
                    }
            runs.append(errors)
    return runs, distances


def run_compared(
    step: TrainingStep, ref: Reference, number: int, what: str
) -> Iterator[tuple[str, dict[str, Outcome], dict[str, Outcome]]]:
    """Run each phase, or each kind of step, from the shared state on the loaded inputs of this replay.

    Yields (label, outcomes by label, right outcomes by label).
    """
    exact = ref.get_exact(number, step.device)
    run = step.run if ref.kinds else step.run_phase
    for name, outcomes in reference.observe_all(step, ref, run, what):
        yield name, outcomes, exact


def add_adam(
    ref: Reference, step: TrainingStep, exact: dict[str, Outcome], name: str, outcome: Outcome
) -> Outcome:
    """Return the right outcome of a label: ``exact``, with the expected move of Adam's state if that was measured."""
    if adam_state.STEPS not in outcome:
        return exact[name]
    place = next(iter(outcome["gradient"].values())).device
    counts = outcome[adam_state.STEPS][adam_state.STEPS]
    net, gradients = reference.owner_of(name, step.owners), list_gradients(exact, name, place, step.owners)
    return exact[name] | adam_state.expect_moves(ref.state, net, gradients, counts)


def list_gradients(
    outcomes: dict[str, Outcome], name: str, place: Any, owners: Mapping[str, str]
) -> list[dict[str, Tensor]]:
    """Return the gradients of a label's network, of its phases in this kind of step in order, on the device."""
    labels = reference.of_network(name, owners)
    return [move_outcome({"gradient": outcomes[each]["gradient"]}, place)["gradient"] for each in labels]


def move_outcome(outcome: Outcome, device: Any) -> Outcome:
    """Return one label's outcome on the device. Those of all kinds at once would take too much of a GPU."""
    return {what: {name: t.to(device) for name, t in named.items()} for what, named in outcome.items()}


def settle_scales(step: TrainingStep, ref: Reference) -> None:
    """Run everything that will be compared until FP16 skips no update, as training does in its first steps.

    Only an update is compared. The tests of ``stylegan_lite.step.scaling`` cover a skipped one.
    """
    scales = list(getattr(step, "scales", {}).values())
    with inputs_are_ours(step):
        for _ in range(SETTLING if scales else 0):
            before = [int(scale.skipped) for scale in scales]
            for inputs in ref.draws(step):
                load_inputs(step, inputs)
                for what in ref.kinds or step.order:
                    reference.adopt_state(step, ref.state)
                    step.run(what) if ref.kinds else step.run_phase(what)  # type: ignore[arg-type]
            if before == [int(scale.skipped) for scale in scales]:
                return


# Errors


def compare_phase(phase: str, seen: Outcome, exact: Outcome) -> Errors:
    """Return the relative L2 error of each tensor, of each kind together (*weight, *bias, ...), and of all (*all)."""
    errors: Errors = {}
    for quantity, named in exact.items():
        if quantity in EXACT:
            (name,) = named
            off = seen[quantity][name]
            if quantity == adam_state.STEPS:
                off = (off.cpu() - named[name].cpu()).abs().max()
            errors[f"{phase}/{quantity}/{name}"] = float(off) if float(off) < 1e9 else 1e9  # NaN too
            continue
        sums = _sum_squares(seen[quantity], named)
        pools = dict(sums)
        kinds = dict.fromkeys(f"*{kind_of(name)}" for name in sums)
        for pool in ("*all", *kinds) if len(sums) > 1 else ():
            inside = [pair for name, pair in sums.items() if pool in ("*all", f"*{kind_of(name)}")]
            pools[pool] = sum(wrong for wrong, _ in inside), sum(size for _, size in inside)
        total = sum(size for _, size in sums.values())
        for name, (wrong, size) in pools.items():
            errors[f"{phase}/{quantity}/{name}"] = _derive_relative_error(wrong, size, total)
    return errors


def measure_distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Return the relative L2 distance between two sets of tensors as wholes; 1e9 if it is not finite."""
    pairs = _sum_squares(a, b).values()
    size = sum(size for _, size in pairs)
    return _derive_relative_error(sum(wrong for wrong, _ in pairs), size, size)


def _sum_squares(values: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
    """Return the sums of squares of (the difference, the exact value) for each name of ``exact``, in float64.

    They stay on the device until all are there: waiting for each would stop the GPU some thousand times a step.
    """
    sums = []
    place = next((x.device for x in [*values.values(), *exact.values()] if x.is_cuda), torch.device("cpu"))
    for name, expected in exact.items():
        value = values[name].to(place, non_blocking=True).double()
        expected = expected.to(place, non_blocking=True).double()
        sums.append(torch.stack([(value - expected).square().sum(), expected.square().sum()]))
    return dict(zip(exact, map(tuple, torch.stack(sums).tolist()), strict=True))


def _derive_relative_error(wrong: float, size: float, total: float) -> float:
    if wrong == 0:
        return 0.0
    if not math.isfinite(wrong + size):  # NaN or infinity; errors are stored as JSON
        return 1e9
    return min(math.sqrt(wrong / max(size, SMALLEST**2 * total, 1e-60)), 1e9)


def kind_of(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def is_whole(key: str) -> bool:
    """Return whether a key is of a loss, of all tensors of a quantity, or compared exactly."""
    return is_exact(key) or key.endswith(("/*all", "/loss/loss"))


def is_exact(key: str) -> bool:
    """Return whether the error of a key is a number, not a share. Its budget is 0."""
    return key.split("/")[1] in EXACT


# The budget


def list_spellings(workload: Any, precision: str, device: str) -> list[Fields]:
    """Return plain-PyTorch ways to compute the same step in one precision: recipes, plus flags of PyTorch's libraries.

    Entries "cudnn" and "mkldnn" are flags of these libraries: cuDNN's benchmark or deterministic, oneDNN's enabled.
    """
    base: Fields = {"precision": precision}
    if precision == "tf32":
        base = {"precision": "fp32", "fp32_precision": "tf32"}
    if not isinstance(workload, Workload):
        ways: list[Fields] = [{}, {"channels_last": True}]
        if device == "cuda":
            ways += [{}, {"cudnn": "deterministic"}, {"cudnn": "benchmark"}]
        else:
            ways += [{"mkldnn": "off"}]
        return [base | way for way in ways]
    grouped, var_mean = {"modconv": "grouped"}, {"instance_norm": "var_mean"}
    one, other = (grouped, {}) if workload.norm == "demod" else ({}, var_mean)
    recipes: list[Fields] = [
        {},
        {"resample": "folded", "channels_last": True, **other},
        {"resample": "channels_as_batch", **one},
        {"resample": "bilinear", "channels_last": True, **var_mean},
    ]
    if device == "cpu":
        recipes += [{"resample": "depthwise", **other}]
    else:  # cuDNN differentiates a depthwise convolution twice in seconds, longer than all others together
        # {} again shows its own nondeterminism.
        recipes += [{}, {"cudnn": "deterministic"}, {"cudnn": "benchmark"}]
    return [base | recipe for recipe in recipes]


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


def get_spread(ref: Reference, precision: str, device: str) -> Spread:
    """Return the largest error of each tensor over all spellings and replays, kept beside the reference.

    They are measured again if the spellings, the sources or the kinds of steps have changed.
    """
    gpu = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    slug = "".join(c if c.isalnum() else "-" for c in f"{precision} {gpu}".lower())
    path = ref.folder / f"spread-{slug}{'-together' if ref.kinds else ''}.json"
    made_of = {
        "by": reference.made_by(__file__, adam_state.__file__),
        "spellings": list_spellings(ref.workload, precision, device),
        "kinds": [*map(list, ref.kinds)],
        "cudnn": torch.backends.cudnn.version(),
    }
    with one_at_a_time(path):
        stored = json.loads(path.read_text()) if path.exists() else None
        if stored and stored.get("made_of") == made_of:
            return stored
        runs, left_out = run_spellings(ref, precision, device)
        content: Spread = {
            "precision": precision,
            "spellings": list(runs),
            "left_out": left_out,
            "made_of": made_of,
            "errors": find_worst(runs),
        }
        with replace_file(path) as temporary:
            temporary.write_text(json.dumps(content))
    return content


def run_spellings(ref: Reference, precision: str, device: str) -> tuple[dict[str, list[Errors]], list[str]]:
    """Return (spelling -> errors of each replay, a line for each spelling that could not run).

    Raises:
        RuntimeError: fewer than two ran; one alone does not show a spread.
    """
    runs: dict[str, list[Errors]] = {}
    left_out = []
    tell = ref.tell
    ref = dataclasses.replace(ref.on(device), tell=lambda text: tell(f"budget, {text}"))
    for number, recipe in enumerate(list_spellings(ref.workload, precision, device)):
        label = ", ".join(f"{k}: {v}" for k, v in recipe.items())
        try:
            with set_flags(list_flags(recipe)):
                step = stylegan_lite.make_step(ref.workload.to_dict(), recipe, device=device, seed=0)
                step.keep_gradients = True
                errors = measure_errors(step, ref, budget=True)[0]
            runs[label if label not in runs else f"{label}, run {number + 1}"] = errors
        except (RuntimeError, NotImplementedError) as error:  # no kernel for it, or no memory
            left_out.append(f"{label}: {format_error(error)}")
        if device == "cuda":
            torch.cuda.empty_cache()
    if len(runs) < 2:
        raise RuntimeError(f"parity: no budget: fewer than two plain spellings ran ({'; '.join(left_out)})")
    return runs, left_out


def list_flags(spelling: Plain) -> list[tuple[Any, str, Any]]:
    """Take the flags of cuDNN and oneDNN out of a spelling, which is a recipe without them."""
    cudnn, mkldnn = spelling.pop("cudnn", ""), spelling.pop("mkldnn", "")
    flags = [(torch.backends.cudnn, str(cudnn), True)] if cudnn else []
    return flags + ([(torch.backends.mkldnn, "enabled", False)] if mkldnn == "off" else [])


def find_worst(runs: dict[str, list[Errors]]) -> Errors:
    """Return the largest error of each quantity over all spellings and replays."""
    largest: Errors = {}
    for errors in itertools.chain.from_iterable(runs.values()):
        largest = {name: max(error, largest.get(name, 0.0)) for name, error in errors.items()}
    return largest


def derive_budgets(
    spread: Errors, precision: str, factor: float = FACTOR, owners: Mapping[str, str] | None = None
) -> Errors:
    """Return ``factor`` x the spread of each tensor, or of the median tensor of its kind if that is larger.

    The median guards tensors of few numbers, whose spellings may all be close by luck. The budget is 0 if nothing may
    move. An update or moment gets at least the budget of the gradients it is computed from: see ``_made_of``.
    """
    groups: dict[str, list[float]] = {}
    for name, error in spread.items():
        groups.setdefault(_name_group(name), []).append(error)
    usual = {group: statistics.median(errors) for group, errors in groups.items()}
    budget = {}
    for name, error in spread.items():
        wide = factor * max(error, min(usual[_name_group(name)], RESOLVED), FLOOR[precision])
        budget[name] = 0.0 if is_exact(name) else min(wide, LIMIT)
    for name in budget:
        judged = [budget[each] for each in _made_of(name, owners or {}) if spread.get(each, 1.0) <= RESOLVED]
        budget[name] = max([budget[name], *judged])
    return budget


def _made_of(name: str, owners: Mapping[str, str]) -> list[str]:
    """Return the gradients that a tensor's update, or its moments, are made of: one for each phase of its network.

    A gradient may stray as far as its own budget. An update that Adam makes of it then strays by as much or less (a
    second moment by up to twice). The spread of an update does not show this: if two phases update one number, their
    errors cancel in one spelling and add in another.
    """
    phase, quantity, tensor = name.split("/", 2)
    if quantity not in ("update", *adam_state.MOMENTS) or tensor.startswith("*"):
        return []
    return [f"{each}/gradient/{tensor}" for each in reference.of_network(phase, owners)]


def _name_group(key: str) -> str:
    """Return the group of a tensor: those of one kind in one quantity of one phase have comparable errors."""
    phase, quantity, name = key.split("/", 2)
    return f"{phase}/{quantity}/{name if name.startswith('*') else kind_of(name)}"
