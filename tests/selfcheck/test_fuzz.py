"""Damaged files: a share of `python -m ladder.selfcheck.fuzz`, that it sees what it looks for, and what it recorded."""

import dataclasses
import functools
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ladder.base.errors import UserError
from ladder.base.records import build
from ladder.plan import catalog
from ladder.publish.validation import asv_checks, validate
from ladder.selfcheck.fuzz import __main__ as fuzz
from ladder.selfcheck.fuzz import strategies
from ladder.selfcheck.fuzz import targets as fuzztargets
from ladder.studies.roofline import view as roofline_view
from ladder.studies.roofline.schema import Result as Roofline
from tests.support import committed

ROOT = Path(__file__).resolve().parents[2]
OTHERS = {"compare", "kernels", "precision", "roofline"}
TEXT = fuzztargets.Target("toy", [b'{"a": [1, 2]}'], Path("toy.json"), lambda path, out: "accepted")


@pytest.fixture(autouse=True)
def committed_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage the project's results, not those that a user has added."""
    monkeypatch.setattr(fuzztargets, "RESULTS", committed.file("results"))


def toy(monkeypatch: pytest.MonkeyPatch, read: fuzztargets.Read) -> fuzz.Fuzz:
    """Twenty damaged files, read so."""
    monkeypatch.setattr(fuzztargets, "targets", lambda: [dataclasses.replace(TEXT, read=read)])
    return fuzz.run("results", 20)


def findings(seen: fuzz.Fuzz) -> list[str]:
    return [line for row in seen.rows.values() for line in row.findings]


@pytest.mark.parametrize(
    ("kind", "count", "files"),
    [
        ("results", 300, {"run", "asv's results", "asv's machine", "our note beside asv's", *OTHERS}),
        ("yaml", 100, {"workload", "ladder", "recipe"}),
    ],
)
def test_hundreds_of_damaged_files_bring_no_exception_no_write_and_no_delay(
    kind: str, count: int, files: set[str]
) -> None:
    seen = fuzz.run(kind, count, seed=7)
    rows = list(seen.rows.values())
    assert findings(seen) == [] and files <= {row.file for row in rows}
    assert sum(row.count for row in rows) == count == sum(row.accepted + row.refused for row in rows)
    assert sum(row.accepted for row in rows) > 10  # some damage leaves a file that could be genuine


@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.exhaustive)])
def test_what_is_damaged_is_accepted_as_long_as_it_is_whole(tmp_path: Path, most: int | None) -> None:
    """Else all that is tried of a kind is one refusal, again and again."""
    among = [target for target in fuzztargets.targets() if target.kind == "results"]
    assert OTHERS <= {target.name for target in among}
    seen = fuzz.Fuzz(tmp_path)
    seen.lay_out(among)
    for target in among:
        for base in {*target.bases[:most]}:
            (tmp_path / "in" / target.place).write_bytes(base)
            assert target.read(tmp_path / "in" / target.place, tmp_path / "out") == "accepted", target.name


@functools.cache
def bases() -> dict[str, bytes]:
    return {target.name: target.bases[0] for target in fuzztargets.targets()}


def of_kind(kind: str) -> dict[str, Any]:
    return json.loads(bases()[kind])


@pytest.mark.parametrize("time", [0, 1e-300, 10**30])
def test_a_time_that_no_clock_shows_is_refused_with_its_place(time: float) -> None:
    """Found by the fuzzer: a ratio of times divided by zero, and numpy had no logarithm for a long integer."""
    kernels = of_kind("kernels")
    kernels["rows"][0]["samples_us"]["cold"]["ours"][1] = time
    problem = validate.check(kernels)
    assert problem and problem.startswith("rows[0].samples_us.cold")
    assert "is not from 1e-06 to 1e+12" in problem


@pytest.mark.parametrize(
    ("kind", "change", "problem"),
    [
        ("kernels", lambda d: d["rows"][0]["us"].pop("hot"), "rows[0].us: the key 'hot' is missing"),
        ("roofline", lambda d: d["step"].pop("peak_ms"), "step: the key 'peak_ms' is missing"),
        ("roofline", lambda d: d["step"].update(light_ms=0), "step.light_ms: 0 is no floor"),
        ("roofline", lambda d: d["recipe"].update(precision=16.0), "recipe.precision: 16.0 is not a name"),
        ("roofline", lambda d: d["ceilings"].update(x=d["ceilings"]["copy"]), "ceilings: unknown key 'x'"),
    ],
)
def test_what_the_fuzzer_found_in_other_kinds_is_refused_in_a_line(
    kind: str, change: Callable[[dict[str, Any]], Any], problem: str
) -> None:
    data = of_kind(kind)
    assert validate.check(data) is None
    change(data)
    assert problem in (validate.check(data) or "accepted")


def test_a_roofline_without_a_convolution_of_one_kind_is_shown() -> None:
    data = of_kind("roofline")
    data["convolutions"] = [row for row in data["convolutions"] if row["name"].startswith("forward")]
    assert validate.check(data) is None and "convolution weight gradient" not in roofline_view.markdown(
        build(Roofline, data)
    )


@pytest.mark.parametrize("line", ["batch: ", "lr: ", "rungs:\n  - baseline: "])
def test_a_number_that_no_float_holds_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    """Found by the fuzzer: `math.isfinite` and `float` raise at 400 digits."""
    path = tmp_path / "mine.yaml"
    for number in ("9" * 400, "-" + "9" * 19):
        path.write_text(line + number)
        for load in (catalog.load_workload, catalog.load_ladder):
            with pytest.raises(
                UserError, match=r"line \d, column \d+: a whole number of more than 18 digits"
            ):
                load(str(path))


def test_an_asv_result_without_a_commit_is_refused_with_its_place() -> None:
    """Found by the fuzzer: the name of its file was compared with the first digits of nothing."""
    path = next(committed.folder("results/asv").glob("nvidia-h200/*-*.json"))
    data = asv_checks.parse(path.read_bytes(), "results") | {"commit_hash": None}
    assert "commit_hash" in asv_checks.check(data, "results", path)


@pytest.mark.parametrize("name", ["machine.json", "article.yaml"])
def test_every_kind_of_damage_changes_a_file_and_the_same_seed_makes_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = (
        committed.file("results/asv/nvidia-h200/machine.json")
        if name == "machine.json"
        else (catalog.WORKLOADS / name)
    )
    raw, made = path.read_bytes(), []

    def read(path: Path, out: Path) -> str:
        made.append(path.read_bytes())
        return "accepted"

    target = dataclasses.replace(TEXT, bases=[raw], read=read)
    monkeypatch.setattr(fuzztargets, "targets", lambda: [target])
    rows = fuzz.run("results", 300, seed=3).rows
    assert {damage for _, damage in rows} >= {*strategies.WAYS} - {"far too long"}
    assert sum(each != raw for each in made) > 270 and len({*made}) > 100
    first = made.copy()
    made.clear()
    fuzz.run("results", 300, seed=3)
    assert made == first


def test_an_exception_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path, out: Path) -> str:
        return path.read_bytes()[10_000]

    seen = toy(monkeypatch, read)
    assert sum(row.exceptions for row in seen.rows.values()) == 20 and "IndexError" in findings(seen)[0]


def test_what_python_compiles_while_a_file_is_read_is_no_write_of_the_reader(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "imported_late.py").write_text("")

    def read(path: Path, out: Path) -> str:
        importlib.import_module("imported_late")
        return "accepted"

    seen = toy(monkeypatch, read)
    assert list((tmp_path / "__pycache__").iterdir()) and findings(seen) == []


def test_a_write_outside_the_folder_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def read(path: Path, out: Path) -> str:
        (out / "fine.txt").write_text("x")
        (tmp_path / "x").mkdir(exist_ok=True)
        (tmp_path / "escaped.txt").write_text("x")
        return "refused"

    seen = toy(monkeypatch, read)
    assert sum(row.writes_outside for row in seen.rows.values()) == 40
    assert all("wrote to" in line for line in findings(seen))


def test_a_file_that_takes_too_long_is_found_and_a_busy_moment_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fuzz, "LIMIT_S", 0.01)
    seen = toy(monkeypatch, lambda path, out: work(0.011))
    assert len(findings(seen)) == 20 and seen.slowest["seconds"] > 0.01
    once = iter([0.011] + [0] * 1000)
    assert findings(toy(monkeypatch, lambda path, out: work(next(once)))) == []
    monkeypatch.setattr(fuzz, "WAITING", 1)  # a file that is waited for: a pipe that nobody writes to
    assert len(findings(toy(monkeypatch, lambda path, out: time.sleep(0.011) or "accepted"))) == 20


def work(seconds: float) -> str:
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass
    return "accepted"


def test_a_reason_that_no_terminal_prints_is_found(tmp_path: Path) -> None:
    for problem in ("two\nlines", "\x1b[2J", "é", "not a result file: KeyError"):
        with pytest.raises(fuzztargets.Uncaught):
            fuzztargets._line(problem)

    def load(path: Path) -> None:
        raise UserError("two\nlines")

    with pytest.raises(fuzztargets.Uncaught):
        fuzztargets.reading_yaml(load)(tmp_path, tmp_path)


def test_the_command_writes_what_it_found_and_keeps_the_other_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yaml = dataclasses.replace(TEXT, kind="yaml")
    monkeypatch.setattr(fuzztargets, "targets", lambda: [TEXT, yaml])
    assert fuzz.main(["--results", "30", "--yaml", "0", "--out", str(tmp_path)]) == 0
    assert fuzz.main(["--results", "0", "--yaml", "20", "--out", str(tmp_path)]) == 0
    kinds = json.loads((tmp_path / "fuzz.json").read_text())["kinds"]
    assert {kind: found["total"]["count"] for kind, found in kinds.items()} == {"results": 30, "yaml": 20}
    assert "30: 30 accepted, 0 refused in one line, 0 exceptions" in (tmp_path / "fuzz.md").read_text()
    broken = dataclasses.replace(TEXT, read=lambda path, out: 1 / 0)
    monkeypatch.setattr(fuzztargets, "targets", lambda: [broken])
    assert fuzz.main(["--results", "30", "--yaml", "0", "--out", str(tmp_path)]) == 1


def test_the_recorded_run_was_a_whole_one_and_found_nothing() -> None:
    kinds = json.loads(committed.file("results/faults/fuzz.json").read_text())["kinds"]
    for kind, least in (("results", fuzz.FILES), ("yaml", fuzz.YAML)):
        total = kinds[kind]["total"]
        assert total["count"] >= least and total["accepted"] + total["refused"] == total["count"]
        assert kinds[kind]["findings"] == [] and total["writes_outside"] == 0 and not kinds[kind]["dirty"]
        assert kinds[kind]["slowest"]["seconds"] < fuzz.LIMIT_S
