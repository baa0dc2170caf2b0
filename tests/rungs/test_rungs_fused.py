"""The fused rungs beyond the tables of `cases.py`: checkpoints, resumed runs, rounding, single layers and launches."""

import copy

import pytest
import torch

from stylegan_lite import make_step
from tests.rungs import cases
from tests.rungs.cases import BF16, DENSE, FILTER, FUSED_ADAM, LAST, MODULATION, NORM, ODD, OURS, RGB
from tests.support.rung_steps import checked, every_phase, gathered, receipt, small
from tests.support.small import LEAST, SMALL

torch.set_num_threads(1)


# ---- fused_adam


def test_fused_adam_and_foreach_average_take_the_same_steps():
    steps = []
    for recipe in ({}, FUSED_ADAM):
        steps.append(small(recipe, ema_images=8))
        torch.manual_seed(1)
        for _ in range(5):
            steps[-1].step()
    fused = steps[1]
    for network in ("G", "D", "G_ema"):
        for a, b in zip(*(getattr(step, network).parameters() for step in steps), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert torch.equal(fused.G_ema.mapping.w_avg, fused.G.mapping.w_avg)
    settings = fused.settings()
    assert settings["adam_fused"] is True and settings["ema"] == "foreach"


@pytest.mark.parametrize("other", [FUSED_ADAM, {}], ids=["fused", "default"])
def test_a_run_of_fused_adam_is_resumed(other):
    step = small(FUSED_ADAM)
    step.prepare()
    for _ in range(5):
        step.step()
    state = copy.deepcopy(step.state_dict())
    assert all(torch.is_tensor(s["step"]) and float(s["step"]) > 0 for s in state["opt_G"].values())
    for _ in range(3):
        step.step()
    resumed = make_step(SMALL, other, device="cpu", seed=99)
    resumed.feed.sampler.seed = step.feed.sampler.seed
    resumed.load_state_dict(state)
    for _ in range(3):
        resumed.step()
    exact = {"rel": 0, "abs": 0} if other else {"rel": 1e-2}
    for phase in ("G_main", "D_main"):
        assert resumed.losses()[phase] == pytest.approx(step.losses()[phase], **exact)
    for a, b in zip(step.opt_G.state.values(), resumed.opt_G.state.values(), strict=True):
        assert float(a["step"]) == float(b["step"])


# ---- fused_dense


def test_weights_are_those_of_the_baseline():
    """A checkpoint of one recipe is one of the other."""
    for recipe in (DENSE, RGB | BF16):
        for network in ("G", "D"):
            a, b = (getattr(small(r, **ODD), network).state_dict() for r in ({}, recipe))
            assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("recipe", [DENSE, cases.GROUPED], ids=["dense", "grouped"])
def test_a_shorter_batch_and_truncation_are_sampled_as_the_baseline_samples(recipe):
    z = torch.randn(3, 10)
    images = [small(each, **ODD).sample(z, truncation=0.7) for each in ({}, recipe)]
    torch.testing.assert_close(*images, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def seen():
    return gathered(small(BF16 | DENSE, **ODD))


def test_a_generator_launches_its_affines_together(seen):
    """Mapping, all affines, D's layers, and one more for each second derivative: not one for each affine."""
    forward = {"G_main": 2 + 1 + 2, "G_pl": 2 + 1 + 1, "D_main": 2 + 1 + 2 * 2, "D_r1": 2 + 1}
    assert seen["kernels"]["dense_kernel"]["calls"] == sum(forward.values())
    assert seen["kernels"]["dense_kernel"]["dtypes"] == ["float32"]


def test_a_mapping_network_in_bf16_is_seen(seen):
    sunk = seen["kernels"] | {"dense_kernel": {"calls": 20, "dtypes": ["bfloat16", "float32"]}}
    assert "mapping and affines in bfloat16" in receipt("bf16", seen | {"kernels": sunk}).reason


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["demod", "instance"])
@pytest.mark.parametrize("recipe", [DENSE, cases.GROUPED], ids=["dense", "grouped"])
def test_captured_phases_agree_with_the_reference(recipe, norm, references):
    graphs = cases.GRAPHS | OURS | {"set_to_none": True}
    step = small(graphs | recipe, "cuda", norm=norm)
    found = checked(step, references)
    step.close()
    assert found["verdict"] == "ok", found["problems"]


# ---- fused_filter, fused_modulation


@pytest.mark.parametrize(
    ("below", "recipe", "phases", "most"),
    [
        (cases.FILTERS | LAST, FILTER | LAST, ("G_main", "D_main"), 0.1),
        # One sign that rounding turns decides the error of so small a network: sixteen had 0.1 to 10 times
        # that without.
        (FILTER | NORM, MODULATION, ("G_main", "G_pl"), 0.3),
    ],
    ids=["filter", "modulation"],
)
def test_gradients_in_bf16_are_those_of_fp32_up_to_rounding(below, recipe, phases, most):
    """Of fp32, not of the two ops in bf16: those round what lies between them, and are further off than the rung is."""
    for phase in phases:
        a, b = (
            torch.cat(
                [
                    g.flatten()
                    for g in every_phase(small(r, **cases.NARROW), phases=(phase,))[1][phase].values()
                ]
            )
            for r in (below, recipe | {"precision": "bf16"})
        )
        assert (a - b).norm() <= most * a.norm(), phase


def test_a_model_that_never_calls_the_joined_op_is_not_engaged(refused):
    seen = gathered(small(FILTER | NORM, **LEAST))
    seen["recipe"] |= {"fused_modulation": True}
    words = "filter_act_modulate_kernel launched 0x"
    refused("fused_modulation", seen, words, sabotage="its change not applied")


# ---- fused_residual, fused_rgb, conv_double_backward


def test_in_16_bits_the_skip_s_product_is_the_kernel_s_and_the_receipt_says_so():
    seen = gathered(small(cases.FORK | BF16, **cases.TINY))
    found = receipt("fused_residual", seen)
    assert found.engaged and any(line.startswith("bias_act_skip_kernel launched") for line in found.lines)
    assert "bias_act_residual_kernel" not in seen["kernels"]


def test_the_image_of_fused_rgb_is_in_full_precision():
    step = small(RGB | BF16, resolution=8, batch=2)
    with step.amp(), torch.no_grad():
        image = step.G(torch.randn(2, step.G.num_ws, 16), [torch.zeros(s) for s in step.G.noise_shapes(2)])
        y = step.D.from_rgb(image)
    assert image.dtype == torch.float32 and y.dtype == torch.bfloat16
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_a_residual_is_added_as_by_every_convolution():
    below = LAST | NORM | OURS | {"fused_act": True, "precision": "fp64"}
    layers = [small(below | more, resolution=8, batch=2).D.from_rgb for more in ({}, RGB)]
    layers[1].load_state_dict(layers[0].state_dict())
    image = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    residual = torch.randn_like(layers[0](image))
    plain, fused = (layer(image, residual) for layer in layers)
    torch.testing.assert_close(fused, plain, atol=1e-11, rtol=0)
    assert not torch.allclose(fused, layers[1](image))


def test_what_nothing_differentiates_twice_is_not_engaged(refused):
    seen = gathered(small(OURS))
    del seen["convolutions"]["double backward"]
    what = "nothing is differentiated twice"
    refused("conv_double_backward", seen, "double backward: 0", sabotage=what, planted="evidence")
