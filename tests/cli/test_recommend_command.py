"""`ladder recommend` from outside: whose result it reads, what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ladder.cli import stored as command
from ladder.engine import run as measure
from ladder.machine import system
from ladder.plan import catalog
from ladder.results import ranking
from tests.support import made_up, recipes, two_clocks
from tests.support.commands import refused, succeed
from tests.support.typed import write_run

ROOT = Path(__file__).resolve().parents[2]
Plain = dict[str, Any]
HOST = {"cpu": "Intel(R) Xeon(R) Platinum 8480C", "cores": 16}  # of made-up results


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of stored results, empty; this machine is the made-up results' H200. Measuring fails the test."""

    def measured(*_: object, **__: object) -> None:
        raise AssertionError("recommend measured something")

    folder = tmp_path / "results"
    monkeypatch.setattr(command, "RESULTS", folder)
    monkeypatch.setattr(measure, "run_ladder", measured)
    monkeypatch.setattr(system, "probe_gpu", measured)
    this_machine(monkeypatch, "nvidia-h200")
    return folder


def this_machine(monkeypatch: pytest.MonkeyPatch, name: str, cores: int = 16) -> None:
    monkeypatch.setattr(ranking, "machines_here", lambda: [name, "some-cpu"])
    monkeypatch.setattr(system, "cpu_name", lambda: HOST["cpu"])
    monkeypatch.setattr(system, "usable_cores", lambda: cores)


def put(folder: Path, made: Plain, file: str = "a.json", **machine: Any) -> Path:
    made["machine"] |= machine
    path = folder / made["machine"]["name"] / file
    write_run(path, made)
    return path


def a_run(**more: Any) -> Plain:
    return recipes.given(two_clocks.run()) | more


def first(*arguments: object) -> str:
    return succeed("recommend", *arguments).stdout.splitlines()[0]


def test_the_newest_result_of_this_machine_that_may_be_quoted(stored: Path) -> None:
    put(stored, a_run())
    quick = a_run(started="2026-11-22T00:00:00+00:00")
    quick["protocol"]["quick"] = True
    put(stored, quick, "quick.json")
    newer = a_run(started="2026-11-23T00:00:00+00:00")
    put(stored, newer, "b.json", name="nvidia-x", gpu="NVIDIA X")
    said = succeed("recommend").stdout
    assert said.startswith("for this machine, NVIDIA H200, from its own results\n")
    assert "nvidia-h200/a.json" in said and "not to be quoted" not in said


def test_the_same_gpu_in_another_host_then_any_gpu_is_named(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = made_up.cpu_run() | {"started": "2026-11-24T00:00:00+00:00"}
    put(stored, cpu)
    this_machine(monkeypatch, "nvidia-h100")
    said = "no result of this machine (nvidia-h100) yet: this is of "
    assert first() == said + "Intel(R) Xeon(R) Processor @ 2.60GHz"
    quick = a_run()
    quick["protocol"]["quick"] = True
    put(stored, quick)  # a GPU's stands before a CPU's, whatever may be quoted
    assert first() == said + "NVIDIA H200"
    this_machine(monkeypatch, "nvidia-h200", cores=8)
    assert first().startswith("no result of this machine yet: this is of NVIDIA H200 in another host")
    this_machine(monkeypatch, "nvidia-h200")
    assert first() == "for this machine, NVIDIA H200, from its own results"
    path = put(stored, a_run(), "c.json", name="nvidia-x", gpu="NVIDIA X")
    assert first(path) == "for NVIDIA X, from the file that you named"


def test_a_workload_is_told_by_its_name_and_its_fields(stored: Path, tmp_path: Path) -> None:
    _, fields = catalog.load_workload("article")
    put(stored, a_run(workload={**fields, "name": "article", "data": None}))
    newer = a_run(
        workload={"name": "mine", "resolution": 32, "batch": 4, "data": None},
        started="2026-11-22T00:00:00+00:00",
    )
    put(stored, newer, "mine.json")
    assert "\nmine: 32x32" in succeed("recommend").stdout
    assert "\narticle: 256x256" in succeed("recommend", "-w", "article").stdout
    assert refused("recommend", "-w", "tiny") == (
        "ladder: no stored result of workload tiny: `ladder run -w tiny` measures this machine"
    )
    (tmp_path / "mine.yaml").write_text("resolution: 64\nchannel_base: 1024\nbatch: 4\n")
    assert "no stored result of workload mine" in refused("recommend", "-w", tmp_path / "mine.yaml")


def test_the_leave_one_out_run_of_the_same_series_joins_and_goes_on_here_alone(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(stored, a_run())
    top = recipes.given(two_clocks.run(mode="leave-one-out"))
    for rung in top["rungs"][1:]:
        for number, each in enumerate(rung["rounds"]):
            factor = 1 + 0.9 * number
            each["samples_ms"] = [ms * factor for ms in each["samples_ms"]]
            for cycle in each["profiled"]:
                cycle.update(gpu_ms=cycle["gpu_ms"] * factor, wall_ms=cycle["wall_ms"] * factor)
    put(stored, top, "top.json")
    said = succeed("recommend").stdout
    assert "leave-one-out: " in said and "leave-one-out: none" not in said
    assert "nvidia-h200/top.json --budget 20`" in said and "bf16" in said
    this_machine(monkeypatch, "nvidia-h100")
    other = succeed("recommend").stdout
    assert "--resume" not in other and "decide: `ladder run -w article --mode leave-one-out`" in other


def test_the_recipe_is_a_file_that_a_training_takes(stored: Path, tmp_path: Path) -> None:
    put(stored, a_run())
    path = tmp_path / "new" / "best.yaml"
    said = succeed("recommend", "--recipe", path, "--markdown", tmp_path / "a.md")
    assert catalog.load_recipe(str(path), []) == recipes.of(list(made_up.H200))
    assert path.read_text().startswith(
        "# The recipe that `ladder recommend` gives: for this machine, NVIDIA H200"
    )
    assert said.stdout.splitlines()[-2:] == [str(path), str(tmp_path / "a.md")]
    page = (tmp_path / "a.md").read_text()
    assert (
        r"| bf16 | ADOPT | GPU, cuda\_graphs ends the waiting | 1.26x faster |" in page
        and "- bf16: ADOPT: the GPU's work is 1.26x faster" in page
    )


def test_json_says_the_same(stored: Path) -> None:
    put(stored, a_run())
    said = succeed("recommend", "--json", "--price", "2.5/h")
    found = json.loads(said.stdout)
    assert found["from"].startswith("for this machine") and found["images"] == 25_000_000
    rung = next(each for each in found["rungs"] if each["rung"] == "cuda_graphs")
    assert rung["advice"] == "ADOPT" and rung["clock"] == "step" and rung["in_recipe"]
    assert rung["saved_ms"] == pytest.approx(138.0 - 75.0)
    assert found["baseline"]["money"] == pytest.approx(160 / 8 * 25e6 / 3.6e6 * 2.5)
    assert found["recipe"]["cuda_graphs"] is True and found["recipe_rungs"] == list(made_up.H200)


def test_a_file_and_a_workload_and_a_solo_run_and_no_result_are_refused(stored: Path) -> None:
    assert refused("recommend") == "ladder: no stored result: `ladder run` measures this machine"
    path = put(stored, a_run())
    assert "leave out --workload" in refused("recommend", path, "-w", "article")
    assert "would be overwritten" in refused("recommend", path, "--markdown", path)
    solo = a_run()
    solo["protocol"]["mode"] = "solo"
    assert "a run of --mode solo" in refused("recommend", put(stored, solo, "solo.json"))
