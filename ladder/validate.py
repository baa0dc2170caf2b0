"""Reads result files as if from a stranger: each is accepted, or refused in one line that says why.

A file is a result only if this project could have written it: a regular file of modest size, known keys, numbers
in range, plain text (`ladder.schema`), and in itself no contradiction: machine named after its hardware, headline
times among the samples. asv's files are known by their names (`ladder.asvchecks`). What is shown of a file on the
way is escaped, and no file can raise.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder import asvchecks, floor, measured, results, schema, schema_kinds
from ladder.publishing import publishable
from ladder.rules import shown

MOST_BYTES = (
    2**22
)  # a ladder takes some hundred kilobytes, all kernels with every sample more than a megabyte
MOST_FILES = 10_000
_FOLDER = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")
_FILE = re.compile(r"[a-z0-9][a-z0-9._-]*(-\d{8}T\d{6}Z)?(-\d+)?\.json")
_LONGEST_NAME = 240


@dataclass(frozen=True)
class Judged:
    """One file, what is wrong with it in one line, or None, and why an accepted one must not be quoted."""

    path: str
    problem: str | None
    marks: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """`accepted`, perhaps with why not to quote it, or `refused: WHY`."""
        return f"refused: {self.problem}" if self.problem else "; ".join(["accepted", *self.marks])


def validate(paths: Iterable[Path]) -> Iterator[Judged]:
    """Judge each path, of a folder every .json file in it at any depth, in order.

    Whatever is no regular file is refused too; other regular files are no results and passed over. A result that was
    seen before, under whatever name, is refused as a duplicate; a file named twice is read once.
    """
    for _, _, judged in read_and_judge(paths):
        yield judged


def read_and_judge(paths: Iterable[Path], below: Path | None = None) -> Iterator[tuple[Path, Any, Judged]]:
    """As `validate`: each file, what it holds if it is accepted, else None, and the verdict.

    Paths are shown as they were given, or as they are under the folder `below`.
    """
    seen: dict[str, str] = {}
    read: set[str] = set()
    for path in paths:
        found = 0
        for file, problem in _files(Path(path)):
            found += 1
            where = os.path.abspath(file)
            if where in read:
                continue
            read.add(where)
            marks: list[str] = []
            data, name = None, show_path(file.relative_to(below) if below else file)
            if problem is None:
                problem, data = _judge(file, seen, marks, name)
            yield file, data, Judged(name, problem, tuple(map(_clean, marks)))
        if not found:
            yield Path(path), None, Judged(show_path(path), "no result file in this folder")


def problem_of(path: Path) -> str | None:
    """What is wrong with one file, or None. Never raises."""
    return _judge(Path(path), {}, [], "")[0]


def name_problem(path: Path) -> str | None:
    """What is wrong with the name of a result file, in one line, or None."""
    if _FILE.fullmatch(path.name) and len(path.name) <= _LONGEST_NAME:
        return None
    return "the file's name must be of a-z, 0-9, dot, underscore and hyphen, like WORKLOAD-LADDER-TIME.json"


def _files(path: Path) -> Iterator[tuple[Path, str | None]]:
    """Every file to be judged under `path`, and what is already wrong with it."""
    kind = _kind(path)
    if kind != "folder":
        yield path, kind
        return
    pending, count = [path], 0
    while pending:
        folder = pending.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except (OSError, ValueError) as error:
            yield folder, f"cannot be read: {_why(error)}"
            continue
        below = []
        for entry in entries:
            count += 1
            if count > MOST_FILES:
                yield folder, f"more than {MOST_FILES} entries: the rest was not looked at"
                return
            file = folder / entry.name
            kind = _kind(file)
            if kind == "folder":
                if entry.name.lower().endswith(".json"):
                    yield file, "a folder with the name of a file"
                    continue
                below.append(file)
                if not _FOLDER.fullmatch(entry.name):
                    yield file, "a folder's name must be of a-z, 0-9, dot, underscore and hyphen"
            elif kind or entry.name.lower().endswith(".json"):
                yield file, kind
        pending += reversed(below)


def _kind(path: Path) -> str | None:
    """None for a regular file, "folder", or in one line what it is instead. Links are not followed."""
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError) as error:
        return f"cannot be read: {_why(error)}"
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        return "folder"
    return "a symbolic link, not a regular file" if stat.S_ISLNK(mode) else "not a regular file"


def _judge(path: Path, seen: dict[str, str], marks: list[str], name: str) -> tuple[str | None, Any]:
    """What is wrong with a file, or None and what it holds.

    `seen`, files by the measurement in them, gets the file's `name`; `marks` why it must not be quoted.
    """
    try:
        if problem := name_problem(path):
            return problem, None
        kind = asvchecks.kind_of(path)
        if kind is not None:
            data = asvchecks.parse(_read(path, asvchecks.MOST_BYTES), kind)
            problem = asvchecks.check(data, kind, path)
        else:
            data = results.parse(_read(path))
            problem = check(data)
        if problem:
            return problem, None
        if kind is not None:
            mark = asvchecks.fingerprint(data, kind)
            marks += asvchecks.marks(data, kind)
        else:
            mark = fingerprint(data)
            marks += schema_kinds.marks(data) if "kind" in data else publishable(data)
    except OSError as error:
        return f"cannot be read: {_why(error)}", None
    except ValueError as error:
        return f"not a result file: {_clean(str(error))}", None
    except Exception as error:  # the last resort: a file must not stop the judging of the others
        return f"not a result file: {_clean(type(error).__name__)}", None
    if mark in seen:
        return f"the same measurement as {seen[mark]}", None
    if mark is not None:
        seen[mark] = name
    return None, data


def _read(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file that is not too large; it is checked again once open, when it can no longer change
    its kind. OSError or ValueError.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("not a regular file")
        raw = file.read(most + 1)
    if len(raw) > most:
        raise ValueError(f"more than {most} bytes")
    return raw


def check(data: Any) -> str | None:
    """What is wrong with a result that a stranger sent, in one line, or None."""
    if not isinstance(data, dict) or "schema" not in data:
        return 'not a result file: expected an object with "schema"'
    other = "kind" in data
    if other and data["kind"] not in tuple(schema_kinds.KINDS):  # a list has no hash
        return f"kind: {shown(data['kind'])} is none of {', '.join(schema_kinds.KINDS)}"
    if problem := (schema_kinds.KINDS[data["kind"]] if other else schema.RESULT)(data):
        where, what = problem
        return f"{where.lstrip('.')}: {what}" if where else what
    return schema_kinds.contradiction(data) if other else results.check(data) or _contradiction(data)


def _contradiction(data: dict[str, Any]) -> str | None:
    machine, rungs = data["machine"], data["rungs"]
    hardware = machine["gpu"] if machine["device"] == "cuda" else machine["cpu"]
    if hardware is None or machine["name"] != results.slug(hardware):
        return f"machine.name: {machine['name']!r} is not made from its hardware, {shown(hardware)}"
    names = [rung["name"] for rung in rungs]
    if names != data["ladder"]["rungs"] or len(set(names)) < len(names):
        return "rungs: not those of ladder.rungs, each once and in that order"
    if data["baseline"] not in (None, *names):
        return f"baseline: no rung is named {data['baseline']!r}"
    if problem := measured.contradiction(data):
        return problem
    least = floor.floor_ms(machine, data["workload"])
    for rung in [*rungs, *data.get("twins", [])]:
        problem = None if "of" in rung else _rung_contradiction(rung)
        if rung["status"] == "ok":
            problem = problem or floor.too_fast(rung, least)
        if problem:
            return f"rung {rung['name']}: {problem}"
    if data["complete"] and not any(rung["samples_ms"] for rung in rungs):
        return "complete, but nothing was measured"
    return None


def _rung_contradiction(rung: dict[str, Any]) -> str | None:
    samples, numbers = rung["samples_ms"], [r["round"] for r in rung["rounds"]]
    if len(set(numbers)) < len(numbers):
        return "a round is there twice"
    if rung["rounds"] and not set(samples) <= {each for r in rung["rounds"] for each in r["samples_ms"]}:
        return "samples_ms are not those of its rounds"
    if rung["step_ms"] is None:
        return None
    if rung["status"] != "ok":
        return f'a step time, but the status "{rung["status"]}"'
    if not samples:
        return "a step time without samples"
    for key in ("step_ms", "q25_ms", "q75_ms"):
        if rung[key] is not None and not min(samples) * 0.999999 <= rung[key] <= max(samples) * 1.000001:
            return f"{key} is not among its samples"
    return None


def fingerprint(data: dict[str, Any]) -> str:
    """Equal for two results exactly if they hold the same samples (or, without any, the same everything)."""
    if "kind" in data:
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    times = [[r["samples_ms"] for r in rung["rounds"]] or rung["samples_ms"] for rung in data["rungs"]]
    samples = [data["machine"]["name"], data["workload"]["name"], times]
    measured = any(rung["samples_ms"] for rung in data["rungs"])
    return hashlib.sha256(json.dumps(samples if measured else data, sort_keys=True).encode()).hexdigest()


def show_path(path: Path | str) -> str:
    """A path as any terminal can print it: a name may hold line ends and escape sequences."""
    return _clean(str(path), 400)


def _why(error: Exception) -> str:
    return _clean(getattr(error, "strerror", None) or str(error))


def _clean(text: str, longest: int = 160) -> str:
    text = "".join(c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in text[:longest])
    return text[:longest]
