"""One training step under test: the commands of a worker."""

import contextlib
import gc
import importlib
import itertools
import math
import sys
import time
from pathlib import Path
from typing import Any

from ladder.core.paths import ROOT
from ladder.core.protocol import CYCLE_STEPS
from ladder.engine import asides, capturing
from ladder.engine.asides import derive_added, find_foreign, is_settled, peak_rss, stood_still, weights_of
from ladder.engine.channel import Channel, Nobody
from ladder.engine.gpu_time import PROFILED
from ladder.engine.joining import Member
from ladder.machine import gpu_state
from ladder.machine.threads import Threads, read_spinning

CONTRACT = 1
# Preparation times that only the measured code can report.
PARTS = ("warmup_s", "compile_s", "compile_kernels_s", "cache_s")


class Invalid(Exception):
    """A step that computed NaN or Inf: its timing is void."""


class NoContract(Exception):
    """Measured code that does not offer the contract."""


class Rung(Member):
    """One training step under test, with a method for each command."""

    def __init__(self, code: Path | None, channel: Channel | Nobody) -> None:
        super().__init__()
        self.code, self.channel = code, channel
        self.step: Any = None
        self.peaks: dict[str, int] = {}  # of visits before the last
        self.threads = Threads()
        self.retries, self.weights = 0, {}
        self.profiled = False
        self.traced: Any = None  # by `do_trace`

    def do_import(self, torch: bool) -> dict[str, Any]:
        begin = time.perf_counter()
        if self.code and str(self.code) not in sys.path[:1]:
            sys.path.insert(0, str(self.code))
        if torch:
            importlib.import_module("torch")
        try:
            package = importlib.import_module("stylegan_lite")
        except ModuleNotFoundError as error:
            if error.name == "stylegan_lite":
                raise NoContract("the measured code has no package stylegan_lite") from error
            raise
        self.refuse_foreign()
        if getattr(package, "CONTRACT", None) != CONTRACT:
            raise NoContract(f"stylegan_lite.CONTRACT is not {CONTRACT}")
        self.package = package
        # Adam loads dynamo at its first step, which takes seconds.
        for name in ("stylegan_lite.step", "torch._dynamo") if torch else ("stylegan_lite.step",):
            with contextlib.suppress(Exception):  # building says what is wrong
                importlib.import_module(name)
        self.refuse_foreign()
        return {"start_s": time.perf_counter() - begin}

    def do_build(
        self, workload: dict, recipe: dict, device: str, seed: int,
        keep_gradients: bool = False, threads: int | None = None, variant: list[str] | None = None,
        memory_limit: int | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        self.device = device
        self.threads.hold(threads)
        if memory_limit is not None:
            asides.limit_memory(sys.modules["torch"], memory_limit)
        begin = time.perf_counter()
        self.step = self.package.make_step(workload, recipe, device=device, seed=seed)
        if keep_gradients:
            self.step.keep_gradients = True
        if variant:
            asides.study_of(variant).apply(self.step, variant[1])
        if self.joined:
            self.joined.follow(self.step)
        self.synchronize()
        self.refuse_foreign()
        return {
            "build_s": time.perf_counter() - begin,
            "recipe": self.step.recipe.to_dict() if hasattr(self.step.recipe, "to_dict") else recipe,
            "settings": self.threads.released(self.step.settings) | read_spinning(),
            "gpu_uuid": self.gpu_uuid(),
        }

    def refuse_foreign(self) -> None:
        """Raise `NoContract` if a measured package came from elsewhere. Some are imported only at their first use."""
        if found := find_foreign(self.code or ROOT):
            raise NoContract(found)

    def gpu_uuid(self) -> str | None:
        """Return the UUID of the GPU that this process is on."""
        if self.device != "cuda":
            return None
        torch = sys.modules["torch"]
        return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", "")) or None

    def do_prepare(self) -> dict[str, Any]:
        """Prepare the step. The whole and the captures are timed here; the measured code reports other parts."""
        with capturing.time_captures(sys.modules.get("torch")) as captured:
            begin = time.perf_counter()
            said = self.step.prepare() or {}
            self.synchronize()
            whole = time.perf_counter() - begin
        self.refuse_foreign()
        parts = {key: said[key] for key in PARTS if asides.is_part(said.get(key), whole)}
        return parts | {"prepare_s": whole, "capture_s": sum(captured)} | self.memory()

    def do_visit(self, cycles: int, settle_s: float, settle_cycles: int, main: bool) -> dict[str, Any]:
        """Begin, run the lead-in, time so many cycles in a row, and finish: all of a process that is alone."""
        begin = time.perf_counter()
        begun = self.do_begin()
        lead_in, settled = self.lead_in(settle_s, settle_cycles)
        begun |= {"lead_in_cycles": lead_in, "settled": settled}
        timed = [self.timed_cycle() for _ in range(cycles)]
        found = self.sampled(timed) | begun | self.do_finish(main)
        return found | {"visit_s": time.perf_counter() - begin}

    def do_begin(self) -> dict[str, Any]:
        """Make ready for the first visit, on all CPU threads."""
        self.threads.release()
        gc.collect()
        self.retries = self.memory().get("alloc_retries", 0)
        self.weights = weights_of(self.step)
        return {}

    def do_cycle(self) -> dict[str, Any]:
        """Drain what idle loaders hold, then time one cycle: one visit of a generation."""
        self.refuse_profiled()
        self.drain()
        return self.sampled([self.timed_cycle()])

    def sampled(self, timed: list[tuple[float, float | None]]) -> dict[str, Any]:
        events = [event for _, event in timed] if self.device == "cuda" else None
        return {"samples_s": [wall for wall, _ in timed], "event_s": events}

    def do_finish(self, main: bool, lazy: bool | None = None) -> dict[str, Any]:
        """Do all that is not the step's time: a cycle without lazy phases, their costs, and checks of the step.

        The costs are told as `lazy` asks, by default as `main`.

        Raises `Invalid` for NaN, Inf, weights that stood still, or a timer that the measured code replaced.
        """
        self.refuse_profiled()
        reply: dict[str, Any] = {
            "main_s": self.timed_cycle(lazy=False)[0] if main else None,
            "lazy_s": self.lazy_costs() if (main if lazy is None else lazy) else None,
            **self.memory(),
        }
        reply["alloc_retries"] = reply.get("alloc_retries", 0) - self.retries
        if broken := (
            asides.replaced_timer(self.device)
            or self.step.check_finite()
            or stood_still(self.weights, weights_of(self.step))
        ):
            raise Invalid(broken)
        if self.device == "cuda":
            reply["canary_s"] = self.canary(reply)
        return reply

    def do_canary(self) -> dict[str, Any]:
        """Run the canary kernel once more."""
        return {"canary_s": gpu_state.time_canary(sys.modules["torch"])}

    def do_profile(self, part: str, cycles: int = PROFILED, rest_s: float = 0.0) -> dict[str, Any]:
        """Profile cycles after the last timed one: no cycle of this process is timed again.

        Part "load" starts a profiler. "record" needs the GPU for itself until it says "ran", and returns the figures.
        Part "kinds" tells no more than `cycles`, from a few steps.
        """
        self.profiled = True
        if self.device != "cuda":
            return {"cycles": None, "profile": None, "gpu_void": None}
        from ladder.engine import kinds, profiling

        if part == "kinds":
            return {**kinds.record_kinds(self, cycles)}
        if part == "record":
            recorded = profiling.record_cycles(self, cycles, rest_s)
            found = profiling.digest_cycles(recorded, getattr(self.step, "LAUNCHES_VARY", 0.0))
            return found | (profiling.between_gpus(recorded) if self.joined else {})
        profiling.load_profiler()
        return {}

    def do_prove(self) -> dict[str, Any]:
        """Compare the very step that was timed with the FP64 reference, on the reference's state and inputs."""
        from ladder.parity import check as parity

        self.profiled = True
        self.do_release()  # others beside it need room for a reference, too
        try:
            return {
                **parity.compare_timed_step(self.step, lambda text: self.channel.send({"progress": text}))
            }
        finally:
            self.do_release()

    def do_release(self, leave: bool = False) -> dict[str, Any]:
        """Give memory that the allocator does not need back to the GPU. `leave`: the step goes, too, for another one.

        Return the bytes that the allocator keeps.
        """
        if leave:
            self.do_exit()
            self.step, self.weights = None, {}
        if self.device != "cuda":
            return {"reserved_bytes": None}
        gc.collect()
        cuda = sys.modules["torch"].cuda
        cuda.empty_cache()
        return {"reserved_bytes": cuda.memory_reserved()}

    def refuse_profiled(self) -> None:
        """Raise if a profiler ran in this process: what it leaves behind would be timed, too."""
        if self.profiled:
            raise RuntimeError("a process that was profiled is never timed again")

    def drain(self) -> None:
        """Empty what idle loaders hold ready: a timed cycle then goes at their pace."""
        asides.drain_loader(self.step)
        self.synchronize()

    def canary(self, peaks: dict[str, Any]) -> float | None:
        """Return the seconds of a kernel that is the same in every process.

        Its memory does not count for the rung.
        """
        torch = sys.modules["torch"]
        seconds = gpu_state.time_canary(torch)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.peaks = {key: peaks[key] for key in ("peak_reserved_bytes", "peak_allocated_bytes")}
        return seconds

    def lead_in(self, limit_s: float, limit_cycles: int) -> tuple[int, bool | None]:
        """Run until idle loaders are drained and, given time for it, the step time stands still.

        An idle loader refills: with a dataset of 80 ms a batch the first cycle after a pause showed 0.6 ms a step and
        the next 81.

        Returns how many cycles were run, and whether they settled (None if no time was given).
        """
        least = max(1, math.ceil(self.step.data_capacity / CYCLE_STEPS))
        begin, times = time.perf_counter(), []
        while True:
            times.append(self.timed_cycle()[0])
            if len(times) < least:
                continue
            if not limit_s:
                return len(times), None
            if is_settled(times):
                return len(times), True
            if len(times) >= max(least, limit_cycles) or time.perf_counter() - begin > limit_s:
                return len(times), False

    def timed_cycle(self, lazy: bool = True) -> tuple[float, float | None]:
        """Return (wall, CUDA event) seconds for one step of a cycle, between synchronizations.

        Event is None without CUDA.
        """
        events = None
        if self.device == "cuda":
            cuda = sys.modules["torch"].cuda
            events = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        self.synchronize()
        self.align()
        begin = time.perf_counter()
        if events:
            events[0].record()
        self.step.cycle(lazy=lazy)
        if events:
            events[1].record()
        self.synchronize()
        wall = (time.perf_counter() - begin) / CYCLE_STEPS
        self.channel.send({"progress": "cycle", "seconds": wall * CYCLE_STEPS})
        return wall, events and events[0].elapsed_time(events[1]) / 1000 / CYCLE_STEPS

    def lazy_costs(self) -> dict[str, float] | None:
        """Return the seconds that each lazy phase adds to a step with it; None if a step does not tell its phases.

        The steps of a cycle are timed between marks on the GPU's stream. One step comes before, as the first finds an
        idle GPU.
        """
        step, kinds = self.step, []
        if not (hasattr(step, "phases") and hasattr(step, "step")):
            return None
        self.synchronize()
        marks = []
        for _ in range(1 + CYCLE_STEPS):
            kinds.append(tuple(step.phases(step.count)))
            marks.append(self.mark())
            step.step()
        marks.append(self.mark())
        self.synchronize()
        took = [self.between(a, b) for a, b in itertools.pairwise(marks)]
        self.channel.send({"progress": "cycle", "seconds": sum(took[1:])})
        return derive_added(kinds[1:], took[1:])

    def mark(self) -> Any:
        """Return a moment of the GPU's stream. On a CPU, where a returned step is done, it is the host's clock."""
        if self.device != "cuda":
            return time.perf_counter()
        event = sys.modules["torch"].cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        return end - begin if self.device != "cuda" else begin.elapsed_time(end) / 1000

    def do_trace(self) -> dict[str, Any]:
        """See the prepared step as it is timed, for `do_receipts`. The GPU must do nothing else until it says "ran".

        The step trains on, so all that needs it unchanged comes before.
        """
        from ladder.receipts import evidence

        self.threads.release()
        self.traced = evidence.trace_step(
            self.step, lambda: self.channel.send({"progress": "ran"}), self.align
        )
        return {}

    def do_receipts(self, rungs: list[str] | None = None) -> dict[str, Any]:
        """Return the evidence of the traced step, and what each rung reads in it. `rungs` None: all in the recipe."""
        from ladder import receipts
        from ladder.receipts import evidence

        if self.traced is None:
            self.do_trace()
        traced, self.traced = self.traced, None  # the step trains on
        seen = evidence.gather_evidence(self.step, traced)
        if rungs is None:
            from ladder.plan import catalog

            rungs = catalog.list_contained(seen["recipe"])
        return {"receipts": receipts.issue(rungs, seen), "evidence": seen}

    def do_examine(self, variant: list[str]) -> Any:
        """Show that an entry of a study is in force, or what its model costs."""
        return asides.study_of(variant).examine(self.step, variant[1])

    def do_parity(self) -> dict[str, Any]:
        """Compare the prepared step with the FP64 reference, and leave it as it is timed: gradients no longer kept."""
        from ladder.parity import check as parity

        return parity.check_step(self.step, tell=lambda text: self.channel.send({"progress": text}))

    def do_choices(self) -> dict[str, Any]:
        """Return the tiles that our kernels were launched with, after timing.

        A process without our kernels used none.
        """
        if "kernels" not in sys.modules:
            return {"choices": []}
        used = getattr(sys.modules.get("kernels.choices"), "used", None)
        return {"choices": None if used is None else used()}

    def do_threads(self) -> dict[str, Any]:
        """Return how many CPU threads a step will compute with here."""
        torch = sys.modules.get("torch")
        return {"cpu_threads": torch and torch.get_num_threads()}

    def do_scales(self, steps: int) -> dict[str, Any]:
        """Train on, and return how the loss scales moved."""
        from ladder.engine import loss_scales

        def on_step(number: int) -> None:
            if number % CYCLE_STEPS == 0:
                self.channel.send({"progress": f"step {number}"})

        found = loss_scales.follow_scales(self.step, steps, on_step)
        if broken := self.step.check_finite():
            raise Invalid(broken)
        return found

    def do_host(self, cycles: int) -> dict[str, Any]:
        """Return the host time of a step and what it consists of. The process is not timed after it."""
        from ladder.engine import host_time

        self.threads.release()
        return {"host": host_time.measure_host(self, cycles)}

    def do_exit(self) -> dict[str, Any]:
        if self.step is not None:
            self.step.close()
        return {}

    def synchronize(self) -> None:
        if self.device == "cuda":
            sys.modules["torch"].cuda.synchronize()

    def memory(self) -> dict[str, Any]:
        """Return the peaks of this process since its start, in bytes: a rung must fit with its capture too."""
        memory: dict[str, Any] = {"peak_rss_bytes": peak_rss()}
        torch = sys.modules.get("torch")
        if self.device == "cuda" and torch is not None and torch.cuda.is_initialized():
            memory |= asides.gpu_memory(torch)
            memory |= {key: max(peak, memory[key]) for key, peak in self.peaks.items()}
        return memory
