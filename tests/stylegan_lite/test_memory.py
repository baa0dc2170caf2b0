"""Micro-batches and checkpointing train as the whole batch does, and keep fewer activations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stylegan_lite import ConfigError, Recipe, Workload, make_step
from stylegan_lite.step.inputs import PhaseInputs
from stylegan_lite.stylegan2 import declare_inputs
from tests.support.small import LITTLE

WORKLOAD = LITTLE | {"batch": 16}
STEPS = 5  # path length twice, R1 once
FP64 = {"precision": "fp64"}
BASES: dict[str, dict[str, Any]] = {
    "plain": FP64,
    "joint": FP64
    | {"channels_last": True, "set_to_none": True, "joint_batch": True, "conv": "double_backward"},
    "top": FP64 | {"set_to_none": True, "weights": "once", "conv": "double_backward", "streams": "two"},
    "instance": FP64,
}
MICRO = [{"micro_batches": 2}, {"micro_batches": 4}]
CHECKPOINTED = [{"checkpointing": True}, {"checkpointing": True, "micro_batches": 2}]
CASES = [(base, change) for base in BASES for change in MICRO] + [
    (base, change) for base in ("plain", "joint", "instance") for change in CHECKPOINTED
]


def trained(base: str, change: dict[str, Any], steps: int = STEPS) -> dict[str, torch.Tensor]:
    workload = WORKLOAD | ({"norm": "instance"} if base == "instance" else {})
    step = make_step(workload, BASES[base] | change, device="cpu", seed=3)
    step.prepare()
    for _ in range(steps):
        step.step()
    named = {f"{n}.{k}": t for n in ("G", "D", "G_ema") for k, t in getattr(step, n).state_dict().items()}
    return {k: t.detach().clone() for k, t in (named | {"pl_mean": step.pl_mean} | step.loss).items()}


@pytest.fixture(scope="module")
def whole() -> dict[str, dict[str, torch.Tensor]]:
    return {base: trained(base, {}) for base in BASES}


@pytest.mark.parametrize(
    ("base", "change"), CASES, ids=lambda each: each if isinstance(each, str) else "-".join(each)
)
def test_weights_losses_and_statistics_are_those_of_the_whole_batch(base, change, whole):
    found = trained(base, change)
    assert found.keys() == whole[base].keys()
    for name, value in whole[base].items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-10, msg=name)


def test_a_part_has_whole_groups_and_every_sample_comes_once():
    workload = Workload.from_dict(WORKLOAD | {"batch": 32})
    declared = declare_inputs(workload, "G_pl", lambda n: [(n, 1, 4, 4)], 4)
    inputs = PhaseInputs(declared, device="cpu", dtype=torch.float32)
    inputs.fill()
    parts = [inputs.take(k, 4) for k in range(4)]
    for k, part in enumerate(parts):
        assert part.batch == 4 and torch.equal(part.z[:4], inputs.z[k:16:4])
        assert torch.equal(part.z[4:], inputs.z[16 + k :: 4])
    assert torch.equal(torch.stack([part.noise[0] for part in parts], 1).flatten(0, 1), inputs.noise[0])


def kept_bytes(change: dict[str, Any], phase: str) -> int:
    """Return the bytes that autograd keeps for backward in one phase."""
    step = make_step(WORKLOAD | {"resolution": 32}, change, device="cpu")
    step.prepare()
    step._fill(phase)
    seen: dict[int, int] = {}
    weights = {p.data_ptr() for network in (step.G, step.D) for p in network.parameters()}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage().data_ptr() not in weights:
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    held = []
    step._free(phase)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: held.append(x) or keep(x), lambda x: x):
        step._loss(phase)
    return sum(seen.values())


@pytest.mark.parametrize("phase", ["G_main", "D_main"])
def test_checkpointed_main_phases_keep_less_and_lazy_phases_as_much(phase):
    assert kept_bytes({"checkpointing": True}, phase) < 0.6 * kept_bytes({}, phase)
    assert kept_bytes({"checkpointing": True}, "D_r1") == kept_bytes({}, "D_r1")


def test_blocks_run_once_more_in_main_phases_alone():
    step = make_step(WORKLOAD, {"checkpointing": True, "micro_batches": 2}, device="cpu")
    step.prepare()
    runs: list[str] = []
    blocks = {"G": step.G.blocks, "D": step.D.blocks}
    for name, each in blocks.items():
        for block in each:
            block.register_forward_pre_hook(lambda *_, name=name: runs.append(name))
    counts = {}
    for phase in ("G_main", "G_pl", "D_main", "D_r1"):
        runs.clear()
        step.run_phase(phase)
        counts[phase] = runs.count("G") / len(blocks["G"]), runs.count("D") / len(blocks["D"])
    # Two parts. Path length runs each part for its lengths and for its loss; fakes and reals go through D apart.
    assert counts == {"G_main": (4, 4), "G_pl": (4, 0), "D_main": (2, 8), "D_r1": (0, 2)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"micro_batches": 0}, "micro_batches must be at least 1"),
        (
            {"micro_batches": 8},
            r"standard deviation: 16 samples must be a multiple of 8 parts of mbstd_group \(4\)",
        ),
        ({"micro_batches": 2, "compile": "default"}, "micro_batches needs compile: off"),
        ({"checkpointing": True, "compile": "default"}, "checkpointing needs compile: off"),
        ({"micro_batches": 2, "ranks": 2, "reduce": "ddp"}, "micro_batches needs reduce: flat"),
        ({"checkpointing": True, "streams": "two", "weights": "once"}, "checkpointing needs streams: one"),
    ],
)
def test_what_cannot_be_is_one_line(change, says):
    with pytest.raises(ConfigError, match=says) as refused:
        Recipe.from_dict({"set_to_none": True, "conv": "double_backward"} | change).refuse_for(
            Workload.from_dict(WORKLOAD)
        )
    assert "\n" not in str(refused.value)
