"""`ladder noise`: what two copies of one rung say, from made-up rounds, and how it measures."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from msgspec import structs

from ladder.cli import main as cli
from ladder.core.job import Job
from ladder.core.records import read_record
from ladder.engine import run as engine
from ladder.machine import nvml, system
from ladder.publish.validation import validate
from ladder.results import judging, loading
from ladder.results.file import Round
from ladder.studies import frame, noise
from ladder.studies.noise import CLOCKS, GPU, HOST, NEIGHBOURS, NOTHING, STUDY, WALL, Clocks, Copy
from tests.studies.test_contract import read
from tests.support import servers, two_clocks
from tests.support.fake_runs import FAKE, Ladder, Planned
from tests.support.small import LEAST

kept_servers = servers.kept_servers
KNOWN = {"state": "known", "polls": 20, "tenancy": "alone", "sm_mhz": 1980.0, "reasons": []}


def with_rounds(rounds: tuple[list[dict[str, Any]], list[dict[str, Any]]], **more: Any) -> noise.File:
    """Return the golden's file with these rounds of both copies."""
    _, file = read("noise")
    copies = [Copy(status="ok", rounds=[read_record(Round, each) for each in rows]) for rows in rounds]
    (key,) = file.cases
    observed = msgspec.structs.replace(file.observed[key], rung=copies[0], twin=copies[1], **more)
    return msgspec.structs.replace(file, observed={key: observed})


def file_of(of_wall: float, of_gpu: float, generations: int = 8, **more: Any) -> noise.File:
    """A file of processes that scatter by these shares. `more`: of each round, by number."""
    rng = random.Random(5)
    copies: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for rows in copies:
        for number in range(generations):
            ms = 61.0 * math.exp(rng.gauss(0, of_wall)), 60.0 * math.exp(rng.gauss(0, of_gpu))
            each = two_clocks.a_round(number, *ms) | {"gpu": dict(KNOWN), "others_cpu": 0.0}
            for key, value in more.items():
                each[key] = value(number) if callable(value) else value
            rows.append(each)
    return with_rounds(copies)


def limits_of(file: noise.File) -> dict[str, str]:
    return {each.clock: each.by for each in STUDY.derive(file).limits}


def test_each_clock_says_which_change_it_can_show() -> None:
    derived = STUDY.derive(file_of(0.02, 0.001))
    wall, gpu = derived.wall, derived.gpu_time
    assert wall.resolution > 5 * gpu.resolution > 0
    assert wall.between == pytest.approx(0.02, rel=0.5) and wall.generations == 8
    assert gpu.between == pytest.approx(0.001, rel=0.5) and gpu.inside == 0


def test_generations_that_agree_by_chance_do_not_hide_how_the_cycles_scatter() -> None:
    """Three generations whose two copies differ by a thousandth, of cycles that differ by a tenth."""
    copies: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for sign, rows in zip((1, -1), copies, strict=True):
        for number in range(3):
            apart = sign * 0.001 * (number - 1)
            samples = [61 * math.exp(apart + sign * x) for x in (-0.05, 0, 0.05)]
            rows.append({"round": number, "passes": [0, 1, 2], "samples_ms": samples})
    derived = STUDY.derive(with_rounds(copies))
    wall = derived.wall
    assert wall.between == pytest.approx(0.0014, rel=0.05)
    assert all(each.floor < 0.01 for each in derived.run.noise.values())
    # t of six, sd / sqrt(3 cycles x 3 generations)
    assert wall.floor == pytest.approx(2.447 * 0.1 / 3, rel=0.01)
    assert wall.resolution == pytest.approx(2 * wall.floor)


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
    assert limits_of(file_of(0.02, 0.001, **more)) == limits


def test_a_wall_time_as_steady_as_gpu_time_is_limited_as_that_is() -> None:
    assert limits_of(file_of(0.002, 0.002, gpu=other_clock)) == {WALL: CLOCKS, GPU: CLOCKS}


def test_two_generations_say_nothing_yet() -> None:
    file = file_of(0.02, 0.001, 2)
    assert STUDY.derive(file).wall.resolution is None and "nothing is known yet" in STUDY.summarize(file)[1]
    assert any("fewer than three generations" in line for line in STUDY.list_cautions(file))


def test_rounds_that_no_genuine_machine_makes_are_refused() -> None:
    fast = file_of(0.0, 0.0)
    (key,) = fast.cases
    for change, words in (
        ({"samples_ms": [0.001], "passes": [0], "event_ms": None}, "faster than"),
        ({"passes": [0] * 9}, "passes or events are not those of its samples"),
    ):
        copy = fast.observed[key].rung
        rounds = [msgspec.structs.replace(each, **change) for each in copy.rounds]
        changed = msgspec.structs.replace(
            fast.observed[key], rung=msgspec.structs.replace(copy, rounds=rounds)
        )
        file = msgspec.structs.replace(fast, observed={key: changed})
        assert words in (frame.find_problem(STUDY, file) or ""), words


# --- measuring --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spent_s", "number"), [(30.0, 12), (120.0, 3), (300.0, 3), (0.001, noise.MOST), (39.0, 9)]
)
def test_generations_fit_into_the_minutes(spent_s: float, number: int) -> None:
    assert noise.fit_generations(2.0, spent_s) == number


def test_the_engine_makes_three_generations_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of a fake step, in processes of their own; the minutes leave room for two generations more."""
    real, rounds = engine.run_ladder, []

    def run_ladder(job: Any, *more: Any) -> Any:
        rounds.append(job.options.rounds)
        options = dataclasses.replace(job.options, code=FAKE, torch=False)
        return real(dataclasses.replace(job, options=options), *more)

    planned = [Planned("baseline", {"name": "baseline", "sleep": 0.001})]
    monkeypatch.setattr(engine, "run_ladder", run_ladder)
    monkeypatch.setattr(noise, "fit_generations", lambda minutes, spent_s: 5)
    monkeypatch.setattr(noise, "plan_rung", lambda job, rung: (Ladder(), planned))
    options = noise.Options(rung="baseline", minutes=1.0)
    monkeypatch.setattr(loading, "find_problem", lambda run: None)
    work, facts = {"batch": 8, "data": None}, system.describe_machine("cpu")
    job = Job("cpu", "fake", work, None, facts, options, tmp_path)
    run = noise.run_twice(job, "baseline", tmp_path, lambda event: None)  # type: ignore[arg-type]
    assert rounds == [3, 5] and judging.derive_result(run).complete
    assert [len(copy.rounds) for copy in (run.rungs[0], run.twins[0])] == [5, 5]
    longer = structs.replace(run, protocol=structs.replace(run.protocol, rounds=9))
    assert noise.read_run(longer, Clocks(asked=False)).stopped


@pytest.mark.exhaustive
def test_the_command_with_the_real_engine(tmp_path: Path, kept_servers: None) -> None:
    path, out = tmp_path / "least.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(LEAST))
    arguments = ["baseline", "-w", str(path), "--device", "cpu", "--out", str(out), "--minutes", "0.01"]
    result = CliRunner().invoke(cli.main, ["noise", *arguments])
    assert result.exit_code == 0, result.output
    (file,) = out.glob("*.json")
    assert validate.problem_of(file) is None
    assert STUDY.derive(frame.read_file(STUDY, file)).wall.generations == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "ladder article has no rung 'nonsense'"),
        (["cuda_graphs"], "cannot run here"),
        (["--minutes", "0"], "--minutes"),
    ],
)
def test_an_impossible_request_is_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    path = tmp_path / "least.yaml"
    path.write_text(yaml.safe_dump(LEAST))
    common = ["-w", str(path), "--device", "cpu", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(cli.main, ["noise", *arguments, *common])
    assert result.exit_code == 2 and words in result.output and "Traceback" not in result.output


@pytest.mark.parametrize("lock", [True, False])
def test_a_clock_is_locked_after_another_run_on_the_gpu_has_ended(
    lock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []

    @contextlib.contextmanager
    def wait(key: str | None, on_wait: Callable[[], None]) -> Iterator[None]:
        done.append(f"waited for {key}")
        yield

    @contextlib.contextmanager
    def hold(*_: Any) -> Iterator[nvml.ClockLock]:
        done.append("locked")
        yield nvml.ClockLock(1485, None)

    monkeypatch.setattr(noise, "device_lock", wait)
    monkeypatch.setattr(nvml, "lock_clock", hold)
    monkeypatch.setattr(system, "device_key", lambda device: "the GPU")
    monkeypatch.setattr(noise, "run_twice", lambda *_: {})
    monkeypatch.setattr(noise, "read_run", lambda run, held: held)
    options = noise.Options(rung="baseline", lock_clocks=lock)
    session = SimpleNamespace(job=SimpleNamespace(options=options, device="cpu", quiet=True))
    held = STUDY.observe(session, "baseline", None)  # type: ignore[arg-type]
    assert done == [*["waited for the GPU"] * lock, "locked"] and held.locked_mhz == 1485  # type: ignore[attr-defined]
