"""The tuner of planes: what it tries computes, what it prints can be pasted, and without a GPU it says so."""

import json
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from kernels.norm import instance_norm_act_planes as planes
from kernels.norm.instance_norm_act_planes import Config
from kernels.tuning import planes as tuning
from kernels.tuning import timing
from ladder.publish.validation import validate
from tests.kernels import test_kernels_ops as ops
from tests.support import sweeps

ROOT = Path(__file__).parents[2]
KEYS = [
    tuning.Key(direction, dtype, noise)
    for direction in tuning.DIRECTIONS
    for dtype in tuning.DTYPES
    for noise in (False, True)
]
EVERY = list(dict.fromkeys(how for key in KEYS for how in tuning.candidates(key)))


@pytest.fixture
def small(monkeypatch):
    """Any plane is walked over; the ways of walks that were made are noted."""
    made, launch = [], planes._launch

    def record(kernel, how, *arguments, **constants):
        made.append(how)
        launch(kernel, how, *arguments, **constants)

    monkeypatch.setattr(planes, "processor", lambda device: (90, 1))
    monkeypatch.setattr(planes, "LEAST_PIXELS", 1)
    monkeypatch.setattr(planes, "_launch", record)
    return made


@pytest.mark.parametrize("key", KEYS, ids=lambda key: "-".join(map(str, key)))
def test_candidates_are_what_triton_and_a_multiprocessor_take(key):
    found = tuning.candidates(key)
    assert len(found) == len(set(found)) >= 25
    for how in found:
        assert (
            how.block & (how.block - 1) == 0 and how.block >= 8 * 32 * how.warps
        )  # 16 bytes for each thread
        assert how.per_sm * how.warps <= 32
        assert tuning.needed(how, key) <= 227 << 10
        assert how.stages > 1 or not how.hints or how.again == 1  # marks to keep that nothing would take away
    assert any(how.hints for how in found) and not all(how.hints for how in found)


def test_those_in_force_are_among_the_candidates_or_none():
    said = {key: tuning.in_force(key) for key in KEYS}
    assert all(how is None or how in tuning.candidates(key) for key, (_, how) in said.items())
    shares = [
        said[tuning.Key(direction, dtype)][0] for dtype in tuning.DTYPES for direction in tuning.DIRECTIONS
    ]
    assert shares == [0.55, 0.825, 1.1, 1.65]  # of an H200's L2 cache


@pytest.mark.parametrize("how", sweeps.each_value(EVERY), ids=lambda how: "-".join(map(str, how)))
def test_every_candidate_computes_the_same(how, small):
    """Two planes a program and more; blocks of 4096 pixels are three, the last of them partial."""
    fused, reference = ops.functions("instance_norm_act noise")
    inputs = ops.make_inputs("instance_norm_act noise", (2, 2, 95, 93))
    with planes.forced(how):
        got = ops.values_and_grads(fused, inputs)
    for a, b in zip(got, ops.values_and_grads(reference, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert [walk[1:] for walk in small] == [
        how[1:]
    ] * 3  # forward, backward, and backward to be differentiated
    assert small[0].programs == max(1, int(how.per_sm))


def test_forced_is_over_when_it_is_over_and_none_means_tiles(small):
    x = torch.zeros(2, 3, 4, 4)
    usual = planes.walk(x)
    with planes.forced(EVERY[0]), planes.forced(None):
        assert planes.walk(x) is None
    assert planes.walk(x) == usual != planes.Walk(1, *EVERY[0][1:])


def test_a_bench_times_what_it_is_given(small, monkeypatch):
    bench, taken = object.__new__(timing.Bench), []
    bench.taking, bench.shape, bench.calls, bench.copy, bench.bytes = planes.forced, (2, 3, 4, 4), [], 1.0, 8

    def seconds(calls):
        taken.append(planes.config(torch.zeros(bench.shape), 1))
        return 2.0 if len(taken) < 3 else 1 / 0

    monkeypatch.setattr("kernels.tuning.timing.seconds", seconds)
    runs = [bench.run(how) for how in (EVERY[1], None, EVERY[2])]
    assert taken == [EVERY[1], None, EVERY[2]]
    assert [run.get("share") for run in runs] == [0.5, 0.5, None]
    assert runs[2]["error"] == "ZeroDivisionError: division by zero"


def row(key: tuning.Key, how: Config | None, taken: float, current: bool = False) -> dict:
    run = {"shape": tuning.SHAPE, "share": 300 / taken, "microseconds": taken, "copy_microseconds": 300.0}
    about = {"cache_share": 0.8249, "config": how and how._asdict(), "current": current, "candidates": 34}
    return key._asdict() | about | {"runs": [run | {"bytes": 1 << 30}]}


@pytest.mark.parametrize("how", [EVERY[1], None], ids=["config", "tiles"])
def test_what_is_reported_is_a_row_of_the_table(how):
    rows = [row(KEYS[0], EVERY[0], 400.0, current=True), row(KEYS[0], how, 320.0)]
    text = tuning.report(rows)
    assert eval("(\n" + text + "\n)", {"Config": Config}) == ((0.83, how),)
    assert "best: 93.8% of a copy, 320 us" in text and "now: 75.0% of a copy, 400 us" in text
    assert "2 of 34 timed" in text
    broken = rows[0] | {"runs": [{"shape": tuning.SHAPE, "error": "OutOfResources: shared memory"}]}
    assert "now: OutOfResources: shared memory" in tuning.report([broken, rows[1]])


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("direction", tuning.DIRECTIONS)
def test_every_call_launches_the_kernel_of_its_direction(direction, noise, small, monkeypatch):
    from ladder.receipts.watch import launches

    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    key = tuning.Key(direction, "float32", noise)
    x = torch.randn(1, 2, 4, 4)
    call, moved = tuning.make_call(key.op, direction, x)
    small.clear()
    with planes.forced(EVERY[0]), launches() as seen:
        call()
    name = "instance_norm_act_planes_grad_kernel" if key.tensors == 2 else "instance_norm_act_planes_kernel"
    assert [name] == [each for each in seen if "planes" in each] and len(small) == 1
    assert moved == (key.tensors + 1) * x.nbytes + noise * 64


def test_current_comes_first_and_time_is_shared_out(monkeypatch, tmp_path, capsys):
    """With a bench that likes large blocks, in place of a GPU; what comes out is a result file that is accepted."""
    made, clock = [], [0.0]

    class Bench:
        def __init__(self, key, shape):
            made.append(key)

        def run(self, how):
            clock[0] += 1
            if how is not None and how.block == 8192:
                return {"shape": tuning.SHAPE, "error": "OutOfResources"}
            return row(KEYS[0], how, 1000.0 if how is None else 4e6 / how.block)["runs"][0]

    compiled = []
    monkeypatch.setattr(tuning, "bench_of", Bench)
    monkeypatch.setattr(tuning, "compile_all", compiled.append)
    monkeypatch.setattr(tuning.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr("kernels.tuning.timing.available", lambda: None)
    for name, value in (
        ("is_available", True), ("empty_cache", None), ("Stream", None), ("get_device_name", "NVIDIA H200"),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: torch.no_grad())
    monkeypatch.setattr(tuning, "in_force", lambda key: (0.5, None if "32" in key.dtype else EVERY[2]))
    path = tmp_path / "nvidia-h200-planes-tuning.json"
    assert tuning.main(["--seconds", "44", "--json", str(path)]) == 0
    timed = json.loads(path.read_text())["timed"]
    assert validate.problem_of(path) is None
    assert [(key.direction, key.dtype) for key in made] == [(r["direction"], r["dtype"]) for r in timed[::11]]
    assert [r["current"] for r in timed] == ([True] + [False] * 10) * 4
    assert [r["config"] for r in timed[::11]] == [EVERY[2]._asdict()] * 2 + [None] * 2
    assert [len(trials) for trials in compiled[0].values()] == [r["candidates"] for r in timed[::11]]
    assert {key.op for key in made} == {"instance_norm_act without noise"}
    assert capsys.readouterr().out.count("# best: ") == 4


def test_rows_of_a_file_are_judged_as_strictly_as_others(tmp_path):
    good = {"schema": 1, "kind": "planes tuning", "gpu": "NVIDIA H200", "torch": "2.13.0"}
    good["timed"] = [row(KEYS[0], EVERY[0], 400.0, current=True), row(KEYS[0], None, 320.0)]
    path = tmp_path / "planes-tuning.json"
    for change, says in (
        ({}, None),
        ({"hints": 1}, "timed[0].config.hints: 1 is not"),
        ({"block": "8192"}, "timed[0].config.block: '8192' is not"),
        ({"rows": 8}, "timed[0].config: unknown key 'rows'"),
    ):
        bad = json.loads(json.dumps(good))
        bad["timed"][0]["config"] |= change
        path.write_text(json.dumps(bad))
        problem = validate.problem_of(path)
        assert (problem is None) if says is None else (says in problem)


@pytest.mark.gpu
def test_it_finds_configurations(tmp_path, capsys):
    path = tmp_path / "tuning.json"
    options = ["--direction", "forward", "--dtype", "bfloat16", "--seconds", "15", "--json", str(path)]
    assert tuning.main(options) == 0
    timed = json.loads(path.read_text())["timed"]
    assert sum(row["current"] for row in timed) == 1
    assert all(0 < run["share"] < 2 for row in timed if row["current"] for run in row["runs"])
    assert "Config(" in capsys.readouterr().out and math.isclose(timed[0]["runs"][0]["bytes"], 2**30)
