"""Records: one declaration is the type, the schema, the check and the error with its place.

    class Images(Record):
        count: Count
        digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]

`read_record` refuses what the declaration refuses; `write_record` gives plain data back. A value that is unknown is
None: a file leaves it out, and a file that has null there reads the same.
"""

from __future__ import annotations

import difflib
import functools
import types
import typing
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from ladder.core.errors import UserError
from ladder.core.text import LONGEST_TEXT, escape_controls

T = TypeVar("T")
LONGEST_VALUE = 40  # characters of a value in a message


if typing.TYPE_CHECKING:  # mypy does not know that msgspec inherits `frozen`

    class Record(msgspec.Struct):
        """See below."""
else:

    class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
        """Base of everything that a file, a YAML or a command line holds.

        A subclass with required fields behind optional ones needs `kw_only=True`, which msgspec does not inherit.
        No field may be a union of a text with a pattern and a list: msgspec 0.22 frees such a type early and crashes.
        Checks that concern several fields belong in `__post_init__`, which raises ValueError with one line.
        """


# --- values, each with the range that a genuine machine can produce ---------------------------------------------------


def text_matching(pattern: str, description: str) -> Meta:
    """Require a text that the regular expression matches as a whole; the description appears in errors."""
    return Meta(pattern=rf"^(?:{pattern})$(?!\n)", description=description)


def number_between(low: float, high: float) -> Meta:
    """Require a number from `low` to `high`."""
    return Meta(ge=low, le=high, description=f"a number from {low:g} to {high:g}")


def size_between(most: int, least: int = 0) -> Meta:
    """Require a list or an object of `least` to `most` entries."""
    return Meta(min_length=least, max_length=most, description=f"{least} to {most} entries")


Text = Annotated[
    str,
    text_matching(
        rf"[A-Za-z0-9 ._()+:@,/'#=-]{{1,{LONGEST_TEXT}}}",
        f"plain text (1 to {LONGEST_TEXT} of letters, digits and  ._()+:@,/'#=-)",
    ),
]
Name = Annotated[
    str, text_matching(r"[a-z0-9][a-z0-9._-]{0,95}", "a name of a-z, 0-9, dot, underscore and hyphen")
]
Identifier = Annotated[str, text_matching(r"[A-Za-z][A-Za-z0-9_. ]{0,63}", "a name")]
Line = Annotated[str, text_matching(r"[ -~]{1,1000}", "a line of printable ASCII")]
Commit = Annotated[str, text_matching(r"[0-9a-f]{40}", "a commit of 40 hexadecimal digits")]
Digest = Annotated[str, text_matching(r"[0-9a-f]{16}", "a digest of 16 digits")]
CodeDigest = Annotated[str, text_matching(r"[0-9a-f]{16}|[1-9]\d{0,3}", "a digest of 16 digits or a number")]
Started = Annotated[
    str,
    text_matching(
        r"20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\+00:00|Z)",
        "a UTC time like 2026-01-31T12:00:00+00:00",
    ),
]
Ms = Annotated[float, number_between(1e-4, 1e8)]
Microseconds = Annotated[float, number_between(1e-6, 1e12)]
Seconds = Annotated[float, number_between(0, 1e8)]
Bytes = Annotated[int, number_between(0, 2**50)]
Count = Annotated[int, number_between(0, 10**9)]
Positive = Annotated[int, number_between(1, 10**9)]
Cores = Annotated[int, number_between(1, 10**5)]
Factor = Annotated[float, number_between(1e-6, 1e6)]
Rate = Annotated[float, number_between(1e-30, 1e30)]
Share = Annotated[float, number_between(0, 1)]
Percent = Annotated[float, number_between(0, 100)]
Clock = Annotated[float, number_between(0, 1e5)]  # MHz
LogRatio = Annotated[float, number_between(0, 100)]
Amount = Annotated[float, number_between(0, 1e30)]
Real = Annotated[float, number_between(-1e30, 1e30)]
Samples = Annotated[list[Ms], size_between(100_000)]
Notes = Annotated[list[Text], size_between(64)]
Names = Annotated[list[Name], size_between(100, 1)]
if typing.TYPE_CHECKING:  # whose keys say what a value is
    Fields = dict[str, Any]
else:
    Fields = dict[
        str, bool | int | float | str | None
    ]  # a workload, a recipe or settings, as a file has them


# --- reading and writing ----------------------------------------------------------------------------------------------


def read_record(kind: Any, data: Any, where: str = "") -> Any:
    """Return the record that plain data hold.

    Raises:
        UserError: an unknown or missing key, or a value that the declaration refuses. One line: `where`, the place
            inside, the value, and what would be right.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        place, problem = locate_problem(kind, data) or ("", str(error))
        parts = (escape_controls(where), place.lstrip("."), problem)
        raise UserError(": ".join(part for part in parts if part)) from None


def write_record(record: Any) -> Any:
    """Return a record as plain data: dicts, lists, numbers and texts. Unknown values are left out."""
    return msgspec.to_builtins(record)


def write_whole(record: Any) -> Any:
    """Return a record as plain data with every field; an unknown value is None."""
    if isinstance(record, msgspec.Struct):
        return {name: write_whole(getattr(record, name)) for name in record.__struct_fields__}
    if isinstance(record, dict):
        return {key: write_whole(value) for key, value in record.items()}
    return [write_whole(value) for value in record] if isinstance(record, list | tuple) else record


def locate_problem(kind: Any, data: Any) -> tuple[str, str] | None:
    """Return the place of the first value that a type refuses, and what is wrong with it; None if nothing is.

    msgspec's own message lacks the key of an entry of a dict, and the value.
    """
    try:
        msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        message = str(error)
    else:
        return None
    for part, inner, value in _parts_of(kind, data):
        if problem := locate_problem(inner, value):
            return f"{part}{problem[0]}", problem[1]
    return "", _describe_problem(kind, data, message)


def _parts_of(kind: Any, data: Any) -> list[tuple[str, Any, Any]]:
    """Return (place, type, value) of each part of the data that has a type of its own."""
    kind = _without_none(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if (record := _record_of(kind)) is not None:
        arguments = dict(zip(getattr(record, "__parameters__", ()), inner, strict=False))
        hints = {name: _fill_type(hint, arguments) for name, hint in _hints_of(record).items()}
    if record is not None and isinstance(data, dict):
        return [(f".{key}", hints[key], value) for key, value in data.items() if key in hints]
    if record is not None and record.__struct_config__.array_like and isinstance(data, list):
        fields = zip(record.__struct_fields__, data, strict=False)
        return [(f".{name}", hints[name], value) for name, value in fields]
    if origin is dict and isinstance(data, dict):
        keys = [(f" key {describe_value(key)}", inner[0], key) for key in data]
        return [*keys, *((f".{escape_controls(key)}", inner[1], value) for key, value in data.items())]
    if origin is list and isinstance(data, list):
        return [(f"[{index}]", inner[0], value) for index, value in enumerate(data)]
    return []


def _record_of(kind: Any) -> Any:
    """Return the class of a record's type, also of a generic one, or None."""
    origin = get_origin(kind) or kind
    return origin if isinstance(origin, type) and issubclass(origin, msgspec.Struct) else None


def _fill_type(hint: Any, arguments: dict[Any, Any]) -> Any:
    """Return a type with the arguments of its generic class in it."""
    if isinstance(hint, TypeVar):
        return arguments.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(arguments.get(each, each) for each in parameters)] if parameters else hint


def _without_none(kind: Any) -> Any:
    """Return the type without `Annotated` and `None`."""
    if get_origin(kind) is Annotated:
        return _without_none(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        others = [each for each in get_args(kind) if each is not type(None)]
        return _without_none(others[0]) if len(others) == 1 else kind
    return kind


@functools.cache
def _hints_of(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _describe_problem(kind: Any, data: Any, message: str) -> str:
    """Return what is wrong with a value whose parts are all right."""
    kind_of_value = _without_none(kind)
    if (record := _record_of(kind_of_value)) is not None and isinstance(data, dict):
        known = record.__struct_fields__
        for key in data:
            if key not in known:
                like = difflib.get_close_matches(str(key), known, n=1)
                return f"unknown key {describe_value(key)}{f'; did you mean {like[0]!r}?' if like else ''}"
        required = set(known) - {f.name for f in msgspec.structs.fields(record) if not f.required}
        for key in known:
            if key in required and key not in data:
                return f"the key {key!r} is missing"
        return message.partition(" - at `$")[0]
    if get_origin(kind_of_value) is typing.Literal:
        return f"{describe_value(data)} is none of {', '.join(map(describe_value, get_args(kind_of_value)))}"
    if expected := _description_of(kind):
        return f"{describe_value(data)} is not {expected}"
    wanted = message.partition(" - at `$")[0].replace("Expected ", "").partition(", got")[0]
    return f"{describe_value(data)} is not {wanted}"


def _description_of(kind: Any) -> str | None:
    """Return the description that `Meta` gives a type, also inside of `T | None`."""
    if get_origin(kind) is Annotated:
        return next(
            (each.description for each in get_args(kind)[1:] if isinstance(each, Meta) and each.description),
            None,
        )
    if get_origin(kind) in (Union, types.UnionType):
        return next(filter(None, map(_description_of, get_args(kind))), None)
    return None


def describe_value(value: Any) -> str:
    """Return a value as an error message prints it on any terminal: ASCII, escaped, short."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    text = ascii(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."
