"""The kind of a result of `ladder noise`; `ladder.studies.noise.record` has the rules of its fields."""

from ladder.base.records import build, rule_of
from ladder.results.check import Kind
from ladder.studies.noise.record import Result, contradiction

KIND = Kind("noise", rule_of(Result), lambda data: contradiction(build(Result, data)), notes=True)
