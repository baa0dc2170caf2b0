"""Seeded damage to files: what a stranger, a bad disk or a careless merge does to JSON and YAML.

Each mutation is a function of the file's bytes and a random generator; its name is what `ladder.selfcheck.fuzz`
counts by.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Draw = random.Random
Mutation = Callable[[bytes, Draw], bytes]

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e-300, 1e308, -1e308, 2**63, 10**30, 5e-324, "", "x", "x" * 97,
    "../x", "/etc/passwd", "a\nb", "\x00", "\x1b[2J", "\u202e", "<b>", "<img src=x onerror=alert(1)>", "=1+1",
    "a|b", "$x^2$", "`x`", "[x](javascript:y)", "é", "\ud800", "NaN", "1", [], {}, [[]], [None], {"x": {}},
    {"": ""}, ["x"] * 200, [1, 2], [0] * 5000,
]  # fmt: skip
KEYS = ["x", "", "\n", "schema", "kind", "version", "__class__", "constructor", "<b>", "k" * 300, "machine"]
NUMBERS = [
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1e-999", b"-1", b"0", b"0.0", b"-0.1", b"1" * 33,
    b"9" * 400, b"9" * 20000, b"1e", b"01", b"0x10", b"1_000", b"+1", b".5", b"null", b"true", b'"1"', b"[]",
]  # fmt: skip
BYTES = [
    b"\xff",
    b"\xfe\xff",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\x00",
    b"\xc0\xaf",
    b"\r",
    b"\x85",
    b"\xe2\x80\xa8",
]


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything in plain data."""
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], dict | list):
            yield from places(data[key])


def _structure(change: Callable[[Any, Any, Any, Draw], None]) -> Mutation:
    """A mutation of the data that JSON text stands for; text that stands for none loses its first byte."""

    def mutate(raw: bytes, draw: Draw) -> bytes:
        try:
            data = json.loads(raw)
            holder, key = draw.choice(found := list(places(data)))
            change(holder, key, found, draw)
            return json.dumps(data).encode()
        except (ValueError, TypeError, IndexError, RecursionError, OverflowError):  # was damaged before
            return raw[1:]

    return mutate


def _replace(holder: Any, key: Any, found: Any, draw: Draw) -> None:
    holder[key] = copy.deepcopy(draw.choice(VALUES))


def _remove(holder: Any, key: Any, found: Any, draw: Draw) -> None:
    del holder[key]


def _add(holder: Any, key: Any, found: Any, draw: Draw) -> None:
    if isinstance(holder, dict):
        holder[draw.choice(KEYS)] = copy.deepcopy(draw.choice(VALUES))
    else:
        holder.insert(draw.randint(0, len(holder)), copy.deepcopy(draw.choice([holder[key], *VALUES])))


def _swap(holder: Any, key: Any, found: Any, draw: Draw) -> None:
    other, at = draw.choice(found)
    value, holder[key] = copy.deepcopy(other[at]), None
    holder[key] = value


def _scale(holder: Any, key: Any, found: Any, draw: Draw) -> None:
    """Numbers of one list or object times a power of ten: another unit, or a faster GPU than there is."""
    factor = 10.0 ** draw.randint(-9, 9) * draw.choice([1, -1])
    for each in list(holder) if isinstance(holder, dict) else range(len(holder)):
        if isinstance(holder[each], int | float) and not isinstance(holder[each], bool):
            holder[each] = holder[each] * factor


def _repeat(holder: Any, key: Any, found: Any, draw: Draw) -> None:
    if isinstance(holder, list):
        holder.extend(copy.deepcopy(holder[key]) for _ in range(draw.choice([1, 2, 1000])))
    else:
        holder[f"{key}-2"] = copy.deepcopy(holder[key])


def _bytes(raw: bytes, draw: Draw) -> bytes:
    """One to eight bytes become others."""
    data = bytearray(raw or b" ")
    for _ in range(draw.randint(1, 8)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def _cut(raw: bytes, draw: Draw) -> bytes:
    return raw[: draw.randrange(len(raw) + 1)]


def _hole(raw: bytes, draw: Draw) -> bytes:
    at = draw.randrange(len(raw) + 1)
    return raw[:at] + raw[at + draw.randint(1, 400) :]


def _doubled(raw: bytes, draw: Draw) -> bytes:
    """A piece of the file is there twice, or a whole file follows the file."""
    at, length = draw.randrange(len(raw) + 1), draw.choice([10, 100, 1000, len(raw)])
    return raw[:at] + raw[at : at + length] + raw[at:]


def _foreign(raw: bytes, draw: Draw) -> bytes:
    """Bytes that are no UTF-8, or that should not be in a text."""
    at = draw.randrange(len(raw) + 1)
    return raw[:at] + draw.choice(BYTES) + raw[at:]


def _number(raw: bytes, draw: Draw) -> bytes:
    """A number is replaced by what JSON does not have, or by one that no float holds."""
    starts = [
        at
        for at in range(1, len(raw))
        if raw[at : at + 1].isdigit() and raw[at - 1 : at] in (b" ", b"[", b"-")
    ]
    if not starts:
        return raw + draw.choice(NUMBERS)
    at = draw.choice(starts)
    end = next((k for k in range(at, len(raw)) if raw[k : k + 1] not in b"0123456789.eE+-"), len(raw))
    return raw[:at] + draw.choice(NUMBERS) + raw[end:]


def _key_twice(raw: bytes, draw: Draw) -> bytes:
    quoted = [part for part in raw.split(b'"')[1::2] if part]
    key = draw.choice(quoted or [b"schema"])
    at = raw.find(b"{", draw.randrange(len(raw) + 1))
    at = at if at >= 0 else raw.find(b"{")
    return raw[: at + 1] + b'"' + key + b'": 1, "' + key + b'": 2, ' + raw[at + 1 :]


def _deep(raw: bytes, draw: Draw) -> bytes:
    opening, closing = draw.choice([(b"[", b"]"), (b'{"x": ', b"}")])
    levels = draw.choice([1, 7, 8, 9, 50, 1000, 20000])
    at = raw.find(b": ", draw.randrange(len(raw) + 1)) + 2
    inside = opening * levels + b"1" + closing * draw.choice([levels, levels, 0])
    return raw[:at] + inside + (b", " if draw.random() < 0.5 else b"") + raw[at:]


def _long(raw: bytes, draw: Draw) -> bytes:
    """Far too much of something: quotes, brackets, backslashes, digits, spaces, up to five megabytes."""
    what = draw.choice([b'"', b"[", b"\\", b'\\"', b"9", b" ", b"\n", b"{", b"a", b"1,", b"- ", b"? "])
    at = draw.randrange(len(raw) + 1)
    return raw[:at] + what * draw.choice([1000, 60_000, 1_000_000, 2_500_000]) + raw[at:]


BLIND: dict[str, Mutation] = {
    "bytes changed": _bytes,
    "cut off": _cut,
    "a hole": _hole,
    "a piece twice": _doubled,
    "foreign bytes": _foreign,
}
JSON: dict[str, Mutation] = {
    "value replaced": _structure(_replace),
    "entry removed": _structure(_remove),
    "entry added": _structure(_add),
    "values exchanged": _structure(_swap),
    "numbers scaled": _structure(_scale),
    "entry repeated": _structure(_repeat),
    "strange number": _number,
    "key twice": _key_twice,
    "nested deep": _deep,
    **BLIND,
}
RARE: dict[str, Mutation] = {"far too long": _long}  # costs more than a thousand others

LINES = [
    "!!python/object/apply:os.system ['touch x']", "!!python/name:os.system", "&a [*a, *a]", "*a", "<<: *a",
    "? [a, b]", "- - - - - - - - - -", "key: &x [1]\nother: *x", "---", "...", "%YAML 9.9", "\t- x",
    "{a: {b: {c: {d: {e: {f: {g: h}}}}}}}", "batch: .inf", "batch: .nan", "batch: -1", "batch: 0",
    "batch: 1e400", "batch: 0x7fffffffffffffff", "batch: 1:30", "batch: 10000000000000000000000000",
    "resolution: 2024-01-01", "resolution: yes", "resolution: null", "resolution: 3",
    "resolution: !!binary aGFsbG8=", "data: /etc/passwd", "data: [1]", "norm: |\n  x", "norm: >-\n  y",
    "1: 2", "null: 1", "rungs: baseline", "rungs: []", "rungs: [baseline, baseline]",
    "rungs: [{baseline: -1}]", "rungs: [../../x]", "- x", "rungs: [{baseline: .nan}]", "rungs: [null]",
    "title: <script>alert(1)</script>", "title: [x]", "title: \"\\u202e\"", "expires: 9999-99-99",
    "commit: 0", "? x\n: y", "\"\\x\": 1", "'", "\"", "a: b: c", "}", "]", "@x", "`x`", "%",
]  # fmt: skip


def _line(raw: bytes, draw: Draw) -> bytes:
    lines = raw.split(b"\n")
    lines.insert(draw.randint(0, len(lines)), draw.choice(LINES).encode())
    return b"\n".join(lines)


def _other_line(raw: bytes, draw: Draw) -> bytes:
    lines = raw.split(b"\n")
    lines[draw.randrange(len(lines))] = draw.choice(LINES).encode()
    return b"\n".join(lines)


def _lines(raw: bytes, draw: Draw) -> bytes:
    """Lines removed, doubled, exchanged or indented otherwise."""
    lines = raw.split(b"\n")
    for _ in range(draw.randint(1, 3)):
        at, kind = draw.randrange(len(lines)), draw.randrange(4)
        if kind == 0 and len(lines) > 1:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[at])
        elif kind == 2:
            other = draw.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines[at] = (
                draw.choice([b" ", b"  ", b"\t", b"- "]) * draw.choice([1, 2, 12]) + lines[at].lstrip()
            )
    return b"\n".join(lines)


def _scalar(raw: bytes, draw: Draw) -> bytes:
    """The value of one `key: value` line is replaced."""
    lines = raw.split(b"\n")
    with_value = [k for k, line in enumerate(lines) if b": " in line]
    if with_value:
        at = draw.choice(with_value)
        value = draw.choice([json.dumps(draw.choice(VALUES)).encode(), draw.choice(NUMBERS)])
        lines[at] = lines[at].split(b": ")[0] + b": " + value
    return b"\n".join(lines)


YAML: dict[str, Mutation] = {
    "line added": _line,
    "line replaced": _other_line,
    "lines in disorder": _lines,
    "value replaced": _scalar,
    "nested deep": _deep,
    **BLIND,
}
