"""How activations are cut into tiles, and what the package says of machines it cannot run on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import tiles

ROOT = Path(__file__).parents[1]
SHAPES = [
    (8, 64, 256, 256),
    (8, 512, 4, 4),
    (32, 512, 1, 1),
    (4, 3, 1024, 1024),
    (5, 7, 3, 11),
    (2, 1, 9, 9),
    (6, 512),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("reduce", [False, True])
def test_tiles_cover_every_element_and_reductions_stay_small(shape, nhwc, merge, reduce):
    t = tiles.tiling(torch.Size(shape), nhwc, merge, reduce)
    channels, pixels, stride_p, stride_c, tiles_p = t.sizes
    assert t.samples * channels * pixels == torch.Size(shape).numel()
    assert sorted((stride_p, stride_c)) == sorted((1, channels if nhwc else pixels))
    assert tiles_p * t.steps * t.block_p >= pixels
    assert (tiles_p - 1) * t.steps * t.block_p < pixels  # no program without work
    assert t.grid[1] * t.block_c >= channels
    assert t.rows * channels <= max(torch.Size(shape).numel() / 8, t.samples * channels * 8)  # partial sums


def test_dense_copies_only_what_must_be_copied():
    x = torch.zeros(2, 3, 4, 5)
    nhwc = x.contiguous(memory_format=torch.channels_last)
    assert tiles.dense(x) is x
    assert tiles.dense(nhwc) is nhwc
    assert tiles.dense(nhwc[:, :, ::2]).is_contiguous(memory_format=torch.channels_last)
    assert tiles.dense(x[:, :, ::2]).is_contiguous()


def in_fresh_process(code: str) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)


def test_without_a_gpu_it_says_so_and_points_to_the_reference():
    done = in_fresh_process(
        "import torch, kernels; print(kernels.available())\n"
        "try: kernels.modulate(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1))\n"
        "except RuntimeError as e: print(e)"
    )
    assert done.stdout.splitlines()[0] == "no CUDA GPU that PyTorch can use"
    assert "modulate_reference" in done.stdout or "_reference" in done.stdout


def test_without_triton_the_references_still_work():
    done = in_fresh_process(
        "import sys; sys.modules['triton'] = None\n"
        "import torch, kernels; print(kernels.available())\n"
        "print(kernels.bias_act_reference(torch.tensor([[1.0, -1.0]]), gain=1.0).tolist())"
    )
    assert done.stdout.splitlines() == [
        "Triton is not installed (pip install triton)",
        "[[1.0, -0.20000000298023224]]",
    ]
