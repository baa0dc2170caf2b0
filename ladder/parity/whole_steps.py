"""Parity of steps that are launched whole: each phase runs from the state that the one before it left.

A phase inside a whole step's graph cannot be replayed from the shared state by itself, and should not be. That D_main
sees the new weights of G_main is part of what the graph must get right. So the reference runs the same sequences in
FP64, from the shared state, once for each kind of step. The budget is how far plain PyTorch strays over the same
sequences. Each phase's loss and gradients are compared, and the moves of the step as a whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import torch

from ladder.base.files import one_at_a_time, replacing
from ladder.parity import adam_state, reference
from ladder.parity.reference import Draw, Exact, Outcome, Reference, Tell
from stylegan_lite.step import TrainingStep

Kind = tuple[str, ...]
T = TypeVar("T")


class Distance(TypedDict):
    """The relative distance between the gradients of two replays."""

    rung: float
    reference: float


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
Distances = dict[str, Distance]  # by phase


def label(phase: str, kind: Kind) -> str:
    """Return the phase's name among errors, budgets and findings."""
    return f"{phase} in {'+'.join(kind)}"


def of_network(label: str) -> list[str]:
    """Return the labels of this phase's network in the same step, in order. A phase alone gets its own label."""
    phase, _, kind = label.partition(" in ")
    return [f"{each} in {kind}" for each in kind.split("+") if each[0] == phase[0]] if kind else [label]


def observe(step: TrainingStep, kind: Kind, run: Callable[[], None]) -> dict[str, Outcome]:
    """Run a whole step. Return each phase's loss and gradients, and how far the state moved, float64, by label."""
    before, adam = reference.clones(step), adam_state.clones(step)
    run()
    moved, adam = reference.moved(step, before), adam_state.moved(step, adam)
    seen = {phase: reference.computed(step, phase) for phase in kind}
    seen["G_main"] |= {"update": moved["G"]} | adam["G"]
    seen["D_main"] |= {"update": moved["D"]} | adam["D"]
    seen["D_main"]["ema"] = moved["ema"]
    return {label(phase, kind): outcome for phase, outcome in seen.items()}


def run_kinds(
    step: TrainingStep, ref: Reference, kinds: list[Kind], run: Callable[[Kind], None], tell: Tell, what: str
) -> dict[str, Outcome]:
    """Run every kind of step from the shared state, on the loaded inputs."""
    outcomes: dict[str, Outcome] = {}
    for kind in kinds:
        reference.adopt(step, ref.state)
        outcomes |= observe(step, kind, functools.partial(run, kind))
        tell(f"{what}, {'+'.join(kind)}")
    return outcomes


def exact(ref: Reference, kinds: list[Kind], tell: Tell, device: str = "cpu") -> list[dict[str, Outcome]]:
    """Return FP64 outcomes of every kind for each replay, made now or found beside the reference.

    They go to the device if they take little of it, once for all comparisons with this reference. Else each spelling
    of the budget would copy gigabytes anew. Larger ones stay on the CPU.
    """
    if device == "cpu":
        return _exact(ref, kinds, tell)
    key = f"{device} {kinds}"
    if key not in ref.held:
        replays = dict(enumerate(_exact(ref, kinds, tell)))
        ref.held[key] = list(reference.resident(replays, device).values())
    return ref.held[key]


def _exact(ref: Reference, kinds: list[Kind], tell: Tell) -> list[dict[str, Outcome]]:
    with one_at_a_time(path := ref.folder / "together.pt"):
        return _read_or_compute(path, ref, kinds, tell)


def _read_or_compute(path: Path, ref: Reference, kinds: list[Kind], tell: Tell) -> list[dict[str, Outcome]]:
    made_of = {"kinds": [*map(list, kinds)], "by": reference.made_by(__file__)}
    if path.exists():
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if content.get("made_of") == made_of:
            return content["outcomes"]
    baseline = Exact(ref.workload, "fp64", ref.made_on, ref.chunk)
    outcomes = []
    for inputs in ref.draws():

        def run(kind: Kind, inputs: Draw = inputs) -> None:
            for phase in kind:
                baseline.run(phase, inputs)

        outcomes.append(reference.to_cpu(run_kinds(baseline.step, ref, kinds, run, tell, "FP64 reference")))
    with replacing(path) as temporary:
        torch.save({"made_of": made_of, "outcomes": outcomes}, temporary)
    return outcomes


def add_adam(ref: Reference, exact: dict[str, Outcome], name: str, outcome: Outcome) -> Outcome:
    """Return the right outcome of a label: ``exact``, with the expected move of Adam's state if that was measured."""
    if adam_state.STEPS not in outcome:
        return exact[name]
    place = next(iter(outcome["gradient"].values())).device
    counts = outcome[adam_state.STEPS][adam_state.STEPS]
    return exact[name] | adam_state.expected(ref.state, name[0], gradients(exact, name, place), counts)


def gradients(outcomes: dict[str, Outcome], name: str, place: Any) -> list[dict[str, torch.Tensor]]:
    """Return the gradients of a label's network, of its phases in this kind of step in order, on the device."""
    return [on({"gradient": outcomes[each]["gradient"]}, place)["gradient"] for each in of_network(name)]


def on(outcome: Outcome, device: str) -> Outcome:
    """Return one phase's outcome on the device of the comparison.

    Those of all kinds at once would take too much of a GPU.
    """
    return {what: {name: t.to(device) for name, t in named.items()} for what, named in outcome.items()}


def fold(table: dict[str, T], worse: Callable[[T, T], bool]) -> dict[str, T]:
    """Return one entry for each phase out of those of all kinds: the worst."""
    folded: dict[str, T] = {}
    for name, entry in table.items():
        phase = name.split(" ", 1)[0]
        if phase not in folded or worse(entry, folded[phase]):
            folded[phase] = entry
    return folded


def fold_summary(table: Summary) -> Summary:
    """Return `ladder.parity.check.summary` by phase: of each quantity the kind of step nearest to its budget."""
    by_quantity: dict[str, dict[str, Entry]] = {}
    for name, quantities in table.items():
        for quantity, entry in quantities.items():
            by_quantity.setdefault(quantity, {})[name] = entry

    def near(entry: Entry) -> float:
        return entry["nearest_error"] / max(entry["nearest_budget"], 1e-12)

    folded: Summary = {}
    for quantity, entries in by_quantity.items():
        for phase, entry in fold(entries, lambda a, b: near(a) > near(b)).items():
            folded.setdefault(phase, {})[quantity] = entry
    return folded


def fold_distances(distances: Distances) -> Distances:
    """Return the two replays' distances by phase: those of the kind of step whose replays are nearest to each other."""

    def apart(entry: Distance) -> float:
        return entry["rung"] / max(entry["reference"], 1e-12)

    return fold(distances, lambda a, b: apart(a) < apart(b))
