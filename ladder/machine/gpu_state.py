"""The state of the GPU while a rung is timed, watched from outside: is this visit void, was it alone?

A thread of the orchestrator, which only waits meanwhile, polls NVML at most 100 ms apart. The readings become a
summary, plain data beside the round's times, and the decisions are functions of summaries alone. A void visit is
repeated at most three times, then its rung is `invalid: throttled`. Company is not void: the run is marked as noisy.
If NVML is absent or refuses, the state is `unknown`, and no visit is void for that.
"""

import contextlib
import itertools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ladder.machine.nvml import Counters, Gpu, Reading, complete_uuid

INTERVAL_S = 0.05
MOST_RETRIES = 3
CLOCK_OFF = 0.03
CANARY_OFF = 0.01
DRIFT_BYTES = 64 * 2**20
BUSY_PERCENT = 2
_SLOWDOWNS = {
    "hw_thermal": "hardware thermal slowdown",
    "power_brake": "power brake",
    "hw_slowdown": "hardware slowdown",
    "sw_thermal": "thermal slowdown",
}
# The state of the GPU during a visit as plain data (`ladder.results.file.GpuState`), or as a visit in progress has it.
Seen = Mapping[str, Any]
_ACROSS: dict[str, tuple[str, Callable[[list[Any]], Any], Callable[[list[Any]], Any]]] = {
    # figure: (of which reading, over the polls of a visit, over the visits of a process)
    "sm_mhz": ("sm_mhz", statistics.median, statistics.median),
    "sm_mhz_min": ("sm_mhz", min, min),
    "memory_mhz": ("memory_mhz", statistics.median, statistics.median),
    "temperature_c": ("temperature_c", max, max),
    "power_w": ("power_w", max, max),
    "foreign_processes": ("foreign", max, max),
    "display_processes": ("display", max, max),
    "drift_bytes": ("beyond_bytes", lambda beyond: max(beyond) - min(beyond), max),
}


class Watch:
    """Watcher of one GPU for a whole run. `nvml` replaces pynvml in tests."""

    def __init__(self, uuid: str | None, *, nvml: Any = None, interval_s: float = INTERVAL_S) -> None:
        self.gpu, self.interval_s = Gpu(uuid, nvml), interval_s

    def quiet(self, limit_s: float = 2.0) -> int | None:
        """Return the least utilization in percent while nothing of ours runs, None if unknown.

        NVML looks back up to a second, also on our own work. So it is asked until it is quiet or `limit_s` is over.
        """
        end, least = time.monotonic() + limit_s, None
        while (now := self.gpu.utilization()) is not None:
            least = now if least is None else min(now, least)
            if least < BUSY_PERCENT or time.monotonic() >= end:
                break
            time.sleep(min(2 * self.interval_s, limit_s))
        return least

    @contextlib.contextmanager
    def window(self, own: Iterable[int]) -> Iterator["Window"]:
        """Poll while the block runs, then see `Window.summary`. `own` are the workers that hold a context."""
        window = Window(self.gpu, frozenset(own), self.interval_s)
        try:
            yield window
        finally:
            window.end()

    def close(self) -> None:
        self.gpu.close()


class Window:
    """The readings of one visit."""

    def __init__(self, gpu: Gpu, own: frozenset[int], interval_s: float) -> None:
        self._gpu, self._own, self._interval_s = gpu, own, interval_s
        self._readings: list[Reading] = []
        self._stuck = False
        self._over = threading.Event()
        self._before = self._after = Counters()
        self._thread: threading.Thread | None = None
        if gpu.unknown is None:
            self._thread = threading.Thread(target=self._poll, daemon=True)
            self._thread.start()

    def _poll(self) -> None:
        self._before = self._gpu.counters()
        while True:
            self._readings.append(self._gpu.read(self._own))
            if self._over.wait(self._interval_s):
                break
        self._after = self._gpu.counters()

    def end(self) -> None:
        """Stop polling. A driver that no longer answers is left alone."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(5.0)
            self._stuck = self._thread.is_alive()

    def summary(self, quiet_percent: int | None = None) -> Seen:
        """Return plain data for the result. `quiet_percent` is what `Watch.quiet` gave before the visit."""
        if self._gpu.unknown is not None or self._stuck:
            return make_unknown(self._gpu.unknown or "NVML stopped answering")
        return summarize_visit(list(self._readings), self._before, self._after, quiet_percent)


def make_unknown(reason: str) -> Seen:
    """Return the summary of a visit whose readings are unknown."""
    return {"state": "unknown", "reason": reason, "tenancy": "unknown"}


def summarize_visit(
    readings: Sequence[Reading], before: Counters, after: Counters, quiet_percent: int | None
) -> Seen:
    """Return the summary of a visit's readings."""
    reasons = [each.reasons for each in readings if each.reasons is not None]
    if not reasons and all(each.sm_mhz is None for each in readings):
        return make_unknown("NVML tells neither clocks nor throttling")
    gaps = [late.at_s - early.at_s for early, late in itertools.pairwise(readings)]
    limited = before.violation_ns.keys() & after.violation_ns.keys()
    grown = {name: (after.violation_ns[name] - before.violation_ns[name]) / 1e6 for name in sorted(limited)}
    summary: dict[str, Any] = {
        "state": "known",
        "polls": len(readings),
        "longest_gap_ms": round(1000 * max(gaps), 1) if gaps else None,
        "reasons": sorted(set().union(*reasons) - {"idle"}) if reasons else None,
        "violation_ms": grown or None,
        "ecc_errors": None if None in (before.ecc, after.ecc) else after.ecc - before.ecc,
        "quiet_percent": quiet_percent,
    }
    for name, (field, over_polls, _) in _ACROSS.items():
        values = [value for each in readings if (value := getattr(each, field)) is not None]
        summary[name] = over_polls(values) if values else None
    return summary | {"tenancy": judge_tenancy(summary)}


def join_summaries(summaries: Sequence[Seen]) -> Seen:
    """Return the summary of a process' visits together: the state is known only if all of them know it."""
    if not summaries:
        return make_unknown("no visit was watched")
    if unknown := [each for each in summaries if each["state"] != "known"]:
        return unknown[0]
    whole: dict[str, Any] = {"state": "known", "polls": sum(each["polls"] for each in summaries)}
    over_visits: dict[str, Callable[[list[Any]], Any]] = {name: each[2] for name, each in _ACROSS.items()}
    over_visits |= {"longest_gap_ms": max, "ecc_errors": sum, "quiet_percent": max}
    for name, over in over_visits.items():
        values = [value for each in summaries if (value := each.get(name)) is not None]
        whole[name] = over(values) if values else None
    reasons = [each["reasons"] for each in summaries if each["reasons"] is not None]
    whole["reasons"] = sorted(set().union(*reasons)) if reasons else None
    grown = Counter[str]()
    for each in summaries:
        grown.update(each["violation_ms"] or {})
    whole["violation_ms"] = {name: grown[name] for name in sorted(grown)} or None
    return whole | {"tenancy": judge_tenancy(whole)}


def is_power_capped(summary: Seen) -> bool:
    """Return whether the visit ran at the power limit. Hot rungs do, and their clock wanders there."""
    violation = (summary.get("violation_ms") or {}).get("power", 0)
    return "power_cap" in (summary.get("reasons") or ()) or violation > 0


def find_void_reason(
    summary: Seen,
    earlier: Sequence[Seen] = (),
    canary_s: float | None = None,
    earlier_canaries_s: Sequence[float] = (),
) -> str | None:
    """Return one line why this visit must not count, or None.

    `earlier` are the accepted visits of the same rung, `earlier_canaries_s` the canary times of the run's accepted
    visits. Fewer than two of them do not show what is normal.
    """
    reasons = summary.get("reasons") or ()
    for name, text in _SLOWDOWNS.items():
        if name in reasons:
            return text
    if (summary.get("violation_ms") or {}).get("thermal", 0) > 0:
        return "thermal slowdown between two polls"
    if (summary.get("ecc_errors") or 0) > 0:
        return "uncorrected memory errors"
    clocks = [each["sm_mhz"] for each in earlier if each.get("sm_mhz") and not is_power_capped(each)]
    if summary.get("sm_mhz") and len(clocks) >= 2 and not is_power_capped(summary):
        usual = statistics.median(clocks)
        if abs(summary["sm_mhz"] - usual) > CLOCK_OFF * usual:
            return f"SM clock {summary['sm_mhz']:.0f} MHz, usually {usual:.0f}"
    if canary_s is not None and len(earlier_canaries_s) >= 2:
        usual = statistics.median(earlier_canaries_s)
        if abs(canary_s - usual) > CANARY_OFF * usual:
            return f"canary kernel {1e6 * canary_s:.0f} us, usually {1e6 * usual:.0f}"
    return None


def describe_company(summary: Seen) -> str | None:
    """Return one line about who else used the GPU, or None if nobody is known. An idle display is ignored."""
    if foreign := summary.get("foreign_processes"):
        return f"{foreign} foreign compute process{'es' if foreign > 1 else ''}"
    if (drift := summary.get("drift_bytes") or 0) > DRIFT_BYTES:
        return f"{drift / 2**20:.0f} MiB of memory came or went that are not ours"
    if (busy := summary.get("quiet_percent") or 0) >= BUSY_PERCENT:
        return f"{busy} percent utilization while nothing of ours ran"
    return None


def judge_tenancy(summary: Seen) -> str:
    """Return "alone" or "shared", or "unknown" if neither processes nor a quiet window could be seen."""
    if describe_company(summary):
        return "shared"
    figures = (summary.get("foreign_processes"), summary.get("quiet_percent"))
    return "unknown" if None in figures else "alone"


def describe_throttling(rejected: Sequence[str]) -> str:
    """Return the reason of a rung whose visits in one round were all void."""
    visits = f"{len(rejected)} visit{'s' * (len(rejected) != 1)}"
    return f"throttled: {visits} void, last: {rejected[-1]}"


def summarize_run(visits: Sequence[Seen], rejected: int) -> dict[str, Any]:
    """Return the summary of a whole run. Rejected visits are counted even if there are none; company makes it noisy."""
    tenancies = {each["tenancy"] for each in visits}
    whole = next(
        (word for word in ("shared", "unknown") if word in tenancies), "alone" if visits else "unknown"
    )
    why = sorted({text for each in visits if (text := describe_company(each))})
    return {
        "state": "known" if visits and all(each["state"] == "known" for each in visits) else "unknown",
        "tenancy": whole,
        "rejected_visits": rejected,
        "notes": [f"noisy: not publishable: {text}" for text in why],
    }


def find_wrong_gpu(expected: str | None, actual: str | None) -> str | None:
    """Return one line if a worker runs on another GPU than the locked and watched one, else None."""
    if not expected or not actual or complete_uuid(expected) == complete_uuid(actual):
        return None
    return "the worker runs on another GPU than the one that is watched: check CUDA_VISIBLE_DEVICES"


def time_canary(torch: Any, groups: int = 8, passes: int = 8) -> float | None:
    """Return the seconds of one pass over 256 MiB in this process: the shortest of the groups' means.

    An untimed group comes first. The pass is bound by memory, so it does not depend on the power limit, but it does
    on others that share the GPU. Call it after the peaks of memory are read. Returns None if the GPU is too full.
    """
    try:
        block = torch.ones(2**26, device="cuda")
    except torch.OutOfMemoryError:
        return None
    events = [torch.cuda.Event(enable_timing=True) for _ in range(groups + 1)]
    for number in range(-1, groups):
        events[number + 1].record()
        for _ in range(passes):
            block.mul_(1.0)
    last = torch.cuda.Event(enable_timing=True)
    last.record()
    torch.cuda.synchronize()
    ends = [*events[2:], last]
    return min(a.elapsed_time(b) for a, b in zip(events[1:], ends, strict=True)) / 1000 / passes
