"""Reasons are published: one line, no paths."""

from ladder.core.errors import format_error, one_line


def test_reasons_are_one_line_without_absolute_paths() -> None:
    error = FileNotFoundError(2, "No such file or directory", "/home/someone/pictures/cat.jpg")
    assert format_error(error) == "FileNotFoundError: [Errno 2] No such file or directory: 'cat.jpg'"
    assert one_line("\n  first   line\nsecond") == "first line"
    assert one_line("see https://pytorch.org/get-started/locally and a/b") == (
        "see https://pytorch.org/get-started/locally and a/b"
    )
    assert one_line("C:\\Users\\someone\\x.py failed, ~/secret/y.py too") == "x.py failed, y.py too"
    assert len(one_line("x" * 1000)) == 200
    assert format_error(KeyError()) == "KeyError" and one_line("") == ""
