"""The kind of a result of `ladder profile`; `ladder.studies.profile.record` has the rules of its fields."""

from ladder.results.check import study
from ladder.studies.profile.record import Result, contradiction

KIND = study("profile", Result, contradiction)
