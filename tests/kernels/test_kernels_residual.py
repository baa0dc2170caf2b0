"""The residual block's sum and fork against plain PyTorch, in every dtype and layout, differentiated twice."""

import sys

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

import kernels
from kernels.choices import Choice
from kernels.common import tiles
from tests.support.kernel_checks import assert_no_worse

module = sys.modules["kernels.pointwise.residual"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
LOPSIDED = (0.3, -1.0, 2.0, 0.5, 0.1)  # nothing about it is symmetric
MODES = {"filter": {"padding": 2}, "up": {"up": 2, "padding": (2, 3)}, "down": {"down": 2, "padding": (1, 2)}}
every_format = pytest.mark.parametrize("layout", FORMATS)
every_mode = pytest.mark.parametrize("mode", MODES)
torch.set_num_threads(1)


def image(*shape: int, layout="nchw", dtype=torch.float64, seed=0) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x.contiguous(memory_format=FORMATS[layout]) if len(shape) == 4 else x
    return x.to(DEVICE, dtype).requires_grad_()


def layer(*shape: int, layout="nchw", dtype=torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """x, bias, and a residual that often turns y's sign."""
    residual = image(*shape, layout=layout, dtype=dtype, seed=1).detach().mul(3).requires_grad_()
    return image(*shape, layout=layout, dtype=dtype), image(shape[1], dtype=dtype, seed=2), residual


def values_and_grads(function, *inputs: Tensor) -> list[Tensor]:
    """Results, first gradients along fixed directions, and the gradients of a penalty on those."""
    y = function(*inputs)
    y = y if isinstance(y, tuple) else (y,)
    along = [torch.linspace(-1, 1, t.numel(), dtype=torch.float64).view(t.shape) for t in y]
    along = [g.to(t.device, t.dtype).requires_grad_() for g, t in zip(along, y, strict=True)]
    first = torch.autograd.grad(y, inputs, along, create_graph=True)
    penalty = sum(t.to(torch.promote_types(t.dtype, torch.float32)).square().sum() for t in first)
    wanted = [*inputs, *along]
    second = torch.autograd.grad(penalty, wanted, allow_unused=True, materialize_grads=True)
    return [t.detach() for t in (*y, *first, *second)]


def agree(function, reference, *inputs: Tensor, **tolerance) -> None:
    pairs = zip(values_and_grads(function, *inputs), values_and_grads(reference, *inputs), strict=True)
    for got, want in pairs:
        torch.testing.assert_close(got, want, **tolerance)


# the sum


@pytest.mark.covering
@every_format
@pytest.mark.parametrize("how", [{}, {"gain": 1.0}, {"act": "linear"}, {"slope": -0.3}], ids=str)
def test_the_sum_s_gradients_of_gradients_are_those_of_the_function(layout, how):
    inputs = layer(2, 3, 2, 1, layout=layout)
    assert gradcheck(lambda *a: kernels.bias_act_residual(*a, **how), inputs)
    assert gradgradcheck(lambda *a: kernels.bias_act_residual(*a, **how), inputs, fast_mode=True)


@every_format
def test_many_tiles_of_the_sum_agree_with_the_reference(layout, monkeypatch):
    monkeypatch.setattr(tiles, "choose", lambda *key: Choice(tile=16, columns=4, warps=1, per_sm=8, stages=2))
    tiles.tiling.cache_clear()
    agree(
        kernels.bias_act_residual,
        kernels.bias_act_residual_reference,
        *layer(2, 5, 3, 9, layout=layout),
        rtol=1e-10,
        atol=1e-10,
    )
    tiles.tiling.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_sum_in_low_precision_is_no_worse_than_plain_pytorch(dtype):
    inputs = layer(2, 6, 5, 4, layout="nhwc", dtype=dtype)
    exact = values_and_grads(
        kernels.bias_act_residual_reference, *(t.detach().double().requires_grad_() for t in inputs)
    )
    got, plain = (
        values_and_grads(f, *inputs) for f in (kernels.bias_act_residual, kernels.bias_act_residual_reference)
    )
    assert_no_worse(got, plain, exact, dtype)
    assert all(t.dtype == dtype for t in got)


def test_the_mask_is_x_s_whatever_sign_y_has():
    x = torch.tensor([[1.0, -1.0, 1.0, -1.0]], device=DEVICE, requires_grad=True)
    residual = torch.tensor([[-9.0, 9.0, 9.0, -9.0]], device=DEVICE)
    y = kernels.bias_act_residual(x, None, residual, gain=1.0)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [[1, pytest.approx(0.2), 1, pytest.approx(0.2)]]


@every_format
def test_formats_and_dtypes_meet_in_x_s(layout):
    """A residual of another memory format, under autocast; its gradient comes back in its own dtype."""
    x, bias, _ = layer(2, 3, 4, 5, layout=layout, dtype=torch.float32)
    other = "nchw" if layout == "nhwc" else "nhwc"
    residual = image(2, 3, 4, 5, layout=other, dtype=torch.float32, seed=1)
    with torch.autocast(DEVICE, torch.bfloat16):
        y = kernels.bias_act_residual(x, bias, residual)
        want = kernels.bias_act_residual_reference(x, bias, residual)
    assert y.dtype == torch.bfloat16 and y.is_contiguous(memory_format=FORMATS[layout])
    torch.testing.assert_close(y, want, rtol=0.02, atol=0.02)
    grads = torch.autograd.grad(y.float().sum(), (x, bias, residual))
    assert [g.dtype for g in grads] == [torch.float32] * 3
    torch.testing.assert_close(grads[2], torch.ones_like(residual))


def test_the_residual_s_gradient_is_y_s_own_and_nothing_more_than_x_is_kept():
    saved = []
    x, bias, residual = layer(2, 3, 4, 4, layout="nhwc", dtype=torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        y = kernels.bias_act_residual(x, bias, residual)
    assert set(saved) == {x.data_ptr(), bias.data_ptr()}
    g = torch.ones_like(y)
    (found,) = torch.autograd.grad(y, residual, g)
    assert found.data_ptr() == g.data_ptr()


@pytest.mark.parametrize(
    ("residual", "said"),
    [
        (torch.zeros(2, 3, 4, 5), r"of x's shape \(2, 3, 4, 4\), got torch.float32 \(2, 3, 4, 5\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.int32), r"\(float16, .*\), got torch.int32 \(2, 3, 4, 4\)"),
    ],
)
def test_a_residual_that_does_not_fit_is_refused_in_one_line(residual, said):
    for f in (kernels.bias_act_residual, kernels.bias_act_residual_reference):
        with pytest.raises(ValueError, match=f"^residual must be a float tensor {said}$"):
            f(torch.zeros(2, 3, 4, 4), None, residual)


@every_format
def test_torch_compile_is_told_the_truth_about_the_sum(layout):
    x, bias, residual = layer(2, 4, 3, 5, layout=layout, dtype=torch.float32)
    library = torch.ops.kernels
    opcheck(library.bias_act_residual.default, (x, bias, residual, 0.2, 1.0, torch.float32))
    inputs = [t.detach() for t in (residual, x, bias)]
    constants = 0.2, 1.0, layout == "nhwc", torch.float32
    opcheck(library.bias_act_residual_grad.default, (*inputs, *constants, [True, True]))
    compiled = torch.compile(kernels.bias_act_residual, backend="aot_eager", fullgraph=True)
    grads = (
        torch.autograd.grad(f(x, bias, residual).square().sum(), (x, bias, residual))
        for f in (compiled, kernels.bias_act_residual_reference)
    )
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want)


# the fork


def both_forks(mode: str):
    return [
        lambda x, f=f: f(x, LOPSIDED, **MODES[mode], gain=1.7)
        for f in (kernels.fork_upfirdn2d, kernels.fork_upfirdn2d_reference)
    ]


@pytest.mark.covering
@every_format
@every_mode
def test_the_fork_s_gradients_of_gradients_are_those_of_the_function(mode, layout):
    fork, reference = both_forks(mode)
    x = image(1, 2, 5, 4, layout=layout)
    assert gradcheck(fork, x, fast_mode=True)
    assert gradgradcheck(fork, x, fast_mode=True)
    agree(fork, reference, image(2, 3, 6, 5, layout=layout), rtol=1e-10, atol=1e-10)


@every_format
def test_many_programs_of_the_fork_agree_with_the_reference(layout, monkeypatch):
    """Borders between tiles, and rows that are loaded ahead, wherever they are."""
    upfirdn2d = sys.modules["kernels.upfirdn.upfirdn2d"]
    monkeypatch.setattr(upfirdn2d, "power_of_2", lambda n: min(kernels.common.tiles.power_of_2(n), 2))
    fork, reference = both_forks("down")
    for ahead in (0, 1):
        small = upfirdn2d.Config(rows=2, cols=2, ahead=ahead, block_c=2, width=1, warps=1)
        monkeypatch.setattr(upfirdn2d, "config", lambda *_, small=small: small)
        upfirdn2d._cover.cache_clear()
        agree(fork, reference, image(2, 3, 6, 7, layout=layout), rtol=1e-10, atol=1e-10)
    upfirdn2d._cover.cache_clear()


@pytest.mark.parametrize("taps", [(2.0,), (0.5, 1.5)], ids=str)
def test_a_filter_of_few_taps_adds_too(taps):
    x = image(1, 2, 4, 4)
    agree(
        lambda x: kernels.fork_upfirdn2d(x, taps, padding=(1, 0)),
        lambda x: kernels.fork_upfirdn2d_reference(x, taps, padding=(1, 0)),
        x,
    )


@pytest.mark.parametrize("used", [0, 1])
def test_one_branch_alone_has_its_own_gradient(used):
    x = image(1, 2, 4, 4, layout="nhwc")
    grads = (torch.autograd.grad(f(x)[used].square().sum(), x)[0] for f in both_forks("down"))
    torch.testing.assert_close(*grads)


@every_format
def test_the_fork_in_bfloat16_rounds_the_sum_once(layout):
    x = image(2, 3, 6, 4, layout=layout, dtype=torch.bfloat16)
    exact = x.detach().double().requires_grad_()
    a, b = (
        torch.randn(s, dtype=torch.float64, device=DEVICE).bfloat16() for s in ((2, 3, 6, 4), (2, 3, 3, 2))
    )
    fork, reference = both_forks("down")
    (got,) = torch.autograd.grad(fork(x), x, (a, b))
    (want,) = torch.autograd.grad(reference(exact), exact, (a.double(), b.double()))
    torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=1e-2)
    assert got.is_contiguous(memory_format=FORMATS[layout])


def test_the_input_is_not_copied_and_the_kernel_is_launched_once_each_way(monkeypatch):
    from ladder.receipts.watch import launches

    x = image(1, 2, 4, 4, layout="nhwc")
    with launches() as seen:
        same, low = both_forks("down")[0](x)
        torch.autograd.grad((same.sum() + low.sum()), x)
    assert same.data_ptr() == x.data_ptr()
    assert seen["upfirdn2d_kernel"]["calls"] == 2 and "add" in seen["upfirdn2d_kernel"]["tensors"]


def test_bytes_moved_are_those_of_three_images():
    x = torch.zeros(2, 3, 4, 4, dtype=torch.bfloat16)
    assert module.bytes_moved(x) == module.bytes_moved(x, backward=True) == 3 * x.nbytes


@pytest.mark.gpu
@every_format
@pytest.mark.parametrize("channels", [64, 130])
def test_at_the_sizes_of_the_model(layout, channels):
    inputs = layer(2, channels, 64, 66, layout=layout, dtype=torch.bfloat16)
    pairs = [(kernels.bias_act_residual, kernels.bias_act_residual_reference, inputs)]
    pairs.append((*both_forks("down"), inputs[:1]))
    for function, reference, arguments in pairs:
        found = (values_and_grads(f, *arguments) for f in (function, reference))
        for got, want in zip(*found, strict=True):
            assert float((got.float() - want.float()).norm() / want.float().norm().clamp_min(1e-6)) < 0.02
