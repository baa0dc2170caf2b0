"""Tuning choices as text: rows of `kernels.choices.used`, a line each, and their changes between two commits.

A line is "bias_act backward 2B nhwc sm90 large: 4096/64/8/2/1". First stands the call as far as the row names it: bytes
of an element, memory format, architecture, size. Then stand tile, columns, warps, programs for each SM, stages. Rows of
an op's own table have lines like "upfirdn2d nhwc up 2 down 1: rows 8, cols 2, ...".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

CALL = {  # fields of kernels.choices.Key, and how a line shows them
    "op": "{}", "direction": "{}", "itemsize": "{}B", "layout": "{}", "architecture": "sm{}", "size": "{}",
}  # fmt: skip
CHOICE = ("tile", "columns", "warps", "per_sm", "stages")  # fields of kernels.choices.Choice
FACTS = ("size", "itemsize", "layout", "architecture", *CHOICE)


def lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return rows of `kernels.choices.used` as text for a note."""
    notes = []
    for row in rows:
        call = [how.format(row[key]) for key, how in CALL.items() if row.get(key) is not None]
        choice = row.get("entry") or "/".join(str(row.get(name)) for name in CHOICE)
        notes.append(f"{' '.join(filter(None, [*call, row.get('case')]))}: {choice}")
    return notes


def changes(before: list[str] | None, after: list[str] | None) -> list[str]:
    """Return a line for each row that changed between two commits' choices of a series: "CALL: warps 4 -> 8".

    The list is empty where the choices of a commit are unknown.
    """
    if before is None or after is None:
        return []
    old, new = (dict(line.rpartition(": ")[::2] for line in each) for each in (before, after))
    notes = [f"{call}: {'new' if call in new else 'used no more'}" for call in {*old} ^ {*new}]
    for call in {*old} & {*new}:
        was, now = old[call].split("/"), new[call].split("/")
        pairs = [(f"{name} ", *pair) for name, *pair in zip(CHOICE, was, now, strict=False)]
        if not len(was) == len(now) == len(CHOICE):  # an entry, or of another version of ours
            pairs = [("", old[call], new[call])]
        if differs := ", ".join(f"{name}{a} -> {b}" for name, a, b in pairs if a != b):
            notes.append(f"{call}: {differs}")
    return sorted(notes)
