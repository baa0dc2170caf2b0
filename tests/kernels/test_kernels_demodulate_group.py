"""Demodulation coefficients of many layers at once, against plain PyTorch: values and derivatives up to the second.

Without a GPU the Triton kernels run in Triton's interpreter, so shapes are tiny and launches few.
"""

import pytest
import torch
from torch import Tensor

import kernels
from kernels.weights.demodulate_group import bytes_moved, refresh_energies
from ladder.receipts.watch import launches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = ((5, 13), (1, 3), (9, 1), (4, 17))  # O and I of each layer: nothing divides anything
torch.set_num_threads(1)


def tensors(*shapes: tuple[int, ...], dtype=torch.float64, seed=0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(s, generator=generator, dtype=torch.float64).to(DEVICE, dtype) for s in shapes]
    return [t.requires_grad_() for t in made]


def layers(n=3, shapes=SHAPES, taps=(3, 3), nhwc=False, **how) -> list[Tensor]:
    """All weights, then all styles."""
    made = tensors(*((*s, *taps) for s in shapes), *((n, i) for _, i in shapes), **how)
    layout = torch.channels_last if nhwc else torch.contiguous_format
    weights = [w.detach().contiguous(memory_format=layout).requires_grad_() for w in made[: len(shapes)]]
    return [*weights, *made[len(shapes) :]]


def whole(energies, coefficients, count=4):
    """Return the way to coefficients as a function of tensors alone: weights, then styles."""
    return lambda *t: tuple(coefficients(energies(t[:count]), t[count:]))


OURS = whole(kernels.weight_energies, kernels.demodulate_group)
PLAIN = whole(kernels.weight_energies_reference, kernels.demodulate_group_reference)


def values_and_grads(function, inputs: list[Tensor]) -> list[Tensor]:
    """d, its gradients along fixed g (fused), those of a penalty on the styles' gradients, as path length has it."""
    ds = function(*inputs)
    styles = inputs[len(inputs) // 2 :]
    gs = [g.to(d.dtype) for d, g in zip(ds, tensors(*(d.shape for d in ds), seed=1), strict=True)]
    fused = torch.autograd.grad(ds, inputs, gs, retain_graph=True)
    first = torch.autograd.grad(ds, styles, gs, create_graph=True)
    penalty = sum(g.square().sum() for g in first) + sum(d.square().sum() for d in ds)
    second = torch.autograd.grad(penalty, [*inputs, *gs], allow_unused=True)
    return [torch.zeros(()) if t is None else t.detach() for t in (*ds, *fused, *first, *second)]


@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("n", [1, 3, 11])
def test_it_agrees_with_plain_pytorch(n, nhwc):
    found = (values_and_grads(f, layers(n, nhwc=nhwc)) for f in (OURS, PLAIN))
    for k, (got, want) in enumerate(zip(*found, strict=True)):
        torch.testing.assert_close(got, want, msg=lambda m, k=k: f"result {k}: {m}")


def test_it_is_what_one_layer_alone_computes():
    inputs = layers(dtype=torch.float32)
    for d, w, s in zip(OURS(*inputs), inputs[: len(SHAPES)], inputs[len(SHAPES) :], strict=True):
        torch.testing.assert_close(d, kernels.demodulate(w, s))


def test_autocast_changes_nothing():
    inputs = layers(dtype=torch.float32)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        low = OURS(*inputs)
        grads = torch.autograd.grad([d.sum() for d in low], inputs)
    ds = OURS(*inputs)
    full = [*ds, *torch.autograd.grad([d.sum() for d in ds], inputs)]
    for a, b in zip([*low, *grads], full, strict=True):
        assert torch.equal(a, b)


def test_memory_formats_are_kept_and_may_be_mixed():
    inputs = layers(nhwc=True)
    inputs[0] = inputs[0].detach().contiguous().requires_grad_()
    found = torch.autograd.grad([d.sum() for d in OURS(*inputs)], inputs)
    for got, want in zip(found, torch.autograd.grad([d.sum() for d in PLAIN(*inputs)], inputs), strict=True):
        torch.testing.assert_close(got, want)
    for w, dw in list(zip(inputs, found, strict=True))[1 : len(SHAPES)]:
        assert dw.stride() == w.stride()
    both = kernels.weight_energies, kernels.weight_energies_reference
    turned = [w.detach().transpose(0, 1) for w in tensors((3, 5, 3, 3), (7, 2, 3, 3))]  # dense in no format
    for got, want in zip(*(f(turned) for f in both), strict=True):
        torch.testing.assert_close(got, want)


def test_all_layers_are_a_handful_of_launches():
    inputs = layers()
    with launches() as seen:
        ds = OURS(*inputs)
        torch.autograd.grad([d.sum() for d in ds], inputs)
    assert {k: v["calls"] for k, v in seen.items()} == {
        "weight_energies_kernel": 1,
        "demodulate_group_kernel": 1,
        "demodulate_group_grad_kernel": 1,
        "weight_energies_grad_kernel": 1,
    }


def test_only_what_is_asked_for_is_computed():
    """Path length differentiates by the styles alone: no gradient of a weight, nor of its energy, is made for that."""
    inputs = layers()
    styles, count = inputs[len(SHAPES) :], len(SHAPES)
    ds = OURS(*inputs)
    with launches() as seen:
        first = torch.autograd.grad([d.sum() for d in ds], styles, create_graph=True)
    assert "weight_energies_grad_kernel" not in seen
    assert "denergy" not in seen["demodulate_group_grad_kernel"]["tensors"]
    with launches() as seen:
        torch.autograd.grad([g.square().sum() for g in first], inputs)
    calls = {k: v["calls"] for k, v in seen.items()}
    # Gradients of the weights add up in their energies: one pass over the weights for first and second derivatives.
    assert calls["weight_energies_grad_kernel"] == 1 and calls["demodulate_group_rows_kernel"] == 1
    frozen = [w.detach() for w in inputs[:count]]
    with launches() as seen:
        torch.autograd.grad([d.sum() for d in OURS(*frozen, *styles)], styles)
    assert "denergy" not in seen["demodulate_group_grad_kernel"]["tensors"]
    assert "weight_energies_grad_kernel" not in seen
    still = [s.detach() for s in styles]
    with launches() as seen:
        torch.autograd.grad([d.sum() for d in OURS(*inputs[:count], *still)], inputs[:count])
    assert "dstyle" not in seen["demodulate_group_grad_kernel"]["tensors"]


def test_an_unused_layer_has_no_gradient():
    inputs = layers()
    found = torch.autograd.grad(
        kernels.weight_energies(inputs[: len(SHAPES)])[1].sum(), inputs[:2], allow_unused=True
    )
    assert found[0] is None
    torch.testing.assert_close(found[1], 2 * inputs[1])


def test_energies_are_refreshed_in_place():
    weights = [w.detach() for w in layers(nhwc=True, dtype=torch.float32)[: len(SHAPES)]]
    energies = [torch.full(w.shape[:2], torch.nan, device=DEVICE) for w in weights]
    refresh_energies(weights, energies)
    for got, want in zip(energies, kernels.weight_energies_reference(weights), strict=True):
        torch.testing.assert_close(got, want)
    with pytest.raises(ValueError, match="need a contiguous energy"):
        refresh_energies(weights, energies[1:])
    with pytest.raises(ValueError, match="need energies in torch"):
        refresh_energies(weights, [e.double() for e in energies])


@pytest.mark.parametrize("n", [0, 2])
def test_nothing_of_nothing(n):
    inputs = layers(n, ((0, 3), (2, 0)))
    function = whole(kernels.weight_energies, kernels.demodulate_group, 2)
    ds = function(*inputs)
    assert [tuple(d.shape) for d in ds] == [(n, 0), (n, 2)]
    torch.autograd.grad([d.sum() for d in ds], inputs)


def test_bytes_are_counted():
    w, s = torch.zeros(4, 2, 3, 3), torch.zeros(5, 2)
    assert bytes_moved([w], [s]) == 4 * (72 + 10 + 2 * 8 + 20)
    assert bytes_moved([w], [s], backward=True) == 4 * (2 * 82 + 3 * 8 + 2 * 20)
