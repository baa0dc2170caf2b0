"""A stand-in for pynvml: one GPU whose answers a test sets, and may change while it is watched."""

import threading
from types import SimpleNamespace
from typing import Any

UUID = "GPU-8f5c5a53-0000-1111-2222-333344445555"


class Refused(Exception):
    """The error that NVML raises for NotSupported, NoPermission and the like."""


class FakeNvml:
    """`refuse` names functions that raise; `then` is called at every poll with the number of polls so far."""

    def __init__(self, **answers: Any) -> None:
        self.sm, self.memory_clock, self.temperature, self.milliwatts = 1980, 2619, 55, 400_000
        self.bits, self.thermal_ns, self.power_ns, self.ecc = 0, 0, 0, 0
        self.compute: dict[int, int | None] = {100: 4 * 2**30}
        self.display: dict[int, int | None] = {}
        self.beyond, self.busy = 500 * 2**20, [0]
        self.refuse: set[str] = set()
        self.then: Any = None
        self.polls = 0
        self.polled = threading.Condition()
        self.open = 0
        vars(self).update(answers)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "refuse"):
            raise Refused("Not Supported")
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != UUID:
            raise Refused("Not Found")
        return "handle"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        if kind == 2:
            return self.memory_clock
        assert kind == 1, "not the SM clock"
        with self.polled:
            self.polls += 1
            self.polled.notify_all()
        if self.then:
            self.then(self, self.polls)
        return self.sm

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return self.temperature

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self.milliwatts

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self.bits

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.bits

    def nvmlDeviceGetViolationStatus(self, handle: str, policy: int) -> Any:
        return SimpleNamespace(violationTime={0: self.power_ns, 1: self.thermal_ns}.get(policy, 0))

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0), "not the uncorrected errors since the start"
        return self.ecc

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=self.beyond + sum(held or 0 for held in self.compute.values()))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in self.compute.items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in self.display.items()]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=self.busy.pop(0) if len(self.busy) > 1 else self.busy[0])
