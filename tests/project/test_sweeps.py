"""What of a sweep `make test` runs: every value of every parameter, and pairs where a test asks for them."""

import itertools
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from tests.support import sweeps

OPS, LAYOUTS, DTYPES = range(5), range(2), range(3)


class Item:
    """The part of a collected case that sweeps look at."""

    path, cls = "test_x.py", None

    def __init__(self, marks: dict[str, tuple], name: str = "test_x", **params: int) -> None:
        self.marks, self.originalname = dict(marks), name
        self.callspec = SimpleNamespace(params=params)

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(args=self.marks[name]) if name in self.marks else None

    def add_marker(self, name: str) -> None:
        self.marks[name] = ()


def quick_of(marks: dict[str, tuple], name: str = "test_x") -> list[tuple[int, ...]]:
    """The cases of ops x layouts x dtypes that `make test` runs."""
    items = [
        Item(marks, name, op=op, layout=layout, dtype=dtype)
        for op, layout, dtype in itertools.product(OPS, LAYOUTS, DTYPES)
    ]
    sweeps.mark_exhaustive(items)
    return [tuple(each.callspec.params.values()) for each in items if "exhaustive" not in each.marks]


def test_every_value_is_in_a_quick_case_and_few_cases_hold_them():
    found = quick_of({"covering": ()})
    assert [set(values) for values in zip(*found, strict=True)] == [set(OPS), set(LAYOUTS), set(DTYPES)]
    assert len(found) == len(OPS)


def test_every_pair_of_parameters_named_together_is_in_a_quick_case():
    found = quick_of({"covering": ("op", "layout")})
    assert {case[:2] for case in found} == set(itertools.product(OPS, LAYOUTS))
    assert {case[2] for case in found} == set(DTYPES) and len(found) == len(OPS) * len(LAYOUTS)


def test_a_parameter_that_a_test_does_not_have_is_an_error():
    with pytest.raises(KeyError, match="colour"):
        quick_of({"covering": ("op", "colour")})


def test_without_the_mark_and_on_a_gpu_every_case_is_quick():
    every = len(OPS) * len(LAYOUTS) * len(DTYPES)
    assert len(quick_of({})) == len(quick_of({"covering": (), "gpu": ()})) == every


def test_one_test_s_cases_do_not_stand_for_another_s():
    items = [Item({"covering": ()}, name, op=0) for name in ("test_x", "test_y")]
    sweeps.mark_exhaustive(items)
    assert not any("exhaustive" in each.marks for each in items)


def test_named_tuples_are_quick_until_every_field_s_values_were_seen():
    class Row(NamedTuple):
        tile: int
        warps: int

    rows = [Row(tile, warps) for tile in (16, 32) for warps in (1, 2)]
    quick = [each.values[0] for each in sweeps.each_value(rows) if not each.marks]
    assert quick == [Row(16, 1), Row(32, 2)]
    assert [each.values[0] for each in sweeps.each_value(rows)] == rows


@pytest.mark.covering
@pytest.mark.parametrize("b", [[1], [2], [3]])
@pytest.mark.parametrize("a", [{}, {"x": 1}])
def test_swept(a, b):
    """A sweep that the next test finds among pytest's own cases."""
    assert isinstance(a, dict) and isinstance(b, list)


def test_pytest_s_own_cases_are_few(request):
    cases = [item for item in request.session.items if item.originalname == "test_swept"]
    if len(cases) < 3:
        pytest.skip("the cases were not asked for")
    quick = [each for each in cases if not each.get_closest_marker("exhaustive")]
    assert len(quick) == 3
    for name, count in (("a", 2), ("b", 3)):
        assert len({str(each.callspec.params[name]) for each in quick}) == count
