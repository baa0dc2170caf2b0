"""The measurement of `ladder map`: every recipe in every cell, each in a fresh process, wall time before GPU time.

A process of its own keeps wall time free of an earlier profiler, and memory that ran out is that of one cell alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ladder.base import text as texts
from ladder.base.records import build
from ladder.engine import looks, sitting
from ladder.engine.looks import Look, Task
from ladder.engine.pool import Pool, WorkerFailure
from ladder.engine.sitting import Pace
from ladder.engine.visit import Visits
from ladder.results import loading, record
from ladder.results.combine import resuming
from ladder.results.types import Plain, head
from ladder.studies.map.plan import Cell, Plan
from ladder.studies.map.record import WALL, Key, Result, Row, by_key, derive, key, time_ms

SECONDS = {"cuda": 24.0, "cpu": 8.0}  # of a row: article on an H100, tiny on two cores
TRIED_AGAIN = ("failed", "invalid")


def new_result(plan: Plan, facts: Plain) -> Result:
    """Return the result of a measurement that has not begun."""
    workload = {"name": plan.name, **plan.workload, "data": None}
    rules = {
        "ladder": plan.ladder, "rungs": list(plan.rungs), "cells": [list(cell) for cell in plan.cells],
        "cycles": plan.cycles, "seed": plan.seed, "notes": [],
    }  # fmt: skip
    made = record.header("map", facts, workload)
    return build(Result, made | {"protocol": rules, "rows": [], "gains": []})


def continued(path: Path, fresh: Result) -> Result:
    """Return the file's result, ready to continue. Raises UserError if it is not the measurement that begins now."""
    from ladder.studies.map import schema

    before = build(Result, loading.load_kind(path, schema.KIND))
    asked = [replace(each.protocol, notes=[]) for each in (before, fresh)]
    other = [] if asked[0] == asked[1] else ["other cells, another pair, ladder or seed"]
    header = resuming.continued(path, head(before), head(fresh), other)
    kept = [row for row in before.rows if row.status not in TRIED_AGAIN]
    return replace(fresh, **header, rows=kept)


def missing(plan: Plan, result: Result) -> list[tuple[Cell, tuple[str, ...]]]:
    """Return the rows to measure, a cell's four after each other, so that what drifts hits all of them."""
    known = by_key(result.rows)
    return [(cell, out) for cell in plan.cells for out in plan.recipes if (*cell, out) not in known]


def measure(
    plan: Plan, result: Result, tell: Callable[[str], None], save: Callable[[Result], None]
) -> Result:
    """Fill in what is missing, save the result after each row, and return it. After an interrupt it is partial."""
    left = missing(plan, result)
    pace = Pace(len(left), plan.minutes)
    rows: dict[Key, Row] = by_key(result.rows)

    def state(complete: bool) -> Result:
        seconds = round(result.seconds + pace.seconds, 1)
        found = derive(replace(result, seconds=seconds, complete=complete, rows=[*rows.values()]))
        save(found)
        return found

    complete = False
    try:
        with sitting.opened(plan.device) as (pool, visits):
            pool.wait()
            visits.look_around()
            for cell, out in left:
                row = measured(plan, cell, out, pool, visits)
                rows[key(row)] = row
                state(False)
                ms = time_ms(row, WALL)
                said = f"{row.status}: {row.reason}" if ms is None else f"{texts.ms(ms)} ms"
                tell(f"{named(cell)}, {title(out)}: {said} ({pace.step()})")
                pace.check()
        complete = True
    except KeyboardInterrupt:
        pass
    return state(complete)


def measured(plan: Plan, cell: Cell, out: tuple[str, ...], pool: Pool, visits: Visits) -> Row:
    """Return the row of a recipe in a cell. Out of memory is its value, and a failure has its reason.

    A row whose GPU time is void is measured once more, in another process. A failure there keeps the first row.
    """
    row = Row(resolution=cell[0], batch=cell[1], out=[*out], status="ok", reason=None, look=None)
    task = Task(plan.of(cell), plan.recipes[out], plan.device, plan.seed)
    try:
        row = replace(row, look=_look(plan, task, pool, visits))
        if row.look and row.look.gpu_void:
            row = replace(row, look=_look(plan, task, pool, visits))
    except WorkerFailure as failure:
        if row.look is None:
            return replace(row, status=failure.status, reason=texts.display(failure.reason))
    return row


def _look(plan: Plan, task: Task, pool: Pool, visits: Visits) -> Look:
    worker = pool.take()
    try:
        return looks.in_fresh_process(worker, task, visits, plan.cycles)
    finally:
        worker.close()


def named(cell: Cell) -> str:
    return f"{cell[0]}x{cell[0]} batch {cell[1]}"


def title(out: tuple[str, ...]) -> str:
    """Return the name of a recipe by the rungs that it leaves out."""
    return "whole ladder" if not out else "without both" if len(out) > 1 else f"without {out[0]}"
