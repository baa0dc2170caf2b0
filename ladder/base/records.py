"""Frozen records of what a JSON file holds: every field has a rule, so a class is also the schema of its part.

    @record
    class Images:
        count: int = needed(number(0, 1e9, whole=True))
        digest: str | Absent = optional(TEXT)

`read` refuses what the rules refuse, and `plain` gives the same data back. A key that the file lacks is `ABSENT`,
which is false and differs from null.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from ladder.base.errors import UserError
from ladder.base.rules import Rule, fields, maybe
from ladder.core.records import locate_problem, write_whole

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # Python 3.10 has none

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        """Return a decorator that changes nothing."""
        return lambda function: function


T = TypeVar("T")
Convert = Callable[[Any], Any]


class Missing(enum.Enum):
    """The type of `ABSENT`."""

    ABSENT = enum.auto()

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Missing.ABSENT
Absent = Literal[Missing.ABSENT]


def needed(rule: Rule) -> Any:
    """Declare a key that every file has. Null is allowed where the annotation has None."""
    return dataclasses.field(metadata={"rule": rule})


def optional(rule: Rule) -> Any:
    """Declare a key that some files lack."""
    return dataclasses.field(default=ABSENT, metadata={"rule": rule})


def unstored(default: Any) -> Any:
    """Declare a field that no file holds."""
    return dataclasses.field(default=default, compare=False)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(needed, optional, unstored))
def record(cls: type[T]) -> type[T]:
    """Make a frozen, slotted dataclass whose fields are given by name."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


@functools.cache
def rule_of(cls: type) -> Rule:
    """Return the rule that the fields of a record make together."""
    if issubclass(cls, msgspec.Struct):
        return functools.partial(locate_problem, typing.cast(Any, cls))
    hints, needs, may = typing.get_type_hints(cls), {}, {}
    for field in _stored(cls):  # type: ignore[arg-type]
        rule = field.metadata["rule"]
        if type(None) in typing.get_args(hints[field.name]):
            rule = maybe(rule)
        (needs if field.default is dataclasses.MISSING else may)[field.name] = rule
    return fields(needs, may)


def read(cls: type[T], data: Any) -> T:
    """Return the record that a file's data hold. UserError, with the place, for an unknown key or a wrong value."""
    if problem := rule_of(typing.cast(Any, cls))(data):
        where, what = problem
        raise UserError(f"{where.lstrip('.')}: {what}" if where else what)
    return build(cls, data)


def build(cls: type[T], data: Mapping[str, Any]) -> T:
    """Return the record of data that this program made. Nothing is checked but that the keys are known."""
    if issubclass(typing.cast(Any, cls), msgspec.Struct):
        return msgspec.convert(data, cls)
    convert = _converters(typing.cast(Any, cls))
    return cls(**{key: convert[key](value) if key in convert else value for key, value in dict(data).items()})


def plain(value: Any) -> Any:
    """Return the data that a record was read from, without the absent keys. Lists and dicts are new."""
    if isinstance(value, msgspec.Struct):
        return write_whole(value)
    if dataclasses.is_dataclass(value):
        found = ((field.name, getattr(value, field.name)) for field in _stored(typing.cast(Any, type(value))))
        return {key: plain(each) for key, each in found if each is not ABSENT}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value


def given(value: T | Absent) -> T | None:
    """Return a field's value, None where the file lacks its key."""
    return None if value is ABSENT else value


@functools.cache
def _stored(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields that a file holds."""
    return tuple(field for field in dataclasses.fields(cls) if "rule" in field.metadata)


@functools.cache
def _converters(cls: type) -> dict[str, Convert]:
    """Return, by field, how its data become records; fields of plain data are left out."""
    hints = typing.get_type_hints(cls)
    found = {field.name: _converter(hints[field.name]) for field in _stored(cls)}
    return {name: convert for name, convert in found.items() if convert}


def _converter(hint: Any) -> Convert | None:
    """Return how data of this type become records; None where no record is inside."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return lambda value: value if isinstance(value, hint) else build(typing.cast(type, hint), value)
    if dataclasses.is_dataclass(hint):
        return lambda value: build(typing.cast(type, hint), value)
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is list and (each := _converter(inside[0])):
        return lambda values: [each(value) for value in values]
    if origin is dict and (entry := _converter(inside[1])):
        return lambda values: {key: entry(value) for key, value in values.items()}
    if origin in (types.UnionType, typing.Union):
        return _of_several(inside)
    return None


def _of_several(inside: tuple[Any, ...]) -> Convert | None:
    """Return how data of one of several types become a record: of the first whose keys fit."""
    records = [hint for hint in inside if dataclasses.is_dataclass(hint)]
    if structs := [hint for hint in inside if isinstance(hint, type) and issubclass(hint, msgspec.Struct)]:
        own = _converter(structs[0])
        return lambda value: value if value is None or value is ABSENT else own and own(value)
    others = [way for hint in inside if hint not in records and (way := _converter(hint))]
    if len(records) + len(others) == 0:
        return None

    def convert(value: Any) -> Any:
        if value is None or value is ABSENT:
            return value
        fits = [cls for cls in records if _has_its_keys(cls, value)] or records[-1:]
        return build(typing.cast(type, fits[0]), value) if fits else others[0](value)

    return convert


def _has_its_keys(cls: Any, value: Mapping[str, Any]) -> bool:
    names = {field.name for field in _stored(cls)}
    needs = {field.name for field in _stored(cls) if field.default is dataclasses.MISSING}
    return needs <= value.keys() <= names
