"""FP16 as a rung: its receipt, training with a log of its scales, and graphs that skip and scale by themselves."""

import pytest
import torch

from ladder.plan import catalog, needs
from ladder.receipts import evidence
from stylegan_lite.scaling import LossScale, describe
from stylegan_lite.step import PHASES
from tests.support.rung_steps import checked, gathered, receipt, small
from tests.training.test_train import go, images, lines, one_thread, weights  # noqa: F401  (fixtures)

torch.set_num_threads(1)
RUNG = {"precision": "fp16", "fused_adam": True, "ema": "foreach"}
GRAPHS = RUNG | {"cuda_graphs": True, "adam": "capturable", "set_to_none": True}
OURS = {"weights": "once", "fused_update": True}


def test_it_shows_its_receipt_and_is_what_its_recipe_says():
    assert catalog.load_rung("fp16").change == RUNG
    seen = gathered(small(RUNG))
    assert receipt("fp16", seen).engaged, receipt("fp16", seen).lines
    assert seen["scales"]["G"]["updates"] >= 2 and seen["scales"]["D"]["updates"] >= 2


def test_training_logs_its_scales_and_goes_on_with_them(images, tmp_path):  # noqa: F811
    recipe = RUNG | {"loss_scale": 2.0**24, "loss_scale_interval": 3}
    go(images, tmp_path / "whole", 8, recipe=recipe)
    go(images, tmp_path / "parts", 5, recipe=recipe)
    go(images, tmp_path / "parts", 8, recipe=recipe, resume=tmp_path / "parts" / "checkpoint.pt")
    whole, parts = (
        [{**line, "seconds": 0} for line in lines(tmp_path / each)] for each in ("whole", "parts")
    )
    assert whole == parts
    assert (
        whole[0]["skipped_G"] == 2 and whole[-1]["skipped_G"] > 2
    )  # a step is one update, or two with path length
    assert {line["loss_scale_D"] for line in whole} > {whole[-1]["loss_scale_D"]}
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(value, weights(tmp_path / "parts")[name]), name
    go(images, tmp_path / "other", 2)
    assert "loss_scale_G" not in lines(tmp_path / "other")[0]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "more", [{}, OURS, OURS | {"whole_step_graph": True}], ids=["torch", "ours", "whole"]
)
def test_graphs_skip_and_scale_as_an_eager_step_does(more):
    eager = small(RUNG | {"set_to_none": True, "loss_scale": 2.0**24, "loss_scale_interval": 5}, "cuda")
    graphs = small(GRAPHS | more | {"loss_scale": 2.0**24, "loss_scale_interval": 5}, "cuda")
    for step in (eager, graphs):
        step.prepare()
        assert describe(step.scales)["G"] == {"scale": 2.0**24, "skipped": 0, "updates": 0}
        for _ in range(24):
            step.step()
    mine, theirs = describe(graphs.scales), describe(eager.scales)
    for name in (
        "G",
        "D",
    ):  # where an update overflows by a hair, two ways to round may differ by one halving
        assert mine[name]["updates"] == theirs[name]["updates"]
        assert abs(mine[name]["skipped"] - theirs[name]["skipped"]) <= 2
        assert 0 < mine[name]["skipped"] < mine[name]["updates"]
    assert graphs.check_finite() is None and eager.check_finite() is None


@pytest.mark.gpu
@pytest.mark.parametrize("more", [{}, OURS], ids=["torch", "ours"])
def test_a_replay_whose_gradients_overflow_moves_nothing(more):
    step = small(GRAPHS | more | {"loss_scale": 1024.0}, "cuda")
    step.prepare()
    for _ in range(4):
        step.step()
    before = [p.detach().clone() for p in (*step.G.parameters(), *step.D.parameters())]
    counts = [s["step"].clone() for o in (step.opt_G, step.opt_D) for s in o.state.values()]
    for scale in step.scales.values():
        scale.scale.fill_(2.0**60)
    for phase in PHASES:
        step.run_phase(phase)
    assert all(float(scale.scale) == 2.0**58 for scale in step.scales.values())
    for a, b in zip(before, (*step.G.parameters(), *step.D.parameters()), strict=True):
        assert torch.equal(a, b)
    after = [s["step"] for o in (step.opt_G, step.opt_D) for s in o.state.values()]
    assert all(torch.equal(a, b) for a, b in zip(counts, after, strict=True))


@pytest.mark.gpu
def test_every_rung_of_the_full_ladder_takes_fp16(references):
    for rung in catalog.climb(catalog.load_ladder("full"), dict.fromkeys(needs.NEEDS))[-1:]:
        step = small(rung.recipe | RUNG | {"workers": 1}, "cuda")
        found = checked(step, references)
        step.keep_gradients = False
        issued = receipt("fp16", evidence.gather(step))
        step.close()
        assert found["verdict"] == "ok", found["problems"]
        assert issued.engaged, issued.lines


def test_scales_of_a_checkpoint_are_put_in_place():
    scale = LossScale("cpu", 4.0, 10)
    address = scale.scale.data_ptr()
    scale.load_state_dict({**scale.state_dict(), "scale": torch.tensor(2.0), "skipped": torch.tensor(3)})
    assert scale.scale.data_ptr() == address and float(scale.scale) == 2 and int(scale.skipped) == 3
