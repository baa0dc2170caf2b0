"""Each rung on its own step: engaged; sabotaged (the switch set, the change not applied): not engaged, and why."""

import json
import types

import pytest
import torch

import kernels
from ladder import receipts
from ladder.core import text
from ladder.engine.timed_rung import Rung
from ladder.plan import catalog
from ladder.rungs import bf16
from stylegan_lite import layers, losses, make_step, networks, ops
from stylegan_lite.step import pair
from tests.support.rung_steps import gathered, receipt
from tests.support.small import LEAST

BF16 = {"precision": "bf16"}
LAST = {"channels_last": True, "instance_norm": "var_mean"}
FUSED_NORM, FUSED_ACT = {"fused_norm": True}, {"fused_act": True}
fused = pytest.mark.skipif(kernels.available() is not None, reason="no GPU, and Triton is not interpreted")
norms = pytest.mark.parametrize("norm", ["demod", "instance"])
torch.set_num_threads(1)


def seen_of(recipe: dict, sabotage=None, **workload) -> dict:
    return gathered(make_step(LEAST | workload, recipe, device="cpu"), sabotage)


@norms
def test_a_cumulative_recipe_shows_the_receipts_of_all_its_rungs(norm):
    seen = seen_of(LAST | BF16 | {"set_to_none": True}, norm=norm)
    issued = receipts.issue(catalog.list_contained(seen["recipe"]), seen)
    assert list(issued) == ["baseline", "bf16", "channels_last", "set_to_none"]
    assert all(r["engaged"] and r["lines"] for r in issued.values()), issued
    assert receipts.reason(issued) is None
    assert all(text.TEXT.fullmatch(line) for r in issued.values() for line in r["lines"]), issued
    assert all(len(json.dumps(r)) < 1024 for r in issued.values())


@fused
@pytest.mark.parametrize(
    ("recipe", "rungs", "norm"),
    [
        (FUSED_NORM | FUSED_ACT, ["fused_norm", "fused_act"], "demod"),
        (FUSED_NORM | FUSED_ACT, ["fused_norm", "fused_act"], "instance"),
        ({"resample": "triton"}, ["fused_resample"], "demod"),
    ],
)
def test_fused_kernels_are_launched_and_what_they_replace_is_gone(recipe, rungs, norm):
    seen = seen_of(recipe, norm=norm)
    issued = receipts.issue(catalog.list_contained(seen["recipe"]), seen)
    assert issued.keys() == {"baseline", *rungs} and all(each["engaged"] for each in issued.values())


# Steps that are sabotaged: each of these changes a prepared step


def tf32_flag(step):
    before = step.settings()  # the flag itself cannot be put back to "not set"
    step.settings = lambda: before | {"matmul_fp32_precision": "tf32"}


def autocast(precision):
    def plant(step):
        step.amp = lambda: pair.autocast("cpu", precision)

    return plant


def memory_format(layout):
    def plant(step):
        for network in (step.G, step.D):
            network.to(memory_format=layout)

    return plant


def gradients_of_none(step):
    for optimizer in (step.opt_G, step.opt_D):
        optimizer.zero_grad = lambda set_to_none, f=optimizer.zero_grad: f(set_to_none=True)


def full_discriminator(step):
    forward = step.D.forward

    def full(x):
        with pair.autocast("cpu", "fp32"):
            return forward(x.float())

    step.D.forward = full


SABOTAGED = [
    ("baseline", {}, tf32_flag, ["TF32", "tf32"], "TF32 is switched on for matmuls"),
    ("baseline", {}, autocast("bf16"), ["FP32"], "an autocast to BF16 is left on"),
    ("baseline", {}, memory_format(torch.channels_last), ["NCHW"], "the networks are converted to channels_last"),
    ("baseline", {}, gradients_of_none, ["kept by zero_grad: 0"], "gradients are set to None"),
    ("channels_last", LAST, memory_format(torch.contiguous_format), ["stored as NHWC: 0.00"], "the model stays NCHW"),
    ("bf16", BF16, autocast("fp32"), ["FLOPs in BF16: forward 0.000"], "an autocast that does nothing"),
    ("bf16", BF16, full_discriminator, ["FLOPs in BF16"], "the discriminator leaves the autocast"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rung", "recipe", "plant", "words", "sabotage"), SABOTAGED, ids=[each[-1] for each in SABOTAGED]
)
def test_a_sabotaged_step_is_not_engaged(rung, recipe, plant, words, sabotage, refused):
    assert receipt(rung, seen_of(recipe)).engaged
    refused(rung, seen_of(recipe, plant), *words, sabotage=sabotage)


# Code that is sabotaged


@norms
def test_channels_last_sabotaged_by_one_op_that_answers_in_nchw(norm, monkeypatch, refused):
    name = "bias_act" if norm == "demod" else "instance_norm_act"
    honest = getattr(layers, name)
    monkeypatch.setattr(layers, name, lambda *args, **more: honest(*args, **more).contiguous())
    seen = seen_of(LAST, norm=norm)
    refused("channels_last", seen, "inputs NHWC, forward", sabotage=f"{name} answers in NCHW, norm {norm}")
    assert seen["relayouts"]["calls"] > 10


def low_linear(x, w, b):
    """As if the autocast guards around mapping, affines and logits were gone."""
    return torch.addmm(b.bfloat16(), x.bfloat16(), w.bfloat16().t()).float()


@norms
@pytest.mark.parametrize(
    ("module", "name", "low", "line"),
    [
        (networks, "full", lambda x: x, "minibatch std in bfloat16"),
        (torch.nn.functional, "linear", low_linear, "mapping and affines in bfloat16"),
        (losses.F, "softplus", lambda x: torch.ops.aten.softplus(x.bfloat16()), "losses and penalties in bfloat16"),
    ],
)  # fmt: skip
def test_bf16_whose_islands_sink_is_not_engaged(module, name, low, line, norm, monkeypatch, refused):
    monkeypatch.setattr(module, name, low)
    refused("bf16", seen_of(BF16, norm=norm), line, sabotage=f"an FP32 island sinks: {line}, norm {norm}")


@fused
@pytest.mark.parametrize(
    ("rung", "recipe", "norm", "op", "kernel"),
    [
        ("fused_norm", FUSED_NORM, "demod", "modulate", "modulate_kernel"),
        ("fused_norm", FUSED_NORM, "demod", "demodulate", "demodulate_kernel"),
        ("fused_norm", FUSED_NORM, "instance", "instance_norm_act", "instance_norm_act_kernel"),
        ("fused_act", FUSED_ACT, "demod", "bias_act", "bias_act_kernel"),
        ("fused_resample", {"resample": "triton"}, "demod", "upfirdn2d", "upfirdn2d_kernel"),
    ],
)
def test_a_fused_op_that_falls_back_to_plain_pytorch(rung, recipe, norm, op, kernel, monkeypatch, refused):
    monkeypatch.setattr(kernels, op, getattr(kernels, f"{op}_reference"))
    where = f", norm {norm}" if rung == "fused_norm" else " "
    sabotage = f"{op} falls back to plain PyTorch{where}".strip()
    refused(rung, seen_of(recipe, norm=norm), f"{kernel} launched 0x", sabotage=sabotage)


@fused
def test_fused_norm_sabotaged_in_one_kind_of_layer_only(monkeypatch, refused):
    """ToRGB alone goes the plain way: our kernels are still launched, what they replace is still there."""
    honest = ops.modulated_conv2d

    def one(x, weight, style, recipe, **options):
        plain = ops.Recipe(fused_norm=False) if weight.shape[-1] == 1 else recipe
        return honest(x, weight, style, plain, **options)

    monkeypatch.setattr(layers, "modulated_conv2d", one)
    line = "modulation in plain PyTorch: ToRGB 6x"
    refused("fused_norm", seen_of(FUSED_NORM), line, sabotage="ToRGB alone goes the plain way")


@pytest.mark.parametrize("how", ["depthwise", "bilinear", "folded", "subpixel"])
def test_fused_resample_sabotaged_by_any_plain_spelling(how, refused):
    """Whichever it is, it is seen in the discriminator, in the generator and in the skip image."""
    seen = seen_of({"resample": how})
    assert {"Conv", "ModulatedConv", "SynthesisBlock"} == set(seen["plain"]["resample"])
    seen["kernels"] = {"upfirdn2d_kernel": {"calls": 9, "dtypes": ["float32"]}}
    line = "resampling in plain PyTorch: Conv "
    refused("fused_resample", seen, line, sabotage=f"resampling goes by {how} instead")


# Evidence that is changed


@pytest.mark.parametrize(
    ("rung", "recipe", "part", "value", "line", "sabotage"),
    [
        ("baseline", {}, "kernels", {"bias_act_kernel": {"calls": 9, "dtypes": ["float32"]}}, "bias_act_kernel",
         "a fused kernel is launched"),
        ("bf16", BF16, "kernels", {"demodulate_kernel": {"calls": 9, "dtypes": ["bfloat16", "float32"]}},
         "demodulate_kernel in bfloat16", "a fused kernel takes its statistics in BF16"),
        ("bf16", BF16, "islands", {"weights": {"bfloat16": 3, "float32": 30}}, "weights in bfloat16",
         "weights are kept in BF16"),
    ],
)  # fmt: skip
def test_changed_evidence_speaks_against_a_rung(rung, recipe, part, value, line, sabotage, refused):
    seen = seen_of(recipe)
    seen[part] = seen[part] | value
    refused(rung, seen, line, sabotage=sabotage, planted="evidence")
    if part == "islands":
        del seen["islands"]["moments"]
        assert any("moments: not seen at all" in line for line in receipt("bf16", seen).lines)


@fused
def test_fused_act_alone_leaves_the_activation_of_instance_norm_to_fused_norm(refused):
    seen = seen_of(FUSED_ACT, norm="instance", batch=1)
    assert seen["recipe"]["fused_norm"] is False
    seen["plain"]["act"] = {"NormalizedConv": 9}
    assert receipt("fused_act", seen).engaged
    seen["recipe"]["fused_norm"] = True
    sabotage = "leaky ReLU of instance norm goes the plain way"
    refused("fused_act", seen, "NormalizedConv 9x", sabotage=sabotage, planted="evidence")


# Around the rungs


def test_nothing_to_judge_is_not_engaged():
    assert not receipts.judge((None, "seen")).engaged
    assert not receipts.judge().engaged
    assert receipts.judge((True, "a"), (None, "b")) == receipts.Receipt(True, ["a", "b"])
    found = receipts.judge((True, "a"), (False, "b"))
    assert not found.engaged and found.reason == "not engaged: b" and found.lines == ["a", "not engaged: b"]
    good, bad = receipts.judge((True, "a")).to_dict(), found.to_dict()
    assert receipts.reason({"bf16": good}) is None
    assert receipts.reason({"bf16": good, "fused_act": bad}) == "fused_act: b"


def test_the_worker_hands_back_receipts_of_the_rungs_it_is_asked_for():
    said = []
    rung = Rung(None, types.SimpleNamespace(send=said.append))
    rung.step = make_step(LEAST, BF16, device="cpu")
    rung.step.prepare()
    reply = json.loads(json.dumps(rung.do_receipts(["bf16"])))
    assert reply["receipts"]["bf16"]["engaged"] and set(reply["receipts"]) == {"bf16"}
    assert set(rung.do_receipts()["receipts"]) == {"baseline", "bf16"}
    assert reply["evidence"]["device"] == "cpu" and len(json.dumps(reply)) < 4096
    assert said == [{"progress": "ran"}] * 2  # from when on the GPU may do something else


@pytest.mark.parametrize("own", [True, False])
def test_statistics_inside_of_a_users_networks_are_as_autocast_has_them(own):
    networks = {"own": own, "trained": ["G"], "averages": [], "adam": True}
    islands = {key: {"float32": 1} for key in bf16.ISLANDS}
    seen = {"pair": networks, "flops": {"forward": {"bfloat16": 1.0}}, "products": {}, "kernels": {}}
    seen["islands"] = islands | {"statistics": {"bfloat16": 1}}
    assert bf16.receipt(seen).engaged is not own
