"""What a file of `ladder upstream` holds of each case, and the figures that follow from it."""

from __future__ import annotations

import statistics
from typing import Annotated, Literal

from msgspec import Meta

from ladder.core import records
from ladder.core.options import Seed, declare_option
from ladder.core.protocol import IN_ORDER
from ladder.core.records import Fields, Record, size_between
from ladder.results import derive as deriving
from ladder.results.derive import judge_parity
from ladder.results.file import Phase, Round, Status
from ladder.results.run import Inspection, Parity, Receipts, RunGpu
from ladder.stats import estimates
from ladder.studies import frame
from ladder.studies.frame import StudyFile

UPSTREAM, PATCHED, OURS = "upstream", "patched", "ours"
PROOF, ERRORS, PHASES = "ours: parity and receipts", "patched: gradients", "patched: GPU time of each phase"
GENERATION = "generation "
# The patched error may be so many times the unpatched one. A few activations whose sign FP16 flips make errors of one
# input differ by factors. So an error counts as too large if it is for every input, or by far in the median.
TIMES_UNPATCHED, TIMES_MEDIAN = 1.5, 3.0
DEVICE_CYCLES = {"cuda": 2, "cpu": 1}
ROUNDING = 1e-6  # an error that is FP32's rounding
Side = Literal["upstream", "patched", "ours"]
Preset = Literal["FFHQ-256", "FFHQ-64", "CIFAR10", "ImageNet-32", "ImageNet-64", "tiny"]
PRESET = "R3GAN: a preset of its train.py; tiny is a narrow CIFAR10. [default: FFHQ-256; CPU: tiny]"
BATCH = "R3GAN: images of an iteration. [default: those of its README's commands on one GPU, such as 32]"
GENERATIONS = (
    "Generations: fresh processes of each side, including those of --resume. [default: 5; R3GAN: 3; CPU: 1]"
)
CYCLES = "Timed 16-step cycles of each process. [default: 2; R3GAN: 1; CPU: 1]"
PATCHED_COPY = (
    "Also measure a copy of the clone with the files of `ladder export --like nvidia` in place of its own."
)
SEEDED = "Seed for weights, latents, and the order of images and visits."
# fmt: off


class Options(frame.Options):
    """The options of `ladder upstream`."""

    clone: Annotated[str | None, declare_option("The clone.", argument=True, metavar="CLONE")] = None
    ladder: Annotated[str, declare_option("The ladder whose top is measured.", metavar="NAME|FILE")] = "full"
    generations: Annotated[
        Annotated[int, Meta(ge=1, le=100)] | None, declare_option(GENERATIONS, flags=["--generations", "--rounds"])
    ] = None
    cycles: Annotated[Annotated[int, Meta(ge=1, le=1000)] | None, declare_option(CYCLES)] = None
    inspect: Annotated[bool, declare_option("Check parity and receipts of our step before it is timed.")] = True
    patched: Annotated[bool, declare_option(PATCHED_COPY)] = False
    preset: Annotated[Preset | None, declare_option(PRESET)] = None
    batch: Annotated[Annotated[int, Meta(ge=1, le=4096)] | None, declare_option(BATCH)] = None
    seed: Annotated[Seed, declare_option(SEEDED)] = 0


# fmt: on


class Source(Record):
    """The clone: its module of networks, and a digest of its sources."""

    networks: Literal["networks_stylegan2", "networks", "R3GAN"]
    digest: records.Digest

    @property
    def is_r3gan(self) -> bool:
        """Return whether it is R3GAN's, which has no step of ours beside it and no lazy phases."""
        return self.networks == "R3GAN"

    @property
    def owner(self) -> str:
        """Return whose step it is."""
        return "R3GAN's" if self.is_r3gan else "NVIDIA's"

    @property
    def phases(self) -> tuple[str, ...]:
        """Return the phases of an iteration, in order."""
        return ("D_main", "G_main") if self.is_r3gan else IN_ORDER


class Case(frame.Case, kw_only=True):
    """The proof of our rung, an examination of the clone and its patched copy, or a generation of all programs."""

    rung: records.Name | None = None
    recipe: Fields | None = None
    source: Source | None = None
    patch: records.Digest | None = None  # of the drop-in files


class PhaseErrors(Record, kw_only=True):
    """Relative errors of a phase's gradients against FP64: of all together, and the mean over tensors.

    Each is a median over several inputs. `least` is the smallest ratio of the patched error to the unpatched one, of
    any input.
    """

    unpatched: records.Amount
    patched: records.Amount
    least: records.Amount
    unpatched_tensors: records.Share
    patched_tensors: records.Share
    least_tensors: records.Amount

    def find_problem(self) -> str | None:
        """Return one line if a patched error is too large, else None."""
        together = ("error", self.unpatched, self.patched, self.least)
        by_tensor = ("error over tensors", self.unpatched_tensors, self.patched_tensors, self.least_tensors)
        for words, theirs, ours, least in (together, by_tensor):
            times = TIMES_UNPATCHED if least > TIMES_UNPATCHED else TIMES_MEDIAN
            if not ours <= max(times * theirs, ROUNDING):
                return f"{words} {ours:.2g}, unpatched {theirs:.2g}"
        return None


class PhaseTime(Record):
    """The GPU time in ms of a phase with its update in each of its profiled runs, and its number of kernels."""

    gpu_ms: records.Samples
    kernels: Annotated[float, records.number_between(0, 1e7)]


Settings = dict[records.Identifier, bool | int | float | records.Text | None]


class Visit(Record):
    """The outcome of a program in a generation."""

    status: Status
    reason: records.Text | None = None
    round: Round | None = None
    settings: Annotated[Settings, size_between(32)] | None = None


class Observed(frame.Observation, kw_only=True):
    """What was observed of one case: its own fields, the others are empty. `batch` is that of the gradients."""

    parity: Parity | None = None
    receipts: Receipts | None = None
    inspection: Inspection | None = None
    batch: records.Count | None = None
    errors: dict[Phase, PhaseErrors] = {}
    phases: dict[Literal["upstream", "patched"], dict[Phase, PhaseTime]] | None = None
    programs: dict[Side, Visit] = {}
    gpu: RunGpu | None = None


File = StudyFile[Options, Case, Observed]


# --- what follows from it ---------------------------------------------------------------------------------------------


class Ratio(Record):
    """NVIDIA's time over ours, or over that of the patched clone, paired by generation."""

    median: float
    interval: tuple[float, float] | None


class Program:
    """NVIDIA's step or ours in a file, with its generations. Trouble of any kind, then and before, takes it out.

    NVIDIA's has no rung or recipe.
    """

    def __init__(self, file: File, side: Side) -> None:
        visits = [each.programs[side] for each in list_generations(file) if side in each.programs]
        own = file.cases[PROOF] if side == OURS and PROOF in file.cases else Case()
        self.side, self.rung, self.recipe = side, own.rung, own.recipe
        self.settings = next((each.settings for each in reversed(visits) if each.settings), None)
        self.rounds = [each.round for each in visits if each.round]
        self.medians = deriving.round_medians(self)  # type: ignore[arg-type]
        self.step_ms = estimates.median([*self.medians.values()])
        self.interval_ms = estimates.log_interval([*self.medians.values()])
        trouble = [
            find_refusal(file, side),
            *((each.status, each.reason) for each in visits if each.status != "ok"),
        ]
        if not self.rounds:
            trouble.append(("n/a", "not measured"))
        elif not self.medians:
            trouble.append(("invalid", deriving.void_memory(self.rounds[-1].alloc_retries)))
        self.status, self.reason = next((each for each in trouble if each), ("ok", None))

    def derive_walls(self) -> dict[str, float]:
        """Return the median wall ms of a step without lazy phases ("main"), and of what each lazy phase adds."""
        times = [{"main": each.main_ms, **(each.lazy_ms or {})} for each in self.rounds]
        values = {name: [each[name] for each in times if each.get(name)] for name in ("main", *IN_ORDER)}
        return {name: statistics.median(each) for name, each in values.items() if each}


class Figures:
    """What follows from a file: its programs, NVIDIA's first, and their ratios; and what it holds beside them."""

    def __init__(self, file: File) -> None:
        self.source = read_source(file)
        self.programs = {side: Program(file, side) for side in list_sides(file.options, self.source)}
        self.gpu_times = deriving.gpu_times(self.programs)  # type: ignore[arg-type]
        self.generations, self.first = list_generations(file), file.cases.get(f"{GENERATION}1") or Case()
        self.proof, self.compared, self.timed = (
            file.observed.get(k) or Observed() for k in (PROOF, ERRORS, PHASES)
        )
        self.parity = judge_parity(self.proof.parity)
        self.cycles = count_cycles(file.options, file.machine.device, self.source)

    def derive_gpu_ms(self, side: str) -> float | None:
        """Return the median GPU time of a step in ms."""
        return estimates.median([*self.gpu_times.get(side, {}).values()])

    def derive_gpu_ratio(self, side: str = OURS) -> Ratio | None:
        """Return how many times less GPU time a side's step takes than NVIDIA's, or None."""
        return derive_ratio(self.gpu_times.get(UPSTREAM, {}), self.gpu_times.get(side, {}))

    def derive_wall_ratio(self, side: Side = "ours") -> Ratio | None:
        """Return how many times as fast a side's step is as the clone's by the wall clock, or None."""
        if side not in self.programs:
            return None
        return derive_ratio(self.programs["upstream"].medians, self.programs[side].medians)


def derive_ratio(reference: dict[int, float], other: dict[int, float]) -> Ratio | None:
    """Return the factor between the times of two programs, by generation."""
    factor = estimates.estimate_speedup(reference, other)
    interval = estimates.log_interval(estimates.paired_ratios(reference, other))
    return Ratio(factor, interval) if factor else None


def read_source(file: File) -> Source:
    """Return the clone of a file."""
    return next(
        (each.source for each in file.cases.values() if each.source), Source("networks_stylegan2", "")
    )


def count_cycles(options: Options, device: str, source: Source) -> int:
    """Return the timed cycles of each process."""
    return options.cycles or (1 if source.is_r3gan else DEVICE_CYCLES[device])


def list_sides(options: Options, source: Source) -> list[Side]:
    """Return the sides of a file's programs, in order."""
    sides: list[Side] = ["upstream", "patched", "ours"]
    return [each for each in sides if {PATCHED: options.patched, OURS: not source.is_r3gan}.get(each, True)]


def list_generations(file: File) -> list[Observed]:
    """Return the generations that were observed, in order."""
    return [file.observed[key] for key in file.cases if key.startswith(GENERATION) and key in file.observed]


def find_parity_problem(each: Observed, phases: tuple[str, ...] = IN_ORDER) -> str | None:
    """Return why the gradients of the patched clone are wrong by today's budget, in one line, or None."""
    if each.status != "ok":
        return each.reason
    for phase in phases:
        errors = each.errors.get(phase)  # type: ignore[call-overload]
        if problem := errors.find_problem() if errors else "not compared":
            return f"{phase}: {problem}"
    return None


def find_refusal(file: File, side: str) -> tuple[Status, str | None] | None:
    """Return why a program must not be timed by what was seen before, as a status and its reason, or None."""
    for key in {OURS: (PROOF,), PATCHED: (ERRORS, PHASES)}.get(side, ()):
        if (each := file.observed.get(key)) is None:
            continue
        if each.status != "ok":
            return each.status, each.reason
        if key == ERRORS and (problem := find_parity_problem(each, read_source(file).phases)):
            return "failed: parity", problem
        if (judged := judge_parity(each.parity)) and judged.reason:
            return judged.verdict, judged.reason
    return None
