"""Compute copies of convolution weights: the same training, however parameters are changed, and a receipt for it."""

import copy

import pytest
import torch

from ladder.parity import reference
from ladder.receipts import evidence
from stylegan_lite.step import PHASES
from stylegan_lite.weights import ComputeWeights
from tests.support.rung_steps import every_phase, gathered, small
from tests.support.small import SMALL

ONCE = {"weights": "once"}
BF16 = {"channels_last": True, "instance_norm": "var_mean", "precision": "bf16", "set_to_none": True}
TURNED = {"channels_last": True, "set_to_none": True, "conv": "double_backward", "resample": "depthwise"}
torch.set_num_threads(1)


def trained(recipe, rounds=2, phases=PHASES, **workload):
    """Every phase, ``rounds`` times: what changes in one must have arrived in the next."""
    step = small(recipe, **workload)
    every_phase(step, rounds=rounds, phases=phases)
    return step


def assert_same_training(one, other, tolerance=1e-9):
    assert one.losses() == pytest.approx(other.losses(), rel=tolerance)
    for phase in other.gradients:
        assert one.gradients[phase].keys() == other.gradients[phase].keys()
        for name, gradient in other.gradients[phase].items():
            wrong = (one.gradients[phase][name] - gradient).norm()
            assert wrong <= tolerance * gradient.norm() + 1e-12, (phase, name)


@pytest.mark.covering
@pytest.mark.parametrize("norm", ["demod", "instance"])
@pytest.mark.parametrize(
    "how",
    [TURNED, {"modconv": "grouped"}, {"resample": "bilinear"}, {"resample": "folded", "set_to_none": True}],
    ids=["turned", "grouped", "bilinear", "folded"],
)
def test_every_phase_computes_the_same_with_weights_cast_once(how, norm):
    recipe = {"precision": "fp64"} | how
    found = [trained(recipe | more, norm=norm, resolution=8) for more in (ONCE, {})]
    assert_same_training(*found)


def test_the_demodulation_kernel_s_gradient_arrives_beside_the_convolution_s():
    recipe = TURNED | {"precision": "fp64", "fused_norm": True}
    tiny = {"resolution": 8, "channel_base": 32, "channel_max": 4, "w_dim": 4, "z_dim": 4, "batch": 2}
    found = [trained(recipe | more, 1, ("G_main", "G_pl"), **tiny) for more in (ONCE, {})]
    assert_same_training(*found)


def test_what_is_kept_does_not_change():
    step, plain = small(BF16 | ONCE), small(BF16)
    for network in ("G", "D", "G_ema"):
        one, other = (getattr(s, network).state_dict() for s in (step, plain))
        assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in other)
    assert [n for n, _ in step.G.named_parameters()] == [n for n, _ in plain.G.named_parameters()]
    assert not [layer for layer in step.G_ema.modules() if getattr(layer, "compute_copy", None) is not None]
    assert not ComputeWeights(plain.G, plain.recipe).entries


def test_copies_are_scaled_in_bf16_in_the_layout_of_their_convolution():
    step = small(BF16 | ONCE | {"resample": "triton"})
    entries = [e for copies in step.copies.values() for e in copies.entries]
    assert len(entries) == len([p for n in (step.G, step.D) for p in n.parameters() if p.dim() == 4])
    for entry in entries:
        assert torch.equal(entry.copy, (entry.weight * entry.gain).bfloat16())
    for block in list(step.G.blocks)[1:]:
        turned = block.conv0.compute_copy.transpose(0, 1)
        assert turned.is_contiguous(memory_format=torch.channels_last)


def test_a_frozen_network_s_copies_get_no_gradient():
    step = trained(BF16 | ONCE, rounds=1)
    for entry in step.copies[step.G].entries + step.copies[step.D].entries:
        entry.copy.grad = None
    step.run_phase("G_main")
    assert all(e.copy.grad is None and not e.copy.requires_grad for e in step.copies[step.D].entries)
    assert all(e.copy.grad is not None for e in step.copies[step.G].entries)


def loads_its_networks(step, state):
    for name in ("G", "D", "G_ema"):
        getattr(step, name).load_state_dict(state[name])


@pytest.mark.parametrize(
    "load", [lambda s, state: s.load_state_dict(state), loads_its_networks, reference.adopt]
)
def test_weights_that_are_loaded_are_the_ones_that_are_used(load):
    donor = trained(BF16 | ONCE)
    step = small(BF16 | ONCE)
    step.prepare()
    load(step, copy.deepcopy(donor.state_dict()))
    assert evidence.compute_copies(step) == {"kept": {"bfloat16": 16}, "stale": 0, "reworked": 0}


def test_a_run_is_resumed_to_the_bit():
    step = small(BF16 | ONCE)
    step.prepare()
    step.step()
    state = copy.deepcopy(step.state_dict())
    for _ in range(2):
        step.step()
    resumed = small(BF16 | ONCE)
    resumed.load_state_dict(state)
    for _ in range(2):
        resumed.step()
    assert resumed.losses() == step.losses()
    z = torch.randn(2, SMALL["z_dim"])
    assert torch.equal(step.sample(z), resumed.sample(z))


# the receipt


def seen_of(recipe, sabotage=None, **workload):
    """A step is run before anything is looked at: what was not refreshed by then is stale."""
    return gathered(small(recipe, **workload), sabotage, steps=1)
