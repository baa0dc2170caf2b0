"""Pure functions from the repeats of `ladder kernels` to medians, intervals, shares of a copy and verdicts.

Words and statistics are those of a ladder (`ladder.stats.answers`). Each row is a quantity of its own: its contenders
take the place of rungs, and its repeats that of generations. All repeats share one process, so an error covers repeats
alone. Holm's correction is over all comparisons of a run. Verdicts are about the cold L2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ladder.base.text import NO_TIME
from ladder.stats import answers, estimates
from ladder.stats.answers import Answer, Quantity
from ladder.studies.kernelbench.schema import Against, Measured, Row, Summary, Times

OURS, TWIN, COPY = "ours", "twin", "copy"
ALTERNATIVES = ("plain", "compile")
ONLY_OURS, NOT_MEASURED = "nothing to compare with", "not measured"


def unreached(rows: Sequence[Measured]) -> set[str]:
    """Return the cases without time for them. A case is measured as a whole or not at all."""
    return {row.case for row in rows if row.reasons.get(OURS) == NO_TIME}


def derive(rows: Sequence[Measured]) -> list[Row]:
    """Return the rows with every number that follows from their samples."""
    quantities = [quantity(row.samples_us.cold) for row in rows]
    asked = [[(name, OURS) for name in ALTERNATIVES if of.paired(name, OURS)] for of in quantities]
    count = sum(map(len, asked))
    questions = [of.questions(pairs, count) for of, pairs in zip(quantities, asked, strict=True)]
    found = iter(answers.answer([question for each in questions for question in each]))
    made = []
    for row, of, pairs in zip(rows, quantities, asked, strict=True):
        against = {name: _against(of, name, next(found)) for name, _ in pairs}
        noise = of.floors(count).get(_KIND)
        made.append(_derived(row, noise.floor if noise else None, against))
    return made


def quantity(cold: Mapping[str, Sequence[float]]) -> Quantity:
    """Return the times of a row by contender and repeat. The copy is no contender."""
    known = {name: cold[name] for name in (OURS, TWIN, *ALTERNATIVES) if name in cold}
    logs = {name: dict(enumerate(map(math.log, values))) for name, values in known.items()}
    return answers.quantity(logs, dict.fromkeys(logs, _KIND), [(OURS, TWIN)], is_gpu=True)


_KIND = "contender"  # all contenders of a row are of one kind


def _against(of: Quantity, name: str, answer: Answer) -> Against:
    return Against(
        verdict=answer.verdict,
        times_faster=float(np.exp(np.mean(list(of.paired(name, OURS).values())))),
        interval=answer.interval and [float(np.exp(bound)) for bound in answer.interval],
        confidence=answer.confidence,
        below=answer.below,
    )


def _derived(row: Measured, noise: float | None, against: dict[str, Against]) -> Row:
    cold, hot = row.samples_us.cold, row.samples_us.hot
    us = Times(cold=_summaries(cold), hot=_summaries(hot))
    share = {
        name: _ratio(cold[COPY], cold[name])
        for name in (OURS, *ALTERNATIVES)
        if name in cold and COPY in cold
    }
    measured = {field.name: getattr(row, field.name) for field in dataclasses.fields(Measured)}
    return Row(
        **measured, us=us, share=share, floor=noise, against=against, verdict=verdict(us.cold, against)
    )


def verdict(us: Mapping[str, Summary], against: Mapping[str, Against]) -> str:
    """Return `ours faster`, `plain faster`, `compile faster`, or else the protocol's word.

    Ours must be faster than every alternative. An alternative must be faster than ours, and the quickest is named.
    """
    if not against:
        return ONLY_OURS if OURS in us else NOT_MEASURED
    quickest = by_time(us, against)
    for name in quickest:
        if against[name].verdict == answers.SLOWER:
            return f"{name} faster"
    if all(each.verdict == answers.FASTER for each in against.values()):
        return "ours faster"
    return answers.LESS if against[quickest[0]].verdict == answers.LESS else answers.AMBIGUOUS


def by_time(us: Mapping[str, Summary], against: Mapping[str, Against]) -> list[str]:
    """Return the alternatives of a row, the quickest first."""
    return sorted((name for name in against if name in us), key=lambda name: us[name].median)


def summary(values: Sequence[float]) -> Summary:
    """Return median and 95% interval over repeats."""
    interval = estimates.log_interval(values)
    return Summary(median=estimates.median(values), interval=interval and list(interval))


def _summaries(samples: Mapping[str, list[float]]) -> dict[str, Summary]:
    return {name: summary(values) for name, values in samples.items() if name != TWIN}


def _ratio(reference: Sequence[float], other: Sequence[float]) -> Summary:
    return summary([float(np.exp(value)) for value in _logs(reference, other)])


def _logs(reference: Sequence[float], other: Sequence[float]) -> list[float]:
    return estimates.log_ratios(dict(enumerate(reference)), dict(enumerate(other)))
