"""`ladder validate` of all that the project wrote itself: each committed file is accepted, a hostile one refused."""

import copy
import io
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ladder.publish.validation import kinds, validate
from tests.publish.validation.test_validate import call
from tests.support.judging_files import judge
from tests.support.typed import problem_of

ROOT = Path(__file__).parents[3]
NAMES = sorted((*kinds.CHECKS, "canary"))


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """results/ as it is committed: what a user has measured here since is no business of this test."""
    if not (ROOT / ".git").exists():
        pytest.skip("no repository")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    run = subprocess.run(["git", "archive", "HEAD", "results"], cwd=ROOT, capture_output=True, env=clean)
    if run.returncode:
        pytest.skip("no commit of results/ can be read")
    folder = tmp_path_factory.mktemp("committed")
    with tarfile.open(fileobj=io.BytesIO(run.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "results"


@pytest.fixture(scope="module")
def smallest(committed: Path) -> dict[str, Any]:
    """Return the smallest committed file of each kind, its lists cut to three entries."""
    found: dict[str, Any] = {}
    for path in sorted(committed.rglob("*.json"), key=lambda path: path.stat().st_size):
        data = json.loads(path.read_text())
        kind = kinds.kind_of(data)
        if kind in NAMES and kind not in found:
            found[kind] = cut(data)
    return found


def cut(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: cut(each) for key, each in value.items()}
    return [cut(each) for each in value[:3]] if isinstance(value, list) else value


def test_every_committed_result_is_accepted(committed: Path) -> None:
    judged = list(validate.validate([committed]))
    assert len(judged) > 100
    assert {each.path: each.problem for each in judged if each.problem} == {}


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value with the way to it, of a list the first entry alone."""
    yield way, value
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    )
    for key, each in inner:
        yield from places(each, (*way, key))


def planted(data: Any, way: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(data)
    if not way:
        return value
    holder = changed
    for key in way[:-1]:
        holder = holder[key]
    holder[way[-1]] = value
    return changed


LONG, ESCAPE = "x" * 5000, "\x1b[2Jx"
UNWANTED = {dict: (LONG, []), list: (LONG, {}), int: (1e300, -1e300, LONG), float: (1e300, -1e300, LONG)}


@pytest.mark.parametrize("kind", NAMES)
def test_nothing_unknown_or_immoderate_is_accepted_anywhere(smallest: dict[str, Any], kind: str) -> None:
    """At every place of a genuine file: an unknown key, NaN, a number out of range, another type, too long a text."""
    genuine = smallest[kind]
    assert problem_of(genuine) is None
    for way, value in places(genuine):
        tried = [{**value, "<host>": 1}] if isinstance(value, dict) else []
        tried += UNWANTED.get(type(value), (LONG, ESCAPE))
        if isinstance(value, int | float):
            tried.append(float("nan"))
        for other in tried:
            problem = problem_of(planted(genuine, way, other))
            assert problem, (way, str(other)[:20])
            assert problem.isascii() and problem.isprintable() and len(problem) < 400, problem


def test_nan_is_refused_where_a_file_spells_it(tmp_path: Path, smallest: dict[str, Any]) -> None:
    for data in smallest.values():
        text = re.sub(r": -?[0-9.e-]+", ": NaN", json.dumps(data), count=1)
        assert judge(tmp_path, text) == "not a result file: NaN is not allowed, a missing number is null"


def test_a_kind_that_is_misspelt_is_named_with_the_nearest(tmp_path: Path) -> None:
    says = judge(tmp_path, {"schema": 1, "kind": "canari"})
    assert says == "kind: 'canari' is none that this project writes; did you mean 'canary'?"


@pytest.mark.parametrize("kind", ["canaries", ["kernels"], "kernels "])
def test_another_kind_is_named(tmp_path, kind):
    says = judge(tmp_path, {"schema": 1, "kind": kind})
    assert says.startswith("kind: ") and "is none that this project writes" in says


def test_a_machine_that_is_not_made_from_its_hardware_is_refused(smallest: dict[str, Any]) -> None:
    for data in smallest.values():
        for key in ("machine", "machine_info"):
            if key in data:
                changed = copy.deepcopy(data)
                changed[key] |= dict.fromkeys(
                    ("name", "node") if "node" in changed[key] else ("name",), "nvidia-b200"
                )
                assert "is not made from its hardware" in problem_of(changed)


def test_what_is_no_result_is_said_in_one_line(tmp_path: Path) -> None:
    """A page, a lock, a folder of neither: each is named with what would be one."""
    page = tmp_path / "README.md"
    page.write_text("# Results\n")
    lock = tmp_path / ".lock"
    lock.touch()
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / ".gitkeep").touch()
    (empty / "notes.txt").write_text("x")
    for path in (page, lock, empty / ".gitkeep"):
        run = call(path)
        assert run.exit_code == 1 and "refused: not a result: its name does not end in .json" in run.stdout
    run = call(empty)
    assert run.exit_code == 1 and "no result in this folder: no name in it ends in .json" in run.stdout
    run = call(tmp_path / "nothing")
    assert run.exit_code == 1 and "cannot be read: No such file or directory" in run.stdout
