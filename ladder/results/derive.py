"""The numbers that follow from raw rounds: times, speedups and notes, and the rungs that are skipped.

Raw samples are kept in time order, and every other number of a rung is computed from its rounds. So runs can be
merged, and judged anew, later.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from msgspec.structs import asdict, replace

from ladder.core.records import Fields
from ladder.machine import stillness
from ladder.plan import modes
from ladder.results import sources
from ladder.results.file import OUT, Round
from ladder.results.run import JudgedParity, Parity, Result, Run, RungResult, Twin
from ladder.stats import estimates, nested, rounds_budget

Record = TypeVar("Record", RungResult, Twin)
Values = dict[str, dict[int, float]]  # ms a step, by rung or twin and by generation
CAPTURED, EAGER = "captured", "eager"
_WALL_BEYOND_EVENT = 0.02
_BUSY_BEYOND_STEP = 0.02  # noise between the inspector's process and the timed ones
QUICK = "quick: not to be quoted"
NOT_MEASURED = "not measured: the run ended before"
MERGED = "merged: "  # begins a note
INTERRUPTED = "interrupted"  # begins the note of a run that was


def void_memory(retries: int | None) -> str | None:
    """Return why a visit with so many allocator retries must not count, in one line, or None.

    A retry frees every cached block and synchronizes: the time is that of a GPU that is too small, not of the rung.
    """
    times = "once" if retries == 1 else f"{retries} times"
    return f"the allocator ran out and retried {times} while timing: memory is too tight" if retries else None


class Timed(Protocol):
    """A rung, a twin, or a program of another kind of result."""

    @property
    def status(self) -> str: ...
    @property
    def recipe(self) -> Fields | None: ...
    @property
    def rounds(self) -> list[Round]: ...


def is_timed(rung: Timed) -> bool:
    """Return whether a rung has a number: it is "ok" and was visited."""
    return rung.status == "ok" and bool(rung.rounds)


def counted(rung: Timed) -> list[Round]:
    """Return the rounds that count: those without allocator retries."""
    return [each for each in rung.rounds if not each.alloc_retries]


def round_medians(rung: Timed) -> dict[int, float]:
    """Return the median step time in ms of each round: the unit of all statistics."""
    return {each.round: estimates.median(each.samples_ms) for each in counted(rung)}


def kind(rung: Timed, device: str) -> str:
    """Return "captured" if CUDA graphs launch the rung's kernels, else "eager"; on a CPU every rung is eager."""
    recipe = rung.recipe or {}
    graphs = recipe.get("cuda_graphs") or recipe.get("whole_step_graph")
    return CAPTURED if device == "cuda" and graphs else EAGER


def wall_values(result: Result) -> Values:
    """Return `walls` of the rungs and twins of a result."""
    return walls({rung.name: rung for rung in sources.records(result)}, result.machine.device)


def walls(records: Mapping[str, Timed], device: str) -> Values:
    """Return the step time in ms of each record that has a number, by generation.

    The effects of passes are removed within a generation and a kind. Older files do not know the passes. There it is
    the median of the samples.
    """
    made: Values = {}
    together: dict[tuple[int, str], dict[str, list[tuple[int, float]]]] = {}
    for name, rung in records.items():
        if not is_timed(rung):
            continue
        made[name] = round_medians(rung)
        for each in counted(rung):
            if each.passes:
                pairs = list(zip(each.passes, map(math.log, each.samples_ms), strict=True))
                together.setdefault((each.round, kind(rung, device)), {})[name] = pairs
    for (number, _), samples in together.items():
        for name, value in nested.generation_values(samples).items():
            made[name][number] = math.exp(value)
    return made


def gpu_values(result: Result) -> Values:
    """Return `gpu_times` of the rungs and twins of a result."""
    return gpu_times({rung.name: rung for rung in sources.records(result)})


def gpu_times(records: Mapping[str, Timed]) -> Values:
    """Return the GPU time of a step in ms of each record that has a number, by generation.

    It is the geometric mean of the profiled cycles that are not void. A record without one has no entry.
    """
    made = {}
    for name, rung in records.items():
        rounds = [each for each in counted(rung) if gpu_counts(each)]
        if is_timed(rung) and rounds:
            made[name] = {
                each.round: float(np.exp(np.mean(np.log([cycle.gpu_ms for cycle in each.profiled or []]))))
                for each in rounds
            }
    return made


def gpu_counts(each: Round) -> bool:
    """Return whether a process has profiled cycles that count."""
    return bool(each.profiled) and not each.gpu_void


def interval(values: Mapping[int, float]) -> list[float] | None:
    """Return the 95% interval of a rung's time over generations in ms, or None for fewer than three."""
    found = estimates.log_interval(list(values.values())) if len(values) >= nested.LEAST_GENERATIONS else None
    return None if found is None else list(found)


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


def begin_result(run: Run) -> Result:
    """Return a run as a result whose statuses are settled, and of whose numbers none is derived yet.

    "ok" needs a round that counts. What stands on a rung that is out is skipped. `judging` has put out what was
    too fast.
    """
    parts = {
        "rungs": [_begin_rung(rung) for rung in run.rungs],
        "twins": [settled(twin) for twin in run.twins],
    }
    return Result(**asdict(run) | parts)


def _begin_rung(rung: Any) -> RungResult:
    known = asdict(rung) | {"parity": judge_parity(rung.parity)}
    if rung.status == "n/a" and rung.reason is None:
        known["reason"] = NOT_MEASURED
    return settled(RungResult(**known))


def judge_parity(parity: Parity | None) -> JudgedParity | None:
    """Return parity with its verdict: "ok" if nothing was found, and no error is beyond its budget."""
    if parity is None:
        return None
    over = [
        f"{phase} {quantity}: error {entry.nearest_error:.2g}, budget {entry.nearest_budget:.2g}"
        for phase, quantities in (parity.phases or {}).items()
        for quantity, entry in quantities.items()
        if entry.nearest_error is not None and entry.nearest_budget is not None and entry.judged
        if entry.nearest_error > entry.nearest_budget
    ]
    reason = next(iter([*parity.problems, *over]), None)
    return JudgedParity(**asdict(parity), verdict="failed: parity" if reason else "ok", reason=reason)


def finish_result(result: Result) -> Result:
    """Return the result with its notes, and whether it is complete."""
    notes = [QUICK] * result.protocol.quick + result.protocol.notes + _merged_notes(result)
    notes = list(dict.fromkeys(notes))[:64]
    return replace(result, protocol=replace(result.protocol, notes=notes), complete=is_complete(result))


def is_complete(result: Result) -> bool:
    """Return whether every rung and twin has the planned rounds, or a reason to be out.

    Of merged runs it may lack some, as long as there are enough.
    """
    if any(note.startswith(INTERRUPTED) for note in result.protocol.notes):
        return False
    least = result.protocol.rounds
    if result.merged:
        least = min(rounds_budget.LEAST_ROUNDS, *(run.rounds for run in result.merged))
    out = {rung.name for rung in result.rungs if rung.status in OUT or rung.recipe is None}
    parts = [each for each in sources.records(result) if getattr(each, "of", each.name) not in out]
    return all(each.status in OUT or len(each.rounds) >= least for each in parts)


def _merged_notes(result: Result) -> list[str]:
    """Return how many runs a result was merged from, and the hosts if they are several."""
    if not result.merged:
        return []
    rounds = sum(run.rounds for run in result.merged)
    commits = sources.commits(result) or ["an unknown commit"]
    at = commits[0] if len(commits) == 1 else f"{len(commits)} commits"
    unit = sources.unit(result) + "s" * (rounds != 1)
    notes = [f"{MERGED}{rounds} {unit} of {len(result.merged)} runs at {at}"]
    if not sources.one_host(result):
        hosts = dict.fromkeys(f"{run.cores} cores of {run.cpu}" for run in result.merged)
        notes += [f"{MERGED}{host}" for host in hosts]
    return notes


def derive_numbers(result: Result) -> Result:
    """Return the result with every number of its rungs, and its baseline: the first rung with a number.

    Only rungs of status "ok" have numbers. The samples that a rung took before it failed stay, but are no result.
    Units: ms for one step, images/s, bytes, seconds.
    """
    result = replace(result, rungs=[_own_numbers(rung) for rung in result.rungs])
    walls, gpus, mains = wall_values(result), gpu_values(result), {}
    baseline = previous = None
    rungs = []
    for rung in result.rungs:
        if is_timed(rung):
            name, mains[rung.name] = rung.name, main_times(rung)
            baseline = baseline or name
            images = int(result.workload["batch"] or 0) * rung.updates
            rung = _with_times(rung, images, walls[name], gpus.get(name, {}))
            rung = replace(
                rung,
                speedup_total=_speedup(walls, baseline, name),
                main_speedup_total=_speedup(mains, baseline, name),
                gpu_speedup_total=_speedup(gpus, baseline, name),
                speedup_previous=_speedup(walls, previous, name),
                gpu_speedup_previous=_speedup(gpus, previous, name),
            )
            previous = name
        rungs.append(rung)
    return replace(result, rungs=rungs, baseline=baseline)


def _speedup(values: Values, reference: str | None, name: str) -> float | None:
    """Return the factor whose interval verdicts show: the geometric mean over common generations. None if unknown."""
    first, second = values.get(reference or "", {}), values.get(name, {})
    apart = estimates.log_ratios(first, second)
    return float(np.exp(np.mean(apart))) if apart else estimates.estimate_speedup(first, second)


def _own_numbers(rung: RungResult) -> RungResult:
    """Return a rung with its samples, notes and memory."""
    rounds, last = rung.rounds, [rung.failed_at] if rung.failed_at else []
    peaks = {
        key: max((value for each in (*rounds, *last) if (value := getattr(each, key))), default=None)
        for key in ("peak_reserved_bytes", "peak_allocated_bytes")
    }
    return replace(
        rung,
        samples_ms=[sample for each in counted(rung) for sample in each.samples_ms],
        notes=_notes(rung),
        prepare_s=estimates.median([each.prepare_s for each in rounds if each.prepare_s is not None]),
        **peaks,
    )


def _with_times(
    rung: RungResult, images: int, walls: Mapping[int, float], gpus: Mapping[int, float]
) -> RungResult:
    """Return a rung with the numbers that need no other rung."""
    # A pass' effect may take a value beyond the samples of a rung that missed passes. No reader must see that.
    step_ms = min(max(estimates.median(list(walls.values())), min(rung.samples_ms)), max(rung.samples_ms))
    q25_ms, q75_ms = estimates.quartiles(rung.samples_ms)
    busy = (rung.inspection and rung.inspection.gpu_busy_ms) or None
    gpu_ms = estimates.median(list(gpus.values()))
    host_bound, notes = None, rung.notes
    if gpu_ms:
        host_bound = max(0.0, step_ms - gpu_ms) / step_ms
    elif busy and busy > step_ms * (1 + _BUSY_BEYOND_STEP):  # then another step was profiled
        notes = [*notes, f"host-bound share unknown: GPU busy for {busy:.2f} ms in the profiled step, "
                 f"of {step_ms:.2f} ms timed"]  # fmt: skip
    elif busy:
        host_bound = min(1.0, max(0.0, 1 - busy / step_ms))
    return replace(
        rung,
        step_ms=step_ms,
        q25_ms=q25_ms,
        q75_ms=q75_ms,
        interval_ms=interval(walls),
        main_ms=estimates.median(list(main_times(rung).values())),
        images_per_s=images / (step_ms / 1000),
        gpu_busy_ms=busy,
        gpu_ms=gpu_ms,
        gpu_interval_ms=interval(gpus),
        waiting_ms=max(0.0, step_ms - gpu_ms) if gpu_ms else None,
        host_bound=host_bound,
        notes=notes,
    )


def _notes(rung: RungResult) -> list[str]:
    """Return what a reader must be told about the raw rounds of a rung."""
    rounds, notes = rung.rounds, list(rung.elsewhere or [])  # of runs that were merged
    unit = sources.UNITS[sources.timed_alive(rung)]
    if rung.inspection and rung.inspection.error and not any(map(gpu_counts, rounds)):
        notes.append(f"host-bound share unknown: {rung.inspection.error}")
    void_gpu: dict[str, list[int]] = {}
    for each in rounds:
        if each.gpu_void:
            void_gpu.setdefault(each.gpu_void, []).append(each.round + 1)
    for why, numbers in void_gpu.items():
        notes.append(f"GPU time void in {unit} {', '.join(map(str, numbers))}: {why}")
    for why in dict.fromkeys(each.after for each in rounds if each.after and each.after != "ok"):
        notes.append(f"after timing {why}")
    if busy := [str(each.round + 1) for each in rounds if each.passes and each.still_s is None]:
        notes.append(f"still busy {stillness.LIMIT_S:g} s after a visit in {unit} {', '.join(busy)}")
    if unsettled := [str(each.round + 1) for each in rounds if each.settled is False]:
        notes.append(f"unsettled in {unit} {', '.join(unsettled)}")
    timed = [each for each in rounds if each.event_ms]
    pairs = [pair for each in timed for pair in zip(each.samples_ms, each.event_ms or [], strict=True)]
    if late := sum(wall > event * (1 + _WALL_BEYOND_EVENT) + 0.1 for wall, event in pairs):
        notes.append(f"wall clock beyond CUDA events in {late} of {len(pairs)} samples: work they do not see")
    if void := len(rounds) - len(counted(rung)):
        notes.append(
            f"the allocator retried while timing in {void} of {len(rounds)} {unit}s: they do not count"
        )
    return notes


def settled(rung: Record) -> Record:
    """Return a rung or twin whose status is in line with its rounds: "ok" has at least one round that counts."""
    if not is_timed(rung):
        return rung
    if not counted(rung):
        return replace(rung, status="invalid", reason=void_memory(rung.rounds[-1].alloc_retries or None))
    return replace(rung, reason=None)


def mark_skipped(result: Result) -> Result:
    """Take what depends on a rung that is out out of the run. Finished rounds stay (see `modes.depends_on`)."""
    from stylegan_lite.config import (
        Recipe,  # late: where asv measures a commit, the class is the commit's own
    )

    default = {field.name: field.default for field in dataclasses.fields(Recipe)}
    recipes = {
        each.name: default | each.recipe for each in sources.records(result) if each.recipe is not None
    }
    out = {rung.name for rung in result.rungs if rung.status in OUT}

    def skip(rung: Record, name: str) -> Record:
        cause = modes.depends_on(result.protocol.mode, recipes, name, out)
        if cause is None or rung.status not in ("ok", "n/a"):
            return rung
        return replace(rung, status="skipped", reason=f"depends on {cause}")

    return replace(
        result,
        rungs=[skip(rung, rung.name) for rung in result.rungs],
        twins=[skip(twin, twin.of) for twin in result.twins],
    )
