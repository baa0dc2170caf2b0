"""Passes that backward runs again: equal results, fewer tensors kept, each freed behind its last use."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from stylegan_lite import Recipe, Workload, stylegan2
from stylegan_lite.step import TrainingStep, recompute
from tests.support.rung_steps import every_phase, small
from tests.support.small import LEAST

FUSED = {
    "resample": "triton",
    "channels_last": True,
    "conv": "double_backward",
    "fused_act": True,
    "fused_norm": True,
    "fused_filter": True,
    "fused_residual": True,
    "fused_modulation": True,
    "rgb": "triton",
    "precision": "bf16",
    "joint_batch": True,
}
AGAIN = FUSED | {"checkpointing": True}
MAIN = ("G_main", "D_main")
SIZE = LEAST | {"resolution": 16, "channel_base": 64}
torch.set_num_threads(1)


def made(recipe: dict[str, Any]) -> TrainingStep:
    """A step with two blocks in D, whose noise and biases are not zero."""
    step = small(recipe, **SIZE)
    torch.manual_seed(5)
    with torch.no_grad():
        for network in (step.G, step.D):
            for name, parameter in network.named_parameters():
                if name.endswith(("noise_strength", "bias")):
                    parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return step


def gradients(recipe: dict[str, Any]) -> dict[str, dict[str, torch.Tensor]]:
    return every_phase(made(recipe), phases=MAIN, noise=True)[1]


def test_what_runs_again_follows_from_the_recipe():
    recipes = [Recipe.from_dict(r) for r in ({}, FUSED, {"checkpointing": True}, AGAIN)]
    demod, instance = (Workload.from_dict(LEAST | {"norm": norm}) for norm in ("demod", "instance"))
    assert [stylegan2.kind(demod, each) for each in recipes] == ["", "", "blocks", "passes"]
    assert stylegan2.kind(instance, recipes[-1]) == "blocks"


@pytest.fixture(scope="module")
def expected():
    return gradients(FUSED)


@pytest.mark.parametrize("kind", ["passes", "blocks"])
def test_gradients_are_equal_bit_by_bit(kind, expected, monkeypatch):
    monkeypatch.setattr(stylegan2, "kind", lambda *_: kind)
    found = gradients(AGAIN)
    for phase in MAIN:
        assert found[phase].keys() == expected[phase].keys()
        for name, gradient in expected[phase].items():
            assert torch.equal(found[phase][name], gradient), (phase, name)


def kept(step: TrainingStep, phase: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the bytes of maps that autograd keeps for backward in one phase."""
    every: list[recompute._Kept] = []

    class Noted(recompute._Kept):
        def __init__(self, tensor: torch.Tensor) -> None:
            super().__init__(tensor)
            every.append(self)

    monkeypatch.setattr(recompute, "_Kept", Noted)
    step._fill(phase)
    step._free(phase)
    again = step.G.again
    around = torch.autograd.graph.saved_tensors_hooks(Noted, Noted.get)
    with contextlib.nullcontext() if again else around:
        loss = step._loss(phase)
    maps = [k.tensor.untyped_storage() for k in every if k.tensor is not None and k.tensor.dim() == 4]
    del loss
    weights = {p.untyped_storage().data_ptr() for n in (step.G, step.D) for p in n.parameters()}
    return sum({s.data_ptr(): s.nbytes() for s in maps if s.data_ptr() not in weights}.values())


@pytest.mark.parametrize(("phase", "most"), [("G_main", 0.7), ("D_main", 0.6), ("D_r1", 1.0)])
def test_main_phases_keep_fewer_maps_and_r1_as_many(phase, most, monkeypatch):
    whole, again = (kept(made(r), phase, monkeypatch) for r in (FUSED, AGAIN))
    assert again <= most * whole
    assert again == whole or phase.endswith("main")


@pytest.mark.parametrize("recipe", [FUSED, AGAIN], ids=["kept", "again"])
def test_what_a_convolution_has_read_is_free_before_the_forward_pass_ends(recipe):
    step, read = made(recipe), []
    for block in step.D.blocks:
        block.conv1.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    step.run_phase("D_main")
    assert read and all((x.untyped_storage().nbytes() == 0) is ("checkpointing" in recipe) for x in read)


# The hooks alone


class Doubled(torch.autograd.Function):
    """An op with two results, one of which it keeps itself."""

    runs = 0

    @staticmethod
    def forward(ctx, x):
        Doubled.runs += 1
        y = x * 2
        ctx.save_for_backward(x, y)
        return y, x * 3

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        assert torch.equal(y, x * 2)
        return g * 2 + h * 3


def test_a_pass_runs_once_more_for_all_its_results_and_frees_each_behind_its_last_use(monkeypatch):
    passes: list[recompute._Pass] = []

    class Noted(recompute._Pass):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            passes.append(self)

    monkeypatch.setattr(recompute, "_Pass", Noted)
    monkeypatch.setattr(Doubled, "runs", 0)
    x, w = torch.arange(6.0).view(1, 6).requires_grad_(), torch.ones(6, 6, requires_grad=True)
    with recompute.passes("passes"):
        y, z = recompute.recomputed(Doubled.apply, x)
        total = (F.linear(y, w) * F.linear(z.view(2, 3), w[:3, :3]).sum()).sum()  # of z a view is kept
    assert passes[0].uses == {0: 2, 1: 1} and not passes[0].results
    grads = torch.autograd.grad(total, (x, w))
    assert Doubled.runs == 2 and passes[0].uses == {0: 0, 1: 0} and not passes[0].results
    y, z = Doubled.apply(x)
    total = (F.linear(y, w) * F.linear(z.view(2, 3), w[:3, :3]).sum()).sum()
    assert all(map(torch.equal, grads, torch.autograd.grad(total, (x, w))))


def test_a_pass_runs_again_in_the_dtype_of_its_first_run():
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def run(again: bool) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16), recompute.passes("passes" if again else ""):
            loss = torch.mm(recompute.recomputed(lambda x: torch.mm(x, x).sigmoid(), x), w).float().sum()
        return torch.autograd.grad(loss, w)[0]

    assert torch.equal(run(True), run(False))
