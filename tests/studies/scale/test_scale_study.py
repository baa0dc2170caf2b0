"""`ladder scale`: points on ranks of the CPU, what follows from them, and what a file of them may not say."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from ladder.base.errors import UserError
from ladder.base.records import build, plain
from ladder.cli import main as cli
from ladder.cli.scale import _plan, numbers, write
from ladder.engine.groups import Group
from ladder.engine.pool import Pool, WorkerFailure
from ladder.machine import system
from ladder.plan import needs
from ladder.publish.validation import kinds
from ladder.studies.scale import chart, measure, proving, record, report, ways
from tests.support import committed, made_up_scaled, servers
from tests.support.small import LITTLE
from tests.support.typed import problem_of

kept_servers = servers.kept_servers
H200_MACHINE = json.loads(committed.file("results/precision/nvidia-h200.json").read_text())["machine"]
ABLE = needs.possible(dict.fromkeys(needs.NEEDS), {"norm": "demod"})


@pytest.fixture
def result() -> dict[str, Any]:
    return made_up_scaled.of_scaled(H200_MACHINE)


def run(folder: Path, *arguments: str) -> Result:
    path = folder / "little.yaml"
    path.write_text(yaml.safe_dump(LITTLE))
    asked = ["scale", "-w", str(path), "--device", "cpu", "--out", str(folder / "out"), *arguments]
    return CliRunner().invoke(cli.main, asked)


def written(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "out").glob("*.json")
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, kept_servers: None) -> tuple[Result, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("scale")
    asked = ("flat", "top", "--gpus", "1,2", "--scaling", "weak", "--generations", "1", "--visits", "2")
    return run(folder, *asked), written(folder)


def test_ranks_on_a_cpu_are_measured_proved_and_accepted(measured):
    said, found = measured
    assert said.exit_code == 0, said.output
    points = {(p["way"], p["gpus"]): p for p in found["points"]}
    assert [points["flat", n]["batch"] for n in (1, 2)] == [4, 8] and found["complete"]
    for n in (1, 2):
        assert [len(each["samples_ms"]) for each in points["flat", n]["runs"]] == [2]
    assert points["flat", 1]["efficiency"] == 1.0 and 0 < points["flat", 2]["efficiency"] < 2
    assert "reduce" not in points["flat", 1]["recipe"] and points["flat", 2]["recipe"]["ranks"] == 2
    assert points["top", 2]["status"] == "n/a" and "CUDA" in points["top", 2]["reason"]
    (proof,) = found["proofs"]
    assert (proof["way"], proof["status"], proof["parity"], proof["batch"]) == ("flat", "ok", "ok", 8)
    assert any(line.startswith("MB all-reduced: G_main 0.0") for line in proof["lines"])
    assert problem_of(found) is None and "not to be quoted" in said.output


def test_runs_of_other_ways_do_not_replace_each_other(measured, tmp_path):
    made = build(record.Result, measured[1])
    name = f"{made.machine.name}-{made.workload['name']}"
    assert write(made, tmp_path)[0].name == f"{name}-flat-top-weak.json"
    every = [replace(made.points[0], way=way) for way in ways.WAYS]
    assert write(replace(made, points=every), tmp_path)[0].name == f"{name}-weak.json"


def test_a_rank_that_dies_takes_its_point_out_and_the_others_go_on(tmp_path, monkeypatch, kept_servers):
    real = Group.cycle

    def cycle(group: Group) -> float:
        if group.ranks == 2:
            os.kill(group.workers[1].pid, signal.SIGKILL)
        return real(group)

    monkeypatch.setattr(Group, "cycle", cycle)
    asked = (
        "flat",
        "--gpus",
        "1,2",
        "--scaling",
        "strong",
        "--total",
        "8",
        "--generations",
        "1",
        "--visits",
        "1",
    )
    said, found = run(tmp_path, *asked, "--no-proof"), written(tmp_path)
    assert said.exit_code == 1 and found["complete"]
    alone, both = found["points"]
    assert alone["status"] == "ok" and alone["batch"] == both["batch"] == 8
    assert both["status"] == "failed" and both["reason"].startswith(
        "rank 1 of 2: visit: worker killed by SIGKILL"
    )
    assert "parity and receipts" not in str(found["protocol"]["notes"])  # only of ways that have a time


ONCE = ("flat", "--gpus", "1,2", "--scaling", "weak", "--generations", "1", "--visits", "1", "--no-proof")


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_run_that_is_ended_while_groups_prepare_calls_none_of_them_failed(
    tmp_path, monkeypatch, kept_servers
):
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure.futures, "wait", interrupted)
    said, found = run(tmp_path, *ONCE), written(tmp_path)
    assert said.exit_code == 130 and not found["complete"]
    assert [(p["status"], p["reason"]) for p in found["points"]] == [("n/a", "not measured")] * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "no way 'nonsense'"),
        (["--gpus", "two"], "--gpus 'two': give whole numbers from 1 to 64"),
        (["--gpus", "0,2"], "--gpus '0,2': give whole numbers from 1 to 64"),
        (["flat", "--total", "6"], "batch must be a multiple of mbstd_group"),
        (["top"], "none of these ways runs here"),
    ],
)
def test_what_cannot_be_asked_is_one_line(arguments, words, tmp_path):
    said = run(tmp_path, *arguments)
    assert said.exit_code == 2 and words in said.output and "Traceback" not in said.output


def test_the_numbers_of_gpus_are_powers_of_two_up_to_all_of_them():
    assert [numbers(None, n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
    assert numbers("2,1", None) == [1, 2] and numbers(None, None) == [1, 2]
    with pytest.raises(UserError, match="torch sees 2 here"):
        numbers("1,4", 2)


# Ways


def test_ways_stand_on_their_rungs_and_alone_they_reduce_nothing():
    found = {way.name: way for way in ways.load((), ABLE)}
    assert list(found) == list(ways.WAYS)
    assert found["ddp"].on(2) == found["ddp"].on(1) | {"reduce": "ddp", "ranks": 2}
    assert found["ddp"].on(1) == found["flat"].on(1)  # R
    assert found["captured"].on(4)["whole_step_graph"] and not found["flat"].on(4).get("cuda_graphs")
    top, eager = found["top"].on(2), found["flat-top"].on(2)
    assert {k for k in top if top[k] != eager[k]} == {"cuda_graphs", "whole_step_graph"}
    assert found["data_parallel"].on(2) == {"channels_last": True, "instance_norm": "var_mean", "precision": "bf16",
                                            "reduce": "data_parallel", "ranks": 2}  # fmt: skip


def test_a_batch_that_so_many_gpus_cannot_share_is_not_applicable():
    workload = LITTLE | {"norm": "demod"}
    points = ways.points(ways.load(("flat",), ABLE), workload, [1, 2, 8], ("strong",), 16)
    assert [point.problem is None for point in points] == [True, True, False]
    assert "cuts groups" in (points[2].problem or "")
    assert [
        point.processes
        for point in ways.points(ways.load(("data_parallel",), ABLE), workload, [1, 2], ("weak",), 0)
    ] == [1, 1]


def trained(way: str, device: str, folder: Path) -> dict[str, Any]:
    """Train a way on two GPUs, or two ranks of a CPU, as it is proved and timed. Return the receipt of its rung."""
    path = folder / "little.yaml"
    path.write_text(yaml.safe_dump(LITTLE))
    plan, _ = _plan((way,), str(path), device, [2], ("weak",), None, None, True)
    (asked,) = plan.points
    with Pool() as pool:
        group = Group(pool, asked.processes, device)
        try:
            group.build(plan.workload | {"batch": asked.batch}, asked.way.on(2), 0)
            group.call("prepare")
            group.call("begin")
            assert group.cycle() > 0
            group.call("finish", main=False, lazy=False)
            group.call("profile", part="load")
            if device == "cuda":
                found = measure.of_profiles(group.call("profile", part="record"))
                assert found["gpu_ms"] > 0 and (asked.processes == 1 or found["comm_ms"] > 0)
            group.call("trace")
            rung = ways.WAYS[way][1]
            rung = {"flat-top": "flat_reduce", "top": "captured_reduce"}.get(way, rung)
            return [each["receipts"][rung] for each in group.call("receipts", rungs=[rung])][-1]
        finally:
            group.close()


@pytest.mark.gpu
@pytest.mark.parametrize("way", ways.WAYS)
def test_every_way_trains_on_two_gpus(way, tmp_path, kept_servers):
    """Seconds for each way. NCCL, captures and threads of nn.DataParallel have no stand-in on a CPU."""
    if len(system.gpu_uuids()) < 2:
        pytest.skip("needs two GPUs")
    found = trained(way, "cuda", tmp_path)
    # All gradients of so small a network are one bucket of DistributedDataParallel, which nothing can hide.
    assert found["engaged"] or way == "ddp", found["lines"]


# Figures that follow


def test_efficiency_is_images_a_second_and_gpu_beside_the_fewest_gpus(result):
    points = {(p["way"], p["scaling"], p["gpus"]): p for p in result["points"]}
    for n in (2, 4, 8):
        exposed = made_up_scaled.COMMUNICATION_MS * 2 * (n - 1) / n
        weak = points["top", "weak", n]
        assert weak["batch"] == 32 * n and weak["efficiency"] == pytest.approx(50 / (50 + exposed))
        assert weak["low"] <= weak["efficiency"] <= weak["high"] and weak["exposed_ms"] == exposed
        strong = points["top", "strong", n]
        assert strong["batch"] == 32 and strong["efficiency"] == pytest.approx(50 / n / (50 / n + exposed))
    assert points["top", "weak", 1]["low"] is None
    text, page = (make(build(record.Result, result)) for make in (report.text, report.markdown))
    assert "95.4%" in text and "top on 2 GPUs, batch 8: parity ok, engaged" in text and "simulated" in page


def test_ranks_of_a_cpu_are_not_called_gpus(result):
    result["machine"]["gpu"] = None
    text, page = (make(build(record.Result, result)) for make in (report.text, report.markdown))
    assert "top on 2 ranks, batch 8: " in text and text.split()[2] == "ranks"
    assert page.startswith("# Several ranks: ") and "| GPUs |" not in page


def test_several_gpus_beside_themselves_have_no_efficiency(result):
    several = result | {"points": [p for p in result["points"] if p["gpus"] > 1]}
    made = record.derive(build(record.Result, several))
    shown = {row[:3]: row[6] for row in report.cells(made)}
    assert shown["top", "weak", "2"] == "" and shown["top", "weak", "4"].startswith("9")
    assert "which has no reduction" not in report.markdown(made)
    assert "which has no reduction" in report.markdown(build(record.Result, result))
    assert "generations are paired" in report.markdown(made)


def change(result: dict[str, Any], what: str) -> None:
    point = result["points"][1]
    if what == "the efficiency":
        point["efficiency"] *= 1.1
    elif what == "a sample":
        point["runs"][0]["samples_ms"] = [1.5, 90.0]
    elif what == "no runs":
        point["runs"] = []
    elif what == "a generation twice":
        point["runs"][1]["generation"] = 0
    elif what == "the speed":
        for run_ in point["runs"]:
            run_["samples_ms"] = [ms / 1000 for ms in run_["samples_ms"]]
        result.update(plain(record.derive(build(record.Result, result))))
    elif what == "a note":
        result["complete"] = False
    elif what == "a proof":
        result["proofs"] = []


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("the efficiency", "efficiency is not what its runs say"),
        ("a sample", "is not what its runs say"),
        ("no runs", "ok without a run"),
        ("a generation twice", "a generation is there twice"),
        ("the speed", "faster than these GPUs can compute"),
        ("a note", "interrupted"),
        ("a proof", "parity and receipts of ddp, top were not seen here"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(what, words, result):
    assert problem_of(result) is None and kinds.marks(result) == result["protocol"]["notes"]
    change(result, what)
    assert words in (problem_of(result) or "")


def test_the_chart_is_the_same_for_the_same_result_and_says_what_is_simulated(result):
    def drawn(kind: str = "svg") -> bytes:
        return chart.render(build(record.Result, result), kind)

    assert drawn() == drawn() and drawn("png")[:4] == b"\x89PNG"
    whole = drawn()
    result["protocol"]["notes"] = []
    assert drawn() != whole
    result["points"] = []
    assert drawn()


def test_several_gpus_alone_have_no_efficiency_in_table_or_chart(result):
    """The fewest GPUs of a way are 100% of themselves: a point at 1.0 would read as perfect scaling."""

    def drawn() -> int:
        return len(chart.figure(build(record.Result, result)).axes[0].containers)

    assert drawn()
    result["points"] = [each for each in result["points"] if each["gpus"] == 4]
    found = record.derive(build(record.Result, result))
    assert all(point.efficiency == 1.0 for point in found.points if point.runs)
    result["points"] = plain(found)["points"]
    assert not drawn()
    assert {row[6] for row in report.cells(found)} == {""}


# Findings of several ranks


def test_a_way_is_proved_only_if_all_ranks_agree():
    good = {"verdict": "ok", "reason": None}
    bad = {"verdict": "failed: parity", "reason": "G_main loss: error 1, budget 0.1"}
    engaged = {"flat_reduce": {"engaged": True, "lines": ["ranks: 2"]}}
    off = {"flat_reduce": {"engaged": False, "lines": ["not engaged: ranks: 1"]}}
    assert proving.judged([good, good], [engaged, engaged], "flat")["status"] == "ok"
    assert proving.judged([good, bad], [engaged, engaged], "flat")["status"] == "failed: parity"
    found = proving.judged([good, good], [engaged, off], "flat")
    assert (found["status"], found["reason"]) == ("not engaged", "flat_reduce: ranks: 1")
    assert proving.judged([good], [engaged], "flat-top")["lines"] == ["ranks: 2"]


def test_communication_is_the_least_of_all_ranks_and_exposed_the_most():
    def seen(gpu: float, comm: float, exposed: float) -> dict[str, Any]:
        return {"cycles": [{"gpu_ms": gpu}], "communication": {"comm_ms": comm, "exposed_ms": exposed}}

    found = measure.of_profiles([seen(50, 1.5, 1.0), seen(51, 4.0, 3.5)])
    assert found == {"gpu_ms": 51, "comm_ms": 1.5, "exposed_ms": 3.5}
    assert set(measure.of_profiles([{"cycles": None}]).values()) == {None}


class FullGroup:
    """A stand-in for a group on a GPU that holds one step at a time."""

    alive = 0

    def __init__(self, pool: Any, ranks: int, device: str) -> None:
        FullGroup.alive += 1
        self.pids: set[int] = set()
        self.open = True

    def build(self, *_: Any) -> None:
        if FullGroup.alive > 1:
            raise WorkerFailure("oom", "out of memory in build")

    def call(self, do: str, **_: Any) -> list[dict[str, Any]]:
        return [{"peak_rss_bytes": 1, "cycles": None}]

    def cycle(self) -> float:
        return 0.01

    def close(self) -> None:
        FullGroup.alive -= self.open
        self.open = False

    kill = close


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(measure, "Group", FullGroup)
    monkeypatch.setattr(measure, "Pool", lambda: Pool(torch=False))
    FullGroup.alive = 0
    yield
    assert FullGroup.alive == 0


def test_groups_that_do_not_fit_together_are_measured_one_by_one(full):
    workload = LITTLE | {"norm": "demod", "data": None}
    asked = ways.points(ways.load(("flat",), ABLE), workload, [1, 2], ("weak",), 0)
    plan = measure.Plan("little", workload, asked, "cpu", generations=2, visits=1, proves=False)
    told: list[str] = []
    state = measure._State(plan, measure.new_result(plan, H200_MACHINE, None), told.append)
    assert len([*state.run()]) == 2 and [len(point.runs) for point in state.points] == [2, 2]
    assert told.count("not enough memory for all of them: one by one") == 2


def test_a_budget_begins_no_generation_that_would_end_after_it(full):
    workload = LITTLE | {"norm": "demod", "data": None}
    asked = ways.points(ways.load(("flat",), ABLE), workload, [1], ("weak",), 0)
    plan = measure.Plan("little", workload, asked, "cpu", generations=9, visits=1, proves=False, budget_s=0.0)
    told: list[str] = []
    state = measure._State(plan, measure.new_result(plan, H200_MACHINE, None), told.append)
    assert len([*state.run()]) == 1 and told[-1] == "the budget allows 1 of 9 generations"
    state.close()
