"""The records of `ladder doctor --roofline`, which are the schema of its file; see `ladder.base.records`."""

from __future__ import annotations

import dataclasses
from typing import Any

from ladder.base.records import Absent, needed, optional, record, rule_of
from ladder.base.rules import Problem, fields, items, mapping, number, one_of, pattern
from ladder.results import values as v
from ladder.results.check import Kind
from ladder.results.schema import CODE, LAYOUT, LINE, RATE, REAL, SHAPED
from ladder.results.types import Images, Machine, Plain
from ladder.studies.roofline import in_step
from ladder.studies.roofline.in_step import Group, Kernels, Lowered
from stylegan_lite.config import Recipe

CEILINGS = ("copy", "matmul bf16", "matmul tf32", "matmul fp32")
NEEDED = ("flops", "bytes", "convolutions_ms", "bytes_ms", "matmul_ms", "light_ms", "peak_ms")
AMOUNTS = mapping(pattern(r"[A-Za-z0-9_]{1,64}", "an amount"), v.AMOUNT, 32)
RATES = mapping(SHAPED, RATE, 10_000)
RECIPE = fields(
    {"precision": v.IDENTIFIER},
    {each.name: v.SCALAR for each in dataclasses.fields(Recipe) if each.name != "precision"},
)


def FLOOR(value: Any) -> Problem | None:
    """Check the amounts of a phase or step, and the bytes by purpose. No floor may be zero."""
    if problem := AMOUNTS(value):
        return problem
    for key in NEEDED:
        if key not in value:
            return "", f"the key {key!r} is missing"
    return (".light_ms", "0 is no floor") if value["light_ms"] < 1e-12 else None


@record
class Ceiling:
    """The highest rate on record, FLOP/s or bytes/s, and its source."""

    value: float = needed(RATE)
    source: str = needed(LINE)


@record
class Convolution:
    """A shape of the workload: its FLOPs a step, and the rate of its floor."""

    name: str = needed(SHAPED)
    flops: float = needed(RATE)
    rate: float = needed(RATE)
    source: str = needed(LINE)


@record
class Today:
    """The rates of today's measurement by name, and the reasons for those that it lacks."""

    rates: dict[str, float] = needed(RATES)
    skipped: dict[str, str] = needed(mapping(SHAPED, LINE, 10_000))
    seconds: float = needed(v.SECONDS)


@record
class Family(Kernels):
    """A family of kernels, with its parts of the step and of the distance."""

    group: str = needed(LINE)
    of_step: float = needed(v.AMOUNT)
    of_distance: float | None = needed(REAL)


@record
class Measured:
    """The timed and traced step beside its floor. A whole-step graph has phases of a second step."""

    phases_ms: dict[str, float] = needed(mapping(v.PHASE, v.AMOUNT, 4))
    step_ms: float = needed(v.AMOUNT)
    wall_ms: float = needed(v.AMOUNT)
    busy_ms: float = needed(v.AMOUNT)
    times_light: float = needed(v.AMOUNT)
    distance_ms: float = needed(REAL)
    families: list[Family] = needed(items(rule_of(Family), 1000))
    groups: dict[str, Group] = needed(
        mapping(one_of(in_step.CONVOLUTIONS, in_step.OTHERS, in_step.IDLE), rule_of(Group), 3)
    )
    settings: Plain = needed(v.SETTINGS)


@record
class Light:
    """A floor, computed from recorded rates: FLOPs, bytes and ms of each phase and of the amortized step."""

    schema: int = needed(number(v.SCHEMA, v.SCHEMA, whole=True))
    kind: str = needed(one_of("roofline"))
    workload: Plain = needed(v.WORKLOAD)
    commit: str | None = needed(v.A_COMMIT)
    dirty: bool | None = needed(v.FLAG)
    environment: dict[str, str] | Absent = optional(v.ENVIRONMENT)
    images: Images | Absent = optional(rule_of(Images))
    measured_code: dict[str, str] | Absent = optional(CODE["measured_code"])
    complete: bool | Absent = optional(v.FLAG)
    started: str | Absent = optional(v.STARTED)
    seconds: float | Absent = optional(v.SECONDS)
    ladder: str | Absent = optional(v.PART)
    rung: str = needed(v.PART)
    recipe: Plain = needed(RECIPE)
    layout: str = needed(LAYOUT)
    machine: Machine | None = needed(rule_of(Machine))
    measured: Measured | None = needed(rule_of(Measured))
    today: Today | Absent = optional(rule_of(Today))
    gpu: str = needed(v.PART)
    ceilings: dict[str, Ceiling] = needed(mapping(one_of(*CEILINGS), rule_of(Ceiling), 16))
    phases: dict[str, dict[str, float]] = needed(mapping(v.PHASE, FLOOR, 4))
    step: dict[str, float] = needed(FLOOR)
    in_step: dict[str, Lowered] | Absent = optional(
        mapping(one_of(*in_step.PARTS), rule_of(Lowered), len(in_step.PARTS))
    )
    convolutions: list[Convolution] = needed(items(rule_of(Convolution), 10_000))
    recorded: dict[str, float] | Absent = optional(RATES)
    floors_commit: str | Absent | None = optional(v.A_COMMIT)


@record
class Result(Light):
    """A measurement beside its floor, as its file has it. `recorded` are rates for later floors."""

    machine: Machine = needed(rule_of(Machine))
    measured: Measured = needed(rule_of(Measured))
    today: Today = needed(rule_of(Today))
    recorded: dict[str, float] = needed(RATES)


KIND = Kind("roofline", rule_of(Result))
