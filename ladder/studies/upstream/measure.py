"""The measurement of `ladder upstream`: rounds of NVIDIA's step and ours, each visit in a fresh process.

Both steps are compared within a round. Ours is inspected first.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ladder.base import text
from ladder.base.locks import device_lock
from ladder.base.paths import ROOT
from ladder.base.stopping import stop_on_sigterm
from ladder.engine import inspection
from ladder.engine.pool import Pool, WorkerFailure
from ladder.engine.rounds import Interleaved, Program, Visited
from ladder.machine import system
from ladder.results import code_digest, identity, record
from ladder.studies.upstream import source, step
from ladder.studies.upstream.record import OURS, UPSTREAM, derive

ENGINE = ("studies/upstream/step", "studies/upstream/source", "engine/rounds")
Tell = Callable[[str], None]
Result = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """The user's request. ``torch=False`` and ``inspect=False`` are for tests and for a first look."""

    folder: Path
    name: str
    workload: dict[str, Any]  # with the path of its images
    rung: str
    recipe: dict[str, Any]
    weights: dict[str, int]  # numbers of weights in G and D, equal in both programs
    device: str
    rounds: int = 5
    cycles: int = 2
    seed: int = 0
    inspect: bool = True
    settle: bool = True
    torch: bool = True


def new_result(plan: Plan, facts: dict[str, Any], photographs: str | None) -> Result:
    """Return the result of a measurement that has not begun."""
    head = record.head("upstream", plan.name, plan.workload)
    head["workload"]["data"] = photographs
    return head | {
        **record.conditions(identity.of_images(plan.workload["data"])),
        code_digest.KEY: code_digest.digests(also=ENGINE),
        "machine": facts,
        "source": {"networks": source.networks_of(plan.folder), "digest": source.digest_of(plan.folder)},
        "complete": False,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "protocol": {
            "rounds": 0,
            "cycles": plan.cycles,
            "seed": plan.seed,
            "inspected": plan.inspect,
            "notes": [],
        },
        "programs": [
            {"side": side, "rung": rung, "recipe": recipe, "status": "n/a", "reason": "not measured", "settings": None,
             "rounds": []}
            for side, rung, recipe in ((UPSTREAM, None, None), (OURS, plan.rung, plan.recipe))
        ],
        "parity": None,
        "receipts": None,
        "inspection": None,
        "ratio": None,
        "gpu": None,
    }  # fmt: skip


def measure(plan: Plan, result: Result, tell: Tell, save: Callable[[Result], None]) -> Result:
    """Fill in the result, save it after each part, and return it.

    After Ctrl-C the result comes back with "complete" false. Rounds that it already has are not measured again, and a
    step of ours that has shown its parity is not inspected again.
    """
    begin = time.monotonic() - result["seconds"]
    programs = {each["side"]: each for each in result["programs"]}
    rounds = Interleaved(
        plan.device, cycles=plan.cycles, seed=plan.seed, settle=plan.settle, torch=plan.torch,
        on_wait=lambda: tell("waiting for another run on this device"),
    )  # fmt: skip

    def keep() -> None:
        result["seconds"] = round(time.monotonic() - begin, 1)
        result["gpu"] = rounds.visits.summary(result["programs"])
        derive(result)
        save(result)

    def is_due(program: Program) -> bool:
        return programs[program.side]["status"] in ("ok", "n/a")

    with tempfile.TemporaryDirectory() as folder:
        asked = _programs(plan, Path(folder))
        try:
            with stop_on_sigterm():
                if plan.inspect and not (result["parity"] and result["receipts"]):
                    inspect(plan, result, programs[OURS], tell)
                    keep()
                for number in range(result["protocol"]["rounds"], plan.rounds):
                    due = [program for program in asked if is_due(program)]
                    with contextlib.closing(rounds.round(number, due, is_due)) as visits:
                        for visited in visits:
                            take(plan, visited, programs[visited.program.side])
                            tell(f"round {number + 1} of {plan.rounds}: {visited.program.side} visited")
                            keep()
                    result["protocol"]["rounds"] = number + 1
                    tell(f"round {number + 1} of {plan.rounds}: {said(result)}")
            result["complete"] = True
        except KeyboardInterrupt:
            pass
        finally:
            keep()
            rounds.close()
    return result


def _programs(plan: Plan, folder: Path) -> list[Program]:
    package = folder / "stylegan_lite"
    package.mkdir()
    (package / "__init__.py").write_text(step.PACKAGE)
    theirs = {"folder": str(plan.folder.resolve()), "cudnn_benchmark": True}  # so it is prepared alone
    return [
        Program(UPSTREAM, "step", UPSTREAM, plan.workload, theirs, folder),
        Program(OURS, "step", OURS, plan.workload, plan.recipe, ROOT),
    ]


def inspect(plan: Plan, result: Result, ours: dict[str, Any], tell: Tell) -> None:
    """Check parity and receipts of our step, now or from an earlier run. A step without them is not timed."""
    seen = inspection.Cache(plan.workload, result["machine"])
    found = seen.get(plan.recipe)
    if found is None:
        try:
            found = _asked(plan, tell)
            seen.put(plan.recipe, found)
        except WorkerFailure as failure:
            found = getattr(failure, "found", {})
            ours |= {"status": failure.status, "reason": text.display(failure.reason)}
    result |= {key: found.get(key) for key in ("parity", "receipts", "inspection")}


def _asked(plan: Plan, tell: Tell) -> inspection.Found:
    with device_lock(system.device_key(plan.device)), Pool(torch=plan.torch) as workers:
        worker = workers.take()
        try:
            worker.call(
                "build", workload=plan.workload, recipe=plan.recipe, device=plan.device, seed=plan.seed,
                keep_gradients=True,
            )  # fmt: skip
            worker.call("prepare")
            return inspection.inspect(worker, lambda what: tell(f"{plan.rung}: {what}"))
        finally:
            worker.close()


def take(plan: Plan, visited: Visited, program: dict[str, Any]) -> None:
    """Store a visit. A failure, or networks of another size, ends the visit's program."""
    status, reason = visited.status, visited.reason
    if status == "ok" and program["side"] == UPSTREAM:
        theirs = {name: (visited.settings or {}).get(f"parameters_{name}") for name in plan.weights}
        if theirs != plan.weights:
            counts = [
                " and ".join(f"{n} in {net}" for net, n in each.items()) for each in (theirs, plan.weights)
            ]
            status, reason = "failed", f"weights: {counts[0]}, where ours has {counts[1]}"
    if status != "ok" or visited.round is None:
        said_why = text.display(reason or "no reason was given")
        program |= {"status": "failed" if status == "n/a" else status, "reason": said_why}
        return
    program["rounds"].append(visited.round)
    program |= {"status": "ok", "settings": visited.settings}
    record.settle_status(program)


def said(result: Result) -> str:
    shown = [f"{each['side']} {each['step_ms']:.4g} ms" for each in result["programs"] if each["step_ms"]]
    return ", ".join(shown) or "no number yet"
