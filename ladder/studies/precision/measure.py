"""The measurement of `ladder precision`: time, memory, parity and largest batch of each row, and its files."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from ladder.base import text
from ladder.base.paths import ROOT
from ladder.base.records import build, plain
from ladder.engine import pool
from ladder.results.store import FAILED_PARITY
from ladder.results.types import Plain, head
from ladder.studies.precision import record as records
from ladder.studies.precision.batch_search import cut_short, first, group_of, search
from ladder.studies.precision.plan import Plan, Tell, rows
from ladder.studies.precision.record import History, Result, Row, Rows, title
from ladder.studies.precision.run import Run, Session, TimeUp

RULES = ("cycles", "seed", "ladder")  # keys of the protocol that must agree with those of a run that goes on


def measure(
    plan: Plan,
    found: Rows,
    tell: Tell,
    history: History | None = None,
    save: Callable[[History | None], None] = lambda history: None,
    workers: pool.Pool | None = None,
) -> History | None:
    """Replace the rows by measured rows, part by part, and return FP16's history or None.

    Ctrl-C keeps the finished parts. ``save`` gets the history, or None, after each part. If it raises `TimeUp`, the
    measurement ends and may be resumed. ``workers`` are ended at the end.
    """
    with workers or pool.Pool() as workers:
        run = Run(plan, found, workers, tell, lambda: save(history))
        if plan.parity:
            run.inspect_all()
        rng = random.Random(plan.seed)
        for number in range(plan.rounds):
            run.round(number, rng.shuffle)
        scaled = [name for name in able(found) if found[name].precision == "fp16"]
        if plan.steps and scaled and history is None:
            tell(f"{scaled[-1]}: loss scales over {plan.steps} steps")
            history = follow_scales(plan, found, scaled[-1], workers)
            save(history)
        for name in able(found) if plan.batch_seconds else ():
            row = found[name]
            if row.on in plan.batch_bases and row.precision != "fp8" and not is_settled(row):
                find_largest_batch(plan, found, name, tell, workers)
                save(history)
    return history


def resumed(found: Rows, before: Iterable[Row]) -> None:
    """Put the finished rows of the same recipe from `before` in place. Failed rows are tried again."""
    for old in before:
        row = found.get(title(old))
        if row is None or old.recipe != row.recipe:
            continue
        row = replace(row, rounds=old.rounds, parity=old.parity, largest=old.largest)
        if old.status == FAILED_PARITY:
            row = replace(row, status=old.status, reason=old.reason)
        found[title(old)] = row


def able(found: Rows) -> list[str]:
    """Return the names of the rows that can be measured."""
    return [name for name, row in found.items() if row.status == "ok"]


def follow_scales(plan: Plan, found: Rows, name: str, workers: pool.Pool) -> History | None:
    """Return both loss scales over a training from the start, or None."""
    row = found[name]
    recipe = row.recipe | plan.scale
    worker = workers.take()
    try:
        with Session(plan, recipe, worker) as session:
            session.build()
            seen = session.worker.call("scales", steps=plan.steps)
    except pool.WorkerFailure as error:
        found[name] = replace(row, reason=f"loss scales: {error.reason}")
        return None
    how = {
        "on": row.on,
        "interval": recipe["loss_scale_interval"],
        "images": plan.workload["data"] is not None,
    }
    return build(History, pool.plain(seen) | how)


def is_settled(row: Row) -> bool:
    return row.largest is not None and row.largest.settled


def find_largest_batch(plan: Plan, found: Rows, name: str, tell: Tell, workers: pool.Pool) -> None:
    """Fill in the largest batch, in whole minibatch-std groups, by `search`.

    An interrupted search continues. An interrupt keeps the finished tries.
    """
    row = found[name]
    group = group_of(plan.workload, row.recipe or {})
    tried = [] if row.largest is None else [*row.largest.tried]

    def fits(batch: int) -> str | None:
        tell(f"{name}: does a batch of {batch} fit?")
        worker = workers.take()
        try:
            with Session(plan, row.recipe, worker, batch=batch, data=None) as session:
                session.build()
        except pool.WorkerFailure as error:
            return error.reason
        return None

    try:
        most = search(fits, first_try(plan, row), group, plan.batch_seconds, plan.most_batch, tried=tried)
    except KeyboardInterrupt:
        found[name] = replace(row, largest=cut_short(tried) if tried else None)
        raise
    found[name] = replace(row, largest=most)


def first_try(plan: Plan, row: Row) -> int:
    """Return the first batch to try: the workload's, doubled while half of the GPU's memory should suffice."""
    batch = plan.workload["batch"]
    sizes = [size or 0 for each in row.rounds for size in (each.reserved_gib, each.device_gib)]
    return first(batch, max(sizes, default=0), plan.memory_gib, plan.most_batch)


OUT = ROOT / "results" / "precision"


def load(path: Path) -> Result:
    """Return the result in a file of `ladder precision`. Raises UserError, one line."""
    from ladder.results import loading
    from ladder.studies.precision import schema

    return build(Result, loading.load_kind(path, schema.KIND))


def continued(path: Path, fresh: Result) -> Result:
    """Return the file's result, ready to continue. `fresh` is the result that would begin now.

    Raises UserError where the two are not the same measurement.
    """
    from ladder.results.combine import resuming

    before = load(path)
    other = resuming.other_rules(before.protocol, fresh.protocol, RULES)
    header = resuming.continued(path, head(before), head(fresh), other)
    return replace(fresh, **header, rows=before.rows, history=before.history)


def new_result(plan: Plan, name: str, facts: Plain) -> Result:
    """Return the result of a measurement that has not begun, without its rows."""
    from ladder.results import identity, record

    images = identity.of_images(plan.workload["data"])
    workload = {"name": name, **plan.workload, "data": None}
    protocol = {
        key: getattr(plan, key) for key in ("rounds", "cycles", "seed", "ladder", "parity", "batch_seconds")
    }
    made = {
        **record.header("precision", facts, workload, images=images),
        "protocol": protocol | {"steps": plan.steps, "notes": []},
        "rows": [],
        "history": None,
        "claims": [],
    }
    return build(Result, made)


def run(
    plan: Plan,
    base: Result,
    tell: Tell,
    minutes: float | None = None,
    out: Path | None = None,
) -> Result:
    """Fill in `base` and return it, derived numbers included. Ctrl-C, or the end of ``minutes``, keeps finished parts.

    The rows that `base` already has are not measured again. The result is written to
    ``out`` after each part, so a killed run loses at most one part.
    """
    from ladder.base.locks import device_lock
    from ladder.base.stopping import stop_on_sigterm
    from ladder.engine.pool import Pool
    from ladder.machine import system
    from ladder.results import store

    begin, found = time.monotonic(), rows(plan)
    resumed(found, base.rows)

    def state(complete: bool) -> Result:
        took = round(time.monotonic() - begin + base.seconds, 1)
        return replace(assembled(base, found.values(), complete), seconds=took)

    def save(history: History | None) -> None:
        nonlocal base
        base = replace(base, history=history)
        if out is not None:
            part = state(False)
            store.save(plain(part), out, stem=stem_of(part))
        if minutes is not None and time.monotonic() - begin > 60 * minutes:
            raise TimeUp

    with device_lock(system.device_key(plan.device)):
        try:
            with stop_on_sigterm(), Pool() as workers:
                base = replace(base, history=measure(plan, found, tell, base.history, save, workers))
        except KeyboardInterrupt:
            return state(False)
    return state(True)


def assembled(base: Result, found: Iterable[Row], complete: bool) -> Result:
    """Return the result with these rows, and with all that follows from them."""
    from ladder.machine import environment, neighbours
    from ladder.results import store as results

    derived, rules = records.derive(found), base.protocol
    said = neighbours.list_marks({neighbours.KEY: each.others_cpu} for row in derived for each in row.rounds)
    said += environment.describe_variables(base.environment or None)
    notes = results.cautions(base.machine.device, rules.rounds, base.dirty, complete, said)
    return replace(
        base,
        complete=complete,
        protocol=replace(rules, notes=notes),
        rows=derived,
        claims=records.claims(derived),
    )


def stem_of(result: Result) -> str:
    """Return the stem of the result's file names. A smoke test never replaces a measurement."""

    words = [result.machine.name]
    words += [result.workload["name"]] * (result.workload["name"] != "article")
    words += ["smoke"] * (result.machine.device == "cpu")
    return "-".join(text.slug(word) for word in words)


def write(result: Result, out: Path) -> list[Path]:
    """Write JSON, Markdown and chart, each whole or not at all. A whole result removes its partial file."""
    from ladder.results import store
    from ladder.studies.precision import chart as precisionchart
    from ladder.studies.precision import report as precisionreport

    pages = {"md": precisionreport.markdown(result)}

    def render(kind: str) -> bytes:
        return precisionchart.render(result, kind)

    return store.save(plain(result), out, pages, render, stem=stem_of(result), picture="-precision")
