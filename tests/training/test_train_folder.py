"""A training's folder: one run at a time, and none writes over another's files."""

# ruff: noqa: F401, F811 (fixtures of another module)
import contextlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from ladder.base import locks
from ladder.base.errors import UserError
from ladder.cli.main import main
from ladder.results import store as results
from ladder.training import checkpoint
from ladder.training.losslog import append_text
from tests.training.test_train import eleven, go, images, lines, one_thread, refused


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def two(images, tmp_path) -> tuple[Path, Path]:
    """Two runs: A of 2 steps, B of 3 from another seed."""
    go(images, tmp_path / "A", 2, seed=1)
    go(images, tmp_path / "B", 3, seed=2)
    return tmp_path / "A", tmp_path / "B"


def test_going_on_in_a_folder_of_another_run_is_refused(images, two):
    a, b = two
    before = contents(b)
    message = refused(images, b, 6, resume=a / "checkpoint.pt")
    assert f"holds another training run than {a / 'checkpoint.pt'}" in message
    assert f"go on with --resume {b / 'checkpoint.pt'}" in message
    assert contents(b) == before


def test_a_folder_that_is_ahead_is_not_set_back_by_an_older_copy(images, two):
    a, _ = two
    shutil.copy(a / "checkpoint.pt", a.parent / "older.pt")
    go(images, a, 4, resume=a / "checkpoint.pt")
    before = contents(a)
    assert "is at step 4 of this run, ahead of" in refused(images, a, 9, resume=a.parent / "older.pt")
    assert contents(a) == before
    shutil.copy(a / "checkpoint.pt", a.parent / "newer.pt")
    go(images, a, 5, resume=a.parent / "newer.pt")
    assert [line["step"] for line in lines(a)] == [1, 2, 3, 4, 5]


def test_a_run_is_forked_into_an_empty_folder_and_is_its_own_from_then_on(images, two):
    a, _ = two
    fork = a.parent / "fork"
    go(images, fork, 3, resume=a / "checkpoint.pt")
    assert [line["step"] for line in lines(fork)] == [3]
    go(images, a, 5, resume=a / "checkpoint.pt")
    assert "another training run" in refused(images, fork, 9, resume=a / "checkpoint.pt")


@pytest.mark.parametrize(
    ("name", "words"),
    [("losses.jsonl", "the loss log (losses.jsonl)"), ("samples-000003.png", "samples (samples-000003.png)")],
)
def test_what_a_run_without_a_checkpoint_left_is_said_and_kept(images, two, name, words):
    a, b = two
    for path in b.iterdir():
        if path.name != name:
            path.unlink()
    before = contents(b)
    message = refused(images, b, 9)
    assert f"holds {words} of a training that left no checkpoint" in message and "--resume" not in message
    assert f"holds {words} of another training run" in refused(images, b, 9, resume=a / "checkpoint.pt")
    assert contents(b) == before


def test_a_checkpoint_that_was_renamed_in_its_folder_goes_on_there(images, two):
    a, _ = two
    (a / "checkpoint.pt").rename(a / "step-2.pt")
    go(images, a, 3, resume=a / "step-2.pt")
    assert [line["step"] for line in lines(a)] == [1, 2, 3]


def test_a_damaged_checkpoint_is_not_advised(images, two):
    _, b = two
    (b / "checkpoint.pt").write_bytes(b"")
    message = refused(images, b, 9)
    assert "holds a training that cannot go on" in message and "--resume" not in message


def test_a_folder_is_held_for_the_whole_training(images, tmp_path):
    said = []

    def another(event):
        if event["event"] == "log" and event["step"] == 2:
            said.append(refused(images, tmp_path / "out", 5))

    go(images, tmp_path / "out", 3, on_event=another)
    assert "another run is writing here" in said[0]
    assert len(lines(tmp_path / "out")) == 3


def test_the_log_of_a_training_that_runs_is_not_to_be_deleted(tmp_path):
    """The command looks at the folder before it makes images, when the first checkpoint may not be there yet."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "losses.jsonl").write_text('{"step": 1}\n')
    asked = ["train", "--workload", "tiny", "--device", "cpu", "--steps", "2", "--out", str(tmp_path / "out")]
    with locks.folder_lock(tmp_path / "out"):
        said = CliRunner().invoke(main, asked)
    assert (
        said.exit_code == 2 and "another run is writing here" in said.output and "delete" not in said.output
    )
    assert "delete what is there" in CliRunner().invoke(main, asked).output


def test_the_folder_is_looked_at_once_it_is_held(images, tmp_path, monkeypatch):
    """A training that ended while this one waited to begin has left its files."""
    real = locks.folder_lock

    @contextlib.contextmanager
    def late(folder):
        with real(folder):
            (folder / "losses.jsonl").write_text('{"step": 1}\n')
            yield

    monkeypatch.setattr(locks, "folder_lock", late)
    assert "holds the loss log" in refused(images, tmp_path / "out", 2)


def test_what_a_killed_save_left_is_removed(images, two):
    a, _ = two
    (a / ".checkpoint.pt-abc.tmp").write_bytes(b"half")
    go(images, a, 3, resume=a / "checkpoint.pt")
    assert not list(a.glob(".*"))


def test_a_line_of_the_log_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "losses.jsonl"
    path.write_text('{"step": 1}\n')
    with pytest.raises(UserError, match=r"losses\.jsonl: cannot be written: File too large"):
        limited(append_text, path, "x" * 2000)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"step": 1}]


def limited(function, *arguments):
    """Call with files of at most 1000 bytes: a write is cut off, as on a disk that becomes full."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        return function(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_called_so_and_the_checkpoint_before_it_is_kept(images, two):
    """torch itself says "unexpected pos"."""
    a, _ = two
    before = (a / "checkpoint.pt").read_bytes()
    with pytest.raises(UserError) as error:
        limited(lambda: go(images, a, 3, resume=a / "checkpoint.pt", log_every=16, sample_every=1000))
    said = str(error.value)
    assert said.count("cannot be written: File too large") == 2
    assert "samples-000003.png: cannot" in said and "checkpoint.pt: cannot" in said
    assert said.endswith("the checkpoint of step 2 is kept") and "unexpected pos" not in said
    assert (a / "checkpoint.pt").read_bytes() == before
    assert not list(a.glob(".*"))
