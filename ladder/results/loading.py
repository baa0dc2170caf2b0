"""The reading of result files: a ladder's run, and files of other kinds from strangers.

A run is held to what its record allows, and its observations to physics and identity: the machine is named after its
hardware, the workload and the rungs are those of their names, and no step is faster than the hardware can compute.
Every figure and verdict is derived (`ladder.results.judging`).
"""

from __future__ import annotations

import datetime
import errno
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core import files, text
from ladder.core.errors import UserError
from ladder.core.records import describe_value, locate_problem, read_record, write_whole
from ladder.results import code_digest, identity, plausible, sources, store
from ladder.results.file import OUT, SCHEMA, Header
from ladder.results.run import Result, Run, Rung, Twin

MOST_BYTES = 2**22  # a ladder has some hundred kilobytes, all kernels with every sample over a megabyte
_FILE = re.compile(r"(?=.{1,240}$)[a-z0-9][a-z0-9._-]*(-\d{8}T\d{6}Z)?(-\d+)?\.json")


def name_problem(path: Path) -> str | None:
    """Return what is wrong with the name of a result file, in one line, or None."""
    if _FILE.fullmatch(path.name):
        return None
    if not path.name.lower().endswith(".json"):
        return "not a result: its name does not end in .json"
    return "the file's name must be of a-z, 0-9, dot, underscore and hyphen, like WORKLOAD-LADDER-TIME.json"


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a regular file that is not too large, and no link. Raises OSError or ValueError."""
    return files.read_file(path, most, links=False)


def show_path(path: Path | str) -> str:
    """Return a path as any terminal can print it: a name may hold line ends and escape sequences."""
    return printable(str(path), 400)


def why(error: Exception) -> str:
    """Return the reason of an error while reading, in one line."""
    if isinstance(error, OSError) and error.errno == errno.ELOOP:  # from O_NOFOLLOW
        return "a symbolic link, which is not followed: name the file itself"
    return printable(getattr(error, "strerror", None) or str(error))


def printable(message: str, longest: int = 160) -> str:
    """Return text from outside as ASCII in one line, cut to a length."""
    escaped = "".join(c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in message[:longest])
    return escaped[:longest]


# --- kinds beside a ladder's run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """One kind of result beside a ladder's run: its record, what no genuine file holds, why a file is not quoted."""

    name: str
    record: Any
    find_contradiction: Callable[[Any], str | None] = lambda file: None
    list_cautions: Callable[[Any], list[str]] = lambda file: []

    def find_problem(self, data: Any) -> str | None:
        """Return what is wrong with a file's data, in one line, or None."""
        if problem := locate_problem(self.record, data):
            return ": ".join(part for part in (problem[0].lstrip("."), problem[1]) if part)
        return self.find_contradiction(read_record(self.record, data))


class OtherKind(UserError):
    """A file holds something else than a run of `ladder run`."""


# --- a run ------------------------------------------------------------------------------------------------------------


def load_run(path: Path) -> Result:
    """Return the result that follows from the file of a run. Raises as `load_record` does."""
    from ladder.results import judging  # numpy and scipy

    return judging.derive_result(load_record(path))


def load_record(path: Path) -> Run:
    """Return the run in a file.

    Raises:
        OtherKind: the file is of another command.
        UserError: the file cannot be read, or is no run; one line that says what is wrong and where.
    """
    data = store.read(path)
    try:
        return read_run(data)
    except UserError as error:
        raise type(error)(f"{path}: {error}") from None


def read_run(data: Any) -> Run:
    """Return the run that a file's data hold. Raises UserError, one line, where they hold none."""
    if not isinstance(data, dict) or "schema" not in data:
        raise OtherKind('not a result file: expected an object with "schema"')
    kind = next((data[key] for key in store.KIND_KEYS if key in data), None)
    if kind not in (None, "ladder"):
        raise OtherKind(f"a result of the kind {describe_value(kind)}, no run of rungs")
    if data["schema"] != SCHEMA:
        raise UserError(f"schema {describe_value(data['schema'])} is not known here, expected {SCHEMA}")
    run = read_record(Run, data)
    if problem := find_problem(run):
        raise UserError(problem)
    return run


def list_dates(data: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield every `started` in plain data with its place, at any depth."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "started" and isinstance(value, str):
                yield f"{place}{key}", value
            yield from list_dates(value, f"{place}{key}.")
    elif isinstance(data, list) and data and isinstance(data[0], dict | list):
        for index, value in enumerate(data):
            yield from list_dates(value, f"{place.removesuffix('.')}[{index}].")


def find_header_problem(header: Header) -> str | None:
    """Return why the header of a file cannot be genuine, in one line, or None."""
    machine, commits = header.machine, header.commits
    hardware = machine.gpu if machine.device == "cuda" else machine.cpu
    if hardware is None or machine.name != text.make_slug(hardware):
        return f"machine.name: {machine.name!r} is not made from its hardware, {describe_value(hardware)}"
    tomorrow = (
        f"{datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1):%Y-%m-%dT%H:%M:%S}"
    )
    for place, started in list_dates(write_whole(header)):
        if started[:19] > tomorrow:
            return f"{place}: {started} lies in the future"
    if commits and (len({*commits}) < len(commits) or header.commit not in (None, *commits)):
        return "commits: not several, the result's own among them"
    if commits and not code_digest.is_known(header):
        return f"commits: several, and no {code_digest.KEY} says that they are the same"
    return None if header.workload is None else identity.find_workload_problem(header.workload)


def find_problem(run: Run) -> str | None:
    """Return what cannot be in a run that its record allows, in one line, or None."""
    names, twins = [rung.name for rung in run.rungs], [twin.name for twin in run.twins]
    if names != run.ladder.rungs or len(set(names)) < len(names):
        return "rungs: not those of ladder.rungs, each once and in that order"
    if any(twin.of not in names for twin in run.twins) or len(set(twins)) < len(twins):
        return "twins: not each once, of a rung"
    if problem := find_header_problem(run) or identity.misordered(run):
        return problem
    floors = plausible.floors_of(run)
    for part in sources.records(run):
        if problem := _find_part_problem(part, floors[part.name]):
            return problem
    if all(not rung.rounds and (rung.status in OUT or rung.recipe is None) for rung in run.rungs):
        return "complete, but nothing was measured"
    return None


def _find_part_problem(part: Rung | Twin, least: plausible.Floor) -> str | None:
    """Return what cannot be in a rung or twin, in one line, or None."""
    place, problem = f"rung {part.name}", None
    fields = identity.find_recipe_problem(part.recipe, f"{place}.recipe")
    if fields := fields or identity.find_settings_problem(part.settings, f"{place}.settings"):
        return fields
    if part.status == "ok":
        problem = plausible.too_fast(part, least) if part.rounds else 'status "ok" without a round'
    if len({each.round for each in part.rounds}) < len(part.rounds):
        problem = "a round is there twice"
    for each in part.rounds:
        if not each.samples_ms:
            problem = "a round without samples"
        if any(len(beside) != len(each.samples_ms) for beside in (each.passes, each.event_ms) if beside):
            problem = "passes or events that are not those of its samples"
    return problem and f"{place}: {problem}"
