"""Which cases of a sweep `make test` runs; `make test-all` runs every one.

A test marked ``covering`` is a product of parameters. Its quick cases hold every value of every parameter, and with
``covering("op", "layout")`` also every pair of values of the parameters named. The others get the mark ``exhaustive``.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def mark_exhaustive(items: Iterable[pytest.Item]) -> None:
    """Mark what `make test` leaves out, of each test marked ``covering`` among the items."""
    sweeps = defaultdict(list)
    for item in items:
        if item.get_closest_marker("covering") and not item.get_closest_marker("gpu"):
            sweeps[item.path, item.cls, item.originalname].append(item)
    for cases in sweeps.values():
        together = cases[0].get_closest_marker("covering").args
        quick = _cover([_held(case.callspec.params, together) for case in cases])
        for number, case in enumerate(cases):
            if number not in quick:
                case.add_marker("exhaustive")


def each_value(rows: Sequence[Any]) -> list[Any]:
    """Return named tuples as parameters of a test; the quick ones hold every value of every field."""
    quick = _cover([set(row._asdict().items()) for row in rows])
    marks = [() if number in quick else pytest.mark.exhaustive for number in range(len(rows))]
    return [pytest.param(row, marks=mark) for row, mark in zip(rows, marks, strict=True)]


def _cover(holds: list[set[Any]]) -> set[int]:
    """Return numbers of few sets that hold all that any holds: each time the one with most that is new."""
    wanted, chosen = set().union(*holds), set()
    while wanted:
        best = max(range(len(holds)), key=lambda number: len(holds[number] & wanted))
        chosen.add(best)
        wanted -= holds[best]
    return chosen


def _held(params: dict[str, Any], together: tuple[str, ...]) -> set[Any]:
    """Return each parameter with its value, and the values of parameters named together, by pairs.

    Values are told apart as objects: many have no hash, and all cases of a test share them.
    """
    values = {name: id(value) for name, value in params.items()}
    pairs = itertools.combinations(sorted(together), 2)
    return {*values.items(), *((a, values[a], b, values[b]) for a, b in pairs)}
