"""The measurement of `ladder precision`: time, memory, parity and largest batch of each row, and its files."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ladder.base import files, text
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.engine import pool
from ladder.engine.lanes import MOST_AHEAD
from ladder.studies.precision import record as records
from ladder.studies.precision.batch_search import cut_short, search
from ladder.studies.precision.plan import Plan, Tell, rows
from ladder.studies.precision.record import title
from ladder.studies.precision.run import Run, Session, TimeUp


def measure(
    plan: Plan,
    found: list[dict[str, Any]],
    tell: Tell,
    history: dict[str, Any] | None = None,
    save: Callable[[dict[str, Any] | None], None] = lambda history: None,
    workers: pool.Pool | None = None,
) -> dict[str, Any] | None:
    """Fill in what the rows lack, part by part, and return FP16's history or None. Ctrl-C keeps the finished parts.

    ``save`` gets the history, or None, after each part. If it raises `TimeUp`, the measurement ends and may be resumed.
    ``workers`` are ended at the end.
    """
    with workers or pool.Pool() as workers:
        run = Run(plan, {title(row): row for row in able(found)}, workers, tell, lambda: save(history))
        if plan.parity:
            run.inspect_all()
        rng = random.Random(plan.seed)
        for number in range(plan.rounds):
            run.round(number, rng.shuffle)
        scaled = [row for row in able(found) if row["precision"] == "fp16"]
        if plan.steps and scaled and history is None:
            tell(f"{title(scaled[-1])}: loss scales over {plan.steps} steps")
            history = follow_scales(plan, scaled[-1], workers)
            save(history)
        for row in able(found) if plan.batch_seconds else ():
            if row["on"] in plan.batch_bases and row["precision"] != "fp8" and not is_settled(row):
                find_largest_batch(plan, row, tell, workers)
                save(history)
    return history


def begin_ahead(plan: Plan, found: list[dict[str, Any]], workers: pool.Pool) -> None:
    """Let workers import during other work. On a CPU they would take cores from it, so there they do not."""
    if plan.device == "cuda":
        workers.begin_ahead(min(len(able(found)), MOST_AHEAD))


def resumed(found: list[dict[str, Any]], before: list[dict[str, Any]]) -> None:
    """Copy the finished rows of the same recipe from `before`, in place. Failed rows are tried again."""
    known = {(row["on"], row["precision"]): row for row in before}
    for row in found:
        old = known.get((row["on"], row["precision"]))
        if old and old["recipe"] == row["recipe"]:
            row |= {key: old[key] for key in ("rounds", "parity", "largest")}
            if old["status"] == "failed: parity":
                row |= {key: old[key] for key in ("status", "reason")}


def able(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in found if row["status"] == "ok"]


def follow_scales(plan: Plan, row: dict[str, Any], workers: pool.Pool) -> dict[str, Any] | None:
    """Return both loss scales over a training from the start, or None."""
    recipe = row["recipe"] | plan.scale
    worker = workers.take()
    workers.begin_ahead(tries_ahead(plan) if plan.batch_seconds else 0)
    try:
        with Session(plan, recipe, worker) as session:
            session.build()
            found = session.worker.call("scales", steps=plan.steps)
    except pool.WorkerFailure as error:
        row["reason"] = f"loss scales: {error.reason}"
        return None
    how = {"on": row["on"], "interval": recipe["loss_scale_interval"]}
    return pool.plain(found) | how | {"images": plan.workload["data"] is not None}


def is_settled(row: dict[str, Any]) -> bool:
    return row["largest"] is not None and row["largest"]["settled"]


def find_largest_batch(plan: Plan, row: dict[str, Any], tell: Tell, workers: pool.Pool) -> None:
    """Fill in the largest batch, in whole minibatch-std groups, by `search`.

    An interrupted search continues. An interrupt keeps the finished tries.
    """
    group = min(plan.workload["mbstd_group"], plan.workload["batch"])
    tried = [] if row["largest"] is None else [*row["largest"]["tried"]]

    def fits(batch: int) -> str | None:
        tell(f"{title(row)}: does a batch of {batch} fit?")
        worker = workers.take()
        workers.begin_ahead(tries_ahead(plan))
        try:
            with Session(plan, row["recipe"], worker, batch=batch, data=None) as session:
                session.build()
        except pool.WorkerFailure as error:
            return error.reason
        return None

    workers.start_ahead(1)  # the search's seconds exclude the import
    try:
        row["largest"] = search(
            fits, first_try(plan, row), group, plan.batch_seconds, plan.most_batch, tried=tried
        )
    except KeyboardInterrupt:
        row["largest"] = cut_short(tried) if tried else None
        raise


def tries_ahead(plan: Plan) -> int:
    """Return how many workers import during a try. Tries are not timed, so importing does no harm."""
    return 3 if plan.device == "cuda" else 1


def first_try(plan: Plan, row: dict[str, Any]) -> int:
    """Return the first batch to try: the workload's, doubled while half of the GPU's memory should suffice."""
    batch = plan.workload["batch"]
    sizes = [each[key] or 0 for each in row["rounds"] for key in ("reserved_gib", "device_gib")]
    used = max(sizes, default=0)
    while used and plan.memory_gib and 2 * 2 * used < plan.memory_gib and 2 * batch <= plan.most_batch:
        batch, used = 2 * batch, 2 * used
    return batch


OUT = ROOT / "results" / "precision"

ENGINE = ("studies/precision/run",)  # times a row, in addition to the modules that time a rung


def earlier(path: Path, name: str, plan: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the result to continue. Raises UserError where its measurement or its code differs."""
    from ladder.results import code_digest, loading
    from ladder.results.combine import resuming
    from ladder.studies.precision import schema

    found = loading.load_kind(path, schema.KIND)
    head = head_of(name, plan)
    now = head | {"machine": facts["name"], "torch": facts["torch"]}
    then = found | {"machine": found["machine"]["name"], "torch": found["machine"]["torch"]}
    resuming.refuse_other_workload(path, found, head)
    for key in ("machine", "torch"):
        if then[key] != now[key]:
            raise UserError(f"{path}: cannot be continued: measured with another {key}")
    if differing := code_digest.differences(found, head):
        raise UserError(f"{path}: cannot be continued: other code: {'; '.join(differing)}")
    resuming.refuse_other_environment(path, found, text.fit(head))
    return found


def head_of(name: str, plan: Any) -> dict[str, Any]:
    """Return the head of a new result: its plan, and the code that it measures."""
    from ladder.results import code_digest, identity, record

    head = record.head("precision", name, plan.workload)
    head |= record.conditions(identity.of_images(plan.workload["data"]))
    return head | {code_digest.KEY: code_digest.digests(also=ENGINE)}


def run(
    plan: Any,
    name: str,
    facts: dict[str, Any],
    tell: Any,
    minutes: float | None = None,
    before: dict[str, Any] | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Return the whole result, derived numbers included. Ctrl-C, or the end of ``minutes``, keeps the finished parts.

    The result is written to ``out`` after each part, so a killed run loses at most one part.
    """
    from ladder.base.locks import device_lock
    from ladder.base.stopping import stop_on_sigterm
    from ladder.engine.pool import Pool
    from ladder.machine import system
    from ladder.results import sources
    from ladder.studies.precision import fp8 as fp8probe

    begin = time.monotonic()
    found = rows(plan)
    if before:
        resumed(found, before["rows"])
    known = before or {"fp8": {}, "history": None}
    seen: dict[str, Any] = {"fp8": known["fp8"], "history": known["history"]}
    head = head_of(name, plan)
    head |= sources.gone_on_with(before, head) if before else {}
    started = before["started"] if before else datetime.now(timezone.utc).isoformat(timespec="seconds")

    def result(complete: bool) -> dict[str, Any]:
        took = round(time.monotonic() - begin + (before["seconds"] if before else 0), 1)
        made = assemble(plan, head, facts, found, seen, complete)
        return made | {"started": started, "seconds": took}

    def save(history: dict[str, Any] | None) -> None:
        seen["history"] = history
        if out is not None:
            write_partial(result(False), out)
        if minutes is not None and time.monotonic() - begin > 60 * minutes:
            raise TimeUp

    with device_lock(system.device_key(plan.device)):
        try:
            with stop_on_sigterm(), Pool() as workers:
                begin_ahead(plan, found, workers)
                if not seen["fp8"] or "probe" in seen["fp8"]:
                    seen["fp8"] = fp8probe.ask(plan.device)
                seen["history"] = measure(plan, found, tell, seen["history"], save, workers)
        except KeyboardInterrupt:
            return result(False)
    return result(True)


def assemble(
    plan: Any,
    head: dict[str, Any],
    facts: dict[str, Any],
    found: list[dict[str, Any]],
    seen: dict[str, Any],
    complete: bool,
) -> dict[str, Any]:
    """Return the result so far, without the time of its making."""
    from ladder.machine import environment, neighbours
    from ladder.results import store as results

    said = neighbours.marks(each for row in found for each in row["rounds"])
    said += environment.said(head.get(environment.KEY))
    records.derive(found)
    return head | {
        "machine": facts,
        "complete": complete,
        "protocol": {
            "rounds": plan.rounds,
            "cycles": plan.cycles,
            "seed": plan.seed,
            "ladder": plan.ladder,
            "parity": plan.parity,
            "batch_seconds": plan.batch_seconds,
            "steps": plan.steps,
            "notes": results.cautions(plan.device, plan.rounds, head["dirty"], complete, said),
        },
        "rows": found,
        **seen,
        "claims": records.claims(found),
    }


def stem_of(result: dict[str, Any]) -> str:
    """Return the stem of the result's file names. A smoke test never replaces a measurement."""

    words = [result["machine"]["name"]]
    words += [result["workload"]["name"]] * (result["workload"]["name"] != "article")
    words += ["smoke"] * (result["machine"]["device"] == "cpu")
    return "-".join(text.slug(word) for word in words)


def write_partial(result: dict[str, Any], out: Path) -> None:
    from ladder.results import store as results

    files.write_json(results.place(out / f"{stem_of(result)}-partial.json", result), result)


def write(result: dict[str, Any], out: Path) -> list[Path]:
    """Write JSON, Markdown and chart, each whole or not at all. A whole result removes its partial file."""
    from ladder.report import output as ending
    from ladder.studies.precision import chart as precisionchart
    from ladder.studies.precision import report as precisionreport

    pages = {"md": precisionreport.markdown(result)}
    return ending.write_named(
        result, out, stem_of(result), pages, lambda kind: precisionchart.render(result, kind), "-precision"
    )
