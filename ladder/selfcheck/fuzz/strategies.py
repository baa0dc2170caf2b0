"""Damage to JSON and YAML files, as Hypothesis draws it: strategies from a file's bytes to damaged bytes.

Each entry of `WAYS` is a kind of damage, by the name that `ladder.selfcheck.fuzz` counts by.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import yaml
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]

HOSTILE = [
    "../x", "/etc/passwd", "\x00", "\x1b[2J", "\u202e", "<img src=x onerror=alert(1)>", "=1+1", "a|b", "$x^2$",
    "[x](javascript:y)", "\ud800", "NaN", "__class__", "constructor", "schema", "kind", "machine",
]  # fmt: skip
_TEXTS = st.sampled_from(HOSTILE) | st.text(max_size=99)
_NUMBERS = st.integers() | st.floats() | st.sampled_from([0, 2**63, 10**30, 1e308, -0.0, 5e-324])
_LEAVES = st.none() | st.booleans() | _NUMBERS | _TEXTS
_LARGE = st.sampled_from([[0] * 5000, ["x"] * 200])
VALUES = _LEAVES | st.one_of(
    st.lists(_LEAVES, max_size=5), st.dictionaries(_TEXTS, _LEAVES, max_size=5), _LARGE
)
# Numbers that JSON or YAML does not have, or that no float holds.
LITERALS = [
    b"NaN", b"-Infinity", b".inf", b".nan", b"1e999", b"1e-999", b"9" * 400, b"9" * 20000, b"1e", b"01", b"0x10",
    b"1_000", b"1:30", b"2024-01-01", b"+1", b".5",
]  # fmt: skip
FOREIGN = [b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x00", b"\r", b"\x85", b"\xe2\x80\xa8"]
LINES = [
    b"!!python/object/apply:os.system ['touch x']", b"&a [*a, *a]", b"*a", b"<<: *a", b"? [a, b]", b"---",
    b"%YAML 9.9", b"\t- x", b"- - - - -", b"resolution: !!binary aGFsbG8=", b"norm: |\n  x", b"1: 2",
    b"rungs: [../../x]", b"rungs: [{baseline: .nan}]", b"data: /etc/passwd", b"'", b"a: b: c", b"}", b"%",
]  # fmt: skip


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of everything in plain data."""
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], dict | list):
            yield from _places(data[key])


def _chosen(draw: Draw, sequence: list[Any]) -> Any:
    return sequence[draw(st.integers(0, len(sequence) - 1))]


def _replace(draw: Draw, holder: Any, key: Any, found: list[Any]) -> None:
    holder[key] = draw(VALUES)


def _remove(draw: Draw, holder: Any, key: Any, found: list[Any]) -> None:
    del holder[key]


def _add(draw: Draw, holder: Any, key: Any, found: list[Any]) -> None:
    if isinstance(holder, dict):
        holder[draw(_TEXTS)] = draw(VALUES)
    else:
        holder.insert(key, draw(VALUES))


def _exchange(draw: Draw, holder: Any, key: Any, found: list[Any]) -> None:
    other, at = _chosen(draw, found)
    holder[key] = copy.deepcopy(other[at])


def _scale(draw: Draw, holder: Any, key: Any, found: list[Any]) -> None:
    """Multiply the numbers of one list or object: another unit, or a faster GPU than there is."""
    factor = draw(st.sampled_from([-1, 1])) * 10.0 ** draw(st.integers(-9, 9))
    for each in list(holder) if isinstance(holder, dict) else range(len(holder)):
        if isinstance(holder[each], int | float) and not isinstance(holder[each], bool):
            holder[each] *= factor


def _repeat(draw: Draw, holder: Any, key: Any, found: list[Any]) -> None:
    if isinstance(holder, list):
        holder.extend(copy.deepcopy(holder[key]) for _ in range(draw(st.sampled_from([1, 2, 1000]))))
    else:
        holder[f"{key}-2"] = copy.deepcopy(holder[key])


def _structure(change: Callable[..., None]) -> Callable[[Draw, bytes], bytes]:
    """Return damage to the data that the text stands for; text that stands for none loses its first byte."""

    def damage(draw: Draw, raw: bytes) -> bytes:
        is_json = raw[:1] in (b"{", b"[")
        try:
            data = json.loads(raw) if is_json else yaml.safe_load(raw)
            found = list(_places(data))
            change(draw, *_chosen(draw, found), found)
            return json.dumps(data).encode() if is_json else yaml.safe_dump(data).encode()
        except (ValueError, TypeError, IndexError, RecursionError, OverflowError, yaml.YAMLError):
            return raw[1:]  # was damaged before

    return damage


def _position(draw: Draw, raw: bytes) -> int:
    return draw(st.integers(0, len(raw)))


def _bytes(draw: Draw, raw: bytes) -> bytes:
    at = _position(draw, raw)
    new = draw(st.binary(min_size=1, max_size=8))
    return raw[:at] + new + raw[at + len(new) :]


def _cut(draw: Draw, raw: bytes) -> bytes:
    return raw[: _position(draw, raw)]


def _hole(draw: Draw, raw: bytes) -> bytes:
    at = _position(draw, raw)
    return raw[:at] + raw[at + draw(st.integers(1, 400)) :]


def _twice(draw: Draw, raw: bytes) -> bytes:
    """Repeat a piece of the file, or the whole file."""
    at = _position(draw, raw)
    return raw[:at] + raw[at : at + draw(st.sampled_from([10, 100, 1000, len(raw)]))] + raw[at:]


def _foreign(draw: Draw, raw: bytes) -> bytes:
    at = _position(draw, raw)
    return raw[:at] + draw(st.sampled_from(FOREIGN)) + raw[at:]


def _literal(draw: Draw, raw: bytes) -> bytes:
    """Replace the value behind a colon by a number that is none."""
    at = raw.find(b": ", _position(draw, raw)) + 2
    end = next((k for k in range(at, len(raw)) if raw[k : k + 1] in b",}]\n"), len(raw))
    return raw[:at] + draw(st.sampled_from(LITERALS)) + raw[end:]


def _key_twice(draw: Draw, raw: bytes) -> bytes:
    key = _chosen(draw, [part for part in raw.split(b'"')[1::2] if part] or [b"schema"])
    at = max(raw.find(b"{", _position(draw, raw)), raw.find(b"{")) + 1
    return raw[:at] + b'"' + key + b'": 1, "' + key + b'": 2, ' + raw[at:]


def _deep(draw: Draw, raw: bytes) -> bytes:
    opening, closing = draw(st.sampled_from([(b"[", b"]"), (b'{"x": ', b"}")]))
    levels = draw(st.sampled_from([1, 7, 8, 9, 50, 1000, 20000]))
    at = raw.find(b": ", _position(draw, raw)) + 2
    inside = opening * levels + b"1" + closing * draw(st.sampled_from([levels, 0]))
    return raw[:at] + inside + draw(st.sampled_from([b"", b", "])) + raw[at:]


def _line(draw: Draw, raw: bytes) -> bytes:
    """Replace, repeat or exchange a line, or put a strange one before it."""
    lines = raw.split(b"\n")
    at, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    strange = draw(st.sampled_from(LINES))
    piece = draw(
        st.sampled_from(
            [[strange], [strange, lines[at]], [lines[at]] * 2, [b"  " + lines[at]], [lines[other]]]
        )
    )
    return b"\n".join([*lines[:at], *piece, *lines[at + 1 :]])


def _long(draw: Draw, raw: bytes) -> bytes:
    """Insert up to five megabytes of quotes, brackets, backslashes, digits or spaces."""
    piece = draw(
        st.sampled_from([b'"', b"[", b"\\", b'\\"', b"9", b" ", b"\n", b"{", b"a", b"1,", b"- ", b"? "])
    )
    at, many = _position(draw, raw), draw(st.sampled_from([1000, 60_000, 1_000_000, 2_500_000]))
    return raw[:at] + piece * many + raw[at:]


WAYS: dict[str, Callable[[Draw, bytes], bytes]] = {
    "value replaced": _structure(_replace),
    "entry removed": _structure(_remove),
    "entry added": _structure(_add),
    "values exchanged": _structure(_exchange),
    "numbers scaled": _structure(_scale),
    "entry repeated": _structure(_repeat),
    "strange number": _literal,
    "key twice": _key_twice,
    "nested deep": _deep,
    "lines in disorder": _line,
    "bytes changed": _bytes,
    "cut off": _cut,
    "a hole": _hole,
    "a piece twice": _twice,
    "foreign bytes": _foreign,
    "far too long": _long,
}
_USUAL = [name for name in WAYS if name != "far too long"]
_DRAWN = [*_USUAL * 13, "far too long", *_USUAL * 13]  # one costs more than a thousand others


@st.composite
def damaged(draw: Draw, raw: bytes) -> tuple[str, bytes]:
    """Draw the name of the damage and the damaged bytes of a file. One file in ten is damaged twice."""
    name = draw(st.sampled_from(_DRAWN))
    raw = WAYS[name](draw, raw)
    if draw(st.integers(0, 9)) == 9:
        raw = WAYS[draw(st.sampled_from(_USUAL))](draw, raw)
    return name, raw
