"""Ops of maps beyond the table of `opcases.py`: kinks, joined filters, residuals, images, the loss and the fill."""

import sys

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import kernels
from kernels.common.fill import BLOCK, fill_words
from kernels.linear import rgb_kernels
from kernels.linear.rgb_weights import styled, styled_group
from kernels.pointwise import logistic_loss as losses
from kernels.pointwise.logistic_loss import logistic_loss, logistic_loss_reference
from ladder.receipts.watch import count_launches
from stylegan_lite import networks
from tests.kernels import opcases
from tests.kernels.opcases import BINOMIAL, CASES, DEVICE, FORMATS, agree, functions, make_inputs
from tests.support import interpreter

launching = sys.modules["kernels.upfirdn.filtered_act_launch"]
LOPSIDED = (0.3, -1.0, 2.0, 0.5, 0.1)  # nothing about it is symmetric
every_format = pytest.mark.parametrize("layout", FORMATS)
torch.set_num_threads(1)


def numbers(*shape: int, layout="nchw", dtype=torch.float64) -> Tensor:
    x = torch.randn(shape, dtype=torch.float64, device=DEVICE)
    x = x.contiguous(memory_format=FORMATS[layout]) if len(shape) == 4 else x
    return x.to(dtype).requires_grad_()


def record_saved(function) -> tuple[Tensor, set[int]]:
    """Return y and where the tensors lie that its backward pass keeps."""
    saved = set()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.add(t.data_ptr()) or t, lambda t: t):
        return function(), saved


# ---- bias_act, bias_act_modulate -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"clamp": 0.5}, {"slope": 0.0}, {"slope": -0.3}, {"act": "linear"}], ids=str
)
def test_at_the_kinks_the_gradient_is_pytorchs(options):
    """Exactly zero (either sign), exactly at the bound, and one rounding beside each."""
    bound = torch.tensor([0.0, -0.0, 0.5, -0.5, -2.5], device=DEVICE)
    up, down = torch.nextafter(bound, bound + 1), torch.nextafter(bound, bound - 1)
    x, found = torch.stack([bound, up, down]).requires_grad_(), []
    for op in (kernels.bias_act, kernels.bias_act_reference):
        y = op(x, gain=1.0, **options)
        found.append((y, *torch.autograd.grad(y.sum(), x)))
    torch.testing.assert_close(*found, rtol=0, atol=0)


@every_format
def test_the_bias_gradient_loses_no_mass_in_bfloat16(layout):
    """4087 ones added one by one in bfloat16 would stop at 256, and even their partial sums would be rounded."""
    x = torch.ones(1, 2, 61, 67, dtype=torch.bfloat16, device=DEVICE).contiguous(
        memory_format=FORMATS[layout]
    )
    bias = torch.zeros(2, device=DEVICE, requires_grad=True)
    (grad,) = torch.autograd.grad(kernels.bias_act(x, bias, gain=1.0).sum(), bias)
    assert grad.tolist() == [4087, 4087]


def test_the_convolutions_output_is_not_kept_where_the_sign_of_y_will_do():
    x, bias = numbers(2, 3, 4, 4), torch.zeros(3, device=DEVICE, dtype=torch.float64)
    y, saved = record_saved(lambda: kernels.bias_act(x, bias))
    assert y.data_ptr() in saved and x.data_ptr() not in saved


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_both_results_alone_has_its_own_gradient(used):
    x, bias, style = numbers(2, 3, 4, 4, layout="nhwc"), numbers(3), numbers(2, 3)
    found = torch.autograd.grad(kernels.bias_act_modulate(x, bias, style)[used].square().sum(), (x, bias))
    y = kernels.bias_act_reference(x, bias)
    want = torch.autograd.grad((y, y * style[:, :, None, None])[used].square().sum(), (x, bias))
    torch.testing.assert_close(found, want)


def test_noise_has_a_gradient_where_it_is_asked_for():
    x, bias, style, strength, noise = (numbers(*s) for s in ((2, 3, 4, 4), (3,), (2, 3), (), (2, 1, 4, 4)))
    found = []
    for op in (kernels.bias_act_modulate, kernels.bias_act_modulate_reference):
        y, z = op(x, bias, style, noise=noise, strength=strength)
        found.append(torch.autograd.grad((y + z).square().sum(), (x, noise)))
    torch.testing.assert_close(*found)


def test_in_bf16_nothing_is_further_from_fp32_than_with_two_ops(monkeypatch):
    """In any direction: fewer maps are rounded on the way."""
    torch.manual_seed(1)
    interpreter.round_to_nearest(monkeypatch)
    maps = [numbers(2, 8, 12, 12, layout="nhwc").detach().bfloat16() for _ in range(3)]
    noise, rows = numbers(2, 1, 12, 12).detach(), [numbers(*size) for size in ((8,), (2, 8), (), (2, 8))]
    ways = torch.randn(2, 8, 12, 12), torch.randn(2, 8), torch.randn(2, 8)

    def two(x, bias, style, **how):
        y = kernels.bias_act(x, bias, **how)
        return y, kernels.modulate(y, style)

    def derivatives(op, dtype):
        x, *gs = (t.to(dtype, copy=True).requires_grad_() for t in maps)
        bias, style, strength, scale = (t.detach().float().requires_grad_() for t in rows)
        ys = op(x, bias, style, noise=noise.float(), strength=strength, scale=scale)
        given = [x, style, scale]
        first = torch.autograd.grad(ys, [*given, bias, strength], gs, retain_graph=True)
        again = torch.autograd.grad(ys, given, gs, create_graph=True)
        along = [way.to(DEVICE, t.dtype) for way, t in zip(ways, again, strict=True)]
        return [*ys, *first, *torch.autograd.grad(again, [*given, *gs], along)]

    exact = derivatives(two, torch.float32)
    apart, joined = (
        [
            float(((a.float() - b).norm() / b.norm()).detach())
            for a, b in zip(derivatives(op, torch.bfloat16), exact, strict=True)
        ]
        for op in (two, kernels.bias_act_modulate)
    )
    assert all(b <= 1.1 * a for a, b in zip(apart, joined, strict=True)), (apart, joined)
    assert sum(joined) < sum(apart)


# ---- bias_act_residual, fork_upfirdn2d -------------------------------------------------------------------------------


def test_the_mask_is_x_s_whatever_sign_y_has():
    x = torch.tensor([[1.0, -1.0, 1.0, -1.0]], device=DEVICE, requires_grad=True)
    residual = torch.tensor([[-9.0, 9.0, 9.0, -9.0]], device=DEVICE)
    y = kernels.bias_act_residual(x, None, residual, gain=1.0)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [[1, pytest.approx(0.2), 1, pytest.approx(0.2)]]


@every_format
def test_a_residual_of_another_memory_format_meets_x_s(layout):
    """Under autocast; its gradient comes back in its own dtype."""
    other = "nchw" if layout == "nhwc" else "nhwc"
    x, residual = (numbers(2, 3, 4, 5, layout=each, dtype=torch.float32) for each in (layout, other))
    bias = numbers(3, dtype=torch.float32)
    with torch.autocast(DEVICE, torch.bfloat16):
        y = kernels.bias_act_residual(x, bias, residual)
        want = kernels.bias_act_residual_reference(x, bias, residual)
    assert y.dtype == torch.bfloat16 and y.is_contiguous(memory_format=FORMATS[layout])
    torch.testing.assert_close(y, want, rtol=0.02, atol=0.02)
    grads = torch.autograd.grad(y.float().sum(), (x, bias, residual))
    assert [g.dtype for g in grads] == [torch.float32] * 3
    torch.testing.assert_close(grads[2], torch.ones_like(residual))


def test_the_residual_s_gradient_is_y_s_own_and_nothing_more_than_x_is_kept():
    x, residual = (numbers(2, 3, 4, 4, layout="nhwc", dtype=torch.float32) for _ in range(2))
    bias = numbers(3, dtype=torch.float32)
    y, saved = record_saved(lambda: kernels.bias_act_residual(x, bias, residual))
    assert saved == {x.data_ptr(), bias.data_ptr()}
    g = torch.ones_like(y)
    assert torch.autograd.grad(y, residual, g)[0].data_ptr() == g.data_ptr()


def fork(x, op=kernels.fork_upfirdn2d):
    return op(x, LOPSIDED, down=2, padding=(1, 2), gain=1.7)


@pytest.mark.parametrize("used", [0, 1])
def test_one_branch_alone_has_its_own_gradient(used):
    x = numbers(1, 2, 4, 4, layout="nhwc")
    ops = (kernels.fork_upfirdn2d, kernels.fork_upfirdn2d_reference)
    torch.testing.assert_close(*(torch.autograd.grad(fork(x, op)[used].square().sum(), x) for op in ops))


@every_format
def test_the_fork_in_bfloat16_rounds_the_sum_once(layout):
    x = numbers(2, 3, 6, 4, layout=layout, dtype=torch.bfloat16)
    exact = x.detach().double().requires_grad_()
    a, b = (numbers(*s).detach().bfloat16() for s in ((2, 3, 6, 4), (2, 3, 3, 2)))
    (got,) = torch.autograd.grad(fork(x), x, (a, b))
    (want,) = torch.autograd.grad(
        fork(exact, kernels.fork_upfirdn2d_reference), exact, (a.double(), b.double())
    )
    torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=1e-2)
    assert got.is_contiguous(memory_format=FORMATS[layout])


def test_the_input_is_not_copied_and_the_kernel_is_launched_once_each_way():
    x = numbers(1, 2, 4, 4, layout="nhwc")
    with count_launches() as seen:
        same, low = fork(x)
        torch.autograd.grad((same.sum() + low.sum()), x)
    assert same.data_ptr() == x.data_ptr()
    assert seen["upfirdn2d_kernel"]["calls"] == 2 and "add" in seen["upfirdn2d_kernel"]["tensors"]


# ---- act_filter, filter_act, filter_act_modulate ---------------------------------------------------------------------

FILTERED = ("act_filter", "filter_act", "filter_act_modulate")


@pytest.fixture
def fresh_covers():
    launching._cover.cache_clear()
    yield launching._cover.cache_clear
    launching._cover.cache_clear()


def compute_once(function, inputs: list[Tensor]) -> list[Tensor]:
    """Return y and its gradients along fixed numbers."""
    y = function(*inputs)
    (g,) = opcases.make_directions([y])
    return [y.detach(), *torch.autograd.grad(y, [t for t in inputs if t.requires_grad], g.detach())]


@pytest.mark.parametrize("padding", [1, (0, 3, 2, 1)], ids=str)
@pytest.mark.parametrize("op", FILTERED)
def test_any_padding_agrees_with_the_reference(op, padding, monkeypatch):
    call = opcases.filtered(op, alone=True, padding=padding)
    inputs = "NCHW C NC" if op.endswith("modulate") else "NCHW C"
    monkeypatch.setitem(CASES, "padded", opcases.Case(inputs, call))
    agree("padded", make_inputs("padded", (2, 3, 5, 4), "nhwc"))


@every_format
def test_what_pads_an_activation_is_zero_and_not_the_activated_bias(layout):
    x = torch.zeros(1, 1, 2, 2, device=DEVICE).contiguous(memory_format=FORMATS[layout])
    y = kernels.act_filter(x, torch.ones(1, device=DEVICE), (1.0, 1.0), padding=1, gain=1.0)
    want = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]], device=DEVICE)
    torch.testing.assert_close(y[0, 0], want)


@pytest.mark.parametrize("entry", sorted(launching.CONFIGS, key=str), ids=str)
def test_every_configuration_agrees_with_the_reference(entry, monkeypatch, fresh_covers):
    """As it runs for large images: no strip is shortened."""
    name, nhwc = entry[-2:]
    monkeypatch.setattr(launching, "config", lambda *_: launching.CONFIGS[entry])
    case = name.split("_grad")[0]
    inputs, found = make_inputs(case, (1, 2, 9, 9), "nhwc" if nhwc else "nchw"), []
    wanted = [t for t in inputs if t.requires_grad]
    for function in functions(case):
        y = function(*inputs)
        (g,) = opcases.make_directions([y])
        if name.endswith("_grad"):
            y = torch.autograd.grad(y, wanted, g, create_graph=name.endswith("grad_grad"))[0]
        if name.endswith("grad_grad"):
            y = torch.autograd.grad(y.sin().sum(), g)[0]
        found.append(y.detach())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("op", FILTERED)
def test_a_backward_pass_is_one_launch_and_its_sums(op):
    """Only path length's second derivative runs the separate ops."""
    inputs = make_inputs(op, (2, 3, 4, 5), "nhwc")
    with count_launches() as seen:
        torch.autograd.grad(functions(op)[0](*inputs).sum(), [t for t in inputs if t.requires_grad])
    counts = {name: each["calls"] for name, each in seen.items() if "sum" not in name}
    assert counts == {f"{op}_kernel": 1, f"{op}_grad_kernel": 1}


@every_format
@pytest.mark.parametrize("style", [0.0, -0.0, 1e-30, -1e-30], ids=str)
def test_a_style_of_zero_has_its_gradient(style, layout):
    """y then tells nothing of the activation, but for what is left of it."""
    inputs = make_inputs("filter_act_modulate", (2, 3, 4, 5), layout)
    styles = inputs[4].detach()
    styles[0, 1] = styles[1, 2] = style
    agree("filter_act_modulate", inputs)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 0.1), (torch.bfloat16, 0.02)], ids=str)
def test_a_style_of_zero_has_about_its_gradient_in_low_precision(dtype, most):
    inputs = [t.detach() for t in make_inputs("filter_act_modulate", (2, 3, 6, 6), "nhwc", torch.float32)]
    inputs[4][0, 1] = 0
    inputs[0], style = inputs[0].to(dtype), inputs[4].requires_grad_()
    y, got = compute_once(functions("filter_act_modulate")[0], inputs)
    exact = [t.detach().double().requires_grad_(t is style) for t in inputs]
    *_, want = compute_once(functions("filter_act_modulate")[1], exact)
    assert y[0, 1].abs().max() < 1e-3
    assert abs(got[0, 1] - want[0, 1]) <= most * want.abs().max() and want[0, 1].abs() > 0.1


def test_strips_agree_with_walks(monkeypatch, fresh_covers):
    """Both ways to cover an image, in 16 bits, where either may be chosen."""
    op, found = "filter_act_modulate", []
    inputs = make_inputs(op, (2, 17, 13, 14), "nhwc", torch.float16)
    for strips in ({}, {name: launching.Strip(8, 16, 16, 2) for name in (op, f"{op}_grad")}):
        monkeypatch.setattr(launching, "STRIPS", strips)
        fresh_covers()
        found.append(compute_once(functions(op)[0], inputs))
    for a, b in zip(*found, strict=True):
        assert (a.double() - b.double()).norm() <= 4e-3 * a.double().norm()


# ---- to_rgb, from_rgb ------------------------------------------------------------------------------------------------


def test_only_what_is_asked_for_is_launched(monkeypatch):
    """The generator's step does not want the discriminator's weights, and R1 wants the image alone."""
    ran, launch = [], rgb_kernels.launch
    record = lambda kernel, *a, **k: (ran.append(kernel.__name__), launch(kernel, *a, **k))  # noqa: E731
    monkeypatch.setattr(rgb_kernels, "launch", record)

    def differentiate(y, by, **how) -> tuple[list[str], tuple[Tensor, ...]]:
        ran.clear()
        grads = torch.autograd.grad(y.sum(), by, **how)
        return list(ran), grads

    image, weight, bias = inputs = make_inputs("from_rgb", (2, 8, 4, 4), "nhwc")
    assert differentiate(kernels.from_rgb(*inputs), [image])[0] == ["rgb_narrow_kernel"]
    y = kernels.from_rgb(image.detach(), weight, bias)
    assert differentiate(y, [weight, bias])[0] == ["rgb_correlate_kernel"]
    names, (gradient,) = differentiate(kernels.from_rgb(*inputs), image, create_graph=True)  # R1
    assert names == ["rgb_narrow_kernel"]
    assert differentiate(gradient.square(), weight)[0] == ["rgb_correlate_kernel"]
    inputs = make_inputs("to_rgb", (2, 8, 4, 4), "nhwc")  # all gradients from one pass
    assert differentiate(kernels.to_rgb(*inputs), inputs)[0] == ["rgb_correlate_kernel"]


@pytest.mark.parametrize("wanted", [slice(0, 2), slice(2, 4), slice(0, 4)], ids=["weights", "styles", "both"])
@pytest.mark.parametrize("samples", [2, 18])
def test_styled_weights_and_their_gradients_are_those_of_the_product(samples, wanted):
    """More samples and channels than a tile has, and a gradient that lies among other numbers."""
    widths = (37, 8)
    inputs = [*(numbers(3, c) for c in widths), *(numbers(samples, c) for c in widths)]
    gs = [numbers(samples, 120)[:, 3 : 3 * c + 3].view(samples, 3, c) for c in widths]

    def product(w, s):
        return [a[None] * b[:, None] for a, b in zip(w, s, strict=True)]

    def one_by_one(w, s):
        return [styled(*each) for each in zip(w, s, strict=True)]

    found = [
        torch.autograd.grad(f(inputs[:2], inputs[2:]), inputs[wanted], gs)
        for f in (styled_group, one_by_one, product)
    ]
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[2])
    if samples == 2:
        ours = lambda *t: styled_group(t[:2], t[2:])  # noqa: E731
        assert gradcheck(ours, inputs, fast_mode=True) and gradgradcheck(ours, inputs, fast_mode=True)


# ---- minibatch_std ---------------------------------------------------------------------------------------------------


@every_format
def test_minibatch_std_is_what_the_model_computes(layout):
    x = numbers(8, 7, 4, 4, layout=layout)
    want = networks.minibatch_std(x, 2, 2, 8)
    torch.testing.assert_close(kernels.minibatch_std(x, 2, parts=2, multiple=8), want)
    assert want.shape[1] == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_statistics_are_kept_in_full_precision(dtype):
    """Samples whose differences a half-precision mean would swallow, and whose dtype autocast leaves alone."""
    x = (numbers(4, 6, 4, 4, layout="nhwc") + 30).to(dtype).detach().requires_grad_()
    exact = x.detach().double().requires_grad_()
    with torch.autocast(DEVICE, torch.bfloat16):
        y = kernels.minibatch_std(x, 4, multiple=8)
    want = kernels.minibatch_std_reference(exact, 4, multiple=8)
    eps, g = torch.finfo(dtype).eps, torch.randn_like(y)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), want, rtol=2 * eps, atol=0)
    (got,), (dx,) = torch.autograd.grad(y, x, g), torch.autograd.grad(want, exact, g.double())
    torch.testing.assert_close(got.double(), dx, rtol=2 * eps, atol=2 * eps)


# ---- logistic_loss ---------------------------------------------------------------------------------------------------


def logits(n: int, dtype=torch.float64) -> Tensor:
    return (3 * numbers(n, 1)).detach().to(dtype).requires_grad_()


@pytest.mark.parametrize(("n", "fakes"), [(8, 0), (16, 8), (6, 6), (7, 3), (1, 0)])
@pytest.mark.parametrize("block", [losses.BLOCK, 4], ids=["one program", "more than it holds"])
def test_the_loss_and_both_derivatives_agree_with_the_reference(n, fakes, block, monkeypatch):
    monkeypatch.setattr(losses, "BLOCK", block)
    x, found = logits(n), []
    for function in (logistic_loss, logistic_loss_reference):
        loss = function(x, fakes)
        (plain,) = torch.autograd.grad(2.5 * loss, x, retain_graph=True)
        (first,) = torch.autograd.grad(loss**2, x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        found.append([loss, plain, first, second])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
    assert gradcheck(lambda x: logistic_loss(x, fakes), x, fast_mode=True)
    assert gradgradcheck(lambda x: logistic_loss(x, fakes), x, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_of_the_loss_are_in_full_precision_under_any_dtype(dtype):
    x = logits(9, dtype)
    exact = x.detach().double().requires_grad_()
    got, want = logistic_loss(x, 4), logistic_loss_reference(exact, 4)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=0)
    (dx,), (exact_dx,) = torch.autograd.grad(got, x), torch.autograd.grad(want, exact)
    assert dx.dtype == dtype
    torch.testing.assert_close(dx.double(), exact_dx, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("value", [-400.0, -60.0, -17.5, 0.0, 17.5, 60.0, 400.0, float("nan")])
def test_far_from_zero_the_loss_loses_nothing_and_does_not_overflow(value):
    x = torch.tensor([[value]], device=DEVICE, requires_grad=True)
    exact, loss = x.detach().double(), logistic_loss(x, 1)
    want, (slope,) = torch.logaddexp(exact, torch.zeros_like(exact)).sum(), torch.autograd.grad(loss, x)
    torch.testing.assert_close(loss.double(), want, rtol=1e-6, atol=1e-38, equal_nan=True)
    torch.testing.assert_close(slope.double(), exact.sigmoid(), rtol=1e-5, atol=1e-38, equal_nan=True)


# ---- the fill of a captured graph, and bytes -------------------------------------------------------------------------


@pytest.mark.skipif(kernels.available() is not None, reason="no GPU, and Triton is not interpreted")
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *((torch.int32, v) for v in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xABABABAB)),
        (torch.int16, 0xBEEF),
        (torch.int8, 0xAB),
    ],
    ids=str,
)
def test_words_between_two_others_are_filled(dtype, value):
    size = 8 * dtype.itemsize
    bits = value - (1 << size) if value >> (size - 1) else value
    for words in (1, 16, BLOCK, 2 * BLOCK + 7):
        expected = torch.full((words + 4,), 5, dtype=dtype, device=DEVICE)
        found = expected.clone()
        expected[3:-1] = bits
        fill_words(found[3:].data_ptr(), words, value, dtype.itemsize)  # behind what is aligned
        assert torch.equal(found, expected), words


def test_bytes_moved_are_those_of_the_maps():
    x = torch.zeros(2, 3, 4, 4, dtype=torch.bfloat16)
    residual, filtered = (sys.modules[f"kernels.{n}"] for n in ("pointwise.residual", "upfirdn.filtered_act"))
    assert residual.bytes_moved(x) == residual.bytes_moved(x, backward=True) == 3 * x.nbytes
    assert filtered.bytes_moved(x, BINOMIAL, padding=2) == 2 * 3 * (16 + 25) * 2
    assert filtered.bytes_moved(x, BINOMIAL, padding=2, backward=True) == 2 * 3 * (16 + 25 + 25) * 2
