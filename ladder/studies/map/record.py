"""The records of `ladder map`, which are the schema of its file, and pure functions that derive its figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace

from ladder.base.records import needed, plain, record, rule_of
from ladder.base.rules import alike, items, number, one_of
from ladder.engine import looks
from ladder.engine.looks import Look
from ladder.machine import environment
from ladder.results import plausible
from ladder.results import store as results
from ladder.results import values as v
from ladder.results.types import StudyHeader

GPU, WALL = "gpu", "wall"
COUNTS = 1.02  # a factor from which on a rung matters: less is within the noise of one process
SIZE = number(4, 2**16, whole=True)
BATCH = number(1, 2**16, whole=True)
OUT = items(v.PART, 2)


@record
class Row:
    """A recipe in a cell: its two clocks from one fresh process, or why there are none."""

    resolution: int = needed(SIZE)
    batch: int = needed(BATCH)
    out: list[str] = needed(OUT)  # the rungs that it leaves out
    status: str = needed(v.STATUS)
    reason: str | None = needed(v.TEXT)
    look: Look | None = needed(rule_of(Look))


@record
class Gain:
    """The gains of a rung in a cell while the other rungs are on, as factors."""

    resolution: int = needed(SIZE)
    batch: int = needed(BATCH)
    rung: str = needed(v.PART)
    wall: float | None = needed(v.FACTOR)
    gpu: float | None = needed(v.FACTOR)


@record
class Protocol:
    """How the cells were measured, and why the figures must not be quoted."""

    ladder: str = needed(v.PART)
    rungs: list[str] = needed(items(v.PART, 2, least=2))
    cells: list[list[int]] = needed(items(items(BATCH, 2, least=2), 400, least=1))
    cycles: int = needed(v.COUNT)
    seed: int = needed(v.COUNT)
    notes: list[str] = needed(v.NOTES)


@record
class Result(StudyHeader):
    """A result of `ladder map`. Its workload is the one whose resolution and batch the cells replace."""

    kind: str = needed(one_of("map"))
    protocol: Protocol = needed(rule_of(Protocol))
    rows: list[Row] = needed(items(rule_of(Row), 1600))
    gains: list[Gain] = needed(items(rule_of(Gain), 800))


Key = tuple[int, int, tuple[str, ...]]


def key(row: Row) -> Key:
    return row.resolution, row.batch, tuple(row.out)


def time_ms(row: Row | None, clock: str) -> float | None:
    """Return the milliseconds a step of a row: the median of its cycles by a clock."""
    if row is None or row.look is None:
        return None
    cycles = row.look.gpu_ms if clock == GPU else row.look.wall_ms
    return statistics.median(cycles) if cycles else None


def by_key(rows: Iterable[Row]) -> dict[Key, Row]:
    return {key(row): row for row in rows}


def derive(result: Result) -> Result:
    """Return the result with the gains that follow from its rows, and its notes."""
    seen = [row.look for row in result.rows if row.look]
    also = [*looks.marks(seen), *environment.said(result.environment or None)]
    rounds = results.FEWEST_ROUNDS  # this kind has no rounds; the minimum avoids the note "too few rounds"
    notes = results.cautions(result.machine.device, rounds, result.dirty, result.complete, also)
    return replace(result, gains=gains(result), protocol=replace(result.protocol, notes=notes))


def gains(result: Result) -> list[Gain]:
    """Return what each of the two rungs gains at the top of the ladder, in every cell."""
    rows = by_key(result.rows)
    return [
        Gain(
            resolution=resolution,
            batch=batch,
            rung=rung,
            wall=_ratio(rows, resolution, batch, rung, WALL),
            gpu=_ratio(rows, resolution, batch, rung, GPU),
        )
        for resolution, batch in result.protocol.cells
        for rung in result.protocol.rungs
    ]


def _ratio(rows: dict[Key, Row], resolution: int, batch: int, rung: str, clock: str) -> float | None:
    top = time_ms(rows.get((resolution, batch, ())), clock)
    without = time_ms(rows.get((resolution, batch, (rung,))), clock)
    return without / top if top and without else None


def contradiction(result: Result) -> str | None:
    """Return, in one line, which numbers do not follow from the rows or are impossible, or None."""
    rules = result.protocol
    first, second = rules.rungs
    outs, cells = {(), (first,), (second,), (first, second)}, {tuple(cell) for cell in rules.cells}
    if len(by_key(result.rows)) < len(result.rows):
        return "rows: one is there twice"
    for row in result.rows:
        named = (
            f"{row.resolution}x{row.resolution}, batch {row.batch}, without {' and '.join(row.out) or 'any'}"
        )
        if tuple(row.out) not in outs or (row.resolution, row.batch) not in cells:
            return f"{named}: no row of this protocol"
        if (row.status == "ok") != (time_ms(row, WALL) is not None):
            return f"{named}: a time, but not the status ok, or the other way round"
        cell = result.workload | {"resolution": row.resolution, "batch": row.batch}
        least = plausible.floor_ms(plain(result.machine), cell)
        times = [*(row.look.wall_ms or ()), *(row.look.gpu_ms or ())] if row.look else []
        if least and any(ms < least[0] for ms in times):
            return f"{named}: faster than this machine can compute"
    if result.complete and not any(row.status == "ok" for row in result.rows):
        return "complete, but nothing was measured"
    wanted = derive(result)
    if len(wanted.gains) != len(result.gains) or not all(
        (one.resolution, one.batch, one.rung) == (other.resolution, other.batch, other.rung)
        and alike(one.wall, other.wall)
        and alike(one.gpu, other.gpu)
        for one, other in zip(wanted.gains, result.gains, strict=True)
    ):
        return "gains: not what the rows say"
    if missing := [note for note in wanted.protocol.notes if note not in rules.notes]:
        return f"protocol.notes: lack {missing[0]!r}"
    return None


def mean_factor(factors: Iterable[float]) -> float | None:
    """Return the geometric mean of factors, None of none."""
    logs = [math.log(each) for each in factors]
    return math.exp(statistics.fmean(logs)) if logs else None
