"""A lock on the GPU's clock while something is measured, by NVML. Most machines permit it to administrators alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ladder.base.errors import describe
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
    if not is_requested:
        yield ClockLock(None, "not asked for")
        return
    if uuid is None:
        yield ClockLock(None, "no GPU whose clock could be locked")
        return
    try:
        nvml = open_nvml(nvml)
    except Exception as error:
        yield ClockLock(None, f"NVML is not available: {describe(error)}")
        return
    try:
        handle, state = _lock(nvml, uuid)
        try:
            yield state
        finally:
            if handle is not None:
                _release(nvml, handle)
    finally:
        with contextlib.suppress(Exception):  # what was measured is not lost for that
            nvml.nvmlShutdown()


def _release(nvml: Any, handle: Any) -> None:
    """Unlock the clock. If NVML refuses, say how to do it by hand; what was measured stays."""
    try:
        nvml.nvmlDeviceResetGpuLockedClocks(handle)
    except Exception as error:
        print(
            f"ladder: the SM clock is still locked: {describe(error)}; try `nvidia-smi -rgc`", file=sys.stderr
        )


def _lock(nvml: Any, uuid: str) -> tuple[Any, ClockLock]:
    """Lock the clock. Return the handle to release it with, or None and the reason."""
    handle = None
    try:
        gpu = nvml.nvmlDeviceGetHandleByUUID(complete_uuid(uuid))
        mhz = round(PART * nvml.nvmlDeviceGetMaxClockInfo(gpu, _CLOCK_SM))
        handle = gpu  # from here on there may be a lock to release
        nvml.nvmlDeviceSetGpuLockedClocks(gpu, mhz, mhz)
    except KeyboardInterrupt:
        if handle is not None:
            _release(nvml, handle)
        raise
    except Exception as error:
        return None, ClockLock(None, f"NVML does not permit it: {describe(error)}")
    return handle, ClockLock(mhz, None)
