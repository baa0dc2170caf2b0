"""The judge of result files from strangers: each file is accepted, or refused with one line of why.

A file is accepted only if this project could have written it. It must be a regular file of modest size with known
keys, numbers in range and plain text (`ladder.results.schema`). It must not contradict itself: the machine is
named after its hardware, and headline times are among the samples. Names identify asv's files
(`ladder.publish.validation.asv_files`). Text from a file is escaped before it is shown, and no file can raise an
exception.
"""

import difflib
import functools
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ladder.base import git
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.rules import shown
from ladder.publish.validation import asv_files, kinds
from ladder.results import check as checks
from ladder.results import judging, loading
from ladder.results import store as results
from ladder.results.code_digest import Head
from ladder.results.loading import name_problem, printable, read_bytes, show_path, why
from ladder.results.publishable import publishable

MOST_FILES = 10_000
ARCHIVE = "archive"  # the folder in results/ of kinds that no code reads any more
_FOLDER = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")


@dataclass(frozen=True)
class Judged:
    """The verdict on one file: its problem in one line or None, and why an accepted file must not be quoted."""

    path: str
    problem: str | None
    marks: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Return `accepted`, with why not to quote the file if it has marks, or `refused: WHY`."""
        return f"refused: {self.problem}" if self.problem else "; ".join(["accepted", *self.marks])


def validate(paths: Iterable[Path]) -> Iterator[Judged]:
    """Judge each path in order; for a folder, every .json file in it at any depth.

    Anything but a regular file is refused. Regular files of other names, and folders named `archive`, are skipped. If
    several files hold the same measurement, only one is accepted. A file in a folder of its machine's name comes
    first, then the oldest in the repository. A file named twice is read once.
    """
    for _, _, judged in read_and_judge(paths, also=asv_date):
        yield judged


def read_and_judge(
    paths: Iterable[Path],
    below: Path | None = None,
    also: Callable[[Path, Any], str | None] = lambda file, data: None,
) -> Iterator[tuple[Path, Any, Judged]]:
    """Yield for each file its path, its content (None if refused) and the verdict, as in `validate`.

    Paths are shown as given, or relative to the folder `below`. Function ``also`` returns a further problem of a
    valid file, or None. A file with such a problem does not count as a copy of another.
    """
    files_read: list[_Read] = []
    read: set[str] = set()
    for path in paths:
        count = len(files_read)
        for file, problem in _files(Path(path)):
            where = os.path.abspath(file)
            if where in read:
                count = -1
                continue
            read.add(where)
            one = _Read(file, show_path(file.relative_to(below) if below else file), problem)
            files_read.append(one)
            if problem is None:
                one.problem, one.data, one.mark = _judge(file, one.marks)
            if one.problem is None and (more := also(file, one.data)):
                one.problem, one.data = more, None
        if len(files_read) == count:
            files_read.append(
                _Read(Path(path), show_path(path), "no result in this folder: no name in it ends in .json")
            )
    _refuse_copies(files_read)
    for one in files_read:
        yield one.file, one.data, Judged(one.name, one.problem, tuple(map(printable, one.marks)))


@dataclass
class _Read:
    """One file with its problem, its content, and the digest by which copies are recognized."""

    file: Path
    name: str
    problem: str | None
    data: Any = None
    mark: str | None = None
    marks: list[str] = field(default_factory=list)


def _refuse_copies(files_read: list[_Read]) -> None:
    """Refuse all but one of the accepted files with the same measurement."""
    same: dict[str, list[_Read]] = {}
    for one in files_read:
        if one.problem is None and one.mark is not None:
            same.setdefault(one.mark, []).append(one)
    for copies in same.values():
        if len(copies) > 1:
            first = min(copies, key=lambda one: (_elsewhere(one), _since(one.file)))
            for one in copies:
                if one is not first:
                    one.problem, one.data = f"the same measurement as {first.name}", None


def _elsewhere(one: _Read) -> bool:
    """Return whether a result lies in a folder that is not named after its machine."""
    named = one.data.get("machine") or one.data.get("params")  # ours, or asv's
    name = named and (named.get("name") or named.get("machine"))
    return bool(name) and one.file.parent.name != name


def _since(file: Path) -> float:
    """Return the number of commits in the repository when the file was added, or infinity if it never was.

    A date would be no evidence, because anybody can choose it.
    """
    try:
        touched = git.read(ROOT, "rev-list", "HEAD", "--", os.path.abspath(file)).split()
        return float(git.read(ROOT, "rev-list", "--count", touched[-1])) if touched else math.inf
    except UserError:
        return math.inf


def asv_date(file: Path, data: Any) -> str | None:
    """Return the problem of an asv result whose date is not that of its known commit, or None."""
    if asv_files.kind_of(file) != "results":
        return None
    return misdated(data, _dates(data["commit_hash"]))


def misdated(data: Mapping[str, Any], dates: Mapping[str, int]) -> str | None:
    """Return the problem of an asv result whose date differs from these `commit_dates`, or None."""
    known = dates.get(data["commit_hash"])
    return None if known in (None, data["date"]) else "date: not that of its commit"


@functools.cache
def _dates(commit: str) -> dict[str, int]:
    return commit_dates(ROOT, {commit}) or {}


def commit_dates(root: Path, commits: set[str]) -> dict[str, int] | None:
    """Return the dates of the commits that the repository knows, in asv's milliseconds.

    Returns None if there is no repository.
    """
    try:
        return {commit: 1000 * seconds for commit, seconds in git.dates(root, commits).items()}
    except UserError:
        return None


def problem_of(path: Path) -> str | None:
    """Return the problem of one file, or None. Never raises."""
    return _judge(Path(path), [])[0]


def _files(path: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield every file to judge under `path`, with a problem found on the way, or None."""
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
            yield folder, f"cannot be read: {why(error)}"
            continue
        below = []
        for entry in entries:
            count += 1
            if count > MOST_FILES:
                yield folder, f"more than {MOST_FILES} entries: the rest was not looked at"
                return
            file = folder / entry.name
            kind = _kind(file)
            if kind == "folder" and entry.name == ARCHIVE:
                continue
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
    """Return None for a regular file, "folder", or one line on what it is instead. Links are not followed."""
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError) as error:
        return f"cannot be read: {why(error)}"
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        return "folder"
    return "a symbolic link, not a regular file" if stat.S_ISLNK(mode) else "not a regular file"


def _judge(path: Path, marks: list[str]) -> tuple[str | None, Any, str | None]:
    """Return the problem of a file (or None), its content, and the digest of its measurement.

    Appends to `marks` why the file must not be quoted.
    """
    try:
        if problem := name_problem(path):
            return problem, None, None
        kind = asv_files.kind_of(path)
        if kind is not None:
            data = asv_files.parse(read_bytes(path, asv_files.MOST_BYTES), kind)
            problem = asv_files.find_problem(data, kind, path)
        else:
            data = results.parse(read_bytes(path))
            problem = check(data)
        if problem:
            return problem, None, None
        if kind is not None:
            mark = asv_files.digest_measurement(data, kind)
            marks += asv_files.list_marks(data, kind)
        else:
            mark = fingerprint(data)
            if kinds.kind_of(data) == kinds.RUN:
                marks += publishable(judging.derive_result(loading.read_run(data)))
            else:
                marks += kinds.marks(data)
    except OSError as error:
        return f"cannot be read: {why(error)}", None, None
    except ValueError as error:
        return f"not a result file: {printable(str(error))}", None, None
    except Exception as error:  # last resort: one file must not stop the check of the others
        return f"not a result file: {printable(type(error).__name__)}", None, None
    return None, data, mark


def check(data: Any) -> str | None:
    """Return one line on what is wrong with a result from a stranger, or None."""
    if not isinstance(data, dict):
        return 'not a result file: expected an object with "schema"'
    kind = kinds.kind_of(data)
    if kind not in kinds.UNNAMED.values() and "schema" not in data:
        return 'not a result file: expected an object with "schema"'
    if kind in (None, kinds.RUN):
        try:
            loading.read_run(data)
        except UserError as error:
            return str(error)
        return None
    if kind not in tuple(kinds.KINDS):  # a tuple, because a list as kind has no hash
        return f"kind: {shown(kind)} is none that this project writes{nearest(kind)}"
    return checks.problem_of_kind(data, kinds.KINDS[kind])


def nearest(kind: Any) -> str:
    """Return a suggestion of the intended kind as the end of a line, or an empty text."""
    like = difflib.get_close_matches(kind, kinds.KINDS, n=1) if isinstance(kind, str) else []
    return f"; did you mean {like[0]!r}?" if like else ""


def fingerprint(data: Head) -> str:
    """Return a digest that is equal exactly for results with the same samples.

    For results without samples it covers the whole content.
    """
    if kinds.kind_of(data) != kinds.RUN:
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    times = [[each["samples_ms"] for each in rung.get("rounds", ())] for rung in data["rungs"]]
    samples = [data["machine"]["name"], times]
    return hashlib.sha256(json.dumps(samples if any(times) else data, sort_keys=True).encode()).hexdigest()
