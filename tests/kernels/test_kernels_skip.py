"""The skip's product in the kernel of a block's last activation: PyTorch's numbers in FP64, all derivatives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels.linear.weight_gradients import Branch, WeightGradients
from tests.support import compiling_skip
from tests.support.kernel_checks import assert_no_worse, assert_untouched, error, poison_memory
from tests.support.programs import end_with_parent

skip = sys.modules["kernels.linear.skip"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = skip.Config(16, 16, 16, 4, 2)
# N, I, O, H, W: tiles over samples and rows, channels that divide nothing and that divide, one row.
SIZES = [(3, 20, 33, 3, 4), (2, 32, 16, 4, 4), (2, 4, 5, 1, 3)]
needs_interpreter = pytest.mark.skipif(DEVICE == "cuda", reason="float64 runs in the interpreter alone")


@pytest.fixture(autouse=True)
def small_tiles():
    skip._forced[:] = [SMALL]
    yield
    skip._forced.clear()


@pytest.fixture
def launches(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of y for which the kernel was launched."""
    seen, forward = [], skip.forward
    monkeypatch.setattr(skip, "forward", lambda x, *rest: seen.append(tuple(x.shape)) or forward(x, *rest))
    return seen


def tensors(size, dtype=torch.float64, layout=torch.channels_last) -> list[Tensor]:
    """Return x, bias, low and weight."""
    n, i, o, h, w = size
    generator = torch.Generator().manual_seed(0)
    shapes = (n, o, h, w), (o,), (n, i, h, w), (o, i, 1, 1)
    made = [torch.randn(s, generator=generator, dtype=torch.float64).to(DEVICE, dtype) for s in shapes]
    return [t.contiguous(memory_format=layout) if t.dim() == 4 else t for t in made]


def assert_exact(size, dtype=torch.float64, **how) -> None:
    given = tensors(size, dtype)
    y = kernels.bias_act_skip(*given, **how)
    want = kernels.bias_act_skip_reference(*(t.double() for t in given), **how)
    assert y.shape == want.shape and y.is_contiguous(memory_format=torch.channels_last)
    assert error(y, want) <= (1e-14 if dtype is torch.float64 else torch.finfo(dtype).eps)


@needs_interpreter
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_are_pytorch_s_in_float64(size, launches):
    assert_exact(size)
    assert_exact(size, slope=0.1, gain=0.7)
    assert_exact(size, act="linear")
    assert len(launches) == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bits_are_summed_in_float32(dtype):
    assert_exact((2, 40, 24, 4, 3), dtype)


def test_nothing_is_left_out_and_nothing_is_written_beside(monkeypatch):
    given = tensors((2, 4, 6, 3, 4), torch.bfloat16)
    around = poison_memory(monkeypatch)
    assert not kernels.bias_act_skip(*given).isnan().any() and around
    assert_untouched(around)


@needs_interpreter
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "how", sorted({*skip.CONFIGS.values(), *map(tuple, compiling_skip.CANDIDATES)}), ids=str
)
def test_every_candidate_computes_the_same(how):
    skip._forced[:] = [skip.Config(*how)]
    assert_exact((2, 72, 136, 9, 8))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(8, 64, 128, 32, 32), (3, 104, 72, 19, 33)], ids=["whole", "partial"])
@pytest.mark.parametrize("how", compiling_skip.CANDIDATES, ids=str)
def test_every_candidate_computes_the_same_on_the_gpu(how, size):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the candidates are those of Hopper")
    skip._forced[:] = [skip.Config(*how)]
    assert_exact(size, torch.bfloat16)


# ---- derivatives -------------------------------------------------------------------------------------------------


@needs_interpreter
@pytest.mark.parametrize("how", [{}, {"act": "linear"}, {"gain": -0.5}], ids=str)
def test_gradients_of_gradients_are_those_of_the_function(how, launches):
    inputs = [t.requires_grad_() for t in tensors((1, 3, 2, 3, 2))]
    assert gradcheck(lambda *t: kernels.bias_act_skip(*t, **how), inputs, fast_mode=True)
    assert gradgradcheck(lambda *t: kernels.bias_act_skip(*t, **how), inputs, fast_mode=True)
    assert launches


def all_of(function, given, dtype) -> list[Tensor]:
    """Return y, its gradients, and those of a penalty on the images' gradients."""
    inputs = [t.to(dtype).requires_grad_() for t in given]
    y = function(*inputs)
    first = torch.autograd.grad(y.double().pow(2).sum(), inputs, create_graph=True)
    penalty = sum(d.double().square().sum() for d in (first[0], first[2]))
    return [y, *first, *torch.autograd.grad(penalty, inputs)]


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=str)
def test_derivatives_in_16_bits_are_no_worse_than_pytorch_s(layout, launches):
    given = tensors((2, 24, 40, 4, 4), torch.bfloat16, layout)
    ours = all_of(kernels.bias_act_skip, given, torch.bfloat16)
    plain, exact = (
        all_of(kernels.bias_act_skip_reference, given, d) for d in (torch.bfloat16, torch.float64)
    )
    assert_no_worse(ours, plain, exact, torch.bfloat16)
    # NCHW is served by a convolution and a sum behind it.
    assert len(launches) == (layout is torch.channels_last)


class Recorder(TorchDispatchMode):
    """Write down the operators of PyTorch that run."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.ops.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_gradients_stay_in_channels_last_and_nothing_is_copied():
    given = [t.requires_grad_() for t in tensors((2, 16, 32, 4, 4), torch.bfloat16)]
    y = kernels.bias_act_skip(*given)
    g = torch.randn_like(y).requires_grad_()
    with Recorder() as once:
        first = torch.autograd.grad(y, given, g, create_graph=True)
    images = [first[0], first[2]]
    with Recorder() as twice:
        second = torch.autograd.grad(images, [g, given[3]], [torch.ones_like(t) for t in images])
    for t in (*images, second[0]):
        assert t.is_contiguous(memory_format=torch.channels_last)
    for seen in (once, twice):  # The interpreter itself calls copy_. A copy to another layout is a clone.
        assert "clone" not in seen.ops and "convolution" in seen.ops, seen.ops
    # Both branches of the forward pass read g: their second derivatives are added once, as without this op.
    assert twice.ops.count("add") + twice.ops.count("add_") <= 1, twice.ops


def test_a_gradient_that_nobody_asked_for_is_not_computed():
    x, bias, low, weight = tensors((2, 16, 32, 4, 4), torch.bfloat16)
    y = kernels.bias_act_skip(x, bias.requires_grad_(), low.requires_grad_(), weight.requires_grad_())
    with Recorder() as seen:
        torch.autograd.grad(y.sum(), low)
    assert seen.ops.count("convolution") == 1 and "convolution_backward" not in seen.ops


def test_the_weight_s_gradient_may_go_beside_the_backward_pass():
    x, _, low, weight = tensors((2, 16, 32, 4, 4), torch.bfloat16)
    found = []
    for collecting in (False, True):
        leaf = weight.clone().requires_grad_()
        loss = kernels.bias_act_skip(x, None, low, leaf).float().square().sum()
        if collecting:
            gradients = WeightGradients([leaf], Branch(DEVICE))
            with gradients.collecting():
                loss.backward()
            assert list(gradients.counts.values()) == [1]
        else:
            loss.backward()
        found.append(leaf.grad)
    assert torch.equal(*found) and found[0].any()


def test_autocast_lowers_both_operands():
    x, bias, low, weight = tensors((2, 16, 32, 4, 4), torch.float32)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        y = kernels.bias_act_skip(x.bfloat16(), bias, low, weight.requires_grad_())
    y.sum().backward()
    assert y.dtype is torch.bfloat16 and weight.grad.dtype is torch.float32


def test_compiled_code_has_the_convolution_and_the_sum():
    given = [t.requires_grad_() for t in tensors((2, 4, 8, 3, 3), torch.float32)]
    compiled = torch.compile(kernels.bias_act_skip, backend="aot_eager", fullgraph=True)
    found = [torch.autograd.grad(f(*given).square().sum(), given) for f in (compiled, kernels.bias_act_skip)]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# ---- table -------------------------------------------------------------------------------------------------------


def test_the_row_goes_by_gpu_and_size():
    skip._forced.clear()
    for elements, size in ((1 << 24, "large"), (1 << 20, "small")):
        assert skip.config((9, 0), elements) is skip.CONFIGS[(9, 0), size]
        assert skip.config((8, 0), elements) is skip.CONFIGS[None, size]


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_every_candidate_compiles_for_hopper_s_tensor_cores_without_spills(tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, compiling_skip.__file__]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=280, preexec_fn=end_with_parent
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert {tuple(how) for how, *_ in found} == set(compiling_skip.CANDIDATES)
    assert {how for (gpu, _), how in skip.CONFIGS.items() if gpu} <= set(compiling_skip.CANDIDATES)
    for how, registers, stack, shared, products in found:
        warps = how[3]
        assert not stack and registers * 32 * warps <= 1 << 16 and shared <= 227 << 10 and products, how
