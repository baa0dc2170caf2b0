"""Calls named in the table of `kernels.alternatives`: their callers get plain PyTorch, and nobody else does."""

import contextlib
import inspect

import pytest
import torch

import kernels
from kernels import alternatives, choices
from kernels.alternatives import Where
from ladder import receipts
from ladder.core.records import read_record
from ladder.receipts.watch import Watch, layers_named
from ladder.studies import frame
from ladder.studies.kernelbench import bench as kernelbench
from ladder.studies.kernelbench import cases as kernelcases
from ladder.studies.kernelbench import record, study
from ladder.studies.kernelbench.bench import Bench, call_of, flat
from ladder.studies.kernelbench.cases import DIRECTIONS
from ladder.studies.kernelbench.timing import SMOKE, Cpu, Timer
from stylegan_lite import make_step
from stylegan_lite.config import Workload
from tests.support import made_up_kernels
from tests.support.rung_steps import gathered, receipt
from tests.support.small import LEAST

fused = pytest.mark.skipif(kernels.available() is not None, reason="no GPU, and Triton is not interpreted")
OFFERED = [
    name for name in kernels.__all__ if hasattr(getattr(kernels, name), "ours") and name != "scale_channels"
]


def small_cases(ops):
    made = {"resolution": 8, "channel_base": 32, "batch": 2}
    workloads = {norm: Workload.from_dict(made | {"norm": norm}) for norm in ("demod", "instance")}
    found = {}
    for case in kernelcases.list_cases(workloads, ops=ops, smallest=4):
        found.setdefault((case.entry.function, case.dtype), case)
    return list(found.values())


CASES = small_cases(OFFERED)


@pytest.fixture
def planted(monkeypatch):
    """Puts these calls into the table; what is counted and noted is forgotten afterwards."""
    rows = {}
    monkeypatch.setattr(alternatives, "_in_force", rows)
    monkeypatch.setattr(alternatives, "taken", type(alternatives.taken)())
    monkeypatch.setattr(choices, "_noted", {})
    return lambda op, where: rows.setdefault(op, {}).update({where: "1.20x"})


def planted_case(planted, case):
    op, where = case.dispatch(case.tensors("cpu"))
    planted(op, where)
    return op, where


def public(case):
    """The op as its callers have it, dispatcher and all."""
    return case.adapt(kernelcases.load_function(case.entry.function))


def results(case, function):
    """Results and gradients of the first and second order, on the numbers of one seed."""
    found = []
    for direction in case.directions:
        torch.manual_seed(0)
        with contextlib.suppress(RuntimeError) if direction == DIRECTIONS[2] else contextlib.nullcontext():
            found += flat(call_of(case, direction, function, "cpu")())
    return found


def test_every_op_of_our_own_has_an_alternative():
    assert {*OFFERED, *alternatives.NOT_OFFERED, "scale_channels"} == {
        name
        for name in kernels.__all__
        if not name.endswith("_reference") and name not in ("available", "fast_double_backward")
    }
    assert {case.entry.function for case in CASES} == {*OFFERED}
    for name in OFFERED:  # what callers see of an op is what it is
        function = getattr(kernels, name)
        assert inspect.signature(function) == inspect.signature(function.ours) and function.__doc__


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_dispatcher_takes_what_was_timed_as_plain_with_its_values_and_gradients(case, planted):
    op, where = planted_case(planted, case)
    got, want = results(case, public(case)), results(case, case.plain())
    assert len(got) == len(want) and len(got) >= len(case.directions) - (op == "power_iteration")
    for one, other in zip(got, want, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
        assert one is None or (one.dtype, one.stride()) == (other.dtype, other.stride())
    assert alternatives.taken[op] >= 1 and not alternatives.inside()
    noted = {"op": op, "case": alternatives.described(where), "entry": "alternative plain PyTorch taken"}
    assert noted in choices.used()


@fused
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whoever_is_taken_results_have_the_same_dtype_and_memory_format(case, planted):
    torch.manual_seed(0)
    ours = flat(call_of(case, "forward", public(case), "cpu")())
    op, _ = planted_case(planted, case)
    torch.manual_seed(0)
    plain = flat(call_of(case, "forward", public(case), "cpu")())
    assert alternatives.taken[op] == 1
    for one, other in zip(ours, plain, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.dim() != 4 or one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.1)


@fused
def test_calls_that_differ_in_one_thing_stay_with_ours(planted):
    x, bias = torch.randn(2, 4, 8, 8), torch.randn(4)
    where = kernels.bias_act.where(x, bias)
    assert where == Where("", 0, torch.float32, "nchw", 9)
    planted("bias_act", where)
    wide = x.contiguous(memory_format=torch.channels_last)
    others = [
        (wide, bias),
        (x.double(), bias.double()),
        (x[:1].contiguous(), bias),
        (torch.cat([x, x]), bias),
        (x.flatten(1)[:, :4], bias),
    ]
    for args in others:
        kernels.bias_act(*args)
    kernels.bias_act(x, bias, scale=torch.ones(2, 4))
    kernels.modulate(x, torch.ones(2, 4))
    with alternatives.off():
        kernels.bias_act(x, bias)
    kernels.bias_act.ours(x, bias)
    assert not alternatives.taken
    assert torch.equal(kernels.bias_act(x, bias), kernels.bias_act_reference(x, bias))
    kernels.bias_act(x[:, :, 1:], bias)  # 448 elements, not dense: nobody has measured that
    kernels.bias_act(torch.randn(2, 4, 8, 7), bias)  # up to 2^9 as well
    assert alternatives.taken == {"bias_act": 2}


@fused
def test_a_call_that_autocast_casts_is_none_that_was_timed(planted):
    x, bias = torch.randn(2, 4, 8, 8), torch.randn(4)
    planted("bias_act", kernels.bias_act.where(x, bias))
    kernels.bias_act(x, bias)
    assert alternatives.taken == {"bias_act": 1}
    with torch.autocast("cpu", torch.bfloat16):
        assert kernels.bias_act(x, bias).dtype is torch.bfloat16
    assert alternatives.taken == {"bias_act": 1}


@fused
def test_path_length_and_r1_can_differentiate_what_was_taken(planted):
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    style = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    planted("modulate", kernels.modulate.where(x, style))
    assert torch.autograd.gradgradcheck(kernels.modulate, (x, style)) and alternatives.taken["modulate"] > 1
    planted("upfirdn2d", kernels.upfirdn2d.where(x, (1, 3, 3, 1), up=1, down=2, padding=1))
    assert kernels.upfirdn2d.where(x, (1, 3, 3, 1), up=1, down=2, padding=1).variant == "down 2"
    assert torch.autograd.gradgradcheck(lambda x: kernels.upfirdn2d(x, (1, 3, 3, 1), down=2, padding=1), (x,))
    assert alternatives.taken["upfirdn2d"] > 1


@fused
def test_under_torch_compile_ours_stays(planted):
    """The figures are of eager calls; and a table must not break the graph."""
    x, style = torch.randn(2, 4, 8, 8), torch.randn(2, 4)
    planted("modulate", kernels.modulate.where(x, style))
    compiled = torch.compile(lambda x, style: kernels.modulate(x, style), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, style), kernels.modulate_reference(x, style))
    assert not alternatives.taken


@pytest.mark.gpu
def test_what_is_taken_is_captured_with_its_gradients(planted):
    x = torch.randn(2, 4, 16, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    bias = torch.randn(4, device="cuda", requires_grad=True)
    planted("bias_act", kernels.bias_act.where(x, bias))
    planted("upfirdn2d", kernels.upfirdn2d.where(x, (1, 3, 3, 1), padding=(2, 1)))

    def both():
        y = kernels.upfirdn2d(kernels.bias_act(x, bias), (1, 3, 3, 1), padding=(2, 1))
        (dx,) = torch.autograd.grad(y.float().square().sum(), x, create_graph=True)
        return dx, *torch.autograd.grad(dx.float().square().sum(), (x, bias))

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        want = [t.clone() for t in both()]
        with torch.cuda.graph(graph, stream=stream):
            got = both()
        graph.replay()
    torch.cuda.synchronize()
    assert alternatives.taken == {"bias_act": 2, "upfirdn2d": 2}
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


def test_the_committed_table_can_be_looked_up():
    """Rows are keys that a call can have, of ops that ask."""
    for op, rows in alternatives.TABLE.items():
        assert op in OFFERED and rows
        assert all(
            isinstance(where, Where) and where.architecture > 0 and text for where, text in rows.items()
        )


# ---- the table of ladder kernels ---------------------------------------------------------------------------------


@fused
def test_the_result_and_the_table_name_what_is_taken_and_time_ours_all_the_same(planted, monkeypatch):
    without_compile = lambda self, name, case: case.fused() if name == "ours" else case.plain()  # noqa: E731
    monkeypatch.setattr(Bench, "make_contender", without_compile)
    case = next(case for case in CASES if case.op == "modulate" and case.dtype == "bf16")

    def rows():
        found = Bench(Cpu(), Timer(Cpu(), SMOKE)).measure_case(case, 2, 2, 0.0)
        return [read_record(record.Measured, row.describe()) for row in found]

    before = rows()
    assert {row.taken for row in before} == {None} and before[0].dispatch.op == "modulate"
    planted_case(planted, case)
    after = rows()
    assert {row.taken for row in after} == {"plain"}
    assert [row.launches for row in after] == [row.launches for row in before] and after[0].launches
    assert not alternatives.taken
    text, untouched = (
        frame.render_page(study.STUDY, made_up_kernels.file([(case, row) for row in each]))
        for each in (after, before)
    )
    assert text.count("plain PyTorch taken |") == len(after)
    assert "plain PyTorch taken" not in untouched


# ---- receipts ----------------------------------------------------------------------------------------------------


class Everywhere(dict):
    """A table that names every call of an op."""

    def __contains__(self, where):
        return True

    def __bool__(self):
        return True


RUNGS = {
    "fused_norm": ({"fused_norm": True}, ("modulate", "demodulate"), {}),
    "fused_act": ({"fused_act": True}, ("bias_act",), {}),
    "fused_resample": ({"resample": "triton"}, ("upfirdn2d",), {}),
    "fused_dense": ({"dense": "triton"}, ("dense", "dense_group"), {}),
    "fused_rgb": ({"rgb": "triton"}, ("to_rgb", "from_rgb"), {}),
}


@fused
@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_whose_op_is_dispatched_to_plain_pytorch_is_engaged_and_says_so(rung, monkeypatch):
    recipe, ops, workload = RUNGS[rung]
    monkeypatch.setattr(alternatives, "_in_force", {op: Everywhere() for op in ops})
    seen = gathered(make_step(LEAST | workload, recipe, device="cpu"))
    assert seen["alternatives"].keys() == {*ops}
    found = receipt(rung, seen)
    assert found.engaged, found.lines
    assert any("plain PyTorch taken" in line for line in found.lines)
    assert receipt("baseline", seen).engaged, receipt("baseline", seen).lines


@fused
def test_plain_pytorch_that_no_table_asked_for_is_still_not_engaged(monkeypatch):
    """Part of the calls is dispatched, another falls back by itself."""
    monkeypatch.setattr(alternatives, "_in_force", {"bias_act": Everywhere()})
    real, calls = kernels.bias_act, []

    def sometimes(*args, **kwargs):
        calls.append(1)
        return (real if len(calls) % 2 else kernels.bias_act_reference)(*args, **kwargs)

    monkeypatch.setattr(kernels, "bias_act", sometimes)
    seen = gathered(make_step(LEAST, {"fused_act": True}, device="cpu"))
    found = receipt("fused_act", seen)
    assert not found.engaged and "leaky ReLU in plain PyTorch" in found.reason


def test_a_kernel_is_excused_by_its_own_op_alone():
    seen = {"kernels": {}, "alternatives": {"bias_act": 3}}
    ((engaged, line),) = receipts.launched(seen, "bias_act_grad_kernel")
    said = "bias_act_grad_kernel launched 0x (plain PyTorch taken 3x)"
    assert engaged and line == said
    for name in ("bias_act_residual_kernel", "modulate_kernel", "adam_kernel", "planes_forward"):
        assert receipts.launched(seen, name) == [(False, f"{name} launched 0x")]
    assert not receipts.launched({"kernels": {}}, "bias_act_kernel")[0][0]  # evidence of an earlier version


@fused
def test_what_is_dispatched_is_not_left_behind(planted):
    x, style = torch.randn(2, 4, 8, 8), torch.randn(2, 4)
    planted("modulate", kernels.modulate.where(x, style))

    class ToRGB(torch.nn.Module):
        def forward(self, x):
            return self.op(x, style)

    layer, counts = ToRGB(), []
    for op in (kernels.modulate, kernels.modulate_reference):
        layer.op = op
        with layers_named(watch := Watch(), layer), watch:
            layer(x)
        counts.append(dict(watch.plain["modulate"]))
    assert counts == [{}, {"ToRGB": 1}]


def test_rows_say_where_a_call_stands():
    case = next(case for case in CASES if case.entry.function == "bias_act" and case.dtype == "bf16")
    row = kernelbench.Row(case, "forward", 1, 1, dispatch=case.dispatch(case.tensors("cpu")))
    key = row.describe()["dispatch"]
    assert (key["op"], key["dtype"], key["architecture"]) == ("bias_act", "bfloat16", 0)
    conv = small_cases(["conv2d"])[0]
    assert conv.dispatch(conv.tensors("cpu")) is None
    assert "dispatch" not in kernelbench.Row(conv, "forward", 1, 1).describe()
