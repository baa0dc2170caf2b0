"""cudnn_benchmark and tf32 are global flags: on while a phase runs, put back whatever happens, seen in the receipt."""

import dataclasses

import pytest
import torch

from ladder.parity import budget
from stylegan_lite import Recipe, Workload
from stylegan_lite.settings import global_flags
from tests.support.rung_steps import gathered, receipt, small
from tests.support.small import SMALL

torch.set_num_threads(1)


def flags():
    return (
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.conv.fp32_precision,
        torch.backends.cuda.matmul.fp32_precision,
    )


def test_global_flags_hold_inside_and_are_put_back_whatever_happens():
    before = flags()
    with global_flags(Recipe(cudnn_benchmark=True, fp32_precision="ieee")):
        assert flags() == (True, "ieee", "ieee")
    assert flags() == before
    with pytest.raises(RuntimeError), global_flags(Recipe(cudnn_benchmark=True, fp32_precision="tf32")):
        assert flags() == (True, "tf32", "tf32")
        raise RuntimeError
    assert flags() == before
    with global_flags(Recipe()):  # says nothing, changes nothing: parity sets cuDNN's flags itself
        assert flags() == before


def test_phases_run_under_the_recipe_s_flags_and_no_other_step_does():
    step, other = small(), small()
    step.recipe = dataclasses.replace(step.recipe, cudnn_benchmark=True, fp32_precision="tf32")
    seen = []
    for each in (step, other):
        each.D.register_forward_pre_hook(lambda module, args: seen.append(flags()))
        each.prepare()
    before = flags()
    assert set(seen[: len(seen) // 2]) == {(True, "tf32", "tf32")} and set(seen[len(seen) // 2 :]) == {before}
    assert step.settings()["cudnn_benchmark"] is True and other.settings()["cudnn_benchmark"] is False
    assert flags() == before


@pytest.fixture(scope="module")
def seen():
    return gathered(small())


@pytest.mark.parametrize(
    ("rung", "good", "bad"),
    [
        ("cudnn_benchmark", {"cudnn_benchmark": True}, {"cudnn_benchmark": False}),
        ("cudnn_benchmark", {"cudnn_benchmark": True}, {"cudnn_benchmark": None}),
        ("cudnn_benchmark", {"cudnn_benchmark": True}, {"cudnn_deterministic": True}),
        ("tf32", {"matmul_fp32_precision": "tf32", "conv_fp32_precision": "tf32"}, {"matmul_fp32_precision": "none"}),
        ("tf32", {"matmul_fp32_precision": "tf32", "conv_fp32_precision": "tf32"}, {"conv_fp32_precision": "ieee"}),
    ],
)  # fmt: skip
def test_flags_show_in_the_receipt(seen, rung, good, bad, refused):
    assert receipt(rung, seen | {"settings": seen["settings"] | good}).engaged
    ((flag, value),) = bad.items()
    bad = seen | {"settings": seen["settings"] | good | bad}
    refused(rung, bad, str(value), sabotage=f"{flag} is {value}", planted="evidence")


def test_the_baseline_blames_a_flag_only_on_a_recipe_that_did_not_ask_for_it(seen):
    on = {"cudnn_benchmark": True, "matmul_fp32_precision": "tf32"}
    asked = seen["recipe"] | {"cudnn_benchmark": True, "fp32_precision": "tf32"}
    assert not receipt("baseline", seen | {"settings": seen["settings"] | on}).engaged
    assert receipt("baseline", seen | {"settings": seen["settings"] | on, "recipe": asked}).engaged


def test_tf32_is_judged_by_the_spread_of_tf32():
    assert budget.precision_of(Recipe(fp32_precision="tf32")) == "tf32"
    assert budget.precision_of(Recipe(fp32_precision="tf32", precision="bf16")) == "bf16"
    assert budget.precision_of(Recipe(fp32_precision="ieee")) == "fp32"
    for recipe in budget.spellings(Workload(**SMALL), "tf32", "cpu"):
        assert Recipe(**recipe).fp32_precision == "tf32" and Recipe(**recipe).precision == "fp32"
    assert budget.budgets({"G_main/loss/loss": 0.0}, "tf32")["G_main/loss/loss"] > 1e-4
