"""The ladder beyond the article's rungs: it goes on from them, refuses what is impossible, computes the same."""

import pytest
import torch

from ladder.plan import catalog, needs
from ladder.receipts import evidence
from tests.support.rung_steps import assert_engaged, checked, small

OURS = {"conv": "double_backward"}
BF16 = {"channels_last": True, "instance_norm": "var_mean", "precision": "bf16"}
FUSED_ADAM = {"fused_adam": True, "ema": "foreach"}
torch.set_num_threads(1)


def test_the_full_ladder_is_the_article_s_and_more():
    article, full = (catalog.load_ladder(name) for name in ("article", "full"))
    assert full.rungs[: len(article.rungs)] == article.rungs
    planned = catalog.climb(full, dict.fromkeys(needs.NEEDS))
    top = planned[-1].recipe
    assert set(catalog.contained(top)) == {rung.name for rung in full.rungs}  # none undoes another
    planned = catalog.climb(catalog.load_ladder("tf32"), dict.fromkeys(needs.NEEDS))
    assert [rung.name for rung in planned][:2] == ["baseline", "tf32"]


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_the_whole_ladder_agrees_and_is_engaged_on_the_gpu(norm, references):
    able = needs.possible(dict.fromkeys(needs.OF_MACHINE), {"norm": norm})
    climbed = [rung for rung in catalog.climb(catalog.load_ladder("full"), able) if rung.recipe is not None]
    for rung in climbed[8:]:
        step = small(rung.recipe | {"workers": 1}, "cuda", norm=norm)
        found = checked(step, references)
        step.keep_gradients = False
        seen = evidence.gather(step)
        step.close()
        assert found["verdict"] == "ok", (rung.name, found["problems"])
        assert_engaged(seen, catalog.contained(rung.recipe))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_the_compiled_top_agrees_and_all_its_rungs_are_engaged_on_the_gpu(norm, references):
    able = needs.possible(dict.fromkeys(needs.OF_MACHINE), {"norm": norm})
    climbed = catalog.climb(catalog.load_ladder("full_compile"), able)
    step = small(climbed[-1].recipe | {"workers": 1}, "cuda", norm=norm)
    found = checked(step, references)
    assert step.compiled.failed is None, step.compiled.failed
    step.keep_gradients = False
    seen = evidence.gather(step)
    step.close()
    assert found["verdict"] == "ok", found["problems"]
    assert_engaged(seen, [rung.name for rung in climbed if rung.recipe is not None])
