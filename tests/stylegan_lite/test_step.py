import copy

import pytest
import torch

from stylegan_lite import ConfigError, make_step
from stylegan_lite.losses import PHASES
from stylegan_lite.step import CYCLE
from tests.support.small import LITTLE, SMALL

NORMS = ["demod", "instance"]
GRAPHS = {"cuda_graphs": True, "adam": "capturable", "set_to_none": True}


def snapshot(module):
    return copy.deepcopy({k: v.detach() for k, v in module.named_parameters()})


def changed(before, module):
    return {k for k, v in module.named_parameters() if not torch.equal(before[k], v)}


def small(recipe=None, device="cpu", **workload):
    return make_step(SMALL | workload, recipe or {}, device=device)


@pytest.mark.parametrize("norm", NORMS)
def test_preparing_leaves_weights_optimizers_and_random_state_as_they_were(norm):
    warm, cold = (small(norm=norm, **LITTLE) for _ in range(2))
    before = snapshot(warm.G) | {"D." + k: v for k, v in snapshot(warm.D).items()}
    rng = torch.get_rng_state()
    warm.prepare()
    after = snapshot(warm.G) | {"D." + k: v for k, v in snapshot(warm.D).items()}
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert torch.equal(torch.get_rng_state(), rng)
    torch.manual_seed(5)
    warm.cycle()
    torch.manual_seed(5)
    cold.cycle()
    assert warm.losses() == cold.losses()


@pytest.mark.parametrize("norm", NORMS)
def test_each_phase_trains_its_own_network_only(norm):
    step = small(norm=norm)
    step.feed.next()
    for phase in PHASES:
        G, D, ema = snapshot(step.G), snapshot(step.D), snapshot(step.G_ema)
        step.run_phase(phase)
        if phase.startswith("G"):
            assert changed(G, step.G) and not changed(D, step.D)
        else:
            assert changed(D, step.D) and not changed(G, step.G)
        assert bool(changed(ema, step.G_ema)) == (phase == "D_main")


def test_a_cycle_runs_every_lazy_phase_at_its_interval(monkeypatch):
    step = small()
    ran = []
    monkeypatch.setattr(step, "run_phase", ran.append)
    step.cycle()
    assert [ran.count(p) for p in PHASES] == [CYCLE, CYCLE // 4, CYCLE, 1]
    assert ran[:4] == ["G_main", "G_pl", "D_main", "D_r1"]
    ran.clear()
    step.cycle(lazy=False)
    assert set(ran) == {"G_main", "D_main"}


def test_every_phase_draws_its_own_latents_and_noise_each_time():
    step = small()
    buffers = [step.inputs[p].normal for p in step.inputs]
    assert len({b.data_ptr() for b in buffers}) == 3
    for phase, inputs in step.inputs.items():
        step._fill(phase)
        first = inputs.z.clone(), [n.clone() for n in inputs.noise], inputs.uniform.clone()
        step._fill(phase)
        assert not torch.equal(first[0], inputs.z)
        assert all(not torch.equal(a, b) for a, b in zip(first[1], inputs.noise, strict=True))
        assert not torch.equal(first[2], inputs.uniform)
        assert abs(float(inputs.z.std()) - 1) < 0.3
    assert not torch.equal(step.inputs["G_main"].z, step.inputs["D_main"].z)


def test_the_moving_average_has_the_half_life_of_the_workload():
    step = small(ema_images=8)  # batch 4: half of the distance in two updates
    with torch.no_grad():
        for p in step.G.parameters():
            p.fill_(1.0)
        for p in step.G_ema.parameters():
            p.zero_()
    step._update_ema()
    step._update_ema()
    for p in step.G_ema.parameters():
        torch.testing.assert_close(p, torch.full_like(p, 0.5))


def test_lazy_regularization_corrects_adam():
    step = small(beta1=0.5)
    group = step.opt_D.param_groups[0]
    assert group["lr"] == pytest.approx(0.002 * 16 / 17)
    assert group["betas"] == pytest.approx((0.5 ** (16 / 17), 0.99 ** (16 / 17)))


@pytest.mark.parametrize("recipe", [{}, {"precision": "bf16", "channels_last": True}], ids=["fp32", "bf16"])
def test_a_resumed_run_repeats_the_uninterrupted_one(recipe):
    step = small(recipe, **LITTLE)
    step.prepare()
    for _ in range(5):
        step.step()
    state = copy.deepcopy(step.state_dict())
    for _ in range(5):
        step.step()
    other = make_step(SMALL | LITTLE, recipe, device="cpu", seed=99)
    other.feed.sampler.seed = step.feed.sampler.seed
    other.load_state_dict(state)
    for _ in range(5):
        other.step()
    for phase in ("G_main", "G_pl", "D_main"):  # R1 falls on step 0 only
        assert other.losses()[phase] == step.losses()[phase]
    assert not changed(snapshot(step.G_ema), other.G_ema) and not changed(snapshot(step.D), other.D)
    assert torch.equal(other.real, step.real)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_nan_is_found_and_named(where):
    step = small()
    step.prepare()
    assert step.check_finite() is None
    if where == "loss":
        step.real.fill_(float("nan"))
        step._compute("D_main")
        assert "D_main" in step.check_finite()
    else:
        step.D.logit.weight.register_hook(lambda g: g * float("nan"))
        step.feed.next()
        step.run_phase("D_main")
        assert "D.logit.weight" in step.check_finite()


def test_samples_follow_truncation():
    step = small()
    z = torch.randn(3, 16)
    full, none = step.sample(z), step.sample(z, truncation=0.0)
    assert full.shape == (3, 3, 16, 16) and full.abs().max() <= 1
    assert torch.allclose(none[0], none[1]) and not torch.allclose(full[0], full[1])


@pytest.mark.parametrize(
    "how",
    [{"device": "tpu"}, {"device": "cpu:0"}, {"device": torch.device("cpu")}, {"device": 3}]
    + [{"seed": seed} for seed in ("0", None, 1.5, True, 2**43)],
    ids=str,
)
def test_another_device_or_seed_is_refused_in_one_line(how):
    with pytest.raises(ConfigError) as refusal:
        make_step(SMALL, {}, **{"device": "cpu"} | how)
    assert str(refusal.value).startswith(*how) and "\n" not in str(refusal.value)


def test_latents_that_do_not_fit_are_refused_in_one_line():
    step = make_step(SMALL, {}, device="cpu")
    z = torch.zeros(1, SMALL["z_dim"])
    for wrong in (None, z.tolist(), z[0], z[:, 1:], z.long(), z.to("meta")):
        with pytest.raises(ValueError, match=r"^z (must be|is on)"):
            step.sample(wrong)
    for wrong in (None, "1", True, float("nan")):
        with pytest.raises(ValueError, match=r"^truncation must be a finite number"):
            step.sample(z, wrong)


def test_what_is_no_state_of_the_workload_is_refused_before_anything_is_loaded():
    step, other = (make_step(SMALL | {"channel_max": most}, {}, device="cpu", seed=most) for most in (8, 4))
    before, theirs = copy.deepcopy(step.state_dict()), other.state_dict()
    mixed = theirs | {"G": before["G"]}
    mixed["G"] = {name: value + 1 for name, value in mixed["G"].items()}
    for wrong, said in (
        (None, "lacks G, D"),
        ({}, "lacks G, D"),
        (theirs, r"^state of another workload: G\."),
        (mixed, r"D\."),
    ):
        with pytest.raises(ValueError, match=said) as refusal:
            step.load_state_dict(wrong)
        assert "\n" not in str(refusal.value)
    for name, value in step.state_dict()["G"].items():
        assert torch.equal(value, before["G"][name])


@pytest.mark.gpu
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("fused", [False, True])
def test_replays_draw_new_numbers_and_equal_eager_steps(norm, fused):
    recipe = {"fused_norm": fused, "fused_act": fused}
    graphed = small(recipe | GRAPHS, "cuda", norm=norm)
    eager = small(recipe | {"set_to_none": True}, "cuda", norm=norm)
    for step in (graphed, eager):
        step.prepare()
        torch.manual_seed(11)
        step.cycle()
    first = graphed.losses()
    assert first == pytest.approx(eager.losses(), rel=2e-2, abs=1e-3)
    normal = graphed.inputs["G_main"].normal.clone()
    graphed.cycle()
    assert not torch.equal(normal, graphed.inputs["G_main"].normal)
    assert graphed.losses() != first


@pytest.mark.gpu
def test_a_replay_reads_what_is_loaded_into_the_buffers():
    step = small(GRAPHS, "cuda")
    step.prepare()
    step.feed.next()
    state = copy.deepcopy(step.state_dict())
    seen = []
    for seed in (1, 2, 1):
        step.load_state_dict(state)
        torch.manual_seed(seed)
        step._fill("G_main")
        step.replay("G_main")
        seen.append(step.losses()["G_main"])
    assert seen[0] == pytest.approx(seen[2], rel=1e-4) and seen[0] != pytest.approx(seen[1], rel=1e-4)
