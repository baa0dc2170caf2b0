"""One GPU as NVML sees it from outside the process that uses it: clocks, power, throttling, errors, processes.

NVML does not create a CUDA context and asks nothing of the timed process. A reading that it refuses (old driver,
consumer card, container) is None, and the others stand. The GPU is named by its UUID, which is never stored.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ladder.core.errors import format_error

# NVML's bits of nvmlClocksEventReasons. `hw_slowdown` is also set with each of the two that name its cause.
REASONS = {
    0x01: "idle",
    0x02: "application_clocks",
    0x04: "power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}
_POLICIES = {"power": 0, "thermal": 1, "board_limit": 3, "reliability": 5}
_CLOCK_SM, _CLOCK_MEMORY, _TEMPERATURE, _UNCORRECTED, _VOLATILE = 1, 2, 0, 1, 0


@dataclass(frozen=True)
class Reading:
    """One poll. A field is None if NVML does not tell. `foreign` counts compute processes that are not ours."""

    at_s: float
    sm_mhz: int | None
    memory_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    reasons: frozenset[str] | None
    foreign: int | None
    display: int | None
    beyond_bytes: int | None


@dataclass(frozen=True)
class Counters:
    """Counters that only grow: nanoseconds spent limited, by cause, and uncorrected memory errors."""

    violation_ns: dict[str, int] = field(default_factory=dict)
    ecc: int | None = None


class Gpu:
    """A handle on one GPU that never raises. `unknown` is one line why there is no handle, else None."""

    def __init__(self, uuid: str | None, nvml: Any = None) -> None:
        self.unknown: str | None = None
        self._nvml = self._handle = None
        if not uuid:
            self.unknown = "torch does not tell which GPU it uses"
            return
        try:
            nvml = open_nvml(nvml)
        except Exception as error:
            self.unknown = f"NVML is not available: {format_error(error)}"
            return
        self._nvml = nvml
        try:
            self._handle = nvml.nvmlDeviceGetHandleByUUID(complete_uuid(uuid))
        except Exception:
            self.unknown = "NVML does not know the GPU that torch uses"

    def read(self, own: frozenset[int]) -> Reading:
        """Return one poll. `own` are our processes that may hold a context."""
        before = self.used()
        processes = self._list_processes("nvmlDeviceGetComputeRunningProcesses")
        after = self.used()
        foreign, ours = split_processes(processes, own)
        # Between two equal figures nothing was allocated, so our bytes and the total belong together.
        steady = before is not None and before == after and ours is not None
        display = self._list_processes("nvmlDeviceGetGraphicsRunningProcesses")
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the function's name before driver 535
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Reading(
            at_s=time.monotonic(),
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", _CLOCK_SM),
            memory_mhz=self._ask("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            temperature_c=self._ask("nvmlDeviceGetTemperature", _TEMPERATURE),
            power_w=self._ask("nvmlDeviceGetPowerUsage", of=lambda milliwatts: milliwatts / 1000),
            reasons=None if bits is None else frozenset(name for bit, name in REASONS.items() if bits & bit),
            foreign=foreign,
            display=None if display is None else len(display),
            beyond_bytes=max(0, before - ours) if steady else None,
        )

    def counters(self) -> Counters:
        """Return the counters. Read before and after a visit, they also show what happened between two polls."""
        known = {}
        for name, number in _POLICIES.items():
            status = self._ask("nvmlDeviceGetViolationStatus", number)
            if status is not None:
                known[name] = int(status.violationTime)
        return Counters(known, self._ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE))

    def utilization(self) -> int | None:
        """Return the percent of the last sixth to whole second in which any process ran a kernel."""
        return self._ask("nvmlDeviceGetUtilizationRates", of=lambda rates: int(rates.gpu))

    def energy_j(self) -> float | None:
        """Return the joules that the GPU has taken since its driver was loaded, None before Volta."""
        return self._ask("nvmlDeviceGetTotalEnergyConsumption", of=lambda millijoules: millijoules / 1000)

    def close(self) -> None:
        """Release NVML. A second call does nothing."""
        if self._nvml is not None:
            with contextlib.suppress(Exception):  # it is not needed any more: an error changes nothing
                self._nvml.nvmlShutdown()
        self._nvml = self._handle = None
        self.unknown = self.unknown or "closed"

    def _ask(self, function: str, *arguments: Any, of: Callable[[Any], Any] = lambda answer: answer) -> Any:
        if self._handle is None:
            return None
        try:
            return of(getattr(self._nvml, function)(self._handle, *arguments))
        except (
            Exception
        ):  # NotSupported, NoPermission, GpuIsLost, an older library without it: all say nothing
            return None

    def used(self) -> int | None:
        """Return the bytes of the GPU's memory in use, by all processes."""
        return self._ask("nvmlDeviceGetMemoryInfo", of=lambda memory: int(memory.used))

    def _list_processes(self, function: str) -> dict[int, int | None] | None:
        """Return {process number: bytes it holds on the GPU, or None if NVML hides them}."""
        return self._ask(function, of=lambda each: {int(p.pid): p.usedGpuMemory for p in each})


def open_nvml(nvml: Any = None) -> Any:
    """Return pynvml, or what a test has in its place, initialized. Raises whatever it raises without a driver."""
    if nvml is None:
        import pynvml

        nvml = pynvml
    nvml.nvmlInit()
    return nvml


def complete_uuid(uuid: str) -> str:
    """Return the UUID with the prefix that NVML wants and torch leaves out."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def split_processes(
    processes: dict[int, int | None] | None, own: frozenset[int]
) -> tuple[int | None, int | None]:
    """Return (number of compute processes that are not ours, bytes held by ours); None for an unknown one.

    In a container NVML may count by the host's process numbers, none of which is ours. One of them is our worker all
    the same, as only one worker at a time holds a context. If the list is empty while it does, NVML hides processes
    here.
    """
    if not processes:
        return None, None
    ours = own & processes.keys()
    held = [processes[pid] for pid in ours]
    if ours:
        return len(processes) - len(ours), None if None in held else sum(held)
    (only, *others) = processes.values()
    return len(others), None if others else only


# --- a lock on the SM clock while something is measured; most machines permit it to administrators alone --------------

PART = 0.75  # of the highest SM clock: power and heat seldom force a clock below it


@dataclass(frozen=True)
class ClockLock:
    """The SM clock that was locked in MHz, or one line why none was."""

    mhz: int | None
    reason: str | None


@contextlib.contextmanager
def lock_clock(uuid: str | None, is_requested: bool, nvml: Any = None) -> Iterator[ClockLock]:
    """Lock the SM clock at three quarters of its highest value while entered, if that is requested and permitted.

    The lock ends with the block, also after Ctrl-C. A lock that somebody set before ends with it, as NVML does not tell
    it.

    Args:
        uuid: of the GPU; None on a CPU.
        nvml: replaces pynvml in tests.
    """
    if not is_requested or uuid is None:
        yield ClockLock(None, "no GPU whose clock could be locked" if is_requested else "not asked for")
        return
    try:
        nvml = open_nvml(nvml)
    except Exception as error:
        yield ClockLock(None, f"NVML is not available: {format_error(error)}")
        return
    gpu = None
    try:
        try:
            gpu = nvml.nvmlDeviceGetHandleByUUID(complete_uuid(uuid))
            mhz = round(PART * nvml.nvmlDeviceGetMaxClockInfo(gpu, _CLOCK_SM))
            nvml.nvmlDeviceSetGpuLockedClocks(gpu, mhz, mhz)
            state = ClockLock(mhz, None)
        except Exception as error:
            gpu, state = None, ClockLock(None, f"NVML does not permit it: {format_error(error)}")
        yield state
    finally:
        try:
            if gpu is not None:  # also after Ctrl-C while it was being locked
                nvml.nvmlDeviceResetGpuLockedClocks(gpu)
        except Exception as error:  # what was measured stays
            line = f"ladder: the SM clock is still locked: {format_error(error)}; try `nvidia-smi -rgc`"
            print(line, file=sys.stderr)
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()
