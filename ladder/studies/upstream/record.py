"""The records of `ladder upstream`, which are the schema of its file, and pure functions that derive its figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ladder.base.records import Absent, needed, optional, plain, record, rule_of
from ladder.base.rules import Problem, Rule, fields, items, mapping, maybe, number, one_of, pattern
from ladder.machine import environment, neighbours
from ladder.results import derive as deriving
from ladder.results import store as results
from ladder.results import values as v
from ladder.results.types import Inspection, Parity, Plain, Receipt, Round, RunGpu, StudyHeader
from ladder.stats import estimates
from ladder.studies.upstream import source

UPSTREAM, PATCHED, OURS = "upstream", "patched", "ours"
# The patched error may be so many times the unpatched one. A few activations whose sign FP16 flips make errors of one
# input differ by factors. So an error counts as too large if it is for every input, or by far in the median.
TIMES_UNPATCHED, TIMES_MEDIAN = 1.5, 3.0
ROUNDING = 1e-6  # an error that is FP32's rounding

THEIR_SETTINGS = fields(
    {},
    {
        **dict.fromkeys(("cuda_ops", "fast_double_backward", "cudnn_benchmark"), v.FLAG),
        **dict.fromkeys(("fp16_resolutions", "loader_workers", "parameters_G", "parameters_D"), v.COUNT),
        **dict.fromkeys(("gomp_spincount", "kmp_blocktime"), v.SCALAR),
    },
)
THEIRS = {"rung": one_of(None), "recipe": one_of(None), "settings": maybe(THEIR_SETTINGS)}
BY_SIDE: dict[str, dict[str, Rule]] = {
    UPSTREAM: THEIRS,
    PATCHED: THEIRS,
    OURS: {"rung": v.PART, "recipe": v.RECIPE, "settings": maybe(v.SETTINGS)},
}


@record
class Program:
    """NVIDIA's step or ours: its rounds, and the figures that follow from them. NVIDIA's has no rung or recipe."""

    side: str = needed(one_of(UPSTREAM, PATCHED, OURS))
    rung: str | None = needed(v.PART)
    recipe: Plain | None = needed(v.OBJECT)
    status: str = needed(v.STATUS)
    reason: str | None = needed(v.TEXT)
    settings: Plain | None = needed(v.OBJECT)
    rounds: list[Round] = needed(items(rule_of(Round), 1000))
    step_ms: float | None = needed(v.MS)
    interval_ms: list[float] | None = needed(v.PAIR)


def PROGRAM(value: Any) -> Problem | None:
    """Check a program, and what its side allows of its rung, recipe and settings."""
    if problem := rule_of(Program)(value):
        return problem
    for key, rule in BY_SIDE[value["side"]].items():
        if problem := rule(value[key]):
            return f".{key}{problem[0]}", problem[1]
    return None


@record
class Source:
    """The clone: its module of networks, and a digest of its sources."""

    networks: str = needed(one_of(*source.NETWORKS))
    digest: str = needed(pattern(v.DIGEST, "a digest of 16 digits"))


@record
class Protocol:
    """How both steps were timed, and why the figures must not be quoted. `rounds` are the finished rounds."""

    rounds: int = needed(v.COUNT)
    cycles: int = needed(v.COUNT)
    seed: int = needed(v.COUNT)
    inspected: bool = needed(v.FLAG)
    notes: list[str] = needed(v.NOTES)


@record
class Ratio:
    """NVIDIA's time over ours, or over that of the patched clone, paired by round."""

    median: float = needed(number(1e-9, 1e9))
    interval: list[float] | None = needed(v.PAIR)


ERROR = number(0, 1e30)


@record
class PhaseErrors:
    """Relative errors of a phase's gradients against FP64: of all together, and the mean over tensors.

    Each is a median over several inputs. `least` is the smallest ratio of the patched error to the unpatched one, of
    any input.
    """

    unpatched: float = needed(ERROR)
    patched: float = needed(ERROR)
    least: float = needed(ERROR)
    unpatched_tensors: float = needed(number(0, 1))
    patched_tensors: float = needed(number(0, 1))
    least_tensors: float = needed(ERROR)

    def problem(self) -> str | None:
        """Return one line if a patched error is too large, else None."""
        for words, theirs, ours, least in (
            ("", self.unpatched, self.patched, self.least),
            (" over tensors", self.unpatched_tensors, self.patched_tensors, self.least_tensors),
        ):
            times = TIMES_UNPATCHED if least > TIMES_UNPATCHED else TIMES_MEDIAN
            if not ours <= max(times * theirs, ROUNDING):
                return f"error{words} {ours:.2g}, unpatched {theirs:.2g}"
        return None


@record
class PatchedParity:
    """The parity of the patched clone: both clones' gradients against FP64, of the same weights, inputs and noise."""

    verdict: str = needed(one_of("ok", "failed: parity"))
    reason: str | None = needed(v.TEXT)
    batch: int = needed(v.COUNT)
    phases: dict[str, PhaseErrors] = needed(mapping(v.PHASE, rule_of(PhaseErrors), 4))

    def problem(self) -> str | None:
        """Return one line that names a phase whose error is too large, or None."""
        found = ((phase, each.problem()) for phase, each in self.phases.items())
        return next((f"{phase}: {problem}" for phase, problem in found if problem), None)


@record
class PhaseTime:
    """The GPU time of a phase with its update in each of its profiled runs, and its number of kernels."""

    gpu_ms: list[float] = needed(items(v.MS, 100, least=1))
    kernels: float = needed(number(0, 1e7))


@record
class Patched:
    """The patched clone beside the clone as it is."""

    digest: str = needed(pattern(v.DIGEST, "a digest of 16 digits"))  # of the drop-in files
    parity: PatchedParity | None = needed(rule_of(PatchedParity))
    phases: dict[str, dict[str, PhaseTime]] | None = needed(
        mapping(one_of(UPSTREAM, PATCHED), mapping(v.PHASE, rule_of(PhaseTime), 4), 2)
    )
    ratio: Ratio | None = needed(rule_of(Ratio))
    gpu_ratio: Ratio | None = needed(rule_of(Ratio))


@record
class Result(StudyHeader):
    """A result of `ladder upstream`: NVIDIA's program, the patched one if it was asked for, then ours."""

    kind: str = needed(one_of("upstream"))
    source: Source = needed(rule_of(Source))
    protocol: Protocol = needed(rule_of(Protocol))
    programs: list[Program] = needed(items(PROGRAM, 3, least=2))
    parity: Parity | None = needed(rule_of(Parity))
    receipts: dict[str, Receipt] | None = needed(mapping(v.PART, rule_of(Receipt), 64))
    inspection: Inspection | None = needed(rule_of(Inspection))
    ratio: Ratio | None = needed(rule_of(Ratio))
    gpu: RunGpu | None = needed(rule_of(RunGpu))
    patched: Patched | Absent = optional(rule_of(Patched))

    def program(self, side: str) -> Program:
        """Return the program of this side."""
        return next(each for each in self.programs if each.side == side)


def sides(patched: bool) -> list[str]:
    """Return the sides of a result's programs, in order."""
    return [UPSTREAM, PATCHED, OURS] if patched else [UPSTREAM, OURS]


def derive(result: Result) -> Result:
    """Return the result with medians, intervals and our speedup, as its rounds have them."""
    times = {program.side: _medians(program) for program in result.programs}
    patched = result.patched
    if patched:
        ratio = ratio_of(times[UPSTREAM], times[PATCHED])
        patched = replace(patched, ratio=ratio, gpu_ratio=gpu_ratio(result, PATCHED))
    return replace(
        result,
        programs=[_derived(program, list(times[program.side].values())) for program in result.programs],
        ratio=ratio_of(times[UPSTREAM], times[OURS]),
        protocol=replace(result.protocol, notes=notes(result)),
        patched=patched,
    )


def ratio_of(reference: dict[int, float] | None, other: dict[int, float] | None) -> Ratio | None:
    """Return the factor between the times of two programs, by round."""
    reference, other = reference or {}, other or {}
    interval = estimates.log_interval(estimates.paired_ratios(reference, other))
    factor = estimates.speedup(reference, other)
    return Ratio(median=factor, interval=interval and list(interval)) if factor else None


def gpu_times(result: Result) -> dict[str, dict[int, float]]:
    """Return by side the GPU time of a step in ms of each round that has one."""
    return deriving.gpu_times({program.side: program for program in result.programs})


def gpu_ms(result: Result) -> dict[str, float]:
    """Return by side the median GPU time of a step in ms."""
    return {side: estimates.median([*values.values()]) for side, values in gpu_times(result).items()}


def gpu_ratio(result: Result, side: str = OURS) -> Ratio | None:
    """Return how many times less GPU time a side's step takes than NVIDIA's, by round; None if one has no GPU time."""
    return ratio_of(*map(gpu_times(result).get, (UPSTREAM, side)))


def _derived(program: Program, times_ms: list[float]) -> Program:
    interval = estimates.log_interval(times_ms)
    return replace(program, step_ms=estimates.median(times_ms), interval_ms=interval and list(interval))


def _medians(program: Program) -> dict[int, float]:
    """Return the median step time in ms of each round that counts."""
    return {each.round: estimates.median(each.samples_ms) for each in counted(program)}


def counted(program: Program) -> list[Round]:
    """Return the rounds without allocator retries."""
    return [each for each in program.rounds if not each.alloc_retries]


def notes(result: Result) -> list[str]:
    """Return the reasons why the figure must not be quoted, if any."""
    fewest = min(len(program.rounds) for program in result.programs)
    unseen = ["neither parity nor receipts of ours were asked for: not to be quoted"]
    rounds = [plain(each) for program in result.programs for each in program.rounds]
    also = neighbours.marks(rounds) + unseen * (not result.protocol.inspected)
    also += environment.said(result.environment or None)
    return results.cautions(result.machine.device, fewest, result.dirty, result.complete, also)
