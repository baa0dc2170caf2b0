"""Pure functions from the repeats of `ladder kernels` to medians, intervals, shares of a copy and verdicts.

The words are those of a ladder (`ladder.stats.verdicts`): paired log ratios over repeats, Student's t, and Holm over
all comparisons of a run. The noise floor is that of each row's own twins. Verdicts are about the cold L2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ladder.base.text import NO_TIME
from ladder.stats import estimates, verdicts

OURS, TWIN, COPY = "ours", "twin", "copy"
ALTERNATIVES = ("plain", "compile")
TEMPERATURES = ("cold", "hot")
ONLY_OURS, NOT_MEASURED = "nothing to compare with", "not measured"


def unreached(rows: Sequence[dict[str, Any]]) -> set[str]:
    """Return the cases without time for them. A case is measured as a whole or not at all."""
    return {row["case"] for row in rows if row["reasons"].get(OURS) == NO_TIME}


def derive(rows: list[dict[str, Any]]) -> None:
    """Fill in every derived number of `rows` from their samples."""
    comparisons, places = [], []
    for row in rows:
        samples = row["samples_us"]
        row["us"] = {t: {k: _summary(v) for k, v in samples[t].items() if k != TWIN} for t in TEMPERATURES}
        row["share"] = {
            name: _ratio(samples["cold"][COPY], samples["cold"][name])
            for name in (OURS, *ALTERNATIVES)
            if name in samples["cold"] and COPY in samples["cold"]
        }
        row["floor"] = floor(samples["cold"])
        row["against"] = {}
        for name in ALTERNATIVES:
            if name in samples["cold"] and OURS in samples["cold"]:
                values = _logs(samples["cold"][name], samples["cold"][OURS])
                comparisons.append(verdicts.Comparison(values, row["floor"] or 0.0))
                places.append((row, name))
    for (row, name), found in zip(places, verdicts.judge(comparisons), strict=True):
        interval = found.interval and [float(np.exp(bound)) for bound in found.interval]
        row["against"][name] = {
            "verdict": found.verdict,
            "times_faster": float(np.exp(found.effect)),
            "interval": interval,
            "confidence": found.confidence,
        }
    for row in rows:
        row["verdict"] = verdict(row)


def floor(cold: dict[str, list[float]]) -> float | None:
    """Return the greatest difference of a row's twins as a log ratio, or None without twins."""
    if OURS not in cold or TWIN not in cold:
        return None
    return verdicts.noise_floor([_logs(cold[TWIN], cold[OURS])])


def verdict(row: dict[str, Any]) -> str:
    """Return `ours faster`, `plain faster`, `compile faster`, or else the protocol's word.

    Ours must be faster than every alternative. An alternative must be faster than ours, and the quickest is named.
    """
    against, us = row["against"], row["us"]["cold"]
    if not against:
        return ONLY_OURS if OURS in us else NOT_MEASURED
    quickest = sorted(against, key=lambda name: us[name]["median"])
    for name in quickest:
        if against[name]["verdict"] == verdicts.SLOWER:
            return f"{name} faster"
    if all(each["verdict"] == verdicts.FASTER for each in against.values()):
        return "ours faster"
    return verdicts.NO_GAIN if against[quickest[0]]["verdict"] == verdicts.NO_GAIN else verdicts.AMBIGUOUS


def _summary(values: Sequence[float]) -> dict[str, Any]:
    interval = estimates.log_interval(values)
    return {"median": estimates.median(values), "interval": interval and list(interval)}


def _ratio(reference: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    ratios = [float(np.exp(value)) for value in _logs(reference, other)]
    return _summary(ratios)


def _logs(reference: Sequence[float], other: Sequence[float]) -> list[float]:
    return estimates.log_ratios(dict(enumerate(reference)), dict(enumerate(other)))
