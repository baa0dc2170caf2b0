"""The cost of each lever, counted: FLOPs by hand, by PyTorch's counter, and what stands in a result."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from ladder.core import text
from ladder.core.errors import UserError
from ladder.plan import beside, catalog, modes, needs
from ladder.studies import levers
from stylegan_lite import make_step
from stylegan_lite.config import Recipe, Workload
from tests.support.small import LITTLE

STUDY = beside.load_beside("levers")
ALL = dict.fromkeys(needs.NEEDS)
NO_GPU = dict.fromkeys(needs.NEEDS, "needs a CUDA GPU") | {"bf16": None}


def stepped(**fields: Any) -> Any:
    step = make_step(LITTLE | fields, {"conv": "double_backward"}, device="cpu")
    step.prepare()
    return step


@pytest.fixture(scope="module")
def costs() -> dict[str, dict[str, Any]]:
    """The findings of `examine` for each entry, on one small workload."""
    workload = Workload.from_dict(LITTLE).to_dict()
    changed = {"unchanged": {}} | {name: each.list_fields(workload) for name, each in STUDY.entries.items()}
    return {name: levers.examine(stepped(**fields), name) for name, fields in changed.items()}


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_s_gradients_take_as_many_flops_as_itself(groups: int, transposed: bool) -> None:
    x = torch.randn(2, 8, 6, 6, requires_grad=True)
    weight = torch.randn(8, 8 // groups, 3, 3, requires_grad=True)
    op = F.conv_transpose2d if transposed else F.conv2d
    with levers.Flops() as forward:
        y = op(x, weight, padding=1, groups=groups)
    with levers.Flops() as both:
        y.sum().backward()
    assert forward.total == 2 * y.numel() * 8 // groups * 9 and both.total == 2 * forward.total
    with levers.Flops() as one:
        op(x.detach(), weight, padding=1, groups=groups).sum().backward()
    assert one.total == 2 * forward.total


def test_pytorch_s_own_counter_agrees_where_it_can_count() -> None:
    step = stepped()
    step.feed.next()
    for phase in ("G_main", "D_main"):
        with levers.Flops() as ours:
            step.run_phase(phase)
        with FlopCounterMode(display=False) as theirs:
            step.run_phase(phase)
        assert ours.total == theirs.get_total_flops() > 0


def test_cheaper_models_have_fewer_flops_and_parameters(costs: dict[str, dict[str, Any]]) -> None:
    base = costs["unchanged"]["inspection"]
    for name in STUDY.entries:
        found = costs[name]["inspection"]
        assert 0 < found["flops"] < base["flops"] and 0 < found["parameters"] < base["parameters"], name
        receipt = costs[name]["receipts"][name]
        assert receipt["engaged"] and all(text.TEXT.fullmatch(line) for line in receipt["lines"])
    G, D = (sum(p.numel() for p in n.parameters()) for n in (stepped().G, stepped().D))
    assert base["parameters"] == G + D


def test_flops_of_a_step_count_lazy_phases_as_often_as_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    step, ran = stepped(), []
    monkeypatch.setattr(
        step, "run_phase", lambda phase: ran.append(phase) or torch.zeros(2, 2) @ torch.zeros(2, 2)
    )
    assert levers.count(step) == pytest.approx(16 * (2 + 1 / 4 + 1 / 16))
    assert sorted(ran) == ["D_main", "D_r1", "G_main", "G_pl"]


# The plan


def test_each_lever_is_the_article_s_top_on_another_workload() -> None:
    _, workload = catalog.load_workload("article")
    found = {p.name: p for p in modes.plan_run("levers", catalog.load_ladder("full"), ALL, None, workload)}
    assert list(found) == STUDY.names
    recipe = found["unchanged"].recipe or {}
    assert recipe["fused_act"] and recipe["cuda_graphs"] and recipe["conv"] == "double_backward"
    assert all(each.recipe == recipe for each in found.values())
    base = found["unchanged"].variant
    assert base is not None and not (base.workload or base.patched or base.exempt)
    for name, each in found.items():
        assert each.variant is not None and len(each.variant.why.split()) <= 20
        Recipe.from_dict(recipe).refuse_for(Workload.from_dict({**workload, **each.variant.workload}))
        assert name == "unchanged" or (each.variant.exempt == STUDY.exempt and each.variant.workload)
    wide = found["half_width"].variant
    assert wide is not None and wide.workload == {"channel_base": 8192, "channel_max": 256}
    assert text.TEXT.fullmatch(STUDY.exempt)


def test_a_workload_that_cannot_have_a_lever_says_why() -> None:
    _, workload = catalog.load_workload("adain-256")
    found = {
        p.name: p for p in modes.plan_run("levers", catalog.load_ladder("article"), NO_GPU, None, workload)
    }
    assert "convolution: separable needs norm: demod" in (found["separable"].skipped or "")
    assert found["half_depth"].recipe is not None
    with pytest.raises(UserError, match="--rungs: wide not in the levers"):
        modes.plan_run("levers", catalog.load_ladder("article"), NO_GPU, ["wide"], workload)


@pytest.mark.gpu
@pytest.mark.parametrize("name", STUDY.names)
def test_a_lever_is_captured_and_trains_on_a_gpu(name: str) -> None:
    workload = Workload.from_dict(
        LITTLE | {"resolution": 16, "channel_base": 256, "channel_max": 16}
    ).to_dict()
    there = needs.join_capabilities(dict.fromkeys(needs.OF_MACHINE), workload)
    found = {
        p.name: p for p in modes.plan_run("levers", catalog.load_ladder("article"), there, None, workload)
    }
    changed = found[name].variant
    assert changed is not None
    step = make_step({**workload, **changed.workload}, found[name].recipe or {}, device="cuda")
    step.prepare()
    step.cycle()
    assert len(step.graphs) == 4 and step.check_finite() is None
    assert levers.examine(step, name)["receipts"][name]["engaged"]
    step.close()
