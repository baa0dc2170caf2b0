"""Waits of known length, by the device's own clock, which the timing of rungs must give back.

A `Spin` is a step as `ladder.engine.worker` expects one. Its only work is to wait, so it goes through the code that
times rungs, in a process of its own. A short wait is a captured graph of many waits: one graph is a step. The GPU's
clock is %globaltimer, in which neither CUDA events nor the host's clock have a part. The CPU's clock is the host's: it
proves nothing about timing, and serves tests of everything else.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from ladder.base.plain import Fields
from ladder.base.protocol import CYCLE_STEPS
from ladder.engine.pool import Worker, WorkerFailure
from ladder.stats.estimates import median

LENGTHS_US = (20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
LEAST_S = 0.005  # of a graph
RELATIVE, ABSOLUTE_US = 0.005, 1.0  # a length must come back within the larger
PACKAGE = """from ladder.selfcheck.selftest.spin import CONTRACT as CONTRACT
from ladder.selfcheck.selftest.spin import make_step as make_step
"""
CONTRACT = 1
_KEPT = 64  # cycles of which the clock is kept


def allowed_us(length_us: float) -> float:
    return max(RELATIVE * length_us, ABSOLUTE_US)


def calls_for(length_us: float) -> int:
    """Return the number of waits in a graph that lasts long enough to be timed."""
    return max(1, -(-round(1e6 * LEAST_S) // round(length_us)))


def repeats_for(length_us: float) -> int:
    """Return the number of timed cycles: the longest take a second and more each."""
    return 5 if length_us <= 10_000 else 3


def gpu_wait(seconds: float) -> Callable[[], None]:
    """Return a function that makes the current stream wait, once for each call."""
    import torch

    from ladder.selfcheck.selftest.spin_kernel import spin_kernel

    state, ns = torch.zeros(3, dtype=torch.int64, device="cuda"), round(1e9 * seconds)
    return lambda: spin_kernel[(1,)](state, ns, chained=False, num_warps=1)


def cpu_wait(seconds: float) -> Callable[[], None]:
    """Return a function that keeps the calling thread busy."""

    def wait() -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    return wait


def wait_on_both(seconds: float) -> Callable[[], None]:
    """Return a function that keeps the current stream waiting and the calling thread busy, side by side."""
    on_gpu, on_cpu = gpu_wait(seconds), cpu_wait(seconds)

    def wait() -> None:
        on_gpu()
        on_cpu()

    return wait


def make_step(workload: dict, recipe: dict, *, device: str, seed: int = 0) -> "Spin":
    return (GpuSpin if device == "cuda" else Spin)(**recipe)


class Spin:
    """A step of `calls` waits of `us` microseconds each, on the CPU; `clock` names the file its own times go to."""

    data_capacity = 0

    def __init__(self, us: int, calls: int, clock: str) -> None:
        self.recipe = {"us": us, "calls": calls}
        self.ns, self.calls, self.clock = 1000 * us, calls, Path(clock)
        self.cycles: list[tuple[int, int]] = []  # begin and end

    def prepare(self) -> None:
        pass

    def cycle(self, lazy: bool = True) -> None:
        now = begin = until = time.perf_counter_ns()
        for _ in range(CYCLE_STEPS * self.calls):
            until += self.ns
            while now < until:
                now = time.perf_counter_ns()
        self.cycles.append((begin, now))

    def seen(self) -> list[tuple[int, int]]:
        return self.cycles

    def check_finite(self) -> None:
        """Write the clock's times to their file. The worker calls this after the last timed cycle."""
        waits = CYCLE_STEPS * self.calls
        self.clock.write_text(json.dumps([(end - begin) / 1000 / waits for begin, end in self.seen()]))

    def settings(self) -> Fields:
        return {}

    def close(self) -> None:
        pass


class GpuSpin(Spin):
    """The same on the current stream: a captured graph of `calls` kernels, chained over the cycle."""

    def __init__(self, us: int, calls: int, clock: str) -> None:
        import torch

        super().__init__(us, calls, clock)
        self.state = torch.zeros(3, dtype=torch.int64, device="cuda")
        self.kept = torch.zeros(_KEPT, 3, dtype=torch.int64, device="cuda")
        self.count = 0

    def prepare(self) -> None:
        import torch

        from ladder.selfcheck.selftest.spin_kernel import spin_kernel

        def waits() -> None:
            for _ in range(self.calls):
                spin_kernel[(1,)](self.state, self.ns, chained=True, num_warps=1)

        spin_kernel[(1,)](self.state, self.ns, chained=True, num_warps=1)  # compiles it
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            waits()

    def cycle(self, lazy: bool = True) -> None:
        self.state.zero_()
        for _ in range(CYCLE_STEPS):
            self.graph.replay()
        self.kept[self.count % _KEPT].copy_(self.state)
        self.count += 1

    def seen(self) -> list[tuple[int, int]]:
        return [(begin, end) for _, begin, end in self.kept[: self.count].tolist()]


class Row(TypedDict):
    """One length that was waited, and its times in microseconds, one for each repeat."""

    asked_us: float
    calls: int  # waits in a step
    clock_us: list[float]  # by the device's own clock
    wall_us: list[float]
    event_us: list[float] | None  # the CPU has none
    seen_us: float | None
    error_us: float | None  # the largest, with its sign
    allowed_us: float
    ok: bool
    reason: str | None


def measure(device: str, folder: Path, lengths_us: tuple[int, ...] = LENGTHS_US) -> list[Row]:
    """Time every length in one worker; a row each, raw and judged. `folder` is an empty one for temporary files."""
    package = folder / "stylegan_lite"
    package.mkdir()
    (package / "__init__.py").write_text(PACKAGE)
    rows: list[Row] = []
    worker = Worker(code=folder, torch=device == "cuda")
    try:
        for us in lengths_us:
            rows.append(_time(worker, device, us, folder / "clock.json"))
        worker.close()
    except WorkerFailure as failure:
        rows.append({**row(us, calls_for(us), [], [], None), "reason": failure.reason})
    finally:
        worker.kill()
    return rows


def _time(worker: Worker, device: str, us: int, clock: Path) -> Row:
    calls, repeats = calls_for(us), repeats_for(us)
    recipe = {"us": us, "calls": calls, "clock": str(clock)}
    worker.call("build", workload={}, recipe=recipe, device=device, seed=0)
    worker.call("prepare")
    seen = worker.call("visit", cycles=repeats, settle_s=0, settle_cycles=0, main=False)

    def per_wait(seconds: list[float] | None) -> list[float] | None:
        return seconds and [1e6 * value / calls for value in seconds]

    clock_us = json.loads(clock.read_text())[-repeats:]
    return row(us, calls, clock_us, per_wait(seen["samples_s"]), per_wait(seen["event_s"]))


def row(
    asked_us: float, calls: int, clock_us: list[float], wall_us: list[float], event_us: list[float] | None
) -> Row:
    """Judge a length: every repeat by the wall clock and by CUDA events, against the device's clock.

    "ok" also needs the clock to show the asked length: a wait of another length proves nothing.
    """
    both = [wall_us] + ([event_us] if event_us is not None else [])
    pairs = [(s, c) for times in both for s, c in zip(times, clock_us, strict=True)]
    errors = [seen - clock for seen, clock in pairs]
    limit = allowed_us(asked_us)
    worst = max(errors, key=abs, default=None)
    kept = [abs(error) <= limit for error in errors] + [abs(clock - asked_us) <= limit for clock in clock_us]
    return {
        "asked_us": asked_us,
        "calls": calls,
        "clock_us": clock_us,
        "wall_us": wall_us,
        "event_us": event_us,
        "seen_us": median(wall_us),
        "error_us": worst,
        "allowed_us": limit,
        "ok": bool(kept) and all(kept),
        "reason": None,
    }


def broken(rows: list[Row]) -> list[str]:
    """Return a line for each length that did not come back."""
    lines = []
    for each in rows:
        if each["reason"]:
            lines.append(f"wait of {each['asked_us']:g} us: {each['reason']}")
        elif not each["ok"]:
            clock, error = median(each["clock_us"]), each["error_us"]
            lines.append(f"wait of {each['asked_us']:g} us: {clock:.2f} us long, timed {error:+.2f} us off")
    return lines
