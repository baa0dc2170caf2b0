"""A training's folder: one run at a time, and none writes over another's files."""

# ruff: noqa: F401, F811 (fixtures of another module)
import contextlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from ladder.cli.main import main
from ladder.core import locks
from ladder.core.errors import UserError
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


def test_a_run_is_forked_into_an_empty_folder_and_is_its_own_from_then_on(images, two):
    a, _ = two
    fork = a.parent / "fork"
    go(images, fork, 3, resume=a / "checkpoint.pt")
    assert [line["step"] for line in lines(fork)] == [3]
    go(images, a, 5, resume=a / "checkpoint.pt")
    assert "another training run" in refused(images, fork, 9, resume=a / "checkpoint.pt")


def test_a_folder_is_held_for_the_whole_training(images, tmp_path):
    said = []

    def another(event):
        if event["event"] == "log" and event["step"] == 2:
            said.append(refused(images, tmp_path / "out", 5))

    go(images, tmp_path / "out", 3, on_event=another)
    assert "another run is writing here" in said[0]
    assert len(lines(tmp_path / "out")) == 3


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
