"""The choice between stored results: most rungs first, then most rounds, then the newest.

Nothing here imports numpy or torch: `ladder list` and `ladder show` look into stored results, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from ladder.core import text
from ladder.core.errors import UserError
from ladder.machine import system
from ladder.plan import modes
from ladder.results import loading
from ladder.results import store as results
from ladder.results.run import Result, RungResult, TopGain

Stored = tuple[Path, Result]
CUMULATIVE, LEAVE_ONE_OUT = modes.CUMULATIVE, modes.LEAVE_ONE_OUT


def rank(result: Result) -> tuple[bool, bool, int, int, bool, str]:
    """Return what a result is compared by; the larger is shown.

    Several rungs stand before one, which shows no gain; then runs that are neither quick nor of a simulated card, more
    rungs with a number, rounds (as far as they are needed), complete runs, and the newest.
    """
    timed = sum(rung.status == "ok" for rung in result.rungs)
    rounds = min(fewest_rounds(result), results.FEWEST_ROUNDS)
    plain = not (result.protocol.quick or result.protocol.gpu_memory_limit_gb)
    return timed > 1, plain, timed, rounds, result.complete, result.started


def standing(result: Result) -> tuple[bool, bool, bool, bool, str]:
    """Return what results of several workloads and ladders are compared by: whole and quotable, then the newest."""
    several, plain, _, rounds, complete, started = rank(result)
    return several, plain, rounds >= results.FEWEST_ROUNDS, complete, started


def fewest_rounds(result: Result) -> int:
    """Return the rounds that count of the rung that has the fewest, among those with a number."""
    timed = [rung for rung in result.rungs if rung.status == "ok"]
    counts = [sum(not visit.alloc_retries for visit in rung.rounds) for rung in timed]
    return min(counts) if any(counts) else result.protocol.rounds


def mode(result: Result) -> str:
    """Return the mode of a run."""
    return result.protocol.mode


def machines_here() -> list[str]:
    """Return the names under which this machine's results are stored: its GPUs', then its CPU's. Without torch."""
    names = [gpu["name"] for gpu in system.gpus_seen()]
    return list(dict.fromkeys(map(text.make_slug, [*names, system.cpu_name()])))


def stored(folder: Path, machines: Iterable[str]) -> list[Stored]:
    """Return the readable results of these machines under ``folder``, with their files."""
    runs = []
    for path in [path for name in machines for path in sorted((folder / name).glob("*.json"))]:
        with contextlib.suppress(UserError):
            runs.append((path, loading.load_run(path)))
    return runs


def newest(found: Iterable[Stored]) -> Stored | None:
    """Return the result of highest standing with its file, None if there is none."""
    return max(found, key=lambda each: standing(each[1]), default=None)


def rung_of(result: Result, name: str) -> RungResult | None:
    """Return the rung's record if it has a number."""
    return next((rung for rung in result.rungs if rung.name == name and rung.status == "ok"), None)


def advice(result: Result, rung: RungResult) -> tuple[str, str]:
    """Return what a leave-one-out result advises about a rung, and the clock that decided.

    The step decides where it is sure, else GPU time (`plan.modes`), if the ladder without the rung is of the same
    kind. CUDA graphs save the time in which the GPU waits, so wall time alone decides about them.
    """
    whole = next((each for each in result.rungs if each.name == modes.ALL), None)
    by_gpu = whole is not None and rung.kind == whole.kind
    verdicts = (rung.gpu_verdict or "") if by_gpu else "", rung.verdict or ""
    return modes.choose_advice(*verdicts), modes.choose_clock(*verdicts)


def top_gains(result: Result) -> dict[str, TopGain]:
    """Return, from a leave-one-out result, what each rung gains at the top, and what to do about it."""
    gains = {}
    for rung in result.rungs:
        if rung.gain and rung.verdict:
            word, clock = advice(result, rung)
            gpu = (rung.gpu_gain.ratio, rung.gpu_gain.interval) if rung.gpu_gain else (None, None)
            gains[rung.name] = TopGain(rung.gain.ratio, rung.gain.interval, word, clock, *gpu)
    return gains
