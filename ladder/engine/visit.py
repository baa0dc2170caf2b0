"""One visit of a rung: timed in its worker while the GPU is watched from here, and repeated if it was void."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ladder.engine.pool import Worker, WorkerFailure
from ladder.machine import gpu_state, neighbours
from ladder.results import record


class Visits:
    """The visits of a run. On a CPU there is no GPU to watch, and no visit is void for its state.

    Each visit records the share of the CPU that other processes took meanwhile, on every device.

    Args:
        uuid: of the GPU that the workers should be on.
        nvml: replaces pynvml in tests.
    """

    def __init__(self, device: str, uuid: str | None = None, *, nvml: Any = None) -> None:
        self.watch = gpu_state.Watch(uuid, nvml=nvml) if device == "cuda" else None
        self.uuid = uuid if device == "cuda" else None
        self.quiet_percent: int | None = None
        self.lost = 0  # void visits of rungs without a record of them: all of a round's visits were void

    def look_around(self) -> None:
        """Record how busy the GPU is while nothing of ours runs on it, between rounds."""
        if self.watch:
            self.quiet_percent = self.watch.quiet()

    def check_gpu(self, seen: str | None) -> str | None:
        """Return one line if a worker, whose GPU is `seen`, runs on another GPU than the watched one."""
        return gpu_state.wrong_gpu(self.uuid, seen)

    def visit(
        self,
        worker: Worker,
        number: int,
        prepared: dict[str, Any],
        own: list[dict[str, Any]],
        others: Iterable[dict[str, Any]],
        *,
        alive: set[int] | None = None,
        **how: Any,
    ) -> dict[str, Any]:
        """Return the raw record of a visit that counts.

        Args:
            own: the accepted rounds of this rung.
            others: the accepted rounds of all rungs.
            alive: all workers of ours that hold a context; by default this one alone.
            how: the fields of the worker's command.

        Raises:
            WorkerFailure: the worker failed. Status "invalid" means that four visits in a row were void.
        """
        earlier = [each["gpu"] for each in own if each.get("gpu")]
        canaries = [each["canary_s"] for each in others if each.get("canary_s")]

        def once() -> tuple[dict[str, Any], dict[str, Any]]:
            worker.wait_imported()
            with self.watched(alive or {worker.pid}) as state:
                before = neighbours.sample()
                seen = worker.call("visit", **how)
                after = neighbours.sample()
            return seen | {neighbours.KEY: neighbours.share(before, after)}, state

        def void(visit: tuple[dict[str, Any], dict[str, Any]]) -> str | None:
            seen, state = visit
            return record.void_memory(seen) or gpu_state.void_reason(
                state, earlier, seen.get("canary_s"), canaries
            )

        kept, rejected = gpu_state.with_retries(once, void)
        if kept is None:
            self.lost += len(rejected)
            raise WorkerFailure("invalid", gpu_state.throttled(rejected))
        seen, state = kept
        more = {"gpu": state, "canary_s": seen.get("canary_s"), "rejected": rejected} if state else {}
        return record.new_round(number, prepared, seen) | more

    @contextlib.contextmanager
    def watched(self, alive: set[int]) -> Iterator[dict[str, Any]]:
        """Yield a dict that gets the GPU's state at the end of the block. It stays empty on a CPU."""
        state: dict[str, Any] = {}
        if self.watch is None:
            yield state
            return
        hidden = len(alive) > 1 and hides_ours(self.watch.gpu.read, alive)
        with self.watch.window(alive) as window:
            yield state
        state.update(window.summary(self.quiet_percent))
        if hidden and state.get("foreign_processes") is not None:
            state["foreign_processes"] = max(0, state["foreign_processes"] - (len(alive) - 1))
            state["tenancy"] = gpu_state.tenancy(state)

    def summary(self, rungs: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the run's words on the GPU: whether it was alone, and how many visits were rejected."""
        if self.watch is None:
            return None
        rounds = [each for rung in rungs for each in rung["rounds"]]
        rejected = self.lost + sum(len(each.get("rejected") or []) for each in rounds)
        whole = gpu_state.run_summary([each["gpu"] for each in rounds if each.get("gpu")], rejected)
        if others := gpu_state.company({"quiet_percent": self.quiet_percent}):  # seen after the last round
            note = f"noisy: not publishable: {others}"
            whole |= {"tenancy": "shared", "notes": sorted({*whole["notes"], note})}
        return whole

    def close(self) -> None:
        if self.watch:
            self.watch.close()


def hides_ours(read: Callable[[frozenset[int]], Any], alive: set[int]) -> bool:
    """Return whether NVML counts by process numbers that are not ours, as it does in a container.

    `ladder.machine.nvml` then takes one process for ours, but as many as `alive` are.
    """
    named, nameless = read(frozenset(alive)).foreign, read(frozenset()).foreign
    return named is not None and named == nameless
