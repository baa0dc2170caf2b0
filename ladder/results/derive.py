"""The numbers that follow from raw rounds: times, speedups and notes, and the rungs that are skipped.

Raw samples are kept in time order, and every other number of a rung is computed from its rounds. So runs can be
merged, and judged anew, later.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import asdict, replace

from ladder.machine import stillness
from ladder.plan import modes
from ladder.results import plausible, sources
from ladder.results.file import OUT, Round
from ladder.results.run import FailedAt, JudgedParity, Parity, Result, Run, RungResult, Twin
from ladder.stats import estimates, nested, rounds_budget

Part = TypeVar("Part", RungResult, Twin)
Timed = Any  # a rung, a twin or a program of another kind of result, with status, recipe and rounds
Values = dict[str, dict[int, float]]  # ms a step, by rung or twin and by generation
CAPTURED, EAGER = "captured", "eager"
_WALL_BEYOND_EVENT = 0.02
_BUSY_BEYOND_STEP = 0.02  # noise between the inspector's process and the timed ones
QUICK = "quick: not to be quoted"
NOT_MEASURED = "not measured: the run ended before"
MERGED = "merged: "  # begins a note
INTERRUPTED = "interrupted"  # begins the note of a run that was


# --- times of rungs and twins -----------------------------------------------------------------------------------------


def void_memory(retries: int | None) -> str | None:
    """Return why a visit with so many allocator retries must not count, in one line, or None.

    A retry frees every cached block and synchronizes: the time is that of a GPU that is too small, not of the rung.
    """
    times = "once" if retries == 1 else f"{retries} times"
    return f"the allocator ran out and retried {times} while timing: memory is too tight" if retries else None


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

    The effects of passes are removed within a generation and a kind. Without passes it is the median of the samples.
    """
    values: Values = {}
    together: dict[tuple[int, str], dict[str, list[tuple[int, float]]]] = {}
    for name, rung in records.items():
        if not is_timed(rung):
            continue
        values[name] = round_medians(rung)
        for each in counted(rung):
            if each.passes:
                pairs = list(zip(each.passes, map(math.log, each.samples_ms), strict=True))
                together.setdefault((each.round, kind(rung, device)), {})[name] = pairs
    for (number, _), samples in together.items():
        for name, value in nested.generation_values(samples).items():
            values[name][number] = math.exp(value)
    return values


def gpu_values(result: Result) -> Values:
    """Return `gpu_times` of the rungs and twins of a result."""
    return gpu_times({rung.name: rung for rung in sources.records(result)})


def gpu_times(records: Mapping[str, Timed]) -> Values:
    """Return the GPU time of a step in ms of each record that has a number, by generation.

    It is the geometric mean of the profiled cycles that are not void. A record without one has no entry.
    """
    values = {
        name: {
            each.round: float(np.exp(np.mean(np.log([cycle.gpu_ms for cycle in each.profiled or []]))))
            for each in counted(rung)
            if gpu_counts(each)
        }
        for name, rung in records.items()
        if is_timed(rung)
    }
    return {name: each for name, each in values.items() if each}


def gpu_counts(each: Round) -> bool:
    """Return whether a process has profiled cycles that count."""
    return bool(each.profiled) and not each.gpu_void


def lazy_costs(rung: RungResult) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """Return what each lazy phase adds to a step that has it: the median over rounds in ms, and its 95% interval."""
    costs: dict[str, list[float]] = {}
    for each in counted(rung):
        for phase, ms in (each.lazy_ms or {}).items():
            costs.setdefault(phase, []).append(ms)
    return {
        phase: (estimates.median(values), estimates.t_interval(values)) for phase, values in costs.items()
    }


# --- statuses ---------------------------------------------------------------------------------------------------------


def begin_result(run: Run) -> Result:
    """Return a run as a result whose statuses are settled, and of whose numbers none is derived yet.

    "ok" needs a round that counts, and no time below what the machine can compute: there, work was skipped. What
    stands on a rung that is out is skipped (`modes.depends_on`). All rounds stay, and count for nothing.
    """
    from stylegan_lite.config import (
        Recipe,
    )  # late: where asv measures a commit, the class is the commit's own

    floors = plausible.floors_of(run)
    rungs: list[Any] = [
        RungResult(**asdict(each) | {"parity": judge_parity(each.parity)}) for each in run.rungs
    ]
    parts: list[Any] = [_settle(each, floors[each.name]) for each in [*rungs, *run.twins]]
    default = {field.name: field.default for field in dataclasses.fields(Recipe)}
    recipes = {each.name: default | each.recipe for each in parts if each.recipe is not None}
    out = {rung.name for rung in parts[: len(rungs)] if rung.status in OUT}
    for index, each in enumerate(parts):
        cause = modes.depends_on(run.protocol.mode, recipes, getattr(each, "of", each.name), out)
        if cause is not None and each.status in ("ok", "n/a"):
            parts[index] = replace(each, status="skipped", reason=f"depends on {cause}")
    return Result(**asdict(run) | {"rungs": parts[: len(rungs)], "twins": parts[len(rungs) :]})


def _settle(part: Part, least: plausible.Floor) -> Part:
    """Return a rung or twin whose status is in line with its rounds."""
    if part.status == "n/a" and part.reason is None and isinstance(part, RungResult):
        return replace(part, reason=NOT_MEASURED)
    if not is_timed(part):
        return part
    if not counted(part):
        return replace(part, status="invalid", reason=void_memory(part.rounds[-1].alloc_retries))
    if reason := plausible.too_fast(part, least):
        return replace(part, status="invalid", reason=reason, failed_at=FailedAt(part.rounds[-1].round))
    return replace(part, reason=None)


def judge_parity(parity: Parity | None) -> JudgedParity | None:
    """Return parity with its verdict: "ok" if there is no problem, and no error is beyond its budget."""
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


# --- figures ----------------------------------------------------------------------------------------------------------


def derive_numbers(result: Result) -> Result:
    """Return the result with every number of its rungs, and its baseline: the first rung with a number.

    Only rungs of status "ok" have numbers. The samples that a rung took before it failed stay, but are no result.
    Units: ms for one step, images/s, bytes, seconds.
    """
    walls, gpus = wall_values(result), gpu_values(result)
    mains: Values = {}
    baseline = previous = None
    rungs = []
    for rung in result.rungs:
        name = rung.name
        visits: list[Any] = [*rung.rounds, *filter(None, [rung.failed_at])]
        rung = replace(
            rung,
            samples_ms=[sample for each in counted(rung) for sample in each.samples_ms],
            notes=_list_notes(rung),
            prepare_s=estimates.median(
                [each.prepare_s for each in rung.rounds if each.prepare_s is not None]
            ),
            peak_reserved_bytes=max((each.peak_reserved_bytes or 0 for each in visits), default=0) or None,
            peak_allocated_bytes=max((each.peak_allocated_bytes or 0 for each in visits), default=0) or None,
        )
        if is_timed(rung):
            mains[name] = {each.round: each.main_ms for each in counted(rung) if each.main_ms}
            baseline = baseline or name
            rung = _derive_times(rung, walls[name], gpus.get(name, {}))
            images = int(result.workload["batch"] or 0) * rung.updates
            rung = replace(
                rung,
                main_ms=estimates.median(list(mains[name].values())),
                images_per_s=images / (rung.step_ms / 1000),
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


def _derive_times(rung: RungResult, walls: Mapping[int, float], gpus: Mapping[int, float]) -> RungResult:
    """Return a rung with its times: of the step, of the GPU, and those in which one waits for the other."""
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
        interval_ms=_interval(walls),
        gpu_busy_ms=busy,
        gpu_ms=gpu_ms,
        gpu_interval_ms=_interval(gpus),
        waiting_ms=max(0.0, step_ms - gpu_ms) if gpu_ms else None,
        host_bound=host_bound,
        notes=notes,
    )


def _interval(values: Mapping[int, float]) -> list[float] | None:
    """Return the 95% interval of a rung's time over generations in ms, or None for fewer than three."""
    bounds = (
        estimates.log_interval(list(values.values())) if len(values) >= nested.LEAST_GENERATIONS else None
    )
    return None if bounds is None else list(bounds)


def _list_notes(rung: RungResult) -> list[str]:
    """Return what a reader must know about the raw rounds of a rung."""
    rounds, notes = rung.rounds, list(rung.elsewhere or [])  # of runs that were merged
    unit = sources.UNITS[sources.timed_alive(rung)]

    def number(those: list[Round]) -> str:
        return f"{unit} {', '.join(str(each.round + 1) for each in those)}"

    if rung.inspection and rung.inspection.error and not any(map(gpu_counts, rounds)):
        notes.append(f"host-bound share unknown: {rung.inspection.error}")
    for why in dict.fromkeys(each.gpu_void for each in rounds if each.gpu_void):
        void = [each for each in rounds if each.gpu_void == why]
        notes.append(f"GPU time void in {number(void)}: {why}")
    for why in dict.fromkeys(each.after for each in rounds if each.after and each.after != "ok"):
        notes.append(f"after timing {why}")
    if busy := [each for each in rounds if each.passes and each.still_s is None]:
        notes.append(f"still busy {stillness.LIMIT_S:g} s after a visit in {number(busy)}")
    if unsettled := [each for each in rounds if each.settled is False]:
        notes.append(f"unsettled in {number(unsettled)}")
    pairs = [pair for each in rounds for pair in zip(each.samples_ms, each.event_ms or [], strict=False)]
    if late := sum(wall > event * (1 + _WALL_BEYOND_EVENT) + 0.1 for wall, event in pairs):
        notes.append(f"wall clock beyond CUDA events in {late} of {len(pairs)} samples: work they do not see")
    if retried := len(rounds) - len(counted(rung)):
        notes.append(
            f"the allocator retried while timing in {retried} of {len(rounds)} {unit}s: they do not count"
        )
    return notes


def finish_result(result: Result) -> Result:
    """Return the result with its notes, and whether it is complete.

    Complete: every rung and twin has the planned rounds, or a reason to be out. Merged runs may lack some, as long as
    there are enough. The notes name the runs that a result was merged from, and their hosts if they are several.
    """
    protocol, merged = result.protocol, result.merged or []
    notes, least = [QUICK] * protocol.quick + protocol.notes, protocol.rounds
    if merged:
        rounds = sum(run.rounds for run in merged)
        least = min(rounds_budget.LEAST_ROUNDS, *(run.rounds for run in merged))
        commits = sources.commits(result) or ["an unknown commit"]
        at = commits[0] if len(commits) == 1 else f"{len(commits)} commits"
        unit = sources.unit(result) + "s" * (rounds != 1)
        notes.append(f"{MERGED}{rounds} {unit} of {len(merged)} runs at {at}")
        if not sources.one_host(result):
            notes += [f"{MERGED}{run.cores} cores of {run.cpu}" for run in merged]
    out = {rung.name for rung in result.rungs if rung.status in OUT or rung.recipe is None}
    parts = [each for each in sources.records(result) if getattr(each, "of", each.name) not in out]
    complete = not any(note.startswith(INTERRUPTED) for note in protocol.notes) and all(
        each.status in OUT or len(each.rounds) >= least for each in parts
    )
    notes = list(dict.fromkeys(notes))[:64]
    return replace(result, protocol=replace(protocol, notes=notes), complete=complete)
