"""The kind of a result of `ladder map`; `ladder.studies.map.record` has the rules of its fields."""

from ladder.base.records import build, rule_of
from ladder.results.check import Kind
from ladder.studies.map.record import Result, contradiction

KIND = Kind("map", rule_of(Result), lambda data: contradiction(build(Result, data)), notes=True)
