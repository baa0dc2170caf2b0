"""Pure functions from the repeats of `ladder kernels` to medians, intervals, shares of a copy and verdicts.

The words are those of a ladder (`ladder.stats.verdicts`): paired log ratios over repeats, Student's t, and Holm over
all comparisons of a run. The noise floor is that of each row's own twins. Verdicts are about the cold L2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from ladder.base.text import NO_TIME
from ladder.stats import estimates, verdicts
from ladder.studies.kernelbench.schema import Against, Measured, Row, Summary, Times

OURS, TWIN, COPY = "ours", "twin", "copy"
ALTERNATIVES = ("plain", "compile")
ONLY_OURS, NOT_MEASURED = "nothing to compare with", "not measured"


def unreached(rows: Sequence[Measured]) -> set[str]:
    """Return the cases without time for them. A case is measured as a whole or not at all."""
    return {row.case for row in rows if row.reasons.get(OURS) == NO_TIME}


def derive(rows: Sequence[Measured]) -> list[Row]:
    """Return the rows with every number that follows from their samples."""
    floors = [floor(row.samples_us.cold) for row in rows]
    asked = [
        (index, name, verdicts.Comparison(_logs(cold[name], cold[OURS]), floors[index] or 0.0))
        for index, cold in enumerate(row.samples_us.cold for row in rows)
        for name in ALTERNATIVES
        if name in cold and OURS in cold
    ]
    against: list[dict[str, Against]] = [{} for _ in rows]
    for (index, name, _), found in zip(asked, verdicts.judge([each for *_, each in asked]), strict=True):
        against[index][name] = Against(
            verdict=found.verdict,
            times_faster=float(np.exp(found.effect)),
            interval=found.interval and [float(np.exp(bound)) for bound in found.interval],
            confidence=found.confidence,
        )
    return [_derived(*each) for each in zip(rows, floors, against, strict=True)]


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


def floor(cold: dict[str, list[float]]) -> float | None:
    """Return the greatest difference of a row's twins as a log ratio, or None without twins."""
    if OURS not in cold or TWIN not in cold:
        return None
    return verdicts.noise_floor([_logs(cold[TWIN], cold[OURS])])


def verdict(us: Mapping[str, Summary], against: Mapping[str, Against]) -> str:
    """Return `ours faster`, `plain faster`, `compile faster`, or else the protocol's word.

    Ours must be faster than every alternative. An alternative must be faster than ours, and the quickest is named.
    """
    if not against:
        return ONLY_OURS if OURS in us else NOT_MEASURED
    quickest = sorted(against, key=lambda name: us[name].median)
    for name in quickest:
        if against[name].verdict == verdicts.SLOWER:
            return f"{name} faster"
    if all(each.verdict == verdicts.FASTER for each in against.values()):
        return "ours faster"
    return verdicts.NO_GAIN if against[quickest[0]].verdict == verdicts.NO_GAIN else verdicts.AMBIGUOUS


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
