"""The report of `ladder sustain`: terminal table and Markdown."""

from __future__ import annotations

import statistics

from ladder.base.text import aligned, escaped, ms, piped
from ladder.results import store as results
from ladder.results.types import head
from ladder.studies.sustain import record
from ladder.studies.sustain.record import Result, later

HEADINGS = (
    "rung", "ms/step at first", "sustained", "factor", "MHz at first", "sustained", "W at most", "power limit",
    "J/step",
)  # fmt: skip


def cells(result: Result) -> list[tuple[str, ...]]:
    found = []
    for rung in result.rungs:
        rows = rung.windows
        if rung.status != "ok" or not rows:
            found.append((rung.name, f"{rung.status}: {rung.reason}", *[""] * 7))
            continue
        clocks = [row.sm_mhz for row in later(rows) if row.sm_mhz]
        watts = [row.power_w for row in rows if row.power_w]
        capped = sum("power_cap" in (row.reasons or ()) for row in rows)
        found.append(
            (
                rung.name,
                ms(rung.first_ms),
                ms(rung.sustained_ms),
                f"{rung.factor:.3f}",
                f"{rows[0].sm_mhz:.0f}" if rows[0].sm_mhz else "",
                f"{statistics.median(clocks):.0f}" if clocks else "",
                f"{max(watts):.0f}" if watts else "",
                f"in {capped} of {len(rows)}" if clocks else "",
                joules(record.energy(rung)),
            )
        )
    return found


def joules(found: record.Energy | None) -> str:
    """Return joules a step, with "at most" where power was integrated."""
    return "" if found is None else f"{'at most ' * (found.source == record.POWER)}{found.step_j:.3g}"


def text(result: Result) -> str:
    """Return the report for a terminal."""
    return "\n".join([*aligned([HEADINGS, *cells(result)]), "", *result.protocol.notes])


def markdown(result: Result) -> str:
    """Return the page beside the JSON file."""
    facts, work, rules = result.machine, result.workload, result.protocol
    page = [
        f"# How fast a rung still is after a while: {escaped(facts.gpu or facts.cpu or '')}",
        "",
        f"Workload {escaped(work['name'])}: {work['resolution']}x{work['resolution']}, batch {work['batch']}, R1 and"
        f" path length included. One process of each rung for {rules.seconds:g} seconds, in rows of"
        f" {rules.window_s:g} s; sustained is the median of the later half. PyTorch {facts.torch}, commit"
        f" {results.commit_words(head(result))}.",
        "",
        *piped([HEADINGS, *cells(result)]),
        "",
        *(f"- {escaped(line)}" for line in rules.notes),
    ]
    return "\n".join(page).rstrip() + "\n"
