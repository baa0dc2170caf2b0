"""The rules of a whole result and of its parts, made from the fields of `ladder.results.types`.

A key that no field names is refused. Whoever writes a new key into results adds a field for it; an optional one, so
that older results stay valid. The schemas of the other kinds of result take their rules from here and from
`ladder.results.values`.
"""

from ladder.base.records import rule_of
from ladder.base.rules import items, mapping, number, one_of, pattern
from ladder.machine import environment
from ladder.results import types
from ladder.results.values import A_COMMIT, CODE_DIGEST, ENVIRONMENT, IDENTIFIER

MACHINE = rule_of(types.Machine)
ROUND = rule_of(types.Round)
RUN_GPU = rule_of(types.RunGpu)

# Keys of every kind of result that is measured, where it says them.
CONDITIONS = {environment.KEY: ENVIRONMENT, "images": rule_of(types.Images)}
CODE = {
    "commits": items(A_COMMIT, 100, least=2),
    "measured_code": mapping(IDENTIFIER, CODE_DIGEST, 8),
}
REAL = number(-1e30, 1e30)
RATE = number(1e-30, 1e30)
SHAPED = pattern(r"[A-Za-z0-9 ,.*_x-]{1,120}", "an op with its shape")
VERDICT = pattern(r"[a-z][a-z ]{0,40}", "a verdict")
LAYOUT = one_of("channels_last", "NCHW", "nchw", "nhwc")
SHAPE = items(number(0, 2**31, whole=True), 8, least=1)
LINE = pattern(r"[ -~]{1,1000}", "a line of printable ASCII")
