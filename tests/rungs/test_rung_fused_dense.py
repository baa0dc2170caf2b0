"""The rung fused_dense: the same step in every phase, a receipt that is earned, and a parity that sees planted bugs."""

import pytest
import torch

import kernels
from stylegan_lite import make_step
from tests.support.rung_steps import assert_engaged, assert_the_same, checked, every_phase, gathered, receipt
from tests.support.small import SMALL

DENSE = {"dense": "triton"}
TINY = SMALL | {"resolution": 8, "channel_base": 64, "z_dim": 10, "w_dim": 12}
torch.set_num_threads(1)


def small(recipe=None, **workload):
    return make_step(TINY | workload, recipe or {}, device="cpu")


@pytest.fixture
def plain_kernels(monkeypatch):
    """The ops in plain PyTorch, where what matters is how the model calls them: the interpreter is slow."""
    for name in ("dense", "dense_group"):
        monkeypatch.setattr(kernels, name, getattr(kernels, f"{name}_reference"))


def seen_of(recipe, sabotage=None):
    return gathered(small(recipe), sabotage)


@pytest.mark.parametrize("norm", ["demod", pytest.param("instance", marks=pytest.mark.exhaustive)])
def test_every_phase_computes_the_same(norm):
    """Through the kernels, in float64: R1 and path length differentiate them twice."""
    found = []
    for recipe in ({}, DENSE):
        found.append(every_phase(small({"precision": "fp64"} | recipe, norm=norm)))
    assert_the_same(found[1], found[0])


@pytest.mark.parametrize(
    "below",
    [
        pytest.param({}, marks=pytest.mark.exhaustive),
        {"precision": "bf16", "channels_last": True, "instance_norm": "var_mean"},
    ],
)
def test_the_rung_agrees_with_the_reference(below, references):
    found = checked(small(below | DENSE), references)
    assert found["verdict"] == "ok", found["problems"]


def test_weights_are_those_of_the_baseline():
    """A checkpoint of one recipe is one of the other."""
    plain, fused = small(), small(DENSE)
    for network in ("G", "D"):
        a, b = (getattr(step, network).state_dict() for step in (plain, fused))
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_shorter_batch_and_truncation_are_sampled_as_the_baseline_samples():
    z = torch.randn(3, 10)
    images = [small(recipe).sample(z, truncation=0.7) for recipe in ({}, DENSE)]
    torch.testing.assert_close(*images, rtol=1e-4, atol=1e-4)


# Receipt


@pytest.fixture(scope="module")
def seen():
    return seen_of({"precision": "bf16", "channels_last": True, "instance_norm": "var_mean"} | DENSE)


def test_the_receipt_is_earned(seen):
    found = receipt("fused_dense", seen)
    assert found.engaged, found.lines
    assert_engaged(seen, ("baseline", "bf16"))  # which looks for the mapping network in full precision
    assert seen["kernels"]["dense_kernel"]["dtypes"] == ["float32"]
    assert not receipt("fused_dense", seen_of({})).engaged


def test_a_generator_launches_its_affines_together(seen):
    """Mapping, all affines, D's layers, and one more for each second derivative: not one for each affine."""
    forward = {"G_main": 2 + 1 + 2, "G_pl": 2 + 1 + 1, "D_main": 2 + 1 + 2 * 2, "D_r1": 2 + 1}
    assert seen["kernels"]["dense_kernel"]["calls"] == sum(forward.values())


def test_a_mapping_network_in_bf16_is_seen(seen):
    sunk = seen["kernels"] | {"dense_kernel": {"calls": 20, "dtypes": ["bfloat16", "float32"]}}
    assert "mapping and affines in bfloat16" in receipt("bf16", seen | {"kernels": sunk}).reason


def test_fused_dense_sabotaged_by_plain_pytorch(plain_kernels, refused):
    what = "dense and dense_group are plain PyTorch"
    refused("fused_dense", seen_of(DENSE), "dense_kernel launched 0x", sabotage=what)


def test_fused_dense_sabotaged_in_the_affines_only(monkeypatch, refused):
    monkeypatch.setattr(kernels, "dense_group", kernels.dense_group_reference)
    what = "the affines are plain PyTorch"
    refused("fused_dense", seen_of(DENSE), "dense layers", "Generator", sabotage=what)


def test_fused_dense_sabotaged_in_one_layer_only(refused):
    def plain(step):
        step.D.logit.fused = False

    what = "one layer of the discriminator is plain PyTorch"
    refused("fused_dense", seen_of(DENSE, plain), "dense layers", "Dense", sabotage=what)


# Planted bugs


def no_gain(monkeypatch):
    monkeypatch.setattr(kernels, "dense", lambda *t, gain=1.0, **how: kernels.dense_reference(*t, **how))


def wrong_slot(monkeypatch):
    def shifted(ws, weights, biases, slots, **how):
        return kernels.dense_group_reference(ws, weights, biases, [max(s - 1, 0) for s in slots], **how)

    monkeypatch.setattr(kernels, "dense_group", shifted)


def no_bias_gain(monkeypatch):
    def forgetful(*t, bias_gain=1.0, **how):
        return kernels.dense_reference(*t, **how)

    monkeypatch.setattr(kernels, "dense", forgetful)


def detached_weights(monkeypatch):
    """A second derivative forgets that the first depends on the weights."""

    def forgetful(ws, weights, biases, slots, **how):
        return kernels.dense_group_reference(ws, [w.detach() for w in weights], biases, slots, **how)

    monkeypatch.setattr(kernels, "dense_group", forgetful)


BUGS = {
    "fused dense: no gain after the activation": no_gain,
    "fused dense: affines read the w of the layer before": wrong_slot,
    "fused dense: the bias gain is left out": no_bias_gain,
    "fused dense: the affines' weights get no gradient": detached_weights,
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_outside_the_budget(bug, plain_kernels, monkeypatch, planted_bug, references):
    BUGS[bug](monkeypatch)
    found = checked(small(DENSE), references)
    assert found["verdict"] == "failed: parity"
    planted_bug(bug=bug, planted="kernels.dense and dense_group", problem=found["reason"])


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_captured_phases_agree_with_the_reference(norm, references):
    graphs = {"cuda_graphs": True, "adam": "capturable", "set_to_none": True, "conv": "double_backward"}
    step = make_step(SMALL | {"norm": norm}, graphs | DENSE, device="cuda")
    found = checked(step, references)
    step.close()
    assert found["verdict"] == "ok", found["problems"]
