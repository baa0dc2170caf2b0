"""spectral_norm, power_iteration: all layers at once against plain PyTorch, and PyTorch's own parametrization.

Without a GPU the Triton kernels run in Triton's interpreter, so shapes are tiny and launches few.
"""

import sys

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils import parametrizations

import kernels
from ladder.receipts.watch import count_launches
from tests.kernels import opcases
from tests.kernels.opcases import DEVICE
from tests.support.kernel_checks import poison_memory

MODULE = sys.modules["kernels.weights.spectral_norm"]
SHAPES = ((5, 3, 3, 3), (7, 9), (1, 13), (6, 70, 1, 1), (34, 4, 3, 1))  # nothing divides anything
GAINS = (1.0, 0.5**0.5, 2.0, 1.0, 0.3)
OURS = kernels.power_iteration, kernels.spectral_norm
PLAIN = kernels.power_iteration_reference, kernels.spectral_norm_reference
formats = pytest.mark.parametrize("nhwc", [False, True], ids=["nchw", "nhwc"])
torch.set_num_threads(1)


def layers(shapes=SHAPES, nhwc=False, dtype=torch.float64, seed=0):
    """Weights, us and vs, which have followed the weights for two steps: across random ones sigma would cancel."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    weights = [normal(*shape).to(DEVICE, dtype) for shape in shapes]
    if nhwc:
        weights = [w.contiguous(memory_format=torch.channels_last) if w.dim() == 4 else w for w in weights]
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    us, vs = (
        [torch.nn.functional.normalize(normal(n), dim=0).to(DEVICE, wide) for n in sizes]
        for sizes in zip(*((len(w), w[0].numel()) for w in weights), strict=True)
    )
    for _ in range(2):
        kernels.power_iteration_reference(weights, us, vs)
    return [w.requires_grad_() for w in weights], us, vs


def derive(ops, weights, us, vs, iterations=0, **how) -> list[Tensor]:
    """Return u and v after some iterations, then all that opcases.values_and_grads takes of the results."""
    iterate, norm = ops
    us, vs = ([t.clone() for t in each] for each in (us, vs))
    for _ in range(iterations):
        iterate(weights, us, vs)
    return [*us, *vs, *opcases.values_and_grads(lambda *w: norm(list(w), us, vs, **how), weights)]


@formats
def test_values_and_both_gradients_agree_with_plain_pytorch(nhwc):
    made = layers(nhwc=nhwc)
    found = [derive(ops, *made, iterations=3, gains=GAINS) for ops in (OURS, PLAIN)]
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)
    count, wanted = len(SHAPES), [w.stride() for w in made[0]]
    assert [t.stride() for t in found[0][2 * count : 5 * count]] == 3 * wanted


def test_the_power_iteration_finds_the_norm():
    weights, us, vs = layers()
    for _ in range(40):
        kernels.power_iteration_reference(weights, us, vs)
    for y in kernels.spectral_norm(weights, us, vs):
        assert float(torch.linalg.matrix_norm(y.detach().flatten(1), 2)) == pytest.approx(1, abs=0.02)


def test_it_is_pytorch_s_own_parametrization():
    for weight, u, v in zip(*layers(), strict=True):
        theirs = torch.nn.Module()
        theirs.weight = torch.nn.Parameter(weight.detach().clone())
        parametrizations.spectral_norm(theirs)
        kept = theirs.parametrizations.weight[0]
        kept._u.copy_(u)
        kept._v.copy_(v)
        expected = theirs.weight
        kernels.power_iteration([weight], [u], [v])
        (y,) = kernels.spectral_norm([weight], [u], [v])
        torch.testing.assert_close((y, u, v), (expected, kept._u, kept._v))
        g = torch.randn_like(y)
        want = torch.autograd.grad(expected, theirs.parametrizations.weight.original, g)
        torch.testing.assert_close(torch.autograd.grad(y, weight, g), want)


@formats
def test_gradients_of_gradients_are_those_of_the_function(nhwc):
    weights, us, vs = layers(((2, 3, 2, 1), (3, 2)), nhwc=nhwc)
    function = lambda *w: tuple(kernels.spectral_norm(w, us, vs, gains=(1.0, 0.7)))  # noqa: E731
    assert gradcheck(function, weights, fast_mode=True)
    assert gradgradcheck(function, weights, fast_mode=True)


@hypothesis.settings(max_examples=8, deadline=None, derandomize=True)
@hypothesis.given(
    shapes=st.lists(
        st.tuples(*(st.integers(1, most) for most in (40, 9, 3, 3))),
        min_size=1,
        max_size=4,
    ),
    nhwc=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shapes(shapes, nhwc, seed):
    made = layers(shapes, nhwc, seed=seed)
    torch.testing.assert_close(derive(OURS, *made, 1), derive(PLAIN, *made, 1), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_sums_are_kept_in_full_precision(dtype):
    weights, us, vs = layers(nhwc=True, dtype=dtype)
    exact = [w.detach().double().requires_grad_() for w in weights]
    ys = kernels.spectral_norm(weights, us, vs)
    want = kernels.spectral_norm_reference(exact, *([t.double() for t in each] for each in (us, vs)))
    gs = [torch.randn_like(y) for y in ys]
    got = [*ys, *torch.autograd.grad(ys, weights, gs)]
    want = [*want, *torch.autograd.grad(want, exact, [g.double() for g in gs])]
    assert all(t.dtype is dtype for t in got)
    eps = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close([t.double() for t in got], want, rtol=eps, atol=eps)


def test_it_writes_what_convolutions_take_and_its_gradient_is_the_weight_s():
    weights, us, vs = layers(dtype=torch.float32, nhwc=True)
    with torch.autocast(DEVICE, torch.bfloat16):
        ys, want = (ops[1](weights, us, vs) for ops in (OURS, PLAIN))
        assert kernels.spectral_norm(weights, us, vs, dtype=torch.float32)[0].dtype is torch.float32
    assert {y.dtype for y in (*ys, *want)} == {torch.bfloat16}
    torch.testing.assert_close(ys, want, rtol=2**-7, atol=1e-6)
    grads = torch.autograd.grad(ys, weights, [torch.randn_like(y) for y in ys])
    assert [(g.dtype, g.stride()) for g in grads] == [(torch.float32, w.stride()) for w in weights]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0], ids=str)
def test_what_is_not_finite_comes_out_where_the_reference_s_does(value):
    """And a weight of zeros, whose norm is none; neighbours of such a layer keep their values."""
    weights, us, vs = layers(nhwc=True)
    with torch.no_grad():
        (weights[1] if value == 0 else weights[1][2, 3]).fill_(value)
    found = [derive(ops, weights, us, vs, 1) for ops in (OURS, PLAIN)]
    torch.testing.assert_close(*found, equal_nan=True)
    first, second = found[0][2 * len(SHAPES) :][:2]
    assert first.isfinite().all() and not second.isfinite().all()


@pytest.mark.parametrize(
    "view",
    [lambda w: w[:1].expand(6, -1, -1, -1), lambda w: w.transpose(2, 3), lambda w: w[:, ::2]],
    ids=["expanded", "transposed", "sliced"],
)
def test_weights_that_are_no_block_of_memory(view):
    weight = view(torch.randn(6, 4, 3, 3, dtype=torch.float64, device=DEVICE)).requires_grad_()
    _, us, vs = layers((tuple(weight.shape),))
    torch.testing.assert_close(*(derive(ops, [weight], us, vs, 1) for ops in (OURS, PLAIN)))


def test_every_element_is_written(monkeypatch):
    """Memory arrives full of NaN; nothing of it may be left, nor be added up."""
    made = layers(nhwc=True)
    poison_memory(monkeypatch)
    assert all(t.isfinite().all() for t in derive(OURS, *made, 1))


def test_each_is_two_launches_for_all_layers():
    weights, us, vs = layers(dtype=torch.float32)
    for run, names in (
        (lambda: kernels.power_iteration(weights, us, vs), ["spectral_columns_kernel", "spectral_rows_kernel"]),
        (lambda: kernels.spectral_norm(weights, us, vs), ["spectral_rows_kernel", "spectral_scale_kernel"]),
    ):  # fmt: skip
        with count_launches() as seen:
            ys = run()
        assert sorted(seen) == names and {each["calls"] for each in seen.values()} == {1}
    with count_launches() as seen:
        torch.autograd.grad(ys, weights, [torch.ones_like(y) for y in ys])
    assert sorted(seen) == ["spectral_grad_kernel", "spectral_products_kernel"]


def test_a_backward_pass_after_the_next_iteration_is_refused():
    """u and v have moved under it: PyTorch's own error, instead of the gradient at another point."""
    weights, us, vs = layers()
    y = kernels.spectral_norm(weights, us, vs)[0]
    kernels.power_iteration(weights, us, vs)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_bytes_are_weights_and_results():
    weights, us, vs = layers(((8, 4, 3, 3), (8, 16)), dtype=torch.float32)
    outs = kernels.spectral_norm_reference(weights, us, vs, dtype=torch.bfloat16)
    elements = 8 * 36 + 8 * 16
    assert MODULE.bytes_moved(weights, outs) == elements * (4 + 2)
    assert MODULE.bytes_moved(weights, outs, backward=True) == elements * (4 + 2 + 4)


def test_u_and_v_that_cannot_be_written_in_place_and_a_gain_too_few_are_refused():
    weights, us, vs = layers(((4, 6),))
    with pytest.raises(ValueError, match="must be contiguous"):
        kernels.power_iteration(weights, [us[0].repeat_interleave(2)[::2]], vs)
    with pytest.raises(ValueError, match="a gain for each of 1 weights, got 2"):
        kernels.spectral_norm(weights, us, vs, gains=(1.0, 1.0))


@pytest.mark.gpu
def test_two_runs_are_bit_identical():
    """Whichever program comes last takes the sum, and takes it in the same order."""
    shapes = ((512, 512, 3, 3), (512, 8192), (64, 3, 1, 1), (512, 513, 3, 3), (256, 128, 3, 3))
    made = layers(shapes, nhwc=True, dtype=torch.float32)
    found = [derive(OURS, *made, 1) for _ in range(20)]
    torch.testing.assert_close(found[0][:10], derive(PLAIN, *made, 1)[:10], rtol=1e-4, atol=1e-5)
    for each in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], each, strict=True))
