"""Gradients of weights that are taken from autograd: which are, where they arrive, and that nobody looks too early."""

import contextlib
import sys

import pytest
import torch
import torch.nn.functional as F

import kernels
from kernels.linear.weight_gradients import Branch, WeightGradients, defer
from tests.kernels.opcases import BINOMIAL, DEVICE

torch.set_num_threads(1)


def numbers(*shape, leaf=True, turned=False):
    t = torch.randn(*shape, dtype=torch.float64, device=DEVICE)
    return (t.transpose(0, 1).contiguous().transpose(0, 1) if turned else t).requires_grad_(leaf)


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


def collect(loss, leaves):
    into = Late(leaves)
    with into.collecting():
        loss().backward()
    return into


def compare(loss, leaves, others=()):
    """Return the collector of a backward pass whose gradients are those that autograd leaves by itself."""
    every = [*leaves, *others]
    loss().backward()
    expected = [each.grad for each in every]
    for each in every:
        each.grad = None
    into = collect(loss, leaves)
    torch.testing.assert_close([each.grad for each in every], expected)
    return into


def penalize(y, x, twice=True):
    """Return R1's penalty or path length's, or without ``twice`` the squares of y."""
    y = sum(each.square().sum() for each in (y if isinstance(y, list) else [y]))
    return torch.autograd.grad(y, x, create_graph=True)[0].square().sum() if twice else y


CASES = {
    "convolution": lambda w, x: kernels.conv2d(x, w, padding=1),
    "transposed": lambda w, x: kernels.conv_transpose2d(x, w.transpose(0, 1), stride=2),
    "used twice": lambda w, x: kernels.conv2d(kernels.conv2d(x, w, padding=1), w, padding=1),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_what_is_taken_arrives_where_autograd_would_have_left_it(case, turned):
    w, x = numbers(4, 4, 3, 3, turned=turned), numbers(2, 4, 5, 6, leaf=False)
    loss = lambda: (CASES[case](w, x) ** 2).sum()  # noqa: E731
    kept = turned == (case == "transposed")  # else the convolution gets a copy that lies as it wants it
    assert compare(loss, [w]).counts.total() == kept * (2 if case == "used twice" else 1)
    once = w.grad.clone()
    collect(loss, [w])  # what is there already is added to, as autograd does
    torch.testing.assert_close(w.grad, 2 * once)


def test_second_derivatives_are_taken_when_they_are_final():
    w, x = numbers(4, 4, 3, 3), numbers(2, 4, 5, 6)
    into = compare(lambda: penalize(kernels.conv2d(x, w, padding=1), x), [w])
    assert into.counts.total() == 2  # through the gradient, and through what it was a gradient of


def test_what_is_no_leaf_is_left_to_autograd_and_both_are_added():
    w, x = numbers(3, 4, 3, 3), numbers(2, 4, 5, 6, leaf=False)

    def loss():
        padded = F.pad(w, (0, 0, 0, 0, 0, 0, 0, 1))
        y = kernels.conv2d(x, padded, padding=1).square().sum()
        return y + kernels.conv2d(x, w, padding=1).sum() + kernels.conv2d(x, w[:2]).sum()

    assert compare(loss, [w]).counts.total() == 1


SUMS = {
    "bias_act": lambda x, b: kernels.bias_act(x, b),
    "residual": lambda x, b: kernels.bias_act_residual(x, b, x),
    "act_filter": lambda x, b: kernels.act_filter(x, b, BINOMIAL, padding=2),
    "to_rgb": lambda x, b: kernels.to_rgb(x, x.new_ones(1, 4, 1, 1), x.new_ones(2, 4).requires_grad_(), b),
}


@pytest.mark.parametrize("case", SUMS)
def test_a_sum_that_nothing_but_the_optimizer_reads_is_taken(case):
    b, x = numbers(1 if case == "to_rgb" else 4), numbers(2, 4, 40, 48)
    into = compare(lambda: (SUMS[case](x, b) ** 2).sum(), [b, x])
    assert into.counts[b.data_ptr()] == 1 and into.counts[x.data_ptr()] == 0


@pytest.mark.parametrize("case", ["bias_act", "act_filter", "convolution"])
def test_a_gradient_that_is_differentiated_itself_is_not_taken(case):
    x = numbers(2, 4, 40, 48, leaf=False)
    leaf = numbers(4, 4, 3, 3) if case == "convolution" else numbers(4)
    with WeightGradients([leaf], Branch("cpu")).collecting():
        y = CASES[case](leaf, x) if case == "convolution" else SUMS[case](x, leaf)
        (g,) = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)
    assert g.requires_grad and leaf.grad is None


def test_a_sum_beside_a_style_s_is_left_to_autograd():
    b, scale, x = numbers(4), numbers(2, 4), numbers(2, 4, 40, 48, leaf=False)
    assert not compare(lambda: (kernels.bias_act(x, b, scale=scale) ** 2).sum(), [b, scale]).counts


@pytest.mark.parametrize("twice", [False, True])
def test_demodulation_s_gradient_is_taken_and_the_style_s_is_not(twice):
    w, style = numbers(3, 4, 3, 3), numbers(2, 4)
    into = compare(lambda: penalize(kernels.demodulate(w, style), style, twice), [w], [style])
    assert into.counts.total() == 1 + twice


@pytest.mark.parametrize("twice", [False, True])
def test_large_fully_connected_layers_are_taken(twice, monkeypatch):
    monkeypatch.setattr(sys.modules["kernels.linear.dense"], "LARGE", 1)
    leaves = [numbers(3, 4), numbers(5, 4), numbers(3), numbers(5)]
    x = numbers(2, 2, 4)

    def loss():
        return penalize(list(kernels.dense_group(x, leaves[:2], leaves[2:], [0, 1])), x, twice)

    assert compare(loss, leaves, [x]).counts.total() >= 4


def test_what_is_read_is_kept_until_the_join():
    """Memory that were freed before could be written to by the first stream while the second still reads it."""
    w, x = numbers(4, 4, 3, 3), numbers(2, 4, 5, 6, leaf=False)
    branch, held = Branch("cpu"), []
    into, honest = WeightGradients([w], branch), branch.join

    def join():
        held.append([cell.cell_contents for f in into._held for cell in f.__closure__])
        honest()

    branch.join = join
    with into.collecting():
        kernels.conv2d(x, w).sum().backward()
    assert sum(map(torch.is_tensor, held[0])) == 3  # g, x and the weight
    assert not into._held


def test_an_error_leaves_nobody_collecting():
    w = numbers(4, 4, 3, 3)
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
@pytest.mark.parametrize("captured", [False, True])
def test_a_late_stream_is_waited_for_and_what_it_reads_is_not_overwritten(captured):
    w = torch.randn(64, 64, 3, 3, device="cuda").requires_grad_()
    x = torch.randn(8, 64, 32, 32, device="cuda")

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

    (expected,) = torch.autograd.grad(loss(), w)
    graph = torch.cuda.CUDAGraph()
    for _ in range(1 if captured else 2):
        w.grad, into = None, Slow([w], Branch("cuda", -1))
        with torch.cuda.graph(graph) if captured else contextlib.nullcontext(), into.collecting():
            loss().backward()
    for _ in range(3):
        if captured:
            graph.replay()
        torch.testing.assert_close(w.grad, expected, rtol=1e-3, atol=1e-5)
