"""Paths of outputs that a user names: nothing that is read, and no unfinished run, is written over."""

import os

import pytest
from click.testing import CliRunner

from ladder.cli.main import main
from ladder.core.errors import UserError
from ladder.report import tables
from ladder.results import store as results
from tests.support.made_up import cpu_run
from tests.support.typed import write_run

RUN = {"machine": {"name": "h"}, "commit": "a" * 40, "started": "2026-11-01T00:00:00+00:00"}


@pytest.fixture
def result(tmp_path):
    path = tmp_path / "r.json"
    write_run(path, cpu_run())
    return path


def called(*arguments):
    return CliRunner().invoke(main, [str(each) for each in arguments])


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("option", ["--csv", "--markdown"])
def test_a_table_does_not_take_the_place_of_its_result(result, option, link):
    before, out = result.read_bytes(), result
    if link:
        out = result.with_name("link")
        out.symlink_to(result)
    done = called("report", result, option, out)
    assert done.exit_code == 2 and "it is the result that is read" in done.stderr
    assert result.read_bytes() == before


def test_two_tables_do_not_go_into_one_file(result, tmp_path):
    done = called("report", result, "--csv", tmp_path / "t", "--markdown", tmp_path / "t")
    assert done.exit_code == 2 and "two outputs cannot go into one file" in done.stderr
    assert not (tmp_path / "t").exists()


def test_a_tilde_that_the_shell_leaves_is_the_home_folder(result, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert called("report", result, "--csv=~/t.csv").exit_code == 0
    assert (tmp_path / "home" / "t.csv").is_file() and not (tmp_path / "~").exists()


def test_a_system_error_nobody_expected_is_one_line(monkeypatch, result):
    def refused(_):
        raise OSError(28, "No space left on device", "/tmp/some\x1bthing")

    monkeypatch.setattr(tables, "print_table", refused)
    done = called("report", result)
    assert done.exit_code == 2 and done.stderr == "ladder: /tmp/some\\x1bthing: No space left on device\n"
    monkeypatch.setattr(tables, "print_table", lambda _: (_ for _ in ()).throw(KeyError("ours")))
    assert isinstance(called("report", result).exception, KeyError)  # a fault of ours keeps its traceback


def test_a_file_without_an_end_is_no_result(monkeypatch):
    monkeypatch.setattr(results, "_MOST_READ", 2**20)
    if not os.path.exists("/dev/zero"):
        pytest.skip("no /dev/zero here")
    with pytest.raises(UserError, match="more than 1048576 bytes"):
        results.read("/dev/zero")
