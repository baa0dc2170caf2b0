"""What a file of `ladder upstream` holds of each case, and the figures that follow from it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from msgspec import Meta

from ladder.base.protocol import IN_ORDER
from ladder.core.options import Seed, option
from ladder.core.records import (
    Amount,
    Count,
    Digest,
    Fields,
    Identifier,
    Name,
    Record,
    Samples,
    Share,
    Text,
    between,
    size,
)
from ladder.results import derive as deriving
from ladder.results.derive import judge_parity
from ladder.results.file import Phase, Round, Status
from ladder.results.run import Inspection, JudgedParity, Parity, Receipts, RunGpu
from ladder.stats import estimates
from ladder.studies import frame
from ladder.studies.frame import StudyFile

UPSTREAM, PATCHED, OURS = "upstream", "patched", "ours"
PROOF, ERRORS, PHASES = "ours: parity and receipts", "patched: gradients", "patched: GPU time of each phase"
GENERATION = "generation "
BATCH = 8  # at most, of the gradients: FP64 takes four times the memory of FP16
PATIENCE = 1800.0  # seconds of an examination, which sends no sign of life
# The patched error may be so many times the unpatched one. A few activations whose sign FP16 flips make errors of one
# input differ by factors. So an error counts as too large if it is for every input, or by far in the median.
TIMES_UNPATCHED, TIMES_MEDIAN = 1.5, 3.0
ROUNDING = 1e-6  # an error that is FP32's rounding
Side = Literal["upstream", "patched", "ours"]


# --- what a file holds ------------------------------------------------------------------------------------------------


class Options(frame.Options):
    """The options of `ladder upstream`."""

    clone: Annotated[str | None, option("The clone.", argument=True, metavar="CLONE")] = None
    ladder: Annotated[str, option("The ladder whose top is measured.", metavar="NAME|FILE")] = "full"
    generations: (
        Annotated[
            int,
            Meta(ge=1, le=100),
            option(
                "Generations: fresh processes of each side, including those of --resume. [default: 5; CPU: 1]",
                flags=["--generations", "--rounds"],
            ),
        ]
        | None
    ) = None
    cycles: (
        Annotated[
            int, Meta(ge=1, le=1000), option("Timed 16-step cycles of each process. [default: 2; CPU: 1]")
        ]
        | None
    ) = None
    inspect: Annotated[bool, option("Check parity and receipts of our step before it is timed.")] = True
    patched: Annotated[
        bool,
        option(
            "Also measure a copy of the clone with the files of `ladder export --like nvidia` in place of its own."
        ),
    ] = False
    seed: Annotated[Seed, option("Seed for weights, latents, and the order of images and visits.")] = 0


class Source(Record):
    """The clone: its module of networks, and a digest of its sources."""

    networks: Literal["networks_stylegan2", "networks"]
    digest: Digest


class Case(frame.Case, kw_only=True):
    """The proof of our rung, an examination of the clone and its patched copy, or a generation of all programs."""

    rung: Name | None = None
    recipe: Fields | None = None
    source: Source | None = None
    patch: Digest | None = None  # of the drop-in files


class PhaseErrors(Record, kw_only=True):
    """Relative errors of a phase's gradients against FP64: of all together, and the mean over tensors.

    Each is a median over several inputs. `least` is the smallest ratio of the patched error to the unpatched one, of
    any input.
    """

    unpatched: Amount
    patched: Amount
    least: Amount
    unpatched_tensors: Share
    patched_tensors: Share
    least_tensors: Amount

    def find_problem(self) -> str | None:
        """Return one line if a patched error is too large, else None."""
        for words, theirs, ours, least in (
            ("", self.unpatched, self.patched, self.least),
            (" over tensors", self.unpatched_tensors, self.patched_tensors, self.least_tensors),
        ):
            times = TIMES_UNPATCHED if least > TIMES_UNPATCHED else TIMES_MEDIAN
            if not ours <= max(times * theirs, ROUNDING):
                return f"error{words} {ours:.2g}, unpatched {theirs:.2g}"
        return None


class PhaseTime(Record):
    """The GPU time in ms of a phase with its update in each of its profiled runs, and its number of kernels."""

    gpu_ms: Samples
    kernels: Annotated[float, between(0, 1e7)]


class Visit(Record):
    """The outcome of a program in a generation."""

    status: Status
    reason: Text | None = None
    round: Round | None = None
    settings: Annotated[dict[Identifier, bool | int | float | Text | None], size(32)] | None = None


PhaseTimes = Annotated[
    dict[Literal["upstream", "patched"], Annotated[dict[Phase, PhaseTime], size(4)]], size(2)
]


class Observed(frame.Observation, kw_only=True):
    """What was observed of one case: its own fields, the others are empty. `batch` is that of the gradients."""

    parity: Parity | None = None
    receipts: Receipts | None = None
    inspection: Inspection | None = None
    batch: Count | None = None
    errors: Annotated[dict[Phase, PhaseErrors], size(4)] = {}
    phases: PhaseTimes | None = None
    programs: Annotated[dict[Side, Visit], size(3)] = {}
    gpu: RunGpu | None = None


File = StudyFile[Options, Case, Observed]


# --- what follows from it ---------------------------------------------------------------------------------------------


class Program(Record, kw_only=True):
    """NVIDIA's step or ours: its rounds, and the figures that follow from them. NVIDIA's has no rung or recipe."""

    side: Side
    rung: Name | None
    recipe: Fields | None
    status: Status
    reason: Text | None
    settings: Fields | None
    rounds: list[Round]
    step_ms: float | None
    interval_ms: tuple[float, float] | None


class Protocol(Record):
    """How the steps were timed, and why the figures must not be quoted. `rounds` are the finished generations."""

    rounds: int
    cycles: int
    seed: int
    inspected: bool
    notes: list[str]


class Ratio(Record):
    """NVIDIA's time over ours, or over that of the patched clone, paired by generation."""

    median: float
    interval: tuple[float, float] | None


class PatchedParity(Record):
    """The parity of the patched clone: both clones' gradients against FP64, of the same weights, inputs and noise."""

    verdict: Literal["ok", "failed: parity"]
    reason: str | None
    batch: int | None
    phases: dict[Phase, PhaseErrors]


class Patched(Record):
    """The patched clone beside the clone as it is. `digest` is of the drop-in files."""

    digest: str | None
    parity: PatchedParity | None
    phases: PhaseTimes | None
    ratio: Ratio | None
    gpu_ratio: Ratio | None


class Upstream(Record, kw_only=True):
    """What `ladder report --json` prints beside the header: NVIDIA's program, the patched one, then ours."""

    source: Source | None
    protocol: Protocol
    programs: list[Program]
    parity: JudgedParity | None
    receipts: Receipts | None
    inspection: Inspection | None
    ratio: Ratio | None
    gpu: RunGpu | None
    patched: Patched | None

    def find_program(self, side: str) -> Program:
        """Return the program of this side."""
        return next(each for each in self.programs if each.side == side)

    def derive_gpu_times(self) -> dict[str, dict[int, float]]:
        """Return by side the GPU time of a step in ms of each generation that has one."""
        return deriving.gpu_times({each.side: each for each in self.programs})  # type: ignore[misc]

    def derive_gpu_ms(self, side: str) -> float | None:
        """Return the median GPU time of a step in ms."""
        return estimates.median([*self.derive_gpu_times().get(side, {}).values()])

    def derive_gpu_ratio(self, side: str = OURS) -> Ratio | None:
        """Return how many times less GPU time a side's step takes than NVIDIA's, or None."""
        times = self.derive_gpu_times()
        return derive_ratio(times.get(UPSTREAM), times.get(side))


def list_sides(is_patched: bool) -> list[Side]:
    """Return the sides of a file's programs, in order."""
    return ["upstream", "patched", "ours"] if is_patched else ["upstream", "ours"]


def list_generations(file: File) -> list[Observed]:
    """Return the generations that were observed, in order."""
    return [file.observed[key] for key in file.cases if key.startswith(GENERATION) and key in file.observed]


def derive_patched_parity(seen: Observed) -> PatchedParity:
    """Return the parity that the errors of all phases show, by today's budget."""
    reason = seen.reason
    if seen.status == "ok":
        problems = [(phase, each.find_problem()) for phase, each in seen.errors.items()]
        problems += [(phase, "not compared") for phase in IN_ORDER if phase not in seen.errors]  # type: ignore[misc]
        reason = next((f"{phase}: {problem}" for phase, problem in problems if problem), None)
    return PatchedParity("failed: parity" if reason else "ok", reason, seen.batch, seen.errors)


def find_refusal(file: File, side: str) -> tuple[Status, str | None] | None:
    """Return why a program must not be timed by what was seen before, as a status and its reason, or None."""
    for key in {OURS: (PROOF,), PATCHED: (ERRORS, PHASES)}.get(side, ()):
        if (seen := file.observed.get(key)) is None:
            continue
        if seen.status != "ok":
            return seen.status, seen.reason
        if key == ERRORS and (parity := derive_patched_parity(seen)).reason:
            return parity.verdict, parity.reason
        if (judged := judge_parity(seen.parity)) and judged.reason:
            return judged.verdict, judged.reason
    return None


def derive_program(file: File, side: Side) -> Program:
    """Return a side's program with its generations. Trouble of any kind, then and before, takes it out."""
    visits = [each.programs[side] for each in list_generations(file) if side in each.programs]
    rounds = [each.round for each in visits if each.round]
    counted = [each for each in rounds if not each.alloc_retries]
    failures = [(each.status, each.reason) for each in visits if each.status != "ok"]
    status, reason = "ok" if rounds else "n/a", None if rounds else "not measured"
    if refusal := find_refusal(file, side) or next(iter(failures), None):
        status, reason = refusal  # type: ignore[assignment]
    elif rounds and not counted:
        status, reason = "invalid", deriving.void_memory(rounds[-1].alloc_retries)
    medians = [*medians_of(rounds).values()]
    own = file.cases[PROOF] if side == OURS and PROOF in file.cases else Case()
    return Program(
        side=side, rung=own.rung, recipe=own.recipe, status=status, reason=reason,  # type: ignore[arg-type]
        settings=next((each.settings for each in reversed(visits) if each.settings), None), rounds=rounds,
        step_ms=estimates.median(medians), interval_ms=estimates.log_interval(medians),
    )  # fmt: skip


def medians_of(rounds: Iterable[Round]) -> dict[int, float]:
    """Return the median step time in ms of each generation without allocator retries."""
    return {each.round: statistics.median(each.samples_ms) for each in rounds if not each.alloc_retries}


def derive_ratio(reference: Mapping[int, float] | None, other: Mapping[int, float] | None) -> Ratio | None:
    """Return the factor between the times of two programs, by generation."""
    both = dict(reference or {}), dict(other or {})
    factor = estimates.speedup(*both)
    return Ratio(factor, estimates.log_interval(estimates.paired_ratios(*both))) if factor else None


def derive_walls(program: Program) -> dict[str, float]:
    """Return the median wall ms of a step without lazy phases ("main"), and of what each lazy phase adds to a step."""
    values = {"main": [each.main_ms for each in program.rounds if each.main_ms]}
    for phase in IN_ORDER:
        values[phase] = [each.lazy_ms[phase] for each in program.rounds if phase in (each.lazy_ms or {})]  # type: ignore[index]
    return {name: statistics.median(each) for name, each in values.items() if each}
