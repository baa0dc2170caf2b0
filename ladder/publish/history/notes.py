"""Notes beside asv's result files: the driver, cuDNN, the kernel and the tuners' choices behind each result.

Every key of asv's machine record is part of a series' identity. A version of the driver or of cuDNN there would begin a
new series at each upgrade. Each result file has a note instead,
`results/asv/<machine>/notes/<commit>-<environment>.json`. asv never reads the note and no page needs it. It says what
else changed where the times of two commits differ.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from ladder.base import files, text
from ladder.base.errors import UserError
from ladder.results import store as results

SCHEMA = 1
FOLDER = "notes"


class _Cudnn(TypedDict, total=False):
    cudnn: str | None  # older notes do not say


class Seen(_Cudnn):
    """The conditions of a measurement, and when it began."""

    driver: str | None
    kernel_release: str | None
    started: str


class _Told(TypedDict, total=False):
    choices: dict[str, list[str]]  # lines by series
    variables: dict[str, str]  # of the environment


class Note(Seen, _Told):
    """The contents of a note's file. A benchmark that was measured apart has conditions of its own."""

    schema: int
    commit: str
    environment: str
    benchmarks: dict[str, Seen]


Condition = Literal["driver", "cudnn", "kernel_release"]
CONDITIONS: tuple[Condition, ...] = (
    "driver",
    "cudnn",
    "kernel_release",
)  # may change between two results of a series
NAMES: dict[Condition, str] = {"driver": "driver", "cudnn": "cuDNN", "kernel_release": "kernel"}
EXCUSES: tuple[Condition, ...] = ("driver", "cudnn")
_ADDED = {"cudnn"}  # older notes lack them
_MOST, _LARGEST = 2000, 1_000_000  # entries of a list or an object; bytes of a file
_KEYS = {"schema", "commit", "environment", "started", *CONDITIONS, "benchmarks"} - _ADDED
_PARTS = ("benchmarks", "choices")  # by name, merged one by one
_NAME = re.compile(r"[^\x00-\x1f\x7f<>&\"`]{1,200}")  # of benchmarks, series and environments


def beside(result: Path) -> Path:
    """Return the path of an asv result file's note."""
    return result.parent / FOLDER / result.name


def made(
    commit: str,
    environment: str,
    *,
    driver: str | None = None,
    cudnn: str | None = None,
    kernel_release: str | None = None,
    benchmarks: Iterable[str] = (),
    choices: Mapping[str, list[str]] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Note:
    """Return a note of a measurement that has just ended.

    Args:
        variables: those of `ladder.machine.environment`.
        choices: lines of text by series, if there are any.
    """
    seen: Seen = {
        "driver": driver and text.display(driver),
        "cudnn": cudnn and text.display(cudnn),
        "kernel_release": kernel_release and text.display(kernel_release),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    told: _Told = {}
    if choices is not None:
        told["choices"] = {name: list(lines) for name, lines in sorted(choices.items())}
    if variables:
        told["variables"] = dict(variables)
    return {
        "schema": SCHEMA,
        "commit": commit,
        "environment": environment,
        **seen,
        "benchmarks": {name: {**seen} for name in sorted(benchmarks)},
        **told,
    }


def merge(old: Note | None, new: Note) -> Note:
    """Return a note of both measurements of one result file. The newer one describes a benchmark that both measured."""
    if old is None:
        return new
    if (old["commit"], old["environment"]) != (new["commit"], new["environment"]):
        raise ValueError("notes of two results")
    both: Note = {**old, **new, "benchmarks": {**old["benchmarks"], **new["benchmarks"]}}
    if "choices" in both:
        both["choices"] = {**old.get("choices", {}), **new.get("choices", {})}
    return both


def add(result: Path, note: Note) -> Path:
    """Merge `note` into the file beside an asv result; an unreadable file is replaced. Raises OSError."""
    path = beside(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        old = read(path)
    except UserError:
        old = None
    if old is not None and (old["commit"], old["environment"]) != (note["commit"], note["environment"]):
        old = None  # eight digits of a commit may be another's
    with files.replacing(path) as temporary:
        temporary.write_text(json.dumps(merge(old, note), indent=1) + "\n")
    return path


def read(path: Path) -> Note | None:
    """Return a note, checked; None where there is no file. Raises `UserError` with the problem in one line."""
    try:
        data = results.parse(files.read(path, _LARGEST))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: not a note: {error}") from None
    if problem := check(data):
        raise UserError(f"{path}: {problem}")
    return data


def of(result: Path) -> Note | None:
    """Return the note of an asv result file; None where there is no usable note."""
    try:
        return read(beside(result))
    except UserError:
        return None


def every(folder: Path) -> Iterator[tuple[Path, Note]]:
    """Return the usable notes of one machine's folder under results/asv, or of all machines."""
    for path in sorted(folder.rglob(f"{FOLDER}/*.json")):
        try:
            if note := read(path):
                yield path, note
        except UserError:
            continue


def check(data: Any) -> str | None:
    """Return the problem of a note in one line, or None."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return f'not a note: expected an object with "schema": {SCHEMA}'
    if wrong := ({*data} ^ _KEYS) - {"choices", "variables", *_ADDED}:
        return f'"{min(wrong)[:40]}" is {"missing" if min(wrong) in _KEYS else "not a key of a note"}'
    if not (isinstance(data["commit"], str) and re.fullmatch(r"[0-9a-f]{40}", data["commit"])):
        return '"commit" is not 40 hexadecimal digits'
    if not (isinstance(data["environment"], str) and _NAME.fullmatch(data["environment"])):
        return '"environment" is not a name'
    for key in data.keys() & _PARTS:
        if not (
            isinstance(data[key], dict) and len(data[key]) <= _MOST and all(map(_NAME.fullmatch, data[key]))
        ):
            return f'"{key}" is not an object with names for keys'
    variables = data.get("variables", {})
    if not (
        isinstance(variables, dict) and len(variables) <= _MOST and all(map(_is_text, variables.values()))
    ):
        return '"variables" is not an object of texts'
    for where, seen in (("note", data), *data["benchmarks"].items()):
        if problem := _check_conditions(seen):
            return f"{where}: {problem}"
    for series, lines in data.get("choices", {}).items():
        if not (isinstance(lines, list) and len(lines) <= _MOST and all(map(_is_text, lines))):
            return f'"choices" of {series} is not a list of lines'
    return None


def _check_conditions(seen: Any) -> str | None:
    if not isinstance(seen, dict):
        return "not an object"
    for key in CONDITIONS:
        if key in _ADDED - {*seen}:
            continue
        if key not in seen or not (seen[key] is None or _is_text(seen[key])):
            return f'"{key}" is not a text, nor null'
    try:
        datetime.datetime.fromisoformat(seen.get("started"))
    except (TypeError, ValueError):
        return '"started" is not a time'
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and text.TEXT.fullmatch(value) is not None


# --- what a step between two commits coincides with ---------------------------------------------------------------


def conditions(note: Note | None, benchmark: str | None = None) -> dict[Condition, str]:
    """Return the known conditions of a benchmark's measurement.

    A benchmark that was measured apart from the others has its own conditions.
    """
    if note is None:
        return {}
    seen = note["benchmarks"].get(benchmark or "") or note
    return {key: text for key in CONDITIONS if (text := seen.get(key))}


def differing(before: Mapping[Condition, str], after: Mapping[Condition, str]) -> dict[Condition, str]:
    """Return the conditions that changed: {"driver": "580.65.06 -> 590.10"}.

    A condition that one side lacks is no change: an old result has no note, and some machines have no GPU.
    """
    both = [key for key in CONDITIONS if key in before and key in after]
    return {key: f"{before[key]} -> {after[key]}" for key in both if before[key] != after[key]}


def changed(before: Note | None, after: Note | None, benchmark: str | None = None) -> dict[Condition, str]:
    """Return the conditions in which two results of a series differ."""
    return differing(conditions(before, benchmark), conditions(after, benchmark))


def marks(before: Mapping[Condition, str], after: Mapping[Condition, str]) -> tuple[str, ...]:
    """Return the changes that excuse a step, in words: "driver 580.65.06 -> 590.10".

    The driver compiles and schedules the work of the GPU, and cuDNN computes much of it. A kernel release excuses
    nothing; it is left to `changed`.
    """
    seen = differing(before, after)
    return tuple(f"{NAMES[key]} {seen[key]}" for key in EXCUSES if key in seen)


def label(before: Note | None, after: Note | None, benchmark: str | None = None) -> str | None:
    """Return why a step between two commits is marked and alerts nobody; None where it may be a regression."""
    seen = changed(before, after, benchmark)
    said = [f"a {NAMES[key]} change: {seen[key]}" for key in EXCUSES if key in seen]
    return f"coincides with {' and '.join(said)}" if said else None
