"""Files that strangers might send for asv's results: how each is planted among genuine ones, words of its refusal."""

import json
import math
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ladder.publish.history import series as asvseries
from ladder.publish.validation import asv_files
from tests.support import made_up_asv

Plant = Callable[[Path], Any]  # changes a file; returns the path of what is hostile if that is another one


def raw(content: bytes | str) -> Plant:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def put(*keys: Any) -> Plant:
    """Store the last of `keys` under the path of the others in the JSON of a file."""

    def change(path: Path) -> None:
        data = inner = made_up_asv.read(path)
        *way, last, value = keys
        for key in way:
            inner = inner[key]
        inner[last] = value
        path.write_text(json.dumps(data))

    return change


def text(old: str, new: str) -> Plant:
    def change(path: Path) -> None:
        found = path.read_text()
        assert old in found
        path.write_text(found.replace(old, new))

    return change


def instead(make: Plant) -> Plant:
    """Something else in the place of the file."""

    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket may have 108 characters
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


def _measured(path: Path) -> Path:
    """The same measurement for another commit, under the right name for it."""
    data = made_up_asv.read(path) | {"commit_hash": "f" * 40}
    again = path.with_name("f" * 8 + path.name[8:])
    again.write_text(json.dumps(data))
    return again


def _moved(path: Path) -> None:
    text("NVIDIA Some GPU", "NVIDIA Another GPU")(path)
    text("nvidia-some-gpu", "nvidia-another-gpu")(path)


def _profile(path: Path) -> None:
    data = made_up_asv.read(path)
    row = data["results"][TIME]
    row += [None] * (len(asv_files.COLUMNS) - 1 - len(row)) + ["eJw="]
    path.write_text(json.dumps(data))


TIME = asvseries.STEP
AT = ("results", TIME)
BENCHMARKS = '{"version": 2}'
HTML, MARKDOWN, MATH = "<img src=x onerror=alert(1)>", "a](javascript:alert(1)) | b", "$\\frac{1}{2}$"

# Planted in an otherwise genuine results file -> (how, words of the line that refuses it)
RESULT_FILES: dict[str, tuple[Plant, str]] = {
    "nothing": (raw(""), "not a result file"),
    "the word null": (raw("null"), "None is not `object`"),
    "a list": (raw("[]"), "a list of 0 is not `object`"),
    "a number": (raw("1"), "1 is not `object`"),
    "bytes that are not UTF-8": (raw(b'{"commit_hash": "\xff\xfe"}'), "not UTF-8"),
    "20 levels of lists": (raw("[" * 20 + "]" * 20), "nested too deep"),
    "a million opening brackets": (raw("[" * 1_000_000), "nested too deep"),
    "more than 1 MiB": (raw('"' + "x" * 2**20 + '"'), "more than 1048576 bytes"),
    "half of the file": (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "not a"),
    "a key twice": (text('"python": "3.12",', '"python": "3.12", "python": "3.12",'), "'python' is given twice"),
    "a key that asv has not": (put("extra", 1), "unknown key 'extra'"),
    "a key too few": (text('"date"', '"dates"'), "unknown key 'dates'"),
    "a number of 400 digits": (put("date", 10**399), "a number of 400 characters"),
    "a number beyond every float": (text('"date": ', '"date": 1e999, "then": '), "too large"),
    "a date in the year 5000": (put("date", 95617584000000), "date: 95617584000000 is not a number from"),
    "Infinity for a time": (put(*AT, 0, 0, math.inf), "inf is not a number from 1e-09"),
    "Infinity as an interval of six samples": (put(*AT, 5, 0, -math.inf), "an infinite interval of more than one"),
    "NaN in a quartile": (put(*AT, 7, 0, math.nan), "nan is not a number from"),
    "a negative time": (put(*AT, 0, 0, -0.1), "-0.1 is not a number from"),
    "a time of zero": (put(*AT, 0, 0, 0), "0 is not a number from"),
    "a time in text": (put(*AT, 0, 0, "0.1"), "'0.1' is not a number"),
    "a time that is no number of the quartiles": (put(*AT, 0, 0, 0.5), "not among its samples"),
    "a step faster than the GPU can compute": (
        lambda path: [put(*AT, column, 0, 1e-6)(path) for column in (0, 5, 6, 7, 8)],
        "quarantined: [0]: 0.001 ms is faster than this GPU can compute",
    ),
    "results as a list": (put("results", []), "results: a list of 0 is not"),
    "results as null": (put("results", None), "results: None is not"),
    "no results": (put("results", {}), "results: an object is not 1 to 500 entries"),
    "a row that is a number": (put(*AT, 1), "1 is not `array`"),
    "a row that is null": (put(*AT, None), "None is not `array`"),
    "columns in another order": (put("result_columns", ["params", "result"]), "not asv's columns"),
    "fewer results than parameters": (put(*AT, 0, [0.1]), "1 entries for 4 combinations"),
    "parameters that multiply to millions": (put(*AT, 1, [[str(k) for k in range(4000)]] * 2), "combinations"),
    "a pickled profile": (_profile, "profile: 'eJw=' is not `null`"),
    "HTML as a parameter": (put(*AT, 1, 1, 0, HTML), "'<img src=x onerror=alert(1)>' is not plain"),
    "Markdown as a parameter": (put(*AT, 1, 1, 0, MARKDOWN), "is not plain text"),
    "mathtext as a parameter": (put(*AT, 1, 1, 0, MATH), "is not plain text"),
    "a parameter of 200 letters": (put(*AT, 1, 1, 0, "x" * 200), "is not plain text"),
    "HTML as a benchmark's name": (text(TIME, HTML), "is not the name of a benchmark"),
    "HTML as the CPU": (put("params", "cpu", HTML), "params.cpu: "),
    "mathtext as the GPU": (put("params", "gpu", MATH), "params.gpu: "),
    "HTML as a library's version": (put("requirements", "torch", HTML), "requirements.torch: "),
    "a machine named ../../x": (put("params", "machine", "../../x"), "params: machine: '../../x' is not a name"),
    "a host's name as the machine": (put("params", "machine", "bobs-pc"), "not made from its hardware"),
    "another folder's machine": (_moved, "in the folder of"),
    "a fact that is a list": (put("params", "ram", [1]), "params.ram: "),
    "the path of an interpreter": (put("python", "/home/bob/venv/bin/python"), "is not a version of Python"),
    "a path as the operating system": (put("params", "os", "Linux /home/bob"), "without absolute paths"),
    "an environment named ../x": (put("env_name", "../x"), "env_name: '../x' is not the name"),
    "another commit than the file's name": (put("commit_hash", "f" * 40), "not named after its commit"),
    "a commit of 8 digits": (put("commit_hash", "01234567"), "commit_hash: '01234567' is not a commit"),
    "the same measurement for another commit": (_measured, "the same measurement as"),
    "a symbolic link to /etc/passwd": (instead(lambda path: path.symlink_to("/etc/passwd")), "a symbolic link"),
    "a symbolic link to itself": (instead(lambda path: path.symlink_to(path)), "a symbolic link"),
    "a pipe that nobody writes": (instead(os.mkfifo), "not a regular file"),
    "a socket": (instead(_socket), "not a regular file"),
    "a folder": (instead(Path.mkdir), "a folder with the name of a file"),
}  # fmt: skip


def _loop(path: Path) -> Path:
    (path.parent / "loop").symlink_to(path.parent)
    return path.parent / "loop"


def _beside(name: str, content: str) -> Plant:
    def change(path: Path) -> Path:
        other = path.parent / name
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text(content)
        return other

    return change


# Planted beside it, in the same machine's folder or above -> (which file, how, words of the line)
BESIDE_RESULTS: dict[str, tuple[str, Plant, str]] = {
    "machine.json: null": ("machine.json", raw("null"), "None is not `object`"),
    "machine.json: a list as a fact": ("machine.json", put("gpu", ["x"]), "gpu: a list of 1 is not plain text"),
    "machine.json: HTML as a fact": ("machine.json", put("cpu", HTML), "cpu: '<img"),
    "machine.json: a fact that is not known": ("machine.json", put("hostname", "bobs-pc"), "unknown key 'hostname'"),
    "machine.json: a machine named <b>": ("machine.json", put("machine", "<b>"), "machine: '<b>' is not a name"),
    "machine.json: a folder": ("machine.json", instead(Path.mkdir), "a folder with the name of a file"),
    "machine.json: a symbolic link": ("machine.json", instead(lambda p: p.symlink_to("/etc/hostname")), "a symbolic"),
    "machine.json: a pipe": ("machine.json", instead(os.mkfifo), "not a regular file"),
    "a note with HTML as the driver": ("notes", put("driver", HTML), "driver: '<img"),
    "a note of another commit": ("notes", put("commit", "f" * 40), "not named after its commit"),
    "a note with Infinity": ("notes", put("driver", math.inf), "Infinity is not allowed"),
    "a symbolic link to its own folder": ("machine.json", _loop, "a symbolic link"),
    "benchmarks.json in the machine's folder": ("machine.json", _beside("benchmarks.json", BENCHMARKS), "not where"),
    "benchmarks.json with HTML as a name": ("../benchmarks.json", raw('{"<b>": {}, "version": 2}'), "<b>"),
    "a file of another kind": ("machine.json", _beside("more.json", '{"schema": 1}'), "schema 1 is not known"),
    "a file with escape sequences in its name": ("machine.json", _beside("a\x1b[2J\n.json", "{}"), "the file's name"),
    "results in a folder of the machine's": ("machine.json", _beside("more/machine.json", "{}"), "missing"),
}  # fmt: skip
