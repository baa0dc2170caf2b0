"""Fully connected layers against plain PyTorch: alone and in groups, values and derivatives of any order.

Without a GPU the Triton kernels run in Triton's interpreter, so shapes are tiny and launches few.
"""

import sys

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import kernels
from ladder.receipts.watch import launches
from tests.support.kernel_checks import assert_no_worse, assert_untouched, poison_memory

module, plans = sys.modules["kernels.linear.dense"], sys.modules["kernels.linear.dense_launches"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LEAKY = {"weight_gain": 0.3, "bias_gain": 0.1, "act": True, "slope": 0.2, "gain": 1.4}
LINEAR = {"weight_gain": 0.3, "bias_gain": 0.7}
WIDTHS, SLOTS = (4, 3, 1, 9, 4), (0, 2, 0, 3, 0)  # one slot is read by three layers, one by none
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fresh_plans():
    plans._cover.cache_clear()
    yield
    plans._cover.cache_clear()


def tensors(*shapes: tuple[int, ...], dtype=torch.float64, seed=0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(s, generator=generator, dtype=torch.float64).to(DEVICE, dtype) for s in shapes]
    return [t.requires_grad_() for t in made]


def layer(n=5, i=13, o=6, bias=True, **how) -> list[Tensor]:
    return tensors((n, i), (o, i), *[(o,)] * bias, **how)


def group(n=3, i=10, slots=4, **how) -> list[Tensor]:
    return tensors((n, slots, i), *((w, i) for w in WIDTHS), *((w,) for w in WIDTHS), **how)


def grouped(function, **options):
    """The op as a function of tensors alone."""
    options = {"weight_gain": 0.3} | options
    return lambda x, *t: tuple(function(x, t[: len(WIDTHS)], t[len(WIDTHS) :], SLOTS, **options))


def single(function, **options):
    return lambda *t: (function(*t, **options),)


def values_and_grads(function, inputs: list[Tensor]) -> list[Tensor]:
    """y, its gradients along fixed g (fused), the same composed for differentiation, and those of their squares."""
    ys = function(*inputs)
    gs = [g.to(y.dtype) for y, g in zip(ys, tensors(*(y.shape for y in ys), seed=1), strict=True)]
    fused = torch.autograd.grad(ys, inputs, gs, retain_graph=True)
    first = torch.autograd.grad(ys, inputs, gs, create_graph=True)
    penalty = sum(d.square().sum() for d in first)
    second = torch.autograd.grad(penalty, [*inputs, *gs], allow_unused=True)
    second = [torch.zeros_like(t) if d is None else d for t, d in zip([*inputs, *gs], second, strict=True)]
    return [t.detach() for t in (*ys, *fused, *first, *second)]


def agree(ours, plain, inputs: list[Tensor], **tolerance) -> None:
    found = zip(values_and_grads(ours, inputs), values_and_grads(plain, inputs), strict=True)
    for k, (got, want) in enumerate(found):
        torch.testing.assert_close(got, want, msg=lambda said, k=k: f"result {k}: {said}", **tolerance)


@pytest.mark.covering("shape", "options")
@pytest.mark.parametrize("options", [LEAKY, LINEAR], ids=["leaky", "linear"])
@pytest.mark.parametrize(
    "shape",
    [(5, 13, 6), (1, 1, 1), (9, 130, 3), (17, 6, 18), (2, 600, 5)],
    ids=lambda s: "x".join(map(str, s)),
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_agrees_with_plain_pytorch(shape, options, bias):
    inputs = layer(*shape, bias=bias)
    agree(single(kernels.dense, **options), single(kernels.dense_reference, **options), inputs)


def test_a_group_agrees_with_plain_pytorch():
    for options in ({}, {"bias_gain": 0.6}):
        agree(
            grouped(kernels.dense_group, **options),
            grouped(kernels.dense_group_reference, **options),
            group(),
        )


def test_a_group_without_bias():
    x, *weights = group()[: 1 + len(WIDTHS)]
    found = (f(x, weights, None, SLOTS) for f in (kernels.dense_group, kernels.dense_group_reference))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (single(kernels.dense, **LEAKY), layer(3, 5, 4)),
        # The next test compares derivatives of every order.
        pytest.param(grouped(kernels.dense_group), group(2, 3), marks=pytest.mark.exhaustive),
    ],
    ids=["layer", "group"],
)
def test_gradients_of_gradients_are_those_of_the_function(function, inputs):
    assert gradcheck(function, inputs, fast_mode=True) and gradgradcheck(function, inputs, fast_mode=True)


def test_a_gradient_can_be_differentiated_again_and_again():
    found, inputs = [], group(2, 3)
    for f in (kernels.dense_group, kernels.dense_group_reference):
        total = sum(y.pow(3).sum() for y in grouped(f)(*inputs))
        for _ in range(3):
            grads = torch.autograd.grad(total, inputs[:3], create_graph=True)
            total = sum(g.square().sum() for g in grads)
        found.append(total)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("wanted", range(3))
def test_a_gradient_alone(wanted):
    """The other gradients are not computed, and the wanted one is right."""
    inputs, found = layer(), []
    for f in (kernels.dense, kernels.dense_reference):
        y = f(*inputs, **LEAKY)
        found.append(torch.autograd.grad(y.square().sum(), inputs[wanted])[0])
    torch.testing.assert_close(*found)


def test_inputs_split_among_programs_add_up(monkeypatch):
    """As where a layer has thousands of inputs: a second launch adds the parts and goes on from there."""
    monkeypatch.setattr(plans, "DEEP", 64)
    with launches() as seen:
        agree(single(kernels.dense, **LEAKY), single(kernels.dense_reference, **LEAKY), layer(3, 1100, 5))
    assert seen["dense_finish_kernel"]["calls"] > 0
    agree(
        single(kernels.dense, **LINEAR),
        single(kernels.dense_reference, **LINEAR),
        layer(3, 257, 5, bias=False),
    )


@pytest.mark.parametrize(("n", "ours"), [(15, 1), (16, 1), (64, 0)])
@pytest.mark.parametrize("options", [LEAKY, LINEAR], ids=["leaky", "linear"])
def test_many_samples_of_a_deep_layer_are_a_library_s_products(n, ours, options, monkeypatch):
    """Weights from 16 samples on, x from 64 on. Memory full of NaN shows what a product leaves unwritten."""
    monkeypatch.setattr(plans, "DEEP", 64)
    around, inputs = poison_memory(monkeypatch), layer(n, 70, 5, bias=options is LEAKY)
    agree(single(kernels.dense, **options), single(kernels.dense_reference, **options), inputs)
    assert_untouched(around)
    y, weights = kernels.dense(*inputs, **options), inputs[1:]
    with launches() as seen:
        torch.autograd.grad(y.sum(), inputs, retain_graph=True)
    assert sum(each["calls"] for name, each in seen.items() if name == "dense_grad_kernel") == ours
    with launches() as seen:
        torch.autograd.grad(y.sum(), weights)
    assert ("dense_grad_kernel" in seen) == (n < 16)


def test_float32_is_as_exact_as_plain_pytorch():
    for ours, plain, made in (
        (single(kernels.dense, **LEAKY), single(kernels.dense_reference, **LEAKY), layer(4, 70, 9)),
        (grouped(kernels.dense_group), grouped(kernels.dense_group_reference), group()),
    ):
        low = [t.detach().float().requires_grad_() for t in made]
        exact = values_and_grads(plain, [t.detach().double().requires_grad_() for t in low])
        got, theirs = values_and_grads(ours, low), values_and_grads(plain, low)
        assert_no_worse(got, theirs, exact, torch.float32)
        assert all(t.dtype == torch.float32 for t in got)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_low_precision_inputs_are_summed_and_returned_in_float32(dtype):
    inputs = layer(dtype=dtype)
    y, want = (f(*inputs, **LEAKY) for f in (kernels.dense, kernels.dense_reference))
    assert y.dtype == want.dtype == torch.float32
    torch.testing.assert_close(y, want)
    assert [g.dtype for g in torch.autograd.grad(y.sum(), inputs)] == [dtype] * 3


def test_autocast_leaves_full_precision_alone():
    inputs = layer(dtype=torch.float32)
    with torch.autocast(DEVICE, torch.bfloat16):
        y, want = (f(*inputs, **LEAKY) for f in (kernels.dense, kernels.dense_reference))
        first = torch.autograd.grad(y.sum(), inputs[0], create_graph=True)[0]
        second = torch.autograd.grad(first.square().sum(), inputs[1])[0]
    assert y.dtype == want.dtype == second.dtype == torch.float32
    torch.testing.assert_close(y, want)


@pytest.mark.parametrize("n", [0, 3])
def test_nothing_to_sum(n):
    """An empty batch has gradients of zero for its weights; a layer without inputs is its bias."""
    for inputs in (layer(n, 4, 3), layer(n, 0, 3), layer(n, 4, 0)):
        agree(single(kernels.dense, **LEAKY), single(kernels.dense_reference, **LEAKY), inputs)
    agree(grouped(kernels.dense_group), grouped(kernels.dense_group_reference), group(n))


def test_any_strides():
    x, w, b = tensors((6, 14), (13, 6), (12,))
    views = [x[:, 1::2].mT.mT, w.mT[:, 1:8], b[::2]]
    y, want = (f(*views, **LEAKY) for f in (kernels.dense, kernels.dense_reference))
    torch.testing.assert_close(y, want)
    for got, wanted in zip(*(torch.autograd.grad(t.sum(), (x, w, b)) for t in (y, want)), strict=True):
        torch.testing.assert_close(got, wanted)


def test_an_output_that_nobody_differentiates():
    inputs, found = group(), []
    for f in (kernels.dense_group, kernels.dense_group_reference):
        ys = grouped(f)(*inputs)
        found.append(torch.autograd.grad(ys[1].square().sum(), (inputs[0], inputs[2]), create_graph=True))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_launches_are_few():
    """All layers forward are one launch, all their gradients one, and each derivative of path length's one."""
    x, *rest = group()
    with launches() as seen:
        ys = grouped(kernels.dense_group)(x, *rest)
        torch.autograd.grad(ys, [x, *rest], [torch.ones_like(y) for y in ys], retain_graph=True)
    assert {name: count["calls"] for name, count in seen.items()} == {
        "dense_kernel": 1,
        "dense_grad_kernel": 1,
    }
    gs = [torch.ones_like(y).requires_grad_() for y in ys]
    with launches() as seen:
        (dx,) = torch.autograd.grad(ys, x, gs, create_graph=True)
    assert {name: count["calls"] for name, count in seen.items()} == {"dense_grad_kernel": 1}
    with launches() as seen:
        torch.autograd.grad(dx.square().sum(), [*gs, *rest[: len(WIDTHS)]])
    assert {name: count["calls"] for name, count in seen.items()} == {
        "dense_kernel": 1,
        "dense_grad_kernel": 1,
    }


def test_gradients_of_a_group_become_p_grad_without_a_copy():
    """Each is a slice of one buffer, which AccumulateGrad takes as it is: forty copies would be forty launches."""
    x, *rest = group()
    sum(y.sum() for y in grouped(kernels.dense_group)(x, *rest)).backward()
    for same in (rest[: len(WIDTHS)], rest[len(WIDTHS) :]):
        assert len({p.grad.untyped_storage().data_ptr() for p in same}) == 1
        assert len({p.grad.data_ptr() for p in same}) == len(same)
        assert all(p.grad.is_contiguous() and p.grad.data_ptr() % 16 == 0 for p in same)


def test_every_element_is_written_and_none_beside(monkeypatch):
    """Memory arrives full of NaN; nothing of it may be left. And what lies around the results is not touched."""
    around = poison_memory(monkeypatch)
    for function, inputs in (
        (grouped(kernels.dense_group), group()),
        (single(kernels.dense, **LEAKY), layer()),
    ):
        ys = function(*inputs)
        found = (*ys, *torch.autograd.grad(ys, inputs, [torch.ones_like(y) for y in ys]))
        assert all(t.isfinite().all() for t in found)
    assert len(around) == 8
    assert_untouched(around)


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_nan_and_inf_come_out_where_the_references_do(value):
    x, w, b = (t.detach() for t in layer())
    x[1, 2] = value
    got, want = (f(x, w, b, **LEAKY) for f in (kernels.dense, kernels.dense_reference))
    assert not want[1].isfinite().all() and want[0].isfinite().all()
    torch.testing.assert_close(got, want, equal_nan=True)


X, W, B = torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, g: f(X[0], W, B), r"need x \[N, I\]"),
        (lambda f, g: f(X, W[:, :3], B), r"weights \[O, I\], got \(2, 4\) and \[\(3, 3\)\]"),
        (lambda f, g: f(X, W, B[:2]), r"one bias \[O\] for each weight"),
        (lambda f, g: f(X, W, B, act=True, slope=0.0), "slope and gain must be positive"),
        (lambda f, g: f(X, W, B, act=True, gain=-1.0), "slope and gain must be positive"),
        (lambda f, g: g(X, [W], [B], [0]), r"need x \[N, S, I\]"),
        (lambda f, g: g(X[:, None], [], [], []), r"need x \[N, S, I\]"),
        (lambda f, g: g(X[:, None], [W, W], [B], [0, 0]), "one bias"),
        (lambda f, g: g(X[:, None], [W], [B], [1]), "a slot below 1"),
        (lambda f, g: g(X[:, None], [W], [B], [0, 0]), "for each of 1 weights"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(call, message):
    for pair in (
        (kernels.dense, kernels.dense_group),
        (kernels.dense_reference, kernels.dense_group_reference),
    ):
        with pytest.raises(ValueError, match=message) as refusal:
            call(*pair)
        assert "\n" not in str(refusal.value)


def test_bytes_moved_are_those_of_x_weight_and_y():
    assert module.bytes_moved(X, W) == (8 + 12 + 6) * 4
    assert module.bytes_moved(X, W, backward=True) == (2 * (8 + 12) + 6) * 4


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(16, 512, 512), (8, 8192, 512), (8, 512, 1), (64, 512, 512)], ids=str)
def test_at_the_sizes_of_the_model(shape):
    inputs = [t.detach().float().requires_grad_() for t in layer(*shape)]
    options = LEAKY | {"weight_gain": shape[1] ** -0.5}
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        agree(
            single(kernels.dense, **options),
            single(kernels.dense_reference, **options),
            inputs,
            rtol=1e-3,
            atol=1e-3,
        )
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.gpu
def test_a_cuda_graph_replays_with_new_inputs():
    inputs = [t.detach().float().requires_grad_() for t in group(8, 512)]
    function, plain = grouped(kernels.dense_group), grouped(kernels.dense_group_reference)
    values_and_grads(function, inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ys = function(*inputs)
        found = (*ys, *torch.autograd.grad(ys, inputs, [y.detach() for y in ys]))
    with torch.no_grad():
        for t in inputs:
            t.mul_(-0.5)
    graph.replay()
    ys = plain(*inputs)
    for got, want in zip(
        found, (*ys, *torch.autograd.grad(ys, inputs, [y.detach() for y in ys])), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
