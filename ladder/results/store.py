"""Result files: where they go and how they are written and read as JSON.

NaN and infinity are refused, on the way out and on the way in. `ladder.results.loading` reads a run.
"""

import datetime
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ladder.base import files
from ladder.base.errors import UserError
from ladder.base.text import fit, slug, stamp
from ladder.results.values import OUT as OUT
from ladder.results.values import SCHEMA as SCHEMA
from ladder.results.values import STATUSES as STATUSES

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


def place(path: Path, result: Mapping[str, Any]) -> Path:
    """Return the file for a result that is named by its machine: ``path``, or its name with the time of the run.

    A file is replaced by the run that wrote it (`--resume`), and by another one of the same host and commit. What
    another host of the same name or another commit left there, as in a fresh clone, stays beside the new one, and so
    does a run that ended unfinished: hours may be in it.
    """
    if not path.exists() or same_run(path, result):
        return path
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return path.with_stem(f"{path.stem}-{stamp(result.get('started') or now)}")


def same_run(path: Path, result: Mapping[str, Any]) -> bool:
    """Return whether a file holds an earlier state of the same run, or a finished run of the same host and commit."""
    try:
        before = read(path)
    except UserError:
        return False
    now = fit({key: result.get(key) for key in ("machine", "commit", "started")})
    if not isinstance(before, dict):
        return False
    if now["started"] and now["started"] == before.get("started"):
        return True
    if before.get("complete") is False:
        return False
    return all(now[key] == before.get(key) for key in ("machine", "commit"))


def unused(path: Path) -> Path:
    """Return the file, with a number in its name where that file exists (two runs in one second)."""
    number, free = 2, path
    while free.exists():
        free, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return free


def write(path: Path, data: Mapping[str, Any], *, exact: bool = False) -> None:
    """Write a result of any kind; ``path`` is always the old file or the whole new one.

    Its texts are made `fit`, unless ``exact`` keeps them, for a kind that holds names of kernels.

    Raises:
        UserError: the file cannot be written.
        ValueError: a number is not finite.
    """
    found = dict(data) if exact else fit(dict(data))
    files.write(path, json.dumps(found, indent=1, allow_nan=False) + "\n")


def save(
    result: Mapping[str, Any],
    folder: Path,
    pages: Mapping[str, str] | None = None,
    render: Callable[[str], bytes] | None = None,
    *,
    stem: str | None = None,
    picture: str = "",
    exact: bool = False,
) -> list[Path]:
    """Write a result that is named by its machine, its pages by suffix, and its pictures. Return all files.

    The files are "-partial" until the result is complete. Then the partial files that led to it are removed. Files of
    another host or commit stay (`place`).

    Args:
        render: draws the picture as "png" and "svg". A picture that cannot be drawn is a line on stderr.
        stem: of the names; by default that of machine and workload.
        picture: is appended to the stem of the pictures.
        exact: as for `write`.

    Raises:
        UserError: a file cannot be written.
    """
    if stem is None:
        stem = "-".join(slug(result[part]["name"]) for part in ("machine", "workload"))
    complete = result.get("complete", True)
    parts = place(folder / f"{stem}-partial.json", result)
    path = place(folder / f"{stem}.json", result) if complete else parts
    write(path, result, exact=exact)
    paths = [path]
    for suffix, page in (pages or {}).items():
        paths.append(path.with_suffix(f".{suffix}"))
        files.write(paths[-1], page)
    if render is not None:
        paths += files.try_draw(path.with_name(f"{path.stem}{picture}"), render)
    if complete and parts.exists():
        for each in paths:
            each.with_name(each.name.replace(path.stem, parts.stem, 1)).unlink(missing_ok=True)
    return paths


def few(unit: str = "generation") -> str:
    """Return the reason of a result with too few generations, or rounds as older files have them."""
    return f"fewer than {FEWEST_ROUNDS} {unit}s: not to be quoted"


def cautions(
    device: str, rounds: int, dirty: bool | None, complete: bool, also: Sequence[str] = ()
) -> list[str]:
    """Why the figures of a result must not be quoted, if they must not; `also` are reasons of its kind."""
    found = [SMOKE_NOTE] * (device == "cpu")
    found += [few()] * (rounds < FEWEST_ROUNDS)
    found += [*also, *["dirty work tree: not to be published"] * bool(dirty)]
    return found + ["interrupted"] * (not complete)


def missing_note(wanted: Sequence[str], notes: Sequence[str]) -> str | None:
    """Return which of the wanted notes a result lacks, in one line, or None."""
    older = {few(): few("round")}  # until 27 November 2026
    missing = [each for each in wanted if each not in notes and older.get(each) not in notes]
    return f"protocol.notes: lack {missing[0]!r}" if missing else None


def commit_words(result: dict[str, Any]) -> str:
    """The commit of a result as a page names it: "1be53ce9247e", "unknown", "1be53ce9247e with changes"."""
    return (result["commit"] or "unknown")[:12] + (" with changes" if result["dirty"] else "")


def read(path: Path) -> Any:
    """What a result file holds, of whatever kind, not checked. Raises `UserError` as `load` does."""
    try:
        return parse(files.read(path, _MOST_READ))
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
    try:
        return json.loads(
            raw.decode("utf-8"),
            parse_constant=float if constants else _refuse_constant,
            parse_int=_integer,
            parse_float=_finite,
            object_pairs_hook=_no_key_twice,
        )
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except RecursionError:
        raise ValueError("nested too deep") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed, a missing number is null")


def _integer(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(text)} characters")
    return int(text)


def _finite(text: str) -> float:
    if len(text) > _LONGEST_NUMBER or not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text[:_LONGEST_NUMBER]} is too large or too long")
    return value


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {twice[:40]!a} is given twice")
    return found


NOT_ENGAGED, FAILED_PARITY = "not engaged", "failed: parity"
