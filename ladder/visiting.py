"""One visit of a rung: timed in its worker while the GPU is watched from here, and repeated if it was void."""

from collections.abc import Iterable
from typing import Any

from ladder import gpustate, record
from ladder.pool import Worker, WorkerFailure


class Visits:
    """Makes the visits of a run. On a CPU there is nothing to watch, and no visit is void for its state.

    `uuid` names the GPU that the workers should be on; `nvml` stands in for pynvml in tests.
    """

    def __init__(self, device: str, uuid: str | None = None, *, nvml: Any = None) -> None:
        self.watch = gpustate.Watch(uuid, nvml=nvml) if device == "cuda" else None
        self.uuid = uuid if device == "cuda" else None
        self.quiet_percent: int | None = None
        self.lost = 0  # void visits of rungs that have no record of them: all of a round's were void

    def look_around(self) -> None:
        """See what the GPU does while nothing of ours runs on it: between rounds."""
        if self.watch:
            self.quiet_percent = self.watch.quiet()

    def check_gpu(self, seen: str | None) -> str | None:
        """One line if a worker, which says `seen`, runs on another GPU than the one that is watched."""
        return gpustate.wrong_gpu(self.uuid, seen)

    def visit(
        self,
        worker: Worker,
        number: int,
        prepared: dict[str, Any],
        own: list[dict[str, Any]],
        others: Iterable[dict[str, Any]],
        **how: Any,
    ) -> dict[str, Any]:
        """The raw record of a visit that counts. `own` and `others` are the accepted rounds of this rung and of all.

        Raises `WorkerFailure`, with status "invalid" if four visits in a row were void.
        """
        earlier = [each["gpu"] for each in own if each.get("gpu")]
        canaries = [each["canary_s"] for each in others if each.get("canary_s")]

        def once() -> tuple[dict[str, Any], dict[str, Any]]:
            if self.watch is None:
                return worker.call("visit", **how), {}
            with self.watch.window({worker.pid}) as window:
                seen = worker.call("visit", **how)
            return seen, window.summary(self.quiet_percent)

        def void(visit: tuple[dict[str, Any], dict[str, Any]]) -> str | None:
            seen, state = visit
            return record.void_memory(seen) or gpustate.void_reason(
                state, earlier, seen.get("canary_s"), canaries
            )

        kept, rejected = gpustate.with_retries(once, void)
        if kept is None:
            self.lost += len(rejected)
            raise WorkerFailure("invalid", gpustate.throttled(rejected))
        seen, state = kept
        more = {"gpu": state, "canary_s": seen.get("canary_s"), "rejected": rejected} if state else {}
        return record.new_round(number, prepared, seen) | more

    def summary(self, rungs: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
        """What the run says of the GPU: whether it was alone, and how many visits were rejected."""
        if self.watch is None:
            return None
        rounds = [each for rung in rungs for each in rung["rounds"]]
        rejected = self.lost + sum(len(each.get("rejected") or []) for each in rounds)
        whole = gpustate.run_summary([each["gpu"] for each in rounds if each.get("gpu")], rejected)
        if others := gpustate.company({"quiet_percent": self.quiet_percent}):  # seen after the last round
            note = f"noisy: not publishable: {others}"
            whole |= {"tenancy": "shared", "notes": sorted({*whole["notes"], note})}
        return whole

    def close(self) -> None:
        if self.watch:
            self.watch.close()
