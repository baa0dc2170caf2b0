"""Read one result file as if a stranger had sent it: a regular file of modest size and known name, judged by its
kind."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

from ladder.base import files
from ladder.base.errors import UserError
from ladder.results import check, store

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


def load_kind(path: Path, kind: check.Kind) -> dict[str, Any]:
    """Return what a file of this kind holds. `UserError`, one line, where it is refused or of another kind."""
    try:
        if problem := name_problem(path):
            raise UserError(f"{path}: {problem}")
        data = store.parse(read_bytes(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {why(error)}") from None
    except ValueError as error:
        raise UserError(f"{path}: not a result file: {printable(str(error))}") from None
    if not isinstance(data, dict) or data.get("kind") != kind.name:
        raise UserError(f"{path}: not a result of the kind {kind.name}")
    if problem := check.problem_of_kind(data, kind):
        raise UserError(f"{path}: {problem}")
    return data
