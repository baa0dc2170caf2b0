"""The kind of a result of `ladder ablate`; `ladder.studies.ablate.record` has the rules of its fields."""

from ladder.results.check import study
from ladder.studies.ablate.record import Result, contradiction

KIND = study("ablation", Result, contradiction)
