"""Calls of git: the same answer whatever the environment and the user's settings are, and one line where none is."""

import shutil
from pathlib import Path

import pytest

from ladder.cli import submit
from ladder.core import files, git
from ladder.core.errors import UserError
from ladder.machine import system
from ladder.studies.commits import checkouts
from tests.support import repositories
from tests.support.repositories import commit_all


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with code in two commits."""
    folder = tmp_path / "clone"
    (folder / "ladder").mkdir(parents=True)
    (folder / "kernels").mkdir()
    repositories.git(folder, "init", "-q", "-b", "main")
    for number in (1, 2):
        (folder / "ladder" / "a.py").write_text(f"{number}\n")
        commit_all(folder, str(number))
    return folder


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Somebody else's repository."""
    (tmp_path / "other").mkdir()
    repositories.git(tmp_path / "other", "init", "-q")
    repositories.git(tmp_path / "other", "commit", "-q", "--allow-empty", "-m", "other")
    return tmp_path / "other"


def answers(root: Path) -> tuple:
    """Everything that is asked of a repository."""
    commit = git.read_commit(root)
    return (
        commit,
        git.commit_of(root),
        git.list_changes(root, ["ladder", "kernels"]),
        git.read_dates(root, {commit, "0" * 40}),
        checkouts.commit_of("HEAD~1", "BASE", root),
        git.is_shallow(root),
    )


VARIABLES = {
    "GIT_DIR": "{other}/.git",
    "GIT_WORK_TREE": "{other}",
    "GIT_INDEX_FILE": "{other}/.git/index",
    "GIT_COMMON_DIR": "{other}/.git",
    "GIT_OBJECT_DIRECTORY": "{other}/.git/objects",
    "GIT_CONFIG_PARAMETERS": "'core.worktree'='{other}'",
    "GIT_NAMESPACE": "other",
    "GIT_CEILING_DIRECTORIES": "{other}/..",
    "GIT_LITERAL_PATHSPECS": "0",
    "GIT_SHALLOW_FILE": "{other}/.git/none",
    "GIT_TRACE": "1",
}


@pytest.mark.parametrize(
    "names", [[name] for name in VARIABLES] + [["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"]]
)
def test_no_variable_of_git_leads_to_another_repository(root, other, monkeypatch, names):
    """git sets them for its hooks, and `git rebase --exec` for its command."""
    (root / "kernels" / "new.py").touch()
    expected = answers(root)
    assert expected[2] == ["kernels/new.py"] and expected[1] == (expected[0], True)
    for name in names:
        monkeypatch.setenv(name, VARIABLES[name].format(other=other))
    assert answers(root) == expected


def test_a_folder_of_another_repository_has_no_commit_for_run_nor_for_submit(root, tmp_path, monkeypatch):
    """An archive unpacked and committed inside somebody's repository."""
    monkeypatch.setattr(system, "choose_device", lambda requested=None: "cpu")
    shutil.copytree(root, tmp_path / "parent" / "copy", ignore=shutil.ignore_patterns(".git"))
    repositories.git(tmp_path / "parent", "init", "-q")
    commit_all(tmp_path / "parent", "vendored")
    copy = tmp_path / "parent" / "copy"
    assert git.commit_of(copy) == (None, None)
    with pytest.raises(UserError, match="a folder of another git repository: clone the repository with git"):
        submit.prepare(None, copy)
    assert submit.prepare(None, root).commit == git.commit_of(root)[0]


def untrusted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "KEPT", git.KEPT | {"GIT_TEST_ASSUME_DIFFERENT_OWNER"})
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("HOME", str(root.parent))


WITHOUT = {
    "no git": (lambda root, patch: patch.setenv("PATH", str(root)), "git was not found: install git"),
    "no repository": (lambda root, patch: shutil.rmtree(root / ".git"), "no git repository, .*: clone the"),
    "another's": (untrusted, r"another user owns it: git config --global --add safe\.directory /"),
    "no commit": (
        lambda root, patch: repositories.git(root, "checkout", "-q", "--orphan", "new"),
        "no commit yet",
    ),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_where_git_knows_no_commit_one_line_says_what_helps(root, monkeypatch, case):
    spoil, said = WITHOUT[case]
    spoil(root, monkeypatch)
    assert git.commit_of(root) == (None, None)
    for ask in (submit.prepare, lambda budget, root: checkouts.commit_of("HEAD", "HEAD", root)):
        with pytest.raises(UserError, match=said) as refused:
            ask(None, root)
        assert "\n" not in str(refused.value) and str(refused.value) == git.find_problem(root)


def test_the_digest_of_a_file_with_plain_line_ends_is_what_it_was(tmp_path):
    """Stored results hold such digests."""
    (tmp_path / "a.py").write_bytes(b"x = 1\ny = 2\n")
    found = files.digest_sources(tmp_path, [tmp_path / "a.py"])
    assert found == "be37e11d2b72807f4e43e8bfa703813d3439848a2bb8793866ee292445d06d42"
