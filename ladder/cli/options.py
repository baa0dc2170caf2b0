"""What the commands of `ladder` share: options, and how an error ends."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import click

from ladder.base import starting, streams
from ladder.base.errors import UserError, of_environment
from ladder.base.text import printable


class UserPath(click.Path):
    """A path that a user names. `~` is their home folder, which a shell leaves to us in `--out=~/results`."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(path_type=Path, **rules)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("a path is missing: it is empty", param, ctx)
        return super().convert(os.path.expanduser(value), param, ctx)


FILE = UserPath(dir_okay=False)
FOLDER = UserPath(file_okay=False)
ANY = UserPath()


class FloatRange(click.FloatRange):
    """Numbers of a range. Not NaN, which is in every one, nor infinity, which no JSON file can say."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Group(click.Group):
    """Turns what a user can do something about into one line and an exit status.

    Its texts and those of its commands name the program as the user started it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _name_the_program(self)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        _name_the_program(cmd)
        super().add_command(cmd, name)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with streams.minded():
            return super().main(*args, **kwargs)

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
        except (
            click.ClickException
        ) as error:  # click shows it; it quotes arguments, a shell's list of files among them
            error.message = printable(error.message)
            raise
        except KeyboardInterrupt:
            click.echo("ladder: interrupted", err=True)
            ctx.exit(130)
        except OSError as error:
            if error.errno == errno.EPIPE:  # `| head`: click ends without a word
                raise
            click.echo(f"ladder: {_of_system(error)}", err=True)
            ctx.exit(2)
        except Exception as error:  # others wrap what the system says: torch, compilers, workers
            if (line := of_environment(error)) is None:
                raise
            click.echo(f"ladder: {printable(line)}", err=True)
            ctx.exit(2)


def _of_system(error: OSError) -> str:
    """What the system refused, and where, in one line."""
    where = f"{printable(os.fsdecode(error.filename))}: " if isinstance(error.filename, str | bytes) else ""
    return f"{where}{printable(error.strerror or error)}"


def _name_the_program(command: click.Command) -> None:
    """Spell `ladder ...` in a command's help as `python -m ladder ...` for whoever started it so."""
    for owner in (command, *command.params):
        for part in ("help", "epilog"):
            if text := getattr(owner, part, None):
                setattr(owner, part, starting.named(text))


def names(text: str | None) -> list[str] | None:
    """What a list with commas names; None where none was given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def workload_option(default: str) -> Any:
    return click.option(
        "-w", "--workload", metavar="NAME|FILE", help=f"What is trained. [default: {default}]"
    )


ladder_option = click.option(
    "--ladder",
    "ladder_name",
    metavar="NAME|FILE",
    default="article",
    show_default=True,
    help="Which rungs, in order.",
)
device_option = click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), help="[default: the GPU if there is one, else the CPU]"
)
data_option = click.option(
    "--data",
    metavar="PATH",
    help="Folder or zip of JPEG/PNG images. [default: sample photographs, made once]",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else."
)
