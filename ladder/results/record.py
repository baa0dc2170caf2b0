"""The record of a run: what a result file holds, from the raw rounds to the numbers derived from them.

Raw samples are kept in time order; every other number of a rung is computed from its `rounds` by `derive`, so
that runs can be merged, and judged anew, later. A missing number is None.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ladder.base.git import commit_of
from ladder.base.paths import ROOT
from ladder.base.protocol import CYCLE_STEPS, SETTLE_CYCLES, SETTLE_S
from ladder.machine import environment, neighbours
from ladder.plan import modes
from ladder.results import code_digest, identity
from ladder.results import store as results
from ladder.stats import estimates, verdicts

_WALL_BEYOND_EVENT = 0.02
_BUSY_BEYOND_STEP = 0.02  # noise between the inspector's process and the timed ones


def new_result(
    facts: dict[str, Any],
    workload_name: str,
    workload: dict[str, Any],
    data_source: str | None,
    ladder: Any,
    planned: Sequence[Any],
    code: Path | None = None,
    images: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The result of a run that has not begun. Where the images lie on this machine is left out.

    `code` is where the measured packages come from, if not from here; `images` which images of a user's they are.
    """
    rungs = [new_rung(p.name, p.title, p.recipe, p.article_ms, p.skipped) for p in planned]
    data = None if workload.get("data") is None else data_source or "user-images"
    commit, dirty = commit_of(ROOT)
    return {
        "schema": results.SCHEMA,
        "machine": facts,
        "workload": {"name": workload_name, **workload, "data": data},
        "ladder": {"name": ladder.name, "title": ladder.title, "rungs": [p.name for p in planned]}
        | _digest(ladder),
        **conditions(images),
        "protocol": {},
        "commit": commit,
        "dirty": dirty,
        code_digest.KEY: code_digest.digests(code=code),
        "complete": False,
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "baseline": None,
        "rungs": rungs,
        "twins": [],
    }


def _digest(ladder: Any) -> dict[str, str]:
    said = getattr(ladder, "digest", None)
    return {"digest": said} if said else {}


def conditions(images: dict[str, Any] | None = None) -> dict[str, Any]:
    """What decides a number beside machine, code and workload: environment variables, and which images (a user's)."""
    return {environment.KEY: environment.recorded()} | ({identity.IMAGES: images} if images else {})


def head(kind: str, workload_name: str, workload: dict[str, Any]) -> dict[str, Any]:
    """What results of the other kinds begin with. Their images are random ones: where a user's lie is not said."""
    commit, dirty = commit_of(ROOT)
    return {
        "schema": 1,
        "kind": kind,
        "workload": {"name": workload_name, **workload, "data": None},
        "commit": commit,
        "dirty": dirty,
    }


def protocol(
    rounds: int | None,
    cycles: int | None,
    seed: int,
    quick: bool,
    mode: str = "cumulative",
    budget_s: float | None = None,
) -> dict[str, Any]:
    """How a run measures. A quick one does not wait for the step time to settle.

    `rounds` None: as many as the budget and the width of the intervals ask for. "fixed" says which it was; "rounds"
    in the file are those that were planned last.
    """
    if rounds is None and quick:
        rounds = 3
    return {
        "mode": mode,
        "fixed": rounds is not None,
        "budget_s": None if rounds is not None else budget_s,
        "rounds": rounds or verdicts.LEAST_ROUNDS,
        "cycles": cycles or (1 if quick else 2),
        "cycle_steps": CYCLE_STEPS,
        "seed": seed,
        "quick": quick,
        "settle_s": 0.0 if quick else SETTLE_S,
        "settle_cycles": 0 if quick else SETTLE_CYCLES,
        "notes": ["quick: not to be quoted"] if quick else [],
    }


def new_rung(
    name: str, title: str, recipe: dict | None, article_ms: float | None, reason: str | None
) -> dict[str, Any]:
    """The record of a rung of which nothing is known yet, or that this machine cannot do for `reason`."""
    return {
        "name": name,
        "title": title,
        "status": "n/a",
        "reason": reason,
        "recipe": recipe,
        **dict.fromkeys(results.NUMBERS),
        "interval_ms": None,
        "host_bound": None,
        "gpu_busy_ms": None,
        "samples_ms": [],
        "rounds": [],
        "inspection": None,
        "notes": [],
        "article_ms": article_ms,
        "settings": None,
    }


def new_round(number: int, prepared: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    """The raw record of one visit, from the worker's replies: times in ms for one step, in time order.

    Where its seconds went: starting the process, building, preparing (`prepare_s`, of it `capture_s` for
    graphs, `cache_s` for images, `compile_s` for torch.compile, `compile_kernels_s` for Triton kernels that were not
    in its cache), and lead-in with timing.
    """
    spent = prepared | seen
    peaks = {key: value for key, value in seen.items() if key.startswith("peak_")}
    return {
        "round": number,
        "samples_ms": [1000 * s for s in seen["samples_s"]],
        "event_ms": None if seen["event_s"] is None else [1000 * s for s in seen["event_s"]],
        "main_ms": None if seen["main_s"] is None else 1000 * seen["main_s"],
        "lazy_ms": seen.get("lazy_s") and {phase: 1000 * s for phase, s in seen["lazy_s"].items()},
        "prepare_s": prepared["prepare_s"],
        "capture_s": prepared.get("capture_s"),
        "cache_s": prepared.get("cache_s"),
        "compile_s": prepared.get("compile_s"),
        "compile_kernels_s": prepared.get("compile_kernels_s"),
        "lead_in_cycles": seen["lead_in_cycles"],
        "settled": seen["settled"],
        "start_s": spent.get("start_s"),
        "build_s": spent.get("build_s"),
        "beside": spent.get("beside", 0),
        "visit_s": spent.get("visit_s"),
        neighbours.KEY: seen.get(neighbours.KEY),
        **peaks,
        "device_used_bytes": None
        if spent.get("beside")
        else seen.get("device_used_bytes"),  # all processes' together
        "alloc_retries": seen.get("alloc_retries"),
    }


def add_choices(result: dict[str, Any], rung: str, used: list[dict[str, Any]] | None) -> None:
    """Note with which tiles a rung's kernels ran: rows of `kernels.choices`, each kept once, with its rungs.

    `used` None: the measured code does not say.
    """
    if used is None:
        return
    known = result.setdefault("choices", [])
    for row in used:
        same = next((each for each in known if each | {"rungs": []} == row | {"rungs": []}), None)
        if same is None:
            same = {**row, "rungs": []}
            known.append(same)
        if rung not in same["rungs"]:
            same["rungs"].append(rung)


def derive(rungs: list[dict[str, Any]], batch: int) -> str | None:
    """Fill in every derived number of `rungs` (in ladder order) from their raw rounds; returns the baseline's name.

    The baseline is the first rung with a number. Only rungs of status "ok" have one: the samples that a rung
    took before it failed stay, but are not a result. Units: ms for one step, images/s, bytes, seconds.
    """
    baseline = previous = None
    for rung in rungs:
        rung.update(dict.fromkeys(results.NUMBERS), interval_ms=None, host_bound=None, gpu_busy_ms=None)
        rung["samples_ms"] = [sample for r in counted(rung) for sample in r["samples_ms"]]
        rung["notes"] = _notes(rung)
        _derive_costs(rung)
        settle_status(rung)
        if rung["status"] != "ok" or not rung["rounds"]:
            continue
        _derive_times(rung, batch)
        baseline = baseline or rung
        steps, mains = round_medians(rung), main_times(rung)
        rung["speedup_total"] = estimates.speedup(round_medians(baseline), steps)
        rung["main_speedup_total"] = estimates.speedup(main_times(baseline), mains)
        rung["speedup_previous"] = previous and estimates.speedup(round_medians(previous), steps)
        previous = rung
    return baseline and baseline["name"]


def _derive_times(rung: dict[str, Any], batch: int) -> None:
    steps = list(round_medians(rung).values())
    rung["step_ms"] = estimates.median(steps)
    rung["q25_ms"], rung["q75_ms"] = estimates.quartiles(rung["samples_ms"])
    interval = estimates.log_interval(steps)
    rung["interval_ms"] = list(interval) if interval else None
    rung["main_ms"] = estimates.median(list(main_times(rung).values()))
    rung["images_per_s"] = batch / (rung["step_ms"] / 1000)
    if busy := (rung.get("inspection") or {}).get("gpu_busy_ms"):
        rung["gpu_busy_ms"] = busy
        if busy > rung["step_ms"] * (1 + _BUSY_BEYOND_STEP):  # then it is not this step that was profiled
            rung["notes"].append(
                f"host-bound share unknown: GPU busy for {busy:.2f} ms in the profiled step, "
                f"of {rung['step_ms']:.2f} ms timed"
            )
        else:
            rung["host_bound"] = min(1.0, max(0.0, 1 - busy / rung["step_ms"]))


def lazy_costs(rung: dict[str, Any]) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """What each lazy phase adds to a step that has it: {phase: (median over rounds in ms, its 95% interval)}."""
    seen: dict[str, list[float]] = {}
    for each in counted(rung):
        for phase, ms in (each.get("lazy_ms") or {}).items():
            seen.setdefault(phase, []).append(ms)
    return {phase: (estimates.median(values), estimates.t_interval(values)) for phase, values in seen.items()}


def _derive_costs(rung: dict[str, Any]) -> None:
    """Memory peaks (of the failure, where there is nothing else) and seconds to prepare."""
    rounds = rung["rounds"]
    rung["prepare_s"] = estimates.median([r["prepare_s"] for r in rounds])
    for key in ("peak_reserved_bytes", "peak_allocated_bytes"):
        seen = [r.get(key) for r in [*rounds, rung.get("failed_at", {})]]
        rung[key] = max((value for value in seen if value), default=None)


def _notes(rung: dict[str, Any]) -> list[str]:
    """What a reader must be told about the raw rounds of a rung."""
    rounds, notes = rung["rounds"], list(rung.get("elsewhere", []))  # of runs that were merged
    if error := (rung.get("inspection") or {}).get("error"):
        notes.append(f"host-bound share unknown: {error}")
    if unsettled := [str(r["round"] + 1) for r in rounds if r["settled"] is False]:
        notes.append(f"unsettled in round {', '.join(unsettled)}")
    pairs = [
        pair for r in rounds if r["event_ms"] for pair in zip(r["samples_ms"], r["event_ms"], strict=True)
    ]
    if late := sum(wall > event * (1 + _WALL_BEYOND_EVENT) + 0.1 for wall, event in pairs):
        notes.append(f"wall clock beyond CUDA events in {late} of {len(pairs)} samples: work they do not see")
    if void := len(rounds) - len(counted(rung)):
        notes.append(
            f"the allocator retried while timing in {void} of {len(rounds)} rounds: they do not count"
        )
    return notes


def void_memory(seen: dict[str, Any]) -> str | None:
    """Why a visit must not count for want of memory, in one line, or None. `seen` is the worker's reply, or a round.

    A retry frees every cached block and synchronizes: the time is that of a GPU that is too small, not of the rung.
    """
    retries = seen.get("alloc_retries") or 0
    times = "once" if retries == 1 else f"{retries} times"
    return f"the allocator ran out and retried {times} while timing: memory is too tight" if retries else None


def counted(rung: dict[str, Any]) -> list[dict[str, Any]]:
    """The rounds of a rung or twin that count. Older files hold some with allocator retries, which do not."""
    return [r for r in rung["rounds"] if void_memory(r) is None]


def settle_status(rung: dict[str, Any]) -> None:
    """Bring status and reason of a rung or twin in line with its rounds.

    "ok" has no reason ("not measured" while it waited), and at least one round that counts.
    """
    if rung["status"] != "ok" or not rung["rounds"]:
        return
    rung["reason"] = None
    if not counted(rung):
        rung.update(status="invalid", reason=void_memory(rung["rounds"][-1]))


def mark_skipped(result: dict[str, Any], recipes: dict[str, dict[str, Any]]) -> list[str]:
    """Take out of the run what depends on a rung that is out; returns the names, twins included.

    `recipes` are the planned ones by name, in ladder order (see `modes.depends_on`). Finished rounds stay.
    """
    out = {rung["name"] for rung in result["rungs"] if rung["status"] in results.OUT}
    mode, marked = result["protocol"].get("mode", modes.CUMULATIVE), []
    for rung in [*result["rungs"], *result.get("twins", [])]:
        cause = modes.depends_on(mode, recipes, rung.get("of", rung["name"]), out)
        if cause is not None and rung["status"] in ("ok", "n/a"):
            rung.update(status="skipped", reason=f"depends on {cause}")
            marked.append(rung["name"])
    return marked


def round_medians(rung: dict[str, Any]) -> dict[int, float]:
    """Median step time in ms of each round: the unit of all statistics."""
    return {r["round"]: estimates.median(r["samples_ms"]) for r in counted(rung)}


def main_times(rung: dict[str, Any]) -> dict[int, float]:
    """Step time in ms without the lazy phases, of each round that measured it."""
    return {r["round"]: r["main_ms"] for r in counted(rung) if r["main_ms"] is not None}


def new_path(out: Path, result: dict[str, Any]) -> Path:
    """The file of a new result, with a number where one of that name is there already (two runs in one second)."""
    path, mode = results.path_for(Path(out), result), result["protocol"]["mode"]
    if mode != "cumulative":
        head, time_ = path.stem.rsplit("-", 1)
        path = path.with_stem(f"{head}-{mode}-{time_}")
    number, free = 2, path
    while free.exists():
        free, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return free
