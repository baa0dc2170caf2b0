"""The kind of a result of `ladder scale`; `ladder.studies.scale.record` has the rules of its fields."""

from ladder.results.check import study
from ladder.studies.scale.record import Result, contradiction

KIND = study("scaled", Result, contradiction)
