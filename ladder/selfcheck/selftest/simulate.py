"""The measure measured: simulated ladders with known effects, judged by the functions that judge real ones.

A simulated run is eight rungs and two twins in rounds of fresh processes, in random order. Each process makes K cycles,
and the rule of `ladder.stats.verdicts` extends the rounds. Noise has the sizes seen on one H200: captured rungs differ
by 0.03% between processes and by 0.03% inside one. Eager rungs differ by 0.5% and 0.7%, with outliers of +5%. Medians
of two cycles then differ by 0.7%. The shape of the noise comes in five families.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.machine import system
from ladder.results import store as results
from ladder.stats import estimates, verdicts

RUNGS, CYCLES, OUTLIER = 8, 2, 0.05
DRIFT = 0.02  # of a whole run: a card that warms up


@dataclass(frozen=True)
class Kind:
    """The size of the noise, as log ratios."""

    name: str
    process: float  # sd between processes
    cycle: float  # sd inside one
    outliers: float  # share of cycles that are OUTLIER late


KINDS = {
    "captured": Kind("captured", 0.0003, 0.0003, 0.0),
    "eager": Kind("eager", 0.005, 0.007, 0.03),
}

Noise = Callable[[np.random.Generator, int, float], np.ndarray]


def _normal(rng: np.random.Generator, visits: int, sd: float) -> np.ndarray:
    return rng.normal(0, sd, visits)


def _heavy(rng: np.random.Generator, visits: int, sd: float) -> np.ndarray:
    return rng.standard_t(3, visits) * sd / np.sqrt(3)  # t with 3 degrees has variance 3


def _autocorrelated(rng: np.random.Generator, visits: int, sd: float) -> np.ndarray:
    """Draw AR(1) noise of 0.8 from visit to visit: a neighbour on the machine who stays for a while."""
    fresh, values = rng.normal(0, sd, visits), np.empty(visits)
    state = rng.normal(0, sd)
    for index in range(visits):
        state = 0.8 * state + 0.6 * fresh[index]
        values[index] = state
    return values


def _drifting(rng: np.random.Generator, visits: int, sd: float) -> np.ndarray:
    """Draw normal noise on a rise of 2% in five rounds, like that of a temperature."""
    warm = 1 - np.exp(-np.arange(visits) / (2 * (RUNGS + 2)))
    return rng.normal(0, sd, visits) + DRIFT * warm


def _bimodal(rng: np.random.Generator, visits: int, sd: float) -> np.ndarray:
    """Draw two kinds of process, one in four of the slow kind (an algorithm chosen, a page placed)."""
    slow = rng.random(visits) < 0.25
    return (slow - 0.25) * sd * 0.95 / np.sqrt(0.1875) + rng.normal(0, 0.31 * sd, visits)


FAMILIES: dict[str, Noise] = {
    "normal": _normal,
    "heavy tail": _heavy,
    "autocorrelated": _autocorrelated,
    "drifting": _drifting,
    "bimodal": _bimodal,
}


@dataclass(frozen=True)
class Run:
    """One simulated run as judged: the verdicts of rungs 1 to 7 against the one before, floor, rounds it took."""

    words: list[str]
    floor: float
    rounds: int


def simulate(rng: np.random.Generator, kind: Kind, family: Noise, slowdown: float = 0.0, at: int = 4) -> Run:
    """Simulate a run in which rung `at` and all above it are slower by `slowdown` (a log ratio).

    All rungs are of one kind here, so one pair of twins gives the floor, as in a real run of two kinds.
    """
    visits = RUNGS + 2
    order = rng.permuted(np.tile(np.arange(visits), (verdicts.MOST_ROUNDS, 1)), axis=1)
    processes = np.empty(order.shape)
    np.put_along_axis(processes, order, family(rng, order.size, kind.process).reshape(order.shape), 1)
    cycles = processes[:, :, None] + rng.normal(0, kind.cycle, (*order.shape, CYCLES))
    cycles += OUTLIER * (rng.random(cycles.shape) < kind.outliers)
    times = np.median(cycles, axis=2)
    times[:, at:RUNGS] += slowdown
    top, twin = RUNGS - 1, RUNGS + 1
    times[:, twin] += slowdown
    rounds = verdicts.LEAST_ROUNDS
    while True:
        seen = times[:rounds]
        floor = verdicts.noise_floor([seen[:, top] - seen[:, twin]])
        comparisons = [verdicts.Comparison(seen[:, i - 1] - seen[:, i], floor) for i in range(1, RUNGS)]
        if not verdicts.wants_rounds(comparisons):
            return Run([verdict.verdict for verdict in verdicts.judge(comparisons)], floor, rounds)
        rounds += 1


# Share of planted slowdowns that must be found in the noise as it was measured (the normal family); None: reported.
PROMISED: dict[str, dict[float, float | None]] = {
    "captured": {0.005: 0.95, 0.01: 0.99, 0.02: 1.0, 0.05: 1.0},
    "eager": {0.02: None, 0.05: 0.80},
}
CALLED = (verdicts.FASTER, verdicts.SLOWER)


class Same(TypedDict):
    """Outcomes of runs of identical programs."""

    runs: int
    false: int  # runs in which any program was called faster or slower
    ambiguous: float  # share of the verdicts
    noise_floor: float
    rounds: float  # mean


class Planted(TypedDict):
    """Outcomes of runs with one planted slowdown."""

    slowdown: float
    runs: int
    found: float  # share of the runs
    wrong_sign: int
    false: int  # runs with a false verdict elsewhere
    promised: float | None


class Row(TypedDict):
    """Outcomes of one kind of rung in one family of noise."""

    kind: str
    family: str
    same: Same
    planted: list[Planted]


class Table(TypedDict):
    """The outcomes of all simulated runs, with a line for each promise that was not kept."""

    seed: int
    table: list[Row]
    broken: list[str]
    seconds: float


class Found(Table):
    """The result of a simulation, as its file has it."""

    schema: int
    what: str
    machine: Mapping[str, Any]  # `ladder.machine.system.facts`


def false_verdicts(kind: str, family: str, runs: int = 300, seed: int = 0) -> Same:
    """Count the runs of eight identical programs in which any was called faster or slower."""
    rng = np.random.default_rng([seed, runs])
    done = [simulate(rng, KINDS[kind], FAMILIES[family]) for _ in range(runs)]
    words = [word for run in done for word in run.words]
    return {
        "runs": runs,
        "false": sum(any(word in CALLED for word in run.words) for run in done),
        "ambiguous": words.count(verdicts.AMBIGUOUS) / len(words),
        "noise_floor": estimates.median([run.floor for run in done]),
        "rounds": float(np.mean([run.rounds for run in done])),
    }


def detection(kind: str, family: str, slowdown: float, runs: int = 100, seed: int = 0) -> Planted:
    """Return how often one planted slowdown was found, and how often another verdict was false."""
    rng, at = np.random.default_rng([seed, runs, round(1e4 * slowdown)]), 4
    done = [simulate(rng, KINDS[kind], FAMILIES[family], float(np.log1p(slowdown)), at) for _ in range(runs)]
    elsewhere = [run.words[: at - 1] + run.words[at:] for run in done]
    return {
        "slowdown": slowdown,
        "runs": runs,
        "found": sum(run.words[at - 1] == verdicts.SLOWER for run in done) / runs,
        "wrong_sign": sum(run.words[at - 1] == verdicts.FASTER for run in done),
        "false": sum(any(word in CALLED for word in words) for words in elsewhere),
        "promised": PROMISED[kind][slowdown] if family == "normal" else None,
    }


def measure(runs: int = 300, planted: int = 100, seed: int = 0) -> Table:
    """Simulate each kind of rung in each family of noise."""
    begin, table, broken = time.perf_counter(), [], []
    for kind in KINDS:
        for family in FAMILIES:
            row: Row = {
                "kind": kind,
                "family": family,
                "same": false_verdicts(kind, family, runs, seed),
                "planted": [detection(kind, family, size, planted, seed) for size in PROMISED[kind]],
            }
            table.append(row)
            broken += _broken(row)
    return {"seed": seed, "table": table, "broken": broken, "seconds": round(time.perf_counter() - begin, 1)}


def _broken(row: Row) -> list[str]:
    where, lines = f"{row['kind']}, {row['family']}", []
    if row["same"]["false"]:
        lines.append(
            f"{where}: {row['same']['false']} of {row['same']['runs']} runs of twins called different"
        )
    for seen in row["planted"]:
        size = f"{where}: a slowdown of {100 * seen['slowdown']:g}%"
        if seen["wrong_sign"]:
            lines.append(f"{size} was called faster {seen['wrong_sign']} times")
        if seen["promised"] is not None and seen["found"] < seen["promised"]:
            lines.append(f"{size} was found in {seen['found']:.0%}, promised are {seen['promised']:.0%}")
    return lines


def run(folder: Path, device: str) -> tuple[Found, Path]:
    """Measure and write `folder`/<machine>.json. Return the result and its file. Raises UserError."""
    facts = system.facts(device)
    found: Found = {"schema": 1, "what": "selftest", "machine": facts, **measure()}
    path = results.place(folder / f"{texts.slug(facts['name'])}.json", dict(found))
    try:
        results.write(path, dict(found))
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None
    return found, path


def text(found: Table) -> str:
    """Return the table for people: twins called different, and slowdowns found, by kind of rung and noise."""
    runs, planted = found["table"][0]["same"]["runs"], found["table"][0]["planted"][0]["runs"]
    lines = [
        f"Simulated runs of {RUNGS} rungs: {runs} of identical ones, {planted} with each planted slowdown.",
        "In brackets what is promised, in noise as it was measured (normal).",
    ]
    for kind, size in KINDS.items():
        rows = [row for row in found["table"] if row["kind"] == kind]
        spread = f"{100 * size.process:g}% between processes, {100 * size.cycle:g}% inside"
        lines += ["", f"{kind} rungs ({spread})"]
        heads = [f"{100 * seen['slowdown']:g}% found" for seen in rows[0]["planted"]]
        lines.append(_line(["noise", "false verdicts", *heads, "wrong sign", "noise floor", "rounds"]))
        for row in rows:
            found_in = [_share(seen["found"], seen["promised"]) for seen in row["planted"]]
            same, wrong = row["same"], sum(seen["wrong_sign"] for seen in row["planted"])
            cells = [row["family"], f"{same['false']} (0)", *found_in, f"{wrong} (0)"]
            lines.append(_line([*cells, f"{100 * same['noise_floor']:.2f}%", f"{same['rounds']:.1f}"]))
    kept = found["broken"] or ["everything promised was kept"]
    return "\n".join([*lines, "", *kept, f"{found['seconds']} s"])


def _share(found: float, promised: float | None) -> str:
    return f"{found:.0%}" + ("" if promised is None else f" ({promised:.0%})")


def _line(cells: list[str]) -> str:
    return f"  {cells[0]:<15}" + "".join(f"{cell:>15}" for cell in cells[1:])
