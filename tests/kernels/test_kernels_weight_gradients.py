"""Gradients of weights that are taken from autograd: which are, where they arrive, and that nobody looks too early."""

import contextlib
import sys

import pytest
import torch
import torch.nn.functional as F

import kernels
from kernels.linear.weight_gradients import Branch, WeightGradients, defer

torch.set_num_threads(1)
DEVICE = "cpu" if kernels.common.tiles.INTERPRETED else "cuda"


def leaf(*shape, turned=False):
    weight = torch.randn(*shape, dtype=torch.float64, device=DEVICE)
    weight = weight.transpose(0, 1).contiguous().transpose(0, 1) if turned else weight
    return weight.requires_grad_()


def image(*shape):
    return torch.randn(*shape, dtype=torch.float64, device=DEVICE)


class Late(WeightGradients):
    """A second stream that is as late as it can be: nothing runs before the join."""

    def __init__(self, leaves):
        super().__init__(leaves, Branch("cpu"))
        self.waiting = []
        self.branch.join = self.run

    def take(self, weights, compute):
        found = [self._leaf(weight) for weight in weights]
        if any(each is None for each, _ in found):
            return False
        self._held.append(compute)
        self.waiting.append(lambda: super(Late, self).take(weights, compute))
        return True

    def run(self):
        while self.waiting:
            assert self.waiting.pop(0)()


def collected(loss, leaves, kind=Late):
    into = kind(leaves) if kind is Late else kind(leaves, Branch("cpu"))
    with into.collecting():
        loss().backward()
    return into


def gradients(loss, leaves):
    for each in leaves:
        each.grad = None
    loss().backward()
    found = [each.grad for each in leaves]
    for each in leaves:
        each.grad = None
    return found


CASES = {
    "convolution": lambda w, x: kernels.conv2d(x, w, padding=1),
    "transposed": lambda w, x: kernels.conv_transpose2d(x, w.transpose(0, 1), stride=2),
    "used twice": lambda w, x: kernels.conv2d(kernels.conv2d(x, w, padding=1), w, padding=1),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_what_is_taken_arrives_where_autograd_would_have_left_it(case, turned):
    w, x = leaf(4, 4, 3, 3, turned=turned), image(2, 4, 5, 6)

    def loss():
        return (CASES[case](w, x) ** 2).sum()

    (expected,) = gradients(loss, [w])
    into = collected(loss, [w])
    kept = turned == (case == "transposed")  # else the convolution gets a copy that lies as it wants it
    assert into.counts.total() == kept * (2 if case == "used twice" else 1)
    torch.testing.assert_close(w.grad, expected)
    collected(loss, [w])  # what is there already is added to, as autograd does
    torch.testing.assert_close(w.grad, 2 * expected)


def test_second_derivatives_are_taken_when_they_are_final():
    w, x = leaf(4, 4, 3, 3), image(2, 4, 5, 6).requires_grad_()

    def loss():
        y = (kernels.conv2d(x, w, padding=1).square()).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return (g**2).sum()

    (expected,) = gradients(loss, [w])
    into = collected(loss, [w])
    assert into.counts.total() == 2  # through the gradient, and through what it was a gradient of
    torch.testing.assert_close(w.grad, expected)


def test_what_is_no_leaf_is_left_to_autograd_and_both_are_added():
    w, x = leaf(3, 4, 3, 3), image(2, 4, 5, 6)

    def loss():
        padded = F.pad(w, (0, 0, 0, 0, 0, 0, 0, 1))
        y = kernels.conv2d(x, padded, padding=1).square().sum()
        return y + kernels.conv2d(x, w, padding=1).sum() + kernels.conv2d(x, w[:2]).sum()

    (expected,) = gradients(loss, [w])
    into = collected(loss, [w])
    assert into.counts.total() == 1
    torch.testing.assert_close(w.grad, expected)


def test_a_gradient_that_is_differentiated_itself_is_not_taken():
    w, x = leaf(4, 4, 3, 3), image(2, 4, 5, 6)
    with WeightGradients([w], Branch("cpu")).collecting():
        y = kernels.conv2d(x, w).square().sum()
        (g,) = torch.autograd.grad(y, w, create_graph=True)
    assert g is not None and g.requires_grad and w.grad is None


TAPS = (0.125, 0.375, 0.375, 0.125)
SUMS = {
    "bias_act": lambda x, b: kernels.bias_act(x, b),
    "residual": lambda x, b: kernels.bias_act_residual(x, b, x),
    "act_filter": lambda x, b: kernels.act_filter(x, b, TAPS, padding=2),
    "to_rgb": lambda x, b: kernels.to_rgb(x, x.new_ones(1, 4, 1, 1), x.new_ones(2, 4).requires_grad_(), b),
}


@pytest.mark.parametrize("case", SUMS)
def test_a_sum_that_nothing_but_the_optimizer_reads_is_taken(case):
    b, x = leaf(1 if case == "to_rgb" else 4), image(2, 4, 40, 48).requires_grad_()

    def loss():
        return (SUMS[case](x, b) ** 2).sum()

    expected = gradients(loss, [b, x])
    into = collected(loss, [b, x])
    assert into.counts[b.data_ptr()] == 1 and into.counts[x.data_ptr()] == 0
    for each, wanted in zip((b, x), expected, strict=True):
        torch.testing.assert_close(each.grad, wanted)


@pytest.mark.parametrize("case", ["bias_act", "act_filter"])
def test_a_sum_that_is_differentiated_itself_is_not_taken(case):
    b, x = leaf(4), image(2, 4, 40, 48)
    with WeightGradients([b], Branch("cpu")).collecting():
        (g,) = torch.autograd.grad(SUMS[case](x, b).square().sum(), b, create_graph=True)
    assert g is not None and b.grad is None


def test_a_sum_beside_a_style_s_is_left_to_autograd():
    b, scale, x = leaf(4), leaf(2, 4), image(2, 4, 40, 48)
    into = collected(lambda: (kernels.bias_act(x, b, scale=scale) ** 2).sum(), [b, scale])
    assert not into.counts and b.grad is not None and scale.grad is not None


@pytest.mark.parametrize("twice", [False, True])
def test_demodulation_s_gradient_is_taken_and_the_style_s_is_not(twice):
    w, style = leaf(3, 4, 3, 3), image(2, 4).requires_grad_()

    def loss():
        y = kernels.demodulate(w, style).square().sum()
        if not twice:
            return y
        (g,) = torch.autograd.grad(y, style, create_graph=True)
        return (g**2).sum()

    expected = gradients(loss, [w, style])
    into = collected(loss, [w])
    assert into.counts.total() == 1 + twice
    for mine, theirs in zip((w.grad, style.grad), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("twice", [False, True])
def test_large_fully_connected_layers_are_taken(twice, monkeypatch):
    monkeypatch.setattr(sys.modules["kernels.linear.dense"], "LARGE", 1)
    leaves = [leaf(3, 4), leaf(5, 4), leaf(3), leaf(5)]
    x = image(2, 2, 4).requires_grad_()

    def loss():
        ys = kernels.dense_group(x, leaves[:2], leaves[2:], [0, 1])
        total = sum(y.square().sum() for y in ys)
        if not twice:
            return total
        (g,) = torch.autograd.grad(total, x, create_graph=True)
        return (g**2).sum()

    expected = gradients(loss, [*leaves, x])
    into = collected(loss, leaves)
    assert into.counts.total() >= 4
    for mine, theirs in zip([*(each.grad for each in leaves), x.grad], expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_what_is_read_is_kept_until_the_join():
    """Memory that were freed before could be written to by the first stream while the second still reads it."""
    w, x = leaf(4, 4, 3, 3), image(2, 4, 5, 6)
    branch, held = Branch("cpu"), []
    into = WeightGradients([w], branch)
    honest = branch.join

    def join():
        held.append([cell.cell_contents for f in into._held for cell in f.__closure__])
        honest()

    branch.join = join
    with into.collecting():
        kernels.conv2d(x, w).sum().backward()
    assert sum(torch.is_tensor(each) for each in held[0]) == 3  # g, x and the weight
    assert not into._held


def test_an_error_leaves_nobody_collecting():
    w = leaf(4, 4, 3, 3)
    into = WeightGradients([w], Branch("cpu"))
    with pytest.raises(ZeroDivisionError), into.collecting():
        assert defer([w], lambda: [torch.ones_like(w)]) is False  # grad mode is on
        with torch.no_grad():
            assert defer([w], lambda: [torch.ones_like(w)]) is True
        raise ZeroDivisionError
    with torch.no_grad():
        assert defer([w], lambda: pytest.fail("nobody collects")) is False
    assert w.grad is None


@pytest.mark.gpu
def test_a_late_stream_is_waited_for_and_what_it_reads_is_not_overwritten():
    w = torch.randn(64, 64, 3, 3, device="cuda").requires_grad_()
    x = torch.randn(8, 64, 32, 32, device="cuda")
    branch = Branch("cuda", -1)

    class Slow(WeightGradients):
        def take(self, weights, compute):
            def late():
                torch.cuda._sleep(20_000_000)
                return compute()

            return super().take(weights, late)

    def loss():
        y = x
        for _ in range(4):
            y = kernels.conv2d(y, w, padding=1) / 24
        return y.square().mean()

    (expected,) = gradients(loss, [w])
    for graph in (None, torch.cuda.CUDAGraph()):
        for _ in range(2):
            w.grad = None
            into = Slow([w], branch)
            with torch.cuda.graph(graph) if graph else contextlib.nullcontext(), into.collecting():
                loss().backward()
            if graph:
                break
        for _ in range(3):
            if graph:
                graph.replay()
            torch.testing.assert_close(w.grad, expected, rtol=1e-3, atol=1e-5)
