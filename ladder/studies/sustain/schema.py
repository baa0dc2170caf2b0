"""The kind of a result of `ladder sustain`; `ladder.studies.sustain.record` has the rules of its fields."""

from ladder.results.check import study
from ladder.studies.sustain.record import Result, contradiction

KIND = study("sustained", Result, contradiction)
