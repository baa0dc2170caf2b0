"""act_filter, filter_act and filter_act_modulate against the ops that they join, in plain PyTorch, gradients and all.

Without a GPU the Triton kernels run in Triton's interpreter, so shapes are tiny and launches few.
"""

import sys

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import kernels

launching = sys.modules["kernels.upfirdn.filtered_act_launch"]
module = sys.modules["kernels.upfirdn.filtered_act"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
BINOMIAL = (0.125, 0.375, 0.375, 0.125)
LOPSIDED = (0.3, -1.0, 2.0, 0.5)  # nothing about it is symmetric
# alone: with nothing but a bias
OPS = ["act_filter", "filter_act", "filter_act alone", "filter_act_modulate", "filter_act_modulate alone"]
every_format = pytest.mark.parametrize("layout", FORMATS)
every_op = pytest.mark.parametrize("op", OPS)
torch.set_num_threads(1)


def random(*shape: int, layout="nchw", dtype=torch.float64, seed=0) -> Tensor:
    t = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    t = t.to(DEVICE, dtype)
    return t.contiguous(memory_format=FORMATS[layout]) if len(shape) == 4 else t


def inputs(op: str, shape, layout="nchw", dtype=torch.float64, wide=torch.float64) -> list[Tensor]:
    """What the op is differentiated by: x [N, C, H, W] and bias, then strength, scale and style."""
    n, c = shape[:2]
    found = [random(*shape, layout=layout, dtype=dtype), random(c, dtype=wide, seed=1)]
    if op in ("filter_act", "filter_act_modulate"):
        found += [random(1, dtype=wide, seed=2)[0], random(n, c, dtype=wide, seed=3).abs() + 0.5]
    if op.startswith("filter_act_modulate"):
        found += [random(n, c, dtype=wide, seed=6)]  # of either sign
    return [t.requires_grad_() for t in found]


def function(op: str, shape, taps=LOPSIDED, padding=2, reference=False, wide=torch.float64, **options):
    """The op, or its reference, as a function of `inputs`."""
    f = getattr(kernels, op.split()[0] + ("_reference" if reference else ""))
    options |= {"padding": padding}
    if op == "act_filter":
        return lambda x, bias: f(x, bias, taps, **options)
    if op == "filter_act alone":
        return lambda x, bias: f(x, taps, bias, **options)
    if op == "filter_act_modulate alone":
        return lambda x, bias, style: f(x, taps, style, bias, **options)
    out = kernels.upfirdn2d_reference(torch.zeros(shape), taps, padding=padding).shape[2:]
    noise = random(shape[0], 1, *out, dtype=wide, seed=4)
    options |= {"noise": noise}
    if op == "filter_act_modulate":
        return lambda x, bias, k, s, style: f(x, taps, style, bias, strength=k, scale=s, **options)
    return lambda x, bias, k, s: f(x, taps, bias, strength=k, scale=s, **options)


def everything(f, given: list[Tensor], bend=torch.sin) -> list[Tensor | None]:
    """y, its gradients along a fixed g from one backward pass, again with a graph, and gradients of those, bent."""
    y = f(*given)
    g = random(*y.shape, seed=5).to(y.dtype).requires_grad_()
    once = torch.autograd.grad(y, given, g, retain_graph=True)
    graph = torch.autograd.grad(y, given, g, create_graph=True)
    total = sum(bend(d.to(torch.promote_types(d.dtype, torch.float32))).sum() for d in graph)
    twice = torch.autograd.grad(total, [g, *given], allow_unused=True, materialize_grads=True)
    return [t.detach() for t in (y, *once, *graph, *twice)]


def squared(d: Tensor) -> Tensor:
    return d * d / d.detach().norm()


def agree(op: str, shape, layout="nchw", **options) -> None:
    given = inputs(op, shape, layout)
    got = everything(function(op, shape, **options), given)
    want = everything(function(op, shape, reference=True, **options), given)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        torch.testing.assert_close(a, b, msg=lambda text, i=i: f"result {i}: {text}")


@pytest.mark.covering("op", "layout")
@every_format
@every_op
@pytest.mark.parametrize("padding", [1, (0, 3, 2, 1)], ids=str)
def test_values_and_gradients_of_first_and_second_order(op, layout, padding):
    agree(op, (2, 3, 5, 4), layout, padding=padding, filter_gain=1.3, slope=0.3, gain=0.7)


@pytest.mark.covering
@every_format
@pytest.mark.parametrize(  # others run a part of the last one's kernels, and agree with their references
    "op", [op if op in (OPS[0], OPS[3]) else pytest.param(op, marks=pytest.mark.exhaustive) for op in OPS]
)
def test_gradients_of_gradients_are_those_of_the_function(op, layout):
    shape = (1, 2, 3, 2)
    f, given = function(op, shape), inputs(op, shape, layout)
    assert gradcheck(f, given, fast_mode=True)
    assert gradgradcheck(f, given, fast_mode=True)


@pytest.mark.covering
@every_format
@every_op
def test_many_programs_agree_with_the_reference(op, layout, monkeypatch):
    """Tiles so small that every border between them is crossed, in both directions and between channels."""
    small = launching.Config(rows=2, cols=2, ahead=1, block_c=2, width=1, warps=1)
    monkeypatch.setattr(launching, "config", lambda *_: small)
    monkeypatch.setattr(launching, "power_of_2", lambda n: min(kernels.common.tiles.power_of_2(n), 2))
    launching._cover.cache_clear()
    agree(op, (2, 3, 4, 5), layout, padding=(2, 1))
    launching._cover.cache_clear()


@pytest.mark.parametrize("entry", sorted(launching.CONFIGS, key=str), ids=str)
def test_every_configuration_agrees_with_the_reference(entry, monkeypatch):
    """As it runs for large images: no strip is shortened."""
    name, nhwc = entry[-2:]
    monkeypatch.setattr(launching, "config", lambda *_: launching.CONFIGS[entry])
    launching._cover.cache_clear()
    op, shape = name.split("_grad")[0], (1, 2, 9, 9)
    given = inputs(op, shape, "nhwc" if nhwc else "nchw")
    found = []
    for reference in (False, True):
        y = function(op, shape, reference=reference)(*given)
        g = random(*y.shape, seed=5).requires_grad_()
        if name.endswith("_grad"):
            y = torch.autograd.grad(y, given, g, create_graph=name.endswith("grad_grad"))[0]
        if name.endswith("grad_grad"):
            y = torch.autograd.grad(y.sin().sum(), g)[0]
        found.append(y.detach())
    torch.testing.assert_close(*found)
    launching._cover.cache_clear()


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@every_op
def test_low_precision_is_no_worse_than_plain_pytorch(op, dtype):
    """The budget is plain PyTorch's own error against float64 in this dtype, times 2, and eight roundings.

    Parameters are float32, as in training. Second derivatives go through squares: those of a sine of what a map sums
    to may all but cancel.
    """
    shape, how = (2, 3, 6, 5), {"taps": BINOMIAL, "padding": (2, 1)}
    given = inputs(op, shape, "nhwc", dtype, torch.float32)
    exact = everything(
        function(op, shape, reference=True, **how),
        [t.detach().double().requires_grad_() for t in given],
        squared,
    )
    plain = everything(function(op, shape, reference=True, wide=torch.float32, **how), given, squared)
    got = everything(function(op, shape, wide=torch.float32, **how), given, squared)
    for i, (a, b, want) in enumerate(zip(got, plain, exact, strict=True)):
        assert a.dtype == b.dtype
        error, budget = ((t.double() - want).norm() / want.norm().clamp(min=1e-9) for t in (a, b))
        assert error <= 2 * budget + 8 * torch.finfo(dtype).eps, f"result {i}"


@every_format
def test_what_pads_an_activation_is_zero_and_not_the_activated_bias(layout):
    x = torch.zeros(1, 1, 2, 2, device=DEVICE).contiguous(memory_format=FORMATS[layout])
    y = kernels.act_filter(x, torch.ones(1, device=DEVICE), (1.0, 1.0), padding=1, gain=1.0)
    want = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]], device=DEVICE)
    torch.testing.assert_close(y[0, 0], want)


@pytest.mark.covering
@every_format
@every_op
def test_dtype_and_memory_format_are_kept(op, layout):
    shape = (2, 3, 4, 5)
    given = inputs(op, shape, layout, torch.float32, torch.float32)
    for enabled in (False, True):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=enabled):
            y = function(op, shape, wide=torch.float32)(*given)
        assert y.dtype == (torch.bfloat16 if enabled else torch.float32)
        assert y.is_contiguous(memory_format=FORMATS[layout])
        for d, t in zip(torch.autograd.grad(y.sum(), given), given, strict=True):
            assert (d.dtype, d.shape) == (t.dtype, t.shape)
            assert d.dim() < 4 or d.is_contiguous(memory_format=FORMATS[layout])


@every_op
def test_an_empty_batch(op):
    shape = (0, 3, 4, 4)
    given = inputs(op, shape)
    y = function(op, shape)(*given)
    grads = torch.autograd.grad(y.sum(), given)
    assert y.shape == (0, 3, 5, 5) and [d.shape for d in grads] == [t.shape for t in given]
    assert not grads[1].any()


@every_op
def test_every_element_is_written(op, monkeypatch):
    """Memory arrives full of NaN; nothing of it may be left."""
    new_empty, empty_like = Tensor.new_empty, torch.empty_like
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(float("nan")))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(float("nan")))
    shape = (2, 3, 3, 5)
    for t in everything(function(op, shape), inputs(op, shape, "nhwc")):
        assert t.isfinite().all()


def test_a_backward_pass_is_one_launch_and_its_sums(monkeypatch):
    """Only path length's second derivative runs the separate ops."""
    from ladder.receipts.watch import launches

    shape = (2, 3, 4, 5)
    for op in ("act_filter", "filter_act", "filter_act_modulate"):
        given = inputs(op, shape, "nhwc")
        with launches() as seen:
            torch.autograd.grad(function(op, shape)(*given).sum(), given)
        assert {name: each["calls"] for name, each in seen.items() if "sum" not in name} == {
            f"{op}_kernel": 1,
            f"{op}_grad_kernel": 1,
        }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": 4}, "padding must be 0 to 3 for 4 taps"),
        ({"padding": (-1, 2, 2, 2)}, "padding must be 0 to 3"),
        ({"slope": 0.0}, "slope must be in"),
        ({"gain": -1.0}, "gain above 0"),
        ({"taps": ()}, "1 to 8 numbers"),
        ({"bias": torch.zeros(3)}, r"bias must be \[2\]"),
        ({"scale": torch.ones(2, 2)}, r"scale must be \[1, 2\]"),
        ({"noise": torch.zeros(1, 1, 5, 5)}, "noise and strength come together"),
        ({"noise": torch.zeros(1, 1, 4, 4), "strength": torch.zeros(())}, "noise must be"),
        ({"noise": torch.zeros(1, 1, 5, 5, requires_grad=True), "strength": torch.zeros(())}, "no gradient"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_in_one_line(options, message):
    options = {"taps": BINOMIAL, "padding": 2, "bias": None} | options
    with pytest.raises(ValueError, match=message) as refusal:
        kernels.filter_act(torch.zeros(1, 2, 4, 4), **options)
    assert "\n" not in str(refusal.value)
    if not options.keys() & {"noise", "scale", "strength"}:
        with pytest.raises(ValueError, match=message):
            kernels.act_filter(torch.zeros(1, 2, 4, 4), **options)


def test_bytes_moved_are_those_of_the_maps():
    x = torch.zeros(2, 3, 4, 4, dtype=torch.bfloat16)
    assert module.bytes_moved(x, BINOMIAL, padding=2) == 2 * 3 * (16 + 25) * 2
    assert module.bytes_moved(x, BINOMIAL, padding=2, backward=True) == 2 * 3 * (16 + 25 + 25) * 2


@pytest.mark.gpu
@every_format
@every_op
@pytest.mark.parametrize("channels", [3, 64, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_at_the_sizes_of_the_model(op, layout, channels, dtype):
    """Against float64, in norm: a sign may differ where bf16 rounds.

    The sums over a map are some hundreds: by a sine of them, rounding would turn second derivatives around.
    """
    shape, how = (2, channels, 65, 66), {"taps": BINOMIAL, "padding": 2 if op == "act_filter" else 1}
    given = inputs(op, shape, layout, dtype, torch.float32)
    got = everything(function(op, shape, wide=torch.float32, **how), given, squared)
    exact = [t.detach().double().requires_grad_() for t in given]
    want = everything(function(op, shape, reference=True, **how), exact, squared)
    for a, b in zip(got, want, strict=True):
        assert (a.double() - b).norm() <= (0.05 if dtype is torch.bfloat16 else 2e-3) * b.norm() + 1e-6


@pytest.mark.gpu
@every_op
def test_the_same_on_every_run_and_in_a_cuda_graph(op):
    shape = (4, 64, 64, 64)
    given = inputs(op, shape, "nhwc", torch.bfloat16, torch.float32)
    f = function(op, shape, wide=torch.float32)

    def run():
        y = f(*given)
        return [y, *torch.autograd.grad(y, given, y)]

    with torch.cuda.stream(torch.cuda.Stream()):  # never on the default stream: autograd would go back to it
        want = [t.clone() for t in run()]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
