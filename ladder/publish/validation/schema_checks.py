"""The permitted content of the files of the project's own checks: faults, asv's overhead and others.

Each kind is one rule, as strict as those of `ladder.results.schema`. Unlisted keys are refused, numbers are finite
and in range, texts are short. A new key must be added here.
"""

from __future__ import annotations

from typing import Any

from ladder.base.rules import Problem, Rule, either, fields, items, maybe, number, one_of, pattern
from ladder.publish.regressions import schema as accepting
from ladder.results import store as results
from ladder.results.check import Kind
from ladder.results.schema import CODE, CONDITIONS, MACHINE
from ladder.results.values import (
    A_COMMIT,
    AMOUNT,
    COUNT,
    FLAG,
    PART,
    SECONDS,
    STARTED,
    TEXT,
)
from ladder.training import canary_file

LINE = pattern(r"[ -~]{1,300}", "a line of at most 300 printable ASCII characters")
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


# ---- faults, asv's overhead ------------------------------------------------------------------------------------

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

# ---- make bench-kernels: a file that names no kind ----------------------------------------------------------------

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
    "pytest-benchmark": BENCHMARKED,
}
KINDS = (
    canary_file.KIND,
    *(Kind(name, rule) for name, rule in _RULES.items()),
    Kind("compare", accepting.RULE, accepting.problem_of),
)
