"""Committed files damaged at random: every reader accepts them or refuses them in one line, and writes nowhere else."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

from ladder.core import text
from ladder.core.errors import UserError
from ladder.plan import catalog
from ladder.publish.history import series as asvseries
from ladder.publish.validation import validate
from ladder.report import tables
from ladder.results import loading
from ladder.studies import frame
from ladder.studies.commits import known
from stylegan_lite.config import Recipe
from tests.support import committed

Read = Callable[[Path, Path], str | None]  # of a file and an output folder: why the file is refused

HOSTILE = ["../x", "/etc/passwd", "\x00", "\x1b[2J", "\u202e", "<img src=x onerror=alert(1)>", "=1+1", "a|b",
           "$x^2$", "[x](javascript:y)", "\ud800", "NaN", "__class__", "schema", "kind", "machine"]  # fmt: skip
TEXTS = st.sampled_from(HOSTILE) | st.text(max_size=99)
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, 2**63, 10**30, 1e308, -0.0, 5e-324])
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = (
    LEAVES | st.lists(LEAVES, max_size=5) | st.dictionaries(TEXTS, LEAVES, max_size=5) | st.just([0] * 5000)
)
# Pieces that JSON or YAML does not have, no float holds, or Python would run or expand.
PIECES = [b"NaN", b".inf", b"1e999", b"9" * 400, b"0x10", b"2024-01-01", b"\xff", b"\xed\xa0\x80", b"\x00", b"\r",
          b"\xe2\x80\xa8", b"[" * 1000, b'{"x": ' * 20000, b'"a": 1, "a": 2, ', b'"' * 60000, b"<<: *a\n", b"---\n",
          b"!!python/object/apply:os.system ['touch x']\n", b"&a [*a, *a]\n", b"rungs: [../../x]\n"]  # fmt: skip


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything in plain data."""
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], dict | list):
            yield from places(data[key])


@st.composite
def damaged(draw: Callable[[Any], Any], raw: bytes) -> bytes:
    """A file with a value, a key or some of its bytes changed."""
    way = draw(st.sampled_from(["replace", "remove", "add", "exchange", "scale", "bytes", "hole", "piece"]))
    at = draw(st.integers(0, len(raw)))
    if way == "bytes":
        return raw[:at] + draw(st.binary(min_size=1, max_size=8)) + raw[at + 4 :]
    if way == "hole":
        return raw[:at] + raw[at + draw(st.integers(1, len(raw))) :]
    if way == "piece":
        return raw[:at] + draw(st.sampled_from(PIECES)) + raw[at:]
    is_json = raw[:1] == b"{"
    data = json.loads(raw) if is_json else yaml.safe_load(raw)
    every = list(places(data))
    (holder, key), (other, from_) = (every[draw(st.integers(0, len(every) - 1))] for _ in range(2))
    if way == "replace":
        holder[key] = draw(VALUES)
    elif way == "remove":
        del holder[key]
    elif way == "add" and isinstance(holder, dict):
        holder[draw(TEXTS)] = draw(VALUES)
    elif way == "exchange":
        holder[key] = copy.deepcopy(other[from_])
    elif isinstance(holder[key], int | float):
        holder[key] *= 10.0 ** draw(st.integers(-9, 9))
    try:
        return json.dumps(data).encode() if is_json else yaml.safe_dump(data).encode()
    except (ValueError, RecursionError, yaml.YAMLError):
        return raw[1:]


# --- who reads ------------------------------------------------------------------------------------------------------


def read_result(path: Path, out: Path) -> str | None:
    """Judge a result of ours, and show an accepted one as users and the site do."""
    if problem := validate.problem_of(path):
        return problem
    data = json.loads(path.read_bytes())
    kind = validate.kind_of(data)
    if kind is None:
        for holder, key in places(data):
            if isinstance(value := holder[key], str):
                assert re.fullmatch(r"[A-Za-z0-9 ._()+:@,/'#=-]{1,96}", value)
            elif isinstance(value, int | float):
                assert abs(value) <= 2**50
        run = loading.load_run(path)
        assert tables.markdown(run) and tables.csv_text([run])
    elif (study := frame.load_studies().get(kind)) is not None:
        frame.render_page(study, frame.decode_file(study, data))
    return None


def read_asv(path: Path, out: Path) -> str | None:
    """Judge a file of asv's, and copy what is accepted of its folder."""
    problem = validate.problem_of(path)
    into = out / str(len(list(out.iterdir())))
    rows = validate.accept_asv(path.parent.parent, into, root=None)
    asvseries.read(into)
    return problem or next((row.problem for row in rows if row.problem), None)


def reading(load: Callable[[str], Any]) -> Read:
    def read(path: Path, out: Path) -> str | None:
        try:
            load(str(path))
        except UserError as error:
            return str(error)
        return None

    return read


@functools.cache
def targets() -> dict[str, tuple[bytes, str, Read]]:
    """The smallest genuine file of each kind, its name, and its reader."""
    files: dict[str, tuple[bytes, str, Read]] = {}
    for path in sorted(committed.folder().rglob("*.json"), key=lambda each: each.stat().st_size):
        kind = (
            validate.kind_of(json.loads(path.read_bytes())) or path.relative_to(committed.folder()).parts[0]
        )
        files.setdefault(kind, (path.read_bytes(), f"{text.make_slug(kind)}.json", read_result))
    asv = committed.folder("results/asv/nvidia-h200")
    result = min(asv.glob("*-*.json"), key=lambda path: path.stat().st_size)
    files["asv's machine"] = (asv / "machine.json").read_bytes(), "asv/nvidia-h200/machine.json", read_asv
    files["asv's result"] = result.read_bytes(), f"asv/nvidia-h200/{result.name}", read_asv
    entries = [{"commit": "0123456789", "series": "article/bf16", "reason": "why", "expires": "2027-06-30"}]
    accepted = yaml.safe_dump({"regressions": entries}).encode()
    for name, raw, load in (
        ("workload", (catalog.WORKLOADS / "article.yaml").read_bytes(), catalog.load_workload),
        ("rungs", (catalog.LADDERS / "full.yaml").read_bytes(), catalog.load_ladder),
        ("recipe", yaml.safe_dump(Recipe().to_dict()).encode(), lambda path: catalog.load_recipe(path, [])),
        ("regressions", accepted, lambda path: known.read_entries(Path(path))),
    ):
        files[name] = raw, "file.yaml", reading(load)
    return files


# --- what is watched ------------------------------------------------------------------------------------------------

WRITES = {f"os.{name}" for name in "mkdir rename remove rmdir link symlink truncate chmod".split()}
_allowed: list[str] = []  # while a file is read: the folder that may be written to
_outside: list[str] = []


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    by_folder = event in ("os.remove", "os.rmdir") and arguments[1] != -1  # of a descriptor: `shutil.rmtree`
    if not _allowed or by_folder:
        return
    if event in ("os.system", "os.exec", "pickle.find_class"):
        _outside.append(event)
    elif event in WRITES or (event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)):
        name = os.devnull if isinstance(arguments[0], int) else arguments[0]
        where = os.path.abspath(os.fsdecode(name))
        if where != os.devnull and "__pycache__" not in where and not where.startswith(_allowed[0]):
            _outside.append(where)


sys.addaudithook(audit)


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """A list that fills with what is written outside `folder`, or run."""
    _outside.clear()
    _allowed.append(str(folder))
    try:
        yield _outside
    finally:
        _allowed.clear()


KINDS = ["ladder", "compare", "kernels", "roofline", "ablation", "noise", "profile", "sustained", "upstream",
         "precision", "asv's machine", "asv's result", "workload", "rungs", "recipe", "regressions"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_accepted_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    raw, name, read = targets()[kind]
    path, out = tmp_path / "in" / name, tmp_path / "out"
    path.parent.mkdir(parents=True)
    out.mkdir()
    (path.parent / "machine.json").write_bytes(targets()["asv's machine"][0])  # beside a result of asv
    path.write_bytes(raw)
    assert read(path, out) is None, "the genuine file is refused"

    @hypothesis.settings(
        max_examples=300 if kind == "ladder" else 30, deadline=None, database=None, derandomize=True,
        suppress_health_check=[*hypothesis.HealthCheck],
    )  # fmt: skip
    @hypothesis.given(damaged(raw))
    def refuse(file: bytes) -> None:
        path.write_bytes(file)
        with watched(tmp_path) as outside:
            problem = read(path, out)
        assert outside == []
        if problem is not None:
            assert problem.isprintable() and len(problem) < 1000
            assert not problem.endswith(("Error", "Exception"))

    refuse()


# --- found by damage at random ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [0, 1e-300, 10**30])
def test_a_time_that_no_clock_shows_is_refused_with_its_place(time: float) -> None:
    """A ratio of times divided by zero, and numpy had no logarithm for a long integer."""
    kernels = json.loads(targets()["kernels"][0])
    clock, samples = next(iter(next(iter(kernels["observed"].values()))["rows"][0]["samples_us"].items()))
    samples["ours"][1] = time
    problem = validate.find_problem(kernels) or "accepted"
    assert f".rows[0].samples_us.{clock}.ours[1]: " in problem
    kernels["cases"].clear()
    assert validate.find_problem(kernels)


@pytest.mark.parametrize("line", ["batch: ", "lr: ", "rungs:\n  - baseline: "])
def test_a_number_that_no_float_holds_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    """`math.isfinite` and `float` raise at 400 digits."""
    path = tmp_path / "mine.yaml"
    path.write_text(line + "9" * 400)
    for load in (catalog.load_workload, catalog.load_ladder):
        with pytest.raises(UserError, match=r"line \d, column \d+: a whole number of more than 18 digits"):
            load(str(path))
