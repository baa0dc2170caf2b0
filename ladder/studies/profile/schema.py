"""The kind of a result of `ladder profile`; `ladder.studies.profile.record` has the rules of its fields."""

from ladder.base.records import build, rule_of
from ladder.results.check import Kind
from ladder.studies.profile.record import Result, contradiction

KIND = Kind("profile", rule_of(Result), lambda data: contradiction(build(Result, data)), notes=True)
