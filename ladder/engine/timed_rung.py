"""One training step under test: the commands of a worker, and its work beside a step's time.

Nothing here imports torch when it is loaded, as the measured code may have none.
"""

import contextlib
import gc
import importlib
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ladder.core.paths import ROOT
from ladder.core.plain import Plain
from ladder.core.protocol import CYCLE_STEPS
from ladder.engine.channel import Nobody
from ladder.engine.gpu_time import PROFILED
from ladder.engine.joining import Joined
from ladder.machine import gpu_state
from ladder.machine.threads import Threads, read_spinning

CONTRACT = 1
PARTS = (
    "warmup_s",
    "compile_s",
    "compile_kernels_s",
    "cache_s",
)  # of preparing, as only the measured code knows
MEASURED = ("stylegan_lite", "kernels")
CLOCK = time.perf_counter  # as it was before any measured code was imported
UNTIMED = 2  # steps between the last batch that was ready and a timed cycle
MOST_CHANGES = 4000  # of loss scales: they move a few times, then once in an interval


class Invalid(Exception):
    """A step that computed NaN or Inf: its timing is void."""


class NoContract(Exception):
    """Measured code that does not offer the contract."""


class Rung:
    """One training step under test, with a method for each command (`ladder.engine.worker`)."""

    def __init__(self, code: Path | None, channel: Nobody) -> None:
        self.code, self.channel, self.device = code, channel, "cpu"
        self.joined: Joined | None = None  # with other ranks
        self.step: Any = None
        self.peaks: dict[str, int] = {}  # of visits before the last
        self.threads = Threads()
        self.retries, self.weights = 0, {}
        self.profiled = False
        self.traced: Any = None  # by `do_trace`
        self.recorded: Any = None  # by `do_profile`, of a rank

    def do_join(self, rank: int, ranks: int, folder: str, device: str) -> Plain:
        """Become a rank of a process group of this host. On GPUs the rank is the number of its GPU."""
        self.device, self.joined = device, Joined(rank, ranks, folder, device)
        return {}

    def align(self) -> None:
        """Wait for the other ranks, so that no cycle contains another rank's late start."""
        if self.joined:
            self.joined.align()

    def do_import(self, torch: bool) -> Plain:
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
        later = ("stylegan_lite.step", "stylegan_lite.stylegan2")
        for name in (*later, "torch._dynamo") if torch else later:
            with contextlib.suppress(Exception):  # building says what is wrong
                importlib.import_module(name)
        self.refuse_foreign()
        return {"start_s": time.perf_counter() - begin}

    def do_describe(
        self, model: list[str], settings: dict, device: str, seed: int, repository: list[str] | None = None
    ) -> Plain:
        """Return what a user's pair is, or one line why it cannot be measured (`ladder.engine.pair`)."""
        from ladder.engine import pair
        from stylegan_lite.config import ConfigError

        try:
            return {"problem": None, **pair.describe_pair(model, settings, device, seed, repository)}
        except ConfigError as error:
            return {"problem": str(error)}

    def do_identify(self, model: list[str], settings: dict) -> Plain:
        """Return the digest of a user's pair, or one line why there is none."""
        from stylegan_lite.config import ConfigError, PairWorkload
        from stylegan_lite.step import loading

        try:
            made = loading.make_pair(PairWorkload(pair="", model=model, settings=settings, batch=1))
        except ConfigError as error:
            return {"problem": str(error)}
        return {"problem": None, "pair": made[1]}

    def do_build(
        self, workload: dict, recipe: dict, device: str, seed: int,
        keep_gradients: bool = False, threads: int | None = None, variant: list[str] | None = None,
        memory_limit: int | None = None,
    ) -> Plain:  # fmt: skip
        self.device = device
        self.threads.hold(threads)
        if memory_limit is not None:
            limit_memory(sys.modules["torch"], memory_limit)
        begin = time.perf_counter()
        self.step = self.package.make_step(workload, recipe, device=device, seed=seed)
        if keep_gradients:
            self.step.keep_gradients = True
        if variant:
            importlib.import_module(f"ladder.studies.{variant[0]}").apply(self.step, variant[1])
        if self.joined:
            self.joined.follow(self.step)
        self.synchronize()
        self.refuse_foreign()
        gpu = sys.modules["torch"].cuda.get_device_properties() if device == "cuda" else None
        return {
            "build_s": time.perf_counter() - begin,
            "recipe": self.step.recipe.to_dict() if hasattr(self.step.recipe, "to_dict") else recipe,
            "settings": self.threads.released(self.step.settings) | read_spinning(),
            "gpu_uuid": gpu and (str(getattr(gpu, "uuid", "")) or None),
        }

    def refuse_foreign(self) -> None:
        """Raise `NoContract` if a measured package came from elsewhere. Some are imported only at their first use."""
        if found := find_foreign(self.code or ROOT):
            raise NoContract(found)

    def do_prepare(self) -> Plain:
        """Prepare the step. The whole and the captures are timed here; the measured code reports other parts."""
        with time_captures(sys.modules.get("torch")) as captured:
            begin = time.perf_counter()
            said = self.step.prepare() or {}
            self.synchronize()
            whole = time.perf_counter() - begin
        self.refuse_foreign()
        said = {key: said[key] for key in PARTS if isinstance(said.get(key), int | float)}
        parts = {key: seconds for key, seconds in said.items() if 0 <= seconds <= whole}
        return parts | {"prepare_s": whole, "capture_s": sum(captured)} | self.memory()

    def do_visit(self, cycles: int, settle_s: float, settle_cycles: int, main: bool) -> Plain:
        """Begin, run the lead-in, time so many cycles in a row, and finish: all of a process that is alone."""
        begin = time.perf_counter()
        self.do_begin()
        lead_in, settled = self.lead_in(settle_s, settle_cycles)
        reply = self.sampled([self.timed_cycle() for _ in range(cycles)]) | self.do_finish(main, lazy=main)
        lead = {"lead_in_cycles": lead_in, "settled": settled}
        return reply | lead | {"visit_s": time.perf_counter() - begin}

    def do_begin(self) -> Plain:
        """Make ready for the first visit, on all CPU threads."""
        self.threads.release()
        gc.collect()
        self.retries = self.memory().get("alloc_retries", 0)
        self.weights = weights_of(self.step)
        return {}

    def do_cycle(self) -> Plain:
        """Drain what idle loaders hold, then time one cycle: one visit of a generation."""
        self.refuse_profiled()
        drain_loader(self.step)
        self.synchronize()
        return self.sampled([self.timed_cycle()])

    def sampled(self, timed: list[tuple[float, float | None]]) -> Plain:
        events = [event for _, event in timed] if self.device == "cuda" else None
        return {"samples_s": [wall for wall, _ in timed], "event_s": events}

    def do_finish(self, main: bool, lazy: bool = False) -> Plain:
        """Do all that is not the step's time: a cycle without lazy phases, their costs (`lazy`), and checks.

        Raises `Invalid` for NaN, Inf, weights that stood still, or a timer that the measured code replaced.
        """
        self.refuse_profiled()
        reply: Plain = {
            "main_s": self.timed_cycle(lazy=False)[0] if main else None,
            "lazy_s": self.lazy_costs() if lazy else None,
            **self.memory(),
        }
        reply["alloc_retries"] = reply.get("alloc_retries", 0) - self.retries
        if broken := (
            replaced_timer(self.device)
            or self.step.check_finite()
            or stood_still(self.weights, weights_of(self.step))
        ):
            raise Invalid(broken)
        if self.device == "cuda":
            reply |= self.do_canary()
            cuda = sys.modules["torch"].cuda  # the canary's memory is not the rung's
            cuda.empty_cache()
            cuda.reset_peak_memory_stats()
            self.peaks = {key: reply[key] for key in ("peak_reserved_bytes", "peak_allocated_bytes")}
        return reply

    def do_canary(self) -> Plain:
        """Return the seconds of a kernel that is the same in every process."""
        return {"canary_s": gpu_state.time_canary(sys.modules["torch"])}

    def do_profile(
        self, part: str, cycles: int = PROFILED, rest_s: float = 0.0, late_ns: Sequence[int] = ()
    ) -> Plain:
        """Profile cycles after the last timed one: no cycle of this process is timed again.

        Part "load" starts a profiler. "record" and "kinds" need the GPU for themselves until they say "ran". "late"
        looks at the last record once more: `late_ns` before each collective another rank waited.
        """
        self.profiled = True
        if self.device != "cuda":
            return {"cycles": None, "profile": None, "gpu_void": None}
        from ladder.engine import profiling

        if part == "kinds":
            return {**profiling.record_kinds(self, cycles)}
        if part == "record":
            recorded = profiling.record_cycles(self, cycles, rest_s)
            found = profiling.digest_cycles(recorded, getattr(self.step, "LAUNCHES_VARY", 0.0))
            if not self.joined:
                return found
            self.recorded = recorded
            return found | profiling.between_gpus(recorded)
        if part == "late":
            return profiling.describe_lateness(self.recorded, late_ns)
        profiling.load_profiler()
        return {}

    def do_prove(self) -> Plain:
        """Compare the very step that was timed with the FP64 reference, on the reference's state and inputs."""
        from ladder.parity import check as parity

        self.profiled = True
        self.do_release()  # others beside it need room for a reference, too
        try:
            return {**parity.compare_timed_step(self.step, self.tell)}
        finally:
            self.do_release()

    def do_release(self, leave: bool = False) -> Plain:
        """Give the GPU what the allocator does not need; with `leave` the step goes, too. Return the bytes it keeps."""
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

    def lead_in(self, limit_s: float, limit_cycles: int) -> tuple[int, bool | None]:
        """Run until idle loaders are drained and, given time for it, the step time stands still.

        An idle loader refills: with 80 ms a batch the first cycle after a pause showed 0.6 ms a step, the next 81.
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
        """Return (wall, CUDA event or None) seconds for one step of a cycle, between synchronizations."""
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
        """Return the seconds that each lazy phase adds to a step with it, None if a step does not tell its phases.

        Steps are timed between marks on the GPU's stream, after one step more: the first finds an idle GPU.
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
        pairs = itertools.pairwise(marks)
        took = [a.elapsed_time(b) / 1000 if self.device == "cuda" else b - a for a, b in pairs]
        self.channel.send({"progress": "cycle", "seconds": sum(took[1:])})
        return derive_added(kinds[1:], took[1:])

    def mark(self) -> Any:
        """Return a moment of the GPU's stream, or of the host's clock on a CPU, where a returned step is done."""
        if self.device != "cuda":
            return time.perf_counter()
        event = sys.modules["torch"].cuda.Event(enable_timing=True)
        event.record()
        return event

    def do_trace(self) -> Plain:
        """See the prepared step as it is timed, and train on. Nothing else uses the GPU until this says "ran"."""
        from ladder.receipts import evidence

        self.threads.release()
        self.traced = evidence.trace_step(self.step, lambda: self.tell("ran"), self.align)
        return {}

    def do_receipts(self, rungs: list[str] | None = None) -> Plain:
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
        return importlib.import_module(f"ladder.studies.{variant[0]}").examine(self.step, variant[1])

    def do_parity(self) -> Plain:
        """Compare the prepared step with the FP64 reference, and leave it as it is timed: gradients no longer kept."""
        from ladder.parity import check as parity

        return parity.check_step(self.step, tell=self.tell)

    def do_choices(self) -> Plain:
        """Return the tiles that our kernels were launched with; none in a process without our kernels."""
        if "kernels" not in sys.modules:
            return {"choices": []}
        used = getattr(sys.modules.get("kernels.choices"), "used", None)
        return {"choices": None if used is None else used()}

    def do_threads(self) -> Plain:
        """Return how many CPU threads a step will compute with here."""
        torch = sys.modules.get("torch")
        return {"cpu_threads": torch and torch.get_num_threads()}

    def do_scales(self, steps: int) -> Plain:
        """Train on, and return how the loss scales moved."""
        moves = follow_scales(self.step, steps, self.tell)
        if broken := self.step.check_finite():
            raise Invalid(broken)
        return moves

    def do_host(self, cycles: int) -> Plain:
        """Return the host time of a step and what it consists of. The process is not timed after it."""
        from ladder.engine import host_time

        self.threads.release()
        return {"host": host_time.measure_host(self, cycles)}

    def do_exit(self) -> Plain:
        if self.step is not None:
            self.step.close()
        return {}

    def tell(self, text: str) -> None:
        """Show the watchdog that the work goes on."""
        self.channel.send({"progress": text})

    def synchronize(self) -> None:
        if self.device == "cuda":
            sys.modules["torch"].cuda.synchronize()

    def memory(self) -> Plain:
        """Return the peaks of this process since its start, in bytes: a rung must fit with its capture too."""
        memory: Plain = {"peak_rss_bytes": peak_rss()}
        torch = sys.modules.get("torch")
        if self.device == "cuda" and torch is not None and torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            memory |= {
                "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
                "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
                "device_used_bytes": total - free,  # CUDA graphs' pools hide from the allocator's peaks
                "alloc_retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
            }
            memory |= {key: max(peak, memory[key]) for key, peak in self.peaks.items()}
        return memory


def follow_scales(step: Any, steps: int, tell: Callable[[str], None] = lambda text: None) -> Plain:
    """Train with FP16 for `steps`, and return both loss scales at each step where they, or what was skipped, changed.

    They are noted on the device and read once at the end, so nothing waits for it.
    """
    import torch

    if not step.scales:
        raise ValueError("loss scales: this recipe has none, they belong to precision: fp16")
    scales = {network: step.scales[network] for network in ("G", "D")}
    values = [getattr(scale, key) for key in ("scale", "skipped") for scale in scales.values()]
    noted = torch.zeros(steps, len(values), dtype=torch.float64, device=step.device)
    for number in range(steps):
        step.step()
        noted[number].copy_(torch.stack([value.double() for value in values]))
        if (number + 1) % CYCLE_STEPS == 0:
            tell(f"step {number + 1}")
    changes: list[list[float]] = []
    for number, (*moved, g_skipped, d_skipped) in enumerate(noted.tolist(), start=1):
        line = [*moved, int(g_skipped), int(d_skipped)]
        if not changes or changes[-1][1:] != line:
            changes.append([number, *line])
    return {
        "steps": steps,
        "initial": step.recipe.loss_scale,
        "changes": changes[:MOST_CHANGES],
        "updates": {network: int(scale.updates) for network, scale in scales.items()},
        "skipped": {network: int(scale.skipped) for network, scale in scales.items()},
    }


@contextlib.contextmanager
def time_captures(torch: Any) -> Iterator[list[float]]:
    """Yield a list that gets the seconds of each capture of a CUDA graph inside the block.

    They are timed where torch's own calls begin and end a capture. With `torch` None the list stays empty.
    """
    took: list[float] = []
    cuda = getattr(torch, "cuda", None)
    if cuda is None:
        yield took
        return
    begun: list[float] = []  # `torch.cuda.graph` makes the graph's own calls inside its own

    def time_begin(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **how: Any) -> Any:
            begun.append(time.perf_counter())
            return call(*args, **how)

        return timed

    def time_end(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **how: Any) -> Any:
            result = call(*args, **how)
            begin = begun.pop()
            if not begun:
                took.append(time.perf_counter() - begin)
            return result

        return timed

    marks = [(cuda.graph, "__enter__", time_begin), (cuda.graph, "__exit__", time_end)]
    marks += [(cuda.CUDAGraph, "capture_begin", time_begin), (cuda.CUDAGraph, "capture_end", time_end)]
    with contextlib.ExitStack() as stack:
        for kind, name, timer in marks:
            stack.callback(setattr, kind, name, getattr(kind, name))
            setattr(kind, name, timer(getattr(kind, name)))
        yield took


def limit_memory(torch: Any, limit: int) -> None:
    """Let this process allocate at most so many bytes of its GPU: more is out of memory, as on a smaller card."""
    has = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / has))


def weights_of(step: Any) -> dict[str, list[float]]:
    """Return the length of every weight by network, by which one sees whether they moved. A copy would take memory."""
    torch, lengths = sys.modules.get("torch"), {}
    known = getattr(step, "optimizers", {})  # an old commit's step has none
    networks = {name: step.networks[name] for name in known} | {
        f"{name}_ema": average for name, average in getattr(step, "averages", {}).items()
    }
    for name in networks or ("G", "D", "G_ema"):
        weights = getattr(networks.get(name) or getattr(step, name, None), "parameters", list)
        norms = [torch.linalg.vector_norm(weight.detach()) for weight in weights()]
        lengths[name] = torch.stack(norms).tolist() if norms else []
    return lengths


def stood_still(before: dict[str, list[float]], after: dict[str, list[float]]) -> str | None:
    """Return one line that names networks whose weights all stood still while they were trained, or None."""
    still = [name for name, weights in before.items() if weights and weights == after[name]]
    return f"weights of {', '.join(still)} did not move in the cycles that were timed" if still else None


def replaced_timer(device: str) -> str | None:
    """Return one line if the measured code replaced what times it, else None. Whatever it told was no time then."""
    if time.perf_counter is not CLOCK:
        return "the measured code replaced time.perf_counter, which times it"
    if device == "cuda" and sys.modules["torch"].cuda.synchronize.__module__ != "torch.cuda":
        return "the measured code replaced torch.cuda.synchronize, before which no time ends"
    return None


def derive_added(kinds: list[tuple[str, ...]], seconds: list[float]) -> dict[str, float]:
    """Return the seconds that each phase adds, where steps differ by it alone: medians with it less those without."""
    took: dict[tuple[str, ...], list[float]] = {}
    for kind, each in zip(kinds, seconds, strict=True):
        took.setdefault(kind, []).append(each)
    costs = {}
    for kind in sorted(took, key=len, reverse=True):  # of several such pairs the shorter steps count
        for phase in kind:
            without = tuple(each for each in kind if each != phase)
            if without in took:
                costs[phase] = statistics.median(took[kind]) - statistics.median(took[without])
    return costs


def is_settled(times: list[float]) -> bool:
    """Return whether the medians of the last two windows (halves of `times`) differ by less than max(0.5%, 2 MAD)."""
    if (size := len(times) // 2) == 0:
        return False
    windows = times[-2 * size : -size], times[-size:]
    medians = [statistics.median(window) for window in windows]
    spread = statistics.median(abs(t - m) for window, m in zip(windows, medians, strict=True) for t in window)
    return abs(medians[0] - medians[1]) < max(0.005 * medians[0], 2 * spread)


def find_foreign(code: Path) -> str | None:
    """Return one line if a measured package was imported from elsewhere than the folder `code`, else None.

    Another checkout's package may be installed, PyPI has an unrelated `kernels`, and a commit may lack its own.
    """
    home = code.resolve()
    for name, module in sorted(sys.modules.items()):
        package = name.partition(".")[0]
        file = getattr(module, "__file__", None)
        if package in MEASURED and file and not Path(file).resolve().is_relative_to(home / package):
            kind = "package" if name == package else "module"
            return f"the measured code has no {kind} {name} of its own: another was imported"
    return None


def peak_rss() -> int | None:
    """Return the peak resident bytes of this process. getrusage would inherit the parent's peak across exec."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None


def drain_loader(step: Any) -> None:
    """Take as many batches as idle loaders hold ready, untrained if the feed is ours, then run some steps."""
    held = math.ceil(step.data_capacity)
    if not (hasattr(step, "step") and hasattr(step, "count")):  # an old commit's
        for _ in range(math.ceil(held / CYCLE_STEPS)):
            step.cycle()
        return
    take = getattr(getattr(step, "feed", None), "next", None)
    for _ in range(held if take else 0):
        take()
    for _ in range(min(held, UNTIMED) if take else held):
        step.step()
