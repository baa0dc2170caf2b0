"""The rules of a whole result and of its parts, made from the fields of `ladder.results.types`.

A key that no field names is refused. Whoever writes a new key into results adds a field for it; an optional one, so
that older results stay valid. The schemas of the other kinds of result take their rules from here, too.
"""

from ladder.base.records import rule_of
from ladder.base.rules import fields, items, mapping, maybe, number, one_of, pattern
from ladder.machine import environment
from ladder.results import types
from ladder.results.values import (
    A_COMMIT,
    AMOUNT,
    BYTES,
    CODE_DIGEST,
    COUNT,
    DIGEST,
    ENVIRONMENT,
    FACTOR,
    FLAG,
    IDENTIFIER,
    MICROSECONDS,
    MS,
    NOTES,
    PAIR,
    PART,
    PHASE,
    RECIPE,
    SCALAR,
    SECONDS,
    SETTINGS,
    STARTED,
    TEXT,
    WORKLOAD,
)

__all__ = [
    "AMOUNT", "BYTES", "CODE", "COMMIT", "COMMIT_OR_NONE", "CONDITIONS", "COUNT", "DIGEST", "FACTOR", "FLAG",
    "IDENTIFIER",
    "INSPECTION", "INTERVAL", "LAYOUT", "LINE", "MACHINE", "MICROSECONDS", "MS", "NOTES", "PARITY", "PART",
    "PHASE", "RATE", "REAL", "RECEIPTS", "RECIPE", "RESULT", "ROUND", "RUN_GPU", "SCALAR", "SECONDS",
    "SETTINGS", "SHAPE", "SHAPED", "STARTED", "SUMMARY", "TEXT", "VERDICT", "WORKLOAD",
]  # fmt: skip

MACHINE = rule_of(types.Machine)
ROUND = rule_of(types.Round)
INSPECTION = rule_of(types.Inspection)
PARITY = rule_of(types.Parity)
RECEIPTS = mapping(PART, rule_of(types.Receipt), 64)
RUN_GPU = rule_of(types.RunGpu)
RESULT = rule_of(types.Result)

# Keys of every kind of result that is measured, where it says them.
CONDITIONS = {environment.KEY: ENVIRONMENT, "images": rule_of(types.Images)}
CODE = {
    "commits": items(A_COMMIT, 100, least=2),
    "measured_code": mapping(IDENTIFIER, CODE_DIGEST, 8),
}
COMMIT = A_COMMIT
COMMIT_OR_NONE = maybe(COMMIT)
INTERVAL = maybe(PAIR)
SUMMARY = fields({"median": AMOUNT, "interval": INTERVAL})
REAL = number(-1e30, 1e30)
RATE = number(1e-30, 1e30)
SHAPED = pattern(r"[A-Za-z0-9 ,.*_x-]{1,120}", "an op with its shape")
VERDICT = pattern(r"[a-z][a-z ]{0,40}", "a verdict")
LAYOUT = one_of("channels_last", "NCHW", "nchw", "nhwc")
SHAPE = items(number(0, 2**31, whole=True), 8, least=1)
LINE = pattern(r"[ -~]{1,1000}", "a line of printable ASCII")
