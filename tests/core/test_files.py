"""Files that are there whole or not at all, and folders that must take them."""

import pytest

from ladder.core import files
from ladder.core.errors import UserError


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
