"""The state of a run in progress: the growing record, the visits still due, and the events for the caller."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ladder.core import text
from ladder.core.job import Job, RunPlan
from ladder.core.records import Fields, read_record, write_record
from ladder.engine.gpu_time import PROFILED
from ladder.engine.pool import WorkerFailure
from ladder.engine.visit import Visits
from ladder.machine import system
from ladder.plan import modes
from ladder.plan.variants import Variant
from ladder.results import judging, sources
from ladder.results import store as results
from ladder.results.file import OUT
from ladder.results.run import FailedAt, Result, Run, Rung, RunGpu, Twin
from ladder.stats import estimates

OnEvent = Callable[[dict[str, Any]], None]


class RunState:
    """A job, the record that grows by it, and its file.

    `parts` has the rungs and twins by name. `run` is the whole record, `result` what follows from it since the last
    visit.
    """

    def __init__(self, job: Job, run: Run, path: Path, on_event: OnEvent | None) -> None:
        self.job, self.path, self.on_event = job, path, on_event
        self.plan: RunPlan = job.options
        self.first, self.protocol, self.choices = run, run.protocol, run.choices
        self.parts: dict[str, Rung | Twin] = {each.name: each for each in sources.records(run)}
        self.twins = {twin.name: twin.of for twin in run.twins}
        planned = {each.name: each for each in self.plan.planned}
        of = {name: planned[self.twins.get(name, name)] for name in self.parts}
        self.recipes = {name: each.recipe for name, each in of.items() if each.recipe is not None}
        self.variants: dict[str, Variant] = {name: each.variant for name, each in of.items() if each.variant}
        self.seconds = run.seconds
        self.begin = time.monotonic() - run.seconds  # the beginning of a resumed run, too
        self.done = sum(len(each.rounds) for each in self.parts.values())
        uuid = system.probe_gpu().get("uuid") if job.device == "cuda" else None
        self.visits = Visits(job.device, uuid)
        self.place = threading.local()  # the rung and round of this thread
        self.number = 0  # of the generation that is being made
        self.first_table_s = run.first_table_s
        self.generation_s: float | None = None  # the seconds of the last generation of this sitting
        self.generation_began = self.begin
        self.lock = threading.RLock()  # guards the record
        self.prepared: dict[str, int | None] = {}  # bytes that a rung's inspector has reserved on the GPU
        self.result: Result = judging.derive_result(run)

    @property
    def run(self) -> Run:
        """Return the record as it is now."""
        parts = self.parts.values()
        rounds = [each for part in parts for each in part.rounds]
        gpu = self.visits.summary(rounds)
        return replace(
            self.first,
            protocol=self.protocol,
            rungs=[each for each in parts if isinstance(each, Rung)],
            twins=[each for each in parts if isinstance(each, Twin)],
            choices=self.choices,
            gpu=read_record(RunGpu, text.fit_texts(gpu)) if gpu else self.first.gpu,
            first_table_s=self.first_table_s,
            seconds=self.seconds,
        )

    def change(self, name: str, **fields: Any) -> None:
        """Replace fields of a rung or twin."""
        with self.lock:
            self.parts[name] = replace(self.parts[name], **fields)

    def statuses(self) -> dict[str, str]:
        """Return the status of each rung and twin, derived ones included: what stands on a failed rung is skipped."""
        derived = {each.name: each.status for each in sources.records(self.result)}
        return derived | {name: each.status for name, each in self.parts.items() if each.status in OUT}

    def workload_of(self, name: str) -> Fields:
        """Return the workload of an entry. A lever changes some of its fields."""
        variant = self.variants.get(name)
        return {**self.job.workload, **(variant.workload if variant else {})}

    def named(self, name: str) -> tuple[str, str] | None:
        """Return the study and the name of an entry's variant, for a worker."""
        variant = self.variants.get(name)
        return (variant.study, self.twins.get(name, name)) if variant else None

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
        return 1 if self.protocol.mode == modes.MISTAKES else PROFILED

    def is_due(self, name: str, number: int | None) -> bool:
        """Return whether a rung lacks this visit. A rung that is out of the run lacks none, nor does its twin."""
        statuses, part = self.statuses(), self.parts[name]
        if statuses[name] in OUT or statuses[self.twins.get(name, name)] in OUT:
            return False
        if number is None:
            return isinstance(part, Rung) and part.inspection is None
        return all(each.round != number for each in part.rounds)

    def todo(self) -> int:
        """Return the number of visits that the plan still holds, inspections included."""
        alive = [name for name in self.recipes if self.is_due(name, -1)]
        visits = sum(max(0, self.protocol.rounds - len(self.parts[name].rounds)) for name in alive)
        return visits + sum(self.is_due(name, None) for name in alive) * self.plan.inspect

    def visited(self, name: str, number: int | None) -> None:
        with self.lock:
            self.done += 1
            self.save()
            part = self.parts[name]
            timed = part.rounds and number is not None and part.failed_at is None
            self.emit("visited", step_ms=estimates.median(part.rounds[-1].samples_ms) if timed else None)

    def fail(self, name: str, number: int | None, failure: WorkerFailure) -> None:
        """Take a rung out of the run. Its finished rounds stay in the file, without a headline number."""
        reason = (
            f"generation {number + 1}: {failure.reason}"
            if number is not None and self.parts[name].rounds
            else failure.reason
        )
        peaks = {key: value for key, value in failure.reply.items() if key.startswith("peak_")}
        status = "failed" if failure.status == "n/a" else failure.status
        failed_at = read_record(FailedAt, {"round": number, **peaks})
        self.change(name, status=status, reason=text.make_display(reason), failed_at=failed_at)
        self.emit("failed", status=status, reason=reason)

    def save(self) -> None:
        """Derive what follows from the record so far, and write the file."""
        with self.lock:
            self.seconds = round(time.monotonic() - self.begin, 1)
            self.result = judging.derive_result(self.run)
            for each in sources.records(self.result):
                if each.status == "invalid" and self.parts[each.name].status == "ok":
                    self.change(each.name, status="invalid", reason=each.reason, failed_at=each.failed_at)
            results.write(self.path, write_record(self.run))

    def emit(self, event: str, **more: Any) -> None:
        """Tell the caller about an event, with the figures that a progress bar needs."""
        if self.on_event is None:
            return
        at = getattr(self.place, "at", {"rung": None, "round": None})
        with self.lock:
            elapsed, todo = time.monotonic() - self.begin, self.todo()
            common = {"rounds": self.protocol.rounds, "done": self.done, "total": self.done + todo}
            seconds = {"elapsed_s": elapsed, "left_s": self.left_s()}
            self.on_event({"event": event, **at, **common, **seconds, **more})

    def left_s(self) -> float | None:
        """Return the seconds left if each generation takes as long as the last; None before one is whole.

        An inspection tells nothing about them: the first ones compile kernels and compute in float64.
        """
        if self.generation_s is None:
            return None
        spent = time.monotonic() - self.generation_began
        later = max(0, self.protocol.rounds - self.number - 1)
        return max(0.0, self.generation_s - spent) + later * self.generation_s
