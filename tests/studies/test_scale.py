"""`ladder scale`: points on ranks of the CPU, their generations, and what follows from them."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal

import msgspec
import pytest
import yaml

from ladder.core.errors import UserError
from ladder.engine.groups import Group
from ladder.engine.pool import Pool, WorkerFailure
from ladder.machine import system
from ladder.plan import needs
from ladder.receipts.traces import describe_lateness, list_collectives
from ladder.studies import frame
from ladder.studies.scale import STUDY, count_gpus, measure
from ladder.studies.scale.record import WAYS, derive_points, list_points, list_short
from tests.support import committed, made_up_scaled, servers
from tests.support.commands import call
from tests.support.small import LITTLE

kept_servers = servers.kept_servers
MACHINE = json.loads(committed.file("results/ablation/nvidia-h200-article-full.json").read_text())["machine"]
ABLE = needs.join_capabilities(dict.fromkeys(needs.NEEDS), {"norm": "demod"})
LITTLE_DEMOD = LITTLE | {"norm": "demod"}
PROOF = "proof of top on 2"


@pytest.fixture
def data():
    return made_up_scaled.of_scaled(MACHINE)


def read(data):
    return frame.decode_file(STUDY, json.loads(json.dumps(data)))


def run(folder, *arguments):
    path = folder / "little.yaml"
    path.write_text(yaml.safe_dump(LITTLE))
    return call("scale", *arguments, "-w", path, "--device", "cpu", "--out", folder / "out")


def written(folder):
    (path,) = (folder / "out").glob("*.json")
    return path, frame.read_file(STUDY, path)


def list_generations(file):
    return {(each.way, each.gpus): [run.generation for run in each.runs] for each in derive_points(file)}


# --- ways and points --------------------------------------------------------------------------------------------------


def test_the_numbers_of_gpus_are_powers_of_two_up_to_all_of_them():
    assert [count_gpus(None, n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]
    assert count_gpus("2,1", None) == [1, 2] and count_gpus(None, None) == [1, 2]
    with pytest.raises(UserError, match="torch sees 2 here"):
        count_gpus("1,4", 2)


def test_ways_stand_on_their_rungs_and_alone_they_reduce_nothing():
    points = {(p.way, p.gpus): p.recipe for p in list_points((), ABLE, LITTLE_DEMOD, [1, 2], ("weak",), 0)}
    assert list(dict.fromkeys(way for way, _ in points)) == list(WAYS)
    assert points["ddp", 2] == points["ddp", 1] | {"reduce": "ddp", "ranks": 2}
    assert points["ddp", 1] == points["flat", 1]
    assert points["captured", 2]["whole_step_graph"] and not points["flat", 2].get("cuda_graphs")
    top, eager = points["top", 2], points["flat-top", 2]
    assert {k for k in top if top[k] != eager[k]} == {"cuda_graphs", "whole_step_graph"}
    assert points["data_parallel", 2] == {"channels_last": True, "instance_norm": "var_mean", "precision": "bf16",
                                          "reduce": "data_parallel", "ranks": 2}  # fmt: skip


def test_a_batch_that_so_many_gpus_cannot_share_is_not_applicable():
    points = list_points(("flat",), ABLE, LITTLE_DEMOD, [1, 2, 8], ("strong",), 16)
    assert [point.problem is None for point in points] == [True, True, False]
    assert "cuts groups" in points[2].problem
    parallel = list_points(("data_parallel",), ABLE, LITTLE_DEMOD, [1, 2], ("weak",), 0)
    assert [point.processes for point in parallel] == [1, 1]


@pytest.mark.parametrize(("cores", "sizes"), [(9, [3, 3]), (8, [1, 1, 2, 2]), (1, [1] * 6)])
def test_all_ways_of_a_scaling_are_alive_together_as_far_as_the_cores_go(cores, sizes):
    """Each way has three processes."""
    points = list_points(("top", "ddp", "flat"), ABLE, LITTLE_DEMOD, [1, 2], ("weak", "strong"), 8)
    cases = {case.key: case for case in points}
    shifts = measure.list_shifts(list(cases), cases, cores, random.Random(0))
    assert sorted(key for each in shifts for key in each) == sorted(cases)
    series = [{cases[key].series for key in each} for each in shifts]
    assert sorted(map(len, series)) == sizes
    assert all(len({scaling for _, scaling in each}) == 1 for each in series)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "no way 'nonsense'"),
        (["--gpus", "two"], "--gpus 'two': give whole numbers from 1 to 64"),
        (["--gpus", "0,2"], "--gpus '0,2': give whole numbers from 1 to 64"),
        (["flat", "--total", "6"], "batch must be a multiple of mbstd_group"),
        (["flat", "--total", "8", "--scaling", "weak"], "--total is for --scaling strong"),
        (["top"], "none of these ways runs here"),
    ],
)
def test_a_bad_request_is_one_line(arguments, words, tmp_path):
    result = run(tmp_path, *arguments)
    assert result.exit_code == 2 and words in result.output and "Traceback" not in result.output


# --- figures ----------------------------------------------------------------------------------------------------------


def test_efficiency_is_images_a_second_and_gpu_beside_the_fewest_gpus(data):
    file = read(data)
    points = {(*point.series, point.gpus): point for point in derive_points(file)}
    for n in (2, 4, 8):
        exposed = made_up_scaled.COMMUNICATION_MS * 2 * (n - 1) / n
        weak = points["top", "weak", n]
        assert weak.batch == 32 * n and weak.efficiency == pytest.approx(50 / (50 + exposed))
        assert weak.low <= weak.efficiency <= weak.high and weak.exposed_ms == exposed
        strong = points["top", "strong", n]
        assert strong.batch == 32 and strong.efficiency == pytest.approx(50 / n / (50 / n + exposed))
    assert points["top", "weak", 1].low is None


def test_several_gpus_beside_themselves_have_no_efficiency(data):
    """The fewest GPUs of a way are 100% of themselves: a point at 1.0 would read as perfect scaling."""
    file = read(data)
    file = msgspec.structs.replace(file, cases={k: case for k, case in file.cases.items() if case.gpus > 1})
    column = {tuple(row[:3]): row[6] for row in next(iter(STUDY.list_tables(file))).rows}
    assert column["top", "weak", 2] is None and column["top", "weak", 4] > 0.9


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
US = 1000  # ns


def make_trace(begins, ends, work, clock):
    """Return the GPU events of a rank: its all-reduces and other kernels (name, begin, end), in us of its own clock."""
    kernels = [*((NCCL, *span) for span in zip(begins, ends, strict=True)), *work]
    return [(name, True, 7, clock + begin * US, clock + end * US) for name, begin, end in kernels]


class TracedGroup:
    """Two ranks after a profiled cycle of two all-reduces, each with a clock of its own.

    Rank 1 comes 700 us late to the first: its GPU has computed for 100 us of them. Rank 0 is 50 us late to the other.
    """

    TRACES = (
        make_trace([100, 1250], [850, 1300], [("conv", 0, 90), ("multi_tensor_apply", 1150, 1250)], 0),
        make_trace([800, 1200], [850, 1300], [("cudnn_fprop", 100, 200), ("gemm", 60, 100)], 10**9),
    )

    def __init__(self, ranks=2):
        self.ranks = ranks

    def record(self):
        return [{"cycles": None, "collectives": list_collectives(each)} for each in self.TRACES[: self.ranks]]

    def call(self, do, part, each):
        assert (do, part) == ("profile", "late")
        return [describe_lateness(trace, **own) for trace, own in zip(self.TRACES, each, strict=True)]


def test_waiting_and_transfer_stand_apart_and_the_late_rank_is_named_with_what_it_did(data):
    """A kernel of NCCL lasts from a rank's own coming to the end of all: 750 us here are 50 of transfer."""
    group = TracedGroup()
    seen = measure.find_waiting(group, group.record())
    ms = 1 / 16 / 1000  # of a step, for each us of a cycle
    assert seen["transfer_ms"] == pytest.approx((50 + 50) * ms)
    first, last = seen["late"]
    assert (first.rank, first.waited_ms, first.busiest) == (
        0,
        pytest.approx(50 * ms),
        "optimizer and foreach",
    )
    assert (last.rank, last.waited_ms, last.busiest) == (1, pytest.approx(700 * ms), "convolution, forward")
    assert first.idle_ms == 0 and last.idle_ms == pytest.approx(600 * ms)
    for run in point_of(data, "ddp, weak, 2")["runs"]:
        run |= {
            "transfer_ms": seen["transfer_ms"],
            "late": [msgspec.to_builtins(each) for each in seen["late"]],
        }
    file = read(data)
    assert list(STUDY.list_problems(file)) == []
    (row,) = next(t for t in STUDY.list_tables(file) if t.columns[4].title == "waiting ms").rows
    assert row[:3] == ["ddp", "weak", 2] and row[4] == pytest.approx(750 * ms)
    assert row[6] == "rank 1" and row[7] == pytest.approx(700 * ms)
    assert "86% idle" in row[8] and "convolution, forward" in row[8]
    whole = next(iter(STUDY.list_tables(file)))
    cells = {tuple(each[:3]): each[8:10] for each in whole.rows}
    assert cells["ddp", "weak", 2] == [None, None]  # as one figure, waiting would look like communication
    assert None not in cells["top", "weak", 2]  # older: shows what it did


def test_ranks_whose_collectives_do_not_match_and_one_rank_alone_have_no_split():
    replies = TracedGroup().record()
    replies[1]["collectives"].pop()
    assert measure.find_waiting(TracedGroup(), replies) == {}
    assert measure.find_waiting(TracedGroup(1), TracedGroup(1).record()) == {}
    assert measure.find_waiting(TracedGroup(), [{"cycles": None}] * 2) == {}  # without NCCL


def test_one_point_of_too_few_generations_is_named_with_its_gpus(data):
    data["observed"]["top, weak, 4"]["runs"].pop()
    points = [point for point in derive_points(read(data)) if point.scaling == "weak"]
    assert list_short(points) == ["top weak on 4"]
    short = next(point for point in points if point.series == ("top", "weak") and point.gpus == 4)
    assert short.efficiency is not None and short.low is None


def point_of(data, key="top, weak, 2"):
    return data["observed"][key]


LATE = {"rank": 0, "waited_ms": 2.0, "idle_ms": 1.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: point_of(data).update(runs=[]), "ok without a run"),
        (lambda data: point_of(data).update(status="failed"), "failed with a run"),
        (lambda data: point_of(data)["runs"][1].update(generation=0), "a generation is there twice"),
        (lambda data: point_of(data)["runs"][0].update(late=[LATE | {"idle_ms": 3.0}]), "idle 3 of 2 ms"),
        (lambda data: point_of(data)["runs"][0].update(late=[LATE | {"rank": 2}]), "rank 2 of 2"),
        (lambda data: point_of(data)["runs"][0].update(samples_ms=[0.05]), "faster than this machine can compute"),
        (lambda data: data["cases"]["top, weak, 2"].update(batch=256), "batch 256, expected 64"),
        (lambda data: data["cases"]["top, strong, 2"].update(batch=64), "more than one total batch"),
        (lambda data: data["cases"].update(again=data["cases"]["top, weak, 2"]), "there twice"),
        (lambda data: point_of(data)["runs"][0].update(samples_ms=[]), "samples_ms: a list of 0 is not"),
        (lambda data: data["options"].update(generations=10**9), "generations: 1000000000 is not"),
        (lambda data: point_of(data)["runs"][0].update(generation=10**9), "generation: 1000000000 is not"),
        (lambda data: point_of(data, PROOF)["parity"]["phases"]["G_main"]["loss"].update(nearest_error=1.0),
         "ok, and beyond the budgets of parity"),
    ],
)  # fmt: skip
def test_what_no_genuine_file_holds_is_refused(data, change, words):
    assert frame.list_cautions(STUDY, read(data)) == []
    change(data)
    with pytest.raises(UserError, match=words):
        read(data)


def test_a_way_that_was_not_proved_is_a_caution(data):
    for key in [key for key in data["cases"] if key.startswith("proof")]:
        del data["cases"][key], data["observed"][key]
    assert "parity and receipts of ddp, top were not seen here" in frame.list_cautions(STUDY, read(data))


# --- findings of several ranks ----------------------------------------------------------------------------------------


def test_a_way_is_proved_only_if_all_ranks_agree():
    good = {"verdict": "ok", "reason": None, "problems": []}
    problem = "G_main loss: error 1, budget 0.1"
    bad = {"verdict": "failed: parity", "reason": problem, "problems": [problem]}
    engaged = {"flat_reduce": {"engaged": True, "lines": ["ranks: 2"]}}
    off = {"flat_reduce": {"engaged": False, "lines": ["not engaged: ranks: 1"]}}
    assert measure.judge_ranks([good, good], [engaged, engaged], "flat").verdict == "ok"
    found = measure.judge_ranks([good, bad], [engaged, engaged], "flat")
    assert found.status == found.verdict == "failed: parity" and found.parity.problems == [problem]
    found = measure.judge_ranks([good, good], [engaged, off], "flat")
    assert (found.status, found.reason) == ("not engaged", "flat_reduce: ranks: 1")
    assert measure.judge_ranks([good], [engaged], "flat-top").lines == ["ranks: 2"]


def test_communication_is_the_least_of_all_ranks_and_exposed_the_most():
    def profile(gpu, comm, exposed):
        return {"cycles": [{"gpu_ms": gpu}], "communication": {"comm_ms": comm, "exposed_ms": exposed}}

    found = measure.find_communication([profile(50, 1.5, 1.0), profile(51, 4.0, 3.5)])
    assert found == {"gpu_ms": 51, "comm_ms": 1.5, "exposed_ms": 3.5}
    assert set(measure.find_communication([{"cycles": None}]).values()) == {None}


# --- real ranks -------------------------------------------------------------------------------------------------------


def test_ranks_on_a_cpu_are_measured_and_proved(tmp_path, kept_servers):
    arguments = ("flat", "top", "--gpus", "1,2", "--scaling", "weak", "--generations", "1", "--visits", "2")
    result = run(tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    path, file = written(tmp_path)
    points = {(point.way, point.gpus): point for point in derive_points(file)}
    assert [points["flat", n].batch for n in (1, 2)] == [4, 8] and file.is_complete
    assert all(len(each.samples_ms) == 2 for n in (1, 2) for each in points["flat", n].runs)
    assert points["flat", 1].efficiency == 1.0 and 0 < points["flat", 2].efficiency < 2
    assert "reduce" not in points["flat", 1].recipe and points["flat", 2].recipe["ranks"] == 2
    assert points["top", 2].status == "n/a" and "CUDA" in points["top", 2].reason
    (proof,) = STUDY.derive(file)["proofs"]
    assert [proof[key] for key in ("way", "status", "parity", "batch")] == ["flat", "ok", "ok", 8]
    assert any(line.startswith("MB all-reduced: G_main 0.0") for line in proof["lines"])
    assert "not to be quoted" in result.output and path.stem.endswith("-little-flat-top-weak")


def test_a_rank_that_dies_takes_its_point_out_and_the_others_go_on(tmp_path, monkeypatch, kept_servers):
    real = Group.cycle

    def cycle(group):
        if group.ranks == 2:
            os.kill(group.workers[1].pid, signal.SIGKILL)
        return real(group)

    monkeypatch.setattr(Group, "cycle", cycle)
    arguments = "flat --gpus 1,2 --scaling strong --total 8 --generations 1 --visits 1 --no-proof"
    result = run(tmp_path, *arguments.split())
    _, file = written(tmp_path)
    assert result.exit_code == 1 and file.is_complete
    alone, both = derive_points(file)
    assert alone.status == "ok" and alone.batch == both.batch == 8
    assert both.status == "failed" and both.reason.startswith("rank 1 of 2: visit: worker killed by SIGKILL")
    assert "parity and receipts" not in str(frame.list_cautions(STUDY, file))  # only of ways that have a time


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains_on_two_gpus(way, tmp_path, kept_servers):
    """Seconds for each way. NCCL, captures and threads of nn.DataParallel have no stand-in on a CPU."""
    if len(system.gpu_uuids()) < 2:
        pytest.skip("needs two GPUs")
    able = needs.join_capabilities(system.list_capabilities("cuda"), LITTLE_DEMOD)
    (case,) = list_points((way,), able, LITTLE_DEMOD, [2], ("weak",), 0)
    with Pool() as pool:
        group = Group(pool, case.processes, "cuda")
        try:
            group.build(LITTLE_DEMOD | {"batch": case.batch, "data": None}, case.recipe, 0)
            group.call("prepare")
            group.call("begin")
            assert group.cycle() > 0
            group.call("finish", main=False, lazy=False)
            group.call("profile", part="load")
            profiled = group.call("profile", part="record")
            found = measure.find_communication(profiled) | measure.find_waiting(group, profiled)
            assert found["gpu_ms"] > 0 and (case.processes == 1 or found["comm_ms"] > 0)
            assert case.processes == 1 or 0 < found["transfer_ms"] <= found["comm_ms"] + 0.001
            group.call("trace")
            rung = {"flat-top": "flat_reduce", "top": "captured_reduce"}.get(way, WAYS[way][1])
            receipt = [each["receipts"][rung] for each in group.call("receipts", rungs=[rung])][-1]
        finally:
            group.close()
    # All gradients of so small a network are one bucket of DistributedDataParallel, which nothing can hide.
    assert receipt["engaged"] or way == "ddp", receipt["lines"]


# --- generations, with groups that measure nothing --------------------------------------------------------------------

DID: list[tuple[str, int]] = []  # calls of the groups by number; a server that was started is group -1


class FakePool:
    ended = False

    def __init__(self):
        DID.append(("server", -1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def kill(self):
        self.ended = True


class FakeGroup:
    """A group whose cycles take longer from group to group. `stop` ends the run at a call, by its number."""

    made = itertools.count()
    stop: dict[str, int] = {}
    room = 99  # groups that are alive together

    def __init__(self, pool, ranks, device):
        self.number, self.ranks, self.pids = next(FakeGroup.made), ranks, {0}

    def build(self, *_):
        if FakeGroup.stop.get("oom") == self.number:
            raise WorkerFailure("oom", "out of memory in build")

    def call(self, do, part="", **_):
        DID.append((part or do, self.number))
        if (left := FakeGroup.stop.get(part or do)) is not None:
            FakeGroup.stop[part or do] = left - 1
            if not left:
                raise KeyboardInterrupt
        return [{"peak_rss_bytes": 1, "cycles": None}]

    def cycle(self):
        DID.append(("cycle", self.number))
        return (10.0 + self.number) / self.ranks

    def close(self):
        DID.append(("close", self.number))

    kill = close


@pytest.fixture
def fakes(monkeypatch):
    facts = system.describe_machine("cpu")
    monkeypatch.setattr(system, "describe_machine", lambda _: facts | {"cores": 2})
    monkeypatch.setattr(measure, "Group", FakeGroup)
    monkeypatch.setattr(measure, "Pool", FakePool)
    monkeypatch.setattr(STUDY, "draw", lambda *_: None)
    monkeypatch.setattr(FakeGroup, "made", itertools.count())
    monkeypatch.setattr(FakeGroup, "stop", {})
    DID.clear()


OPTIONS = "--gpus 1,2 --scaling weak --no-proof --visits 2".split()


def test_nothing_is_timed_after_a_profiler_of_its_generation(tmp_path, fakes):
    result = run(tmp_path, "ddp", "flat", *OPTIONS, "--generations", 2)
    assert result.exit_code == 0, result.output
    letters = {"server": "S", "cycle": "c", "finish": "f", "load": "l", "record": "r"}
    shifts = "".join(letters.get(do, "") for do, _ in DID)
    # Two cores: a way at a time. Two visits and two untimed cycles of two groups, then both finish.
    assert shifts == ("S" + "ccccccccffllrr" * 2) * 2


@pytest.mark.parametrize(("ways", "last"), [(("ddp", "flat"), 3), (("flat",), 1)])
def test_groups_without_room_together_are_measured_apart_from_then_on(
    ways, last, tmp_path, fakes, monkeypatch
):
    facts = system.describe_machine("cpu")
    monkeypatch.setattr(system, "describe_machine", lambda _: facts | {"cores": 64})
    FakeGroup.stop["oom"] = last  # of the first generation
    result = run(tmp_path, *ways, *OPTIONS, "--generations", 2)
    assert result.exit_code == 0
    assert result.output.count("not enough memory for") == 1
    assert list_generations(written(tmp_path)[1]) == {(way, gpus): [0, 1] for way in ways for gpus in (1, 2)}
    together = [number for do, number in DID if do == "close"][: last + 1]
    assert sorted(together) == [*range(last + 1)]  # all have ended before any is made again


def test_a_rank_that_dies_in_a_later_generation_is_told_and_measured_again(tmp_path, fakes, monkeypatch):
    """The point keeps the number of the generations before, so only a line says that one is missing."""
    real = FakeGroup.cycle

    def cycle(group):
        if group.number == 2:  # the first of the second generation
            raise WorkerFailure("failed", "visit: worker killed by SIGKILL")
        return real(group)

    monkeypatch.setattr(FakeGroup, "cycle", cycle)
    result = run(tmp_path, "flat", *OPTIONS, "--generations", 2)
    assert result.exit_code == 1 and ": 1 of 2 generations, a later one failed" in result.output
    assert ": failed: visit: worker killed by SIGKILL" in result.output and "go on:" in result.output
    path, file = written(tmp_path)
    assert [point.status for point in derive_points(file)] == ["ok", "ok"]
    again = run(tmp_path, "--resume", path, "--generations", 2, "--no-proof")
    assert again.exit_code == 0, again.output
    assert min(map(len, list_generations(written(tmp_path)[1]).values())) == 2


def test_a_stopped_run_keeps_whole_generations_and_measures_only_what_is_missing_later(tmp_path, fakes):
    """It was ended while the second of two ways profiled its second generation."""
    FakeGroup.stop = {"record": 7}
    result = run(tmp_path, "ddp", "flat", *OPTIONS)
    path, file = written(tmp_path)
    assert result.exit_code == 130 and path.stem.endswith("-ddp-flat-weak-partial")
    counts = sorted((way, gpus, len(each)) for (way, gpus), each in list_generations(file).items())
    assert sorted(count for *_, count in counts) == [1, 1, 2, 2]  # both numbers of GPUs of a way, or neither
    assert len({(way, count) for way, _, count in counts}) == 2
    assert "fewer than 3 generations of ddp weak, flat weak: not to be quoted" in frame.list_cautions(
        STUDY, file
    )
    FakeGroup.stop = {}
    DID.clear()
    result = run(tmp_path, "--resume", path)
    assert result.exit_code == 0, result.output
    path, later = written(tmp_path)
    assert path.stem.endswith("-ddp-flat-weak") and later.is_complete and later.started == file.started
    assert sum(do == "finish" for do, _ in DID) == 2 + 2 * 2  # one way lacks one generation, the other two
    for key, each in file.observed.items():
        assert later.observed[key].runs[: len(each.runs)] == each.runs
    found = list_generations(later)
    assert found["ddp", 1] == found["ddp", 2] and found["flat", 1] == found["flat", 2]
    assert all(len(each) == 3 for each in found.values())
    DID.clear()
    assert run(tmp_path, "--resume", path, "--generations", 4).exit_code == 0
    assert sum(do == "finish" for do, _ in DID) == 4
    assert all(len(each) == 4 for each in list_generations(written(tmp_path)[1]).values())


def test_a_budget_ends_after_a_whole_generation_and_is_gone_on_with(tmp_path, fakes):
    result = run(tmp_path, "ddp", "flat", *OPTIONS, "--budget", "1e-9")
    assert result.exit_code == 130 and "the budget allows 1 of 3 generations" in result.output
    for left in (2, 3):
        path, file = written(tmp_path)
        assert len(list_generations(file)["flat", 2]) == left - 1
        again = run(tmp_path, "ddp", "flat", *OPTIONS, "--budget", "1e-9", "--resume", path)
        assert again.exit_code == (0 if left == 3 else 130)
    path, _ = written(tmp_path)
    result = run(tmp_path, "--visits", "5", "--resume", path)
    assert result.exit_code == 2 and "leave it out" in result.output
