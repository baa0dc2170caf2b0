"""Numbers that a user writes: plain digits, or one line. `int` also takes `1_0`, ` 4` and other scripts' digits."""

import click
import pytest

from ladder.base import yamlfile
from ladder.base.errors import UserError
from ladder.cli import main as cli
from ladder.cli import options
from ladder.report import recommend
from ladder.training import sample
from tests.support.commands import load_commands

NUMBERS = click.types.IntParamType | click.types.FloatParamType


@pytest.mark.parametrize("command", load_commands().values(), ids=lambda command: command.name)
def test_a_number_of_an_option_is_plain_digits(command):
    context = click.Context(command)
    for option in (each for each in command.params if isinstance(each.type, NUMBERS)):
        halves = ("1.5",) if isinstance(option.type, click.types.IntParamType) else ()
        for odd in ("1_0", " 4", "\u0664", "\uff14", "1e", *halves):
            with pytest.raises(click.BadParameter, match="plain digits"):
                option.type_cast_value(context, odd)
        most = option.type.max or 30
        assert option.type_cast_value(context, str(most)) == most


def test_odd_digits_are_told_before_the_range():
    """`int` reads 3_0 as 30, and 30 is above the most that --confirm takes."""
    confirm = next(each for each in cli.main.commands["history"].params if each.name == "confirm")
    assert confirm.type.max < 30
    for said, words in (("3_0", "'3_0' is not a whole number in plain digits"), ("30", "not in the range")):
        with pytest.raises(click.BadParameter, match=words):
            confirm.type_cast_value(click.Context(cli.main.commands["history"]), said)


LISTS = {
    "--gpus": lambda said: options.whole_numbers("--gpus", said, 64),
    "--batches": lambda said: options.whole_numbers("--batches", said, 65536),
    "--seeds": sample.parse_seeds,
    "--images": recommend.images_of,
    "--price": recommend.price_of,
}


@pytest.mark.parametrize("odd", ["1_0", "\u0664", "\uff14"])
@pytest.mark.parametrize("option", LISTS)
def test_a_list_of_numbers_is_plain_digits(option, odd):
    assert LISTS[option]("10")
    with pytest.raises(UserError, match=option):
        LISTS[option](odd)


@pytest.mark.parametrize("odd", ["1_0", "010", "0x10", "0b11", "1:30", "1_0.5", "1:30.5"])
def test_a_number_in_yaml_is_plain_digits(odd, tmp_path):
    """YAML 1.1 reads 010 as 8, 1:30 as 90 and 1_0 as 10."""
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nbatch: {odd}\n")
    with pytest.raises(UserError, match=r"mine\.yaml: line 2, column 8: .*plain digits"):
        yamlfile.read(path)


def test_plain_numbers_in_yaml_are_read(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("a: 10\nb: -3\nc: 0\nd: 2e-3\ne: +1.5\nf: '1_0'\ng: .5\n")
    assert [*yamlfile.read(path).values()] == [10, -3, 0, 2e-3, 1.5, "1_0", 0.5]
