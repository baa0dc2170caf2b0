"""Damaged files: a share of what `python -m ladder.fuzz` does, that it sees what it looks for, and what it recorded."""

import dataclasses
import json
import random
import time
from pathlib import Path

import pytest

from ladder import fuzz, fuzztargets, mutations
from ladder.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
TEXT = fuzztargets.Target(
    "toy", [b'{"a": [1, 2]}'], mutations.JSON, Path("toy.json"), lambda path, out: "accepted"
)


def toy(monkeypatch: pytest.MonkeyPatch, read: fuzztargets.Read) -> fuzz.Fuzz:
    """Twenty damaged files, read so."""
    monkeypatch.setattr(fuzztargets, "targets", lambda: [dataclasses.replace(TEXT, read=read)])
    return fuzz.run(20, 0)


def findings(seen: fuzz.Fuzz) -> list[str]:
    return [line for row in seen.rows.values() for line in row.findings]


def test_hundreds_of_damaged_files_bring_no_exception_no_write_and_no_delay() -> None:
    seen = fuzz.run(300, 300, seed=7)
    rows = list(seen.rows.values())
    assert findings(seen) == []
    assert sum(row.count for row in rows) == 600 == sum(row.accepted + row.refused for row in rows)
    assert sum(row.accepted for row in rows) > 10  # some damage leaves a file that could be genuine
    assert {row.file for row in rows} >= {
        "ladder run's",
        "asv's results",
        "asv's machine",
        "workload",
        "ladder",
    }


@pytest.mark.parametrize("way", [*mutations.JSON, *mutations.RARE])
def test_damage_to_json_is_repeatable_and_is_damage(way: str) -> None:
    change = (mutations.JSON | mutations.RARE)[way]
    raw = (ROOT / "results" / "asv" / "nvidia-h200" / "machine.json").read_bytes()
    made = [change(raw, random.Random(seed)) for seed in (1, 1, 2, 3, 4, 5)]
    assert made[0] == made[1] and len(set(made)) > 2
    assert any(each != raw for each in made)


def test_an_exception_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path, out: Path) -> str:
        return path.read_bytes()[10_000]

    seen = toy(monkeypatch, read)
    assert sum(row.exceptions for row in seen.rows.values()) == 20 and "IndexError" in findings(seen)[0]


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
    seen = toy(monkeypatch, lambda path, out: time.sleep(0.011) or "accepted")
    assert len(findings(seen)) == 20 and seen.slowest["seconds"] > 0.01
    once = iter([0.011] + [0] * 1000)
    assert findings(toy(monkeypatch, lambda path, out: time.sleep(next(once)) or "accepted")) == []


def test_a_reason_that_no_terminal_prints_is_found(tmp_path: Path) -> None:
    for problem in ("two\nlines", "\x1b[2J", "é", "not a result file: KeyError"):
        with pytest.raises(fuzztargets.Uncaught):
            fuzztargets._line(problem)

    def load(path: Path) -> None:
        raise UserError("two\nlines")

    with pytest.raises(fuzztargets.Uncaught):
        fuzztargets.reading_yaml(load)(tmp_path, tmp_path)


def test_the_command_writes_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzztargets, "targets", lambda: [TEXT])
    assert fuzz.main(["--results", "30", "--yaml", "0", "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "fuzz.json").read_text())
    assert data["total"]["count"] == 30 == sum(row["count"] for row in data["rows"])
    assert "30 accepted, 0 refused in one line, 0 exceptions" in (tmp_path / "fuzz.md").read_text()
    monkeypatch.setattr(
        fuzztargets, "targets", lambda: [dataclasses.replace(TEXT, read=lambda path, out: 1 / 0)]
    )
    assert fuzz.main(["--results", "30", "--yaml", "0", "--out", str(tmp_path)]) == 1


def test_the_recorded_run_was_a_whole_one_and_found_nothing() -> None:
    data = json.loads((ROOT / "results" / "faults" / "fuzz.json").read_text())
    yamls = sum(
        row["count"]
        for row in data["rows"]
        if row["file"] in ("workload", "ladder", "recipe", "known-regressions")
    )
    assert data["total"]["count"] - yamls >= fuzz.FILES and yamls >= fuzz.YAML
    assert data["findings"] == [] and data["total"]["exceptions"] == 0 == data["total"]["writes_outside"]
    assert data["slowest"]["seconds"] < fuzz.LIMIT_S
