"""cuda_norm and fast_math: another language computes the same, and a fallback is not taken for it."""

import shutil
import sys

import pytest
import torch

import kernels
from kernels import cuda
from ladder.plan import catalog, needs
from tests.support import cuda_on_cpu
from tests.support.rung_steps import assert_engaged, assert_the_same, checked, every_phase, gathered, small

TRITON = {"fused_norm": True, "fused_act": True}
CUDA = TRITON | {"cuda_norm": True}
LAST = {"channels_last": True, "instance_norm": "var_mean"}
TINY = {"resolution": 8, "channel_max": 8, "batch": 2, "norm": "instance"}
OP = "kernels.cuda.instance_norm_act"
torch.set_num_threads(1)


@pytest.fixture
def on_cpu(monkeypatch):
    """The sources of kernels/cuda, run on the CPU."""
    if shutil.which("g++") is None or not kernels.common.tiles.INTERPRETED:
        pytest.skip("needs g++ and Triton's interpreter")
    with cuda_on_cpu.emulated(monkeypatch):
        yield


@pytest.mark.parametrize(
    "layout", [pytest.param({}, marks=pytest.mark.exhaustive), LAST], ids=["nchw", "nhwc"]
)
def test_every_phase_computes_what_plain_pytorch_does(layout, on_cpu):
    """Path length differentiates twice; in float64, so that only rounding may differ."""
    found = [every_phase(small({"precision": "fp64"} | layout | how, **TINY)) for how in (layout, CUDA)]
    assert_the_same(found[1], found[0])


def test_all_phases_agree_with_the_reference_in_bf16(on_cpu, references):
    # Not eight channels: R1's loss is so small there that BF16's rounding on some CPUs is a fifth beyond its budget.
    step = small(CUDA | LAST | {"precision": "bf16"}, channel_base=64, **TINY | {"channel_max": 16})
    found = checked(step, references)
    assert found["verdict"] == "ok", found["problems"]


@pytest.mark.parametrize(
    "layout", [pytest.param({}, marks=pytest.mark.exhaustive), LAST], ids=["nchw", "nhwc"]
)
def test_the_receipt_sees_the_kernels_and_the_flag(layout, on_cpu, refused):
    seen = gathered(small(CUDA | layout, **TINY))
    assert_engaged(seen, ["cuda_norm", "fused_norm", "fused_act"])
    if not layout:
        said = "planes_forward --use_fast_math launched 0x"
        refused("fast_math", seen, said, sabotage="built without the flag")
    seen = gathered(small(CUDA | layout | {"fast_math": True}, **TINY))
    assert_engaged(seen, ["cuda_norm", "fast_math"])


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [{}, LAST], ids=["nchw", "nhwc"])
def test_on_a_gpu_every_phase_computes_what_plain_pytorch_does_and_the_receipt_is_there(layout):
    if reason := cuda.available():
        pytest.skip(reason)
    found = []
    for how in (layout, CUDA | layout):
        step = small({"precision": "fp64"} | how, "cuda", **TINY)
        found.append(every_phase(step))
    assert_the_same(found[1], found[0], atol=1e-10)
    # in float64 cuDNN's convolutions answer in NCHW whatever they are given
    step = small({"precision": "fp32"} | CUDA | layout, "cuda", **TINY)
    assert_engaged(gathered(step), ["cuda_norm", "fused_norm", "fused_act"])


def test_a_build_that_failed_is_not_taken_for_the_rung(on_cpu, monkeypatch, refused):
    with monkeypatch.context() as patch:  # taken back before `on_cpu` takes back its own
        patch.setattr(sys.modules[OP], "_unavailable", lambda x, flags: "CUDA C++ could not be built: no")
        with pytest.warns(UserWarning, match="could not be built: no; Triton's kernel computes"):
            seen = gathered(small(CUDA, **TINY))
    said = "planes_forward launched 0x"
    refused("cuda_norm", seen, said, sabotage="the build fails, and Triton's kernel runs in its place")


def test_a_workload_with_demodulation_or_a_machine_without_nvcc_goes_on_without_it():
    ladder = catalog.load_ladder("more")
    able = dict.fromkeys(("cuda", "triton", "bf16", "cuda_graphs", "nvcc"))
    for norm, capabilities, reason in (
        ("demod", able, "needs norm: instance"),
        ("instance", able | {"nvcc": "CUDA C++ needs nvcc, which was not found"}, "needs nvcc"),
        ("instance", able, None),
    ):
        planned = {p.name: p for p in catalog.climb(ladder, needs.possible(capabilities, {"norm": norm}))}
        for name in ("cuda_norm", "fast_math"):
            skipped = planned[name].skipped
            assert skipped is None if reason is None else reason in skipped
