"""Simulated ladders with known effects, judged by the functions that judge real ones: coverage, false verdicts, power.

A simulated run is eight rungs and two twins in generations of live processes, as `ladder.stats.nested` takes them. In
most families of noise all rungs are of one kind; noise has one shape, one size, or one exception. `real` draws each
rung's noise from its own residuals in a committed run. `measured` is made of what an H100 in a noisy virtual machine
showed:

- kinds: five eager rungs lie below three captured ones; each kind has a twin.
- layout: half of a process' variance belongs to the address layout, which a rung shares with its twin.
- sizes: GPU time differs by 0.1 to 0.3% between processes, wall time by 4 to 10% inside an eager process.
- drift: eager rungs share a drift of 20% between generations.
- passes: some visits are missing.

    python -m tests.support.simulation --runs 1000    print the table of docs/protocol.md
"""

import argparse
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ladder.core.paths import ROOT
from ladder.results import derive, loading
from ladder.stats import answers, estimates, nested

RUNGS, CYCLES = 8, 2
DRIFT = 0.02  # of a whole run: a card that warms up


@dataclass(frozen=True)
class Kind:
    """A kind of rung in wall or GPU time: the size of its noise as log ratios, and how a run measures it."""

    name: str
    process: float  # sd between processes
    cycle: float  # sd inside a process
    passes: int = CYCLES
    generations: int | None = None  # None: as many as the rule asks for
    gpu: bool = False

    @property
    def title(self) -> str:
        """The name in tables."""
        often = "generations by rule" if self.generations is None else f"{self.generations} generations"
        return f"{self.name}, {often}"


# The two of `ladder bench-compare` are noise of an H200 without neighbours.
KINDS = {
    "captured": Kind("captured", 0.0003, 0.0003),
    "eager": Kind("eager", 0.005, 0.007),
}
SETTINGS = (
    Kind("GPU time", 0.001, 0.0005, generations=3, gpu=True),
    Kind("GPU time", 0.002, 0.0005, generations=8, gpu=True),
    Kind("GPU time", 0.003, 0.0005, gpu=True),
    Kind("captured wall", 0.0005, 0.002, passes=6),
    Kind("eager wall", 0.007, 0.07, passes=4, generations=5),
)
BY_RULE = Kind("GPU time", 0.001, 0.0005, gpu=True)
MEASURED, REAL = "measured", "real"
MIXED = (MEASURED, REAL)  # families with eager and captured rungs
RUN = ROOT / "results/ladder/nvidia-h100-80gb-hbm3/article-article-20261128T061724Z.json"  # of `real`

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
# How many times as noisy some rungs are.
NOISIER = {"one rung 3x": {3: 3.0}, "one rung 5x": {3: 5.0}, "two neighbours 4x": {2: 4.0, 3: 4.0}}
OUTLIERS = ("one outlier generation", "one outlier process")
OUTLIER = 8.0  # standard deviations
ALL_FAMILIES = (*FAMILIES, *OUTLIERS, *NOISIER, REAL, MEASURED)
IN_TIME = ("autocorrelated", "drifting")  # noise of the moment; the others are of processes
TWINS = ((0, RUNGS), (RUNGS - 1, RUNGS + 1))
NAMES = tuple(map(str, range(RUNGS + len(TWINS))))
TWIN_NAMES = [(NAMES[rung], NAMES[twin]) for rung, twin in TWINS]
EAGER = 5  # of the rungs in the measured family


@dataclass(frozen=True)
class Run:
    """One simulated run as judged. `words` and `inside` are of rungs 1 to 7 against the rung before."""

    words: list[str]
    inside: list[bool]  # whether the plain 95% interval holds the truth
    floor: float
    generations: int


def simulate(rng: np.random.Generator, kind: Kind, family: str, slowdown: float = 0.0, at: int = 4) -> Run:
    """Simulate a run in which rung `at` and all above it are slower by `slowdown` (a log ratio)."""
    most = kind.generations or nested.MOST_GENERATIONS
    level = np.where(np.arange(RUNGS) >= at, slowdown, 0.0)
    level = np.append(level, [level[0], level[-1]])
    captured = np.full(len(level), kind.name.startswith("captured"))
    if family in MIXED:
        captured = np.isin(np.arange(len(level)), [*range(EAGER, RUNGS), RUNGS + 1])
    kinds = {name: "captured" if each else "eager" for name, each in zip(NAMES, captured, strict=True)}
    draw = {MEASURED: _draw_measured, REAL: _draw_real}.get(family)
    times = (draw(rng, kind, captured) if draw else _drawn(rng, kind, family)) + level
    values: dict[str, dict[int, float]] = {name: {} for name in NAMES}
    pairs = list(itertools.pairwise(NAMES[:RUNGS]))
    for generation in range(most):
        for group in set(kinds.values()):
            samples = {
                name: [(index, value) for index, value in enumerate(column) if value == value]
                for name, column in zip(NAMES, times[generation].T.tolist(), strict=True)
                if kinds[name] == group
            }
            for name, value in nested.generation_values(samples).items():
                values[name][generation] = value
        if kind.generations is None and generation + 1 >= nested.LEAST_GENERATIONS:
            of = answers.make_quantity(values, kinds, TWIN_NAMES, is_gpu=kind.gpu)
            if not answers.wants_generations(generation + 1, [of.difference(*pair) for pair in pairs]):
                break
    of = answers.make_quantity(values, kinds, TWIN_NAMES, is_gpu=kind.gpu)
    inside = []
    for pair in pairs:
        found = of.difference(*pair)
        assert found is not None
        half = estimates.t_quantile(0.975, found.freedom) * found.error
        truth = -slowdown if pair[1] == NAMES[at] else 0.0
        inside.append(bool(abs(found.mean - truth) <= half))
    own = "captured" if kind.name.startswith("captured") else kinds[NAMES[0]]
    floor = of.floors(len(pairs))[own].floor
    return Run([each.verdict for each in of.answers(pairs)], inside, floor, generation + 1)


def _drawn(rng: np.random.Generator, kind: Kind, family: str) -> np.ndarray:
    """Return noise of one family, (generations, passes, rungs and twins), for the most generations."""
    shape = (kind.generations or nested.MOST_GENERATIONS, kind.passes, RUNGS + 2)
    draw = _normal if family in IN_TIME else FAMILIES.get(family, _normal)
    processes = draw(rng, shape[0] * shape[2], kind.process).reshape(shape[0], 1, shape[2])
    for rung, times in NOISIER.get(family, {}).items():
        processes[:, :, rung] *= times
    if family in OUTLIERS:
        hit = slice(None) if family == "one outlier generation" else rng.integers(shape[2])
        processes[rng.integers(shape[0]), 0, hit] += OUTLIER * kind.process
    noise = processes + rng.normal(0, kind.cycle, shape)
    if kind.gpu:  # a process is profiled for all its cycles in one visit
        visits = (shape[0], 1, shape[2])
    else:
        visits, noise = shape, noise + rng.normal(0, kind.cycle, (*shape[:2], 1))
    if family in IN_TIME:
        order = rng.permuted(np.tile(np.arange(shape[2]), (*visits[:2], 1)), axis=2)
        moments = np.empty(visits)
        seen = FAMILIES[family](rng, moments.size, kind.process).reshape(visits)
        np.put_along_axis(moments, order, seen, axis=2)
        noise = noise + moments
    return noise


def _draw_measured(rng: np.random.Generator, kind: Kind, captured: np.ndarray) -> np.ndarray:
    """Return noise as it was measured, of the same shape. A visit that is missing is NaN."""
    generations, rungs = kind.generations or nested.MOST_GENERATIONS, RUNGS + 2
    if kind.gpu:
        process, cycle = rng.uniform(0.001, 0.003, rungs), np.full(rungs, 0.0005)
        drift = np.tile(rng.normal(0, 0.003, (generations, 1)), rungs)
    else:
        process = np.where(captured, 0.001, 0.007)
        cycle = np.where(captured, rng.uniform(0.0006, 0.005, rungs), rng.uniform(0.04, 0.10, rungs))
        drift = np.where(captured, 0.002, 0.1) * rng.normal(0, 1, (generations, 1))
    layout, own = (rng.normal(0, 1, (generations, rungs)) for _ in range(2))
    for rung, twin in TWINS:
        process[twin], layout[:, twin] = process[rung], layout[:, rung]
    shape = (generations, kind.passes, rungs)
    noise = (drift + process * (layout + own) / np.sqrt(2))[:, None] + cycle * rng.normal(0, 1, shape)
    if not kind.gpu:
        noise += cycle.mean(where=captured) * captured * rng.normal(0, 1, (*shape[:2], 1))
        noise += cycle.mean(where=~captured) * ~captured * rng.normal(0, 1, (*shape[:2], 1))
        lost = rng.random(shape) < 0.05
        lost[:, 0] = False
        noise[lost] = np.nan
    return noise


@functools.cache
def _read_residuals(gpu: bool) -> np.ndarray:
    """Return what is left of each rung's and twin's logarithms in `RUN` beside rung and generation, (rungs, values)."""
    result = loading.load_run(RUN)
    values = derive.gpu_values(result) if gpu else derive.wall_values(result)
    names = [rung.name for rung in result.rungs] + [twin.name for twin in result.twins]
    table = np.log([[values[name][number] for number in sorted(values[name])] for name in names])
    table -= table.mean(axis=1, keepdims=True)
    for captured in (slice(EAGER), slice(EAGER, RUNGS)):  # the generations of a kind move together
        table[captured] -= table[captured].mean(axis=0)
    table[RUNGS:] = table[[0, RUNGS - 1]]
    return table * math.sqrt(table.shape[1] / (table.shape[1] - 1))


def _draw_real(rng: np.random.Generator, kind: Kind, captured: np.ndarray) -> np.ndarray:
    """Return noise of which each rung draws from its own residuals; all cycles of a process share it."""
    residuals = _read_residuals(kind.gpu)
    generations = kind.generations or nested.MOST_GENERATIONS
    drawn = rng.integers(residuals.shape[1], size=(generations, len(residuals)))
    return np.repeat(residuals[np.arange(len(residuals)), drawn][:, None], kind.passes, axis=1)


CALLED = (answers.FASTER, answers.SLOWER)


@dataclass(frozen=True)
class Same:
    """Outcomes of runs of identical programs."""

    false: int  # runs in which any program was called faster or slower
    ambiguous: float  # share of the verdicts
    covered: float  # share of the 95% intervals that hold the truth
    least: float  # the same of the rung with the smallest share, and of that with the largest
    most: float
    floor: float  # noise floor, median
    generations: float  # mean


@dataclass(frozen=True)
class Planted:
    """Outcomes of runs with one planted slowdown."""

    found: float  # share of the runs
    wrong_sign: int
    false: int  # runs with a false verdict elsewhere


def _of_kind(kind: Kind, family: str) -> slice:
    """Return which comparisons count: where kinds are mixed the captured rungs or the eager ones, as the kind is."""
    if family not in MIXED or kind.gpu:
        return slice(None)
    return slice(EAGER - 1, None) if kind.name.startswith("captured") else slice(EAGER - 1)


def false_verdicts(kind: Kind, family: str, runs: int = 300, seed: int = 0) -> Same:
    """Count the runs of eight identical programs in which any was called faster or slower."""
    rng, counted = np.random.default_rng([seed, runs]), _of_kind(kind, family)
    done = [simulate(rng, kind, family) for _ in range(runs)]
    words = [word for run in done for word in run.words[counted]]
    inside = np.mean([run.inside[counted] for run in done], axis=0)
    return Same(
        sum(any(word in CALLED for word in run.words[counted]) for run in done),
        words.count(answers.AMBIGUOUS) / len(words),
        float(inside.mean()),
        float(inside.min()),
        float(inside.max()),
        estimates.median([run.floor for run in done]),
        float(np.mean([run.generations for run in done])),
    )


def detection(kind: Kind, family: str, slowdown: float, runs: int = 300, seed: int = 0) -> Planted:
    """Return how often one planted slowdown was found, and how often another verdict was false."""
    rng, counted = np.random.default_rng([seed, runs, round(1e4 * slowdown)]), _of_kind(kind, family)
    at = EAGER + 1 if kind.name.startswith("captured") else EAGER - 1  # below it is a rung of its kind
    done = [simulate(rng, kind, family, float(np.log1p(slowdown)), at) for _ in range(runs)]
    elsewhere = [["" if i == at - 1 else word for i, word in enumerate(run.words)][counted] for run in done]
    return Planted(
        sum(run.words[at - 1] == answers.SLOWER for run in done) / runs,
        sum(run.words[at - 1] == answers.FASTER for run in done),
        sum(any(word in CALLED for word in words) for words in elsewhere),
    )


def main() -> None:
    """Print the table: each family in GPU time and captured wall time, generations by the rule of a run."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    print("| time | noise | false verdicts | coverage of each rung | 1% found | generations |")
    print("|---|---|---:|---:|---:|---:|")
    for kind in (SETTINGS[0], BY_RULE, SETTINGS[3]):
        for family in ALL_FAMILIES:
            same, planted = false_verdicts(kind, family, runs), detection(kind, family, 0.01, runs)
            covered = f"{100 * same.least:.1f} to {100 * same.most:.1f}%"
            print(
                f"| {kind.title} | {family} | {same.false} of {runs} | {covered} | {100 * planted.found:.1f}% "
                f"| {same.generations:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
