"""A locked clock: set where NVML permits it, released whatever happens, and one line why not elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from ladder.machine.nvml import ClockLock, lock_clock
from tests.support import fake_nvml


class Nvml(fake_nvml.FakeNvml):
    """A GPU whose clock can be locked; `done` is what was asked of it."""

    def __init__(self, **answers: Any) -> None:
        self.done: list[Any] = []
        super().__init__(**answers)

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:
        assert kind == 1, "not the SM clock"
        return 1980

    def nvmlDeviceSetGpuLockedClocks(self, handle: str, low: int, high: int) -> None:
        self.done.append((low, high))

    def nvmlDeviceResetGpuLockedClocks(self, handle: str) -> None:
        self.done.append("reset")


def test_a_clock_is_locked_and_released() -> None:
    nvml = Nvml()
    with lock_clock(fake_nvml.UUID, True, nvml) as state:
        assert state == ClockLock(1485, None) and nvml.done == [(1485, 1485)]
    assert nvml.done[-1] == "reset" and nvml.open == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_clock_is_released_after_an_interrupt(error: type[BaseException]) -> None:
    nvml = Nvml()
    with pytest.raises(error), lock_clock(fake_nvml.UUID, True, nvml):
        raise error
    assert nvml.done == [(1485, 1485), "reset"] and nvml.open == 0


def test_an_interrupt_while_the_clock_is_being_locked_releases_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()

    def interrupted(handle: str, low: int, high: int) -> None:
        raise KeyboardInterrupt

    nvml.nvmlDeviceSetGpuLockedClocks = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt), lock_clock(fake_nvml.UUID, True, nvml):
        pytest.fail("the block must not begin")
    assert nvml.done == ["reset"] and nvml.open == 0


def test_a_clock_that_stays_locked_is_told_and_loses_no_measurement(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nvml = Nvml(refuse={"nvmlDeviceResetGpuLockedClocks"})
    with lock_clock(fake_nvml.UUID, True, nvml) as state:
        assert state.mhz == 1485
    assert (
        nvml.open == 0 and "still locked" in (said := capsys.readouterr().err) and "nvidia-smi -rgc" in said
    )


def test_a_refusal_is_one_line_and_nothing_is_released() -> None:
    nvml = Nvml(refuse={"nvmlDeviceSetGpuLockedClocks"})
    with lock_clock(fake_nvml.UUID, True, nvml) as state:
        assert state.mhz is None and "does not permit it: Refused: Not Supported" in (state.reason or "")
    assert nvml.done == [] and nvml.open == 0


def test_no_wish_and_no_gpu_lock_nothing() -> None:
    nvml = Nvml()
    for uuid, wanted, words in ((fake_nvml.UUID, False, "not asked for"), (None, True, "no GPU")):
        with lock_clock(uuid, wanted, nvml) as state:
            assert state.mhz is None and words in (state.reason or "")
    assert nvml.done == []
    with lock_clock(fake_nvml.UUID, True, Nvml(refuse={"nvmlInit"})) as state:
        assert "NVML is not available" in (state.reason or "")
