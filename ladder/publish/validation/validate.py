"""The judge of result files from strangers: each file is accepted, or refused with one line of why.

A file is accepted only if this project could have written it: a regular file of modest size whose records hold
(`ladder.core.records`), whose machine is named after its hardware, and whose steps are not faster than that hardware.
Names identify asv's files (`ladder.publish.validation.asv_files`). Text from a file is escaped before it is shown,
and no file can raise an exception.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import itertools
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ladder.core import git
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.records import describe_value
from ladder.publish.validation import asv_files, kinds
from ladder.results import judging, loading, store
from ladder.results.loading import name_problem, printable, read_bytes, show_path, why
from ladder.results.publishable import publishable

MOST_FILES, MOST_FOLDERS = 10_000, 20  # below a folder, and inside of each other
ARCHIVE = "archive"  # the folder in results/ of kinds that no code reads any more
NO_OBJECT = 'not a result file: expected an object with "schema"'
_FOLDER = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")


@dataclass
class Judged:
    """A file with its problem in one line, or None, and why an accepted one must not be quoted.

    Files with one `digest` hold the same measurement.
    """

    file: Path
    path: str  # as it is shown
    problem: str | None = None
    marks: list[str] = field(default_factory=list)
    data: Any = None
    digest: str | None = None

    @property
    def verdict(self) -> str:
        """Return `accepted`, with why not to quote the file if it has marks, or `refused: WHY`."""
        return f"refused: {self.problem}" if self.problem else "; ".join(["accepted", *self.marks])


def find_wrong_date(file: Path, data: Any) -> str | None:
    """Return the problem of an asv result whose date is not that of its known commit, or None."""
    if asv_files.kind_of(file) != "results":
        return None
    return None if read_date(ROOT, data["commit_hash"]) in (None, data["date"]) else asv_files.WRONG_DATE


@functools.cache
def read_date(root: Path, commit: str) -> int | None:
    """Return a commit's date in asv's milliseconds; None where the repository does not know it."""
    try:
        return 1000 * git.read_dates(root, {commit})[commit]
    except (UserError, KeyError):
        return None


def validate(
    paths: Iterable[Path],
    below: Path | None = None,
    find_more: Callable[[Path, Any], str | None] = find_wrong_date,
) -> list[Judged]:
    """Judge each path in order; for a folder, every .json file in it at any depth.

    Anything but a regular file is refused. Regular files of other names, and folders named `archive`, are skipped. If
    several files hold the same measurement, only one is accepted: one in a folder of its machine's name, then the
    oldest in the repository. A file that is named twice is read once.

    Args:
        below: the folder that the shown paths are relative to.
        find_more: returns a further problem of a valid file. One with such a problem is no copy of another.
    """
    judged: list[Judged] = []
    known: set[str] = set()
    for path in map(Path, paths):
        files = list(itertools.islice(list_files(path), MOST_FILES + 1))
        if not files:
            files = [(path, "no result in this folder: no name in it ends in .json")]
        if len(files) > MOST_FILES:
            files[-1] = path, f"more than {MOST_FILES} entries: the rest was not looked at"
        for file, problem in files:
            if (where := os.path.abspath(file)) in known:
                continue
            known.add(where)
            shown = file.relative_to(below) if below and file != below else file
            one = Judged(file, show_path(shown), problem)
            if problem is None:
                _judge_file(one)
                one.problem = one.problem or find_more(file, one.data)
            judged.append(one)
    _refuse_copies([one for one in judged if one.problem is None and one.digest is not None])
    return judged


def problem_of(path: Path) -> str | None:
    """Return the problem of one file, or None. Never raises."""
    one = Judged(Path(path), show_path(path))
    _judge_file(one)
    return one.problem


def list_files(path: Path, depth: int = 0) -> Iterator[tuple[Path, str | None]]:
    """Yield every file to judge under `path`, with a problem found on the way, or None."""
    kind = _describe_kind(path)
    if kind != "folder":
        yield path, kind
        return
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except (OSError, ValueError) as error:
        yield path, f"cannot be read: {why(error)}"
        return
    for entry in entries:
        file, is_json = path / entry.name, entry.name.lower().endswith(".json")
        kind = _describe_kind(file)
        if kind != "folder":
            if kind or is_json:
                yield file, kind
        elif is_json:
            yield file, "a folder with the name of a file"
        elif entry.name != ARCHIVE:
            if not _FOLDER.fullmatch(entry.name):
                yield file, "a folder's name must be of a-z, 0-9, dot, underscore and hyphen"
            if depth < MOST_FOLDERS:
                yield from list_files(file, depth + 1)
            else:
                yield file, f"more than {MOST_FOLDERS} folders in each other"


def _describe_kind(path: Path) -> str | None:
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


def _judge_file(one: Judged) -> None:
    """Fill in a file's problem, or its content, digest and marks."""
    try:
        one.problem = name_problem(one.file) or _judge_content(one)
    except OSError as error:
        one.problem = f"cannot be read: {why(error)}"
    except ValueError as error:
        one.problem = f"not a result file: {printable(str(error))}"
    except Exception as error:  # last resort: one file must not stop the check of the others
        one.problem = f"not a result file: {printable(type(error).__name__)}"


def _judge_content(one: Judged) -> str | None:
    kind = asv_files.kind_of(one.file)
    if kind is not None:
        one.data = asv_files.parse(read_bytes(one.file, asv_files.MOST_BYTES), kind)
        if problem := asv_files.find_problem(one.data, kind, one.file):
            return problem
        one.digest = asv_files.digest_measurement(one.data, kind)
        one.marks = asv_files.list_marks(one.data, kind)
        return None
    one.data = store.parse(read_bytes(one.file))
    if problem := check(one.data):
        return problem
    measured = one.data
    if kinds.kind_of(one.data) in (None, kinds.RUN):
        marks = publishable(judging.derive_result(loading.read_run(one.data)))
        times = [[each["samples_ms"] for each in rung.get("rounds", ())] for rung in one.data["rungs"]]
        if any(times):  # a copy may have another date
            measured = [one.data["machine"]["name"], times]
    else:
        marks = kinds.list_marks(one.data)
    one.digest = hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()
    one.marks = list(map(printable, marks))
    return None


def check(data: Any) -> str | None:
    """Return one line on what is wrong with a result from a stranger, or None."""
    kind = kinds.kind_of(data) if isinstance(data, dict) else None
    if not isinstance(data, dict) or ("schema" not in data and kind != kinds.BENCHMARKS):
        return NO_OBJECT
    try:
        if kind in (None, kinds.RUN):
            loading.read_run(data)
            return None
        if isinstance(kind, str) and kind in kinds.KINDS:
            return kinds.KINDS[kind].find_problem(data)
    except UserError as error:
        return str(error)
    like = difflib.get_close_matches(str(kind), kinds.KINDS, n=1)
    nearest = f"; did you mean {like[0]!r}?" if like else ""
    return f"kind: {describe_value(kind)} is none that this project writes{nearest}"


def _refuse_copies(accepted: list[Judged]) -> None:
    """Refuse all but one of the files with the same measurement."""
    same: dict[str | None, list[Judged]] = {}
    for one in accepted:
        same.setdefault(one.digest, []).append(one)
    for copies in same.values():
        if len(copies) > 1:
            first = min(copies, key=lambda one: (_is_elsewhere(one), _count_commits_before(one.file)))
            for one in copies:
                if one is not first:
                    one.problem = f"the same measurement as {first.path}"


def _is_elsewhere(one: Judged) -> bool:
    """Return whether a result lies in a folder that is not named after its machine."""
    facts = one.data.get("machine") or one.data.get("params") or {}  # ours, or asv's
    name = facts.get("name") or facts.get("machine")
    return bool(name) and one.file.parent.name != name


def _count_commits_before(file: Path) -> float:
    """Return the number of commits in the repository when the file was added, or infinity if it never was.

    A date would be no evidence, because anybody can choose it.
    """
    try:
        commits = git.read_output(ROOT, "rev-list", "HEAD", "--", os.path.abspath(file)).split()
        return float(git.read_output(ROOT, "rev-list", "--count", commits[-1])) if commits else math.inf
    except UserError:
        return math.inf
