"""to_rgb and from_rgb against plain PyTorch: values and derivatives of any order, dtypes, memory formats, shapes.

Without a GPU the Triton kernels run in Triton's interpreter, so shapes are tiny and launches few.
"""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import kernels
from kernels.linear import rgb_kernels
from kernels.linear.rgb_kernels import Config
from tests.support.kernel_checks import assert_no_worse, error

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
LOW = (torch.float32, torch.float16, torch.bfloat16)
OTHER = {"nchw": True, "nhwc": False}  # channels_last of a result that is not to lie as the image does
torch.set_num_threads(1)


def to(op):
    return lambda x, weight, style, bias: op(x, weight, style, bias, gain=0.3)


def to_plain(op):
    return lambda x, weight: op(x, weight)


def to_full(op):
    return lambda x, weight, style, bias: op(
        x, weight, style, bias, dtype=torch.promote_types(x.dtype, torch.float32)
    )


def act(op):
    return lambda image, weight, bias: op(image, weight, bias, gain=0.3)


def act_other_format(op):
    def call(image, weight, bias):
        return op(image, weight, bias, channels_last=image.is_contiguous())

    return call


def no_act(op):
    return lambda image, weight: op(image, weight, gain=0.3, slope=1.0, act_gain=1.0)


def flipped(op):
    return lambda image, weight, bias: op(image, weight, bias, slope=-0.5, act_gain=-1.0)


def scaled(op):
    return lambda image, weight, bias: op(image, weight, bias, slope=1.0)


# name: (op, how it is called, shapes of its inputs; I is the image's channels)
CASES = {
    "to_rgb": ("to_rgb", to, ("NCHW", "IC11", "NC", "I")),
    "to_rgb shared": ("to_rgb", to_plain, ("NCHW", "IC")),
    "to_rgb full": ("to_rgb", to_full, ("NCHW", "IC", "NC", "I")),
    "from_rgb": ("from_rgb", act, ("NIHW", "CI11", "C")),
    "from_rgb other format": ("from_rgb", act_other_format, ("NIHW", "CI", "C")),
    "from_rgb no act": ("from_rgb", no_act, ("NIHW", "CI")),
    "from_rgb falling": ("from_rgb", flipped, ("NIHW", "CI", "C")),
    "from_rgb slope 1": ("from_rgb", scaled, ("NIHW", "CI", "C")),
}
every_case = pytest.mark.parametrize("case", CASES)
every_format = pytest.mark.parametrize("layout", FORMATS)


def functions(case: str):
    name, call, _ = CASES[case]
    return call(getattr(kernels, name)), call(getattr(kernels, f"{name}_reference"))


def make_inputs(case, shape, layout="nchw", dtype=torch.float64, seed=0, image=3) -> list[Tensor]:
    """Random inputs for an activation of this shape; the first is the image or the activation."""
    sizes = dict(zip("NCHW", shape, strict=True)) | {"1": 1, "I": image}
    generator, inputs = torch.Generator().manual_seed(seed), []
    for k, names in enumerate(CASES[case][2]):
        t = torch.randn([sizes[name] for name in names], generator=generator, dtype=torch.float64)
        inputs.append(t.contiguous(memory_format=FORMATS[layout]) if k == 0 else t)
    return [t.to(DEVICE, dtype).requires_grad_() for t in inputs]


def derivatives(function, inputs: list[Tensor], seed=1) -> list[Tensor]:
    """y, its gradients along g, and the gradients of their squared sum (a penalty) by the inputs and by g."""
    y = function(*inputs)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    g = g.to(y.device, y.dtype).requires_grad_()
    first = torch.autograd.grad(y, inputs, g, create_graph=True)
    penalty = sum(t.to(torch.promote_types(t.dtype, torch.float32)).square().sum() for t in first)
    wanted = [*inputs, g]
    second = torch.autograd.grad(penalty, wanted, allow_unused=True)
    second = [torch.zeros_like(t) if d is None else d for t, d in zip(wanted, second, strict=True)]
    return [t.detach() for t in (y, *first, *second)]


def plain_gradients(function, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients that nothing differentiates: a backward pass of its own kernels."""
    y = function(*inputs)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return list(torch.autograd.grad(y, inputs, g.to(y.device, y.dtype)))


def agree(case, inputs, **tolerance) -> None:
    fused, reference = functions(case)
    for what in (derivatives, plain_gradients):
        for got, want in zip(what(fused, inputs), what(reference, inputs), strict=True):
            torch.testing.assert_close(got, want, **tolerance)


@pytest.mark.covering
@every_format
@pytest.mark.parametrize("case", ["to_rgb", "to_rgb shared", "from_rgb", "from_rgb other format"])
def test_gradients_of_gradients_are_those_of_the_function(case, layout):
    function, inputs = functions(case)[0], make_inputs(case, (2, 3, 2, 1), layout)
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@every_format
@pytest.mark.parametrize("case", ["to_rgb", "from_rgb"])
def test_a_gradient_can_be_differentiated_again_and_again(case, layout):
    inputs, found = make_inputs(case, (2, 3, 2, 2), layout), []
    for f in functions(case):
        total = f(*inputs).pow(4).sum()
        for _ in range(2):
            total = sum(d.square().sum() for d in torch.autograd.grad(total, inputs, create_graph=True))
        found.append(torch.autograd.grad(total, inputs))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles so small that every border is crossed: between tiles, programs, and parts of the channels."""
    ops = rgb_kernels.CONFIGS
    few = {op: Config(vectors=1, ahead=min(c.ahead, 2), per_sm=1, warps=1) for op, c in ops.items()}
    monkeypatch.setattr(rgb_kernels, "CONFIGS", few)
    monkeypatch.setattr(rgb_kernels, "FEW", 2)
    monkeypatch.setattr(rgb_kernels, "LANES", 2)
    monkeypatch.setattr(rgb_kernels, "SIDE", 2)
    monkeypatch.setattr(rgb_kernels, "processor", lambda device: (90, 8))
    rgb_kernels.cover.cache_clear()
    yield
    rgb_kernels.cover.cache_clear()


@pytest.mark.covering
@every_format
@pytest.mark.parametrize("case", ["to_rgb", "from_rgb"])
def test_many_tiles_agree_with_the_reference(case, layout, small_tiles):
    inputs = make_inputs(case, (2, 5, 7, 5), layout)
    for op in rgb_kernels.CONFIGS:
        t = rgb_kernels.cover(torch.Size((2, 5, 7, 5)), layout == "nhwc", op, 8, inputs[0].device)
        assert t.options["WALK"] and t.options["BLOCK_C"] < 5
    agree(case, inputs, rtol=1e-10, atol=1e-10)


@every_case
@hypothesis.settings(max_examples=4, deadline=None, derandomize=True)
@hypothesis.given(
    shape=st.tuples(*(st.integers(1, n) for n in (3, 19, 6, 7))),
    image=st.integers(1, 4),
    layout=st.sampled_from(sorted(FORMATS)),
    seed=st.integers(0, 99),
)
def test_any_shape_agrees_with_the_reference(case, shape, image, layout, seed):
    agree(case, make_inputs(case, shape, layout, seed=seed, image=image), rtol=1e-8, atol=1e-8)


@pytest.mark.covering("case", "dtype")
@pytest.mark.parametrize("dtype", LOW, ids=str)
@every_format
@every_case
def test_low_precision_is_no_worse_than_plain_pytorch(case, layout, dtype):
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 8, 6, 5), layout, dtype)
    exact = [t.detach().double().requires_grad_() for t in inputs]
    results = (derivatives(f, i) for f, i in ((fused, inputs), (reference, inputs), (reference, exact)))
    assert_no_worse(*results, dtype)


@pytest.mark.covering("case", "layout")
@pytest.mark.parametrize("dtype", (torch.float64, *LOW), ids=str)
@every_format
@every_case
def test_dtype_and_memory_format_are_the_references(case, layout, dtype):
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 5, 4, 6), layout, dtype)
    got, want = fused(*inputs), reference(*inputs)
    assert (got.dtype, got.stride()) == (want.dtype, want.stride())
    for t, d in zip(
        inputs, torch.autograd.grad(got.sum(), inputs), strict=True
    ):  # sum()'s gradient has stride 0
        assert (d.dtype, d.shape) == (t.dtype, t.shape)
    assert torch.autograd.grad(fused(*inputs).square().sum(), inputs)[0].stride() == inputs[0].stride()


@every_case
def test_strided_inputs(case):
    inputs = [t.repeat_interleave(2, -1)[..., ::2] for t in make_inputs(case, (2, 3, 4, 5))]
    agree(case, inputs)
    agree(case, [t[:1].expand_as(t) for t in make_inputs(case, (2, 3, 4, 5))])


@pytest.mark.parametrize("case", ["to_rgb", "to_rgb full", "from_rgb"])
def test_as_the_model_calls_them_under_autocast(case):
    """Activations bfloat16, image and parameters float32; gradients come in the dtypes of what they belong to."""
    fused, reference = functions(case)
    inputs = make_inputs(case, (2, 8, 6, 5), "nhwc", torch.float32)
    if case.startswith("to_rgb"):
        inputs[0] = inputs[0].detach().bfloat16().requires_grad_()
    found = []
    for f in (fused, reference):
        with torch.autocast(DEVICE, torch.bfloat16):
            y = f(*inputs)
        first = torch.autograd.grad(y.float().square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(d.float().square().sum() for d in first), inputs)
        found.append((y, *first, *second))
    assert found[0][0].dtype == (torch.float32 if case == "to_rgb full" else torch.bfloat16)
    for got, want in zip(*found, strict=True):
        assert got.dtype == want.dtype
        assert error(got, want) < 0.02


@pytest.mark.covering
@every_format
@every_case
def test_the_same_on_every_run(case, layout):
    function, inputs = functions(case)[0], make_inputs(case, (2, 5, 6, 7), layout, torch.float32)
    for a, b in zip(plain_gradients(function, inputs), plain_gradients(function, inputs), strict=True):
        assert torch.equal(a, b)


def test_only_what_is_asked_for_is_launched(monkeypatch):
    """The generator's step does not want the discriminator's weights, and R1 wants the image alone."""
    ran = []
    launch = rgb_kernels.launch
    monkeypatch.setattr(
        rgb_kernels, "launch", lambda kernel, *a, **k: (ran.append(kernel.__name__), launch(kernel, *a, **k))
    )
    image, weight, bias = make_inputs("from_rgb", (2, 8, 4, 4), "nhwc")

    def launched(wanted, *inputs) -> list[str]:
        y = kernels.from_rgb(*inputs)
        ran.clear()
        torch.autograd.grad(y.sum(), wanted)
        return list(ran)

    assert launched([image], image, weight, bias) == ["rgb_narrow_kernel"]
    assert launched([weight, bias], image.detach(), weight, bias) == ["rgb_correlate_kernel"]
    y = kernels.from_rgb(image, weight, bias)
    ran.clear()
    (gradient,) = torch.autograd.grad(y.sum(), image, create_graph=True)  # R1
    assert ran == ["rgb_narrow_kernel"]
    ran.clear()
    torch.autograd.grad(gradient.square().sum(), weight)
    assert ran == ["rgb_correlate_kernel"]
    x, weight, style, bias = make_inputs("to_rgb", (2, 8, 4, 4), "nhwc")
    y = kernels.to_rgb(x, weight, style, bias)
    ran.clear()
    torch.autograd.grad(y.sum(), [x, weight, style, bias])
    assert ran == ["rgb_correlate_kernel"]  # all gradients from one pass


def test_no_pixels_no_samples():
    for case in CASES:
        inputs = make_inputs(case, (0, 3, 2, 2))
        agree(case, inputs)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: kernels.to_rgb(x, torch.zeros(3, 7)), "weight must be [1 to 4, C] = [K, 6]"),
        (lambda x: kernels.to_rgb(x, torch.zeros(5, 6)), "weight must be"),
        (lambda x: kernels.to_rgb(x, torch.zeros(3, 6, 3, 3)), "weight must be"),
        (lambda x: kernels.to_rgb(x, torch.zeros(2, 5, 6)), "weight must be"),
        (lambda x: kernels.to_rgb(x, torch.zeros(1, 3, 6)), "or [2, K, 6] with a style in it"),
        (lambda x: kernels.to_rgb(x[0], torch.zeros(3, 6)), "x must be"),
        (lambda x: kernels.to_rgb(x, torch.zeros(3, 6), torch.zeros(1, 6)), "style must be"),
        (lambda x: kernels.to_rgb(x, torch.zeros(3, 6), bias=torch.zeros(6)), "bias must be"),
        (lambda x: kernels.to_rgb(x, torch.zeros(3, 6), image=torch.zeros(2, 3, 4, 2)), "image must be"),
        (lambda x: kernels.from_rgb(x, torch.zeros(8, 6)), "image must be"),
        (lambda x: kernels.from_rgb(x[:, :3], torch.zeros(8, 4)), "weight must be [C, K] = [C, 3]"),
        (lambda x: kernels.from_rgb(x[:, :3], torch.zeros(8, 3), torch.zeros(3)), "bias must be"),
    ],
)
def test_bad_input_gets_one_line(call, words):
    with pytest.raises(ValueError) as refusal:
        call(torch.zeros(2, 6, 4, 4))
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=str)
def test_gradients_of_styled_weights_from_one_launch_are_those_of_the_product(wanted):
    """More samples and channels than a tile has, and a gradient that lies among other numbers."""
    from kernels.linear.rgb_weights import styled

    torch.manual_seed(0)
    weight, style = (torch.randn(s, dtype=torch.float64, device=DEVICE) for s in ((3, 37), (18, 37)))
    inputs = [t.requires_grad_(needed) for t, needed in zip((weight, style), wanted, strict=True)]
    g = torch.randn(18, 120, dtype=torch.float64, device=DEVICE)[:, 3:114].view(18, 3, 37)
    left = [t for t in inputs if t.requires_grad]
    found = torch.autograd.grad(styled(*inputs), left, g)
    want = torch.autograd.grad(weight[None] * style[:, None], left, g)
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b)
