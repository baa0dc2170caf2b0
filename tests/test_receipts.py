"""Each rung on its own step: engaged; sabotaged (the switch set, the change not applied): not engaged, and why."""

import copy
import importlib
import json

import pytest
import torch

import kernels
from ladder import catalog, evidence, receipts, results, worker
from stylegan_lite import layers, losses, make_step, networks, ops

SMALL = {
    "resolution": 8,
    "channel_base": 32,
    "channel_max": 4,
    "z_dim": 4,
    "w_dim": 4,
    "mapping_layers": 1,
    "batch": 2,
}
CUDA = torch.cuda.is_available()
BF16 = {"precision": "bf16"}
LAST = {"channels_last": True, "instance_norm": "var_mean"}
fused = pytest.mark.skipif(kernels.available() is not None, reason="no GPU, and Triton is not interpreted")


@pytest.fixture(autouse=True)
def no_cycle(monkeypatch):
    """The profiled cycle is tests/test_evidence.py's; kernels in the interpreter are slow."""
    torch.set_num_threads(1)
    monkeypatch.setattr(evidence, "traced_cycle", lambda step: ({}, 0.5))


def gathered(recipe: dict, sabotage=None, **workload) -> dict:
    step = make_step(SMALL | workload, recipe, device="cuda" if CUDA and recipe.get("fused") else "cpu")
    step.prepare()
    if sabotage:
        sabotage(step)
    return evidence.gather(step)


def receipt(rung: str, seen: dict) -> receipts.Receipt:
    return catalog.load_rung(rung).receipt(seen)


@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_a_cumulative_recipe_shows_the_receipts_of_all_its_rungs(norm):
    seen = gathered(LAST | BF16 | {"set_to_none": True}, norm=norm)
    issued = receipts.issue(seen["recipe"], seen)
    assert list(issued) == ["baseline", "bf16", "channels_last", "set_to_none"]
    assert all(r["engaged"] and r["lines"] for r in issued.values()), issued
    assert receipts.reason(issued) is None
    assert all(results.TEXT.fullmatch(line) for r in issued.values() for line in r["lines"]), issued
    assert all(len(json.dumps(r)) < 1024 for r in issued.values())


def test_the_baseline_is_pytorchs_defaults_and_nothing_else(refused):
    def flip(step):  # the flag itself cannot be put back to "not set"
        before = step.settings()
        step.settings = lambda: before | {"matmul_fp32_precision": "tf32"}

    assert receipt("baseline", gathered({})).engaged
    refused("baseline", gathered({}, flip), "TF32", "tf32", sabotage="TF32 is switched on for matmuls")


def test_the_baseline_notices_what_is_on_though_the_recipe_leaves_it_off(refused):
    def half(step):
        step.amp = lambda: losses.autocast("cpu", "bf16")

    def last(step):
        for network in (step.G, step.D):
            network.to(memory_format=torch.channels_last)

    def none(step):
        for optimizer in (step.opt_G, step.opt_D):
            optimizer.zero_grad = lambda set_to_none, f=optimizer.zero_grad: f(set_to_none=True)

    refused("baseline", gathered({}, half), "FP32", sabotage="an autocast to BF16 is left on")
    refused("baseline", gathered({}, last), "NCHW", sabotage="the networks are converted to channels_last")
    refused("baseline", gathered({}, none), "kept by zero_grad: 0", sabotage="gradients are set to None")
    seen = gathered({}) | {"kernels": {"bias_act_kernel": {"calls": 9, "dtypes": ["float32"]}}}
    refused("baseline", seen, "bias_act_kernel", sabotage="a fused kernel is launched", planted="evidence")


# channels_last


def test_channels_last_sabotaged_by_a_model_that_stays_nchw(refused):
    def back(step):
        for network in (step.G, step.D):
            network.to(memory_format=torch.contiguous_format)

    refused("channels_last", gathered(LAST, back), "stored as NHWC: 0.00", sabotage="the model stays NCHW")


@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_channels_last_sabotaged_by_one_op_that_answers_in_nchw(norm, monkeypatch, refused):
    name = "bias_act" if norm == "demod" else "instance_norm_act"
    honest = getattr(layers, name)
    monkeypatch.setattr(layers, name, lambda *args, **more: honest(*args, **more).contiguous())
    seen = gathered(LAST, norm=norm)
    refused("channels_last", seen, "inputs NHWC, forward", sabotage=f"{name} answers in NCHW, norm {norm}")
    assert seen["relayouts"]["calls"] > 10


# bf16


def test_bf16_sabotaged_by_an_autocast_that_does_nothing(refused):
    def off(step):
        step.amp = lambda: losses.autocast("cpu", "fp32")

    refused(
        "bf16", gathered(BF16, off), "FLOPs in BF16: forward 0.000", sabotage="an autocast that does nothing"
    )


def test_bf16_sabotaged_in_one_network_only(refused):
    def off(step):
        forward = step.D.forward

        def full(x):
            with losses.autocast("cpu", "fp32"):
                return forward(x.float())

        step.D.forward = full

    refused("bf16", gathered(BF16, off), "FLOPs in BF16", sabotage="the discriminator leaves the autocast")


@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_bf16_whose_islands_sink_is_not_engaged(norm, monkeypatch, refused):
    sunk = []
    with monkeypatch.context() as patch:
        patch.setattr(networks, "full", lambda x: x)
        sunk.append((gathered(BF16, norm=norm), "minibatch std in bfloat16"))
    with monkeypatch.context() as patch:  # the autocast guards around mapping, affines and logits are gone
        patch.setattr(
            torch.nn.functional,
            "linear",
            lambda x, w, b: torch.addmm(b.bfloat16(), x.bfloat16(), w.bfloat16().t()).float(),
        )
        sunk.append((gathered(BF16, norm=norm), "mapping and affines in bfloat16"))
    with monkeypatch.context() as patch:
        patch.setattr(losses.F, "softplus", lambda x: torch.ops.aten.softplus(x.bfloat16()))
        sunk.append((gathered(BF16, norm=norm), "losses and penalties in bfloat16"))
    for seen, said in sunk:
        refused("bf16", seen, said, sabotage=f"an FP32 island sinks: {said}, norm {norm}")


def test_bf16_weights_are_not_bf16(refused):
    seen = gathered(BF16)
    seen["islands"]["weights"] = {"bfloat16": 3, "float32": 30}
    refused("bf16", seen, "weights in bfloat16", sabotage="weights are kept in BF16", planted="evidence")
    del seen["islands"]["moments"]
    assert any("moments: not seen at all" in line for line in receipt("bf16", seen).lines)


def test_fused_statistics_in_bf16_are_noticed(refused):
    seen = gathered(BF16) | {
        "kernels": {"demodulate_kernel": {"calls": 9, "dtypes": ["bfloat16", "float32"]}}
    }
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
    seen = gathered({"fused_norm": True, "fused_act": True}, norm=norm)
    assert receipt("fused_norm", seen).engaged and receipt("fused_act", seen).engaged
    assert receipt("baseline", seen).engaged
    assert receipts.issue(seen["recipe"], seen).keys() == {"baseline", "fused_norm", "fused_act"}


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
        gathered({"fused_norm": True}, norm=norm),
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
        gathered({"fused_norm": True}),
        "modulation in plain PyTorch: ToRGB 6x",
        sabotage="ToRGB alone goes the plain way",
    )


@fused
def test_fused_act_sabotaged_by_plain_pytorch(monkeypatch, refused):
    monkeypatch.setattr(kernels, "bias_act", kernels.bias_act_reference)
    seen = gathered({"fused_act": True})
    refused("fused_act", seen, "bias_act_kernel launched 0x", sabotage="bias_act falls back to plain PyTorch")
    assert any("Conv" in line for line in receipt("fused_act", seen).lines if line.startswith(receipts.NOT))


@fused
def test_fused_act_alone_leaves_the_activation_of_instance_norm_to_fused_norm(refused):
    seen = gathered({"fused_act": True}, norm="instance", batch=1)
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
    seen = gathered({"resample": "triton"})
    assert receipt("fused_resample", seen).engaged and receipt("baseline", seen).engaged
    assert receipts.issue(seen["recipe"], seen).keys() == {"baseline", "fused_resample"}


@pytest.mark.parametrize("how", ["depthwise", "bilinear", "folded", "subpixel"])
def test_fused_resample_sabotaged_by_any_plain_spelling(how, refused):
    """Whichever it is, it is seen in the discriminator, in the generator and in the skip image."""
    seen = gathered({"resample": how})
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
        gathered({"resample": "triton"}),
        "upfirdn2d_kernel launched 0x",
        sabotage="upfirdn2d falls back to plain PyTorch",
    )


# set_to_none


def test_set_to_none_sabotaged(refused):
    def zeros(step):
        for optimizer in (step.opt_G, step.opt_D):
            optimizer.zero_grad(set_to_none=False)
            original = optimizer.zero_grad
            optimizer.zero_grad = lambda set_to_none, f=original: f(set_to_none=False)
        for p in [*step.G.parameters(), *step.D.parameters()]:
            p.grad = torch.zeros_like(p)

    seen = gathered({"set_to_none": True}, zeros)
    refused("set_to_none", seen, "kept", sabotage="zero_grad fills with zeros")
    assert seen["gradients"]["filled"] > 0 < seen["gradients"]["accumulated"]


@pytest.mark.parametrize(
    "field, said", [("kept", "kept 3"), ("filled", "zeros: 3"), ("accumulated", "old one: 3")]
)
def test_each_sign_alone_speaks_against_set_to_none(on_gpu, field, said, refused):
    assert receipt("set_to_none", on_gpu).engaged
    refused(
        "set_to_none",
        changed(on_gpu, "gradients", **{field: 3}),
        said,
        sabotage=f"three gradients are {field}",
        planted="evidence",
    )


@pytest.mark.parametrize(
    "norm, op", [("demod", "modulate"), ("demod", "normalize"), ("instance", "normalize")]
)
def test_one_plain_operation_left_speaks_against_fused_norm(on_gpu, norm, op, refused):
    names = importlib.import_module("ladder.rungs.fused_norm").KERNELS[norm]
    kernels = {name: {"calls": 9, "dtypes": ["float32"]} for name in names}
    seen = on_gpu | {"norm": norm, "kernels": kernels, "plain": {}}
    assert receipt("fused_norm", seen).engaged
    refused(
        "fused_norm",
        seen | {"plain": {op: {"ModulatedConv": 1}}},
        "ModulatedConv 1x",
        sabotage=f"one plain {op} is left, norm {norm}",
        planted="evidence",
    )
    for name in names:
        refused(
            "fused_norm",
            seen | {"kernels": {k: v for k, v in kernels.items() if k != name}},
            f"{name} launched 0x",
            sabotage=f"{name} is not launched, norm {norm}",
            planted="evidence",
        )


def test_one_layer_s_share_of_flops_in_fp32_speaks_against_bf16(on_gpu, refused):
    flops = {"forward": {"bfloat16": 100.0}, "backward": {"bfloat16": 196.0, "float32": 4.0}}
    refused(
        "bf16",
        on_gpu | {"flops": flops},
        "backward 0.980",
        sabotage="2 percent of the FLOPs of the backward pass in FP32",
        planted="evidence",
    )
    assert receipt("bf16", on_gpu | {"flops": {"forward": {"bfloat16": 100.0}}}).engaged


def test_set_to_none_whose_graph_still_fills_is_not_engaged(refused):
    seen = gathered({"set_to_none": True})
    assert receipt("set_to_none", seen).engaged
    seen["gradients"]["zero_kernels"] = seen["gradients"]["tensors"]
    refused(
        "set_to_none",
        seen,
        "fills in a timed step",
        sabotage="the graph still fills with zeros",
        planted="evidence",
    )


# cuda_graphs, data_loading: what a GPU would report, in the shape that tests/test_evidence.py checks on one


@pytest.fixture(scope="module")
def on_gpu() -> dict:
    step = make_step(SMALL, {"set_to_none": True}, device="cpu")
    step.prepare()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "traced_cycle", lambda step: ({}, 0.5))
        seen = evidence.gather(step)
    batch = {
        "to": "cuda",
        "bytes": 1536,
        "dtype": "uint8",
        "pinned": True,
        "non_blocking": True,
        "side_stream": True,
    }
    seen["recipe"] |= {"cuda_graphs": True, "adam": "capturable", "workers": 2}
    seen["graphs"] |= {"captured": sorted(evidence.PHASES), "operators": 6}
    seen["graphs"] |= {"launches": 14.0, "replays": 2.3125, "kernels": 2310.0}
    seen["adam"] |= {"capturable": True, "steps_on": ["cuda"]}
    seen["data"] |= {"workers": 2, "crossings": [batch], "copy_ms": 0.04, "overlap": 0.9, "waiting_ms": 0.02}
    return seen


def changed(seen: dict, part: str, **fields) -> dict:
    seen = copy.deepcopy(seen)
    seen[part] |= fields
    return seen


@pytest.mark.parametrize(
    "part, fields, said, sabotage",
    [
        ("graphs", {"captured": []}, "phases captured: none", "no phase is captured"),
        (
            "graphs",
            {"captured": ["D_main", "G_main"]},
            "phases captured: D_main, G_main",
            "the lazy phases are not captured",
        ),
        ("graphs", {"operators": 4100}, "4100", "captured, and never replayed: operators of the CPU"),
        ("graphs", {"launches": 2300.0}, "launches a step: 2300", "captured, and never replayed: launches"),
        ("graphs", {"replays": 2.0}, "replays a step: 2.00", "the lazy phases run eagerly"),
        ("adam", {"capturable": False}, "capturable: False", "Adam is not capturable"),
        ("adam", {"steps_on": ["cpu"]}, "steps on: cpu", "Adam counts its steps on the CPU"),
    ],
)
def test_cuda_graphs_sabotaged(on_gpu, part, fields, said, sabotage, refused):
    assert receipt("cuda_graphs", on_gpu).engaged
    refused("cuda_graphs", changed(on_gpu, part, **fields), said, sabotage=sabotage, planted="evidence")


def test_cuda_graphs_without_a_profiler_are_judged_by_what_is_dispatched(on_gpu):
    blind = changed(on_gpu, "graphs", launches=None, replays=None, kernels=None)
    assert receipt("cuda_graphs", blind).engaged
    assert not receipt("cuda_graphs", changed(blind, "graphs", operators=4100)).engaged


@pytest.mark.parametrize(
    "change, said, sabotage",
    [
        ({"pinned": False}, "from pinned memory: 0 of 1", "batches come from pageable memory"),
        ({"non_blocking": False}, "side stream: 0 of 1", "copies block the CPU"),
        ({"side_stream": False}, "side stream: 0 of 1", "copies are on the stream of the step"),
        ({"dtype": "float32"}, "as uint8: 0 of 1", "batches cross as float32"),
        ({"to": "meta"}, "0 of 0", "no copy is seen at all"),
    ],
)
def test_data_loading_sabotaged(on_gpu, change, said, sabotage, refused):
    assert receipt("data_loading", on_gpu).engaged
    batch = on_gpu["data"]["crossings"][0] | change
    refused(
        "data_loading",
        changed(on_gpu, "data", crossings=[batch]),
        said,
        sabotage=sabotage,
        planted="evidence",
    )


def test_data_loading_without_its_workers_is_not_engaged(on_gpu, refused):
    refused(
        "data_loading",
        changed(on_gpu, "data", workers=0),
        "workers alive: 0 of 2",
        sabotage="no worker is alive",
        planted="evidence",
    )


@pytest.mark.parametrize("persistent", [True, False])
def test_workers_that_run_are_counted(persistent):
    step = make_step(SMALL, {"workers": 1, "persistent_workers": persistent}, device="cpu")
    try:
        step.prepare()
        assert evidence.gather(step)["data"]["workers"] == 1
    finally:
        step.close()


@pytest.mark.gpu
def test_a_step_whose_graphs_were_thrown_away_is_not_engaged(monkeypatch, refused):
    monkeypatch.undo()
    step = make_step(SMALL, {"cuda_graphs": True, "adam": "capturable", "set_to_none": True}, device="cuda")
    step.prepare()
    assert receipt("cuda_graphs", evidence.gather(step)).engaged
    step.graphs.clear()
    refused(
        "cuda_graphs", evidence.gather(step), "phases captured: none", sabotage="the graphs are thrown away"
    )


@pytest.mark.gpu
def test_data_loading_from_pageable_memory_is_not_engaged(monkeypatch, refused):
    change = catalog.load_rung("data_loading").change | {"workers": 1}
    step = make_step(SMALL, change, device="cuda")
    step.prepare()
    assert receipt("data_loading", evidence.gather(step)).engaged
    fetch = step.feed._fetch
    step.feed._fetch = lambda: fetch().clone()  # an ordinary tensor on the way
    refused(
        "data_loading",
        evidence.gather(step),
        "pinned memory: 0 of 1",
        sabotage="batches come from pageable memory",
    )
    step.close()


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
    rung = worker.Rung(None, None)
    rung.step = make_step(SMALL, BF16, device="cpu")
    rung.step.prepare()
    reply = json.loads(json.dumps(rung.do_receipts(["bf16"])))
    assert reply["receipts"]["bf16"]["engaged"] and set(reply["receipts"]) == {"bf16"}
    assert set(rung.do_receipts()["receipts"]) == {"baseline", "bf16"}
    assert reply["evidence"]["device"] == "cpu" and len(json.dumps(reply)) < 4096
