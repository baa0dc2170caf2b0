"""Numbers in words, and names from outside."""

import os

import pytest
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.cli.main import Group
from ladder.core import text
from ladder.core.errors import format_error, one_line
from ladder.core.text import escape_controls, format_bounds, format_count
from ladder.images import for_workload
from ladder.images import prepare as images
from tests.support.pictures import encode, plain


def test_an_interval_has_its_ends_however_wide():
    assert format_bounds((0.2, 30.0)) == "0.200-30.000x" and format_bounds(None) == ""
    assert (
        format_bounds((0.2, 2e30)) == "0.200 to over 1000x"
        and format_bounds((1e-9, 0.4)) == "under 0.001 to 0.400x"
    )


def test_a_name_from_outside_is_one_line_without_controls():
    """ESC sets a terminal's title and colours, a newline forges a line, U+202E turns the text around."""
    name = os.fsdecode(b"\x1b]0;owned\a\x1b[31m\r\nimages: 9000 used \xff") + "\u202egnp.exe"
    assert escape_controls(name) == r"\x1b]0;owned\x07\x1b[31m\r\nimages: 9000 used \udcff\u202egnp.exe"
    assert escape_controls("Fotos/Ünï 雪 (1).jpg") == "Fotos/Ünï 雪 (1).jpg"


HOSTILE = "\x1b]0;owned\x07\x1b[31mred\nimages: 9000 used"


@pytest.mark.parametrize("command", ["images", "refused", "validate", "report", "usage"])
def test_whatever_the_commands_say_of_a_file_has_no_controls(command, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "CACHE", tmp_path / "cache")
    folder = tmp_path / "photos"
    bad = folder / f"{HOSTILE}.png"
    folder.mkdir()
    bad.write_bytes(b"no picture")
    if command == "images":
        (folder / "good.png").write_bytes(encode(plain()))
        group = Group(
            callback=lambda: for_workload.prepare_images(
                str(folder), {"resolution": 16, "batch": 1}, quiet=False
            ),
            invoke_without_command=True,
        )
        result = CliRunner().invoke(group, [])
        assert result.exit_code == 0
    else:
        (folder / f"{HOSTILE}.json").write_text("{}")
        arguments = {
            "refused": f"train --device cpu --data {folder} --steps 1 --out {tmp_path / 'out'}".split(),
            "validate": ["validate", str(folder)],
            "report": ["report", str(folder)],
            "usage": ["show", "baseline", str(folder / HOSTILE)],
        }[command]
        result = CliRunner().invoke(cli.main, arguments)
        assert result.exit_code in (1, 2)
    assert "owned" in result.output and not set("\x1b\x07") & set(result.output)
    assert not any(line.startswith("images: 9000") for line in result.output.splitlines())


def test_a_number_that_is_rounded_up_has_no_digit_more():
    """A training of 9.997 hours read `10.00 h` beside `53.1 h`."""
    values = (312.04, 99.96, 99.996, 999.96, 9.997, 9.994)
    assert [*map(text.format_ms, values)] == ["312.0", "99.96", "100.0", "1,000", "10.00", "9.99"]
    assert [*map(text.format_amount, values)] == ["312", "100", "100", "1,000", "10.0", "9.99"]


def test_one_thing_has_no_plural() -> None:
    assert [format_count(number, "row") for number in (0, 1, 1024)] == ["0 rows", "1 row", "1,024 rows"]


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
