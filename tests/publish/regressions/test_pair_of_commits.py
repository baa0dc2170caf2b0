"""`ladder bench-compare --model`: two commits of a user's repository, with the package that the pair imports."""

import sys

import pytest

from ladder.publish.validation import validate
from ladder.studies import frame
from ladder.studies.commits import judging
from ladder.studies.commits.study import STUDY
from stylegan_lite.config import ConfigError
from stylegan_lite.step import loading
from tests.studies.test_studies_of_pairs import PAIR
from tests.support import servers
from tests.support.commands import call, refused
from tests.support.repositories import commit_all, git

kept_servers = servers.kept_servers
pytestmark = pytest.mark.usefixtures("kept_servers")
PLACE = "        fake ="


@pytest.fixture
def repository(tmp_path):
    """A repository with a package at its top, and the pair in a folder."""
    (top := tmp_path / "their_repository").mkdir()
    for name in ("their_package", "adapters"):
        (top / name).mkdir()
    (top / "their_package" / "__init__.py").write_text("")
    (top / "their_package" / "pace.py").write_text("def pause(): pass\n")
    imported = PAIR.replace("import torch\n", "import torch\nfrom their_package import pace\n", 1)
    (top / "adapters" / "my_pair.py").write_text(imported.replace(PLACE, f"        pace.pause()\n{PLACE}"))
    git(tmp_path, "init", "-qb", "main", top.name)
    commit_all(top, "one")
    return top


def compare(repository, *more):
    model = ("--model", repository / "adapters" / "my_pair.py", "--rungs", "baseline")
    return "bench-compare", *model, "--device", "cpu", "--out", repository.parent / "out", *more


def test_a_slower_package_is_found_and_the_working_tree_does_not_count(repository):
    base = git(repository, "rev-parse", "HEAD")
    pace = repository / "their_package" / "pace.py"
    pace.write_text("import time\ndef pause(): time.sleep(0.1)\n")
    commit_all(repository, "two")
    pace.write_text("def pause(): 1 / 0\n")
    done = call(*compare(repository, "--base", base, "--generations", 3))
    assert done.exit_code == 1 and "HEAD is slower or broken: baseline (wall time)" in done.output, (
        done.output
    )
    assert "uncommitted changes in your repository are not measured" in done.output
    (path,) = (repository.parent / "out").glob("*.json")
    assert validate.problem_of(path) is None
    for hidden in ("their_package", "adapters", "their_repository", "pace"):
        assert hidden not in path.read_text()
    case = next(iter((file := frame.read_file(STUDY, path)).cases.values()))
    assert case.base.measured_code != case.head.measured_code
    assert file.workload["pair"] == case.head.measured_code["pair"]
    assert [len(each.rounds) for each in judging.judge(file).programs] == [3, 3, 3]


def test_a_head_that_does_not_run_is_an_alarm_and_a_base_that_does_not_is_none(repository):
    base = git(repository, "rev-parse", "HEAD")
    (repository / "their_package" / "pace.py").write_text("def pause(): 1 / 0\n")
    head = commit_all(repository, "two")
    done = call(*compare(repository, "--base", base))
    assert done.exit_code == 1 and "HEAD is broken: " in done.stderr and "ZeroDivisionError" in done.stderr
    assert refused(*compare(repository, "--base", head, "--head", base)).startswith("ladder: BASE: ")


def test_a_pair_that_no_repository_holds_is_refused(repository):
    assert "no such commit" in refused(*compare(repository, "--base", "gone"))
    (alone := repository.parent / "alone").mkdir()
    (alone / "my_pair.py").write_text(PAIR)
    assert "no git repository" in refused("bench-compare", "--model", alone / "my_pair.py", "--device", "cpu")


def test_another_batch_on_either_side_is_refused(repository):
    base = git(repository, "rev-parse", "HEAD")
    path = repository / "adapters" / "my_pair.py"
    path.write_text(path.read_text().replace("make(batch=6)", "make(batch=8)"))
    commit_all(repository, "two")
    assert "batch: 6 at BASE and 8 at HEAD: give --set batch=NUMBER" in refused(
        *compare(repository, "--base", base)
    )


def test_a_package_on_the_path_comes_from_the_commit_and_another_is_refused(repository, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(repository / "adapters")])
    copy = repository.parent / "copy"
    loading.prefer_copy(str(copy), str(repository))
    assert sys.path[0] == str(copy / "adapters")
    monkeypatch.syspath_prepend(repository)
    module = loading.import_model(str(repository / "adapters"), "my_pair.py")
    with pytest.raises(ConfigError, match="is not in the repository"):
        loading.refuse_others(module, str(copy), str(repository.parent / "elsewhere"))
    with pytest.raises(ConfigError, match="imported from the working tree"):
        loading.refuse_others(module, str(repository), str(repository))
