"""How activations are cut into tiles, and what the package says of machines it cannot run on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernels
from kernels import choices
from kernels.choices import Choice, Key
from kernels.common import tiles
from tests.kernels.opcases import BINOMIAL, forget_covers

ROOT = Path(__file__).parents[2]
SHAPES = [
    (8, 64, 256, 256), (8, 512, 4, 4), (32, 512, 1, 1), (4, 3, 1024, 1024), (5, 7, 3, 11), (2, 1, 9, 9), (6, 512),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("direction", choices.DIRECTIONS)
@pytest.mark.parametrize("op", choices.OPS)
def test_tiles_cover_every_element_and_reductions_stay_small(shape, nhwc, merge, direction, op):
    size, where = torch.Size(shape), (torch.bfloat16, torch.device("cpu"))
    t = tiles.tiling(size, nhwc, op, direction, *where, merge)
    channels, pixels, stride_p, stride_c, count, programs = t.sizes
    block_p, block_c = t.options["BLOCK_P"], t.options["BLOCK_C"]
    assert t.samples * channels * pixels == size.numel()
    assert sorted((stride_p, stride_c)) == sorted((1, channels if nhwc else pixels))
    assert (count - 1) * block_p < pixels <= count * block_p
    assert (-(-count // programs) - 1) * programs < count  # no program walks a tile further than another
    assert t.options["WALK"] == (programs < count)
    assert t.options["WHOLE"] == (pixels % block_p == 0 and channels % block_c == 0)
    assert t.grid == (t.samples * programs, -(-channels // block_c))
    if direction != "forward":
        assert t.rows * channels <= max(size.numel() / 8, t.samples * channels * 8)  # partial sums


@pytest.mark.parametrize("shape", [(1, 2**20, 3, 2**20), (2**33, 4), (4, 2**31)], ids=str)
@pytest.mark.parametrize("nhwc", [False, True])
def test_offsets_within_a_tile_fit_32_bits_however_large_the_tensor(shape, nhwc):
    where = ("bias_act", "backward", torch.bfloat16, torch.device("cpu"), True)
    t = tiles.tiling(torch.Size(shape), nhwc, *where)
    _, pixels, stride_p, stride_c, *_ = t.sizes
    assert (t.options["BLOCK_P"] - 1) * stride_p + (t.options["BLOCK_C"] - 1) * stride_c < 2**31
    assert t.samples == 1 or pixels < 2**30  # pixels merged over samples are counted in 32 bits


@pytest.fixture
def table(monkeypatch):
    """Returns a function that puts tables of {key: tile} in force. What was chosen and noted is forgotten."""
    monkeypatch.setattr(choices, "_chosen", {})
    monkeypatch.setattr(choices, "_noted", {})
    return lambda rows: monkeypatch.setattr(
        choices, "TABLE", {key: Choice(tile, 8, 1) for key, tile in rows.items()}
    )


def test_where_no_row_says_medium_one_of_large_maps_decides(table):
    table({
        Key("modulate", "forward"): 64, Key("modulate", "forward", *choices.H200): 128,
        Key("modulate", "backward", *choices.H200): 256,
        Key("modulate", "backward", *choices.H200[:3], "medium"): 512,
    })  # fmt: skip
    sizes = [choices.size_of(n) for n in (1 << 20, (1 << 20) + 1, (1 << 26) - 1, 1 << 26)]
    assert sizes == ["small", "medium", "medium", "large"]
    for direction, wanted in (
        ("forward", {"small": 64, "medium": 128, "large": 128}),
        ("backward", {"medium": 512, "large": 256}),
    ):
        for size, tile in wanted.items():
            assert choices.choose("modulate", direction, 2, "nhwc", 90, size).tile == tile
    assert {row.get("size") for row in choices.used()} == {None, "large", "medium"}


def test_the_most_specific_row_of_the_table_decides_and_can_be_asked_for(table):
    table({Key("modulate", "forward"): 64, Key("modulate", "forward", architecture=89): 128})
    for itemsize, layout, architecture, size, tile in (
        (2, "nhwc", 90, "large", 64), (2, "nhwc", 89, "large", 128), (4, "nchw", 90, "small", 64),
    ):  # fmt: skip
        assert choices.choose("modulate", "forward", itemsize, layout, architecture, size).tile == tile
    assert [(c["architecture"], c["tile"]) for c in choices.chosen()][:2] == [(89, 128), (90, 64)]
    named = {"op": "modulate", "direction": "forward"}
    rows = [named | {"architecture": 89} | Choice(128, 8, 1)._asdict(), named | Choice(64, 8, 1)._asdict()]
    assert choices.used() == rows


@pytest.mark.parametrize(
    ("op", "shape", "run"),
    [
        ("upfirdn2d", (2, 4, 8, 8), lambda x: kernels.upfirdn2d(x, BINOMIAL, up=2)),
        ("filter_act", (2, 4, 8, 8), lambda x: kernels.filter_act(x, BINOMIAL)),
        ("rgb", (2, 4, 8, 8), lambda x: kernels.to_rgb(x, torch.ones(3, 4, 1, 1), torch.ones(2, 4))),
        ("instance_norm_act planes", (3, 88, 32, 32), lambda x: kernels.instance_norm_act(x, *torch.ones(2, 3, 88))),
    ],
)  # fmt: skip
def test_what_other_tables_decide_is_told_with_the_rest(op, shape, run, monkeypatch):
    monkeypatch.setattr(choices, "_noted", {})
    forget_covers()
    run(torch.ones(shape))
    (row,) = (each for each in choices.used() if each["op"] == op)
    assert row["case"] and ("rows " in row["entry"] or "per_sm " in row["entry"])


def test_dense_copies_only_what_must_be_copied():
    x = torch.zeros(2, 3, 4, 5)
    nhwc = x.contiguous(memory_format=torch.channels_last)
    assert tiles.dense(x) is x and tiles.dense(nhwc) is nhwc
    assert tiles.dense(nhwc[:, :, ::2]).is_contiguous(memory_format=torch.channels_last)
    assert tiles.dense(x[:, :, ::2]).is_contiguous()


FORKS = """
import os, sys, torch
for code in sys.argv[1:]:
    sys.stdout.flush()
    if not (child := os.fork()):
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("--")
"""
NO_GPU = """
import kernels
print(kernels.available())
try: kernels.modulate(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1))
except RuntimeError as e: print(e)
"""
INTERPRETED = """
os.environ["TRITON_INTERPRET"] = "1"
import kernels
x, taps = torch.randn(1, 2, 4, 4, requires_grad=True), (0.25, 0.5, 0.25)
y = kernels.filter_act(kernels.modulate(x, torch.ones(1, 2)), taps, torch.zeros(2), padding=1)
(g,) = torch.autograd.grad(y.sum(), x)
print(torch.equal(y > 0, kernels.upfirdn2d_reference(x, taps, padding=1) > 0), bool(g.all()))
"""
NO_TRITON = """
sys.modules["triton"] = None
import kernels
print(kernels.available())
print(kernels.bias_act_reference(torch.tensor([[1.0, -1.0]]), gain=1.0).tolist())
"""


def test_a_process_without_a_gpu_or_triton_says_so_and_the_interpreter_needs_nothing_of_the_tests():
    """`TRITON_INTERPRET=1` is documented; Triton's own, which these tests make faster, wants its language in sight."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", FORKS, NO_GPU, INTERPRETED, NO_TRITON]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    no_gpu, interpreted, no_triton, _ = done.stdout.split("--\n")
    assert no_gpu.startswith("no CUDA GPU that PyTorch can use\n") and "_reference" in no_gpu
    assert interpreted == "True True\n"
    assert no_triton == "Triton is not installed (pip install triton)\n[[1.0, -0.20000000298023224]]\n"
