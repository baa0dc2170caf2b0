"""spectral_norm: a workload's discriminator is normalized as PyTorch's own parametrization does it, and the rung
computes the same in a few launches."""

import pytest
import torch
from torch.nn.utils import parametrizations

from ladder.parity import budget, reference
from ladder.plan import catalog, needs
from stylegan_lite import ConfigError, Recipe, Workload, make_step, spectral
from stylegan_lite.networks import Discriminator
from tests.rungs.cases import SN
from tests.support.rung_steps import (
    assert_engaged,
    assert_the_same,
    checked,
    every_phase,
    gathered,
    receipt,
    small,
)
from tests.support.small import LEAST, SMALL

FUSED = {"spectral_norm": "triton"}
# Without activations, filters and so on of ours: each is tested elsewhere, and interpreted slowly.
LEAN = {"weights": "once", "fused_adam": True, "ema": "foreach", "conv": "double_backward"}
torch.set_num_threads(1)


def least(recipe, **workload):
    return make_step(LEAST | SN | workload, recipe, device="cpu")


# ---- the workload's option


def test_it_is_pytorch_s_own_parametrization_used_once_for_each_update():
    """Weights in force, sigma's gradient, and u and v after some updates, of every kind of layer."""
    torch.manual_seed(0)
    D = Discriminator(Workload.from_dict(LEAST | SN), Recipe()).double()
    for layer in D.spectral_weights.layers:
        theirs = torch.nn.Module()
        theirs.weight = torch.nn.Parameter(layer.weight.detach().clone())
        parametrizations.spectral_norm(theirs)
        kept = theirs.parametrizations.weight[0]
        kept._u.copy_(layer.u)
        kept._v.copy_(layer.v)
        for _ in range(3):
            spectral.iterate(layer)
            expected = theirs.weight  # iterates, then divides
            torch.testing.assert_close(spectral.normalized(layer), expected)
            g = torch.randn_like(expected)
            (got,) = torch.autograd.grad(spectral.normalized(layer), layer.weight, g)
            (want,) = torch.autograd.grad(expected, theirs.parametrizations.weight.original, g)
            torch.testing.assert_close(got, want)
            torch.testing.assert_close((layer.u, layer.v), (kept._u, kept._v))
            with torch.no_grad():
                moved = 0.1 * torch.randn_like(layer.weight)
                layer.weight += moved
                theirs.parametrizations.weight.original += moved


def test_every_layer_of_the_discriminator_has_norm_one_and_none_of_the_generator():
    step = small({}, **SN)
    layers = {name: m for name, m in step.D.named_modules() if spectral.is_constrained(m)}
    assert len(layers) == sum(p.dim() > 1 for p in step.D.parameters())
    for name, layer in layers.items():
        largest = torch.linalg.matrix_norm(spectral.normalized(layer).detach().flatten(1), 2)
        assert float(largest) == pytest.approx(1.0, rel=0.1), name
        share = 0.5**0.5 if name.endswith("skip") else 1.0  # of the residual sum
        assert layer.weight_gain == pytest.approx(share), name
    assert not any(spectral.is_constrained(layer) for layer in step.G.modules())
    assert not list(small().D.buffers())  # nothing of it where a workload does not ask


def test_u_and_v_move_with_each_update_of_d_alone_and_are_saved_with_it():
    step = small({}, **SN)
    step.prepare()
    before = {name: t.clone() for name, t in step.D.named_buffers()}
    step.run_phase("G_main")
    assert all(t.equal(before[name]) for name, t in step.D.named_buffers())
    step.run_phase("D_main")
    assert not any(t.equal(before[name]) for name, t in step.D.named_buffers() if t.numel() > 1)
    other = small({}, **SN)
    other.load_state_dict(step.state_dict())
    for name, t in other.D.named_buffers():
        assert t.equal(dict(step.D.named_buffers())[name])


def test_older_results_name_the_same_workload():
    assert "spectral_norm" not in Workload.from_dict(SMALL).to_dict()
    assert Workload.from_dict(SMALL | SN).to_dict()["spectral_norm"] is True
    assert catalog.load_workload("article-sn")[1] == catalog.load_workload("article")[1] | SN


def test_a_wrong_value_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="spectral_norm must be true or false, got 'yes'"):
        Workload.from_dict(SMALL | {"spectral_norm": "yes"})
    with pytest.raises(ConfigError, match="spectral_norm must be one of plain, triton, got True"):
        Recipe.from_dict({"spectral_norm": True})


def test_a_second_stream_for_weights_gradients_is_refused_in_one_line():
    """Its collector knows leaves, and D's weights in force are none; on a ladder the rung is n/a."""
    streams = LEAN | {"streams": "two"}
    with pytest.raises(ConfigError, match=r"streams: two needs weights .*spectral_norm: true$"):
        least(streams)
    make_step(LEAST, streams, device="cpu")
    able = needs.possible(dict.fromkeys(needs.NEEDS), catalog.load_workload("article-sn")[1])
    planned = {rung.name: rung for rung in catalog.climb(catalog.load_ladder("full"), able)}
    assert "spectral_norm: true" in planned["parallel_streams"].skipped
    assert planned["cached_uint8"].recipe is not None and "streams" not in planned["cached_uint8"].recipe


# ---- the rung


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param({"channels_last": True}, marks=pytest.mark.exhaustive),
        {"channels_last": True, "rgb": "triton", "dense": "triton", "joint_batch": True},
        LEAN | {"fused_update": True},
    ],
    ids=["nhwc", "other kernels", "fused update"],
)
def test_every_phase_computes_the_same_with_the_kernels(recipe):
    """In float64, through the kernels, after a second round that begins with the first one's u and v."""
    plain = {"channels_last": "channels_last" in recipe, "joint_batch": "joint_batch" in recipe}
    if "weights" in recipe:
        plain |= LEAN
    found = []
    for how in (plain, recipe | FUSED):
        step = least({"precision": "fp64"} | how)
        found.append((every_phase(step, rounds=2), {k: t.clone() for k, t in step.D.named_buffers()}))
    assert_the_same(found[1][0], found[0][0], atol=1e-9)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-7, atol=1e-9)


def test_the_reference_in_pieces_is_the_reference_whole(tmp_path):
    """Gradients accumulate over pieces of a batch: u and v must move once for the batch, not once a piece."""
    workload = Workload.from_dict(SMALL | SN | {"batch": 8, "resolution": 8})
    state = reference.shared_state(workload, "cpu", 8, lambda text: None)
    whole, pieces = (reference.compute(workload, state, "cpu", size, lambda text: None) for size in (8, 4))
    name = "conv.u"
    for one, other in zip(whole, pieces, strict=True):
        assert name in one["D_main"]["update"] and one["D_main"]["update"][name].any()
        errors = budget.compare("D_main", other["D_main"], one["D_main"])
        assert max(errors.values()) < 1e-4, max(errors, key=errors.get)


def test_it_shows_in_the_receipt():
    step = least(FUSED)
    seen = gathered(step)
    assert "spectral norm in plain PyTorch: none left" in receipt("fused_spectral", seen).lines
    assert "fused_spectral" in catalog.contained(FUSED)
    assert_engaged(seen, ["fused_spectral"])


def test_it_is_not_applicable_where_a_workload_has_none():
    able = dict.fromkeys(needs.NEEDS)
    for name, missing in (("article", True), ("article-sn", False)):
        capabilities = needs.possible(able, catalog.load_workload(name)[1])
        rung = {r.name: r for r in catalog.climb(catalog.load_ladder("more"), capabilities)}["fused_spectral"]
        assert (rung.recipe is None) == missing
        assert not missing or "spectral_norm: true" in rung.skipped


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [{}, {"cuda_graphs": True, "adam": "capturable"}], ids=["eager", "graphs"])
def test_the_whole_agrees_and_is_engaged_on_the_gpu(recipe, references):
    from ladder.receipts import evidence

    bf16 = {"channels_last": True, "instance_norm": "var_mean", "precision": "bf16", "set_to_none": True}
    lean = LEAN | {"fused_update": True, "rgb": "triton", "dense": "triton", "joint_batch": True}
    step = small(bf16 | lean | FUSED | recipe, "cuda", **SN)
    found = checked(step, references)
    assert found["verdict"] == "ok", found["problems"]
    step.keep_gradients = False
    issued = receipt("fused_spectral", evidence.gather(step))
    step.close()
    assert issued.engaged, issued.lines


@pytest.mark.exhaustive
def test_compiled_phases_normalize_in_plain_pytorch_and_compute_the_same(monkeypatch):
    """torch.compile sees a division and two products a layer; the kernels are left to the lazy phases."""
    monkeypatch.setattr("stylegan_lite.compiled.inductor", lambda graph, inputs, mode: graph)
    found = []
    for compile_ in ("off", "default"):
        step = least({"precision": "fp64", "compile": compile_} | (FUSED if compile_ == "default" else {}))
        step.prepare()
        if step.compiled is not None:
            assert step.compiled.failed is None and dict(step.compiled.graphs) == {"G_main": 1, "D_main": 1}
        found.append(every_phase(step))
    assert_the_same(found[1], found[0], atol=1e-9)
