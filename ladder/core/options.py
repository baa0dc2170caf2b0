"""Parameters of commands: types of values from a user, options that several commands share, and the command of a study.

A study's options are the fields of a `Record`: the type and its `Meta` give the range, the default and the help.
"""

from __future__ import annotations

import math
import os
import re
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import msgspec
from click.core import ParameterSource
from msgspec import Meta

from ladder.core.errors import UserError
from ladder.core.plain import Plain as Fields
from ladder.core.text import clean_line


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
        text = super().convert(value, param, ctx)
        return text if text.strip() else self.fail("it is empty", param, ctx)


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


def split_names(text: str | None) -> list[str] | None:
    """Return the names in a comma-separated list, or None if no list was given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def whole_numbers(option: str, said: str | None, most: int) -> list[int] | None:
    """Return the numbers in a comma-separated list, each once, or None if no list was given.

    Raises:
        UserError: a part of the list is no whole number from 1 to ``most``.
    """
    parts = split_names(said)
    if parts is None:
        return None
    if not parts or not all(re.fullmatch("[0-9]{1,9}", part) and 1 <= int(part) <= most for part in parts):
        raise UserError(f"{option} {clean_line(said)!r}: give whole numbers from 1 to {most}, such as 2,4")
    return list(dict.fromkeys(map(int, parts)))


def workload_option(default: str) -> Any:
    return click.option(
        "-w", "--workload", metavar="NAME|FILE", help=f"The workload to train. [default: {default}]"
    )


resume_option = click.option(
    "--resume", metavar="FILE", type=FILE, help="Continue the run of this file: measure what is missing."
)


def out_option(default: str) -> Any:
    """Return `--out` of a command that writes result files. `default` tells where they go without it."""
    return click.option(
        "--out", metavar="DIR", type=FOLDER, help=f"Folder of the result files. [default: {default}]"
    )


def budget_option(default: str, flag: str = "--budget") -> Any:
    """Return `--budget` of a study, under the name that it has there."""
    return click.option(
        flag, "budget", metavar="MINUTES", type=FloatRange(0, min_open=True),
        help=f"Begin nothing new after this time; continue with --resume. [default: {default}]",
    )  # fmt: skip


def report_option(newest: str) -> Any:
    """Return `--report` of a study, whose value is `newest` where no file is named."""
    return click.option(
        "--report", metavar="[FILE]", is_flag=False, flag_value=newest,
        help="Measure nothing: show this stored result, or the newest with the options given.",
    )  # fmt: skip


device_option = click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    help="The device to run on. [default: the GPU if there is one, else the CPU]",
)
data_option = click.option(
    "--data",
    metavar="PATH",
    help="Folder or zip of JPEG/PNG images, or folder of MNIST's files. [default: sample photographs, made once]",
)
model_options = [
    click.option(
        "--model", metavar="FILE.py|PACKAGE.MODULE:FUNCTION", type=Text(),
        help="Your own networks and losses in place of StyleGAN2: a Python file or module, whose function `make`"
        " returns a pair.",
    ),
    click.option(
        "--set", "settings", metavar="NAME=VALUE", multiple=True, type=Text(),
        help="An argument of that function; may be repeated.",
    ),
]  # fmt: skip
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else."
)


def refuse_idle(why: str, *names: str) -> None:
    """Raise UserError, "--option WHY", for the first of these parameters that the user gave: nothing reads it."""
    context = click.get_current_context()
    for parameter in context.command.params:
        default = context.get_parameter_source(parameter.name or "") in (None, ParameterSource.DEFAULT)
        if parameter.name in names and not default:
            raise UserError(f"{next(each for each in parameter.opts if each.startswith('--'))} {why}")


# --- commands from records --------------------------------------------------------------------------------------------


def declare_option(
    help: str, *, flags: Sequence[str] = (), metavar: str | None = None, argument: bool = False
) -> Meta:
    """Describe a field of a record as an option of a command; with `argument` it is given without a flag."""
    return Meta(extra={"help": help, "flags": tuple(flags), "metavar": metavar, "argument": argument})


Seed = Annotated[int, Meta(ge=0, le=2**31 - 1)]


def make_command(
    name: str, kind: type, call: Callable[..., None], help: str, examples: str, extra: Sequence[Any]
) -> click.Command:
    """Return a command whose first parameters are the fields of a record; `call` gets the record and the others."""
    fields = msgspec.structs.fields(kind)

    def run(**values: Any) -> None:
        own = {field.name: values.pop(field.name) for field in fields}
        call(
            kind(**{key: list(value) if isinstance(value, tuple) else value for key, value in own.items()}),
            **values,
        )

    hints = get_type_hints(kind, include_extras=True)
    run.__doc__ = help
    for decorate in reversed([*(_make_parameter(field, hints[field.name]) for field in fields), *extra]):
        run = decorate(run)
    lines = "\n".join(f"  {line}" for line in examples.strip().splitlines())
    return click.command(name=name, help=help, epilog=f"\b\nExamples:\n{lines}")(run)


def list_given(options: Any) -> Fields:
    """Return the fields of a command's record that the user gave, by name."""
    context = click.get_current_context()
    defaulted = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    return {
        name: getattr(options, name)
        for name in options.__struct_fields__
        if context.get_parameter_source(name) not in defaulted
    }


def _make_parameter(field: msgspec.structs.FieldInfo, hint: Any) -> Callable[[Any], Any]:
    """Return the decorator of one field."""
    kind, metas = _unwrap(hint)
    extra: Fields = {key: value for meta in metas for key, value in (meta.extra or {}).items()}
    low: Any = next((each for meta in metas for each in (meta.ge, meta.gt) if each is not None), None)
    high: Any = next((meta.le for meta in metas if meta.le is not None), None)
    is_open = any(meta.gt is not None for meta in metas)
    is_list = get_origin(kind) is list
    default = field.default if field.default is not msgspec.NODEFAULT else None
    flag, about = f"--{field.name.replace('_', '-')}", extra.get("help")
    if kind is bool:
        return click.option(
            f"{flag}/--no-{flag[2:]}" if default else flag, field.name, is_flag=True, default=bool(default),
            show_default=bool(default), help=about,
        )  # fmt: skip
    if extra.get("argument"):
        return click.argument(
            field.name, nargs=-1 if is_list else 1, required=False, metavar=extra.get("metavar")
        )
    of: Any = {
        int: IntRange(low, high, min_open=is_open),
        float: FloatRange(low, high, min_open=is_open),
        Path: FILE,
    }
    if get_origin(kind) is Literal:
        of[kind] = click.Choice([str(each) for each in get_args(kind)])
    return click.option(
        *dict.fromkeys([*extra.get("flags", ()), flag]), field.name, type=of.get(kind) or Text(), help=about,
        default=() if is_list else default, multiple=is_list, show_default=default is not None and not is_list,
        metavar=extra.get("metavar"),
    )  # fmt: skip


def _unwrap(hint: Any) -> tuple[Any, list[Meta]]:
    """Return a type without its `Meta` and None, and every `Meta` of it, the outermost first."""
    if get_origin(hint) is Annotated:
        inner, *metas = get_args(hint)
        kind, deeper = _unwrap(inner)
        return kind, [*(each for each in metas if isinstance(each, Meta)), *deeper]
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_unwrap(each) for each in get_args(hint) if each is not type(None)]
        return parts[0][0], [meta for _, metas in parts for meta in metas]
    return hint, []
