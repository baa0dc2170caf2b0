"""The group of commands: the questions they answer, and the way in which an error ends a command."""

from __future__ import annotations

import errno
import os
from typing import Any

import click

from ladder.core import starting
from ladder.core.errors import UserError, of_environment
from ladder.core.options import Text
from ladder.core.text import escape_controls
from ladder.studies import STUDIES

# The commands by the question that a user has, in the order of a first look.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "Begin": ("doctor", "list", "show"),
    "Measure": ("run", "kernels", "precision", "sustain", "upstream", "scale"),
    "Understand": ("report", "explain", "profile", "host", "ablate", "map"),
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

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *(name for name in STUDIES if " " not in name)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command. A study is imported when its command is called, or when all are listed."""
        if cmd_name in STUDIES and cmd_name not in self.commands:
            from ladder.studies import frame

            self.add_command(frame.study_command(frame.load_study(cmd_name)))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands below the questions that they answer."""
        every = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        for question, commands in QUESTIONS.items():
            rows = [(name, command) for name in commands if (command := every.get(name)) is not None]
            length = formatter.width - max(map(len, every)) - 4
            with formatter.section(question):
                formatter.write_dl([(name, command.get_short_help_str(length)) for name, command in rows])

    def invoke(self, ctx: click.Context) -> Any:
        from stylegan_lite.config import ConfigError

        try:
            return super().invoke(ctx)
        except (UserError, ConfigError) as error:
            click.echo(
                f"ladder: {escape_controls(' '.join(starting.name_program(str(error)).split()))}", err=True
            )
            ctx.exit(2)
        except ModuleNotFoundError as error:
            if (line := starting.describe_missing(error)) is None:
                raise
            click.echo(line, err=True)
            ctx.exit(2)
        except click.ClickException as error:  # click prints it, and it quotes arguments such as file names
            vars(error)["message"] = escape_controls(error.message)  # click declares it final
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
            click.echo(f"ladder: {escape_controls(line)}", err=True)
            ctx.exit(2)


def _of_system(error: OSError) -> str:
    """Return an error of the system as one line with its path."""
    where = (
        f"{escape_controls(os.fsdecode(error.filename))}: " if isinstance(error.filename, str | bytes) else ""
    )
    return f"{where}{escape_controls(error.strerror or error)}"


def _name_the_program(command: click.Command) -> None:
    """Write `python -m ladder ...` for `ladder ...` in a command's help if the user started it that way."""
    for owner in (command, *command.params):
        for part in ("help", "epilog"):
            if text := getattr(owner, part, None):
                setattr(owner, part, starting.name_program(text))
