"""The timing of `ladder kernels`, also of a contender that fails, is wrong or comes too late; compiling ahead."""

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

import kernels
from ladder.machine import caches, system
from ladder.studies.kernelbench import bench as kernelbench
from ladder.studies.kernelbench import cases as kernelcases
from ladder.studies.kernelbench import timing as kerneltiming
from ladder.studies.kernelbench.bench import AT_ONCE, COMPILE, COPY, OURS, PLAIN, TWIN, Ahead, Bench
from ladder.studies.kernelbench.cases import Case, Op
from ladder.studies.kernelbench.timing import COLD, EVENTS, GRAPH, HOT, SMOKE, Cpu, Cuda, Timer
from stylegan_lite.config import Workload


def scaled(x, style):
    return x * style.to(x.dtype)[:, :, None, None]


@pytest.fixture
def toy(monkeypatch):
    """An op that somebody adds to `kernels` and, with one entry, to the registry; in plain PyTorch, so it is quick."""
    moved = lambda x, backward: x.nbytes * (3 if backward else 2)  # noqa: E731
    monkeypatch.setattr(sys.modules[__name__], "bytes_moved", moved, raising=False)  # beside the reference
    monkeypatch.setattr(kernels, "toy", scaled, raising=False)
    monkeypatch.setattr(kernels, "toy_reference", scaled, raising=False)
    entry = Op(
        "toy", {"x": "NCHW", "style": "NC"}, kernelcases.list_layers,
        lambda op, t, backward: op.bytes_moved(t["x"], backward), penalty=("x", "style"),
    )  # fmt: skip
    monkeypatch.setitem(kernelcases.OPS, "toy", entry)
    return Case("toy", (("N", 2), ("C", 3), ("H", 4), ("W", 4)), "bf16", "channels_last", ("here",))


@pytest.fixture
def bench(monkeypatch):
    """Without torch.compile, which costs seconds."""
    real = Bench.make_contender
    monkeypatch.setattr(
        Bench, "make_contender", lambda self, name, case: real(self, PLAIN if name == COMPILE else name, case)
    )
    return Bench(Cpu(), Timer(Cpu(), SMOKE))


def measure(bench, case, repeats=2):
    return {row.direction: row for row in bench.measure_case(case, repeats, repeats, math.inf)}


def test_an_entry_in_the_registry_is_all_that_an_op_needs(toy):
    rows = measure(Bench(Cpu(), Timer(Cpu(), SMOKE), backend="aot_eager"), toy, 4)
    assert list(rows) == ["forward", "backward", "double backward"]
    for direction, row in rows.items():
        contenders = {OURS, TWIN, PLAIN, COMPILE, COPY}
        if direction == "double backward":
            contenders -= {COMPILE, COPY}  # AOTAutograd has none; nobody has counted its bytes
            assert "double backward" in row.reasons[COMPILE]
        counts = {name: len(values) for name, values in row.samples_us[COLD].items()}
        assert counts == dict.fromkeys(contenders, 4)
        counts = {name: len(values) for name, values in row.samples_us[HOT].items()}
        assert counts == dict.fromkeys(contenders - {TWIN, COPY}, kernelbench.HOT_REPEATS)
        assert row.method == GRAPH and all(us > 0 for v in row.samples_us[COLD].values() for us in v)
    assert rows["backward"].bytes == 3 * 2 * 3 * 16 * 2


@pytest.mark.parametrize("wrong", ["forward", "backward"])
def test_a_wrong_result_is_not_timed(toy, bench, monkeypatch, wrong):
    class Off(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return y * (1.2 if wrong == "forward" else 1.0)

        @staticmethod
        def backward(ctx, g):
            return g * 1.3

    monkeypatch.setattr(kernels, "toy", lambda x, style: Off.apply(scaled(x, style)))
    rows = measure(bench, toy)
    assert "differs from plain PyTorch" in rows[wrong].reasons[OURS]
    assert set(rows[wrong].samples_us[COLD]) == {PLAIN, COMPILE, COPY}
    assert wrong == "forward" or OURS in rows["forward"].samples_us[COLD]


def test_the_yardstick_is_the_fastest_way_to_copy_and_stays_the_row_s(toy, bench, monkeypatch):
    """The driver copies some sizes at two thirds of its rate: a slow yardstick would make every op look fast."""
    ways, tried, real = kernelbench.WAYS, [], kernelbench.copies
    monkeypatch.setattr(kernelbench, "copies", lambda *a: tried.append(a[3]) or real(*a))
    monkeypatch.setattr(Bench, "_time_calls", lambda *_: 1e-4 * (1 + (ways.index(tried[-1]) - 2) ** 2))
    row = kernelbench.Row(toy, "forward", 10**6, 10**6)
    assert {bench.time_contender(row, COPY, {}, COLD) for _ in range(2)} == {1e-4}
    assert tried == [*ways, ways[2]]


@pytest.mark.parametrize(("page", "largest"), [(64, 1000), (4096, 1 << 20)])
def test_copies_move_as_many_bytes_as_requested_in_pieces(page, largest):
    (call,) = kernelbench.copies(2 * 70_001, 1, "cpu", (page, largest))
    pieces = [piece.numel() for piece in call()]
    assert all(n % page == 0 and n <= largest + page for n in pieces)
    assert len(pieces) == -(-70_001 // largest) and 0 <= sum(pieces) - 70_001 < page * len(pieces)


def test_a_result_that_is_missing_is_wrong_unless_it_is_zero():
    one, zero = torch.ones(3), torch.zeros(3)
    kernelbench.compare_results([one, None, one * 1.01, None], [one, zero, one, None])
    for results, expected, why in (
        ([one, None], [one, one], "missing"),
        ([one, one], [one, None], "differs"),
        ([one * float("nan")], [one], "differs"),
    ):
        with pytest.raises(ValueError, match=why):
            kernelbench.compare_results(results, expected)


def test_a_contender_that_fails_has_a_reason_and_no_half_of_a_number(toy, bench, monkeypatch):
    calls = iter(range(12))

    def fail_later(x, style):
        if next(calls, None) is None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried ...")
        return scaled(x, style)

    monkeypatch.setattr(kernels, "toy", fail_later)
    rows = measure(bench, toy)
    assert rows["forward"].reasons == {OURS: "out of memory"}
    for samples in rows["forward"].samples_us.values():
        assert not {OURS, TWIN} & set(samples) and len(samples[PLAIN]) == 2
    monkeypatch.delattr(kernels, "toy")
    rows = measure(bench, toy)
    assert "AttributeError" in rows["forward"].reasons[OURS] and rows["backward"].samples_us[COLD][PLAIN]


@pytest.mark.parametrize(("fastest", "method"), [(99e-6, GRAPH), (101e-6, EVENTS)])
def test_one_method_for_all_contenders_of_a_row_in_random_order(toy, bench, monkeypatch, fastest, method):
    """The quickest decides: an event pair is too coarse for it, and two methods could not be compared."""
    bench.timer.rules = kerneltiming.Rules()
    times = {OURS: fastest, TWIN: fastest, PLAIN: 5e-3, COMPILE: 200e-6, COPY: 150e-6}
    order = []

    def time_contender(self, row, name, functions, temperature):
        if (row.direction, row.method, temperature) == ("forward", method, COLD):
            order.append(name)
        return times[name]

    monkeypatch.setattr(Bench, "time_contender", time_contender)
    rows = measure(bench, toy, 6)
    assert {row.method for row in rows.values()} == {method}
    assert len(rows["forward"].samples_us[COLD][COPY]) == 6  # none from before the method was known
    assert len({tuple(order[i : i + 5]) for i in range(0, len(order) - 4, 5)}) > 1


@pytest.mark.parametrize(("end", "repeats"), [(0.0, 5), (math.inf, 9)])
def test_a_case_repeats_until_its_share_of_the_time_is_over(toy, bench, monkeypatch, end, repeats):
    monkeypatch.setattr(Bench, "time_contender", lambda *_: 1e-5)
    rows = bench.measure_case(toy, kernelbench.LEAST_REPEATS, kernelbench.MOST_REPEATS, end)
    assert {len(row.samples_us[COLD][OURS]) for row in rows} == {repeats}


def test_an_alternative_of_a_second_a_call_is_named_and_not_repeated(toy, bench, monkeypatch):
    bench.timer.rules = dataclasses.replace(SMOKE, too_slow_s=0.4)
    real = Case.plain
    monkeypatch.setattr(Case, "plain", lambda case: lambda **t: (time.sleep(0.45), real(case)(**t))[-1])
    row = measure(bench, toy, 3)["forward"]
    assert row.reasons[PLAIN].endswith("s a call: not repeated")
    assert PLAIN not in row.samples_us[COLD] and row.samples_us[COLD][OURS]


@pytest.mark.gpu
@pytest.mark.parametrize("rules", [{"long_s": 1.0}, {"long_s": 0.0, "calls": 4}], ids=str)
@pytest.mark.parametrize("op", kernelcases.OPS)
def test_every_op_is_captured_and_timed_on_a_gpu(op, rules):
    """Graphs of forward, backward and double backward of all contenders, and the same by events."""
    norm = "instance" if op.endswith("instance_norm_act") else "demod"
    workload = Workload.from_dict({"resolution": 32, "channel_base": 1024, "batch": 4, "norm": norm})
    case = kernelcases.list_cases({"small": workload}, ops=[op], quick=True)[0]
    gpu = Cuda()
    rules = kerneltiming.Rules(**rules, too_slow_s=math.inf)  # other tests may keep the GPU busy
    for direction, row in measure(Bench(gpu, Timer(gpu, rules)), case).items():
        assert row.method == (EVENTS if rules.long_s == 0 else GRAPH)
        assert not {OURS, PLAIN} & set(row.reasons), row.reasons
        # cuDNN, CUDA C++ and the small minibatch_std launch nothing of Triton
        assert row.launches or case.entry.function.startswith(("conv", "cuda.", "minibatch_std"))
        if direction != "double backward":
            assert COMPILE not in row.reasons, row.reasons
            assert row.samples_us[COLD][COPY]


# --- compiling ahead --------------------------------------------------------------------------------------------------

NAMES = ["bias_act 2x8x16x16 fp32 NCHW", "modulate 2x8x16x16 bf16 channels_last"]


@pytest.fixture
def ahead():
    with Ahead([], Cpu(), "aot_eager", print) as ahead:
        ahead.start(2)
        yield ahead
    assert all(process.poll() is not None for process in ahead.running)


def test_each_case_is_compiled_once_and_what_fails_or_dies_stays_behind(ahead):
    bad = "bias_act 2x8x16x16 fp8 NCHW"
    assert sorted(ahead.compile_theirs([*NAMES, bad])) == sorted(NAMES)
    assert ahead.compile_theirs(NAMES[:1]) == NAMES[:1]  # they are still there
    for process, left in zip(ahead.running, (NAMES, []), strict=True):
        process.kill()
        process.wait()
        assert ahead.compile_theirs(NAMES) == left


def test_one_that_hangs_is_ended(ahead, monkeypatch):
    monkeypatch.setattr(kernelbench, "STUCK_S", 0.1)  # importing torch takes longer
    assert ahead.compile_theirs(NAMES) == []


MEASURES = """
import json, sys
from torch._dynamo.utils import counters
from ladder.studies.kernelbench import bench
bench.compile_case(bench.parse_case(sys.argv[1]), "inductor", "cpu")
print(json.dumps(counters["inductor"]))
"""


@pytest.mark.exhaustive  # g++ takes some seconds for each kernel
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor compiles C++ on a CPU")
def test_the_measuring_process_finds_in_the_cache_what_another_compiled(tmp_path, monkeypatch):
    """By the counters of torch itself."""
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")  # with vectors g++ takes ten seconds more
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")  # for one kernel they are no gain
    monkeypatch.setenv("TORCHINDUCTOR_DEBUG_COMPILE", "1")  # -O0: how fast the kernel is does not matter
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with caches.set_variables(caches.point_into(tmp_path)):
        with Ahead([], Cpu(), "inductor", print) as ahead:
            ahead.start(1)
            assert ahead.compile_theirs(NAMES[1:]) == NAMES[1:]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        output = subprocess.check_output([sys.executable, "-c", MEASURES, NAMES[1]], env=env, text=True)
    counts = json.loads(output.splitlines()[-1])
    assert counts["fxgraph_cache_hit"] == 2 and "fxgraph_cache_miss" not in counts


@pytest.mark.parametrize(
    ("name", "memory", "started"), [("cuda", 140, [12]), ("cuda", 24, [3]), ("cpu", 0, [])]
)
def test_cases_are_compiled_batch_by_batch_on_as_many_processes_as_fit(monkeypatch, name, memory, started):
    done, counts = [], []

    def fails(cases, gpu):
        done.append(len(cases))
        raise RuntimeError("planted")

    monkeypatch.setattr(system, "usable_cores", lambda: 12)
    monkeypatch.setattr(kernelbench, "compile_ours", fails)
    monkeypatch.setattr(Ahead, "compile_theirs", lambda self, names: done.append(names))
    monkeypatch.setattr(Ahead, "start", lambda self, count: counts.append(count))
    cases = [SimpleNamespace(name=str(n)) for n in range(AT_ONCE + 3)]
    gpu = SimpleNamespace(name=name, memory=memory * 2**30)
    with Ahead(cases, gpu, "inductor", lambda _: None) as ahead:
        for index in range(len(cases)):
            ahead(index)
            assert len(done) == (2 if index < AT_ONCE else 4)
    names = [case.name for case in cases]
    assert done == [AT_ONCE, names[:AT_ONCE], 3, names[AT_ONCE:]] and counts[:1] == started
