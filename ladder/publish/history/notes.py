"""Notes beside asv's result files: the driver, cuDNN, the kernel and the tuners' choices behind each result.

Every key of asv's machine record is part of a series' identity. A version of the driver or of cuDNN there would begin a
new series at each upgrade. Each result file has a note instead,
`results/asv/<machine>/notes/<commit>-<environment>.json`. asv never reads the note. It says what else changed where
the times of two commits differ.

A note is plain data, because asv's process may lack msgspec; `asv_files.Note` declares what a stranger's may hold. The
readers below are for notes of one's own, or accepted ones.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from ladder.core import files, text
from ladder.results import store

FOLDER = "notes"
MOST_BYTES = 2**20
Note = dict[str, Any]
Condition = Literal["driver", "cudnn", "kernel_release"]
NAMES: dict[Condition, str] = {"driver": "driver", "cudnn": "cuDNN", "kernel_release": "kernel"}
EXCUSES: tuple[Condition, ...] = ("driver", "cudnn")


def find_path(result: Path) -> Path:
    """Return the path of an asv result file's note."""
    return result.parent / FOLDER / result.name


def create_note(
    commit: str,
    environment: str,
    conditions: Mapping[Condition, str | None],
    *,
    benchmarks: Iterable[str] = (),
    choices: Mapping[str, list[str]] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Note:
    """Return a note of a measurement that has just ended.

    A benchmark that was measured apart from the others has conditions of its own.

    Args:
        choices: lines of text by series, if there are any.
        variables: those of `ladder.machine.environment`.
    """
    shown: Note = {name: text.make_display(value) if value else None for name, value in conditions.items()}
    shown["started"] = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    note: Note = {"schema": 1, "commit": commit, "environment": environment, **shown}
    note["benchmarks"] = {name: {**shown} for name in sorted(benchmarks)}
    note |= {} if choices is None else {"choices": dict(sorted(choices.items()))}
    return note | ({"variables": dict(variables)} if variables else {})


def add_note(result: Path, note: Note) -> Path:
    """Merge `note` into the file beside an asv result; an unreadable file is replaced. Raises OSError.

    The newer one describes a benchmark that both measured.
    """
    path = find_path(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        old = store.parse(files.read_file(path, MOST_BYTES))
        if all(old[key] == note[key] for key in ("commit", "environment")):  # eight digits may be another's
            both = {key: {**old.get(key, {}), **note.get(key, {})} for key in ("benchmarks", "choices")}
            note = {**old, **note, **{key: value for key, value in both.items() if key in old or key in note}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    files.write_file(path, json.dumps(note, indent=1) + "\n")
    return path


def read_note(result: Path) -> Note | None:
    """Return the note of an asv result file; None where there is none."""
    path = find_path(result)
    return store.parse(path.read_bytes()) if path.is_file() else None


# --- what a step between two commits coincides with -------------------------------------------------------------------


def find_conditions(note: Note | None, benchmark: str | None = None) -> dict[Condition, str]:
    """Return the known conditions of a benchmark's measurement."""
    if note is None:
        return {}
    measured = note.get("benchmarks", {}).get(benchmark) or note
    return {key: measured[key] for key in NAMES if measured.get(key)}


def find_changes(before: Mapping[Condition, str], after: Mapping[Condition, str]) -> dict[Condition, str]:
    """Return the conditions that changed: {"driver": "580.65.06 -> 590.10"}. One that a side lacks is no change."""
    both = [key for key in NAMES if key in before and key in after]
    return {key: f"{before[key]} -> {after[key]}" for key in both if before[key] != after[key]}


def list_excuses(before: Mapping[Condition, str], after: Mapping[Condition, str]) -> tuple[str, ...]:
    """Return the changes that excuse a step: "driver 580.65.06 -> 590.10". A kernel release excuses nothing."""
    changes = find_changes(before, after)
    return tuple(f"{NAMES[key]} {changes[key]}" for key in EXCUSES if key in changes)


# --- tuning choices: a line for each row of `kernels.choices` that decided in the timed process, by series ------------


def name_series(benchmark: str, params: Iterable[str]) -> str:
    """Return the name of a series in a note. Benchmarks of one class share a process and its choices.

    Args:
        benchmark: asv's name, "rungs.Rung.samples_step_time".
        params: its parameter values, with or without the quotes that asv writes.
    """
    return f"{benchmark.rpartition('.')[0]}({', '.join(str(each).strip(chr(39)) for each in params)})"


def leave_choices(folder: Path, series: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Leave the choices of a benchmark's process for the note of the result that asv will save."""
    from ladder.report import tiles

    lines = [text.make_display(line) for line in tiles.lines(rows)]
    store.write(Path(folder) / f"choices-{uuid.uuid4().hex}.json", {"series": series, "lines": lines})


def collect_choices(folder: Path) -> dict[str, list[str]]:
    """Return the choices that the benchmarks' processes left in `folder`, the newest of each series."""
    paths = sorted(Path(folder).glob("choices-*.json"), key=lambda path: path.stat().st_mtime_ns)
    return {each["series"]: each["lines"] for each in (json.loads(path.read_text()) for path in paths)}


def list_choice_changes(before: Note | None, after: Note | None, series: str) -> list[str]:
    """Return how the choices of a series changed from one note to another; none without both."""
    from ladder.report import tiles

    return tiles.changes(*((note or {}).get("choices", {}).get(series) for note in (before, after)))
