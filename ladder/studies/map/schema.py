"""The kind of a result of `ladder map`; `ladder.studies.map.record` has the rules of its fields."""

from ladder.results.check import study
from ladder.studies.map.record import Result, contradiction

KIND = study("map", Result, contradiction)
