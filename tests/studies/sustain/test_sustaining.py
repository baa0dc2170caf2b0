"""Whether a rung's speed lasts: rows over time, what follows from them, and what a file of them may not say."""

import itertools
import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ladder.base.records import build, plain
from ladder.cli import main as cli
from ladder.engine import inspection
from ladder.engine.pool import Pool, Worker, WorkerFailure
from ladder.publish.validation import kinds, validate
from ladder.studies.sustain import chart as sustainedchart
from ladder.studies.sustain import measure as sustaining
from ladder.studies.sustain import record, report
from tests.support import committed, made_up_sustained, servers
from tests.support.commands import FAKE
from tests.support.small import LEAST

kept_servers = servers.kept_servers
H200_MACHINE = json.loads(committed.file("results/claims/nvidia-h200.json").read_text())["machine"]


def rows(*steps_ms: float) -> list[record.Window]:
    state = {"sm_mhz": 1980.0, "power_w": 690.0, "temperature_c": 55, "reasons": ["power_cap"], "polls": 3}
    return [sustaining.window(2.0 * k, [ms / 1000] * 3, state) for k, ms in enumerate(steps_ms)]


@pytest.fixture
def result() -> dict[str, Any]:
    return json.loads(made_up_sustained.of_sustained(H200_MACHINE))


@pytest.fixture
def command(tmp_path, monkeypatch, kept_servers):
    """Run the command on the smallest workload; returns (what came of it, the folder of its files).

    An earlier run has inspected every rung: what inspecting takes is not what these tests are about.
    """
    monkeypatch.setattr(inspection.Cache, "get", lambda self, recipe: {})
    path, out = tmp_path / "least.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(LEAST))
    monkeypatch.setattr(sustaining, "WINDOW_S", 0.2)
    # A clock of a quarter of a second a look: how many windows a second holds does not hang on this machine's load.
    looks = itertools.count()
    monkeypatch.setattr(sustaining, "time", SimpleNamespace(monotonic=lambda: next(looks) / 4))

    def run(*arguments: str) -> tuple[Any, Any]:
        common = ["-w", str(path), "--device", "cpu", "--out", str(out), "--seconds", "1"]
        return CliRunner().invoke(cli.main, ["sustain", *arguments, *common]), out

    return run


@pytest.fixture
def fake_steps(monkeypatch):
    """Real workers of fake steps: for what does not hang on the model."""
    monkeypatch.setattr(sustaining, "Pool", partial(Pool, code=FAKE, torch=False))


def test_a_rung_is_followed_and_its_files_are_accepted(command, monkeypatch):
    """An earlier run has inspected the second of them: only the first is named as not seen."""
    monkeypatch.setattr(
        inspection.Cache, "get", lambda self, recipe: {} if recipe.get("channels_last") else None
    )
    said, out = command("baseline", "channels_last")
    assert said.exit_code == 0, said.output
    names = sorted(path.name.rsplit("-", 1)[-1] for path in out.iterdir())
    assert names == ["least.json", "least.md", "least.png", "least.svg"]
    (path,) = out.glob("*.json")
    found = json.loads(path.read_text())
    assert [rung["name"] for rung in found["rungs"]] == ["baseline", "channels_last"] and found["complete"]
    for rung in found["rungs"]:
        assert [row["at_s"] for row in rung["windows"]] == [0.25, 0.5, 0.75]
        assert rung["status"] == "ok" and rung["factor"] > 0
    assert (
        "not to be quoted" in said.output
        and "parity and receipts of baseline were not seen here" in said.output
    )
    assert CliRunner().invoke(cli.main, ["validate", str(path)]).exit_code == 0


@pytest.mark.usefixtures("fake_steps")
def test_without_a_name_it_is_the_highest_rung_that_runs_here(command):
    said, out = command("--ladder", "article")
    assert said.exit_code == 0
    (path,) = out.glob("*.json")
    assert [rung["name"] for rung in json.loads(path.read_text())["rungs"]] == ["set_to_none"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "has no rung 'nonsense'"),
        (["cuda_graphs"], "cannot run here"),
        (["--seconds", "nan"], "--seconds"),
    ],
)
def test_what_cannot_be_asked_is_one_line(arguments, words, command, tmp_path):
    path = tmp_path / "least.yaml"
    said = CliRunner().invoke(cli.main, ["sustain", "-w", str(path), "--device", "cpu", *arguments])
    assert said.exit_code == 2 and words in said.output and "Traceback" not in said.output


@pytest.mark.usefixtures("fake_steps")
def test_a_rung_that_fails_has_a_reason_and_the_next_goes_on(command, monkeypatch):
    real = Worker.call

    def call(worker: Worker, do: str, **fields: Any) -> dict[str, Any]:
        if do == "visit" and not broken:
            broken.append(worker)
            raise WorkerFailure("oom", "out of memory")
        return real(worker, do, **fields)

    broken: list[Worker] = []
    monkeypatch.setattr(Worker, "call", call)
    said, out = command("baseline", "channels_last")
    (path,) = out.glob("*.json")
    found = json.loads(path.read_text())
    assert said.exit_code == 1 and "oom: out of memory" in said.output and found["complete"]
    assert [rung["status"] for rung in found["rungs"]] == ["oom", "ok"] and broken[0].ended


@pytest.mark.usefixtures("fake_steps")
def test_an_interrupt_keeps_what_was_seen(command, monkeypatch):
    real, visits = Worker.call, []

    def call(worker: Worker, do: str, **fields: Any) -> dict[str, Any]:
        if do == "visit":
            visits.append(worker)
            if len(visits) == 2:
                raise KeyboardInterrupt
        return real(worker, do, **fields)

    monkeypatch.setattr(Worker, "call", call)
    said, out = command("baseline")
    (path,) = out.glob("*-partial.json")
    found = json.loads(path.read_text())
    assert said.exit_code == 130 and not found["complete"] and len(found["rungs"][0]["windows"]) == 1
    assert validate.check(found) is None and visits[0].ended
    monkeypatch.setattr(Worker, "call", real)
    # The time of a run has whole seconds: one that begins in the same second would be the same run.
    path.write_text(json.dumps(found | {"started": "2026-01-01T00:00:00+00:00"}))
    assert command("baseline")[0].exit_code == 0
    assert path.exists(), "a fresh run removed the file of an interrupted one"


def test_the_first_row_stands_against_the_later_half(result):
    whole = build(record.Result, result)
    rung = replace(whole.rungs[0], windows=rows(12.0, 14.0, 12.5, 13.0, 13.2))
    found = record.derive(replace(whole, rungs=[rung]))
    (rung,) = found.rungs
    assert (rung.first_ms, rung.sustained_ms) == (12.0, 13.0)
    assert rung.factor == pytest.approx(13 / 12)
    assert "in 5 of 5" in report.text(found) and "1.083" in report.markdown(found)


def change(result: dict[str, Any], what: str) -> None:
    rung = result["rungs"][0]
    if what == "the factor":
        rung["factor"] *= 0.9
    elif what == "a row":
        rung["windows"][-1]["step_ms"] *= 2
    elif what == "no rows":
        rung["windows"] = []
    elif what == "rows that are gone":
        rung |= {"status": "oom", "reason": "out of memory", "windows": []}
    elif what == "a note":
        result["complete"] = False
    elif what == "the speed":
        for row in rung["windows"]:
            row["step_ms"] /= 100
        result.update(plain(record.derive(build(record.Result, result))))
    elif what == "the machine":
        result["machine"]["name"] = "another"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("the factor", "factor is not what its rows say"),
        ("a row", "is not what its rows say"),
        ("no rows", "ok without a row"),
        ("rows that are gone", "first_ms is not what its rows say"),
        ("a note", "interrupted"),
        ("the speed", "faster than this GPU can compute"),
        ("the machine", "machine.name"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(what, words, result):
    assert validate.check(result) is None and kinds.marks(result) == result["protocol"]["notes"]
    change(result, what)
    assert words in validate.check(result)


def test_the_chart_is_the_same_for_the_same_result_and_another_for_another(result):
    def drawn(kind="svg"):
        return sustainedchart.render(build(record.Result, result), kind)

    first = drawn()
    assert first == drawn() and drawn("png")[:4] == b"\x89PNG"
    result["rungs"][0]["windows"][-1]["sm_mhz"] = 900.0
    assert drawn() != first
    result["rungs"] = []  # nothing was measured
    assert drawn()
