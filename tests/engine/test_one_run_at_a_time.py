"""Every command that writes into a folder of the user's holds it, and looks again at what is there once it does."""

import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from ladder.base import locks, text
from ladder.base.errors import UserError
from ladder.cli import kernels as cli_kernels
from ladder.cli import main as cli
from ladder.cli import merge as cli_merge
from ladder.cli import sustain as cli_sustain
from ladder.machine import system
from ladder.studies.claims import run as claims
from ladder.studies.precision import measure as precision_measure
from ladder.training import canary
from tests.training.test_canary import go, images

__all__ = ["images"]  # a fixture


@contextmanager
def held(folder):
    """Hold the folder as another run on this machine does."""
    with locks.folder_lock(folder, text.slug(system.facts("cpu")["name"])):
        yield


def measured(*_, **__):
    raise AssertionError("it measures beside another run")


@pytest.mark.parametrize(
    ("arguments", "module", "name"),
    [
        (["kernels", "--op", "bias_act"], cli_kernels, "measure"),
        (["kernels", "--claims"], claims, "measure"),
        (["precision"], precision_measure, "run"),
        (["sustain", "baseline"], None, ""),
    ],
)
def test_a_second_run_into_one_folder_is_refused(arguments, module, name, tmp_path, monkeypatch):
    from ladder.studies.sustain import measure as sustaining

    monkeypatch.setattr(module or sustaining, name or "measure", measured)
    monkeypatch.setattr(cli_sustain, "_plan", lambda *_: (sustaining.Plan(**PLAN), None))
    with held(tmp_path):
        said = CliRunner().invoke(cli.main, [*arguments, "--device", "cpu", "--out", str(tmp_path)])
    assert said.exit_code == 2, said.output
    assert f"ladder: {tmp_path}: another run is writing here" in said.output


PLAN = {
    "name": "tiny",
    "workload": {"resolution": 8, "batch": 4, "data": None},
    "recipes": {"baseline": {}},
    "device": "cpu",
}


def test_a_second_canary_into_one_folder_is_refused(images, tmp_path):
    name = text.slug(system.facts("cpu")["name"])
    with locks.folder_lock(tmp_path / name), pytest.raises(UserError, match="another run is writing here"):
        go(images, tmp_path, steps=1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_canary_as_ctrl_c_does(images, tmp_path, number):
    def stop(event):
        if event["event"] == "trained" and event["done"] == 1:
            os.kill(os.getpid(), number)

    before = signal.signal(number, lambda *_: None)
    try:
        result = go(images, tmp_path, on_event=stop, steps=1)
    finally:
        signal.signal(number, before)
    assert not result["complete"] and len(result["rungs"][0]["runs"]) == 1
    (path,) = tmp_path.rglob("*.json")
    assert json.loads(path.read_text())["notes"] == ["interrupted: what was finished is kept"]


def test_what_a_canary_s_training_lacks_is_a_cause(images, tmp_path, monkeypatch):
    trace = "Caught MemoryError in DataLoader worker process 0.\nOriginal Traceback\n  File x\nMemoryError\n"

    def lacks(*_, **__):
        raise MemoryError(trace)

    monkeypatch.setattr(canary.stylegan_lite, "make_step", lacks)
    (record, *_) = go(images, tmp_path, steps=1, seeds=2)["rungs"][0]["runs"]
    assert record["reason"].startswith("the memory of this machine is full")


def test_merge_looks_again_once_it_holds_the_folder(tmp_path):
    """Two merges into one new file: neither finds it before, one writes it first."""
    out = tmp_path / "whole.json"

    def refuse():
        assert (tmp_path / ".lock").exists()
        cli_merge._refuse_out(out, ())

    out.write_text("the other's")
    with pytest.raises(UserError, match="is there already"):
        cli_merge.write(out, {"a": 1}, refuse)
    assert out.read_text() == "the other's"


def test_two_merges_at_a_time_leave_the_first_s_file(tmp_path, monkeypatch):
    from ladder.results.combine import merging

    out, source = tmp_path / "whole.json", tmp_path / "a.json"
    source.write_text("{}")

    def merge(files, anyway):
        out.write_text("the other's")  # meanwhile
        return {"a": 1}

    monkeypatch.setattr(merging, "merge", merge)
    said = CliRunner().invoke(cli.main, ["merge", str(source), str(source), "--out", str(out)])
    assert said.exit_code == 2 and "is there already" in said.output
    assert out.read_text() == "the other's"


def test_a_folder_that_was_made_for_nothing_goes_again(tmp_path):
    with pytest.raises(UserError), locks.folder_lock(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / ".lock").exists()
        raise UserError("refused")
    assert not list(tmp_path.iterdir())
    with locks.folder_lock(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "result.json").write_text("{}")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["result.json"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_folder_that_takes_no_files_is_said_and_not_asked_for_ever():
    with (
        pytest.raises(UserError, match="/proc: results cannot be written here"),
        locks.folder_lock(Path("/proc")),
    ):
        pass


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with (
        pytest.raises(UserError, match="its file system has no locks; name a folder of another one"),
        locks.folder_lock(tmp_path),
    ):
        pass
