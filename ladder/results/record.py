"""The records of a growing run, as its file has them: made before the first visit, and filled in with each.

The finished result is a `ladder.results.types.Result`; its numbers are derived by `ladder.results.derive`. A missing
number is None.
"""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from ladder.base.git import commit_of
from ladder.base.paths import ROOT
from ladder.base.protocol import CYCLE_STEPS
from ladder.machine import environment, neighbours
from ladder.machine.threads import QUIET
from ladder.results import code_digest, derive, identity
from ladder.results import store as results
from ladder.results.types import Plain
from ladder.stats import rounds_budget


class Header(TypedDict):
    """The keys of `header` that every kind of result has, for results that are plain data."""

    schema: int
    machine: Mapping[str, Any]  # `ladder.machine.system.facts`
    environment: dict[str, str]
    commit: str | None
    dirty: bool | None
    measured_code: dict[str, str]
    complete: bool
    started: str
    seconds: float


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
    rungs = [new_rung(p.name, p.title, p.recipe, p.article_ms, p.skipped) | _variant(p) for p in planned]
    data = None if workload.get("data") is None else data_source or "user-images"
    trained = {"name": workload_name, **workload, "data": data}
    return {
        **header(None, facts, trained, images=images, code=code),
        environment.KEY: environment.recorded(without=QUIET),
        "ladder": {"name": ladder.name, "title": ladder.title, "rungs": [p.name for p in planned]}
        | _digest(ladder),
        "protocol": {},
        "baseline": None,
        "rungs": rungs,
        "twins": [],
    }


def _variant(planned: Any) -> Plain:
    """Return what a record keeps of an entry's variant, if it has one."""
    variant = getattr(planned, "variant", None)
    return {"variant": variant.stored()} if variant else {}


def _digest(ladder: Any) -> dict[str, str]:
    said = getattr(ladder, "digest", None)
    return {"digest": said} if said else {}


def header(
    kind: str | None,
    facts: Mapping[str, Any] | None,
    workload: Plain | None = None,
    *,
    images: Plain | None = None,
    code: Path | None = None,
) -> Plain:
    """Return the keys that results of every kind begin with, of a measurement that begins now.

    Args:
        kind: the name of the kind; None for a ladder's run, and for a kind that its caller names.
        facts: the machine (`ladder.machine.system.facts`).
        workload: the workload with its name. The source of its images stands for their path.
        images: which images of a user's they are (`ladder.results.identity.of_images`).
        code: the folder of the measured packages, if they are not from here.
    """
    commit, dirty = commit_of(ROOT)
    return {
        "schema": results.SCHEMA,
        **({"kind": kind} if kind else {}),
        "machine": facts,
        **({"workload": workload} if workload else {}),
        environment.KEY: environment.recorded(),
        **({identity.IMAGES: images} if images else {}),
        "commit": commit,
        "dirty": dirty,
        code_digest.KEY: code_digest.digests(code=code),
        "complete": False,
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": 0.0,
    }


def protocol(
    rounds: int | None,
    cycles: int | None,
    seed: int,
    quick: bool,
    mode: str = "cumulative",
    budget_s: float | None = None,
    gpu_memory_gb: float | None = None,
) -> dict[str, Any]:
    """How a run measures. `gpu_memory_gb`: of the smaller card that is simulated, if one is.

    `rounds` None: as many as the budget and the width of the intervals ask for. "fixed" says which it was; "rounds"
    in the file are those that were planned last.
    """
    if rounds is None and quick:
        rounds = 3
    return {
        "mode": mode,
        "fixed": rounds is not None,
        "budget_s": None if rounds is not None else budget_s,
        "rounds": rounds or rounds_budget.LEAST_ROUNDS,
        "cycles": cycles or (1 if quick else 2),
        "cycle_steps": CYCLE_STEPS,
        "seed": seed,
        "quick": quick,
        "notes": ["quick: not to be quoted"] if quick else [],
        **({} if gpu_memory_gb is None else {"gpu_memory_limit_gb": gpu_memory_gb}),
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


def void_memory(seen: dict[str, Any]) -> str | None:
    """Return why a visit must not count for want of memory, in one line, or None.

    `seen` is the worker's reply, or a round.
    """
    return derive.void_memory(seen.get("alloc_retries"))


def new_path(out: Path, result: dict[str, Any]) -> Path:
    """The file of a new result, with a number where one of that name is there already (two runs in one second)."""
    path, mode = results.path_for(Path(out), result), result["protocol"]["mode"]
    if mode not in ("cumulative", result["ladder"]["name"]):
        head, time_ = path.stem.rsplit("-", 1)
        path = path.with_stem(f"{head}-{mode}-{time_}")
    if "gpu_memory_limit_gb" in result["protocol"]:
        head, time_ = path.stem.rsplit("-", 1)
        path = path.with_stem(f"{head}-limited-{time_}")
    return results.unused(path)
