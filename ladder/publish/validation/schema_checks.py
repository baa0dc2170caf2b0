"""The permitted content of the files of the project's own checks: canary, self-tests, faults and others.

Each kind is one rule, as strict as those of `ladder.results.schema`. Unlisted keys are refused, numbers are finite
and in range, texts are short. A new key must be added here.
"""

from __future__ import annotations

from typing import Any

from ladder.base import text
from ladder.base.rules import Problem, Rule, either, fields, items, mapping, maybe, number, one_of, pattern
from ladder.publish.regressions import schema as accepting
from ladder.results import code_digest
from ladder.results import store as results
from ladder.results.check import Kind
from ladder.results.schema import CODE, CONDITIONS, MACHINE, ROUND, RUN_GPU
from ladder.results.values import (
    A_COMMIT,
    AMOUNT,
    BYTES,
    COUNT,
    FLAG,
    IDENTIFIER,
    MICROSECONDS,
    MS,
    NOTES,
    PART,
    RECIPE,
    SECONDS,
    SETTINGS,
    STARTED,
    TEXT,
    WORKLOAD,
)

LINE = pattern(r"[ -~]{1,300}", "a line of at most 300 printable ASCII characters")
SHARE = number(-1, 1e6)
SHARES = maybe(items(SHARE, 2, least=2))
RATE = number(0, 1)
LINES = items(LINE, 1000)
MADE = {"commit": maybe(A_COMMIT), "dirty": maybe(FLAG)}
HEADER = {**MADE, **CONDITIONS, **CODE, "complete": FLAG, "started": STARTED, "seconds": SECONDS}


def _file(named: str, kind: str, needed: dict[str, Rule], optional: dict[str, Rule] | None = None) -> Rule:
    """Return the rule for a file that states `kind` under the key `named`.

    Older files lack the keys of the header that the kind does not name.
    """
    head = {"schema": number(results.SCHEMA, results.SCHEMA, whole=True), named: one_of(kind)}
    others = {key: rule for key, rule in HEADER.items() if key not in needed}
    return fields(head | needed, others | (optional or {}))


def _table(what: str, *columns: str, **others: Rule) -> Rule:
    """Return the rule for a table of planted faults: columns of text, and the columns in `others` by their rules."""
    row = fields(dict.fromkeys(columns, TEXT) | others)
    return _file("what", what, {"machine": MACHINE, **MADE, "rows": items(row, 10_000)})


# ---- ladder train --canary ----------------------------------------------------------------------------------------

_TRAINED = fields(
    {
        "seed": COUNT,
        "distance": maybe(AMOUNT),
        "levels": maybe(mapping(pattern(r"\d{1,5}", "a size"), AMOUNT, 16)),
        "reason": maybe(LINE),
    }
)
_JUDGED = {"distance": maybe(AMOUNT), "verdict": maybe(one_of("as good", "better", "worse", "broke"))}
_RUNG = {"name": PART, "title": TEXT, "recipe": maybe(RECIPE), "skipped": maybe(LINE)}
CANARY = _file(
    "kind",
    "canary",
    {
        "machine": MACHINE,
        "workload": WORKLOAD,
        "ladder": PART,
        "steps": COUNT,
        "seeds": COUNT,
        "samples": COUNT,
    }
    | MADE
    | {"complete": FLAG, "notes": NOTES, "band": maybe(items(AMOUNT, 2, least=2)), "seconds": SECONDS}
    | {"rungs": items(fields(_RUNG | _JUDGED | {"runs": items(_TRAINED, 1000)}), 100, least=1)},
)
# ---- ladder doctor --selftest -------------------------------------------------------------------------------------

_MADE_UP = {"kind": TEXT, "family": TEXT}
_SIZES = {"process": RATE, "cycle": RATE}  # older files lack them
_SAME = fields(
    {"runs": COUNT, "false": COUNT, "ambiguous": RATE, "noise_floor": AMOUNT, "rounds": AMOUNT},
    {"covered": RATE},
)
_PLANTED = fields(
    {
        "slowdown": RATE,
        "runs": COUNT,
        "found": RATE,
        "wrong_sign": COUNT,
        "false": COUNT,
        "promised": maybe(RATE),
    }
)
_TOLD = {"broken": LINES, "seconds": SECONDS}
SIMULATED = _file(
    "what",
    "selftest",
    {"machine": MACHINE, "seed": COUNT, **_TOLD}
    | {"table": items(fields(_MADE_UP | {"same": _SAME, "planted": items(_PLANTED, 100)}, _SIZES), 100)},
)
_COMPARED = dict.fromkeys(("runs", "wrong_sign", "passed", "called_different"), COUNT)
_COMPARED |= {"slowdown": RATE, "found": maybe(RATE), "rounds": AMOUNT}
COMPARED = _file(
    "what",
    "selftest of bench-compare, simulated",
    {"seed": COUNT, "table": items(fields(_MADE_UP | _COMPARED), 100), **_TOLD},
)
_VERDICT = pattern(r"[a-z][a-z ]{0,40}", "a verdict")
_SEEN = {"planted": maybe(RATE), "seen": SHARE, "interval": SHARES, "least": AMOUNT, "rounds": COUNT}
_SEEN |= {"verdict": _VERDICT}
_STATUS = {
    "name": LINE,
    "status": one_of(*results.STATUSES),
    "reason": maybe(TEXT),
    "rounds": items(ROUND, 1000),
}
_RUN = {"machine": MACHINE, **MADE, "complete": FLAG, "started": STARTED, **_TOLD, "gpu": maybe(RUN_GPU)}
_QUESTION = fields(_SEEN | {"base": TEXT, "twin": TEXT, "head": TEXT})
_RULES = {"rounds": COUNT, "cycles": COUNT, "settle_s": SECONDS, "seed": COUNT}
TRIED = _file(
    "what",
    "selftest of bench-compare",
    {
        "kind": one_of("captured", "eager"),
        code_digest.KEY: CODE[code_digest.KEY],
        "workload": WORKLOAD,
        **_RUN,
    }
    | {"rung": PART, "recipe": RECIPE, "share": RATE, "planted_ms": maybe(MS), "protocol": fields(_RULES)}
    | {"programs": items(fields(_STATUS), 100), "questions": items(_QUESTION, 1000)},
    {"commits": CODE["commits"]},
)
_MORE_RULES = ("cycle_steps", "settle_cycles", "built_together")
_TIMES = items(number(0, 1e12), 10_000)
_SPIN = fields(
    {
        "asked_us": MICROSECONDS,
        "calls": COUNT,
        "clock_us": _TIMES,
        "wall_us": _TIMES,
        "event_us": maybe(_TIMES),
    }
    | {"seen_us": maybe(AMOUNT), "error_us": maybe(number(-1e12, 1e12)), "allowed_us": AMOUNT, "ok": FLAG}
    | {"reason": maybe(LINE)}
)


def _calibration(value: Any) -> Problem | None:
    """Check the calibration round, whose number is -1, or None."""
    if isinstance(value, dict) and value.get("round") == -1 and value["round"] is not True:
        value = value | {"round": 0}
    return maybe(ROUND)(value)


_PAIR = fields(
    _SEEN | {"first": TEXT, "second": TEXT, "confidence": maybe(RATE), "ok": FLAG},
    {"below": maybe(AMOUNT)},  # older files lack it
)
_GROUP = fields(
    # the workload may be a preset at another size, "article at 64x64"
    {
        "name": TEXT,
        "workload": lambda value: WORKLOAD(_named(value)),
        "recipe": RECIPE,
        "settings": maybe(SETTINGS),
    }
    | {"waits_on": one_of("gpu", "cpu"), "promised": items(RATE, 16), "calibration": _calibration},
    {"twins": items(TEXT, 2), "comparisons": items(_PAIR, 1000)}
    | dict.fromkeys(("floor", "resolution", "step_ms", "between_processes", "inside_process"), maybe(AMOUNT)),
)


def _named(workload: Any) -> Any:
    if isinstance(workload, dict) and TEXT(workload.get("name")) is None:
        return workload | {"name": text.slug(workload["name"])}
    return workload


_PROGRAM = {"group": TEXT, "planted": maybe(RATE), "against": maybe(TEXT), "planted_ms": maybe(MS)}
ON_DEVICE = _file(
    "what",
    "selftest on a device",
    _RUN
    | {"protocol": fields(_RULES | dict.fromkeys(_MORE_RULES, COUNT) | {"budget_s": SECONDS})}
    | {"spin": items(_SPIN, 100), "groups": items(_GROUP, 16), "gpu_notes": LINES}
    | {"programs": items(fields(_STATUS | _PROGRAM), 200)},
)  # fmt: skip

# ---- faults, damaged files, asv's overhead ------------------------------------------------------------------------

_COUNTS = dict.fromkeys(("count", "accepted", "refused", "exceptions", "writes_outside"), COUNT)
_SLOWEST = {"file": TEXT, "damage": TEXT, "bytes": BYTES, "number": COUNT, "seconds": SECONDS}
_DAMAGED = fields(
    {
        **MADE,
        "seed": COUNT,
        "total": fields(_COUNTS),
        "slowest": fields(_SLOWEST),
        "findings": items(TEXT, 100),
    }
    | {"rows": items(fields({"file": TEXT, "damage": TEXT, "slowest_s": SECONDS} | _COUNTS), 1000)}
)
FUZZ = _file(
    "what",
    "fuzz",
    {"machine": MACHINE, "limit_s": SECONDS, "kinds": mapping(one_of("results", "yaml"), _DAMAGED, 2)},
)
_FACTS = {"name": PART, "gpu": maybe(TEXT), "cores": COUNT} | dict.fromkeys(
    ("cpu", "python", "torch", "os"), TEXT
)
_REPEAT = dict.fromkeys(("run_of_one_s", "run_of_all_s"), SECONDS)
_REPEAT |= {
    "overhead_s": number(-1e6, 1e6),
    "once_s": number(-1e6, 1e6),
}  # differences of times, possibly negative
ASV_OVERHEAD = _file(
    "kind",
    "asv overhead",
    {
        "machine": fields(_FACTS),
        **MADE,
        "commits": COUNT,
        "overhead_s": number(-1e6, 1e6),
        "once_s": number(-1e6, 1e6),
    }
    | {"rows": items(fields(_REPEAT | {"checkout_s": items(SECONDS, 1001)}), 100)},
)

# ---- make sanitize, make bench-kernels: files that name no kind ---------------------------------------------------

_KERNELS = items(IDENTIFIER, 1000)
_UNDER = {"status": one_of("clean", "errors", "did not finish"), "errors": maybe(COUNT), "kernels": _KERNELS}
_UNDER |= {"summary": pattern(r"[ -~]{1,4000}", "a line of printable ASCII")}
_CALLS = {"part": COUNT, "calls": items(IDENTIFIER, 1000), "seconds": SECONDS}
_TOOL = fields(_UNDER | {"unfinished": items(COUNT, 100), "parts": items(fields(_UNDER | _CALLS), 100)})
_COMPILED = {"missing": COUNT, "compiled": COUNT, "seconds": SECONDS, "problem": maybe(LINE)}
_PREPARED = either(
    fields({"problem": LINE}),
    fields(
        {"cuda": maybe(LINE), "left_out": mapping(IDENTIFIER, LINE, 1000), "compiled": fields(_COMPILED)}
        | {"seconds": mapping(IDENTIFIER, SECONDS, 1000)}
    ),
)
_SANITIZED = {"machine": MACHINE, **MADE, "complete": FLAG, "seconds": SECONDS, "interrupted": FLAG}
_SANITIZED |= {"prepared": _PREPARED, "tools": mapping(one_of("memcheck", "racecheck"), _TOOL, 2)}
_UNNAMED = fields(_SANITIZED)  # older files do not name their kind
_NAMED = _file("what", "sanitizer", _SANITIZED)


def SANITIZED(value: Any) -> Problem | None:
    return (_NAMED if isinstance(value, dict) and "what" in value else _UNNAMED)(value)


_OP = {"name": LINE, "direction": one_of("forward", "backward", "double backward")}
_RAN = {"ran": LINE, "direction": _OP["direction"], "calls": COUNT, "l2": one_of("cold", "hot")}
_OPTIONS = {"disable_gc": FLAG, "timer": TEXT, "min_rounds": COUNT, "max_time": SECONDS, "min_time": SECONDS}
_STATS = dict.fromkeys(("min max mean stddev median iqr q1 q3 ld15iqr hd15iqr ops total").split(), AMOUNT)
_STATS |= dict.fromkeys(("rounds", "iqr_outliers", "stddev_outliers", "iterations"), COUNT)
_BENCHMARK = fields(
    {"group": maybe(LINE), "name": LINE, "fullname": LINE, "params": maybe(fields(_OP)), "param": maybe(LINE)}
    | {"extra_info": fields({}, _RAN), "options": fields(_OPTIONS | {"warmup": either(FLAG, COUNT)})}
    | {
        "stats": fields(
            _STATS | {"outliers": pattern(r"\d+;\d+", "two counts"), "data": items(SECONDS, 10_000)}
        )
    }
)


def _host(value: Any) -> Problem | None:
    """Check the machine in a file of `tests.bench_plugin`, including the form that pytest-benchmark needs."""
    if (
        not isinstance(value, dict)
        or not isinstance(cpu := value.get("cpu"), dict)
        or [*cpu] != ["brand_raw"]
    ):
        return ".cpu", "not an object with brand_raw alone"
    rest = {key: each for key, each in value.items() if key not in ("node", "machine")}
    if (value.get("node"), value.get("machine")) != (value.get("name"), value.get("os")):
        return "", "node and machine are not its name and its system"
    return MACHINE(rest | {"cpu": cpu["brand_raw"]})


BENCHMARKED = fields(
    {"machine_info": _host, "benchmarks": items(_BENCHMARK, 10_000), "version": TEXT, "note": maybe(LINE)}
    | {"commit_info": fields({"id": either(one_of("unknown"), A_COMMIT), "dirty": FLAG})}
    | {"datetime": pattern(r"20\d\d-\d\d-\d\dT[0-9:.+]{8,24}", "a time")}
)

_TEXTS = {
    "faults": _table(
        "faults", "fault", "injected", "outcome", "test", count=COUNT, number=maybe(FLAG), kept=maybe(FLAG)
    ),
    "hostile": _table("hostile", "file", "planted", "refused", "test"),
    "planted-bugs": _table(
        "planted-bugs", "bug", "planted", "caught_by", "test",
        **dict.fromkeys(("phase", "quantity", "tensor"), maybe(TEXT)),
        **dict.fromkeys(("error", "budget", "over_budget"), maybe(AMOUNT)),
    ),
    "sabotaged-rungs": _table("sabotaged-rungs", "rung", "sabotage", "planted", "caught_by", "test"),
}  # fmt: skip
_RULES = _TEXTS | {
    "asv overhead": ASV_OVERHEAD,
    "canary": CANARY,
    "fuzz": FUZZ,
    "pytest-benchmark": BENCHMARKED,
    "sanitizer": SANITIZED,
    "selftest": SIMULATED,
    "selftest of bench-compare": TRIED,
    "selftest of bench-compare, simulated": COMPARED,
    "selftest on a device": ON_DEVICE,
}
KINDS = (
    *(Kind(name, rule) for name, rule in _RULES.items()),
    Kind("compare", accepting.RULE, accepting.problem_of),
)
