"""Demodulation coefficients of many layers at once, beyond the table of `opcases.py`: launches, formats, energies."""

import pytest
import torch
from torch import Tensor

import kernels
from kernels.weights.demodulate_group import bytes_moved, refresh_energies
from ladder.receipts.watch import count_launches
from tests.kernels.opcases import DEVICE

SHAPES = ((5, 13), (1, 3), (9, 1), (4, 17))  # O and I of each layer: nothing divides anything
COUNT = len(SHAPES)
torch.set_num_threads(1)


def layers(n=3, shapes=SHAPES, nhwc=False, dtype=torch.float64) -> list[Tensor]:
    """All weights, then all styles."""
    sizes = [*((*s, 3, 3) for s in shapes), *((n, i) for _, i in shapes)]
    made = [torch.randn(s, dtype=dtype, device=DEVICE) for s in sizes]
    layout = torch.channels_last if nhwc else torch.contiguous_format
    made = [t.contiguous(memory_format=layout) if t.dim() == 4 else t for t in made]
    return [t.requires_grad_() for t in made]


def compute(*t: Tensor, count=COUNT) -> list[Tensor]:
    return kernels.demodulate_group(kernels.weight_energies(t[:count]), t[count:])


def differentiate(inputs, by) -> tuple[tuple[Tensor, ...], dict[str, dict]]:
    """Return gradients, to be differentiated, and what computing them launched."""
    ds = compute(*inputs)
    with count_launches() as seen:
        return torch.autograd.grad([d.sum() for d in ds], by, create_graph=True), seen


def test_it_is_what_one_layer_alone_computes():
    inputs = layers(dtype=torch.float32)
    for d, w, s in zip(compute(*inputs), inputs[:COUNT], inputs[COUNT:], strict=True):
        torch.testing.assert_close(d, kernels.demodulate(w, s))


def test_memory_formats_are_kept_and_may_be_mixed():
    inputs = layers(nhwc=True)
    inputs[0] = inputs[0].detach().contiguous().requires_grad_()
    energies = kernels.weight_energies_reference(inputs[:COUNT])
    plain = kernels.demodulate_group_reference(energies, inputs[COUNT:])
    found, _ = differentiate(inputs, inputs)
    torch.testing.assert_close(found, torch.autograd.grad([d.sum() for d in plain], inputs))
    assert [dw.stride() for dw in found[1:COUNT]] == [w.stride() for w in inputs[1:COUNT]]
    turned = [w.detach().transpose(0, 1) for w in layers(1, ((3, 5), (7, 2)))[:2]]  # dense in no format
    torch.testing.assert_close(kernels.weight_energies(turned), kernels.weight_energies_reference(turned))


def test_all_layers_are_a_handful_of_launches():
    inputs = layers()
    with count_launches() as seen:
        torch.autograd.grad([d.sum() for d in compute(*inputs)], inputs)
    assert {k: v["calls"] for k, v in seen.items()} == {
        "weight_energies_kernel": 1,
        "demodulate_group_kernel": 1,
        "demodulate_group_grad_kernel": 1,
        "weight_energies_grad_kernel": 1,
    }


def test_only_what_is_asked_for_is_computed():
    """Path length differentiates by the styles alone: no gradient of a weight, nor of its energy, is made for that."""
    inputs = layers()
    weights, styles = inputs[:COUNT], inputs[COUNT:]
    first, seen = differentiate(inputs, styles)
    assert "weight_energies_grad_kernel" not in seen
    assert "denergy" not in seen["demodulate_group_grad_kernel"]["tensors"]
    with count_launches() as seen:
        torch.autograd.grad([g.square().sum() for g in first], inputs)
    # Gradients of the weights add up in their energies: one pass over the weights for first and second derivatives.
    assert seen["weight_energies_grad_kernel"]["calls"] == seen["demodulate_group_rows_kernel"]["calls"] == 1
    _, seen = differentiate([*(w.detach() for w in weights), *styles], styles)
    assert "denergy" not in seen["demodulate_group_grad_kernel"]["tensors"]
    assert "weight_energies_grad_kernel" not in seen
    _, seen = differentiate([*weights, *(s.detach() for s in styles)], weights)
    assert "dstyle" not in seen["demodulate_group_grad_kernel"]["tensors"]


def test_an_unused_layer_has_no_gradient():
    inputs = layers()
    energies = kernels.weight_energies(inputs[:COUNT])
    found = torch.autograd.grad(energies[1].sum(), inputs[:2], allow_unused=True)
    assert found[0] is None
    torch.testing.assert_close(found[1], 2 * inputs[1])


def test_energies_are_refreshed_in_place():
    weights = [w.detach() for w in layers(nhwc=True, dtype=torch.float32)[:COUNT]]
    energies = [torch.full(w.shape[:2], torch.nan, device=DEVICE) for w in weights]
    refresh_energies(weights, energies)
    torch.testing.assert_close(energies, kernels.weight_energies_reference(weights))
    with pytest.raises(ValueError, match="need a contiguous energy"):
        refresh_energies(weights, energies[1:])
    with pytest.raises(ValueError, match="need energies in torch"):
        refresh_energies(weights, [e.double() for e in energies])


@pytest.mark.parametrize("n", [0, 2])
def test_nothing_of_nothing(n):
    inputs = layers(n, ((0, 3), (2, 0)))
    ds = compute(*inputs, count=2)
    assert [tuple(d.shape) for d in ds] == [(n, 0), (n, 2)]
    torch.autograd.grad([d.sum() for d in ds], inputs)


def test_bytes_are_counted():
    w, s = torch.zeros(4, 2, 3, 3), torch.zeros(5, 2)
    assert bytes_moved([w], [s]) == 4 * (72 + 10 + 2 * 8 + 20)
    assert bytes_moved([w], [s], backward=True) == 4 * (2 * 82 + 3 * 8 + 2 * 20)
