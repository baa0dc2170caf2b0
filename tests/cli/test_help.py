"""The helps of all commands: one whole line in `ladder --help`, and a text for every option."""

from __future__ import annotations

import click
import pytest

from tests.support.commands import call, load_commands

COMMANDS = load_commands()
MEASURING = (
    "run",
    "scale",
    "sustain",
    "upstream",
    "noise",
    "ablate",
    "map",
    "profile",
    "precision",
    "kernels",
)
COMPARING = ("bench-compare", "compare")


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def options_of(name: str) -> list[click.Option]:
    return [each for each in COMMANDS[name].params if isinstance(each, click.Option)]


def test_every_command_has_one_whole_line_of_its_own_in_80_columns():
    lines = [line for line in call("--help").output.splitlines() if line[2:].split(" ")[0] in COMMANDS]
    assert len(lines) == len(COMMANDS)
    assert [line for line in lines if line.endswith("...") or not line.endswith(".") or len(line) > 80] == []
    assert len({line.split(maxsplit=1)[1] for line in lines}) == len(lines)


def test_siblings_are_told_apart():
    line = {name: command.get_short_help_str(100) for name, command in COMMANDS.items()}
    assert "file" in line["compare"] and "commit" in line["bench-compare"]
    assert "roofline" in line["doctor"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_text(name):
    silent = [each.opts[0] for each in options_of(name) if not each.help]
    assert silent == []
    for seed in (each for each in options_of(name) if each.name == "seed"):
        assert "Seed for" in seed.help and (seed.show_default or "[default: 0]" in seed.help)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_default_is_told(name):
    usual = ("--minutes", "--budget", "--most", "--confirm", "--op", "--rung", "--steps", "--device")
    for each in options_of(name):
        takes_one = not each.is_flag and isinstance(each.default, int | float | str)
        if takes_one or each.opts[-1] in usual:
            assert each.show_default or "[default: " in (each.help or ""), each.opts


@pytest.mark.parametrize("name", MEASURING + COMPARING)
def test_commands_that_measure_or_judge_tell_their_exit_status(name):
    assert "Exit status: 0 if" in call(name, "--help").output


def test_rounds_is_an_older_name_of_generations_everywhere():
    found = {name: each for name in COMMANDS for each in options_of(name) if "--rounds" in each.opts}
    assert {"run", "bench-compare", "upstream", "precision"} <= set(found)
    for name, option in found.items():
        assert option.opts == ["--generations", "--rounds"], name
