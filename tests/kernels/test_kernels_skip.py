"""The skip's product in the kernel of a block's last activation, beyond the table of `opcases.py`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels.linear.weight_gradients import Branch, WeightGradients
from tests.kernels.opcases import DEVICE
from tests.support import compiling_skip
from tests.support.kernel_checks import error
from tests.support.programs import end_with_parent

skip = sys.modules["kernels.linear.skip"]
SMALL = skip.Config(16, 16, 16, 4, 2)
# N, I, O, H, W: tiles over samples and rows, channels that divide nothing and that divide, one row.
SIZES = [(3, 20, 33, 3, 4), (2, 32, 16, 4, 4), (2, 4, 5, 1, 3)]
needs_interpreter = pytest.mark.skipif(DEVICE == "cuda", reason="float64 runs in the interpreter alone")


@pytest.fixture(autouse=True)
def small_tiles():
    skip._forced[:] = [SMALL]
    yield
    skip._forced.clear()


def tensors(size=(2, 16, 32, 4, 4), dtype=torch.bfloat16) -> list[Tensor]:
    """Return x, bias, low and weight, in channels_last."""
    n, i, o, h, w = size
    shapes = (n, o, h, w), (o,), (n, i, h, w), (o, i, 1, 1)
    made = [torch.randn(s, device=DEVICE, dtype=dtype) for s in shapes]
    return [t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for t in made]


def assert_exact(size, dtype=torch.float64, **how) -> None:
    given = tensors(size, dtype)
    y = kernels.bias_act_skip(*given, **how)
    want = kernels.bias_act_skip_reference(*(t.double() for t in given), **how)
    assert y.shape == want.shape and y.is_contiguous(memory_format=torch.channels_last)
    assert error(y, want) <= (1e-14 if dtype is torch.float64 else torch.finfo(dtype).eps)


@needs_interpreter
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_are_pytorch_s_in_float64(size, monkeypatch):
    launched, forward = [], skip.forward
    monkeypatch.setattr(skip, "forward", lambda *given: launched.append(1) or forward(*given))
    for how in ({}, {"slope": 0.1, "gain": 0.7}, {"act": "linear"}):
        assert_exact(size, **how)
    assert len(launched) == 3
    kernels.bias_act_skip(*(t.contiguous() for t in tensors()))  # NCHW: a convolution and a sum behind it
    assert len(launched) == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bits_are_summed_in_float32(dtype):
    assert_exact((2, 40, 24, 4, 3), dtype)


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


class Recorder(TorchDispatchMode):
    """Write down the operators of PyTorch that run."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.ops.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_gradients_stay_in_channels_last_and_nothing_is_copied():
    given = [t.requires_grad_() for t in tensors()]
    y = kernels.bias_act_skip(*given)
    g = torch.randn_like(y).requires_grad_()
    with Recorder() as once:
        first = torch.autograd.grad(y, given, g, create_graph=True)
    images = [first[0], first[2]]
    with Recorder() as twice:
        second = torch.autograd.grad(images, [g, given[3]], [torch.ones_like(t) for t in images])
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in (*images, second[0]))
    for seen in (once, twice):  # The interpreter itself calls copy_. A copy to another layout is a clone.
        assert "clone" not in seen.ops and "convolution" in seen.ops, seen.ops
    # Both branches of the forward pass read g: their second derivatives are added once, as without this op.
    assert twice.ops.count("add") + twice.ops.count("add_") <= 1, twice.ops
    y = kernels.bias_act_skip(*given)
    with Recorder() as seen:
        torch.autograd.grad(y.sum(), given[2])
    assert seen.ops.count("convolution") == 1 and "convolution_backward" not in seen.ops


def test_the_weight_s_gradient_may_go_beside_the_backward_pass():
    x, _, low, weight = tensors()
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
    how = {"env": env, "capture_output": True, "text": True, "timeout": 280, "preexec_fn": end_with_parent}
    done = subprocess.run([sys.executable, compiling_skip.__file__], **how)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert {tuple(how) for how, *_ in found} == set(compiling_skip.CANDIDATES)
    assert {how for (gpu, _), how in skip.CONFIGS.items() if gpu} <= set(compiling_skip.CANDIDATES)
    for how, registers, stack, shared, products in found:
        warps = how[3]
        assert not stack and registers * 32 * warps <= 1 << 16 and shared <= 227 << 10 and products, how
