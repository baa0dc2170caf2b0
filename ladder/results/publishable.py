"""The reasons why a result must not be quoted. A clean and complete run has none."""

from __future__ import annotations

from ladder.machine import neighbours
from ladder.results import ranking, sources
from ladder.results import store as results
from ladder.results.run import Result

QUICK = "quick: not to be quoted"
LIMITED = "limited: not to be quoted: less GPU memory than there is"
PARTIAL = "incomplete: the run was interrupted"
DIRTY = "dirty: not publishable: the code differs from its commit"
NO_COMMIT = "no commit: not publishable: what was measured cannot be looked up"
NOISY = "noisy: not publishable"
SET = "measured with "  # begins the line on a variable that was set
HOSTS = "merged: not publishable: runs of several hosts, and what waits for the CPU belongs to one"


def publishable(result: Result) -> list[str]:
    """Return the reasons why a result is not publishable, a line each; none if it is."""
    is_timed = any(rung.status == "ok" for rung in result.rungs)
    reasons = {
        QUICK: result.protocol.quick,
        LIMITED: result.protocol.gpu_memory_limit_gb,
        results.few(sources.unit(result)): is_timed and ranking.fewest_rounds(result) < results.FEWEST_ROUNDS,
        PARTIAL: not result.complete,
        NO_COMMIT: result.commit is None,
        DIRTY: result.commit and result.dirty,
        HOSTS: not sources.one_host(result),
    }
    rounds = [visit for each in sources.records(result) for visit in each.rounds]
    return [
        *(reason for reason, holds in reasons.items() if holds),
        *(note for note in (result.gpu.notes if result.gpu else []) if note.startswith(NOISY)),
        *neighbours.list_marks({neighbours.KEY: each.others_cpu, "visit_s": each.visit_s} for each in rounds),
    ]


def told(mark: str) -> str:
    """Return a mark of a result as a line that says what follows from it. Most say so themselves."""
    known = mark.startswith(SET) or "not to be " in mark or "not publishable" in mark
    return mark if known else f"not to be quoted: {mark}"
