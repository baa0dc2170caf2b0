"""Offsets past 2^31 elements, and gradients that nobody asked for."""

import pytest
import torch

import kernels
from kernels import tiles
from kernels.choices import Choice
from kernels.tiles import tl
from ladder.watch import launches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.skipif(not tiles.INTERPRETED, reason="on a GPU the test below does it in full")
@pytest.mark.parametrize(
    ("grid", "sizes", "columns", "offset"),
    [
        ((2, 1), (16, 2**27, 16, 1, 1, 1), 16, 2**31),  # the second sample's first tile
        ((3, 1), (2**30, 3, 2**30, 1, 3, 3), 16, 2**31),  # the third pixel's first 16 channels
        (
            (1, 2),
            (2, 2**31 - 64, 1, 2**31 - 64, 1, 1),
            1,
            2**31 - 64,
        ),  # NCHW: the second channel's first pixel
    ],
    ids=["sample", "pixel", "channel"],
)
def test_a_tile_past_two_to_the_31_is_read_and_written_where_it_lies(grid, sizes, columns, offset):
    """Only tiles at the ends are run: memory between them is never touched, so the system never provides it."""
    from kernels.bias_act import bias_act_kernel

    x = torch.empty(2**31 + 64, dtype=torch.float16)
    x[:columns], x[offset : offset + columns] = 1, torch.arange(1, columns + 1)
    bias_act_kernel[grid](
        x, None, None, None, None, x, *sizes, 0,
        SLOPE=1.0, GAIN=2.0, CLAMP=None, ACC=tl.float32, WALK=False, WHOLE=True, STAGES=1,
        BLOCK_P=1, BLOCK_C=columns,
    )  # fmt: skip
    assert x[offset : offset + columns].tolist() == [2 * (i + 1) for i in range(columns)]
    assert x[:columns].tolist() == [2] * columns


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_activations_past_two_to_the_31_elements(layout):
    """The last sample of a batch of more than 2^31 elements is treated as it is alone."""
    shape = (33, 64, 1024, 1024)
    x = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE, memory_format=layout)
    x[-1].normal_()
    bias, strength = torch.randn(64, device=DEVICE), torch.tensor(0.3, device=DEVICE)
    scale, noise = torch.randn(33, 64, device=DEVICE), torch.randn(33, 1, 1024, 1024, device=DEVICE)
    with torch.no_grad():
        for y, alone in (
            (kernels.bias_act(x, bias), kernels.bias_act(x[-1:], bias)),
            (
                kernels.bias_act(x, bias, scale=scale, noise=noise, strength=strength),
                kernels.bias_act(x[-1:], bias, scale=scale[-1:], noise=noise[-1:], strength=strength),
            ),
            (kernels.modulate(x, scale), kernels.modulate(x[-1:], scale[-1:])),
        ):
            assert torch.equal(y[-1:], alone)


def leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]


def test_path_length_pays_for_no_weight_gradient():
    """It differentiates by the styles alone; that the weight could be differentiated, too, must cost nothing."""
    weight, style = leaves((4, 3, 3, 3), (2, 3))
    with launches() as seen:
        torch.autograd.grad(kernels.demodulate(weight, style).sum(), style, create_graph=True)
    assert "demodulate_dstyle_kernel" in seen
    assert "demodulate_dweight_kernel" not in seen
    with launches() as seen:
        kernels.demodulate(weight, style).sum().backward()
    assert "demodulate_dweight_kernel" in seen


@pytest.mark.parametrize("asked", [0, 1, 2, 3])
def test_a_gradient_asked_for_alone_is_the_same_as_among_others(asked):
    x, bias, strength, scale = inputs = leaves((2, 5, 4, 3), (5,), (), (2, 5))
    noise = torch.randn(2, 1, 4, 3, device=DEVICE)

    def y():
        return kernels.bias_act(x, bias, noise=noise, strength=strength, scale=scale).square().sum()

    alone = torch.autograd.grad(y(), inputs[asked])
    assert torch.equal(alone[0], torch.autograd.grad(y(), inputs)[asked])
    y().backward()
    assert torch.equal(alone[0], inputs[asked].grad)


def test_sums_end_in_one_launch_and_only_where_asked_for(monkeypatch):
    monkeypatch.setattr(tiles, "choose", lambda *key: Choice(tile=16, columns=4, warps=1, per_sm=1))
    tiles.tiling.cache_clear()
    x, bias, strength, scale = leaves((2, 5, 4, 3), (5,), (), (2, 5))
    noise, counted = torch.randn(2, 1, 4, 3, device=DEVICE), []
    for wanted in ((x,), (x, bias, strength, scale)):
        y = kernels.bias_act(x, bias, noise=noise, strength=strength, scale=scale)
        with launches() as seen:
            torch.autograd.grad(y, wanted, torch.ones_like(y))
        counted.append(seen.get("sum_partials_kernel", {}).get("calls", 0))
    tiles.tiling.cache_clear()
    assert counted == [0, 1]
