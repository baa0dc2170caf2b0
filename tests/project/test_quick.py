"""`make quick`: which tests belong to what changed."""

from pathlib import Path

import pytest

from tests.support import quick
from tests.support.repositories import commit_all, git


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path in (
        "tests/engine/test_pool.py",
        "tests/engine/test_other.py",
        "tests/rungs/test_rung_bf16.py",
        "tests/stylegan_lite/test_step.py",
        "tests/support/small.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("ladder/engine/pool.py", ["tests/engine/test_pool.py"]),
        ("ladder/engine/worker.py", ["tests/engine"]),
        ("ladder/engine/inner/worker.py", ["tests/engine"]),
        ("ladder/rungs/bf16.py", ["tests/rungs/test_rung_bf16.py"]),
        ("stylegan_lite/step.py", ["tests/stylegan_lite/test_step.py"]),
        ("tests/engine/test_other.py", ["tests/engine/test_other.py"]),
        ("tests/engine/test_deleted.py", []),
        ("tests/support/small.py", []),
        ("ladder/nowhere/a.py", []),
        ("docs/proof.md", []),
        ("conftest.py", []),
    ],
)
def test_a_changed_file_has_the_tests_of_its_name_or_of_its_room(
    tree: Path, path: str, tests: list[str]
) -> None:
    assert quick.tests_of(path, tree) == tests


def test_each_test_is_run_once() -> None:
    found = quick.chosen(["tests/project/test_quick.py", "tests/project/test_order.py"])
    assert found == [*quick.ALWAYS, "tests/project/test_quick.py"]


def test_a_clean_tree_has_changed_what_its_last_commit_did(tree: Path) -> None:
    git(tree, "init", "-q")
    commit_all(tree, "all")
    (tree / "one file.py").touch()
    commit_all(tree, "one")
    assert quick.changed(tree) == ["one file.py"]
    (tree / "tests/engine/test_pool.py").write_text("x = 1\n")
    (tree / "new.py").touch()
    assert quick.changed(tree) == ["new.py", "tests/engine/test_pool.py"]
