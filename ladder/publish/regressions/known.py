"""Slowdowns that somebody has looked at and accepted, for a while: `benches/known-regressions.yaml`."""

from __future__ import annotations

import datetime
import fnmatch
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ladder.base import git, text, yamlfile
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.publish.regressions import checkouts, judging
from ladder.publish.regressions.schema import Compared, Rung

FILE = ROOT / "benches" / "known-regressions.yaml"
_NEEDED, _OPTIONAL = ("commit", "series", "reason", "expires"), ("machine",)
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_SERIES = re.compile(r"[A-Za-z0-9 ._(),/'*-]{1,96}")
_MACHINE = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")


@dataclass(frozen=True)
class Entry:
    """`series` is WORKLOAD/RUNG, or a whole asv benchmark with its parameters; `*` stands for anything."""

    commit: str
    series: str
    reason: str
    expires: datetime.date
    machine: str | None = None

    def is_expired(self, today: datetime.date) -> bool:
        return self.expires < today

    def is_of(self, series: str, machine: str) -> bool:
        return self.machine in (None, machine) and fnmatch.fnmatchcase(series, self.series)

    @property
    def said(self) -> str:
        return f"accepted until {self.expires}: {self.reason}"


def between(entries: list[Entry], base: str, head: str, root: Path = ROOT) -> list[Entry]:
    """Return the entries in force whose commit HEAD has and BASE has not."""
    day = today()
    return [
        each
        for each in entries
        if not each.is_expired(day)
        and checkouts.is_ancestor(each.commit, head, root)
        and not checkouts.is_ancestor(each.commit, base, root)
    ]


def mark(result: Compared, entries: list[Entry]) -> Compared:
    """Return a comparison whose accepted slowdowns are marked; `entries` are those `between`."""

    def said(rung: Rung) -> str | None:
        series = f"{result.workload['name']}/{rung.name}"
        found = [each for each in entries if each.is_of(series, result.machine.name)]
        slower = judging.slower_in(rung)  # what is broken is never accepted
        return text.display(found[0].said) if found and slower else None

    return replace(result, rungs=[replace(rung, known=said(rung)) for rung in result.rungs])


def today() -> datetime.date:
    return datetime.datetime.now(datetime.timezone.utc).date()


def read(path: Path | None = None) -> list[Entry]:
    """Return every entry, expired ones too; none where there is no file. Raises `UserError` with the place."""
    path = FILE if path is None else Path(path)
    if not path.exists():
        return []
    values, where = yamlfile.read(path), yamlfile.shown(path)
    if unknown := sorted(values.keys() - {"regressions"}):
        raise UserError(
            f"{where}: unknown key {unknown[0][:40]!r}, expected `regressions:` and a list below it"
        )
    entries = values.get("regressions")
    if not isinstance(entries, list):
        raise UserError(f"{where}: regressions: expected a list, `[]` if there are none")
    return [_entry(entry, f"{where}: regressions: entry {number}") for number, entry in enumerate(entries, 1)]


def expired(entries: list[Entry], day: datetime.date | None = None) -> list[str]:
    """Return a line for each entry that silences nothing any more."""
    day = day or today()
    return [
        f"{FILE.name}: {each.commit[:10]} {each.series}: expired on {each.expires}: fix it, or accept it anew"
        for each in entries
        if each.is_expired(day)
    ]


def idle(entries: list[Entry], root: Path = ROOT) -> list[str]:
    """Return a line for each entry that silences nothing: it is expired, or the clone lacks its commit.

    A shallow clone may lack any commit, so there nothing is said of those.
    """
    lacking = [
        f"{FILE.name}: {each.commit[:10]} {each.series}: no such commit: it silences nothing"
        for each in entries
        if not git.succeeds(root, "cat-file", "-e", f"{each.commit}^{{commit}}")
    ]
    return expired(entries) + ([] if lacking and git.is_shallow(root) else lacking)


def _entry(entry: Any, where: str) -> Entry:
    if not isinstance(entry, dict):
        raise UserError(f"{where}: expected commit, series, reason and expires")
    if unknown := [key for key in entry if key not in (*_NEEDED, *_OPTIONAL)]:
        known = ", ".join((*_NEEDED, *_OPTIONAL))
        raise UserError(f"{where}: unknown key {str(unknown[0])[:40]!r}; there are {known}")
    for key in _NEEDED:
        if key not in entry:
            raise UserError(f"{where}: {key} is missing")
    commit = entry["commit"]
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        number = " (YAML takes it for a number: quote it)" if isinstance(commit, int | float) else ""
        raise UserError(
            f"{where}: commit: expected 7 to 40 hexadecimal digits, got {str(commit)[:40]!r}{number}"
        )
    for key, pattern, wanted in (
        ("series", _SERIES, "a series like article/cuda_graphs"),
        ("reason", text.TEXT, "one line of plain text, at most 96 characters"),
        ("machine", _MACHINE, "a machine's name like nvidia-h200"),
    ):
        value = entry.get(key)
        if key in entry and not (isinstance(value, str) and pattern.fullmatch(value)):
            raise UserError(f"{where}: {key}: expected {wanted}, got {str(value)[:40]!r}")
    return Entry(
        commit, entry["series"], entry["reason"], _date(entry["expires"], where), entry.get("machine")
    )


def _date(value: Any, where: str) -> datetime.date:
    if isinstance(value, str):
        try:
            value = datetime.date.fromisoformat(value)
        except ValueError:
            pass
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise UserError(f"{where}: expires: expected a day like 2027-06-30, got {str(value)[:40]!r}")
    return value
