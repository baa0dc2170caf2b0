"""Each rung on its own step: engaged; sabotaged (the switch set, the change not applied): not engaged, and why."""

import json
import types

import pytest
import torch

import kernels
from ladder import receipts
from ladder.base import text
from ladder.engine.timed_rung import Rung
from ladder.plan import catalog
from stylegan_lite import layers, losses, make_step, networks, ops
from tests.support.rung_steps import gathered, receipt
from tests.support.small import LEAST

BF16 = {"precision": "bf16"}
LAST = {"channels_last": True, "instance_norm": "var_mean"}
fused = pytest.mark.skipif(kernels.available() is not None, reason="no GPU, and Triton is not interpreted")
torch.set_num_threads(1)


def seen_of(recipe: dict, sabotage=None, **workload) -> dict:
    return gathered(make_step(LEAST | workload, recipe, device="cpu"), sabotage)


@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_a_cumulative_recipe_shows_the_receipts_of_all_its_rungs(norm):
    seen = seen_of(LAST | BF16 | {"set_to_none": True}, norm=norm)
    issued = receipts.issue(catalog.contained(seen["recipe"]), seen)
    assert list(issued) == ["baseline", "bf16", "channels_last", "set_to_none"]
    assert all(r["engaged"] and r["lines"] for r in issued.values()), issued
    assert receipts.reason(issued) is None
    assert all(text.TEXT.fullmatch(line) for r in issued.values() for line in r["lines"]), issued
    assert all(len(json.dumps(r)) < 1024 for r in issued.values())


def test_the_baseline_is_pytorchs_defaults_and_nothing_else(refused):
    def flip(step):  # the flag itself cannot be put back to "not set"
        before = step.settings()
        step.settings = lambda: before | {"matmul_fp32_precision": "tf32"}

    assert receipt("baseline", seen_of({})).engaged
    refused("baseline", seen_of({}, flip), "TF32", "tf32", sabotage="TF32 is switched on for matmuls")


def test_the_baseline_notices_what_is_on_though_the_recipe_leaves_it_off(refused):
    def half(step):
        step.amp = lambda: losses.autocast("cpu", "bf16")

    def last(step):
        for network in (step.G, step.D):
            network.to(memory_format=torch.channels_last)

    def none(step):
        for optimizer in (step.opt_G, step.opt_D):
            optimizer.zero_grad = lambda set_to_none, f=optimizer.zero_grad: f(set_to_none=True)

    refused("baseline", seen_of({}, half), "FP32", sabotage="an autocast to BF16 is left on")
    refused("baseline", seen_of({}, last), "NCHW", sabotage="the networks are converted to channels_last")
    refused("baseline", seen_of({}, none), "kept by zero_grad: 0", sabotage="gradients are set to None")
    seen = seen_of({}) | {"kernels": {"bias_act_kernel": {"calls": 9, "dtypes": ["float32"]}}}
    refused("baseline", seen, "bias_act_kernel", sabotage="a fused kernel is launched", planted="evidence")


# channels_last


def test_channels_last_sabotaged_by_a_model_that_stays_nchw(refused):
    def back(step):
        for network in (step.G, step.D):
            network.to(memory_format=torch.contiguous_format)

    refused("channels_last", seen_of(LAST, back), "stored as NHWC: 0.00", sabotage="the model stays NCHW")


@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_channels_last_sabotaged_by_one_op_that_answers_in_nchw(norm, monkeypatch, refused):
    name = "bias_act" if norm == "demod" else "instance_norm_act"
    honest = getattr(layers, name)
    monkeypatch.setattr(layers, name, lambda *args, **more: honest(*args, **more).contiguous())
    seen = seen_of(LAST, norm=norm)
    refused("channels_last", seen, "inputs NHWC, forward", sabotage=f"{name} answers in NCHW, norm {norm}")
    assert seen["relayouts"]["calls"] > 10


# bf16


def test_bf16_sabotaged_by_an_autocast_that_does_nothing(refused):
    def off(step):
        step.amp = lambda: losses.autocast("cpu", "fp32")

    refused(
        "bf16", seen_of(BF16, off), "FLOPs in BF16: forward 0.000", sabotage="an autocast that does nothing"
    )


def test_bf16_sabotaged_in_one_network_only(refused):
    def off(step):
        forward = step.D.forward

        def full(x):
            with losses.autocast("cpu", "fp32"):
                return forward(x.float())

        step.D.forward = full

    refused("bf16", seen_of(BF16, off), "FLOPs in BF16", sabotage="the discriminator leaves the autocast")


@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_bf16_whose_islands_sink_is_not_engaged(norm, monkeypatch, refused):
    sunk = []
    with monkeypatch.context() as patch:
        patch.setattr(networks, "full", lambda x: x)
        sunk.append((seen_of(BF16, norm=norm), "minibatch std in bfloat16"))
    with monkeypatch.context() as patch:  # the autocast guards around mapping, affines and logits are gone
        patch.setattr(
            torch.nn.functional,
            "linear",
            lambda x, w, b: torch.addmm(b.bfloat16(), x.bfloat16(), w.bfloat16().t()).float(),
        )
        sunk.append((seen_of(BF16, norm=norm), "mapping and affines in bfloat16"))
    with monkeypatch.context() as patch:
        patch.setattr(losses.F, "softplus", lambda x: torch.ops.aten.softplus(x.bfloat16()))
        sunk.append((seen_of(BF16, norm=norm), "losses and penalties in bfloat16"))
    for seen, said in sunk:
        refused("bf16", seen, said, sabotage=f"an FP32 island sinks: {said}, norm {norm}")


def test_bf16_weights_are_not_bf16(refused):
    seen = seen_of(BF16)
    seen["islands"]["weights"] = {"bfloat16": 3, "float32": 30}
    refused("bf16", seen, "weights in bfloat16", sabotage="weights are kept in BF16", planted="evidence")
    del seen["islands"]["moments"]
    assert any("moments: not seen at all" in line for line in receipt("bf16", seen).lines)


def test_fused_statistics_in_bf16_are_noticed(refused):
    seen = seen_of(BF16) | {"kernels": {"demodulate_kernel": {"calls": 9, "dtypes": ["bfloat16", "float32"]}}}
    refused(
        "bf16",
        seen,
        "demodulate_kernel in bfloat16",
        sabotage="a fused kernel takes its statistics in BF16",
        planted="evidence",
    )


# fused_norm, fused_act


@fused
@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_fused_kernels_are_launched_and_what_they_replace_is_gone(norm):
    seen = seen_of({"fused_norm": True, "fused_act": True}, norm=norm)
    assert receipt("fused_norm", seen).engaged and receipt("fused_act", seen).engaged
    assert receipt("baseline", seen).engaged
    assert receipts.issue(catalog.contained(seen["recipe"]), seen).keys() == {
        "baseline",
        "fused_norm",
        "fused_act",
    }


@fused
@pytest.mark.parametrize(
    "norm, op, said",
    [("demod", "modulate", "modulate_kernel launched 0x"), ("demod", "demodulate", "demodulate_kernel launched 0x"),
     ("instance", "instance_norm_act", "instance_norm_act_kernel launched 0x")],
)  # fmt: skip
def test_fused_norm_sabotaged_by_an_op_that_falls_back_to_plain_pytorch(norm, op, said, monkeypatch, refused):
    monkeypatch.setattr(kernels, op, getattr(kernels, f"{op}_reference"))
    refused(
        "fused_norm",
        seen_of({"fused_norm": True}, norm=norm),
        said,
        sabotage=f"{op} falls back to plain PyTorch, norm {norm}",
    )


@fused
def test_fused_norm_sabotaged_in_one_kind_of_layer_only(monkeypatch, refused):
    """ToRGB alone goes the plain way: our kernels are still launched, what they replace is still there."""
    honest = ops.modulated_conv2d

    def one(x, weight, style, recipe, **options):
        plain = ops.Recipe(fused_norm=False) if weight.shape[-1] == 1 else recipe
        return honest(x, weight, style, plain, **options)

    monkeypatch.setattr(layers, "modulated_conv2d", one)
    refused(
        "fused_norm",
        seen_of({"fused_norm": True}),
        "modulation in plain PyTorch: ToRGB 6x",
        sabotage="ToRGB alone goes the plain way",
    )


@fused
def test_fused_act_sabotaged_by_plain_pytorch(monkeypatch, refused):
    monkeypatch.setattr(kernels, "bias_act", kernels.bias_act_reference)
    seen = seen_of({"fused_act": True})
    refused("fused_act", seen, "bias_act_kernel launched 0x", sabotage="bias_act falls back to plain PyTorch")
    assert any("Conv" in line for line in receipt("fused_act", seen).lines if line.startswith(receipts.NOT))


@fused
def test_fused_act_alone_leaves_the_activation_of_instance_norm_to_fused_norm(refused):
    seen = seen_of({"fused_act": True}, norm="instance", batch=1)
    assert seen["recipe"]["fused_norm"] is False
    seen["plain"]["act"] = {"NormalizedConv": 9}
    assert receipt("fused_act", seen).engaged
    seen["recipe"]["fused_norm"] = True
    refused(
        "fused_act",
        seen,
        "NormalizedConv 9x",
        sabotage="leaky ReLU of instance norm goes the plain way",
        planted="evidence",
    )


# fused_resample


@fused
def test_fused_resample_is_one_kernel_and_nothing_plain():
    seen = seen_of({"resample": "triton"})
    assert receipt("fused_resample", seen).engaged and receipt("baseline", seen).engaged
    assert receipts.issue(catalog.contained(seen["recipe"]), seen).keys() == {"baseline", "fused_resample"}


@pytest.mark.parametrize("how", ["depthwise", "bilinear", "folded", "subpixel"])
def test_fused_resample_sabotaged_by_any_plain_spelling(how, refused):
    """Whichever it is, it is seen in the discriminator, in the generator and in the skip image."""
    seen = seen_of({"resample": how})
    assert {"Conv", "ModulatedConv", "SynthesisBlock"} == set(seen["plain"]["resample"])
    seen["kernels"] = {"upfirdn2d_kernel": {"calls": 9, "dtypes": ["float32"]}}
    refused(
        "fused_resample",
        seen,
        "resampling in plain PyTorch: Conv ",
        sabotage=f"resampling goes by {how} instead",
    )


@fused
def test_fused_resample_sabotaged_by_an_op_that_falls_back(monkeypatch, refused):
    monkeypatch.setattr(kernels, "upfirdn2d", kernels.upfirdn2d_reference)
    refused(
        "fused_resample",
        seen_of({"resample": "triton"}),
        "upfirdn2d_kernel launched 0x",
        sabotage="upfirdn2d falls back to plain PyTorch",
    )


# Around the rungs


def test_nothing_to_judge_is_not_engaged():
    assert not receipts.judge((None, "seen")).engaged
    assert not receipts.judge().engaged
    assert receipts.judge((True, "a"), (None, "b")) == receipts.Receipt(True, ["a", "b"])
    found = receipts.judge((True, "a"), (False, "b"))
    assert not found.engaged and found.reason == "not engaged: b" and found.lines == ["a", "not engaged: b"]


def test_the_reason_names_the_rung():
    good, bad = receipts.judge((True, "a")).to_dict(), receipts.judge((False, "b")).to_dict()
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
