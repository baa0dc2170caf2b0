"""The `ladder` command: its group, the questions that its commands answer, and how an error ends one.

Exit status:

- 0: done.
- 1: a rung has no number (failed, oom, invalid) although this machine could run it.
- 2: the request is impossible; stderr has one line.
- 130: interrupted; finished measurements are kept.

Only commands that measure, train or examine the machine import torch, so help, list and show answer at once.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import runpy
from pathlib import Path
from typing import Any

import click

from ladder.cli import climb, doctor, listing, stored, submit, train, watch, weights
from ladder.core import git, starting
from ladder.core.errors import UserError, format_error, of_environment
from ladder.core.options import Text
from ladder.core.text import escape_controls
from ladder.studies import STUDIES

# The commands by the question that a user has, in the order of a first look.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "Begin": ("doctor", "list", "show", "watch"),
    "Measure": ("run", "kernels", "penalty", "precision", "sustain", "upstream", "scale"),
    "Understand": ("report", "explain", "profile", "host", "ablate", "map"),
    "Decide": ("recommend", "compare", "noise", "quality"),
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
        length = formatter.width - max(map(len, every)) - 4
        for question, names in QUESTIONS.items():
            with formatter.section(question):
                rows = [(name, every[name].get_short_help_str(length)) for name in names if name in every]
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        from stylegan_lite.config import ConfigError

        try:
            return super().invoke(ctx)
        except click.ClickException as error:  # click prints it, and it quotes arguments such as file names
            vars(error)["message"] = escape_controls(error.message)  # click declares it final
            raise
        except KeyboardInterrupt:
            click.echo("ladder: interrupted", err=True)
            ctx.exit(130)
        except Exception as error:
            if (line := describe_error(error, ConfigError)) is None:
                raise
            click.echo(line, err=True)
            ctx.exit(2)


def describe_error(error: Exception, *of_users: type[Exception]) -> str | None:
    """Return the line for an error of the user or the system; None for a fault of ours, and for a closed pipe."""
    if isinstance(error, (UserError, *of_users)):
        return f"ladder: {escape_controls(' '.join(starting.name_program(str(error)).split()))}"
    if isinstance(error, ModuleNotFoundError):
        return starting.describe_missing(error)
    if isinstance(error, OSError):
        if error.errno == errno.EPIPE:  # `| head`: click ends silently
            return None
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return f"ladder: {escape_controls(where)}{escape_controls(error.strerror or error)}"
    line = of_environment(error)  # torch, compilers and workers wrap errors of the system
    return None if line is None else f"ladder: {escape_controls(line)}"


def _name_the_program(command: click.Command) -> None:
    """Write `python -m ladder ...` for `ladder ...` in a command's help if the user started it that way."""
    for owner in (command, *command.params):
        for part in ("help", "epilog"):
            if text := getattr(owner, part, None):
                setattr(owner, part, starting.name_program(text))


def list_versions() -> dict[str, str | None]:
    """Return the versions of this project, torch, CUDA and cuDNN. Only a CUDA build of torch is imported: seconds."""
    commit, dirty = git.commit_of(starting.ROOT)
    code = "unknown" if commit is None else commit[:12] + (" (dirty)" if dirty else "")
    versions: dict[str, str | None] = {"ladder": starting.read_version(), "commit": code}
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {**versions, "torch": "not installed", "CUDA": None, "cuDNN": None}
    built, cudnn = runpy.run_path(str(Path(spec.origin).with_name("version.py"))), None
    if built["cuda"]:
        from ladder.machine import system

        try:
            import torch

            cudnn = system.dotted_cudnn(torch.backends.cudnn.version())
        except Exception as error:  # a library that does not load must not hide the other lines
            cudnn = f"unknown: {format_error(error)}"
    return {**versions, "torch": built["__version__"], "CUDA": built["cuda"], "cuDNN": cudnn}


def _print_versions(ctx: click.Context, _: click.Parameter, is_requested: bool) -> None:
    if is_requested and not ctx.resilient_parsing:
        click.echo("\n".join(f"{name} {version or 'none'}" for name, version in list_versions().items()))
        ctx.exit()


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with `ladder doctor` (what can this machine do?), then `ladder run --quick`, then `ladder run`.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_versions,
              help="Print the versions of this project, its commit, torch, CUDA and cuDNN.")  # fmt: skip
def main() -> None:
    """Climb the StyleGAN2 optimization ladder on this machine.

    Each rung is one optimization on top of the ones before it. Every rung is timed on a StyleGAN2-style reference
    model. The gains are shown beside those of the article that the ladder comes from (312 to 104 ms a step on one
    A100).

    Exit status: 0 if done. 2 if the request is impossible; stderr has one line. 130 if interrupted. A command's help
    tells what 1 means.
    """


for command in (
    *(doctor.doctor, listing.list_, listing.show, climb.run_ladder, submit.submit, train.train, watch.watch),
    *(stored.report, stored.explain, stored.recommend, stored.compare, stored.validate, stored.merge),
    *(stored.history, weights.sample, weights.convert, weights.export),
):
    main.add_command(command)
