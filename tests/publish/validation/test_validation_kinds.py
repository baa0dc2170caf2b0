"""`ladder validate` of all that the project wrote itself: each committed file is accepted, a hostile one refused."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ladder.core.plain import Plain
from ladder.core.records import write_record
from ladder.publish.validation import validate
from tests.support import committed, made_up_kernels
from tests.support.judging_files import judge
from tests.support.typed import problem_of

ROOT = Path(__file__).parents[3]
NAMES = sorted(kind.name for kind in validate.CHECKS)


@pytest.fixture(scope="module")
def results() -> Path:
    """results/ as it is committed: what a user has measured here since is no business of this test."""
    return committed.folder()


@pytest.fixture(scope="module")
def smallest(results: Path) -> dict[str, Any]:
    """The smallest committed file of each kind, its lists cut to three entries."""
    files: dict[str, Any] = {}
    for path in sorted(results.rglob("*.json"), key=lambda path: path.stat().st_size):
        data = json.loads(path.read_text())
        if validate.kind_of(data) in NAMES:
            files.setdefault(validate.kind_of(data), cut(data))
    return files


def cut(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: cut(each) for key, each in value.items()}
    return [cut(each) for each in value[:3]] if isinstance(value, list) else value


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value with the way to it, of a list the first entry alone."""
    yield way, value
    lists = enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in value.items() if isinstance(value, dict) else lists:
        yield from places(each, (*way, key))


def plant(data: Any, way: tuple[Any, ...], value: Any) -> Any:
    """A copy of plain data with another value at a place."""
    changed = copy.deepcopy([data])
    holder, last = changed, 0
    for key in way:
        holder, last = holder[last], key
    holder[last] = value
    return changed[0]


def test_every_committed_result_is_accepted(results: Path) -> None:
    judged = validate.validate([results])
    assert len(judged) > 100
    assert {each.path: each.problem for each in judged if each.problem} == {}


LONG, ESCAPE = "x" * 5000, "\x1b[2Jx"
UNWANTED = {dict: (LONG, []), list: (LONG, {}), int: (1e300, -1e300, LONG), float: (1e300, -1e300, LONG)}


@pytest.mark.parametrize("kind", NAMES)
def test_nothing_unknown_or_immoderate_is_accepted_anywhere(smallest: dict[str, Any], kind: str) -> None:
    """At every place of a genuine file: an unknown key, NaN, a number out of range, another type, too long a text."""
    genuine = smallest[kind]
    assert problem_of(genuine) is None
    for way, value in places(genuine):
        hostile = [{**value, "<host>": 1}] if isinstance(value, dict) else []
        hostile += UNWANTED.get(type(value), (LONG, ESCAPE))
        if isinstance(value, int | float):
            hostile.append(float("nan"))
        for other in hostile:
            problem = problem_of(plant(genuine, way, other))
            assert problem, (way, str(other)[:20])
            assert problem.isascii() and problem.isprintable() and len(problem) < 400, problem


def test_nan_and_a_machine_that_is_not_made_from_its_hardware_are_refused(
    tmp_path: Path, smallest: dict[str, Any]
) -> None:
    for data in smallest.values():
        text = re.sub(r": -?[0-9.e-]+", ": NaN", json.dumps(data), count=1)
        assert judge(tmp_path, text) == "not a result file: NaN is not allowed, a missing number is null"
        key = "machine" if "machine" in data else "machine_info"
        assert "is not made from its hardware" in problem_of(plant(data, (key, "name"), "nvidia-b200"))


@pytest.mark.parametrize("kind", ["qualiti", ["kernels"], "kernels ", 7])
def test_another_kind_is_named(tmp_path: Path, kind: Any) -> None:
    problem = judge(tmp_path, {"schema": 1, "kind": kind})
    assert problem.startswith("kind: ") and "is none that this project writes" in problem
    assert ("did you mean 'quality'?" in problem) == (kind == "qualiti")


@pytest.fixture
def kernels() -> Plain:
    cases = made_up_kernels.cases(quick=True)[:2]
    rows = [made_up_kernels.row(case, direction) for case in cases for direction in case.directions]
    return json.loads(json.dumps(write_record(made_up_kernels.file(rows))))


def test_kernels_are_accepted_or_refused_with_the_place(tmp_path: Path, kernels: Plain) -> None:
    assert judge(tmp_path, kernels) is None
    key, row = next(iter(kernels["observed"])), ("rows", 0)
    for way, value, words in (
        ((*row, "where"), "/home/x", f"observed.{key}.rows[0]: unknown key 'where'"),
        ((*row, "samples_us", "cold", "ours"), ["x"], "samples_us.cold.ours[0]: 'x' is not a number"),
        ((*row, "notes"), ["<b>"], "notes[0]"),
        (("rows",), [], "ok without every direction"),
    ):
        assert words in judge(tmp_path, plant(kernels, ("observed", key, *way), value))
    assert "commits: not several" in judge(tmp_path, kernels | {"commits": [kernels["commit"]] * 2})
    kernels["options"]["quick"] = True
    (tmp_path / "a.json").write_text(json.dumps(kernels))
    (judged,) = validate.validate([tmp_path / "a.json"])
    assert judged.verdict == "accepted; quick: not to be quoted"


@pytest.mark.parametrize("name, way", [("tuning", ("choice", "tile")), ("filter-tuning", ("config", "rows"))])
def test_a_tuning_is_accepted_or_refused_with_the_place(
    tmp_path: Path, name: str, way: tuple[str, str]
) -> None:
    path = committed.file(f"results/kernels/nvidia-h200-{name}.json")
    assert validate.problem_of(path) is None
    changed = plant(json.loads(path.read_text()), ("timed", 0, *way), "2048")
    assert judge(tmp_path, changed).startswith(f"timed[0].{'.'.join(way)}: '2048' is not a number")
