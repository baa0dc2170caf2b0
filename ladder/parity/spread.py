"""The errors of a step against the reference: of each tensor, of each kind of tensor, and of all together."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ladder.parity import adam_state, reference, whole_steps
from ladder.parity.exact import Draw
from ladder.parity.reference import Outcome, Reference
from ladder.receipts.as_timed import replaced
from stylegan_lite.step import PHASES, TrainingStep

SETTLING = 48  # rounds in which loss scales may halve; from 2^16 to nothing
SMALLEST = 1e-6  # of a phase's whole gradient or update: smaller tensors count as zero


Errors = dict[str, float]  # "phase/quantity/name" -> relative L2 error; names starting with * pool tensors
Tell = Callable[[str], None]


def measure(
    step: TrainingStep,
    ref: Reference,
    tell: Tell,
    kinds: list[tuple[str, ...]] | None = None,
    budget: bool = False,
) -> tuple[list[Errors], whole_steps.Distances]:
    """Return errors of each replay, and distances of the replays' gradients: {phase: {"rung": d, "reference": d}}.

    ``ref`` is best on the step's device (``Reference.on``): every phase of every step starts from its state. With
    ``kinds`` whole steps are run instead of single phases, see ``ladder.parity.whole_steps``. For a ``budget`` errors
    are the largest of both ways in which Adam's moments may move: see ``moments.passed_over``.
    """
    settle_scales(step, ref, kinds)
    if kinds:
        return _measure_together(step, ref, tell, kinds, budget)
    runs: list[Errors] = []
    first: dict[str, dict[str, Tensor]] = {}
    distances: whole_steps.Distances = {}
    with inputs_are_ours(step):
        for number, inputs in enumerate(ref.draws()):
            load(step, inputs)  # all phases first: phases that share a buffer then see the wrong numbers
            errors: Errors = {}
            for phase, seen, wanted in each_phase(step, ref, number, tell, f"replay {number + 1}"):
                errors |= compare(phase, seen, wanted)
                if budget:
                    either = adam_state.passed_over(
                        ref.state, phase[0], [seen["gradient"]], [wanted["gradient"]]
                    )
                    errors |= _larger(errors, compare(phase, *either))
                if number == 0:
                    first[phase] = seen["gradient"]
                else:
                    exact = [outcome[phase]["gradient"] for outcome in ref.outcomes[:2]]
                    distances[phase] = {
                        "rung": distance(first[phase], seen["gradient"]),
                        "reference": distance(*exact),
                    }
            runs.append(errors)
    return runs, distances


def each_phase(
    step: TrainingStep, ref: Reference, number: int, tell: Tell, what: str
) -> Iterator[tuple[str, Outcome, Outcome]]:
    """Run each phase from the shared state, on the loaded inputs of this replay.

    Yields (phase, its outcome, the right outcome).
    """
    for phase in PHASES:
        reference.adopt(step, ref.state)
        seen = reference.observe(step, phase, functools.partial(step.run_phase, phase))
        yield phase, seen, adam_state.with_adam(ref, phase, ref.outcomes[number][phase], seen)
        tell(f"{phase}, {what}")


def _measure_together(
    step: TrainingStep, ref: Reference, tell: Tell, kinds: list[tuple[str, ...]], budget: bool
) -> tuple[list[Errors], whole_steps.Distances]:
    exact = whole_steps.exact(ref, kinds, tell, step.device)
    runs: list[Errors] = []
    first: dict[str, dict[str, Tensor]] = {}
    distances: whole_steps.Distances = {}
    with inputs_are_ours(step):
        for number, inputs in enumerate(ref.draws()):
            load(step, inputs)
            seen = whole_steps.run_kinds(step, ref, kinds, step.run, tell, f"replay {number + 1}")
            errors: Errors = {}
            for name, outcome in seen.items():
                wanted = [whole_steps.on(each[name], step.device) for each in exact[: number + 1]]
                errors |= compare(name, outcome, whole_steps.wanted(ref, exact[number], name, outcome))
                if budget and (either := whole_steps.passed_over(ref, exact[number], name, seen)):
                    errors |= _larger(errors, compare(name, *either))
                if number:
                    apart = distance(*(each["gradient"] for each in wanted[:2]))
                    distances[name] = {"rung": distance(first[name], outcome["gradient"]), "reference": apart}
                else:
                    first[name] = outcome["gradient"]
            runs.append(errors)
    return runs, distances


def _larger(errors: Errors, either: Errors) -> Errors:
    return {key: max(error, errors[key]) for key, error in either.items()}


def settle_scales(step: TrainingStep, ref: Reference, kinds: list[tuple[str, ...]] | None = None) -> None:
    """Run everything that will be compared until FP16 skips no update, as training does in its first steps.

    Only an update is compared. The tests of ``stylegan_lite.scaling`` cover a skipped one.
    """
    scales = list(getattr(step, "scales", {}).values())
    with inputs_are_ours(step):
        for _ in range(SETTLING if scales else 0):
            before = [int(scale.skipped) for scale in scales]
            for inputs in ref.draws():
                load(step, inputs)
                for phases in kinds or [(phase,) for phase in PHASES]:
                    reference.adopt(step, ref.state)
                    step.run(phases) if kinds else step.run_phase(*phases)
            if before == [int(scale.skipped) for scale in scales]:
                return


@contextlib.contextmanager
def inputs_are_ours(step: TrainingStep) -> Iterator[None]:
    """Run phases as they are timed, except that nothing is drawn into their buffers."""
    with contextlib.ExitStack() as stack:
        for inputs in step.inputs.values():
            stack.enter_context(replaced(inputs, "fill", lambda: None))
        yield


def load(step: TrainingStep, inputs: Draw) -> None:
    """Copy given numbers into the step's static buffers, each into its view (layouts differ between recipes).

    One of several ranks takes its samples of the total batch.
    """
    ranks = getattr(step, "ranks", None)
    if ranks is not None and ranks.size > 1:
        inputs = inputs.share(ranks.rank, ranks.size)
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
    """Return the relative L2 error of each tensor, of each kind together (*weight, *bias, ...), and of all (*all)."""
    errors: Errors = {}
    for quantity, named in exact.items():
        if quantity == "untouched":
            moved = float(seen[quantity]["others"])
            errors[f"{phase}/untouched/others"] = moved if moved < 1e9 else 1e9  # NaN too
            continue
        if quantity == adam_state.STEPS:
            off = float((seen[quantity][quantity].cpu() - named[quantity].cpu()).abs().max())
            errors[f"{phase}/{quantity}/{quantity}"] = off if off < 1e9 else 1e9
            continue
        sums = _squares(seen[quantity], named)
        total = sum(size for _, size in sums.values())
        pools: dict[str, list[float]] = {}
        for name, (wrong, size) in sums.items():
            errors[f"{phase}/{quantity}/{name}"] = _relative(wrong, size, total)
            for pool in ("*all", f"*{kind_of(name)}") if len(sums) > 1 else ():
                pools.setdefault(pool, [0.0, 0.0])
                pools[pool][0] += wrong
                pools[pool][1] += size
        for pool, (wrong, size) in pools.items():
            errors[f"{phase}/{quantity}/{pool}"] = _relative(wrong, size, total)
    return errors


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Return the relative L2 distance between two sets of tensors as wholes; 1e9 if it is not finite."""
    pairs = _squares(a, b).values()
    size = sum(size for _, size in pairs)
    return _relative(sum(wrong for wrong, _ in pairs), size, size)


def _squares(values: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
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


def _relative(wrong: float, size: float, total: float) -> float:
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
    """Return whether a key is of tensors that must not move, or of Adam's step counts.

    Their errors are numbers, not shares, and the budget is 0.
    """
    return key.endswith(("/untouched/others", f"/{adam_state.STEPS}/{adam_state.STEPS}"))
