"""The self-test on a device: its words about made-up rounds, and how the command ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from ladder.machine import system
from ladder.publish.pages import studies
from ladder.publish.pages.committed import Committed
from ladder.publish.validation import validate
from ladder.results import words
from ladder.selfcheck.selftest import on_gpu
from ladder.selfcheck.selftest import simulate as selftest
from ladder.selfcheck.selftest.judging import judge, markdown, text
from ladder.stats import nested
from tests.cli.test_cli import call
from tests.selfcheck.test_selftest_gpu import GROUP, ROOT, selftest_of
from tests.support import committed


def made_up(tmp_path: Path, **times: list[float]) -> dict[str, Any]:
    """A result of five rounds: ms a step of each program ("c1" to "c4", "p0", "p1", "p2"), else 100 and some noise."""
    result = selftest_of(tmp_path, ROOT).result
    group = result["groups"][0]["name"]
    short = {f"{group} {n + 1}": f"c{n + 1}" for n in range(4)}
    short |= {name: f"p{n}" for n, name in enumerate(GROUP.planted_names().values())}
    for each in result["programs"]:
        steps = times.get(short[each["name"]])
        if steps is None:
            base = 100 * (1 + (each["planted"] or 0))
            steps = [base * (1 + 0.0002 * ((i * 7 + len(each["name"])) % 5 - 2)) for i in range(5)]
        each["status"] = "ok"
        each["rounds"] = [
            {"round": i, "samples_ms": [ms, ms * 1.0001], "rejected": []} for i, ms in enumerate(steps)
        ]
    judge(result)
    return result


def test_five_good_rounds_break_nothing(tmp_path: Path) -> None:
    assert made_up(tmp_path)["broken"] == []


UNEQUAL = {"c1": [100.0, 102.0, 98.0, 102.0, 98.0], "c4": [99.0, 98.9, 99.1, 99.0, 99.0]}


def test_twins_that_differ_keep_copies_from_being_called_different(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check itself is checked: a judge that does not listen to the twins calls copies different here."""
    called = [line for line in made_up(tmp_path, **UNEQUAL)["broken"] if "than captured" in line]
    assert called == []
    monkeypatch.setattr(nested, "twins_bound", lambda *_: None)
    called = [line for line in made_up(tmp_path, **UNEQUAL)["broken"] if "than captured" in line]
    assert "captured: captured 4 was called faster than captured 2" in called


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"p1": [100.0, 100.01, 99.99, 100.0, 100.02]}, "a slowdown of 1% was called less than 0."),
        ({"p0": [90.0, 90.1, 90.0, 89.9, 90.0]}, "a slowdown of 0.5% was called faster"),  # not promised
        ({"p2": [100.0]}, "a slowdown of 10% was not compared"),
        ({f"c{n}": [] for n in range(1, 5)}, "no two copies were compared"),
    ],
)
def test_every_broken_promise_is_a_line(tmp_path: Path, times: dict[str, list[float]], said: str) -> None:
    result = made_up(tmp_path, **times)
    assert any(said in line for line in result["broken"]) and said in markdown(result)


def test_an_unpromised_slowdown_may_be_missed(tmp_path: Path) -> None:
    result = made_up(tmp_path, p0=[100.0, 100.01, 99.99, 100.0, 100.02])
    assert result["broken"] == [] and "everything promised was kept" in text(result)


def test_a_stored_file_is_accepted_with_its_old_words_and_with_those_of_today(tmp_path: Path) -> None:
    stored = committed.folder() / "selftest" / "nvidia-h200-real.json"
    result, path = json.loads(stored.read_text()), tmp_path / "results" / "selftest" / stored.name
    assert validate.problem_of(stored) is None and " ambiguous " in markdown(result)
    judge(result)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(result))
    assert validate.problem_of(path) is None
    rows = [row for group in result["groups"] for row in group["comparisons"] if row["below"] is not None]
    shown = markdown(result) + studies.selftest(Committed(tmp_path), "nvidia-h200")
    said = {words.of_row(row) for row in rows if row["planted"] is not None}
    assert said and all(word.startswith("less than ") and shown.count(f"| {word} |") >= 2 for word in said)
    assert "pairs: 2 less than X%" in shown


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The command on a machine with a GPU, whose real part is made up."""
    small = {"table": [], "broken": []}, tmp_path / "results" / "selftest" / "x.json"
    monkeypatch.setattr(system, "choose_device", lambda requested: "cuda")
    monkeypatch.setattr(selftest, "run", lambda folder, device: small)
    monkeypatch.setattr(selftest, "text", lambda found: "simulated")
    monkeypatch.setattr("ladder.cli.doctor.ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("times", "complete", "status"),
    [({}, True, 0), ({"p1": [100.0, 100.01, 99.99, 100.0, 100.02]}, True, 1), ({}, False, 130)],
)
def test_the_status_says_whether_promises_were_kept(
    gpu: Path, monkeypatch: pytest.MonkeyPatch, times: dict, complete: bool, status: int
) -> None:
    real = made_up(gpu, **times) | {"complete": complete}
    path = gpu / "results" / "selftest" / "x-real.json"
    monkeypatch.setattr(on_gpu, "run", lambda folder, minutes, tell: (real, path))
    seen = call("doctor", "--selftest", "--minutes", 6)
    assert seen.exit_code == status, seen.output
    assert seen.stdout.startswith("simulated") and "Planted slowdowns" in seen.stdout
    assert seen.stdout.rstrip().endswith("results/selftest/x-real.json, .md")
    seen = call("doctor", "--selftest", "--json")
    assert json.loads(seen.stdout)["real"]["broken"] == real["broken"] and seen.exit_code == status
