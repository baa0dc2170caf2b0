"""A lock on the GPU's clock while something is measured, by NVML. Most machines permit it to administrators alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ladder.core.errors import format_error
from ladder.machine.nvml import complete_uuid, open_nvml

PART = 0.75  # of the highest SM clock: power and heat seldom force a clock below it
_CLOCK_SM = 1


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
