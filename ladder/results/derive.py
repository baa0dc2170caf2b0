"""The numbers that follow from raw rounds: times, speedups and notes, and the rungs that are skipped.

Raw samples are kept in time order, and every other number of a rung is computed from its rounds. So runs can be
merged, and judged anew, later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ladder.plan import modes
from ladder.results import values
from ladder.results.types import ABSENT, Plain, Result, Round, RungResult, Twin
from ladder.stats import estimates

Record = TypeVar("Record", RungResult, Twin)
_WALL_BEYOND_EVENT = 0.02
_BUSY_BEYOND_STEP = 0.02  # noise between the inspector's process and the timed ones


def void_memory(retries: int | None) -> str | None:
    """Return why a visit with so many allocator retries must not count, in one line, or None.

    A retry frees every cached block and synchronizes: the time is that of a GPU that is too small, not of the rung.
    """
    times = "once" if retries == 1 else f"{retries} times"
    return f"the allocator ran out and retried {times} while timing: memory is too tight" if retries else None


def is_timed(rung: RungResult | Twin) -> bool:
    """Return whether a rung has a number: it is "ok" and was visited."""
    return rung.status == "ok" and bool(rung.rounds)


def counted(rung: RungResult | Twin) -> list[Round]:
    """Return the rounds that count. Older files hold some with allocator retries, which do not."""
    return [each for each in rung.rounds if not each.alloc_retries]


def round_medians(rung: RungResult | Twin) -> dict[int, float]:
    """Return the median step time in ms of each round: the unit of all statistics."""
    return {each.round: estimates.median(each.samples_ms) for each in counted(rung)}


def main_times(rung: RungResult | Twin) -> dict[int, float]:
    """Return the step time in ms without the lazy phases, of each round that measured it."""
    return {each.round: each.main_ms for each in counted(rung) if each.main_ms}


def lazy_costs(rung: RungResult) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """Return what each lazy phase adds to a step that has it: the median over rounds in ms, and its 95% interval."""
    seen: dict[str, list[float]] = {}
    for each in counted(rung):
        for phase, ms in (each.lazy_ms or {}).items():
            seen.setdefault(phase, []).append(ms)
    return {phase: (estimates.median(values), estimates.t_interval(values)) for phase, values in seen.items()}


def derive(result: Result) -> Result:
    """Return the result with every derived number of its rungs, and its baseline: the first rung with a number.

    Only rungs of status "ok" have numbers. The samples that a rung took before it failed stay, but are no result.
    Units: ms for one step, images/s, bytes, seconds.
    """
    baseline: RungResult | None = None
    previous: RungResult | None = None
    rungs = []
    for rung in result.rungs:
        made = _own_numbers(rung, result.workload["batch"])
        if is_timed(made):
            baseline = baseline or made
            steps, mains = round_medians(made), main_times(made)
            made = replace(
                made,
                speedup_total=estimates.speedup(round_medians(baseline), steps),
                main_speedup_total=estimates.speedup(main_times(baseline), mains),
                speedup_previous=estimates.speedup(round_medians(previous), steps) if previous else None,
            )
            previous = made
        rungs.append(made)
    return replace(result, rungs=rungs, baseline=baseline.name if baseline else None)


def _own_numbers(rung: RungResult, batch: int) -> RungResult:
    """Return a rung with the numbers that need no other rung; those that need one are None."""
    cleared = dict.fromkeys((*values.NUMBERS, "interval_ms", "host_bound", "gpu_busy_ms"))
    rounds, last = rung.rounds, [rung.failed_at] if rung.failed_at else []
    made = cleared | {
        "samples_ms": [sample for each in counted(rung) for sample in each.samples_ms],
        "notes": _notes(rung),
        "prepare_s": estimates.median([each.prepare_s for each in rounds if each.prepare_s is not ABSENT]),
    }
    for key in ("peak_reserved_bytes", "peak_allocated_bytes"):
        seen = [getattr(each, key) for each in (*rounds, *last)]
        made[key] = max((value for value in seen if value), default=None)
    rung = settled(replace(rung, **made))
    return _with_times(rung, batch) if is_timed(rung) else rung


def _with_times(rung: RungResult, batch: int) -> RungResult:
    steps = list(round_medians(rung).values())
    step_ms = estimates.median(steps)
    q25_ms, q75_ms = estimates.quartiles(rung.samples_ms)
    interval = estimates.log_interval(steps)
    busy = (rung.inspection and rung.inspection.gpu_busy_ms) or None
    host_bound, notes = None, rung.notes
    if busy and busy > step_ms * (1 + _BUSY_BEYOND_STEP):  # then another step was profiled
        notes = [*notes, f"host-bound share unknown: GPU busy for {busy:.2f} ms in the profiled step, "
                 f"of {step_ms:.2f} ms timed"]  # fmt: skip
    elif busy:
        host_bound = min(1.0, max(0.0, 1 - busy / step_ms))
    return replace(
        rung,
        step_ms=step_ms,
        q25_ms=q25_ms,
        q75_ms=q75_ms,
        interval_ms=list(interval) if interval else None,
        main_ms=estimates.median(list(main_times(rung).values())),
        images_per_s=batch / (step_ms / 1000),
        gpu_busy_ms=busy,
        host_bound=host_bound,
        notes=notes,
    )


def _notes(rung: RungResult) -> list[str]:
    """Return what a reader must be told about the raw rounds of a rung."""
    rounds, notes = rung.rounds, list(rung.elsewhere or [])  # of runs that were merged
    if rung.inspection and rung.inspection.error:
        notes.append(f"host-bound share unknown: {rung.inspection.error}")
    if unsettled := [str(each.round + 1) for each in rounds if each.settled is False]:
        notes.append(f"unsettled in round {', '.join(unsettled)}")
    timed = [each for each in rounds if each.event_ms]
    pairs = [pair for each in timed for pair in zip(each.samples_ms, each.event_ms or [], strict=True)]
    if late := sum(wall > event * (1 + _WALL_BEYOND_EVENT) + 0.1 for wall, event in pairs):
        notes.append(f"wall clock beyond CUDA events in {late} of {len(pairs)} samples: work they do not see")
    if void := len(rounds) - len(counted(rung)):
        notes.append(
            f"the allocator retried while timing in {void} of {len(rounds)} rounds: they do not count"
        )
    return notes


def settled(rung: Record) -> Record:
    """Return a rung or twin whose status and reason are in line with its rounds.

    "ok" has no reason ("not measured" while it waited), and at least one round that counts.
    """
    if not is_timed(rung):
        return rung
    if not counted(rung):
        return replace(rung, status="invalid", reason=void_memory(rung.rounds[-1].alloc_retries or None))
    return replace(rung, reason=None)


def mark_skipped(result: Result, recipes: Mapping[str, Plain]) -> tuple[Result, list[str]]:
    """Take what depends on a rung that is out out of the run; return the result and the names, twins included.

    `recipes` are the planned ones by name, in ladder order (see `modes.depends_on`). Finished rounds stay.
    """
    out = {rung.name for rung in result.rungs if rung.status in values.OUT}
    mode, marked = result.protocol.mode or modes.CUMULATIVE, []

    def skip(rung: Record, name: str) -> Record:
        cause = modes.depends_on(mode, recipes, name, out)
        if cause is None or rung.status not in ("ok", "n/a"):
            return rung
        marked.append(rung.name)
        return replace(rung, status="skipped", reason=f"depends on {cause}")

    changed: dict[str, Any] = {"rungs": [skip(rung, rung.name) for rung in result.rungs]}
    if result.twins:
        changed["twins"] = [skip(twin, twin.of) for twin in result.twins]
    return replace(result, **changed), marked
