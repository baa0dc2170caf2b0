"""Files that a user names: devices, pipes and descriptors are written to; others are there whole or not at all."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ladder.core import files
from ladder.core.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def test_a_pipe_takes_what_is_written_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    seen = []
    reader = threading.Thread(target=lambda: seen.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    files.write_file(tmp_path / "pipe", "rows")
    reader.join(60)
    assert seen == ["rows"] and (tmp_path / "pipe").is_fifo()


def test_standard_output_goes_on_where_it_stands(tmp_path):
    """`> file` gives a descriptor of a plain file: a rename would leave the shell with a file that has no name."""
    write = "files.write_file('/dev/stdout', 'rows\\n')"
    code = f"from ladder.core import files; print('before'); {write}; print('after')"
    with open(tmp_path / "out", "w") as out:
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\nrows\nafter\n"


def test_a_symlink_stays_one_and_its_file_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "t.csv").write_text("old")
    (tmp_path / "t.csv").symlink_to("real/t.csv")
    (tmp_path / "new.csv").symlink_to("real/new.csv")
    for name in ("t.csv", "new.csv"):
        files.write_file(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink() and (tmp_path / "real" / name).read_text() == "new"
    assert len(os.listdir(tmp_path)) == 3  # nothing is left beside them


def test_mode_is_kept_and_a_new_file_has_the_user_s(tmp_path):
    (tmp_path / "private").write_text("old")
    (tmp_path / "private").chmod(0o600)
    before = os.umask(0o027)
    try:
        for name in ("private", "fresh"):
            files.write_file(tmp_path / name, "new")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("private", "fresh")] == [0o600, 0o640]


def test_a_read_only_file_and_a_folder_are_refused_in_one_line(tmp_path):
    """For root as well, whom no permission stops."""
    (tmp_path / "kept").write_text("old")
    (tmp_path / "kept").chmod(0o444)
    with pytest.raises(UserError, match="kept: cannot be written: the file there is read-only"):
        files.write_file(tmp_path / "kept", "new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="folder: cannot be written: Is a directory"):
        files.write_file(tmp_path / "folder", "new")
    assert (tmp_path / "kept").read_text() == "old" and sorted(os.listdir(tmp_path)) == ["folder", "kept"]


def test_another_hard_link_and_a_full_disk_keep_the_old_content(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")
    os.link(tmp_path / "a", tmp_path / "b")
    files.write_file(tmp_path / "a", "new")
    assert (tmp_path / "b").read_text() == "old"

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        files.write_file(tmp_path / "a", "newer")
    assert (tmp_path / "a").read_text() == "new" and sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_asking_whether_a_folder_can_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "kept").write_text("1")
    files.refuse_unwritable(tmp_path / "new" / "newer", tmp_path / "there")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "there"]


def test_a_folder_that_cannot_be_written_is_one_line_that_names_it(tmp_path):
    """Whatever permissions say: a name that is too long is refused to root as well."""
    (tmp_path / "file").write_text("")
    for name in ("file", "file/x", f"new/{'x' * 300}"):
        with pytest.raises(UserError, match="cannot be written") as refused:
            files.refuse_unwritable(tmp_path / name)
        assert str(tmp_path / name) in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
