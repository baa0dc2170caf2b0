"""The reading of result files: a ladder's run, and files of other kinds from strangers.

A run is held to what its record allows, and its observations to physics and identity: the machine is named after its
hardware, the workload and the rungs are those of their names, and no step is faster than the hardware can compute.
Every figure and verdict is derived (`ladder.results.judging`).
"""

from __future__ import annotations

import datetime
import errno
import re
from pathlib import Path
from typing import Any

from ladder.base import files, text
from ladder.base.errors import UserError
from ladder.core.records import describe_value, read_record, write_whole
from ladder.results import code_digest, identity, plausible, sources, store, values
from ladder.results.file import OUT, SCHEMA
from ladder.results.run import Result, Run
from ladder.results.types import head

MOST_BYTES = (
    2**22
)  # a ladder takes some hundred kilobytes, all kernels with every sample more than a megabyte

_FILE = re.compile(r"[a-z0-9][a-z0-9._-]*(-\d{8}T\d{6}Z)?(-\d+)?\.json")

_LONGEST_NAME = 240


def name_problem(path: Path) -> str | None:
    """What is wrong with the name of a result file, in one line, or None."""
    if _FILE.fullmatch(path.name) and len(path.name) <= _LONGEST_NAME:
        return None
    if not path.name.lower().endswith(".json"):
        return "not a result: its name does not end in .json"
    return "the file's name must be of a-z, 0-9, dot, underscore and hyphen, like WORKLOAD-LADDER-TIME.json"


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a regular file that is not too large, and no link. Raises OSError or ValueError."""
    return files.read(path, most, links=False)


def show_path(path: Path | str) -> str:
    """A path as any terminal can print it: a name may hold line ends and escape sequences."""
    return printable(str(path), 400)


def why(error: Exception) -> str:
    if (
        isinstance(error, OSError) and error.errno == errno.ELOOP
    ):  # O_NOFOLLOW: "too many levels of symbolic links"
        return "a symbolic link, which is not followed: name the file itself"
    return printable(getattr(error, "strerror", None) or str(error))


def printable(text: str, longest: int = 160) -> str:
    text = "".join(c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in text[:longest])
    return text[:longest]


class OtherKind(UserError):
    """A file holds something else than a run of `ladder run`. `has_kind`: another command's result."""

    def __init__(self, line: str, has_kind: bool = False) -> None:
        super().__init__(line)
        self.has_kind = has_kind


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
    except OtherKind as error:
        page = path.with_suffix(".md")
        shows = f"; {page.name} beside it shows it" if error.has_kind and page.is_file() else ""
        raise OtherKind(f"{path}: {error}{shows}", error.has_kind) from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_run(data: Any) -> Run:
    """Return the run that a file's data hold. Raises UserError, one line, where they hold none."""
    if not isinstance(data, dict) or "schema" not in data:
        raise OtherKind('not a result file: expected an object with "schema"')
    kind = next((data[key] for key in store.KIND_KEYS if key in data), None)
    if kind not in (None, "ladder"):
        raise OtherKind(f"a result of the kind {describe_value(kind)}, no run of rungs", True)
    if data["schema"] != SCHEMA:
        raise UserError(f"schema {describe_value(data['schema'])} is not known here, expected {SCHEMA}")
    run = read_record(Run, data)
    if problem := find_problem(run):
        raise UserError(problem)
    return run


def find_problem(run: Run) -> str | None:
    """Return what cannot be in a run that its record allows, in one line, or None."""
    machine = run.machine
    hardware = machine.gpu if machine.device == "cuda" else machine.cpu
    if hardware is None or machine.name != text.slug(hardware):
        return f"machine.name: {machine.name!r} is not made from its hardware, {describe_value(hardware)}"
    tomorrow = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
    if run.started[:19] > tomorrow.isoformat()[:19]:
        return f"started: {run.started} has not come yet"
    names = [rung.name for rung in run.rungs]
    if names != run.ladder.rungs or len(set(names)) < len(names):
        return "rungs: not those of ladder.rungs, each once and in that order"
    if any(twin.of not in names for twin in run.twins) or len({twin.name for twin in run.twins}) < len(
        run.twins
    ):
        return "twins: not each once, of a rung"
    if problem := (
        _find_wrong_fields(run)
        or code_digest.contradiction(head(run))
        or identity.misnamed(run.workload)
        or identity.misordered(run)
    ):
        return problem
    facts = write_whole(machine)
    least = plausible.floor_ms(facts, run.workload)
    for rung in sources.records(run):
        if rung.status == "ok" and not rung.rounds:
            return f'rung {rung.name}: status "ok" without a round'
        numbers = [each.round for each in rung.rounds]
        if len(set(numbers)) < len(numbers):
            return f"rung {rung.name}: a round is there twice"
        for each in rung.rounds:
            if not each.samples_ms:
                return f"rung {rung.name}: a round without samples"
            beside = [len(part) for part in (each.passes, each.event_ms) if part]
            if any(count != len(each.samples_ms) for count in beside):
                return f"rung {rung.name}: passes or events that are not those of its samples"
        own = plausible.floor_of(rung, facts, run.workload, least)
        if rung.status == "ok" and (problem := plausible.too_fast(rung, own)):
            return f"rung {rung.name}: {problem}"
    if all(not rung.rounds and (rung.status in OUT or rung.recipe is None) for rung in run.rungs):
        return "complete, but nothing was measured"
    return None


def _find_wrong_fields(run: Run) -> str | None:
    """Return what is wrong with the fields of the workload, a recipe or settings, in one line, or None."""
    rules: list[tuple[str, Any, Any]] = [("workload", values.WORKLOAD, run.workload)]
    parts: tuple[tuple[str, Any], ...] = (("rungs", run.rungs), ("twins", run.twins))
    for part, records in parts:
        for index, rung in enumerate(records):
            rules += [(f"{part}[{index}].recipe", values.RECIPE, rung.recipe or {})]
            rules += [(f"{part}[{index}].settings", values.SETTINGS, rung.settings or {})]
    for place, rule, fields in rules:
        if problem := rule(fields):
            return f"{place}{problem[0]}: {problem[1]}"
    return None
