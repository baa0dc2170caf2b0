"""The records of `ladder upstream`, which are the schema of its file, and pure functions that derive its figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ladder.base.records import needed, plain, record, rule_of
from ladder.base.rules import Problem, Rule, fields, items, mapping, maybe, number, one_of, pattern
from ladder.machine import environment, neighbours
from ladder.results import code_digest
from ladder.results import store as results
from ladder.results import values as v
from ladder.results.schema import CODE
from ladder.results.types import Header, Inspection, Parity, Plain, Receipt, Round, RunGpu
from ladder.stats import estimates
from ladder.studies.upstream import source

UPSTREAM, OURS = "upstream", "ours"

THEIR_SETTINGS = fields(
    {},
    {
        **dict.fromkeys(("cuda_ops", "fast_double_backward", "cudnn_benchmark"), v.FLAG),
        **dict.fromkeys(("fp16_resolutions", "loader_workers", "parameters_G", "parameters_D"), v.COUNT),
    },
)
BY_SIDE: dict[str, dict[str, Rule]] = {
    UPSTREAM: {"rung": one_of(None), "recipe": one_of(None), "settings": maybe(THEIR_SETTINGS)},
    OURS: {"rung": v.PART, "recipe": v.RECIPE, "settings": maybe(v.SETTINGS)},
}


@record
class Program:
    """NVIDIA's step or ours: its rounds, and the figures that follow from them. NVIDIA's has no rung or recipe."""

    side: str = needed(one_of(UPSTREAM, OURS))
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
    """NVIDIA's time over ours, paired by round."""

    median: float = needed(number(1e-9, 1e9))
    interval: list[float] | None = needed(v.PAIR)


@record
class Result(Header):
    """A result of `ladder upstream`: NVIDIA's program, then ours."""

    schema: int = needed(number(v.SCHEMA, v.SCHEMA, whole=True))
    kind: str = needed(one_of("upstream"))
    workload: Plain = needed(v.WORKLOAD)
    measured_code: dict[str, str] = needed(CODE[code_digest.KEY])
    source: Source = needed(rule_of(Source))
    protocol: Protocol = needed(rule_of(Protocol))
    programs: list[Program] = needed(items(PROGRAM, 2, least=2))
    parity: Parity | None = needed(rule_of(Parity))
    receipts: dict[str, Receipt] | None = needed(mapping(v.PART, rule_of(Receipt), 64))
    inspection: Inspection | None = needed(rule_of(Inspection))
    ratio: Ratio | None = needed(rule_of(Ratio))
    gpu: RunGpu | None = needed(rule_of(RunGpu))


def derive(result: Result) -> Result:
    """Return the result with medians, intervals and our speedup, as its rounds have them."""
    times = {program.side: _medians(program) for program in result.programs}
    interval = estimates.log_interval(estimates.paired_ratios(times[UPSTREAM], times[OURS]))
    factor = estimates.speedup(times[UPSTREAM], times[OURS])
    return replace(
        result,
        programs=[_derived(program, list(times[program.side].values())) for program in result.programs],
        ratio=Ratio(median=factor, interval=interval and list(interval)) if factor else None,
        protocol=replace(result.protocol, notes=notes(result)),
    )


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
