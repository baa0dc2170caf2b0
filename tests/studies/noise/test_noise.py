"""`ladder noise`: what two copies of one rung say, from made-up runs, and the command from end to end."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ladder.base.records import build, plain
from ladder.cli import main as cli
from ladder.machine import clocks
from ladder.plan import catalog, modes
from ladder.publish.validation import validate
from ladder.results import derive, judging, types
from ladder.studies.noise import measure, report
from ladder.studies.noise.record import CLOCKS, GPU, HOST, NEIGHBOURS, NOTHING, WALL, Clocks, Result
from tests.support import made_up, servers, two_clocks
from tests.support.fake_runs import FAKE, Ladder, Planned
from tests.support.small import LEAST

kept_servers = servers.kept_servers
KNOWN = {"state": "known", "polls": 20, "tenancy": "alone", "sm_mhz": 1980.0, "reasons": []}


def run_of(of_wall: float, of_gpu: float, generations: int = 8, **more: Any) -> dict[str, Any]:
    """A run of one rung and its twin whose processes scatter by these shares. ``more``: of each round, by number."""
    rng = random.Random(5)
    rung = made_up.rung("fused_act", 61.0, 0.1, recipe={"cuda_graphs": True, "adam": "capturable"})
    made = made_up.result([rung])
    made["measured_code"] = {}
    made["protocol"]["mode"] = modes.CUMULATIVE
    judging.add_twins(made)
    for copy in (made["rungs"][0], made["twins"][0]):
        copy["status"], copy["reason"] = "ok", None
        for number in range(generations):
            ms = 61.0 * math.exp(rng.gauss(0, of_wall)), 60.0 * math.exp(rng.gauss(0, of_gpu))
            each = two_clocks.a_round(number, *ms) | {"gpu": dict(KNOWN), "others_cpu": 0.0}
            for key, value in more.items():
                each[key] = value(number) if callable(value) else value
            copy["rounds"].append(each)
    return plain(judging.judge(derive.derive(types.build(types.Result, made))))


def result_of(run: dict[str, Any], clocks: Clocks | None = None) -> Result:
    planned = [catalog.Planned("fused_act", "a title", {}, None, None)]
    fields = catalog.load_workload("article")[1] | {"data": None}
    plan = measure.Plan(
        "article", fields, catalog.load_ladder("article"), planned, "cuda", 2.0, clocks is not None
    )
    held = clocks or Clocks(asked=False, locked_mhz=None, reason="not asked for")
    return measure.new_result(plan, run, held, 120.0)


def by(result: Result) -> dict[str, str]:
    return {each.clock: each.by for each in result.limits}


def test_each_clock_says_which_change_it_can_show() -> None:
    found = result_of(run_of(0.02, 0.001))
    assert found.gpu_time is not None and found.wall.resolution and found.gpu_time.resolution
    assert found.wall.resolution > 5 * found.gpu_time.resolution
    assert found.wall.between == pytest.approx(0.02, rel=0.5) and found.wall.generations == 8
    assert found.gpu_time.between == pytest.approx(0.001, rel=0.5) and found.gpu_time.inside == 0
    assert "a change is seen here from" in report.text(found) and "| GPU time |" in report.markdown(found)


def test_more_generations_see_more() -> None:
    few, many = (result_of(run_of(0.02, 0.001, generations)).wall.resolution or 0 for generations in (3, 12))
    assert many < few


def test_generations_that_agree_by_chance_do_not_hide_how_the_cycles_scatter() -> None:
    """Three generations whose two copies differ by a thousandth, of cycles that differ by a tenth."""
    run = run_of(0.0, 0.0, 3)
    for sign, copy in ((1, run["rungs"][0]), (-1, run["twins"][0])):
        for each in copy["rounds"]:
            apart = sign * 0.001 * (each["round"] - 1)
            each |= {
                "passes": [0, 1, 2],
                "samples_ms": [61 * math.exp(apart + sign * x) for x in (-0.05, 0, 0.05)],
                "event_ms": None,
            }
    found = result_of(plain(judging.judge(derive.derive(types.build(types.Result, run)))))
    assert found.wall.between == pytest.approx(0.0014, rel=0.05) and found.run.noise is not None
    assert all(each.floor < 0.01 for each in found.run.noise.values())
    assert found.wall.floor == pytest.approx(
        2.447 * 0.1 / 3, rel=0.01
    )  # t of six, sd / sqrt(3 cycles x 3 generations)
    assert found.wall.resolution == pytest.approx(2 * found.wall.floor)


def other_clock(number: int) -> dict[str, Any]:
    return KNOWN | {"sm_mhz": 1980.0 - 60 * (number % 2), "reasons": ["power_cap"]}


@pytest.mark.parametrize(
    ("more", "limits"),
    [
        ({}, {WALL: HOST, GPU: NOTHING}),
        ({"others_cpu": 0.5}, {WALL: NEIGHBOURS, GPU: NOTHING}),
        ({"gpu": other_clock}, {WALL: HOST, GPU: CLOCKS}),
        ({"gpu": KNOWN | {"tenancy": "shared"}}, {WALL: HOST, GPU: NEIGHBOURS}),
        (
            {"gpu": {"state": "unknown", "reason": "no NVML", "tenancy": "unknown"}},
            {WALL: HOST, GPU: NOTHING},
        ),
        ({"profiled": None}, {WALL: HOST}),
    ],
)
def test_the_limit_is_named(more: dict[str, Any], limits: dict[str, str]) -> None:
    assert by(result_of(run_of(0.02, 0.001, **more))) == limits


def test_a_wall_time_as_steady_as_gpu_time_is_limited_as_that_is() -> None:
    assert by(result_of(run_of(0.002, 0.002, gpu=other_clock))) == {WALL: CLOCKS, GPU: CLOCKS}


def test_two_generations_say_nothing_yet() -> None:
    found = result_of(run_of(0.02, 0.001, 2))
    assert found.wall.resolution is None and "nothing is known yet" in report.text(found)
    assert any("fewer than three generations" in note for note in found.protocol.notes)


def test_a_lock_is_told_either_way() -> None:
    run = run_of(0.02, 0.001)
    locked = result_of(run, Clocks(asked=True, locked_mhz=1485, reason=None))
    refused = result_of(
        run, Clocks(asked=True, locked_mhz=None, reason="NVML does not permit it: no permission")
    )
    assert "locked at 1485 MHz" in report.text(locked)
    assert "the clock was not locked: NVML does not permit it" in report.text(refused)


@pytest.mark.parametrize(
    ("spent_s", "wanted"), [(30.0, 12), (120.0, 3), (300.0, 3), (0.001, measure.MOST), (39.0, 9)]
)
def test_generations_fit_into_the_minutes(spent_s: float, wanted: int) -> None:
    assert measure.fitting(2.0, spent_s) == wanted


def test_the_engine_makes_three_generations_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of a fake step, in processes of their own; the minutes leave room for two generations more."""
    real, asked = measure.engine.run_ladder, []

    def run_ladder(*arguments: Any, **options: Any) -> dict[str, Any]:
        asked.append(options["rounds"])
        return real(*arguments, **options, code=FAKE)

    monkeypatch.setattr(measure.engine, "run_ladder", run_ladder)
    monkeypatch.setattr(measure, "fitting", lambda minutes, spent_s: 5)
    planned: Any = [Planned("baseline", {"name": "baseline", "sleep": 0.001})]
    ladder: Any = Ladder()
    plan = measure.Plan("fake", {"batch": 8, "data": None}, ladder, planned, "cpu", 1.0, False)
    run = measure._generations(plan, None, tmp_path, lambda event: None)
    assert asked == [3, 5] and run["complete"]
    copies = run["rungs"][0], run["twins"][0]
    assert [len(copy["rounds"]) for copy in copies] == [5, 5]


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the command with a run that needs no processes; returns (what came of it, the file's data)."""
    path, out = tmp_path / "least.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(LEAST))

    def generations(
        plan: measure.Plan, source: str | None, folder: Path, on_event: Any, kept: int = 4
    ) -> Any:
        from ladder.machine import system
        from ladder.results import record

        fields = {**plan.workload}
        made = record.new_result(
            system.facts(plan.device), plan.name, fields, source, plan.ladder, plan.planned, None, None
        )
        made["protocol"] = record.protocol(kept, 2, plan.seed, False)
        judging.add_twins(made)
        rng = random.Random(1)
        for copy in (made["rungs"][0], made["twins"][0]):
            for number in range(kept):
                each = two_clocks.a_round(number, 5.0 * math.exp(rng.gauss(0, 0.02)), 4.0)
                copy["rounds"].append(each | {"profiled": None})
            copy.update(status="ok", reason=None)
        judging.refresh(made, {rung["name"]: rung["recipe"] for rung in made["rungs"]})
        made["complete"] = kept == 4
        return made

    def run(*arguments: str, kept: int = 4) -> tuple[Any, dict[str, Any]]:
        monkeypatch.setattr(measure, "_generations", functools.partial(generations, kept=kept))
        where = ["-w", str(path), "--device", "cpu", "--out", str(out)]
        said = CliRunner().invoke(cli.main, ["noise", *arguments, *where])
        files = [*out.glob("*.json")] if out.exists() else []
        return said, json.loads(files[0].read_text()) if files else {}

    return run


def test_the_result_is_stored_and_accepted(command: Callable[..., Any]) -> None:
    said, found = command("--lock-clocks")
    assert said.exit_code == 0, said.output
    assert validate.check(found) is None
    assert found["rung"] == "set_to_none" and found["gpu_time"] is None
    assert found["clocks"] == {
        "asked": True,
        "locked_mhz": None,
        "reason": "no GPU whose clock could be locked",
    }
    assert "a change is seen here from" in said.output and "limited by host" in said.output


@pytest.mark.exhaustive
def test_the_command_with_the_real_engine(tmp_path: Path, kept_servers: None) -> None:
    path, out = tmp_path / "least.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(LEAST))
    asked = ["noise", "baseline", "-w", str(path), "--device", "cpu", "--out", str(out), "--minutes", "0.01"]
    said = CliRunner().invoke(cli.main, asked)
    assert said.exit_code == 0, said.output
    (file,) = out.glob("*.json")
    found = json.loads(file.read_text())
    assert validate.check(found) is None and found["wall"]["generations"] == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found["wall"].update(resolution=0.0001), "wall.resolution"),
        (lambda found: found["limits"].pop(), "limits"),
        (lambda found: found.update(rung="baseline"), "its rungs are not baseline alone"),
        (lambda found: found["run"].update(baseline="nothing"), "run: "),
        (lambda found: found["protocol"].update(notes=[]), "protocol.notes"),
        (lambda found: found["run"]["machine"].update(cores=99), "of another machine"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    change: Any, words: str, command: Callable[..., Any]
) -> None:
    _, found = command("channels_last")
    change(found)
    assert words in (validate.check(found) or "")


def test_an_interrupt_keeps_what_there_is(command: Callable[..., Any]) -> None:
    said, found = command("baseline", kept=2)
    assert said.exit_code == 130 and not found["complete"] and "nothing is known yet" in said.output
    assert validate.check(found) is None and build(Result, found).wall.resolution is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "ladder article has no rung 'nonsense'"),
        (["cuda_graphs"], "cannot run here"),
        (["--minutes", "0"], "--minutes"),
    ],
)
def test_an_impossible_request_is_one_line(
    arguments: list[str], words: str, command: Callable[..., Any]
) -> None:
    said, found = command(*arguments)
    assert said.exit_code == 2 and words in said.output and "Traceback" not in said.output and not found


def test_a_clock_is_locked_after_another_run_on_the_gpu_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    @contextlib.contextmanager
    def waited(key: str | None, on_wait: Callable[[], None]) -> Iterator[None]:
        on_wait()
        done.append(f"waited for {key}")
        yield

    @contextlib.contextmanager
    def locked(*_: Any) -> Iterator[clocks.Locked]:
        done.append("locked")
        yield clocks.Locked(1485, None)

    monkeypatch.setattr(measure, "device_lock", waited)
    monkeypatch.setattr(measure.clocks, "locked", locked)
    monkeypatch.setattr(measure.system, "device_key", lambda device: "the GPU")
    monkeypatch.setattr(measure, "_generations", lambda *_: {"seen": 1})
    monkeypatch.setattr(measure, "new_result", lambda plan, run, held, seconds: held)
    plan = measure.Plan("tiny", {}, None, [], "cpu", 1.0, lock=True)  # type: ignore[arg-type]
    held = measure.measure(plan, None, done.append)
    assert done == [{"event": "waiting"}, "waited for the GPU", "locked"] and held.locked_mhz == 1485  # type: ignore[attr-defined]
    done.clear()
    measure.measure(replace(plan, lock=False), None, done.append)
    assert done == ["locked"]
