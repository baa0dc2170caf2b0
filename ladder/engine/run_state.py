"""The state of a run in progress: the growing result, the visits still due, and the events for the caller."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ladder.engine.gpu_time import PROFILED
from ladder.engine.pool import WorkerFailure
from ladder.engine.visit import Visits
from ladder.machine import system
from ladder.plan import modes
from ladder.plan.variants import Variant
from ladder.results import judging
from ladder.results import store as results
from ladder.results.types import Plain
from ladder.stats import estimates

OnEvent = Callable[[dict[str, Any]], None]


class RunState:
    """A run's result and its file, the visits still due, and the callback for its events."""

    def __init__(
        self,
        result: dict[str, Any],
        workload: dict[str, Any],
        planned: Sequence[modes.Planned],
        device: str,
        path: Path,
        on_event: OnEvent | None,
        inspects: bool = False,
    ) -> None:
        self.result, self.workload, self.device, self.on_event = result, workload, device, on_event
        self.protocol = result["protocol"]
        self.twins = {twin["name"]: twin for twin in result["twins"]}
        self.rungs = {rung["name"]: rung for rung in result["rungs"]} | self.twins
        self.recipes = {p.name: p.recipe for p in planned if p.skipped is None}
        self.recipes |= {name: self.recipes[twin["of"]] for name, twin in self.twins.items()}
        given = {p.name: variant for p in planned if (variant := getattr(p, "variant", None)) is not None}
        twins = {name: given[twin["of"]] for name, twin in self.twins.items() if twin["of"] in given}
        self.variants: dict[str, Variant] = given | twins
        self.path = path
        self.begin = time.monotonic() - result["seconds"]  # the beginning of a resumed run, too
        self.done = sum(len(rung["rounds"]) for rung in self.rungs.values())
        self.inspects = inspects
        self.visits = Visits(device, system.probe().get("uuid") if device == "cuda" else None)
        self.place = threading.local()  # the rung and round of this thread
        self.number = 0  # of the generation that is being made
        self.generation_s: float | None = None  # the seconds of the last generation of this sitting
        self.generation_began = self.begin
        self.lock = threading.RLock()  # guards the result
        self.prepared: dict[str, int | None] = {}  # bytes that a rung's inspector has reserved on the GPU

    def workload_of(self, name: str) -> Plain:
        """Return the workload of an entry. A lever changes some of its fields."""
        variant = self.variants.get(name)
        return {**self.workload, **variant.workload} if variant and variant.workload else self.workload

    def named(self, name: str) -> tuple[str, str] | None:
        """Return the study and the name of an entry's variant, for a worker."""
        variant = self.variants.get(name)
        return (variant.study, self.rungs[name].get("of", name)) if variant else None

    def key_of(self, name: str) -> Any:
        """Return what a finding depends on beside the recipe."""
        variant = self.variants.get(name)
        return [*(self.named(name) or ()), variant.stored()] if variant else None

    def is_patched(self, name: str) -> bool:
        variant = self.variants.get(name)
        return variant is not None and variant.patched

    def profiled(self) -> int:
        """Return how many cycles each process is profiled for.

        GPU time repeats within 0.3%. One cycle of each of many mistakes is enough, and made of a few steps.
        """
        return 1 if self.protocol["mode"] == modes.MISTAKES else PROFILED

    def is_due(self, name: str, number: int | None) -> bool:
        """Return whether a rung lacks this visit. A rung that is out of the run lacks none, nor does its twin."""
        rung = self.rungs[name]
        if rung["status"] in results.OUT or self.rungs[rung.get("of", name)]["status"] in results.OUT:
            return False
        if number is None:
            return rung["inspection"] is None
        return all(r["round"] != number for r in rung["rounds"])

    def todo(self) -> int:
        """Return the number of visits that the plan still holds, inspections included."""
        alive = [self.rungs[name] for name in self.recipes if self.is_due(name, -1)]
        inspections = [rung for rung in alive if "of" not in rung and rung["inspection"] is None]
        visits = sum(max(0, self.protocol["rounds"] - len(rung["rounds"])) for rung in alive)
        return visits + len(inspections) * self.inspects

    def visited(self, rung: dict[str, Any], number: int | None) -> None:
        with self.lock:
            self.done += 1
            self.save()
            timed = rung["rounds"] and number is not None and "failed_at" not in rung
            self.emit(
                "visited", step_ms=estimates.median(rung["rounds"][-1]["samples_ms"]) if timed else None
            )

    def fail(self, rung: dict[str, Any], number: int | None, failure: WorkerFailure) -> None:
        """Take a rung out of the run. Its finished rounds stay in the file, without a headline number."""
        rung["status"] = "failed" if failure.status == "n/a" else failure.status
        rung["reason"] = f"generation {number + 1}: {failure.reason}" if rung["rounds"] else failure.reason
        peaks = {key: value for key, value in failure.reply.items() if key.startswith("peak_")}
        rung["failed_at"] = {"round": number, **peaks}
        self.emit("failed", status=rung["status"], reason=rung["reason"])

    def save(self) -> None:
        """Bring every derived number up to date and write the file."""
        if gpu := self.visits.summary(self.rungs.values()):
            self.result["gpu"] = gpu
        judging.refresh(self.result, self.recipes)
        for name in self.recipes:
            if self.rungs[name]["status"] == "n/a":
                self.rungs[name]["reason"] = "not measured: the run ended before"
        self.result["seconds"] = round(time.monotonic() - self.begin, 1)
        results.write(self.path, self.result)

    def emit(self, event: str, **more: Any) -> None:
        """Tell the caller about an event, with the figures that a progress bar needs."""
        if self.on_event is None:
            return
        at = getattr(self.place, "at", {"rung": None, "round": None})
        with self.lock:
            elapsed, todo = time.monotonic() - self.begin, self.todo()
            common = {"rounds": self.protocol["rounds"], "done": self.done, "total": self.done + todo}
            seconds = {"elapsed_s": elapsed, "left_s": self.left_s()}
            self.on_event({"event": event, **at, **common, **seconds, **more})

    def left_s(self) -> float | None:
        """Return the seconds left if each generation takes as long as the last; None before one is whole.

        An inspection tells nothing about them: the first ones compile kernels and compute in float64.
        """
        if self.generation_s is None:
            return None
        spent = time.monotonic() - self.generation_began
        later = max(0, self.protocol["rounds"] - self.number - 1)
        return max(0.0, self.generation_s - spent) + later * self.generation_s
