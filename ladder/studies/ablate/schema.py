"""The kind of a result of `ladder ablate`; `ladder.studies.ablate.record` has the rules of its fields."""

from ladder.base.records import build, rule_of
from ladder.results.check import Kind
from ladder.studies.ablate.record import Result, contradiction

KIND = Kind("ablation", rule_of(Result), lambda data: contradiction(build(Result, data)), notes=True)
