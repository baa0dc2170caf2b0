"""Rules of the values in a result: numbers, texts and names, each with the range that a genuine run can write.

`ladder.results.types` gives a rule to every field; `ladder.results.schema` makes whole rules of those fields.
"""

import dataclasses
import functools
import itertools
from typing import Any

from ladder.base import text
from ladder.base.protocol import AMBIGUOUS as AMBIGUOUS
from ladder.base.protocol import FASTER as FASTER
from ladder.base.protocol import LESS_THAN, NO_GAIN, PHASES
from ladder.base.protocol import SLOWER as SLOWER
from ladder.base.protocol import TOO_FEW as TOO_FEW
from ladder.base.rules import (
    Problem,
    Rule,
    either,
    fields,
    items,
    mapping,
    maybe,
    number,
    one_of,
    pattern,
    shown,
)
from ladder.machine import environment

SCHEMA = 1
STATUSES = ("ok", "n/a", "skipped", "failed", "oom", "invalid", "not engaged", "failed: parity")
OUT = STATUSES[2:]  # what takes a rung out of a run
NUMBERS = (
    "step_ms",
    "q25_ms",
    "q75_ms",
    "speedup_previous",
    "speedup_total",
    "main_ms",
    "main_speedup_total",
    "images_per_s",
    "peak_reserved_bytes",
    "peak_allocated_bytes",
    "prepare_s",
)
CODE_DIGITS = 16  # hexadecimal digits of a digest of measured code

TEXT = pattern(
    text.TEXT.pattern, f"plain text (1 to {text.LONGEST_TEXT} of letters, digits and  ._()+:@,/'#=-)"
)
PART = pattern(r"[a-z0-9][a-z0-9._-]{0,95}", "a name of a-z, 0-9, dot, underscore and hyphen")
IDENTIFIER = pattern(r"[A-Za-z][A-Za-z0-9_. ]{0,63}", "a name")
ASCII = "a line of printable ASCII"
PHASE = one_of(*PHASES)
KIND = one_of("captured", "eager", "host", "gpu")  # of a rung; older files have what bounds it: host or gpu
INSIDE = (LESS_THAN, NO_GAIN)  # the noise
VERDICT = one_of(FASTER, SLOWER, LESS_THAN, AMBIGUOUS, TOO_FEW, NO_GAIN)
STATUS = one_of(*STATUSES)
FLAG = one_of(True, False)
MS = number(1e-4, 1e8)
SECONDS = number(0, 1e8)
BYTES = number(0, 2**50, whole=True)
COUNT = number(0, 1e9, whole=True)
CORES = number(1, 1e5, whole=True)
FACTOR = number(1e-6, 1e6)
SHARE = number(0, 1)
PERCENT = number(0, 100)
CLOCK = number(0, 1e5)  # MHz
FLOOR = number(0, 100)  # a difference of logarithms
AMOUNT = number(0, 1e30)
ANY_NUMBER = number(-1e12, 1e12)
SCALAR = either(maybe(FLAG), ANY_NUMBER, TEXT)  # of a recipe, a workload or the settings of torch
MICROSECONDS = number(1e-6, 1e12)  # of a call: a time is never 0
SAMPLES = items(MS, 100_000)
NOTES = items(TEXT, 64)
NAMES = items(PART, 100, least=1)
TENANCY = one_of("alone", "shared", "unknown")
BOUND = number(1e-30, 1e30)  # of an interval; `stats.within_everything` cuts what reaches further
PAIR = items(BOUND, 2, least=2)
STARTED = pattern(
    r"20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\+00:00|Z)",
    "a UTC time like 2026-01-31T12:00:00+00:00",
)
A_COMMIT = pattern(r"[0-9a-f]{40}", "a commit of 40 hexadecimal digits")
DIGEST = rf"[0-9a-f]{{{CODE_DIGITS}}}"
CODE_DIGEST = pattern(rf"{DIGEST}|[1-9]\d{{0,3}}", f"a digest of {CODE_DIGITS} digits or a number")
ENVIRONMENT = mapping(pattern(r"[A-Z][A-Z0-9_]{0,63}", "the name of a variable"), TEXT, environment.MOST)
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
            "gomp_spincount",
            "kmp_blocktime",
        ),
        SCALAR,
    ),
)


def OBJECT(value: Any) -> Problem | None:
    """Refuse what is no object. Recipes and settings of other commits have fields that are not known here."""
    return None if isinstance(value, dict) else ("", f"{shown(value)} is not an object")


def NAMED(value: Any) -> Problem | None:
    """Refuse what is no object with a name."""
    named = isinstance(value, dict) and "name" in value
    if named and (problem := PART(value["name"])):
        return ".name", problem[1]
    return None if named else ("", f"{shown(value)} is not an object with a name")


def WORKLOAD(value: Any) -> Problem | None:
    """Refuse what is no workload of this commit: unknown fields, and values that none can have."""
    from stylegan_lite.config import Workload

    if problem := _workload()(value):
        return problem
    least = {"channel_base": value["resolution"]}  # the rule above does not ask for it
    return _impossible(Workload, least | {key: each for key, each in value.items() if key != "name"})


def RECIPE(value: Any) -> Problem | None:
    """Refuse what is no recipe of this commit: unknown fields, and values that none can have."""
    if problem := _recipe()(value):
        return problem
    return next(filter(None, itertools.starmap(_impossible_field, value.items())), None)


@functools.lru_cache(maxsize=4096, typed=True)  # the recipes of a result differ in few fields
def _impossible_field(key: str, value: Any) -> Problem | None:
    from stylegan_lite.config import Recipe

    return _impossible(Recipe, {key: value})


def _impossible(kind: Any, fields: dict[str, Any]) -> Problem | None:
    """Return which value a field cannot have, or None. What two fields may be together is left to whoever runs them."""
    from stylegan_lite.config import ConfigError

    try:
        kind.from_dict(fields, where="")
    except ConfigError as error:
        line = str(error).partition(": ")[2]
        return ("", line) if " must be " in line else None
    return None


# Made when first asked for: where asv measures a commit, stylegan_lite is the commit's own.
@functools.cache
def _workload() -> Rule:
    from stylegan_lite.config import Workload

    return fields(
        {
            "name": PART,
            "resolution": number(4, 2**16, whole=True),
            "batch": number(1, 2**16, whole=True),
            "data": one_of(None, "sample-photographs", "user-images"),
        },
        {field.name: SCALAR for field in dataclasses.fields(Workload) if field.name != "data"},
    )


@functools.cache
def _recipe() -> Rule:
    from stylegan_lite.config import Recipe

    return fields({}, {field.name: SCALAR for field in dataclasses.fields(Recipe)})
