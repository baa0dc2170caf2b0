"""Result files: where they go and how they are written and read as JSON.

NaN and infinity are refused, on the way out and on the way in. `ladder.results.loading` reads a run.
"""

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder.core import files
from ladder.core.errors import UserError
from ladder.core.plain import Plain
from ladder.core.text import fit_texts

NOT_ENGAGED, FAILED_PARITY = "not engaged", "failed: parity"  # statuses
SMOKE_NOTE = "CPU smoke test: not to be quoted"
FEWEST_ROUNDS = 3  # of what is quoted: the protocol of a run makes no fewer, whatever its budget
SOFTWARE = ("torch", "cuda", "cudnn", "triton")  # a newer one of these begins a new series
SERIES = ("name", "gpu", "cpu", "cores", "device", *SOFTWARE)  # whose times may stand side by side
KIND_KEYS = ("what", "kind")  # where files of other commands state their kind; self-tests under the first
MOST_DEPTH = 8
_MOST_READ = 2**28  # bytes of one file
_LONGEST_NUMBER = 32  # characters; an integer of 400 digits overflows a float, one of 100,000 takes seconds

# A JSON string, or its beginning if the file ends inside. It always matches, so that no file can make it slow.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)


def unused(path: Path) -> Path:
    """Return the file, with a number in its name where that file exists (two runs in one second)."""
    number, free = 2, path
    while free.exists():
        free, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return free


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write a result of any kind; ``path`` is always the old file or the whole new one. Its texts are made `fit`.

    Raises:
        UserError: the file cannot be written.
        ValueError: a number is not finite.
    """
    files.write_file(path, json.dumps(fit_texts(dict(data)), indent=1, allow_nan=False) + "\n")


def few(unit: str = "generation") -> str:
    """Return the reason of a result with too few generations, or rounds as older files have them."""
    return f"fewer than {FEWEST_ROUNDS} {unit}s: not to be quoted"


def read(path: Path) -> Any:
    """What a result file holds, of whatever kind, not checked. Raises `UserError` as `load` does."""
    try:
        return parse(files.read_file(path, _MOST_READ))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: not a result file: {error}") from None


def parse(raw: bytes, constants: bool = False) -> Any:
    """The JSON of a result file. ValueError, in one line, where it is not JSON or not plain enough to be handled:
    nested too deep, a number that is not finite, a key given twice. `constants` lets NaN and Infinity through.
    """
    depth = 0
    for bracket in re.findall(rb"[\[{\]}]", _STRING.sub(b"", raw)):
        depth += 1 if bracket in b"[{" else -1
        if depth > MOST_DEPTH:
            raise ValueError(f"nested too deep, a result has at most {MOST_DEPTH} levels")
    number = functools.partial(_parse_number, constants=constants)
    try:
        return json.loads(
            raw.decode("utf-8"),
            parse_constant=number,
            parse_int=lambda digits: number(digits, kind=int),
            parse_float=number,
            object_pairs_hook=_refuse_twice,
        )
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except RecursionError:
        raise ValueError("nested too deep") from None


def _parse_number(digits: str, kind: type = float, constants: bool = False) -> Any:
    if digits in ("NaN", "Infinity", "-Infinity"):
        if not constants:
            raise ValueError(f"{digits} is not allowed, a missing number is null")
        return float(digits)
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(digits)} characters")
    if not math.isfinite(kind(digits)):
        raise ValueError(f"the number {digits} is too large")
    return kind(digits)


def _refuse_twice(pairs: list[tuple[str, Any]]) -> Plain:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {twice[:40]!a} is given twice")
    return fields
