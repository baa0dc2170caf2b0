"""Numbers in words, and names from outside."""

import os

import pytest
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.cli.main import Group
from ladder.core import text
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
            "refused": [
                "train",
                "--device",
                "cpu",
                "--data",
                str(folder),
                "--out",
                str(tmp_path / "out"),
                "--steps",
                "1",
            ],
            "validate": ["validate", str(folder)],
            "report": ["report", str(folder)],
            "usage": ["show", "baseline", str(folder / HOSTILE)],
        }[command]
        result = CliRunner().invoke(cli.main, arguments)
        assert result.exit_code in (1, 2)
    assert "owned" in result.output and not set("\x1b\x07") & set(result.output)
    assert not any(line.startswith("images: 9000") for line in result.output.splitlines())


@pytest.mark.parametrize(
    "value, ms, amount",
    [
        (312.04, "312.0", "312"),
        (99.96, "99.96", "100"),
        (99.996, "100.0", "100"),
        (999.96, "1,000", "1,000"),
        (9.997, "10.00", "10.0"),
        (9.994, "9.99", "9.99"),
    ],
)
def test_a_number_that_is_rounded_up_has_no_digit_more(value, ms, amount):
    """A training of 9.997 hours read `10.00 h` beside `53.1 h`."""
    assert (text.format_ms(value), text.format_amount(value)) == (ms, amount)


def test_one_thing_is_not_told_as_several() -> None:
    assert [format_count(number, "row") for number in (0, 1, 2, 1024)] == [
        "0 rows",
        "1 row",
        "2 rows",
        "1,024 rows",
    ]
