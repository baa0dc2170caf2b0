"""Offsets past 2^31 elements, and gradients that nobody asked for."""

import gc

import pytest
import torch

import kernels
from kernels.choices import Choice
from kernels.common import tiles
from kernels.common.tiles import tl
from ladder.machine import system
from ladder.receipts.watch import count_launches
from ladder.studies.kernelbench import cases as kernelcases
from tests.kernels.opcases import DEVICE, flatten


@pytest.mark.skipif(not tiles.INTERPRETED, reason="on a GPU the test below does it in full")
@pytest.mark.parametrize(
    ("grid", "sizes", "columns", "offset"),
    [
        ((2, 1), (16, 2**27, 16, 1, 1, 1), 16, 2**31),  # the second sample's first tile
        ((3, 1), (2**30, 3, 2**30, 1, 3, 3), 16, 2**31),  # the third pixel's first 16 channels
        ((1, 2), (2, 2**31 - 64, 1, 2**31 - 64, 1, 1), 1, 2**31 - 64),  # NCHW: the second channel's first pixel
    ],
    ids=["sample", "pixel", "channel"],
)  # fmt: skip
def test_a_tile_past_two_to_the_31_is_read_and_written_where_it_lies(grid, sizes, columns, offset):
    """Only tiles at the ends are run: memory between them is never touched, so the system never provides it."""
    from kernels.pointwise.bias_act import bias_act_kernel

    x = torch.empty(2**31 + 64, dtype=torch.float16)
    x[:columns], x[offset : offset + columns] = 1, torch.arange(1, columns + 1)
    bias_act_kernel[grid](
        x, None, None, None, None, x, *sizes, 0,
        SLOPE=1.0, GAIN=2.0, CLAMP=None, ACC=tl.float32, WALK=False, WHOLE=True, STAGES=1,
        BLOCK_P=1, BLOCK_C=columns, DEPENDENT=False,
    )  # fmt: skip
    assert x[offset : offset + columns].tolist() == [2 * (i + 1) for i in range(columns)]
    assert x[:columns].tolist() == [2] * columns


def by_sample() -> list[str]:
    """Ops over maps whose samples have nothing to do with each other, but for sums over all of them."""
    return [
        name
        for name, entry in kernelcases.OPS.items()
        if set("".join(entry.inputs.values())) <= set("NCHWR13")
        if {"NCHW", "N3HW"} & set(entry.inputs.values())
        if entry.function
        not in ("conv2d", "minibatch_std", "batch_norm_act")  # cuDNN's, and two that compare samples
        if entry.penalty  # CUDA pairs that show one claim have no gradients
    ]


def derive(case, inputs, gs, along):
    """Return the results of all directions by name, each tensor with whether it has a sample an entry."""
    entry, names = case.entry, case.differentiated
    ys = flatten(case.fused()(**inputs))
    results = {f"y{i}": (y.detach(), True) for i, y in enumerate(ys)}
    gs = [g.requires_grad_() for g in gs(ys)]
    wanted, through = [inputs[name] for name in names], bool(entry.penalty)
    first = torch.autograd.grad(ys, wanted, gs, create_graph=through, allow_unused=True)
    del ys
    is_by_sample = {name: "N" in entry.inputs[name] for name in names} | {
        f"g{i}": True for i in range(len(gs))
    }
    results |= {f"d{name}": (g.detach(), is_by_sample[name]) for name, g in zip(names, first, strict=True)}
    if through:
        firsts = [first[names.index(name)] for name in entry.penalty]
        second = torch.autograd.grad(firsts, [*wanted, *gs], along(firsts), allow_unused=True)
        for name, gradient in zip(is_by_sample, second, strict=True):
            if gradient is not None:
                results[f"dd{name}"] = (gradient, is_by_sample[name])
    return results


@pytest.mark.covering
@pytest.mark.parametrize("layout", kernelcases.LAYOUTS)
@pytest.mark.parametrize("op", by_sample())
@pytest.mark.parametrize(
    ("samples", "channels", "pixels"), [(2, 6, 6), pytest.param(33, 64, 1024, marks=pytest.mark.gpu)]
)
def test_the_last_sample_is_treated_as_it_is_alone(samples, channels, pixels, op, layout):
    """Forward, backward and double backward; on a GPU it lies past 2^31 elements. Nothing comes from the others."""
    if any(system.list_capabilities(DEVICE)[need] for need in kernelcases.OPS[op].needs):
        pytest.skip(f"needs {', '.join(kernelcases.OPS[op].needs)}")
    if pixels > 100:
        gc.collect()
        torch.cuda.empty_cache()
        if torch.cuda.mem_get_info()[0] < 100 << 30:
            pytest.skip("needs 100 GiB of GPU memory")
    assert not list_differences(samples, channels, pixels, op, layout)


def list_differences(samples: int, channels: int, pixels: int, op: str, layout: str) -> list[str]:
    """Return the results that differ between the last sample and the sample alone.

    No tensor outlives this: pytest keeps all locals of a failed test.
    """
    entry = kernelcases.OPS[op]
    letters = set("".join(entry.inputs.values()))
    wide = pixels + ("R" in letters)  # a transposed convolution leaves a pixel more
    sizes = [("N", samples), ("C", channels), ("H", wide), ("W", wide), ("R", pixels)]
    case = kernelcases.Case(op, tuple((k, n) for k, n in sizes if k in letters), "bf16", layout)
    torch.manual_seed(0)
    inputs, last = case.tensors(DEVICE), {}
    for name, t in inputs.items():
        own = (
            t.detach()[-1:].clone(memory_format=torch.preserve_format)
            if "N" in entry.inputs[name]
            else t.detach()
        )
        last[name] = own.requires_grad_(t.requires_grad)
    kept = {}  # what comes in behind the last sample; nothing comes in behind the others

    def fill(what, tensors):
        made = [torch.zeros_like(t) for t in tensors]
        for g in made:
            g[-1].normal_()
        kept[what] = [g[-1:].clone(memory_format=torch.preserve_format) for g in made]
        return made

    whole = derive(case, inputs, lambda ys: fill("g", ys), lambda firsts: fill("along", firsts))
    together = {name: t[-1:].clone() if each else t for name, (t, each) in whole.items()}
    del whole
    problems = []
    for name, (expected, each) in derive(case, last, lambda _: kept["g"], lambda _: kept["along"]).items():
        found = together[name]
        # Sums may be taken in another order: all gradients but the map's are some, and so are statistics of a map.
        sums = entry.function.endswith("instance_norm_act") or (
            name[:1] == "d" and name not in ("dx", "ddg0")
        )
        if each and not sums:
            if not torch.equal(found, expected):
                problems.append(f"{name}: another number")
            continue
        scale = float(expected.float().abs().max())
        try:
            one_step = torch.finfo(expected.dtype).eps if expected.dtype.itemsize == 2 else 2e-3
            torch.testing.assert_close(found, expected, rtol=one_step, atol=2e-3 * scale)
        except AssertionError as error:
            problems.append(f"{name}: {error}")
    return problems


def leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]


def test_path_length_pays_for_no_weight_gradient():
    """It differentiates by the styles alone; that the weight could be differentiated, too, must cost nothing."""
    weight, style = leaves((4, 3, 3, 3), (2, 3))
    for by, is_launched in (([style], False), ([weight, style], True)):
        with count_launches() as seen:
            torch.autograd.grad(kernels.demodulate(weight, style).sum(), by, create_graph=not is_launched)
        assert "demodulate_dstyle_kernel" in seen
        assert ("demodulate_dweight_kernel" in seen) == is_launched


def test_sums_end_in_one_launch_and_only_where_asked_for(monkeypatch):
    monkeypatch.setattr(tiles, "choose", lambda *key: Choice(tile=16, columns=4, warps=1, per_sm=1))
    tiles.tiling.cache_clear()
    x, bias, strength, scale = leaves((2, 5, 4, 3), (5,), (), (2, 5))
    noise, counted = torch.randn(2, 1, 4, 3, device=DEVICE), []
    for wanted in ((x,), (x, bias, strength, scale)):
        y = kernels.bias_act(x, bias, noise=noise, strength=strength, scale=scale)
        with count_launches() as seen:
            torch.autograd.grad(y, wanted, torch.ones_like(y))
        counted.append(seen.get("sum_partials_kernel", {}).get("calls", 0))
    tiles.tiling.cache_clear()
    assert counted == [0, 1]
