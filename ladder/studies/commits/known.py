"""Slowdowns that somebody has looked at and accepted, for a while: `benches/known-regressions.yaml`."""

from __future__ import annotations

import datetime
import fnmatch
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from ladder.core import git, text, yamlfile
from ladder.core.paths import ROOT
from ladder.core.records import Name, Record, Text, read_record, text_matching
from ladder.studies.commits import judging
from ladder.studies.commits.record import File as Compared
from ladder.studies.commits.record import Judged, JudgedRung

FILE = ROOT / "benches" / "known-regressions.yaml"


class Entry(Record):
    """`series` is WORKLOAD/RUNG, or a whole asv benchmark with its parameters; `*` stands for anything."""

    commit: Annotated[
        str,
        text_matching(
            "[0-9a-f]{7,40}", "7 to 40 hexadecimal digits (in quotes, if YAML takes them for a number)"
        ),
    ]
    series: Annotated[str, text_matching(r"[A-Za-z0-9 ._(),/'*-]{1,96}", "a series like article/cuda_graphs")]
    reason: Text
    expires: datetime.date
    machine: Name | None = None

    def is_of(self, series: str, machine: str) -> bool:
        return self.machine in (None, machine) and fnmatch.fnmatchcase(series, self.series)

    def describe(self) -> str:
        return f"accepted until {self.expires}: {self.reason}"


class File(Record):
    """The file: a list of entries below one key."""

    regressions: list[Entry]


def today() -> datetime.date:
    return datetime.datetime.now(datetime.timezone.utc).date()


def read_entries(path: Path = FILE) -> list[Entry]:
    """Return every entry, expired ones too; none where there is no file. Raises `UserError` with the place."""
    if not path.exists():
        return []
    return read_record(File, yamlfile.read_yaml(path), yamlfile.show_path(path)).regressions


def list_in_force(entries: list[Entry], base: str, head: str, root: Path = ROOT) -> list[Entry]:
    """Return the entries in force whose commit HEAD has and BASE has not."""

    def has(commit: str, entry: Entry) -> bool:  # a commit that this clone lacks is contained in nothing
        return git.has_succeeded(root, "merge-base", "--is-ancestor", entry.commit, commit)

    return [each for each in entries if each.expires >= today() and has(head, each) and not has(base, each)]


def mark(file: Compared, entries: list[Entry]) -> Judged:
    """Return the verdicts of a comparison, with the slowdowns marked that entries in force accept."""
    workload = (file.workload or {})["name"]

    def describe(rung: JudgedRung) -> str | None:
        accepted = [each for each in entries if each.is_of(f"{workload}/{rung.name}", file.machine.name)]
        slower = judging.list_slower(rung)  # what is broken is never accepted
        return text.make_display(accepted[0].describe()) if accepted and slower else None

    judged = judging.judge(file)
    return replace(judged, rungs=[replace(rung, known=describe(rung)) for rung in judged.rungs])


def list_idle(entries: list[Entry], root: Path = ROOT) -> list[str]:
    """Return a line for each entry that silences nothing: it is expired, or the clone, if whole, lacks its commit."""
    lines, shallow = [], git.is_shallow(root)
    for each in entries:
        name = f"{FILE.name}: {each.commit[:10]} {each.series}"
        if each.expires < today():
            lines.append(f"{name}: expired on {each.expires}: fix it, or accept it anew")
        elif not shallow and not git.has_succeeded(root, "cat-file", "-e", f"{each.commit}^{{commit}}"):
            lines.append(f"{name}: no such commit: it silences nothing")
    return lines
