"""The recipe that follows from the advice: which rungs it holds, and whether the result timed it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ladder.plan import catalog, needs
from ladder.report import recommend_text
from ladder.report.advising import Sources
from ladder.report.recommend import Recommendation, recommend
from stylegan_lite.config import Recipe
from tests.support import made_up, recipes, two_clocks
from tests.support.typed import typed

Plain = dict[str, Any]
ARTICLE = [step.name for step in catalog.load_ladder("article").rungs]


def judged(made: Plain, **verdicts: str) -> Plain:
    """Return the run with other verdicts on the step, and none on the GPU's work."""
    for rung in made["rungs"]:
        if word := verdicts.get(rung["name"]):
            gain = {
                "against": "x",
                "ratio": 0.9 if word == "slower" else 1.1,
                "interval": [0.8, 1.2],
                "rounds": 3,
            }
            rung |= {"verdict": word, "gpu_verdict": None, "gpu_gain": None, "gain": gain}
    return made


def staircase(**verdicts: str) -> Plain:
    return recipes.given(judged(two_clocks.run(), **verdicts))


def left_out(**times: float) -> Plain:
    return recipes.given(made_up.judged_run("leave-one-out", **times))


def of(stairs: Plain | None, top: Plain | None = None) -> Recommendation:
    return recommend(Sources(*(typed(each) if each else None for each in (stairs, top)), {}))


def held(found: Recommendation, tmp_path: Path) -> list[str]:
    """Return the rungs of the article in the recipe, read back from the file that `ladder train` takes."""
    (tmp_path / "r.yaml").write_text(recommend_text.recipe_yaml(found, "for a test"))
    fields = catalog.load_recipe(str(tmp_path / "r.yaml"), [])
    assert fields == found.recipe
    inside = catalog.contained(fields)
    return [name for name in ARTICLE if name in inside]


def test_all_rungs_that_are_adopted_are_in_the_recipe(tmp_path: Path) -> None:
    found = of(staircase())
    assert held(found, tmp_path) == list(found.kept) == ARTICLE
    assert found.is_timed and found.timed_as == "fused_act" and found.remarks == ()


def test_the_file_names_every_rung_in_lines_of_usual_length() -> None:
    found = of(full(["cached_uint8", "graph_fills"], graph_fills="faster"))
    lines = [line for line in recommend_text.recipe_yaml(found, "for a test").splitlines() if line[0] == "#"]
    assert "rungs: " + ", ".join(found.kept) in " ".join(line[2:] for line in lines)
    assert len(found.kept) == len(catalog.load_ladder("full").rungs) and max(map(len, lines)) <= 120


@pytest.mark.parametrize("ladder", catalog.ladders())
def test_the_top_of_each_ladder_is_a_file_that_loads(tmp_path: Path, ladder: str) -> None:
    climbed = catalog.climb(catalog.load_ladder(ladder), dict.fromkeys(needs.NEEDS))
    top = Recipe.from_dict(climbed[-1].recipe or {}).to_dict()
    file = tmp_path / "r.yaml"
    file.write_text(
        recommend_text.recipe_yaml(dataclasses.replace(of(staircase()), recipe=top), "for a test")
    )
    assert catalog.load_recipe(str(file), []) == top


def test_a_rung_that_costs_time_is_left_out(tmp_path: Path) -> None:
    found = of(staircase(fused_norm="slower", channels_last="slower"))
    assert {each.name for each in found.rungs if each.advice == "SKIP"} == {"fused_norm", "channels_last"}
    assert held(found, tmp_path) == [each for each in ARTICLE if each not in ("fused_norm", "channels_last")]
    assert not found.is_timed and found.timed_as == "fused_act"
    assert "this very recipe was not timed: the figures are those of fused_act" in recommend_text.below(found)
    assert recommend_text.figures(found)[2][0] == "fused_act, timed"


def test_a_top_that_costs_time_leaves_the_timed_rung_below_it(tmp_path: Path) -> None:
    found = of(staircase(fused_act="slower"))
    assert held(found, tmp_path) == ARTICLE[:-1] and found.is_timed
    assert found.timed_as == "data_loading" and found.recommended.ms == 68.4


def test_an_open_rung_stays_and_is_named(tmp_path: Path) -> None:
    found = of(staircase(fused_act="ambiguous"))
    assert held(found, tmp_path) == ARTICLE
    assert "undecided, and in the recipe as they were timed: fused_act" in found.remarks


def full(names: list[str], ladder: str = "full", **verdicts: str) -> Plain:
    """Return some rungs of a ladder, `full` or another, each with the recipe that it has there."""
    made = made_up.result([made_up.rung(name, 50.0 - 2 * k, 0.01) for k, name in enumerate(names)])
    made["ladder"]["name"] = ladder
    for rung in made["rungs"]:
        rung["kind"] = "captured"
    return recipes.given(judged(made, **verdicts))


def test_a_rung_that_another_one_needs_stays() -> None:
    names = [
        "data_loading",
        "fused_act",
        "conv_double_backward",
        "fused_resample",
        "fused_adam",
        "joint_batch",
    ]
    names += ["fused_dense", "fused_rgb", "lean_weights", "fused_update", "grouped_demod", "fused_residual"]
    worse = dict.fromkeys(names[2:], "faster") | {"fused_act": "slower"}
    found = of(full(names, **worse))
    assert "fused_act" in found.kept and found.is_timed
    (line,) = found.remarks
    assert (
        line.startswith("fused_act stays in the recipe although it is SKIP: needed by")
        and "fused_residual" in line
    )


def test_a_rung_whose_change_another_one_contains_stays() -> None:
    made = full(["baseline"])
    made["rungs"] += [made_up.rung(name, 40.0) for name in ("fused_adam", "fp16")]
    made["ladder"] |= {"name": "mine", "rungs": [rung["name"] for rung in made["rungs"]]}
    found = of(recipes.given(judged(made, fused_adam="slower", fp16="faster")))
    assert found.kept == ("baseline", "fused_adam", "fp16") and found.is_timed
    assert found.remarks == (
        "fused_adam stays in the recipe although it is SKIP: the other rungs contain its change",
    )


def test_a_rung_that_went_with_the_one_it_rests_on_does_not_stay() -> None:
    names = ["fused_modulation", "accumulate_2", "accumulate_4"]
    found = of(full(names, "accumulation", **dict.fromkeys(names[1:], "slower")))
    assert found.kept[-1] == "fused_modulation" and found.is_timed and not found.remarks


def test_of_a_ladder_that_is_gone_one_of_ours_has_the_rungs_below() -> None:
    made = full(["fused_modulation", "graph_fills"], graph_fills="faster")
    made["ladder"] |= {"name": "gone", "rungs": ["fused_modulation", "graph_fills"]}
    found = of(made)
    assert list(found.kept) == [step.name for step in catalog.load_ladder("full").rungs]
    assert found.is_timed and not found.remarks
    assert not any("no recipe" in line for line in recommend_text.below(found))


def test_a_gain_over_rungs_that_were_not_timed_names_them_and_they_go_together() -> None:
    found = of(full(["data_loading", "fused_adam"], fused_adam="slower"))
    (only,) = found.rungs
    assert only.between == ("fused_act", "conv_double_backward", "fused_resample")
    assert only.reason.endswith(
        "together with fused_act, conv_double_backward, fused_resample, which the run did not time"
    )
    assert found.kept[-1] == "data_loading" and found.is_timed and found.timed_as == "data_loading"


def test_a_leave_one_out_run_decides_and_the_staircase_has_the_units() -> None:
    found = of(staircase(), left_out(bf16=24.0))
    advice = {each.name: each for each in found.rungs}
    assert advice["bf16"].advice == "SKIP" and advice["bf16"].source == "leave-one-out"
    assert advice["bf16"].saved_ms is not None and -1.5 < advice["bf16"].saved_ms < -1.1
    assert advice["bf16"].title == "BF16 mixed precision" and advice["bf16"].reason.startswith("with it, ")
    assert {each.source for each in found.rungs} == {"leave-one-out"}
    assert "bf16" not in found.kept and found.is_timed and found.timed_as == "all without bf16"
    assert found.baseline and found.baseline.ms == 160.0


@pytest.mark.parametrize(
    "title, words",
    [
        ("without BF16 mixed precision", "with it, the "),
        ("without fused Adam and EMA", "with it, the "),
        ("without CUDA graphs and without fills", "with CUDA graphs and fills, the "),
        ("without CUDA graphs and 3 that need it", "with CUDA graphs and 3 that need it, the "),
    ],
)
def test_a_reason_names_what_was_left_out_with_a_rung(title: str, words: str) -> None:
    """The gain is that of all of them, so "with it" would give it to one rung."""
    top = left_out()
    next(rung for rung in top["rungs"] if rung["name"] == "bf16")["title"] = title
    advice = {each.name: each for each in of(staircase(), top).rungs}
    assert advice["bf16"].reason.startswith(words)


def test_a_broken_rung_stays_broken_whatever_another_run_says() -> None:
    stairs = staircase()
    stairs["rungs"][-1] |= made_up.rung("fused_act", status="failed: parity", reason="D_r1: error 1")
    found = of(stairs, left_out())
    assert found.rungs[-1].advice == "BROKEN" and found.kept == tuple(ARTICLE[:-1])


def test_a_leave_one_out_run_alone_has_no_baseline(tmp_path: Path) -> None:
    found = of(None, left_out(bf16=24.0))
    assert found.baseline is None and found.saved_ms is None and found.pays_back is None
    assert held(found, tmp_path) == [name for name in ARTICLE if name != "bf16"]
    made = left_out()
    made["rungs"][3] |= made_up.rung("fused_norm", status="oom", reason="CUDA out of memory")
    rung = next(each for each in of(None, made).rungs if each.name == "fused_norm")
    assert rung.advice == "undecided" and rung.reason == "the ladder without it: oom: CUDA out of memory"
    assert rung.decide == "ladder run -w article"


def test_what_leaves_with_a_rung_of_a_leave_one_out_run_is_named() -> None:
    names = ["baseline", "fused_act", "conv_double_backward", "fused_resample", "fused_residual"]
    made = full(names, **dict.fromkeys(names[1:], "faster"))
    top = full(names[:2], fused_act="slower")
    top["protocol"]["mode"] = "leave-one-out"
    top["rungs"][0]["name"] = "all"
    recipes.given(top)
    found = of(made, top)
    assert "fused_act" not in found.kept and "fused_residual" not in found.kept
    assert any(line.endswith("left out with fused_act, as it was measured") for line in found.remarks)


def test_other_workers_are_the_same_recipe() -> None:
    stairs = staircase()
    for rung in stairs["rungs"][6:]:
        rung["recipe"]["workers"] = 77
    assert of(stairs).is_timed and of(stairs).remarks == ()


def test_the_recipe_of_an_older_run_is_made_of_today_s_rungs(tmp_path: Path) -> None:
    stairs = staircase()
    for rung in stairs["rungs"][6:]:
        rung["recipe"]["uint8_input"] = False
    found = of(stairs)
    assert held(found, tmp_path) == ARTICLE and not found.is_timed
    assert found.remarks == ("the rungs have changed since this run: the recipe is made of today's",)


def test_the_top_of_another_ladder_is_no_rung() -> None:
    stairs = staircase()
    stairs["ladder"] |= {"name": "compile"}
    own = [step.name for step in catalog.load_ladder("compile").rungs]
    rival = catalog.order(catalog.load_ladder("compile"))[-1]
    stairs["rungs"] = [made_up.rung(name, 50.0) for name in [*own, rival]]
    judged(stairs, **{rival: "faster"})
    found = of(stairs)
    assert rival not in [each.name for each in found.rungs] and rival not in found.kept
    assert any("against this ladder's top" in line and "1.10x faster" in line for line in found.remarks)


def test_a_recipe_without_a_changed_field_is_a_file_that_loads(tmp_path: Path) -> None:
    found = of(staircase())
    assert held(dataclasses.replace(found, recipe=recipes.of([]), kept=("baseline",)), tmp_path) == [
        "baseline"
    ]
