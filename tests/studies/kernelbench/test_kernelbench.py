"""The timing of `ladder kernels`, also of a contender that fails, is wrong or comes too late."""

import dataclasses
import math
import sys
import time

import pytest
import torch
from click.testing import CliRunner

import kernels
from ladder.cli import main as cli
from ladder.studies import frame
from ladder.studies.kernelbench import bench as kernelbench
from ladder.studies.kernelbench import study
from ladder.studies.kernelbench import timing as kerneltiming
from ladder.studies.kernelbench.bench import COMPILE, COPY, OURS, PLAIN, TWIN, Bench
from ladder.studies.kernelbench.cases import registry as kernelcases
from ladder.studies.kernelbench.cases.registry import Case, Op
from ladder.studies.kernelbench.timing import COLD, EVENTS, GRAPH, HOT, SMOKE, Cpu, Timer


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
        "toy", {"x": "NCHW", "style": "NC"}, kernelcases.every_layer,
        lambda op, t, backward: op.bytes_moved(t["x"], backward), penalty=("x", "style"),
    )  # fmt: skip
    monkeypatch.setitem(kernelcases.OPS, "toy", entry)
    return Case("toy", (("N", 2), ("C", 3), ("H", 4), ("W", 4)), "bf16", "channels_last", ("here",))


@pytest.fixture
def bench(monkeypatch):
    """On the CPU; torch.compile is left out where a test is not about it: it costs seconds."""
    monkeypatch.setattr(Bench, "_compiled", lambda self, case: case.reference)
    return Bench(Cpu(), Timer(Cpu(), SMOKE))


def measured(bench, case, repeats=2):
    (rows,) = [said for said in bench.case(case, repeats, repeats, lambda: 1.0) if not isinstance(said, str)]
    return {row.direction: row for row in rows}


def test_an_entry_in_the_registry_is_all_that_an_op_needs(toy):
    rows = measured(Bench(Cpu(), Timer(Cpu(), SMOKE), backend="aot_eager"), toy, 4)
    assert list(rows) == ["forward", "backward", "double backward"]
    for direction, row in rows.items():
        contenders = {OURS, TWIN, PLAIN, COMPILE, COPY}
        if direction == "double backward":
            contenders -= {COMPILE, COPY}  # AOTAutograd has none; nobody has counted its bytes
            assert "double backward" in row.reasons[COMPILE]
        assert {name: len(v) for name, v in row.samples[COLD].items()} == dict.fromkeys(contenders, 4)
        assert {name: len(v) for name, v in row.samples[HOT].items()} == dict.fromkeys(
            contenders - {TWIN, COPY}, kernelbench.HOT_REPEATS
        )
        assert row.method == GRAPH and all(s > 0 for v in row.samples[COLD].values() for s in v)
    assert rows["backward"].bytes == 3 * 2 * 3 * 16 * 2


def test_what_is_called_in_each_direction(toy):
    forward, backward, double = (kernelbench.call_of(toy, d, scaled, "cpu") for d in kernelcases.DIRECTIONS)
    assert forward().shape == (2, 3, 4, 4) and forward().requires_grad
    for _ in range(2):  # again and again over the same graph
        dx, dstyle = backward()
        assert dx.shape == (2, 3, 4, 4) and dstyle.shape == (2, 3) and not dx.requires_grad
        ddx, ddstyle, dg = double()
        assert ddx is not None and ddstyle.shape == (2, 3) and dg.shape == dx.shape


@pytest.mark.parametrize("wrong", ["forward", "backward"])
def test_what_is_wrong_is_not_timed(toy, bench, monkeypatch, wrong):
    class Off(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return y * (1.2 if wrong == "forward" else 1.0)

        @staticmethod
        def backward(ctx, g):
            return g * 1.3

    monkeypatch.setattr(kernels, "toy", lambda x, style: Off.apply(scaled(x, style)))
    rows = measured(bench, toy)
    assert "differs from plain PyTorch" in rows[wrong].reasons[OURS]
    assert set(rows[wrong].samples[COLD]) == {PLAIN, COMPILE, COPY}
    if wrong == "backward":
        assert OURS in rows["forward"].samples[COLD]


def test_the_yardstick_is_the_fastest_way_to_copy_and_stays_the_row_s(toy, bench, monkeypatch):
    """The driver copies some sizes at two thirds of its rate: a slow yardstick would make every op look fast."""
    ways, tried, sizes = kernelbench.WAYS, [], {}

    def timed(self, row, name, calls, temperature):
        if name != COPY:
            return 1e-3
        (way,) = [way for way in ways if sizes.get(way) is calls]
        tried.append(way)
        return 1e-4 * (1 + (ways.index(way) - 2) ** 2)

    real = kernelbench.copies
    monkeypatch.setattr(kernelbench, "copies", lambda *a: sizes.setdefault(a[3], real(*a)))
    monkeypatch.setattr(Bench, "_timed", timed)
    row = kernelbench.Row(toy, "forward", 10**6, 10**6)
    assert bench._copied(row, 1, COLD) == bench._copied(row, 1, COLD) == 1e-4
    assert tried == [*ways, ways[2]]


def test_copies_move_as_many_bytes_as_asked_for_in_pieces():
    for page, largest in ((64, 1000), (4096, 1 << 20)):
        (call,) = kernelbench.copies(2 * 70_001, 1, "cpu", (page, largest))
        pieces = [piece.numel() for piece in call()]
        assert all(n % page == 0 and n <= largest + page for n in pieces) and len(pieces) == -(
            -70_001 // largest
        )
        assert 0 <= sum(pieces) - 70_001 < page * len(pieces)


def test_a_result_that_is_missing_is_wrong_unless_it_is_zero():
    one, zero = torch.ones(3), torch.zeros(3)
    kernelbench.disagree([one, None, one * 1.01], [one, zero, one])
    with pytest.raises(ValueError, match="missing"):
        kernelbench.disagree([one, None], [one, one])
    with pytest.raises(ValueError, match="differs"):
        kernelbench.disagree([one, one], [one, None])
    with pytest.raises(ValueError, match="differs"):
        kernelbench.disagree([one * float("nan")], [one])


def test_a_contender_that_fails_has_a_reason_and_no_half_of_a_number(toy, bench, monkeypatch):
    calls = []

    def fails_later(x, style):
        calls.append(1)
        if len(calls) > 12:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried ...")
        return scaled(x, style)

    monkeypatch.setattr(kernels, "toy", fails_later)
    rows = measured(bench, toy)
    assert rows["forward"].reasons == {OURS: "out of memory"}
    for samples in rows["forward"].samples.values():
        assert not {OURS, TWIN} & set(samples) and len(samples[PLAIN]) == 2
    monkeypatch.setattr(kernels, "toy", None)
    monkeypatch.delattr(kernels, "toy")
    rows = measured(bench, toy)
    assert "AttributeError" in rows["forward"].reasons[OURS] and rows["backward"].samples[COLD][PLAIN]


@pytest.mark.parametrize(("fastest", "method"), [(99e-6, GRAPH), (101e-6, EVENTS)])
def test_one_method_for_all_contenders_of_a_row(toy, bench, monkeypatch, fastest, method):
    """The quickest decides: an event pair is too coarse for it, and two methods could not be compared."""
    bench.timer.rules = kerneltiming.Rules()
    times = {OURS: fastest, TWIN: fastest, PLAIN: 5e-3, COMPILE: 200e-6, COPY: 150e-6}
    seen = []

    def value(self, row, name, made, temperature):
        seen.append((row.direction, row.method, name, temperature))
        return times[name]

    monkeypatch.setattr(Bench, "_value", value)
    rows = measured(bench, toy, 6)
    assert {row.method for row in rows.values()} == {method}
    assert (
        len(rows["forward"].samples[COLD][COPY]) == 6
    )  # what was found before the method was known is not kept
    orders = {}
    for _, _, name, temperature in seen:
        if temperature == COLD:
            orders.setdefault(name, 0)
    cold = [name for direction, m, name, t in seen if direction == "forward" and t == COLD and m == method]
    rounds = {tuple(cold[i : i + 5]) for i in range(0, len(cold) - 4, 5)}
    assert len(rounds) > 1  # in random order


class Clock:
    """A clock that a look at the time moves on."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.mark.parametrize(
    ("step", "times"), [(9.0, kernelbench.LEAST_REPEATS), (0.01, kernelbench.MOST_REPEATS)]
)
def test_a_case_repeats_for_its_share_of_the_time_and_never_less_than_it_must(
    toy, bench, monkeypatch, step, times
):
    monkeypatch.setattr(Bench, "_value", lambda *_: 1e-5)
    left_s = kernelbench.Allowance(1, Clock(step)).share(3)
    how = kernelbench.LEAST_REPEATS, kernelbench.MOST_REPEATS, left_s
    *_, rows = bench.case(toy, *how)
    assert {len(row.samples[COLD][OURS]) for row in rows} == {times}


@pytest.fixture
def smoke(monkeypatch, tmp_path):
    """The command on the CPU, with cases that take no time and nothing compiled ahead."""
    monkeypatch.setattr(Bench, "_value", lambda *_: 1e-5)
    monkeypatch.setattr(Bench, "_check", lambda *_: None)
    monkeypatch.setattr(Bench, "_compiled", lambda self, case: case.reference)
    monkeypatch.setattr("ladder.studies.kernelbench.compiling.compile_ours", lambda *how: None)
    return lambda *more: invoke("--device", "cpu", "--out", str(tmp_path), *more)


def test_a_lost_device_is_a_reason_and_the_other_cases_are_measured(smoke, monkeypatch, tmp_path):
    real = Bench.case

    def case(self, case, *how):
        if "noise" in case.name:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
        yield from real(self, case, *how)

    monkeypatch.setattr(Bench, "case", case)
    said = smoke("--op", "bias_act")
    assert said.exit_code == 1, said.output
    (path,) = tmp_path.glob("*.json")
    rows = study.STUDY.derive(frame.read_file(study.STUDY, path)).rows
    assert {"illegal memory access" in row.reasons.get(OURS, "") for row in rows} == {True, False}


def invoke(*args):
    return CliRunner().invoke(cli.main, ["kernels", *args])


def test_without_a_gpu_it_says_so_and_ends_with_status_2(monkeypatch):
    from ladder.machine import system

    monkeypatch.setattr(system, "choose_device", lambda requested=None: "cpu")
    said = invoke()
    assert said.exit_code == 2 and said.output.count("\n") == 1 and "CUDA GPU" in said.output
    said = invoke("--device", "cpu", "--op", "nonsense")
    assert (
        said.exit_code == 2 and "no op is called 'nonsense'" in said.output and said.output.count("\n") == 1
    )


def test_a_workload_that_cannot_be_measured_is_one_line(tmp_path):
    """Also on the CPU, whose shapes are its own: no file is named after a workload that was not measured."""
    for name, words in (("nosuch", "nosuch"), ("article", "leave out --workload")):
        said = invoke("--device", "cpu", "--workload", name, "--out", str(tmp_path))
        assert said.exit_code == 2 and said.output.count("\n") == 1 and words in said.output
    assert not [*tmp_path.iterdir()]


def test_the_command_writes_json_markdown_and_chart(tmp_path):
    """The real Triton kernel in the interpreter, with torch.compile's tracing: all but the times is as on a GPU."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("Triton's interpreter is off where there is a GPU")
    said = invoke("--device", "cpu", "--op", "modulate", "--out", str(tmp_path))
    assert said.exit_code == 0, said.output
    assert "not to be quoted" in said.output and "modulate" in said.output
    (path,) = tmp_path.glob("*.json")
    assert path.stem.endswith("-modulate-smoke")
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".md", ".png", ".svg"}
    found = study.STUDY.derive(frame.read_file(study.STUDY, path))
    backward = found.rows[1]
    assert backward.direction == "backward" and backward.share["ours"].median > 0
    assert backward.launches[0].kernel == "modulate_grad_kernel"
    assert "BLOCK_P=" in backward.launches[0].choices and len(backward.launches[0].grid) == 2
    assert "double backward" in found.rows[2].reasons["compile"]


@pytest.mark.gpu
@pytest.mark.parametrize("rules", [{"long_s": 1.0}, {"long_s": 0.0, "calls": 4}], ids=str)
@pytest.mark.parametrize("op", kernelcases.OPS)
def test_every_op_is_captured_and_timed_on_a_gpu(op, rules):
    """Graphs of forward, backward and double backward of all contenders, and the same by events."""
    from ladder.studies.kernelbench.timing import Cuda
    from stylegan_lite.config import Workload

    norm = "instance" if op == "instance_norm_act" else "demod"
    workload = Workload.from_dict({"resolution": 32, "channel_base": 1024, "batch": 4, "norm": norm})
    case = kernelcases.cases({"small": workload}, ops=[op], quick=True)[0]
    gpu = Cuda()
    rules = kerneltiming.Rules(**rules, too_slow_s=math.inf)  # other tests may keep the GPU busy
    rows = measured(Bench(gpu, Timer(gpu, rules)), case)
    for direction, row in rows.items():
        assert row.method == (EVENTS if rules.long_s == 0 else GRAPH)
        assert not {OURS, PLAIN} & set(row.reasons), row.reasons
        assert row.launches or case.entry.function == "conv2d"  # which is cuDNN's
        if direction != "double backward":
            assert COMPILE not in row.reasons, row.reasons
            assert row.samples[COLD][COPY]


def test_an_alternative_of_a_second_a_call_is_named_and_not_repeated(toy, monkeypatch):
    slow = dataclasses.replace(SMOKE, too_slow_s=0.4)
    monkeypatch.setattr(Bench, "_compiled", lambda self, case: case.reference)
    real = type(toy).plain

    def plain(case):
        function = real(case)
        return lambda *a, **k: (time.sleep(0.45), function(*a, **k))[-1]

    monkeypatch.setattr(type(toy), "plain", plain)
    rows = measured(Bench(Cpu(), Timer(Cpu(), slow)), toy, 3)
    assert rows["forward"].reasons[PLAIN].endswith("s a call: not repeated")
    assert PLAIN not in rows["forward"].samples[COLD] and rows["forward"].samples[COLD][OURS]
