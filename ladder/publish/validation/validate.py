"""The judge of result files from strangers: each file is accepted, or refused with one line of why.

A file is accepted only if this project could have written it: a regular file of modest size whose records hold
(`ladder.core.records`), whose machine is named after its hardware, and whose steps are not faster than that hardware.
Studies declare their own files, `asv_files` those of asv, and the records here the project's own checks. Text from a
file is escaped before it is shown, and no file can raise an exception.
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
from typing import Annotated, Any, Literal

from ladder.core import git
from ladder.core import records as r
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.plain import Plain
from ladder.core.records import (
    Record,
    describe_value,
    read_record,
    size_between,
    text_matching,
)
from ladder.core.text import make_slug
from ladder.publish.validation import asv_files
from ladder.results import judging, loading, publishable, store
from ladder.results.file import Machine
from ladder.results.loading import Kind, name_problem, printable, read_bytes, show_path, why
from ladder.studies import frame
from ladder.studies.kernelbench import tuning

MOST_FILES, MOST_FOLDERS = 10_000, 20  # below a folder, and inside of each other
ARCHIVE = "archive"  # the folder in results/ of kinds that no code reads any more
NO_OBJECT = 'not a result file: expected an object with "schema"'
RUN, BENCHMARKS = "ladder", "pytest-benchmark"  # of `ladder run`, and of `make bench-kernels`
UNKNOWN_COMMIT = "its commit is not in this repository: not drawn"
NO_RESULTS = "no result of this machine was accepted: left out"
PARTS = {"machine": 2, "results": 2, "note": 3, "benchmarks": 1}  # of the path of asv's files, by their kind
_FOLDER = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")


# --- the project's own checks -----------------------------------------------------------------------------------------

ShortLine = Annotated[str, text_matching(r"[ -~]{1,300}", "a line of at most 300 printable ASCII characters")]
Cell = bool | r.Real | ShortLine | None
Cells = dict[r.Identifier, Cell]
CheckKind = Literal["faults", "hostile", "planted-bugs", "sabotaged-rungs"]


class Checked(Record, kw_only=True):
    """A table of planted faults or hostile files, and what caught them."""

    schema: Literal[1]
    commit: r.Commit | None = None
    dirty: bool | None = None
    what: CheckKind
    machine: Machine
    rows: Annotated[list[Cells], size_between(10_000)]


class _Cpu(Record):
    brand_raw: r.Text


class _BenchmarkMachine(Machine, kw_only=True):
    cpu: _Cpu  # type: ignore[assignment]
    node: r.Text
    machine: r.Text


class _Benchmark(Record, kw_only=True):
    group: ShortLine | None = None
    name: ShortLine
    fullname: ShortLine
    params: Cells | None = None
    param: ShortLine | None = None
    extra_info: Cells
    options: Cells
    stats: dict[
        r.Identifier, Any
    ]  # cells, and the seconds of each round under `data`: msgspec crashes on a union


class Benchmarked(Record, kw_only=True):
    """The file of pytest-benchmark, which names no kind."""

    machine_info: _BenchmarkMachine
    commit_info: Cells
    benchmarks: Annotated[list[_Benchmark], size_between(10_000)]
    datetime: ShortLine
    version: r.Text
    note: ShortLine | None = None


def _find_misnamed(record: Any) -> str | None:
    """Return why the name of a file's machine is not made from its hardware, or None. Raises UserError, too."""
    for index, benchmark in enumerate(record.benchmarks if isinstance(record, Benchmarked) else ()):
        cells, where = dict(benchmark.stats), f"benchmarks[{index}].stats"
        read_record(Annotated[list[r.Seconds], size_between(10_000)], cells.pop("data", []), f"{where}.data")
        read_record(Cells, cells, where)
    machine = r.write_whole(record.machine_info if isinstance(record, Benchmarked) else record.machine)
    cpu, gpu = machine["cpu"], machine.get("gpu")
    cpu = cpu if isinstance(cpu, str) else cpu["brand_raw"]
    first = gpu if machine.get("device", "cpu") == "cuda" else cpu
    if first and machine["name"] in (make_slug(first), make_slug(gpu or cpu)):
        return None
    return f"machine.name: {machine['name']!r} is not made from its hardware"


def _list_cautions(record: Any) -> list[str]:
    return [publishable.DIRTY] * bool(getattr(record, "dirty", None))


CHECKS = (
    Kind(BENCHMARKS, Benchmarked, _find_misnamed, _list_cautions),
    *(Kind(what, Checked, _find_misnamed, _list_cautions) for what in CheckKind.__args__),  # type: ignore[attr-defined]
)
KINDS = {
    kind.name: kind for kind in (*tuning.KINDS, *CHECKS, *map(frame.as_kind, frame.load_studies().values()))
}


def kind_of(data: Plain) -> Any:
    """Return the kind that a file states, or None where it states none. pytest-benchmark's has a key of its own."""
    stated = [data[key] for key in store.KIND_KEYS if key in data]
    if not stated and "benchmarks" in data and "schema" not in data:
        return BENCHMARKS
    return stated[0] if stated else None


# --- files ------------------------------------------------------------------------------------------------------------


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
    judged: dict[str, Judged] = {}
    for path in map(Path, paths):
        files = list(itertools.islice(list_files(path), MOST_FILES + 1))
        if not files:
            files = [(path, "no result in this folder: no name in it ends in .json")]
        if len(files) > MOST_FILES:
            files[-1] = path, f"more than {MOST_FILES} entries: the rest was not looked at"
        for file, problem in files:
            if (where := os.path.abspath(file)) not in judged:
                shown = file.relative_to(below) if below and file != below else file
                one = judged[where] = Judged(file, show_path(shown), problem)
                if problem is None:
                    one.problem = _judge_file(one) or find_more(file, one.data)
    same: dict[str, list[Judged]] = {}
    for one in judged.values():
        if one.problem is None and one.digest is not None:
            same.setdefault(one.digest, []).append(one)
    for copies in same.values():
        if len(copies) > 1:
            first = min(copies, key=lambda one: (_is_elsewhere(one), _count_commits_before(one.file)))
            for one in copies:
                one.problem = None if one is first else f"the same measurement as {first.path}"
    return list(judged.values())


def problem_of(path: Path) -> str | None:
    """Return the problem of one file, or None. Never raises."""
    return _judge_file(Judged(Path(path), show_path(path)))


def list_files(path: Path, depth: int = 0) -> Iterator[tuple[Path, str | None]]:
    """Yield every file to judge under `path`, with a problem found on the way, or None."""
    kind = _describe_kind(path)
    if kind != "folder":
        yield path, kind
        return
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        yield path, f"cannot be read: {why(error)}"
        return
    for name in names:
        file, is_json = path / name, name.lower().endswith(".json")
        kind = _describe_kind(file)
        if kind != "folder":
            if kind or is_json:
                yield file, kind
        elif is_json:
            yield file, "a folder with the name of a file"
        elif name != ARCHIVE:
            if not _FOLDER.fullmatch(name):
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
    if stat.S_ISLNK(mode):
        return "a symbolic link, not a regular file"
    return None if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "not a regular file"


def _judge_file(one: Judged) -> str | None:
    """Return a file's problem, or fill in its content, digest and marks."""
    try:
        if problem := name_problem(one.file):
            return problem
        if kind := asv_files.kind_of(one.file):
            one.data = asv_files.parse(read_bytes(one.file, asv_files.MOST_BYTES), kind)
            if problem := asv_files.find_problem(one.data, kind, one.file):
                return problem
            one.digest = asv_files.digest_measurement(one.data, kind)
            one.marks = asv_files.list_marks(one.data, kind)
            return None
        one.data = store.parse(read_bytes(one.file))
        if problem := find_problem(one.data):
            return problem
        measured = one.data
        if kind_of(one.data) in (None, RUN):
            marks = publishable.publishable(judging.derive_result(loading.read_run(one.data)))
            times = [[each["samples_ms"] for each in rung.get("rounds", ())] for rung in one.data["rungs"]]
            if any(times):  # a copy may have another date
                measured = [one.data["machine"]["name"], times]
        else:
            other = KINDS[kind_of(one.data)]
            marks = other.list_cautions(read_record(other.record, one.data))
        one.digest = hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()
        one.marks = list(map(printable, marks))
    except OSError as error:
        return f"cannot be read: {why(error)}"
    except ValueError as error:
        return f"not a result file: {printable(str(error))}"
    except Exception as error:  # last resort: one file must not stop the check of the others
        return f"not a result file: {printable(type(error).__name__)}"
    return None


def find_problem(data: Any) -> str | None:
    """Return one line on what is wrong with the data of a result from a stranger, or None."""
    kind = kind_of(data) if isinstance(data, dict) else None
    if not isinstance(data, dict) or ("schema" not in data and kind != BENCHMARKS):
        return NO_OBJECT
    try:
        if kind in (None, RUN):
            loading.read_run(data)
            return None
        if isinstance(kind, str) and kind in KINDS:
            return KINDS[kind].find_problem(data)
    except UserError as error:
        return str(error)
    like = difflib.get_close_matches(str(kind), KINDS, n=1)
    nearest = f"; did you mean {like[0]!r}?" if like else ""
    return f"kind: {describe_value(kind)} is none that this project writes{nearest}"


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


# --- a folder of asv's ------------------------------------------------------------------------------------------------


def accept_asv(source: Path, into: Path, root: Path | None = ROOT) -> list[Judged]:
    """Copy the accepted files of an asv results folder, without benchmarks.json, into a fresh folder.

    asv trusts its results folder: a null, a wrongly named directory or an Infinity makes the whole site fail. A site is
    therefore never made from that folder itself, and file benchmarks.json, which decides what asv draws, is made from
    this checkout's own benchmarks. A commit known to the repository at `root` must have its date there, because asv
    orders every graph by date. Return a verdict for each file, with its path under `source`.

    Raises:
        UserError: there is no such folder, or `into` exists and is not empty.
    """
    if not source.is_dir():
        raise UserError(f"{source}: no such folder of asv's results")
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise UserError(f"{into}: expected an empty folder, or none")
    into.mkdir(parents=True, exist_ok=True)

    def find_wrong_place(file: Path, data: Any) -> str | None:
        kind = asv_files.kind_of(file)
        if kind is None:
            return "not one of asv's files"
        if len(file.relative_to(source).parts) != PARTS[kind]:
            return "not where asv would write it: MACHINE/machine.json, MACHINE/COMMIT-ENVIRONMENT.json"
        return None

    judged = validate([source], source, find_wrong_place) if any(source.iterdir()) else []
    taken: dict[Path, Judged] = {}
    for kind in ("machine", "results", "note"):  # each is accepted only after the one before
        for one in judged:
            if one.problem or asv_files.kind_of(one.file) != kind:
                continue
            where = one.file.relative_to(source)
            folder = Path(where.parts[0])
            date = read_date(root, one.data["commit_hash"]) if kind == "results" and root else None
            if kind != "machine" and folder / "machine.json" not in taken:
                one.problem = "the machine.json of its folder was not accepted"
            elif kind == "note" and folder / where.name not in taken:
                one.problem = "the result that it belongs to was not accepted"
            elif date is not None and date != one.data["date"]:
                one.problem = asv_files.WRONG_DATE
            else:
                one.marks += [UNKNOWN_COMMIT] * (kind == "results" and root is not None and date is None)
                taken[where] = one
    for where, one in taken.items():
        if where.name == "machine.json" and sum(each.parent == where.parent for each in taken) == 1:
            one.marks = [NO_RESULTS]
        else:
            (into / where).parent.mkdir(parents=True, exist_ok=True)
            data = asv_files.drop_infinite(one.data)
            (into / where).write_text(json.dumps(data) + "\n", encoding="utf-8")
    return judged
