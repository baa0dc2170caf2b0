"""The measurement of `ladder upstream`: rounds of NVIDIA's step and ours, each visit in a fresh process.

Steps are compared within a round. Ours is inspected first, and a patched clone's gradients are compared.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from ladder.base import text
from ladder.base.locks import device_lock
from ladder.base.paths import ROOT
from ladder.base.records import build, given, plain
from ladder.base.stopping import stop_on_sigterm
from ladder.engine import inspection
from ladder.engine.outcomes import Program, Visited
from ladder.engine.pool import Pool, WorkerFailure
from ladder.engine.rounds import Interleaved
from ladder.machine import system
from ladder.results import identity, record
from ladder.results.derive import void_memory
from ladder.results.types import Inspection, Parity, Plain, Receipt, Round, RunGpu
from ladder.studies.upstream import patched, source, step
from ladder.studies.upstream.record import OURS, PATCHED, UPSTREAM, Result, counted, derive, sides
from ladder.studies.upstream.record import Program as Timed

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """The user's request. ``torch=False`` and ``inspect=False`` are for tests and for a first look.

    `patch`: path below `torch_utils` -> text, of the files that replace the clone's in one more contender.
    """

    folder: Path
    name: str
    workload: Plain  # with the path of its images
    rung: str
    recipe: Plain
    weights: dict[str, int]  # numbers of weights in G and D, equal in both programs
    device: str
    rounds: int = 5
    cycles: int = 2
    seed: int = 0
    inspect: bool = True
    torch: bool = True
    patch: Mapping[str, str] = field(default_factory=dict)
    patch_digest: str = ""


def new_result(plan: Plan, facts: Plain, photographs: str | None) -> Result:
    """Return the result of a measurement that has not begun."""
    images = identity.of_images(plan.workload["data"])
    trained = {"name": plan.name, **plan.workload, "data": photographs}
    made = {
        **record.header("upstream", facts, trained, images=images),
        "source": {"networks": source.networks_of(plan.folder), "digest": source.digest_of(plan.folder)},
        "protocol": {
            "rounds": 0,
            "cycles": plan.cycles,
            "seed": plan.seed,
            "inspected": plan.inspect,
            "notes": [],
        },
        "programs": [
            {"side": side, "rung": rung, "recipe": recipe, "status": "n/a", "reason": "not measured", "settings": None,
             "rounds": [], "step_ms": None, "interval_ms": None}
            for side in sides(bool(plan.patch))
            for rung, recipe in [(plan.rung, plan.recipe) if side == OURS else (None, None)]
        ],
        **dict.fromkeys(("parity", "receipts", "inspection", "ratio", "gpu")),
    }  # fmt: skip
    if plan.patch:
        nothing = dict.fromkeys(("parity", "phases", "ratio", "gpu_ratio"))
        made["patched"] = {"digest": plan.patch_digest, **nothing}
    return build(Result, made)


class Measurement:
    """A result that grows: `result` is its latest state, and `save` gets it after each part."""

    def __init__(self, plan: Plan, result: Result, tell: Tell, save: Callable[[Result], None]) -> None:
        self.plan, self.result, self.tell, self.save = plan, result, tell, save
        self.begin = time.monotonic() - result.seconds
        self.rounds = Interleaved(
            plan.device, cycles=plan.cycles, seed=plan.seed, torch=plan.torch,
            on_wait=lambda: tell("waiting for another run on this device"),
        )  # fmt: skip

    def keep(self) -> None:
        """Derive what follows from the rounds, and save."""
        programs = self.result.programs
        seen = self.rounds.visits.summary(plain(programs))
        gpu = None if seen is None else build(RunGpu, seen)
        seconds = round(time.monotonic() - self.begin, 1)
        self.result = derive(replace(self.result, seconds=seconds, gpu=gpu))
        self.save(self.result)

    def program(self, side: str) -> Timed:
        return self.result.program(side)

    def put(self, program: Timed) -> None:
        """Replace the program of this side."""
        programs = [program if each.side == program.side else each for each in self.result.programs]
        self.result = replace(self.result, programs=programs)

    def is_due(self, program: Program) -> bool:
        return self.program(program.side).status in ("ok", "n/a")

    def round(self, number: int, asked: Sequence[Program]) -> None:
        """Visit both programs, and count the round once it is whole."""
        due, place = [program for program in asked if self.is_due(program)], f"generation {number + 1}"
        visiting = cast("Generator[Visited]", self.rounds.round(number, due, self.is_due))
        with contextlib.closing(visiting) as visits:
            for visited in visits:
                side = visited.program.side
                self.put(taken(self.plan, visited, self.program(side)))
                self.tell(f"{place} of {self.plan.rounds}: {side} visited")
                self.keep()
        self.result = replace(self.result, protocol=replace(self.result.protocol, rounds=number + 1))
        self.tell(f"{place} of {self.plan.rounds}: {said(self.result)}")

    def inspect(self) -> None:
        """Check parity and receipts of our step, now or from an earlier run. A step without them is not timed."""
        plan, seen = self.plan, inspection.Cache(self.plan.workload, plain(self.result.machine))
        found = seen.get(plan.recipe)
        if found is None:
            try:
                found = _asked(plan, self.tell)
                seen.put(plan.recipe, found)
            except WorkerFailure as failure:
                found = getattr(failure, "found", {})
                reason = text.display(failure.reason)
                self.put(replace(self.program(OURS), status=failure.status, reason=reason))
        parity, receipts, busy = (found.get(key) for key in ("parity", "receipts", "inspection"))
        self.result = replace(
            self.result,
            parity=None if parity is None else build(Parity, parity),
            receipts=None
            if receipts is None
            else {key: build(Receipt, each) for key, each in receipts.items()},
            inspection=None if busy is None else build(Inspection, busy),
        )

    def examine_patched(self, clones: Mapping[str, Path], folder: Path) -> None:
        """Compare the patched clone's gradients, and measure each phase's GPU time if they are right.

        A contender without parity is not timed.
        """
        plan, found = self.plan, self.result.patched
        if not found or (found.parity and (found.phases or plan.device != "cuda")):
            return
        asked = (clones, plan.workload, plan.device)
        try:
            with device_lock(system.device_key(plan.device)), Pool(code=folder, torch=plan.torch) as workers:
                if not found.parity:
                    found = replace(
                        found, parity=patched.compare_gradients(*asked, workers, folder, self.tell)
                    )
                    self.result = replace(self.result, patched=found)
                    self.keep()
                if found.parity.verdict == "ok" and plan.device == "cuda":
                    found = replace(found, phases=patched.time_phases(*asked, workers, folder, self.tell))
        except WorkerFailure as failure:
            reason = text.display(failure.reason)
            self.put(replace(self.program(PATCHED), status=failure.status, reason=reason))
        self.result = replace(self.result, patched=found)
        if found.parity and found.parity.verdict != "ok":
            self.put(replace(self.program(PATCHED), status=found.parity.verdict, reason=found.parity.reason))


def measure(plan: Plan, result: Result, tell: Tell, save: Callable[[Result], None]) -> Result:
    """Fill in the result, save it after each part, and return it.

    After Ctrl-C the result comes back with "complete" false. Rounds that it already has are not measured again, and a
    step of ours that has shown its parity is not inspected again.
    """
    growing = Measurement(plan, result, tell, save)
    with tempfile.TemporaryDirectory() as folder:
        clones = _clones(plan, Path(folder))
        asked = _programs(plan, Path(folder), clones)
        try:
            with stop_on_sigterm():
                if plan.inspect and not (result.parity and result.receipts):
                    growing.inspect()
                    growing.keep()
                growing.examine_patched(clones, Path(folder))
                growing.keep()
                for number in range(result.protocol.rounds, plan.rounds):
                    growing.round(number, asked)
            growing.result = replace(growing.result, complete=True)
        except KeyboardInterrupt:
            pass
        finally:
            growing.keep()
            growing.rounds.close()
    return growing.result


def _clones(plan: Plan, folder: Path) -> dict[str, Path]:
    """Return by side the folders of the clone and of its patched copy, which is made here."""
    clones = {UPSTREAM: plan.folder.resolve()}
    if plan.patch:
        clones[PATCHED] = patched.copy(clones[UPSTREAM], plan.patch, folder / "patched")
    return clones


def _programs(plan: Plan, folder: Path, clones: Mapping[str, Path]) -> list[Program]:
    package = folder / "stylegan_lite"
    package.mkdir()
    (package / "__init__.py").write_text(step.PACKAGE)
    also = bool(plan.patch)  # the time without lazy phases, and what each of them costs
    theirs = []
    for side, clone in clones.items():  # cuDNN chooses by trying, so each is prepared alone
        recipe = {"folder": str(clone), "cudnn_benchmark": True}
        theirs.append(Program(side, "step", side, plan.workload, recipe, folder, main=also, lazy=also))
    return [*theirs, Program(OURS, "step", OURS, plan.workload, plan.recipe, ROOT, main=also, lazy=also)]


def _asked(plan: Plan, tell: Tell) -> inspection.Found:
    with device_lock(system.device_key(plan.device)), Pool(torch=plan.torch) as workers:
        worker = workers.take()
        try:
            worker.call(
                "build", workload=plan.workload, recipe=plan.recipe, device=plan.device, seed=plan.seed,
                keep_gradients=True,
            )  # fmt: skip
            peak = worker.call("prepare").get("peak_reserved_bytes")
            found = inspection.inspect(worker, lambda what: tell(f"{plan.rung}: {what}"))
            if peak:  # as a run's inspection tells it, which takes this one's findings
                found["inspection"]["peak_reserved_bytes"] = peak
            return found
        finally:
            worker.close()


def taken(plan: Plan, visited: Visited, program: Timed) -> Timed:
    """Return the program with a visit. A failure, or networks of another size, ends the visit's program."""
    status, reason = visited.status, visited.reason
    if status == "ok" and program.side != OURS:
        theirs = {name: (visited.settings or {}).get(f"parameters_{name}") for name in plan.weights}
        if theirs != plan.weights:
            counts = [
                " and ".join(f"{n} in {net}" for net, n in each.items()) for each in (theirs, plan.weights)
            ]
            status, reason = "failed", f"weights: {counts[0]}, where ours has {counts[1]}"
    if status != "ok" or visited.round is None:
        said_why = text.display(reason or "no reason was given")
        return replace(program, status="failed" if status == "n/a" else status, reason=said_why)
    rounds = [*program.rounds, build(Round, visited.round)]
    program = replace(program, status="ok", reason=None, settings=visited.settings, rounds=rounds)
    if not counted(program):
        return replace(program, status="invalid", reason=void_memory(given(rounds[-1].alloc_retries)))
    return program


def said(result: Result) -> str:
    shown = [f"{each.side} {text.ms(each.step_ms)} ms" for each in result.programs if each.step_ms]
    return ", ".join(shown) or "no number yet"
