"""Fully connected layers against plain PyTorch: alone and in groups, values and derivatives of any order.

Without a GPU the Triton kernels run in Triton's interpreter, so shapes are tiny and launches few.
"""

import sys

import pytest
import torch
from torch import Tensor

import kernels
from ladder.receipts.watch import launches
from tests.support.kernel_checks import assert_untouched, poison_memory

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


def test_a_group_without_bias():
    x, *weights = group()[: 1 + len(WIDTHS)]
    found = (f(x, weights, None, SLOTS) for f in (kernels.dense_group, kernels.dense_group_reference))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


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


@pytest.mark.parametrize("n", [0, 3])
def test_nothing_to_sum(n):
    """An empty batch has gradients of zero for its weights; a layer without inputs is its bias."""
    for inputs in (layer(n, 4, 3), layer(n, 0, 3), layer(n, 4, 0)):
        agree(single(kernels.dense, **LEAKY), single(kernels.dense_reference, **LEAKY), inputs)
    agree(grouped(kernels.dense_group), grouped(kernels.dense_group_reference), group(n))


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


X, W, B = torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(3)


def test_bytes_moved_are_those_of_x_weight_and_y():
    assert module.bytes_moved(X, W) == (8 + 12 + 6) * 4
    assert module.bytes_moved(X, W, backward=True) == (2 * (8 + 12) + 6) * 4
