"""What a result of a stranger may hold: every key, and for each the values that a genuine run can write.

A rule is a function of a value that returns what is wrong with it, as (where, what), or None. Whoever writes a new
key into results adds it here: a key that is not named is refused.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from ladder import results
from stylegan_lite.config import Recipe, Workload

Problem = tuple[str, str]
Rule = Callable[[Any], Problem | None]


def number(low: float, high: float, *, whole: bool = False) -> Rule:
    """A finite number from `low` to `high`."""

    def check(value: Any) -> Problem | None:
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            return "", f"{shown(value)} is not a {'whole ' if whole else ''}number"
        if not (math.isfinite(value) and low <= value <= high):
            return "", f"{shown(value)} is not from {low:g} to {high:g}"
        return None

    return check


def pattern(expression: str, what: str) -> Rule:
    """A string that the expression matches whole."""
    compiled = re.compile(expression)

    def check(value: Any) -> Problem | None:
        if isinstance(value, str) and compiled.fullmatch(value):
            return None
        return "", f"{shown(value)} is not {what}"

    return check


def one_of(*allowed: Any) -> Rule:
    def check(value: Any) -> Problem | None:
        if any(value is each or (isinstance(value, str) and value == each) for each in allowed):
            return None
        return "", f"{shown(value)} is none of {', '.join(map(shown, allowed))}"

    return check


def either(*rules: Rule) -> Rule:
    """What one of the rules takes; else the last one says what is wrong."""

    def check(value: Any) -> Problem | None:
        problem = None
        for rule in rules:
            if (problem := rule(value)) is None:
                return None
        return problem

    return check


def maybe(rule: Rule) -> Rule:
    """null, or what the rule takes."""
    return lambda value: None if value is None else rule(value)


def items(rule: Rule, most: int, least: int = 0) -> Rule:
    """A list of `least` to `most` values."""

    def check(value: Any) -> Problem | None:
        if not isinstance(value, list):
            return "", f"{shown(value)} is not a list"
        if not least <= len(value) <= most:
            return "", f"{len(value)} entries, expected {least} to {most}"
        for index, each in enumerate(value):
            if problem := rule(each):
                return f"[{index}]{problem[0]}", problem[1]
        return None

    return check


def fields(needed: dict[str, Rule], optional: dict[str, Rule] | None = None) -> Rule:
    """An object with all of `needed`, perhaps some of `optional`, and nothing else."""
    known = needed | (optional or {})

    def check(value: Any) -> Problem | None:
        if not isinstance(value, dict):
            return "", f"{shown(value)} is not an object"
        for key in value:
            if key not in known:
                return "", f"unknown key {shown(key)}"
        for key in needed:
            if key not in value:
                return "", f"the key {key!r} is missing"
        for key, each in value.items():
            if problem := known[key](each):
                return f".{key}{problem[0]}", problem[1]
        return None

    return check


def shown(value: Any) -> str:
    """A value as an error message can print it on any terminal: ASCII, escaped, short."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."


TEXT = pattern(
    results.TEXT.pattern, f"plain text (1 to {results.LONGEST_TEXT} of letters, digits and  ._()+:@,/'#=-)"
)
PART = pattern(r"[a-z0-9][a-z0-9._-]{0,95}", "a name of a-z, 0-9, dot, underscore and hyphen")
FLAG = one_of(True, False)
VERSION = maybe(TEXT)
MS = number(1e-4, 1e8)
SECONDS = number(0, 1e8)
BYTES = number(0, 2**50, whole=True)
COUNT = number(0, 1e9, whole=True)
FACTOR = number(1e-6, 1e6)
SCALAR = either(maybe(FLAG), number(-1e12, 1e12), TEXT)  # of a recipe, a workload or the settings of torch
SAMPLES = items(MS, 100_000)
NOTES = items(TEXT, 64)

MACHINE = fields(
    {
        "name": PART,
        "gpu": maybe(TEXT),
        "gpu_memory_gb": maybe(number(0.1, 1e5)),
        "driver": VERSION,
        "cuda": VERSION,
        "cudnn": VERSION,
        "torch": VERSION,
        "triton": VERSION,
        "python": TEXT,
        "cpu": TEXT,
        "cores": number(1, 1e5, whole=True),
        "ram_gb": number(0, 1e6),
        "os": TEXT,
        "device": one_of("cuda", "cpu"),
    }
)
WORKLOAD = fields(
    {
        "name": PART,
        "resolution": number(4, 2**16, whole=True),
        "batch": number(1, 2**16, whole=True),
        "data": one_of(None, "sample-photographs", "user-images"),
    },
    {field.name: SCALAR for field in dataclasses.fields(Workload) if field.name != "data"},
)
LADDER = fields({"name": PART, "title": TEXT, "rungs": items(PART, 100, least=1)})
PROTOCOL = fields(
    {
        "rounds": number(1, 1000, whole=True),
        "cycles": number(1, 100_000, whole=True),
        "cycle_steps": number(16, 16, whole=True),
        "seed": number(0, 2**32, whole=True),
        "quick": FLAG,
        "notes": NOTES,
    },
    {"settle_s": SECONDS, "settle_cycles": COUNT},
)
RECIPE = fields({}, {field.name: SCALAR for field in dataclasses.fields(Recipe)})
SETTINGS = fields(
    {},
    dict.fromkeys(
        (
            "conv_fp32_precision",
            "matmul_fp32_precision",
            "cudnn_benchmark",
            "cudnn_deterministic",
            "adam_foreach",
            "adam_fused",
            "adam_capturable",
            "ema",
            "r1_gamma",
            "cpu_threads",
        ),
        SCALAR,
    ),
)

ROUND = fields(
    {"round": COUNT, "samples_ms": SAMPLES},
    {
        "event_ms": maybe(SAMPLES),
        "main_ms": maybe(MS),
        "prepare_s": SECONDS,
        "capture_s": maybe(SECONDS),
        "lead_in_cycles": COUNT,
        "settled": maybe(FLAG),
        "peak_rss_bytes": maybe(BYTES),
        "peak_reserved_bytes": maybe(BYTES),
        "peak_allocated_bytes": maybe(BYTES),
        "device_used_bytes": maybe(BYTES),
        "alloc_retries": maybe(COUNT),
    },
)
INSPECTION = fields(
    {"error": maybe(TEXT)}, {"gpu_busy_ms": maybe(number(0, 1e8)), "kernels_per_step": maybe(number(0, 1e7))}
)
FAILED_AT = fields(
    {"round": maybe(COUNT)},
    dict.fromkeys(("peak_rss_bytes", "peak_reserved_bytes", "peak_allocated_bytes"), maybe(BYTES)),
)
RUNG = fields(
    {
        "name": PART,
        "title": TEXT,
        "status": one_of(*results.STATUSES),
        "reason": maybe(TEXT),
        "recipe": maybe(RECIPE),
        "step_ms": maybe(MS),
        "q25_ms": maybe(MS),
        "q75_ms": maybe(MS),
        "interval_ms": maybe(items(MS, 2, least=2)),
        "speedup_previous": maybe(FACTOR),
        "speedup_total": maybe(FACTOR),
        "main_ms": maybe(MS),
        "main_speedup_total": maybe(FACTOR),
        "host_bound": maybe(number(0, 1)),
        "gpu_busy_ms": maybe(MS),
        "images_per_s": maybe(number(1e-6, 1e9)),
        "peak_reserved_bytes": maybe(BYTES),
        "peak_allocated_bytes": maybe(BYTES),
        "prepare_s": maybe(SECONDS),
        "samples_ms": SAMPLES,
        "rounds": items(ROUND, 1000),
        "notes": NOTES,
        "article_ms": maybe(MS),
        "settings": maybe(SETTINGS),
    },
    {"inspection": maybe(INSPECTION), "failed_at": FAILED_AT},
)
RESULT = fields(
    {
        "schema": number(results.SCHEMA, results.SCHEMA, whole=True),
        "machine": MACHINE,
        "workload": WORKLOAD,
        "ladder": LADDER,
        "protocol": PROTOCOL,
        "commit": maybe(pattern(r"[0-9a-f]{40}", "a commit of 40 hexadecimal digits")),
        "dirty": maybe(FLAG),
        "complete": FLAG,
        "started": pattern(
            r"20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\+00:00|Z)",
            "a UTC time like 2026-01-31T12:00:00+00:00",
        ),
        "seconds": SECONDS,
        "baseline": maybe(PART),
        "rungs": items(RUNG, 100, least=1),
    }
)
