"""One visit of a rung: timed in its worker while the GPU is watched from here, and repeated if it was void."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ladder.core.errors import UserError
from ladder.core.locks import device_lock
from ladder.core.plain import Plain
from ladder.core.records import write_whole
from ladder.core.stopping import stop_on_sigterm
from ladder.engine.pool import Pool, Worker, WorkerFailure
from ladder.machine import gpu_state, neighbours, system
from ladder.results.derive import void_memory
from ladder.results.file import Round


class Visits:
    """The visits of a run. On a CPU there is no GPU to watch, and no visit is void for its state.

    Args:
        uuid: of the GPU that the workers should be on.
        nvml: replaces pynvml in tests.
    """

    def __init__(self, device: str, uuid: str | None = None, *, nvml: Any = None) -> None:
        self.watch = gpu_state.Watch(uuid, nvml=nvml) if device == "cuda" else None
        self.uuid = uuid if device == "cuda" else None
        self.quiet_percent: int | None = None
        self.lost = 0  # void visits of rungs without a record of them: all of a generation's visits were void

    def look_around(self) -> None:
        """Record how busy the GPU is while nothing of ours runs on it, between generations."""
        if self.watch:
            self.quiet_percent = self.watch.quiet()

    def build(self, worker: Worker, **fields: Any) -> Plain:
        """Build a step in a worker, without options that are None, and return the reply.

        Raises `UserError` if the worker is on another GPU than the watched one.
        """
        reply = worker.call("build", **{key: value for key, value in fields.items() if value is not None})
        if problem := self.check_gpu(reply.get("gpu_uuid")):
            raise UserError(problem)
        return reply

    def check_gpu(self, uuid: str | None) -> str | None:
        """Return one line if a worker's GPU is another one than the watched."""
        return gpu_state.find_wrong_gpu(self.uuid, uuid)

    def used_bytes(self) -> int | None:
        """Return the bytes of the GPU that are in use, None if unknown."""
        return self.watch.gpu.used() if self.watch else None

    def energy_j(self) -> float | None:
        """Return the GPU's counter of joules, None if unknown."""
        return self.watch.gpu.energy_j() if self.watch else None

    def cycle(self, worker: Worker, alive: set[int], earlier: Sequence[Plain], rejected: list[str]) -> Plain:
        """Return one timed cycle's reply, with `gpu`, the GPU's state, and the share of the CPU that others took.

        `alive` are all workers of ours that hold a context, `earlier` the states of the rung's accepted visits.
        `rejected` gets the reasons of void visits; a process has three repeats in all, then it is "invalid".
        """
        while True:
            with self.watched(alive) as state:
                before = neighbours.take_sample()
                seen = worker.call("cycle")
                share = neighbours.derive_share(before, neighbours.take_sample())
            reason = gpu_state.find_void_reason(state, earlier)
            if reason is None:
                return seen | {"gpu": state, neighbours.KEY: share}
            self._reject(reason, rejected)

    def finish(
        self, worker: Worker, canaries: Sequence[float], rejected: list[str], *, main: bool, lazy: bool
    ) -> Plain:
        """Return the worker's reply to "finish"; `canaries` are the accepted canary times of the run.

        Raises `WorkerFailure`, "invalid", if the canary stays beside them for three repeats, or memory was too tight.
        """
        seen = worker.call("finish", main=main, lazy=lazy)
        if reason := void_memory(seen.get("alloc_retries")):
            raise WorkerFailure("invalid", reason, seen)
        while reason := gpu_state.find_void_reason({}, (), seen.get("canary_s"), canaries):
            self._reject(reason, rejected)
            seen |= {"canary_s": worker.call("canary")["canary_s"]}
        return seen

    def _reject(self, reason: str, rejected: list[str]) -> None:
        rejected.append(reason)
        if len(rejected) > gpu_state.MOST_RETRIES:
            self.lost += len(rejected)
            raise WorkerFailure("invalid", gpu_state.describe_throttling(rejected))

    @contextlib.contextmanager
    def watched(self, alive: set[int]) -> Iterator[Plain]:
        """Yield a dict that gets the GPU's state at the end of the block. It stays empty on a CPU."""
        state: Plain = {}
        if self.watch is None:
            yield state
            return
        hidden = False
        if len(alive) > 1:
            # In a container NVML counts by process numbers that are not ours. `ladder.machine.nvml` then takes one
            # process for ours, but as many as `alive` are.
            named, nameless = (self.watch.gpu.read(frozenset(own)).foreign for own in (alive, ()))
            hidden = named is not None and named == nameless
        with self.watch.window(alive) as window:
            yield state
        state.update(window.summary(self.quiet_percent))
        if hidden and state.get("foreign_processes") is not None:
            state["foreign_processes"] = max(0, state["foreign_processes"] - (len(alive) - 1))
            state["tenancy"] = gpu_state.judge_tenancy(state)

    def summary(self, rounds: Iterable[Round]) -> Plain | None:
        """Return the state of the GPU over all rounds: whether it was alone, and how many visits were rejected."""
        if self.watch is None:
            return None
        rounds = list(rounds)
        rejected = self.lost + sum(len(each.rejected or []) for each in rounds)
        whole = gpu_state.summarize_run([write_whole(each.gpu) for each in rounds if each.gpu], rejected)
        # as it was after the last round
        if others := gpu_state.describe_company({"quiet_percent": self.quiet_percent}):
            note = f"noisy: not publishable: {others}"
            whole |= {"tenancy": "shared", "notes": sorted({*whole["notes"], note})}
        return whole

    def close(self) -> None:
        if self.watch:
            self.watch.close()


@contextlib.contextmanager
def open_sitting(device: str) -> Iterator[tuple[Pool, Visits]]:
    """Hold the device for a study, and yield fresh workers and a watch over the GPU. SIGTERM ends it as Ctrl-C does."""
    uuid = system.probe_gpu().get("uuid") if device == "cuda" else None
    with device_lock(system.device_key(device)), contextlib.closing(Visits(device, uuid)) as visits:
        with stop_on_sigterm(), Pool() as pool:
            yield pool, visits
