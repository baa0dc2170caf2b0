"""The kind of a result of `ladder noise`; `ladder.studies.noise.record` has the rules of its fields."""

from ladder.results.check import study
from ladder.studies.noise.record import Result, contradiction

KIND = study("noise", Result, contradiction)
