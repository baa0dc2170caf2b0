"""Receipts of what only a GPU shows: evidence in the shape that tests/receipts/test_evidence.py checks on one, and on
one."""

import copy
import importlib

import pytest
import torch

from ladder.plan import catalog
from ladder.receipts import evidence
from stylegan_lite import make_step
from stylegan_lite.losses import PHASES
from tests.receipts.test_receipts import seen_of
from tests.support.rung_steps import gathered, receipt
from tests.support.small import LEAST

torch.set_num_threads(1)


# set_to_none


def test_set_to_none_sabotaged(refused):
    def zeros(step):
        for optimizer in (step.opt_G, step.opt_D):
            optimizer.zero_grad(set_to_none=False)
            original = optimizer.zero_grad
            optimizer.zero_grad = lambda set_to_none, f=original: f(set_to_none=False)
        for p in [*step.G.parameters(), *step.D.parameters()]:
            p.grad = torch.zeros_like(p)

    seen = seen_of({"set_to_none": True}, zeros)
    refused("set_to_none", seen, "kept", sabotage="zero_grad fills with zeros")
    assert seen["gradients"]["filled"] > 0 < seen["gradients"]["accumulated"]


@pytest.mark.parametrize(
    "norm, op", [("demod", "modulate"), ("demod", "normalize"), ("instance", "normalize")]
)
def test_one_plain_operation_left_speaks_against_fused_norm(on_gpu, norm, op, refused):
    names = importlib.import_module("ladder.rungs.fused_norm").KERNELS[norm]
    kernels = {name: {"calls": 9, "dtypes": ["float32"]} for name in names}
    seen = on_gpu | {"norm": norm, "kernels": kernels, "plain": {}}
    assert receipt("fused_norm", seen).engaged
    left, sabotage = seen | {"plain": {op: {"ModulatedConv": 1}}}, f"one plain {op} is left, norm {norm}"
    refused("fused_norm", left, "ModulatedConv 1x", sabotage=sabotage, planted="evidence")
    for name in names:
        less = seen | {"kernels": {k: v for k, v in kernels.items() if k != name}}
        sabotage = f"{name} is not launched, norm {norm}"
        refused("fused_norm", less, f"{name} launched 0x", sabotage=sabotage, planted="evidence")


def test_one_layer_s_share_of_flops_in_fp32_speaks_against_bf16(on_gpu, refused):
    flops = {"forward": {"bfloat16": 100.0}, "backward": {"bfloat16": 196.0, "float32": 4.0}}
    sabotage = "2 percent of the FLOPs of the backward pass in FP32"
    refused("bf16", on_gpu | {"flops": flops}, "backward 0.980", sabotage=sabotage, planted="evidence")
    assert receipt("bf16", on_gpu | {"flops": {"forward": {"bfloat16": 100.0}}}).engaged


# cuda_graphs, data_loading: what a GPU would report, in the shape that tests/receipts/test_evidence.py checks on one


@pytest.fixture(scope="module")
def on_gpu() -> dict:
    seen = seen_of({"set_to_none": True})
    batch = {"to": "cuda", "bytes": 1536, "dtype": "uint8"}
    batch |= dict.fromkeys(("pinned", "non_blocking", "side_stream"), True)
    seen["recipe"] |= {"cuda_graphs": True, "adam": "capturable", "workers": 2}
    seen["graphs"] |= {"captured": sorted(PHASES), "operators": 6}
    seen["graphs"] |= {"launches": 14.0, "replays": 2.3125, "kernels": 2310.0}
    seen["adam"] |= {"capturable": True, "steps_on": ["cuda"]}
    seen["data"] |= {"workers": 2, "crossings": [batch], "copy_ms": 0.04, "overlap": 0.9, "waiting_ms": 0.02}
    return seen


def changed(seen: dict, part: str, **fields) -> dict:
    seen = copy.deepcopy(seen)
    (seen["data"]["crossings"][0] if part == "batch" else seen[part]).update(fields)
    return seen


SABOTAGE = [
    ("set_to_none", "gradients", {"kept": 3}, "kept 3", "three gradients are kept"),
    ("set_to_none", "gradients", {"filled": 3}, "zeros: 3", "three gradients are filled"),
    ("set_to_none", "gradients", {"accumulated": 3}, "old one: 3", "three gradients are accumulated"),
    ("set_to_none", "gradients", {"zero_kernels": 1e3}, "fills in a timed step", "the graph still fills with zeros"),
    ("cuda_graphs", "graphs", {"captured": []}, "phases captured: none", "no phase is captured"),
    ("cuda_graphs", "graphs", {"captured": ["D_main", "G_main"]}, "phases captured: D_main, G_main",
     "the lazy phases are not captured"),
    ("cuda_graphs", "graphs", {"operators": 4100}, "4100", "captured, and never replayed: operators of the CPU"),
    ("cuda_graphs", "graphs", {"launches": 2300.0}, "launches a step: 2300", "captured, and never replayed: launches"),
    ("cuda_graphs", "graphs", {"replays": 2.0}, "replays a step: 2.00", "the lazy phases run eagerly"),
    ("cuda_graphs", "adam", {"capturable": False}, "capturable: False", "Adam is not capturable"),
    ("cuda_graphs", "adam", {"steps_on": ["cpu"]}, "steps on: cpu", "Adam counts its steps on the CPU"),
    ("data_loading", "batch", {"pinned": False}, "from pinned memory: 0 of 1", "batches come from pageable memory"),
    ("data_loading", "batch", {"non_blocking": False}, "side stream: 0 of 1", "copies block the CPU"),
    ("data_loading", "batch", {"side_stream": False}, "side stream: 0 of 1", "copies are on the stream of the step"),
    ("data_loading", "batch", {"dtype": "float32"}, "as uint8: 0 of 1", "batches cross as float32"),
    ("data_loading", "batch", {"to": "meta"}, "0 of 0", "no copy is seen at all"),
    ("data_loading", "data", {"workers": 0}, "workers alive: 0 of 2", "no worker is alive"),
]  # fmt: skip


@pytest.mark.parametrize(("rung", "part", "fields", "line", "sabotage"), SABOTAGE)
def test_one_changed_figure_speaks_against_a_rung(on_gpu, rung, part, fields, line, sabotage, refused):
    assert receipt(rung, on_gpu).engaged
    refused(rung, changed(on_gpu, part, **fields), line, sabotage=sabotage, planted="evidence")


def test_cuda_graphs_without_a_profiler_are_judged_by_what_is_dispatched(on_gpu):
    blind = changed(on_gpu, "graphs", launches=None, replays=None, kernels=None)
    assert receipt("cuda_graphs", blind).engaged
    assert not receipt("cuda_graphs", changed(blind, "graphs", operators=4100)).engaged


@pytest.mark.parametrize("persistent", [True, False])
def test_workers_that_run_are_counted(persistent):
    step = make_step(LEAST, {"workers": 1, "persistent_workers": persistent}, device="cpu")
    try:
        assert gathered(step)["data"]["workers"] == 1
    finally:
        step.close()


@pytest.mark.gpu
def test_a_step_whose_graphs_were_thrown_away_is_not_engaged(refused):
    step = make_step(LEAST, {"cuda_graphs": True, "adam": "capturable", "set_to_none": True}, device="cuda")
    step.prepare()
    assert receipt("cuda_graphs", evidence.gather_evidence(step)).engaged
    step.graphs.clear()
    seen = evidence.gather_evidence(step)
    refused("cuda_graphs", seen, "phases captured: none", sabotage="the graphs are thrown away")


@pytest.mark.gpu
def test_data_loading_from_pageable_memory_is_not_engaged(refused):
    change = catalog.load_rung("data_loading").change | {"workers": 1}
    step = make_step(LEAST, change, device="cuda")
    step.prepare()
    assert receipt("data_loading", evidence.gather_evidence(step)).engaged
    fetch = step.feed._fetch
    step.feed._fetch = lambda: fetch().clone()  # an ordinary tensor on the way
    seen = evidence.gather_evidence(step)
    refused("data_loading", seen, "pinned memory: 0 of 1", sabotage="batches come from pageable memory")
    step.close()
