"""The rungs of layers beyond the tables: spectral norm, one pass over two batches, CUDA's norm, fused layers."""

import shutil
import sys

import pytest
import torch
from torch.nn.utils import parametrizations

import kernels
from kernels import cuda
from ladder.parity import budget, reference
from ladder.plan import catalog, needs
from ladder.receipts import evidence
from stylegan_lite import ConfigError, Recipe, Workload, spectral
from stylegan_lite.networks import Discriminator, minibatch_std
from stylegan_lite.ops import one_batch
from tests.rungs import cases
from tests.rungs.cases import (
    BF16,
    DENSE,
    FILTER,
    FUSED_ADAM,
    GRAPHS,
    GROUPED,
    INSTANCE,
    JOINT,
    LAST,
    MODULATION,
    NORM,
    ODD,
    ONCE,
    OURS,
    RGB,
    SN,
    SN_LEAST,
    SPECTRAL,
    TINY,
    UPDATE,
)  # fmt: skip
from tests.support import cuda_on_cpu
from tests.support.rung_steps import (
    assert_engaged,
    assert_the_same,
    checked,
    every_phase,
    gathered,
    receipt,
    small,
)  # fmt: skip
from tests.support.small import LEAST, SMALL

FP64 = {"precision": "fp64"}
EVERYTHING = dict.fromkeys(needs.NEEDS)
torch.set_num_threads(1)


def plan(ladder, workload):
    able = needs.join_capabilities(EVERYTHING, catalog.load_workload(workload)[1])
    return {rung.name: rung for rung in catalog.plan_climb(catalog.load_ladder(ladder), able)}


# ---- spectral_norm, the workload's option ----------------------------------------------------------------------------

# Without activations, filters and so on of ours: each is tested elsewhere, and interpreted slowly.
COPIES = ONCE | FUSED_ADAM | OURS


def test_it_is_pytorch_s_own_parametrization_used_once_for_each_update():
    """Weights in force, sigma's gradient, and u and v after some updates, of every kind of layer."""
    torch.manual_seed(0)
    D = Discriminator(Workload.from_dict(SN_LEAST), Recipe()).double()
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
            got = torch.autograd.grad(spectral.normalized(layer), layer.weight, g)
            want = torch.autograd.grad(expected, theirs.parametrizations.weight.original, g)
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
    assert all(t.equal(dict(step.D.named_buffers())[name]) for name, t in other.D.named_buffers())


def test_a_workload_says_so_only_where_it_asks():
    assert "spectral_norm" not in Workload.from_dict(SMALL).to_dict()  # as older results have it
    assert Workload.from_dict(SMALL | SN).to_dict()["spectral_norm"] is True
    assert catalog.load_workload("article-sn")[1] == catalog.load_workload("article")[1] | SN
    with pytest.raises(ConfigError, match="spectral_norm must be true or false, got 'yes'"):
        Workload.from_dict(SMALL | {"spectral_norm": "yes"})
    assert "spectral_norm: true" in plan("more", "article")["fused_spectral"].skipped
    assert plan("more", "article-sn")["fused_spectral"].recipe is not None


def test_a_second_stream_for_weights_gradients_is_refused_in_one_line():
    """Its collector knows leaves, and D's weights in force are none; on a ladder the rung is n/a."""
    streams = COPIES | {"streams": "two"}
    with pytest.raises(ConfigError, match=r"streams: two needs weights .*spectral_norm: true$"):
        small(streams, **SN_LEAST)
    small(streams, **LEAST)
    planned = plan("full", "article-sn")
    assert "spectral_norm: true" in planned["parallel_streams"].skipped
    assert "streams" not in planned["cached_uint8"].recipe


# ---- fused_spectral --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plain", "more"),
    [
        pytest.param({"channels_last": True}, {}, marks=pytest.mark.exhaustive),
        ({"channels_last": True} | JOINT, RGB | DENSE),
        (COPIES, UPDATE),
    ],
    ids=["nhwc", "other kernels", "fused update"],
)
def test_every_phase_computes_the_same_with_the_kernels(plain, more):
    """In float64, through the kernels, after a second round that begins with the first one's u and v."""
    found = []
    for how in (plain, plain | more | SPECTRAL):
        step = small(FP64 | how, **SN_LEAST)
        found.append((every_phase(step, rounds=2), {k: t.clone() for k, t in step.D.named_buffers()}))
    assert_the_same(found[1][0], found[0][0], atol=1e-9)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-7, atol=1e-9)


def test_the_reference_in_pieces_is_the_reference_whole():
    """Gradients accumulate over pieces of a batch: u and v must move once for the batch, not once a piece."""
    workload = Workload.from_dict(SMALL | SN | {"batch": 8, "resolution": 8})
    state = reference.shared_state(workload, "cpu", 8, lambda text: None)
    whole, pieces = (
        reference.compute_reference(workload, state, "cpu", size, lambda text: None) for size in (8, 4)
    )
    for one, other in zip(whole, pieces, strict=True):
        assert one["D_main"]["update"]["conv.u"].any()
        errors = budget.compare_phase("D_main", other["D_main"], one["D_main"])
        assert max(errors.values()) < 1e-4, max(errors, key=errors.get)


def test_it_shows_in_the_receipt():
    seen = gathered(small(SPECTRAL, **SN_LEAST))
    assert "spectral norm in plain PyTorch: none left" in receipt("fused_spectral", seen).lines
    assert "fused_spectral" in catalog.list_contained(SPECTRAL)
    assert_engaged(seen, ["fused_spectral"])


@pytest.mark.exhaustive
def test_compiled_phases_normalize_in_plain_pytorch_and_compute_the_same(monkeypatch):
    """torch.compile sees a division and two products a layer; the kernels are left to the lazy phases."""
    monkeypatch.setattr("stylegan_lite.step.compiled.inductor", lambda graph, inputs, mode: graph)
    found = []
    for how in ({"compile": "off"}, {"compile": "default"} | SPECTRAL):
        step = small(FP64 | how, **SN_LEAST)
        step.prepare()
        if step.compiled is not None:
            assert step.compiled.failed is None and dict(step.compiled.graphs) == {"G_main": 1, "D_main": 1}
        found.append(every_phase(step))
    assert_the_same(found[1], found[0], atol=1e-9)


# ---- joint_batch -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_statistics_of_two_batches_never_mix_and_zeros_fill_up_to_a_multiple(layout):
    a, b = (torch.randn(8, 3, 4, 4, dtype=torch.float64) * scale for scale in (1, 5))
    a, b = (x.contiguous(memory_format=layout) for x in (a, b))
    both = minibatch_std(torch.cat([a, b]), 4, parts=2)
    torch.testing.assert_close(both, torch.cat([minibatch_std(a, 4), minibatch_std(b, 4)]))
    assert both.is_contiguous(memory_format=layout)
    padded = minibatch_std(a, 4, multiple=8)
    assert torch.equal(padded[:, :4], minibatch_std(a, 4)) and padded.shape[1] == 8
    assert not padded[:, 4:].any() and minibatch_std(a, 4, multiple=4).shape[1] == 4  # nothing to fill


@pytest.mark.covering
@pytest.mark.parametrize("batch", [4, 8, 1])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_every_image_keeps_its_logit_and_every_weight_its_gradient(batch, layout):
    """Two groups in a batch, one group, and a batch smaller than a group."""
    workload, found = Workload(**SMALL | {"batch": batch}), []
    fake, real = (torch.randn(batch, 3, 16, 16, dtype=torch.float64) for _ in range(2))
    fake, real = (x.contiguous(memory_format=layout) for x in (fake, real))
    for on in (False, True):
        torch.manual_seed(1)
        D = Discriminator(workload, Recipe(joint_batch=on)).double().to(memory_format=layout)
        logits = D(one_batch(fake, real * 3), parts=2) if on else torch.cat([D(fake), D(real * 3)])
        logits.sin().sum().backward()
        found.append([logits.detach(), *(p.grad for p in D.parameters())])
    torch.testing.assert_close(*found)
    with pytest.raises(ValueError, match="5 images are not 2 batches of one size"):
        D(torch.zeros(5, 3, 16, 16), parts=2)


@pytest.mark.parametrize("precision", [None, torch.bfloat16], ids=str)
def test_images_are_laid_together_as_a_convolution_reads_them(precision):
    fake = torch.randn(2, 3, 4, 4)
    real = torch.randn(3, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
        both = one_batch(fake, real)
    assert torch.equal(both, torch.cat([fake, real]).to(precision or torch.float32))
    assert both.is_contiguous(memory_format=torch.channels_last)
    assert one_batch(real.double(), fake.double()).is_contiguous()


@pytest.mark.parametrize(
    ("rung", "recipe", "workload", "change", "words", "what", "planted"),
    [
        ("joint_batch", JOINT, {}, {"recipe": {"fused_norm": True}}, "minibatch_std_kernel launched 0x",
            "the deviation falls back to plain PyTorch", "evidence"),
        ("fused_modulation", FILTER | NORM, LEAST, {"recipe": {"fused_modulation": True}},
            "filter_act_modulate_kernel launched 0x", "its change not applied", "step"),
        ("conv_double_backward", OURS, {}, {"convolutions": {"double backward": {"calls": 0, "largest": 0, "rgb": 0}}},
            "double backward: 0", "nothing is differentiated twice", "evidence"),
    ],
)  # fmt: skip
def test_what_was_never_run_is_not_engaged(rung, recipe, workload, change, words, what, planted, refused):
    seen = cases.merge(gathered(small(recipe, **workload)), change)
    if rung == "conv_double_backward":
        del seen["convolutions"]["double backward"]
    refused(rung, seen, words, sabotage=what, planted=planted)


# ---- cuda_norm, fast_math --------------------------------------------------------------------------------------------

CUDA = NORM | {"fused_act": True, "cuda_norm": True}
NORMED = TINY | INSTANCE
layouts = pytest.mark.parametrize(
    "layout", [pytest.param({}, marks=pytest.mark.exhaustive), LAST], ids=["nchw", "nhwc"]
)


@pytest.fixture
def on_cpu(monkeypatch):
    """The sources of kernels/cuda, run on the CPU."""
    if shutil.which("g++") is None or not kernels.common.tiles.INTERPRETED:
        pytest.skip("needs g++ and Triton's interpreter")
    with cuda_on_cpu.emulated(monkeypatch):
        yield


@layouts
def test_every_phase_of_cuda_c_computes_what_plain_pytorch_does(layout, on_cpu):
    """Path length differentiates twice; in float64, so that only rounding may differ."""
    found = [every_phase(small(FP64 | layout | how, **NORMED)) for how in ({}, CUDA)]
    assert_the_same(found[1], found[0])


def test_all_phases_of_cuda_c_agree_with_the_reference_in_bf16(on_cpu, references):
    # Not eight channels: R1's loss is so small there that BF16's rounding on some CPUs is a fifth beyond its budget.
    found = checked(small(CUDA | BF16, channel_base=64, **NORMED | {"channel_max": 16}), references)
    assert found["verdict"] == "ok", found["problems"]


@layouts
def test_the_receipt_sees_the_kernels_and_the_flag(layout, on_cpu, refused):
    seen = gathered(small(CUDA | layout, **NORMED))
    assert_engaged(seen, ["cuda_norm", "fused_norm", "fused_act"])
    if not layout:
        words = "planes_forward --use_fast_math launched 0x"
        refused("fast_math", seen, words, sabotage="built without the flag")
    assert_engaged(gathered(small(CUDA | layout | {"fast_math": True}, **NORMED)), ["cuda_norm", "fast_math"])


def test_a_build_that_failed_is_not_taken_for_the_rung(on_cpu, monkeypatch, refused):
    module = sys.modules["kernels.cuda.instance_norm_act"]
    with monkeypatch.context() as patch:  # taken back before `on_cpu` takes back its own
        patch.setattr(module, "_unavailable", lambda x, flags: "CUDA C++ could not be built: no")
        with pytest.warns(UserWarning, match="could not be built: no; Triton's kernel computes"):
            seen = gathered(small(CUDA, **NORMED))
    what = "the build fails, and Triton's kernel runs in its place"
    refused("cuda_norm", seen, "planes_forward launched 0x", sabotage=what)


@pytest.mark.parametrize(
    ("norm", "nvcc", "reason"),
    [
        ("demod", None, "needs norm: instance"),
        ("instance", "CUDA C++ needs nvcc, which was not found", "needs nvcc"),
        ("instance", None, None),
    ],
)
def test_a_workload_with_demodulation_or_a_machine_without_nvcc_goes_on_without_it(norm, nvcc, reason):
    able = dict.fromkeys(("cuda", "triton", "bf16", "cuda_graphs")) | {"nvcc": nvcc}
    climbed = catalog.plan_climb(catalog.load_ladder("more"), needs.join_capabilities(able, {"norm": norm}))
    skipped = [rung.skipped for rung in climbed if rung.name in ("cuda_norm", "fast_math")]
    assert len(skipped) == 2 and all(s is None if reason is None else reason in s for s in skipped)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [{}, LAST], ids=["nchw", "nhwc"])
def test_cuda_c_on_a_gpu_computes_what_plain_pytorch_does_and_the_receipt_is_there(layout):
    if reason := cuda.available():
        pytest.skip(reason)
    found = [every_phase(small(FP64 | how | layout, "cuda", **NORMED)) for how in ({}, CUDA)]
    assert_the_same(found[1], found[0], atol=1e-10)
    # in float64 cuDNN's convolutions answer in NCHW whatever they are given
    step = small({"precision": "fp32"} | CUDA | layout, "cuda", **NORMED)
    assert_engaged(gathered(step), ["cuda_norm", "fused_norm", "fused_act"])


# ---- fused_dense, fused_filter, fused_modulation, fused_residual, fused_rgb ------------------------------------------


@pytest.mark.parametrize("recipe", [DENSE, RGB | BF16], ids=["dense", "rgb"])
def test_a_checkpoint_of_one_recipe_is_one_of_the_other(recipe):
    for network in ("G", "D"):
        a, b = (getattr(small(r, **ODD), network).state_dict() for r in ({}, recipe))
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("recipe", [DENSE, GROUPED], ids=["dense", "grouped"])
def test_a_shorter_batch_and_truncation_are_sampled_as_the_baseline_samples(recipe):
    z = torch.randn(3, 10)
    images = [small(each, **ODD).sample(z, truncation=0.7) for each in ({}, recipe)]
    torch.testing.assert_close(*images, rtol=1e-4, atol=1e-4)


def test_a_generator_launches_its_affines_together_and_a_mapping_network_in_bf16_is_seen():
    """Mapping, all affines, D's layers, and one more for each second derivative: not one for each affine."""
    seen = gathered(small(BF16 | DENSE, **ODD))
    forward = {"G_main": 2 + 1 + 2, "G_pl": 2 + 1 + 1, "D_main": 2 + 1 + 2 * 2, "D_r1": 2 + 1}
    dense = seen["kernels"]["dense_kernel"]
    assert dense["calls"] == sum(forward.values()) and dense["dtypes"] == ["float32"]
    sunk = cases.merge(seen, {"kernels": {"dense_kernel": {"calls": 20, "dtypes": ["bfloat16", "float32"]}}})
    assert "mapping and affines in bfloat16" in receipt("bf16", sunk).reason


CAPTURED, NORMS = OURS | {"set_to_none": True}, ("demod", "instance")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("recipe", "workload"),
    [
        *((CAPTURED | GRAPHS | more, {"norm": norm}) for more in (DENSE, GROUPED) for norm in NORMS),
        *((CAPTURED | BF16 | UPDATE | RGB | DENSE | JOINT | SPECTRAL | more, SN) for more in ({}, GRAPHS)),
    ],
)  # fmt: skip
def test_captured_phases_agree_with_the_reference(recipe, workload, references):
    step = small(recipe, "cuda", **workload)
    found = checked(step, references)
    step.keep_gradients = False
    seen = evidence.gather_evidence(step)
    step.close()
    assert found["verdict"] == "ok", found["problems"]
    if workload == SN:
        assert_engaged(seen, ["fused_spectral"])


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
    low = {"precision": "bf16"}
    for phase in phases:
        runs = [every_phase(small(r, **cases.NARROW), phases=(phase,)) for r in (below, recipe | low)]
        a, b = (torch.cat([g.flatten() for g in run[1][phase].values()]) for run in runs)
        assert (a - b).norm() <= most * a.norm(), phase


def test_in_16_bits_the_skip_s_product_is_the_kernel_s_and_the_receipt_says_so():
    seen = gathered(small(cases.FORK | BF16, **TINY))
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
    below = LAST | NORM | OURS | {"fused_act": True} | FP64
    layers = [small(below | more, resolution=8, batch=2).D.from_rgb for more in ({}, RGB)]
    layers[1].load_state_dict(layers[0].state_dict())
    image = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    residual = torch.randn_like(layers[0](image))
    plain, fused = (layer(image, residual) for layer in layers)
    torch.testing.assert_close(fused, plain, atol=1e-11, rtol=0)
    assert not torch.allclose(fused, layers[1](image))
