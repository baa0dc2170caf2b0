"""Parity of a user's pair: what the step does wrong with it is found, and what the pair asks for is stored."""

import shutil
from pathlib import Path

import pytest
import torch

from ladder.engine.pair import describe_pair
from ladder.parity import check as parity
from ladder.receipts import evidence
from ladder.rungs import grouped_conv
from stylegan_lite import make_step
from stylegan_lite.step.loading import find_model

PAIRS = Path(__file__).resolve().parents[2] / "examples" / "pairs"
SETTINGS = {"width": 8, "batch": 2, "samples": 128}


@pytest.fixture(scope="module")
def fields():
    return describe_pair(find_model("vocoder.py", PAIRS), SETTINGS, "cpu", 0)["fields"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("pairs")


def ready(fields, recipe=None):
    step = make_step(fields, recipe or {}, device="cpu")
    step.keep_gradients = True
    step.prepare()
    return step


def lose_update(step):
    step.optimizers["D"].step = lambda: None


def move_another(step):
    inner = step._compute

    def compute(phase):
        inner(phase)
        if phase == "D_main":
            with torch.no_grad():
                next(step.networks["G"].parameters()).add_(1e-3)

    step._compute = compute


def repeat_batch(step):
    first = step.pair.batch(1)
    step.feed._fetch = lambda: first


def skip_a_phase(step):
    inner = step.run_phase
    step.run_phase = lambda phase: None if phase == "G_main" else inner(phase)


WRONG = {
    "an update is lost": (lose_update, "D_main update"),
    "another network moves": (move_another, "D_main untouched"),
    "a batch comes again": (repeat_batch, "is not the pair's batch of this number"),
    "a phase is left out": (skip_a_phase, "G_main"),
}


def test_a_right_step_agrees_and_a_wider_budget_is_stored(fields, cache):
    step = ready(fields, {"set_to_none": True, "fused_adam": True})
    step.pair.tolerance = (2.0, "a sum that cancels")
    found = parity.check_step(step, cache=cache)
    assert found["verdict"] == "ok", found["problems"]
    assert found["budget"]["factor"] == 2 * parity.FACTOR
    assert "budget 2 times as wide: a sum that cancels" in found["reference"]["notes"]
    assert {"loss", "gradient", "update", "exp_avg", "exp_avg_sq", "steps"} <= found["phases"][
        "G_main"
    ].keys()


def test_grouped_convolutions_of_a_pair_run_as_kernels_and_agree(cache, tmp_path):
    settings = {"size": 4, "width": 16, "blocks": 1, "batch": 2, "z_dim": 4}
    shutil.copy(PAIRS / "r3gan.py", tmp_path)  # a folder's modules in a process are one source
    pair = describe_pair(find_model("r3gan.py", tmp_path), settings, "cpu", 0)
    assert pair["facts"]["fused_grouped_conv"] is None
    recipe = {"channels_last": True, "precision": "bf16"}
    step = ready(pair["fields"], recipe | {"fused_grouped_conv": True})
    assert parity.check_step(step, cache=cache)["verdict"] == "ok"
    assert grouped_conv.receipt(evidence.gather_evidence(step)).engaged
    plain = grouped_conv.receipt(evidence.gather_evidence(ready(pair["fields"], recipe)))
    assert not plain.engaged and "Conv2d" in plain.lines[-1] and torch.nn.functional.conv2d is torch.conv2d


@pytest.mark.parametrize("name", WRONG)
def test_what_a_step_does_wrong_with_a_pair_is_found(name, fields, cache):
    plant, words = WRONG[name]
    step = ready(fields)
    plant(step)
    found = parity.check_step(step, cache=cache)
    assert found["verdict"] == "failed: parity" and any(words in line for line in found["problems"]), found
