"""Faults of files: a full disk, a torn write, results that are cut off or there twice. See `docs/proof.md`."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ladder.core.errors import UserError
from ladder.publish.validation import validate
from tests.project.test_faults import another_process, the_file
from tests.support import committed
from tests.support.commands import call
from tests.support.fake_runs import run, stored


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB. Only root may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        made = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no tmpfs can be mounted here: {error}")
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the space that is left."""
    path = folder / "ballast"
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return path


def test_a_disk_that_fills_up_costs_nothing_that_was_finished(small_disk: Path, outcome: Any) -> None:
    kept: list[bytes] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "visited" and not kept:
            kept.append(the_file(small_disk).read_bytes())
            fill(small_disk)

    with pytest.raises(UserError, match="No space left on device") as refusal:
        run(small_disk, {"a": {}, "b": {}}, rounds=2, on_event=on_event)
    path = the_file(small_disk)
    assert path.read_bytes() == kept[0] and list(small_disk.rglob("*.tmp")) == []
    assert (
        sum(len(rung["rounds"]) for rung in [*stored(small_disk)["rungs"], *stored(small_disk)["twins"]]) == 1
    )
    kept = path.read_bytes() == kept[0]
    (small_disk / "ballast").unlink()
    assert run(small_disk, {"a": {}, "b": {}}, rounds=2, resume=path)["complete"]
    said = f"one line ({str(refusal.value).rpartition(': ')[2]}), the old file intact, resumed to complete"
    injected = "a file system of 256 KiB fills up during the run"
    outcome(fault="disk full", injected=injected, outcome=said, number=False, kept=kept)


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_write_torn_by_a_kill_leaves_the_old_file_whole(tmp_path: Path, where: str, outcome: Any) -> None:
    run(tmp_path, {"a": {}})
    path = the_file(tmp_path)
    before = path.read_bytes()
    torn = another_process(
        f"path = Path({str(path)!r})\nresult = results.read(path)\n"
        f"os.{where} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "results.write(path, result)"
    )
    torn.communicate()
    assert torn.returncode == -signal.SIGKILL
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 2  # what it left is hidden
    assert [each.path for each in validate.validate([tmp_path])] == [str(path)]
    kept = path.read_bytes() == before
    assert run(tmp_path, {"a": {}}, rounds=2, resume=path)["complete"]
    said = "the old file intact, what is left behind is read by nobody, resumed to complete"
    injected = f"SIGKILL before the {'new file is synced' if where == 'fsync' else 'renaming'}"
    outcome(fault="torn write", injected=injected, outcome=said, number=False, kept=kept)


def test_truncated_and_duplicate_results_are_kept_out_with_a_status(tmp_path: Path, outcome: Any) -> None:
    whole = committed.RUN
    (tmp_path / "whole.json").write_bytes(whole.read_bytes())
    (tmp_path / "twice.json").write_bytes(whole.read_bytes())
    (tmp_path / "short.json").write_bytes(whole.read_bytes()[:20_000])
    seen = call("report", tmp_path)
    assert (
        seen.exit_code == 1 and "short.json" in seen.stderr and seen.stdout.count("rungs on NVIDIA H100") == 1
    )
    judged = {Path(each.path).name: each.problem for each in validate.validate([tmp_path])}
    assert judged["twice.json"] is None and "the same measurement as" in judged["whole.json"]
    assert "not a result file" in judged["short.json"]
    places = range(0, len(whole.read_bytes().rstrip()), 401)
    for end in places:
        (tmp_path / "short.json").write_bytes(whole.read_bytes()[:end])
        assert validate.problem_of(tmp_path / "short.json") is not None
    said = "left out, refused with one line, exit status 1"
    kept = {"number": False, "kept": judged["twice.json"] is None}
    outcome(
        fault="truncated result", injected="cut off at some place", outcome=said, count=len(places), **kept
    )
    twice = f"refused: {judged['whole.json'].partition(' as ')[0]} as another; the other is accepted"
    outcome(fault="duplicate result", injected="the same samples in two files", outcome=twice, **kept)
