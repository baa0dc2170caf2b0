"""The report of `ladder map`: sentences, and heat maps as tables."""

from __future__ import annotations

from collections.abc import Sequence

from ladder.base.text import aligned, counted, escaped, fine_factor, ms, piped
from ladder.results import store as results
from ladder.results.types import head
from ladder.studies.map.measure import title
from ladder.studies.map.plan import PAIR
from ladder.studies.map.record import (
    COUNTS,
    GPU,
    WALL,
    Key,
    Result,
    Row,
    by_key,
    key,
    mean_factor,
    time_ms,
)

ALIKE = COUNTS  # within this factor of the fastest a recipe counts as the fastest, too
EVERYWHERE = " everywhere"
EVERY_BATCH = "at every batch"
CLOCKS = {WALL: "step", GPU: "GPU time"}
ARTICLE_TO = 32  # the article's policy: CUDA graphs and NCHW up to here, channels_last without graphs above


def clocks(result: Result) -> list[str]:
    """Return the clocks that the result has times of, wall time first."""
    return [clock for clock in (WALL, GPU) if any(time_ms(row, clock) for row in result.rows)] or [WALL]


def axes(result: Result) -> tuple[list[int], list[int]]:
    """Return the resolutions and the batches of a map, from small to large."""
    cells = result.protocol.cells
    return sorted({cell[0] for cell in cells}), sorted({cell[1] for cell in cells})


def cell_factor(result: Result, rung: str, clock: str, resolution: int, batch: int) -> float | None:
    """Return what a rung gains in a cell, as a factor."""
    place = (resolution, batch, rung)
    found = [each for each in result.gains if (each.resolution, each.batch, each.rung) == place]
    return (found[0].wall if clock == WALL else found[0].gpu) if found else None


def cell_word(result: Result, rung: str, clock: str, resolution: int, batch: int) -> str:
    """Return why a cell has no gain: "oom", another status, "void", or nothing if it was not measured."""
    rows = by_key(result.rows)
    found = [row for out in ((), (rung,)) if (row := rows.get((resolution, batch, out)))]
    if broken := [row.status for row in found if row.status != "ok"]:
        return broken[0]
    return "void" if clock == GPU and any(map(void_reason, found)) else ""


def table(result: Result, rung: str, clock: str) -> tuple[list[str], list[list[str]]]:
    """Return a heat map as headings and rows: batches by resolution."""
    resolutions, batches = axes(result)
    made = [
        [f"{size}x{size}"]
        + [
            fine_factor(cell_factor(result, rung, clock, size, batch))
            or cell_word(result, rung, clock, size, batch)
            for batch in batches
        ]
        for size in resolutions
    ]
    return [f"{rung}, {CLOCKS[clock]}", *(f"batch {batch}" for batch in batches)], made


def matters_sentence(result: Result, rung: str) -> str:
    """Return the batches at which a rung matters, by resolution, as a sentence."""
    places: dict[str, list[str]] = {}
    resolutions, batches = axes(result)
    for size in resolutions:
        known = [
            (batch, value)
            for batch in batches
            if (value := cell_factor(result, rung, WALL, size, batch)) is not None
        ]
        if known:
            lacks = f" ({len(known)} of {len(batches)} batches have a time)" * (len(known) < len(batches))
            places.setdefault(_where(known), []).append(f"{size}x{size}{lacks}")
    if not places:
        return f"{rung}: no cell has a time with it and one without it."
    said = [f"{where} at {' and '.join(sizes)}" for where, sizes in places.items()]
    share = 100 * (COUNTS - 1)
    if places == {EVERY_BATCH: [f"{size}x{size}" for size in resolutions]}:
        cells = len(result.protocol.cells)
        said = [f"in all {cells} cells" if cells > 1 else "in the one cell"]
    return f"{rung} saves {share:.0f}% of the step or more {', '.join(said)}."


def _where(known: Sequence[tuple[int, float]]) -> str:
    """Return at which batches a factor counts, in the shortest words."""
    batches = [batch for batch, _ in known]
    good = [batch for batch, value in known if value >= COUNTS]
    if not good:
        return "at no batch"
    if good == batches:
        return EVERY_BATCH
    if good == batches[: len(good)]:
        return f"up to batch {good[-1]}"
    if good == batches[-len(good) :]:
        return f"from batch {good[0]}"
    return f"at batch {', '.join(map(str, good))}"


def fastest(rows: dict[Key, Row], cell: Sequence[int], outs: Sequence[tuple[str, ...]]) -> Row | None:
    """Return the fastest row of a cell by wall time."""
    found = [row for out in outs if (row := rows.get((cell[0], cell[1], out))) and time_ms(row, WALL)]
    return min(found, key=lambda row: time_ms(row, WALL) or 0.0, default=None)


def outs(result: Result) -> list[tuple[str, ...]]:
    """Return the four recipes by the rungs that they leave out."""
    first, second = result.protocol.rungs
    return [(), (first,), (second,), (first, second)]


def policy_sentence(result: Result) -> str:
    """Return how the article's policy fares against the fastest recipe of each cell."""
    pair = result.protocol.rungs
    if tuple(pair) != PAIR:
        return "The article's policy is about CUDA graphs and channels_last, so this pair does not test it."
    rows, lost, whole = by_key(result.rows), {}, []
    for cell in result.protocol.cells:
        size, batch = cell
        best = time_ms(fastest(rows, cell, outs(result)), WALL)
        ruled = time_ms(rows.get((size, batch, _choose_by_article(size, pair))), WALL)
        top = time_ms(rows.get((size, batch, ())), WALL)
        if best and ruled and top:
            lost[size, batch] = ruled / best
            whole.append(top / best)
    if not lost:
        return "The article's policy is not tested: no cell has a time under it."
    good = sum(value <= ALIKE for value in lost.values())
    worst = max(lost, key=lambda each: lost[each])
    return (
        f"The article's policy (graphs and NCHW up to {ARTICLE_TO}x{ARTICLE_TO}, channels_last"
        f" and no graphs above) is within {100 * (ALIKE - 1):.0f}% of the fastest recipe in {good} of {len(lost)}"
        f" cells; it takes {fine_factor(mean_factor(lost.values()))} the time of the fastest on average and"
        f" {lost[worst]:.2f}x at {worst[0]}x{worst[0]}, batch {worst[1]}, where the whole ladder everywhere takes"
        f" {fine_factor(mean_factor(whole))} on average."
    )


def _choose_by_article(resolution: int, pair: Sequence[str]) -> tuple[str, ...]:
    """Return which of (CUDA graphs, channels_last) the article's policy leaves out at a resolution."""
    return (pair[1],) if resolution <= ARTICLE_TO else (pair[0],)


def cell_table(result: Result) -> tuple[list[str], list[list[str]]]:
    """Return the times of every cell by recipe as headings and rows: ms a step by the wall clock."""
    rows = by_key(result.rows)
    made = []
    for size, batch in result.protocol.cells:
        found = [rows.get((size, batch, out)) for out in outs(result)]
        words = [ms(time_ms(row, WALL)) or (row.status if row else "") for row in found]
        made.append([f"{size}x{size}, batch {batch}", *words])
    return ["ms/step", *(title(out) for out in outs(result))], made


def tables(result: Result) -> list[tuple[list[str], list[list[str]]]]:
    """Return all tables of a result as headings and rows."""
    maps = [table(result, rung, clock) for clock in clocks(result) for rung in result.protocol.rungs]
    return [*maps, cell_table(result)]


def sentences(result: Result) -> list[str]:
    """Return the findings, one sentence each."""
    found = [matters_sentence(result, rung) for rung in result.protocol.rungs] + [policy_sentence(result)]
    lacking = [row for row in result.rows if row.status == "oom"]
    found += [f"{len(lacking)} of {len(result.rows)} rows ran out of memory."] * bool(lacking)
    void = [(key(row), reason) for row in result.rows if (reason := void_reason(row))]
    if void:
        (size, batch, out), reason = void[0]
        where = f"{size}x{size}, batch {batch}, {title(out)}"
        found.append(
            f"GPU time is void in {len(void)} of {len(result.rows)} rows, first at {where}: {reason}."
        )
    return found


def void_reason(row: Row) -> str | None:
    """Return why the GPU time of a row does not count beside its step time, or None."""
    return row.look.gpu_void if row.look else None


def text(result: Result) -> str:
    """Return the report for a terminal."""
    parts = ["\n".join(aligned([headings, *rows], words=(0,))) for headings, rows in tables(result)]
    return "\n\n".join([*parts, "\n".join([*sentences(result), *result.protocol.notes])])


def markdown(result: Result) -> str:
    """Return the page beside the JSON file."""
    facts, work, rules = result.machine, result.workload, result.protocol
    name = f"Where {' and '.join(rules.rungs)} matter"
    page = [
        f"# {escaped(name)}: {escaped(facts.gpu or facts.cpu or '')}",
        "",
        f"Workload {escaped(work['name'])} at other batches and resolutions, random images; ladder `{rules.ladder}`,"
        f" every row in a fresh process: {counted(rules.cycles, 'cycle')} by the wall clock, then two of GPU time."
        f" PyTorch {facts.torch}, commit {results.commit_words(head(result))}.",
        "",
        *(f"- {escaped(line)}" for line in [*sentences(result), *rules.notes]),
    ]
    for headings, rows in tables(result):
        page += ["", grid(headings, rows)]
    return "\n".join(page).rstrip() + "\n"


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown, the first column to the left."""
    return "\n".join(piped([headings, *rows]))
