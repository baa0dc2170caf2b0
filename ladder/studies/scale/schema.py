"""The kind of a result of `ladder scale`; `ladder.studies.scale.record` has the rules of its fields."""

from ladder.base.records import build, rule_of
from ladder.results.check import Kind
from ladder.studies.scale.record import Result, contradiction

KIND = Kind("scaled", rule_of(Result), lambda data: contradiction(build(Result, data)), notes=True)
