"""docs/adopt.md: the blocks of code for a loop of one's own run as written, in order, and do what the page says."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kernels
from ladder.plan import catalog
from ladder.report import recommend

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "adopt.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```py\n(.+?)```", PAGE, re.DOTALL)
Names = dict[str, Any]


@contextlib.contextmanager
def flags() -> Iterator[None]:
    """Put back what the page sets for the whole process."""
    cuda, conv = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
    benchmark, threads = torch.backends.cudnn.benchmark, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision = cuda, conv
        torch.backends.cudnn.benchmark = benchmark
        torch.set_num_threads(threads)


@contextlib.contextmanager
def page() -> Iterator[Names]:
    """The names of the page after all of its blocks. The exported package is stood for by the ops' references."""
    ops = types.ModuleType("fastops")
    for name in ("conv2d", "bias_act", "upfirdn2d"):
        setattr(ops, name, getattr(kernels, f"{name}_reference"))
    names: Names = {}
    with pytest.MonkeyPatch.context() as patch, flags():
        patch.setitem(sys.modules, "fastops", ops)
        torch.manual_seed(0)
        for number, block in enumerate(BLOCKS):
            exec(compile(block, f"docs/adopt.md, block {number + 1}", "exec"), names)
        yield names
    names.clear()  # and with it the loader's workers
    gc.collect()


@pytest.fixture(scope="module")
def ran() -> Iterator[Names]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        with page() as names:
            yield names


def test_the_blocks_train_both_networks(ran: Names) -> None:
    fresh: Names = {}
    torch.manual_seed(0)
    exec(BLOCKS[0], fresh)
    for name in ("G", "D"):
        pairs = zip(ran[name].parameters(), fresh[name].parameters(), strict=True)
        assert not any(torch.equal(mine, its) for mine, its in pairs)
    averages = zip(ran["G_ema"].parameters(), ran["G"].parameters(), strict=True)
    assert not any(torch.equal(mine, its) for mine, its in averages)
    assert all(float(each) > 0 and each.isfinite() for each in ran["losses"].values())
    assert ran["opt_G"].param_groups[0]["fused"] and ran["opt_D"].param_groups[0]["fused"]
    assert ran["real"].is_contiguous(memory_format=torch.channels_last) and ran["real"].abs().max() <= 1


def test_the_fast_gradients_are_further_from_fp64_than_the_plain_ones(ran: Names) -> None:
    assert 0 < ran["error"]["plain"] < 1e-5 < ran["error"]["fast"]


def test_the_bound_on_fast_gradients_holds_from_any_seed(ran: Names) -> None:
    count = len(ran["noise"])
    for seed in range(60):
        fresh: Names = {}
        torch.manual_seed(seed)
        exec(BLOCKS[0], fresh)
        network, noise = (
            fresh["D"].to(memory_format=torch.channels_last),
            torch.rand(count, 3, 16, 16) * 2 - 1,
        )
        exact = ran["gradients"](network, noise, torch.float64, ran["off"]())
        fast = ran["gradients"](network, noise, torch.float32, ran["precise"]())
        assert float((fast - exact).norm() / exact.norm()) < 0.05, seed


def test_a_frozen_network_gets_no_gradients(ran: Names) -> None:
    ran["opt_D"].zero_grad(set_to_none=True)
    ran["trains"](ran["G"], ran["D"])
    ran["g_phase"]()
    assert all(each.grad is None for each in ran["D"].parameters())
    assert all(each.grad is not None for each in ran["G"].parameters())


def test_a_capture_follows_three_runs_and_starts_without_gradients(
    ran: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def inside(*_: object, **how: object) -> Iterator[None]:
        seen.append(f"capture {how}" if how else "side")
        yield
        seen.append("end")

    class Graph:
        def replay(self) -> None:
            seen.append("replay")

    def phase() -> None:
        seen.append("run" if any(each.grad is not None for each in ran["D"].parameters()) else "clean run")

    stream = types.SimpleNamespace(wait_stream=lambda other: None)
    for name, fake in (
        *(("Stream", lambda: stream), ("current_stream", lambda: stream), ("stream", inside)),
        *(("CUDAGraph", Graph), ("graph", inside)),
    ):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setitem(ran, "device", "cuda")
    for each in ran["D"].parameters():
        each.grad = torch.zeros_like(each)
    replay = ran["captured"](phase, ran["D"], ran["G"])
    once = "capture {'capture_error_mode': 'thread_local'}"
    assert seen == ["side", "run", "run", "run", "end", once, "clean run", "end"]
    replay()
    assert seen[-1] == "replay"
    assert not any(each.requires_grad for each in ran["G"].parameters())


def test_lazy_phases_run_when_they_are_due(ran: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setitem(ran, "run", {name: lambda name=name: seen.append(name) for name in ("G", "D", "R1")})
    ran["step"](0)
    ran["step"](15)
    assert seen == ["G", "D", "R1", "G", "D"]


def test_style_mixing_by_a_mask_is_that_by_a_cutoff(ran: Names) -> None:
    first, second = torch.zeros(2, 3), torch.ones(2, 3)
    for draw, position, cutoff in ((0.0, 0.0, 1), (0.5, 0.5, 3), (0.89, 0.999, 5), (0.95, 0.0, 6)):
        ran["uniform"].copy_(torch.tensor([draw, position]))
        w = ran["mixed"](first, second)
        assert w.shape == (2, 6, 3) and (w[:, :cutoff] == 0).all() and (w[:, cutoff:] == 1).all()


def test_what_a_graph_knows_stays_where_it_is(ran: Names) -> None:
    ran["mean_length"].zero_()
    where = ran["mean_length"].data_ptr()
    assert float(ran["track"](torch.full((4,), 2.0), decay=0.5)) == 1.0
    assert ran["mean_length"].data_ptr() == where == ran["track"](torch.ones(4)).data_ptr()
    parameters = [*ran["D"].parameters(), *ran["G_ema"].parameters()]
    moments = [each for held in ran["opt_D"].state.values() for each in held.values()]
    before = [each.data_ptr() for each in (*parameters, *moments)]
    ran["put_back"](ran["state"]())
    moments = [each for held in ran["opt_D"].state.values() for each in held.values()]
    assert before == [each.data_ptr() for each in (*parameters, *moments)]


def test_the_state_that_is_put_back_is_whole(ran: Names) -> None:
    before = ran["state"]()
    ran["step"](0)
    ran["put_back"](before)
    for mine, its in zip(ran["state"](), before, strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=0)


def test_a_step_as_one_graph_has_all_phases(ran: Names) -> None:
    before = {name: float(ran["losses"][name]) for name in ("G", "D")}
    ran["z_of_g"].normal_()
    ran["z_of_d"].normal_()
    ran["whole"]()
    assert all(float(ran["losses"][name]) != before[name] for name in before)
    assert torch.equal(ran["z"], ran["z_of_d"])


def test_the_exported_ops_are_called_as_they_are(ran: Names) -> None:
    x, weight, bias = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    y = torch.nn.functional.conv2d(x, weight, bias, padding=1)
    expected = torch.nn.functional.leaky_relu(y, 0.2) * 2**0.5
    torch.testing.assert_close(ran["layer"](x, weight, bias), expected)
    flat = ran["halved"](torch.ones(1, 2, 8, 8))
    assert flat.shape == (1, 2, 4, 4) and torch.allclose(flat[:, :, 1:-1, 1:-1], torch.ones(1, 2, 2, 2))
    exported = re.search(r"ladder export out --ops (\S+) --package fastops", PAGE)
    used = set(re.findall(r"fastops\.(\w+)\(", "".join(BLOCKS)))
    assert exported and used == set(exported[1].split(","))


def test_what_the_page_says_of_fused_ops_alone_is_so() -> None:
    """In Triton's interpreter, or on a GPU: no gradient of a bias where it is zero, and a result that is kept."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = []
    for op in (kernels.bias_act, kernels.bias_act_reference):
        x, bias = torch.randn(2, 3, 4, 4, device=device, requires_grad=True), torch.zeros(3, device=device)
        (gradient,) = torch.autograd.grad(op(x, bias.requires_grad_(True)).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        found.append(bias.grad)
    assert found[0] is None and found[1] is not None and not found[1].any()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kernels.bias_act(x, bias).mul_(2).sum().backward()


def test_every_section_has_code_and_the_articles_rungs_are_named() -> None:
    named = [name for each in recommend.read_sections() for name in each.rungs]
    assert len(named) == len(set(named)) and set(named) <= set(catalog.list_rungs())
    assert all(each.blocks for each in recommend.read_sections())
    rungs = {rung.name for rung in catalog.load_ladder("article").rungs} - {"baseline"}
    assert rungs <= set(named)


@pytest.mark.gpu
def test_the_blocks_run_on_a_gpu_as_graphs() -> None:
    with page() as names:
        assert names["launches"]["cudaGraphLaunch"] == 2
        assert names["error"]["fast"] > names["error"]["plain"]
