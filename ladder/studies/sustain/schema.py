"""The kind of a result of `ladder sustain`; `ladder.studies.sustain.record` has the rules of its fields."""

from ladder.base.records import build, rule_of
from ladder.results.check import Kind
from ladder.studies.sustain.record import Result, contradiction

KIND = Kind("sustained", rule_of(Result), lambda data: contradiction(build(Result, data)), notes=True)
