"""The lines that say how fine a run can see: noise floors and resolutions of the step's time and of GPU time."""

from __future__ import annotations

from collections.abc import Mapping

from ladder.base.text import difference, plain
from ladder.results import values
from ladder.results.run import Noise, Result
from ladder.results.values import TOO_FEW

KINDS = {
    "captured": "captured rungs",
    "eager": "eager rungs",
    "host": "host-bound rungs",  # the last two are those of older files
    "gpu": "GPU-bound rungs",
}
OLDER = ("host", "gpu")


def of_step(result: Result) -> str:
    """Return the line of the step's time: `noise floor 1.8% (eager rungs, smallest detectable difference 2.9%)`.

    A run without floors says why it has none.
    """
    found = result.noise or {}
    if not (found.keys() <= set(OLDER)):
        return f"step time: {_floors(found, result.machine.device)}"
    if any(rung.verdict == TOO_FEW for rung in result.rungs):
        return "; ".join(map(plain, _lost_twins(result)))  # the rows say that generations are too few
    if found:
        return f"{_floors(found, result.machine.device)}; what lies inside reads no measurable gain"
    several = sum(rung.status == "ok" for rung in result.rungs) > 1
    return f"no verdicts: {_no_twins(result)}, so the noise is unknown" if several else ""


def of_gpu_time(result: Result) -> str:
    """Return the line of GPU time: `GPU time: noise floor 0.3% (captured rungs, ...)`; "" where there is none."""
    return f"GPU time: {_floors(result.gpu_noise, result.machine.device)}" if result.gpu_noise else ""


def _floors(found: Mapping[str, Noise], device: str) -> str:
    said = []
    for kind in (each for each in KINDS if each in found):
        seen = found[kind].resolution
        resolved = f", smallest detectable difference {difference(seen)}" if seen else ""
        of = KINDS[kind] if device == "cuda" else "CPU"
        said.append(f"{difference(found[kind].floor)} ({of}{resolved})")
    return f"noise floor {'; '.join(said)}"


def _no_twins(result: Result) -> str:
    """Return why nothing is known of the noise, where no floor could be made of the twins."""
    timed, why = [rung.name for rung in result.rungs if rung.status == "ok"], _lost_twins(result)
    for twin in result.twins or []:
        if twin.status in values.OUT:
            continue
        if twin.rounds and twin.of not in timed:
            why.append(f"{twin.of} has a twin and no number itself")
        elif twin.rounds:
            why.append(f"the twin of {twin.of} has too few generations")
    return "; ".join(map(plain, why)) or "no twin was measured"


def _lost_twins(result: Result) -> list[str]:
    """Return why each twin that is out has no number."""
    return [
        f"the twin of {twin.of} is out ({twin.status}{f': {twin.reason}' if twin.reason else ''})"
        for twin in result.twins or []
        if twin.status in values.OUT
    ]
