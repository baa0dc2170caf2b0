"""Options that several commands of `ladder` share, and the way in which an error ends a command."""

from __future__ import annotations

import errno
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ladder.base import starting, streams
from ladder.base.errors import UserError, of_environment
from ladder.base.text import plain, printable


class UserPath(click.Path):
    """A path given by a user. `~` is the home folder, which shells do not expand in `--out=~/results`."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(path_type=Path, **rules)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("a path is missing: it is empty", param, ctx)
        return super().convert(os.path.expanduser(value), param, ctx)


class Text(click.types.StringParamType):
    """A text given by a user. An empty one, as of a variable that a script did not set, is no default."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not found.strip():
            self.fail("it is empty", param, ctx)
        return found


FILE = UserPath(dir_okay=False)
FOLDER = UserPath(file_okay=False)
ANY = UserPath()


class _Number(click.ParamType):
    """A finite number in plain digits.

    `int` and `float` also take 1_0 for 10, spaces and other scripts' digits. NaN passes every comparison.
    """

    plain = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|nan)"
    kind = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not re.fullmatch(self.plain, value):
            self.fail(f"{value!r} is not a {self.kind} in plain digits", param, ctx)
        number = super().convert(value, param, ctx)
        if not -math.inf < number < math.inf:
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class IntRange(_Number, click.IntRange):
    """A range of whole numbers."""

    plain = "[+-]?[0-9]+"
    kind = "whole number"


class FloatRange(_Number, click.FloatRange):
    """A range of finite numbers."""


# The commands by the question that a user has, in the order of a first look.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "Begin": ("doctor", "list", "show"),
    "Measure": ("run", "kernels", "precision", "sustain", "upstream", "scale"),
    "Understand": ("report", "explain", "profile", "ablate", "map"),
    "Decide": ("recommend", "compare", "noise"),
    "Use": ("train", "sample", "export", "convert"),
    "Share": ("submit", "validate", "merge"),
    "Watch commits": ("history", "bench-compare"),
}


class Group(click.Group):
    """A command group that turns errors of the user or the system into one line and an exit status.

    Its texts and those of its commands name the program as the user started it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _name_the_program(self)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        _name_the_program(cmd)
        for param in cmd.params:
            param.type = Text() if param.type is click.STRING else param.type
        super().add_command(cmd, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands below the questions that they answer."""
        for question, names in QUESTIONS.items():
            rows = [(name, self.commands[name]) for name in names if name in self.commands]
            length = formatter.width - max(len(name) for name in self.commands) - 4
            with formatter.section(question):
                formatter.write_dl([(name, command.get_short_help_str(length)) for name, command in rows])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with streams.minded():
            try:
                return super().main(*args, **kwargs)
            except OSError as error:  # of `ladder --help` and `ladder --version`, which print before `invoke`
                click.echo(f"ladder: {_of_system(error)}", err=True)
                sys.exit(2)

    def invoke(self, ctx: click.Context) -> Any:
        from stylegan_lite.config import ConfigError

        try:
            return super().invoke(ctx)
        except (UserError, ConfigError) as error:
            click.echo(f"ladder: {printable(' '.join(starting.named(str(error)).split()))}", err=True)
            ctx.exit(2)
        except ModuleNotFoundError as error:
            if (line := starting.missing(error)) is None:
                raise
            click.echo(line, err=True)
            ctx.exit(2)
        except click.ClickException as error:  # click prints it, and it quotes arguments such as file names
            vars(error)["message"] = printable(error.message)  # click declares it final
            raise
        except KeyboardInterrupt:
            click.echo("ladder: interrupted", err=True)
            ctx.exit(130)
        except OSError as error:
            if error.errno == errno.EPIPE:  # `| head`: click ends silently
                raise
            click.echo(f"ladder: {_of_system(error)}", err=True)
            ctx.exit(2)
        except Exception as error:  # torch, compilers and workers wrap errors of the system
            if (line := of_environment(error)) is None:
                raise
            click.echo(f"ladder: {printable(line)}", err=True)
            ctx.exit(2)


def _of_system(error: OSError) -> str:
    """Return an error of the system as one line with its path."""
    where = f"{printable(os.fsdecode(error.filename))}: " if isinstance(error.filename, str | bytes) else ""
    return f"{where}{printable(error.strerror or error)}"


def _name_the_program(command: click.Command) -> None:
    """Write `python -m ladder ...` for `ladder ...` in a command's help if the user started it that way."""
    for owner in (command, *command.params):
        for part in ("help", "epilog"):
            if text := getattr(owner, part, None):
                setattr(owner, part, starting.named(text))


def refuse_idle(why: str, *names: str) -> None:
    """Raise UserError, "--option WHY", for the first of these parameters that the user gave: nothing reads it."""
    context = click.get_current_context()
    for parameter in context.command.params:
        default = context.get_parameter_source(parameter.name or "") in (None, ParameterSource.DEFAULT)
        if parameter.name in names and not default:
            raise UserError(f"{next(each for each in parameter.opts if each.startswith('--'))} {why}")


def names(text: str | None) -> list[str] | None:
    """Return the names in a comma-separated list, or None if no list was given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def whole_numbers(option: str, said: str | None, most: int) -> list[int] | None:
    """Return the numbers in a comma-separated list, each once, or None if no list was given.

    Raises:
        UserError: a part of the list is no whole number from 1 to ``most``.
    """
    parts = names(said)
    if parts is None:
        return None
    if not parts or not all(re.fullmatch("[0-9]{1,9}", part) and 1 <= int(part) <= most for part in parts):
        raise UserError(f"{option} {plain(said)!r}: give whole numbers from 1 to {most}, such as 2,4")
    return list(dict.fromkeys(map(int, parts)))


def workload_option(default: str) -> Any:
    return click.option(
        "-w", "--workload", metavar="NAME|FILE", help=f"The workload to train. [default: {default}]"
    )


def ladder_option(default: str | None = "article", text: str = "The ladder whose rungs are used.") -> Any:
    """Return `--ladder`. `default` None tells a command that none was named."""
    return click.option(
        "--ladder", "ladder_name", metavar="NAME|FILE", default=default, show_default=True, help=text
    )


resume_option = click.option(
    "--resume", metavar="FILE", type=FILE, help="Continue the run of this file: measure what is missing."
)


def seed_option(of: str, default: int | None = 0) -> Any:
    """Return `--seed`. `default` None tells a command that no seed was given; it then uses 0, or its file's."""
    return click.option(
        "--seed", type=IntRange(0, 2**31 - 1), default=default, help=f"Seed for {of}. [default: 0]"
    )


def rounds_option(least: int, text: str) -> Any:
    """Return the option for the number of generations. Its older name is `--rounds`."""
    return click.option("--generations", "--rounds", "rounds", type=IntRange(least, 100), help=text)


def out_option(default: str) -> Any:
    """Return `--out` of a command that writes result files. `default` tells where they go without it."""
    return click.option(
        "--out", metavar="DIR", type=FOLDER, help=f"Folder of the result files. [default: {default}]"
    )


device_option = click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    help="The device to run on. [default: the GPU if there is one, else the CPU]",
)
data_option = click.option(
    "--data",
    metavar="PATH",
    help="Folder or zip of JPEG/PNG images. [default: sample photographs, made once]",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else."
)
