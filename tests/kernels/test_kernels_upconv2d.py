"""The transposed convolution of stride 2 by parities: PyTorch's numbers in FP64, every tile, all derivatives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import kernels
from kernels.tuning import upconv as tuning
from ladder.publish.validation import validate
from tests.support import compiling_upconv
from tests.support.kernel_checks import assert_no_worse, assert_untouched, error, poison_memory

upconv = sys.modules["kernels.linear.upconv2d"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Config = upconv.Config
SINGLE, PAIR = Config(32, 16, 16, False, 4, 2), Config(32, 16, 16, True, 4, 2)
both_ways = pytest.mark.parametrize("how", [SINGLE, PAIR], ids=["parity", "pair"])
# N, I, O, H, W: tiles over samples and rows, channels that divide nothing and that divide, one pixel, one row.
SIZES = [(3, 20, 33, 3, 4), (2, 16, 16, 5, 3), (1, 1, 1, 1, 1), (2, 4, 4, 1, 3)]


@pytest.fixture(autouse=True)
def no_row_is_forced():
    yield
    upconv._forced.clear()


def tensors(size, dtype=torch.float64, seed=0) -> list[Tensor]:
    """Return x and weight in channels_last memory."""
    n, i, o, h, w = size
    generator = torch.Generator().manual_seed(seed)
    made = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((n, i, h, w), (i, o, 3, 3)))
    return [t.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last) for t in made]


def assert_exact(how: Config, size, dtype=torch.float64) -> None:
    upconv._forced[:] = [how]
    x, weight = tensors(size, dtype)
    y = upconv.forward(x, weight)
    want = F.conv_transpose2d(x.double(), weight.double(), stride=2)
    assert y.shape == want.shape and y.is_contiguous(memory_format=torch.channels_last)
    assert error(y, want) <= (1e-14 if dtype is torch.float64 else torch.finfo(dtype).eps)


needs_interpreter = pytest.mark.skipif(DEVICE == "cuda", reason="float64 runs in the interpreter alone")


@needs_interpreter
@both_ways
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_are_pytorch_s_in_float64(how, size):
    assert_exact(how, size)


@both_ways
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bits_are_summed_in_float32(how, dtype):
    assert_exact(how, (2, 40, 24, 4, 3), dtype)


@needs_interpreter
@pytest.mark.exhaustive
@pytest.mark.parametrize("how", sorted({*upconv.CONFIGS.values(), *tuning.candidates()}), ids=str)
def test_every_candidate_computes_the_same(how):
    assert_exact(how, (2, 72, 72, 9, 8))


@needs_interpreter
def test_tiles_of_many_regions_cover_each_pixel_once(monkeypatch):
    monkeypatch.setattr(upconv, "GROUP", 2)
    for how in (SINGLE, PAIR):
        assert_exact(how, (2, 4, 20, 6, 7))


@both_ways
def test_nothing_is_left_out_and_nothing_is_written_beside(how, monkeypatch):
    upconv._forced[:] = [how]
    x, weight = tensors((2, 4, 6, 3, 4), torch.bfloat16)
    around = poison_memory(monkeypatch)
    assert not upconv.forward(x, weight).isnan().any() and around
    assert_untouched(around)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(4, 128, 256, 32, 32), (3, 104, 72, 19, 33)], ids=["whole", "partial"])
@pytest.mark.parametrize("how", tuning.candidates(), ids=str)
def test_every_candidate_computes_the_same_on_the_gpu(how, size):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the candidates are those of Hopper")
    assert_exact(how, size, torch.bfloat16)


# ---- as an op ----------------------------------------------------------------------------------------------------


@pytest.fixture
def launches(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of x for which the kernel was launched."""
    seen, forward = [], upconv.forward
    monkeypatch.setattr(upconv, "forward", lambda x, w: seen.append(tuple(x.shape)) or forward(x, w))
    return seen


@needs_interpreter
@both_ways
def test_gradients_of_gradients_are_those_of_the_function(how):
    upconv._forced[:] = [how]
    inputs = [t.requires_grad_() for t in tensors((1, 2, 2, 3, 2))]
    assert gradcheck(kernels.upconv2d, inputs, fast_mode=True)
    assert gradgradcheck(kernels.upconv2d, inputs, fast_mode=True)


def test_the_gradient_of_its_gradient_is_the_kernel_again(launches):
    x, weight = (t.requires_grad_() for t in tensors((2, 16, 24, 4, 4), torch.bfloat16))
    y = kernels.upconv2d(x, weight)
    g = torch.ones_like(y, requires_grad=True)
    (dx,) = torch.autograd.grad(y, x, g, create_graph=True)
    assert launches == [(2, 16, 4, 4)]  # the gradient is a convolution of stride 2
    (dg,) = torch.autograd.grad(dx.float().square().sum(), g)
    assert launches == [(2, 16, 4, 4)] * 2 and dg.shape == y.shape


def test_derivatives_in_16_bits_are_no_worse_than_pytorch_s():
    def all_of(function, dtype):
        x, weight = (t.to(dtype).requires_grad_() for t in tensors((2, 24, 40, 4, 4), torch.bfloat16))
        y = function(x, weight)
        first = torch.autograd.grad(y.float().pow(2).sum(), (x, weight), create_graph=True)
        return [y, *first, *torch.autograd.grad(first[0].float().square().sum(), (x, weight))]

    ours, plain = (all_of(f, torch.bfloat16) for f in (kernels.upconv2d, kernels.upconv2d_reference))
    assert_no_worse(ours, plain, all_of(kernels.upconv2d_reference, torch.float64), torch.bfloat16)


def test_an_input_gradient_of_stride_2_takes_the_kernel_through_its_geometry(launches):
    """The way in which a discriminator would use it: a plain convolution whose geometry names the kernel."""
    g, weight = tensors((2, 16, 24, 3, 4), torch.bfloat16)
    x = torch.randn(2, 24, 7, 9, device=DEVICE).bfloat16().contiguous(memory_format=torch.channels_last)
    down = upconv.GEOMETRY.adjoint(torch.Size((2, 16, 3, 4)), weight.shape)
    y = upconv.conv2d.apply("conv2d", x.requires_grad_(), weight, down)
    (dx,) = torch.autograd.grad(y, x, g)
    assert launches == [(2, 16, 3, 4)]
    assert error(dx, F.conv_transpose2d(g.double(), weight.double(), stride=2)) <= 0.01


def test_what_it_does_not_serve_is_pytorch_s(launches):
    x, weight = tensors((1, 2, 4, 3, 3), torch.float32)
    found = kernels.upconv2d(x.contiguous(), weight.contiguous())
    assert found.is_contiguous() and not launches  # NCHW
    torch.testing.assert_close(found, F.conv_transpose2d(x, weight, stride=2))
    wide = upconv.GEOMETRY._replace(output_padding=(1, 0), nhwc=True)  # behind a convolution of an even map
    assert wide.by_kernel(x, weight) is None


def test_other_taps_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^upconv2d: need a weight \[I, O, 3, 3\], got \[2, 4, 1, 1\]$"):
        kernels.upconv2d(torch.zeros(1, 2, 3, 3), torch.zeros(2, 4, 1, 1))
    with pytest.raises(ValueError, match=r"^upconv2d: channels do not fit"):
        kernels.upconv2d(torch.zeros(1, 3, 3, 3), torch.zeros(2, 4, 3, 3))


# ---- table and tuner ---------------------------------------------------------------------------------------------


def test_the_row_goes_by_gpu_channels_and_size():
    for channels, pixels, size in ((64, 1 << 20, "narrow"), (128, 1 << 20, "wide"), (512, 2048, "small")):
        assert upconv.config((9, 0), pixels, channels) is upconv.CONFIGS[(9, 0), size]
        assert upconv.config((8, 0), pixels, channels) is upconv.CONFIGS[None, size]


def test_candidates_fit_a_multiprocessor_and_those_in_force_are_among_them():
    """Registers hold the sums, shared memory the blocks on their way: 227 KiB of an H100."""
    every = tuning.candidates()
    assert {how for (gpu, _), how in upconv.CONFIGS.items() if gpu} <= set(every)
    for how in every:
        assert how.block_m * how.block_n * (1 + how.pair) <= 128 * 32 * how.warps
        pixels, weights = how.block_m * (1 + how.pair), how.block_n * (1 + 2 * how.pair)
        assert 2 * how.block_k * how.stages * (pixels + weights) <= 227 << 10


def test_the_tuner_s_shapes_are_those_of_the_step():
    assert {(i, o, h) for sizes in tuning.SHAPES.values() for _, i, o, h in sizes} >= {
        (128, 64, 128),
        (256, 128, 64),
        (512, 256, 32),
        (512, 512, 16),
    }


def test_the_tuner_s_report_can_be_pasted_and_its_file_is_accepted(tmp_path):
    run = {"shape": (8, 128, 64, 128), "microseconds": 40.0, "cudnn_microseconds": 60.0, "tflops": 483.0}
    rows = [
        {
            "size": "narrow",
            "config": how._asdict(),
            "current": how is PAIR,
            "runs": [run | {"microseconds": t}],
        }
        for how, t in ((PAIR, 50.0), (SINGLE, 40.0))
    ]
    text = tuning.report(rows)
    assert text.splitlines()[0] == f'    ((9, 0), "narrow"): {SINGLE!r},'
    assert "best: 40.0 us" in text and "now: 50.0 us" in text and "cuDNN 60.0" in text
    path = tmp_path / "upconv-tuning.json"
    rows[0]["runs"].append({"shape": (16, 128, 64, 128), "error": "OutOfResources: shared memory"})
    found = {"schema": 1, "kind": "upconv tuning", "gpu": "NVIDIA H200", "torch": "2.11.0", "timed": rows}
    path.write_text(json.dumps(found))
    assert validate.problem_of(path) is None
    rows[0]["config"]["block"] = 8
    path.write_text(json.dumps(found))
    assert "timed[0].config: unknown key 'block'" in validate.problem_of(path)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_every_candidate_compiles_for_hopper_s_tensor_cores_without_spills(tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, compiling_upconv.__file__]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {Config(*how): rest for how, *rest in json.loads(done.stdout)}
    assert set(found) == set(tuning.candidates())
    for how, (registers, stack, products, copies) in found.items():
        assert not stack and registers * 32 * how.warps <= 1 << 16 and products and copies, how


@pytest.mark.gpu
def test_the_tuner_finds_rows(tmp_path, capsys):
    path = tmp_path / "tuning.json"
    assert tuning.main(["--json", str(path)]) == 0
    timed = json.loads(path.read_text())["timed"]
    assert sum(each["current"] for each in timed) == len(tuning.SHAPES)
    assert validate.problem_of(path) is None and "Config(" in capsys.readouterr().out
