"""Advice on each rung, the recipe that follows, and its time in units of practice, from made-up results."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from ladder.core.errors import UserError
from ladder.plan import catalog, needs
from ladder.report import advising
from ladder.report import recommend as recommending
from ladder.report.advising import Advised, Sources
from ladder.report.recommend import Recommendation, recommend
from ladder.results.words import Seen
from stylegan_lite.config import Recipe
from tests.report import test_explain
from tests.support import made_up, recipes, two_clocks
from tests.support.typed import typed

Plain = dict[str, Any]
ARTICLE = [step.name for step in catalog.load_ladder("article").rungs]
WORDS = ("faster", "slower", "less than", "ambiguous", "too few generations", "no measurable gain")


def stairs_of(made: Plain, **resumes: str) -> Sources:
    return Sources(typed(recipes.given(made)), None, resumes)


def advice(sources: Sources) -> dict[str, Advised]:
    return {each.name: each for each in advising.advise(sources)}


def changed(name: str, **fields: Any) -> Plain:
    """Return the run by both clocks with other fields in one rung."""
    made = two_clocks.run()
    rung = next(rung for rung in made["rungs"] if rung["name"] == name)
    for key, value in fields.items():
        rung[key] = {**rung[key], **value} if isinstance(value, dict) else value
    return made


# --- advice -----------------------------------------------------------------------------------------------------------


def test_a_gain_of_gpu_work_counts_where_a_later_rung_removes_the_waiting() -> None:
    found = advice(stairs_of(two_clocks.run()))
    assert {name: each.advice for name, each in found.items()} == {
        "channels_last": "ADOPT", "bf16": "ADOPT", "fused_norm": "ADOPT", "set_to_none": "NO DIFFERENCE",
        "cuda_graphs": "ADOPT", "data_loading": "ADOPT", "fused_act": "ADOPT",
    }  # fmt: skip
    bf16 = found["bf16"]
    assert bf16.clock == "GPU" and bf16.seen.verdict == "faster" and bf16.seen.interval is not None
    assert bf16.seen.interval[0] < 93.0 / 73.8 < bf16.seen.interval[1]
    assert bf16.reason.startswith("the GPU's work is 1.26x faster; ")
    assert bf16.reason.endswith("; cuda_graphs removes this waiting")
    table = recommending.tabulate_rungs(recommend(stairs_of(two_clocks.run())))
    by = {row[0]: row[2] for row in table.rows}
    assert by["bf16"] == "GPU, cuda_graphs ends the waiting" and by["cuda_graphs"] == "step"
    assert found["cuda_graphs"].clock == "step" and "the GPU waits less" in found["cuda_graphs"].reason


def test_the_reason_says_what_the_difference_of_gpu_work_is_made_of() -> None:
    planted = {"set_to_none": test_explain.BEFORE, "data_loading": test_explain.BEFORE}
    found = advice(stairs_of(test_explain.run(**planted, fused_act=test_explain.AFTER)))
    words = "; GPU work: elementwise -9.08 ms, fused: activation and bias +2.20 ms, the rest -0.13 ms"
    assert found["fused_act"].reason.endswith(words)
    others = [found[name].reason for name in ("bf16", "cuda_graphs", "set_to_none", "data_loading")]
    assert not any("GPU work:" in each for each in others)  # no profile of both, or no difference


def test_eager_work_that_nobody_captures_later_is_judged_by_the_step() -> None:
    made = two_clocks.run()
    made["rungs"] = made["rungs"][:5]
    found = advice(stairs_of(made))
    assert {each.advice for each in found.values()} == {"undecided"}  # the step leaves 9% open
    assert found["bf16"].clock == "step" and "removes" not in found["bf16"].reason


@pytest.mark.parametrize(
    "below, expected", [(0.04, "NO DIFFERENCE"), (0.06, "undecided"), (0.6, "undecided")]
)
def test_a_run_that_leaves_a_gain_open_does_not_rule_it_out(below: float, expected: str) -> None:
    """A busy CPU's "less than 83%" is no reason to leave a rung out."""
    made = two_clocks.run()
    made["rungs"] = made["rungs"][:2]
    made["rungs"][1]["gain"] |= {"below": below}
    made["rungs"][1]["verdict"] = "less than"
    found = advice(stairs_of(made))["channels_last"]
    assert found.advice == expected and (found.decide is None) == (expected == "NO DIFFERENCE")


@pytest.mark.parametrize("gpu, step", [*itertools.product((*WORDS, ""), repeat=2)])
@pytest.mark.parametrize("waits, removed", [*itertools.product((True, False), repeat=2)])
def test_advice_never_contradicts_the_step(gpu: str, step: str, waits: bool, removed: bool) -> None:
    found = advising.choose_advice(Seen(gpu), Seen(step), waits, removed)
    assert found in ("ADOPT", "SKIP", "NO DIFFERENCE", "undecided", "")
    if found == "ADOPT":
        assert "faster" in (gpu, step) and (removed or step != "slower") and (not removed or gpu != "slower")
    if found == "SKIP":
        assert "slower" in (gpu, step) and step != "faster" and not (removed and gpu == "faster")
    if found == "NO DIFFERENCE":
        assert not {"faster", "slower"} & {step, *([gpu] if removed or not waits else [])}
    if waits and not removed:
        assert found == advising.choose_advice(Seen(), Seen(step), True, False)
    assert found or not step


@pytest.mark.parametrize("status", ["failed: parity", "not engaged", "failed", "oom", "invalid"])
def test_a_rung_that_failed_is_broken_and_those_on_top_of_it_are_open(status: str) -> None:
    made = two_clocks.run()
    reason = "G_main gradient of all: error 0.0041, budget 0.002"
    made["rungs"][2] = made_up.rung("bf16", status=status, reason=reason)
    for index in range(3, 8):
        name = made["rungs"][index]["name"]
        made["rungs"][index] = made_up.rung(name, status="skipped", reason="depends on bf16")
    sources = stairs_of(made)
    found = advice(sources)
    assert (found["bf16"].advice, found["bf16"].reason) == ("BROKEN", f"{status}: {reason}")
    assert found["bf16"].decide is None and found["bf16"].seen.interval is None
    last = found["fused_act"]
    assert (last.advice, last.reason) == ("undecided", "depends on bf16")
    assert last.decide == "ladder run -w article --mode solo"
    assert recommend(sources).recipe_rungs == ["baseline", "channels_last"]


def test_an_open_rung_names_the_command_that_decides() -> None:
    made = changed("fused_act", verdict="ambiguous", gpu_verdict="ambiguous")
    found = advice(stairs_of(made, staircase="R.json"))["fused_act"]
    assert (found.advice, found.decide) == ("undecided", "ladder run -w article --mode leave-one-out")
    few = two_clocks.run(2)
    assert advice(stairs_of(few))["bf16"].decide == "ladder run -w article"
    few["protocol"]["budget_s"] = 600.0
    resumed = advice(stairs_of(few, staircase="R.json"))["bf16"]
    assert (resumed.advice, resumed.decide) == ("undecided", "ladder run --resume R.json --budget 20")
    few["protocol"] |= {"rounds": 2, "fixed": True}  # such a run refuses a budget
    resumed = advice(stairs_of(few, staircase="R.json"))["bf16"]
    assert resumed.decide == "ladder run --resume R.json --generations 4"
    few["protocol"]["quick"] = True
    assert advice(stairs_of(few, staircase="R.json"))["bf16"].decide == "ladder run -w article"
    unproved = advice(stairs_of(changed("fused_act", inspection=None), staircase="R.json"))["fused_act"]
    assert unproved.advice == "undecided" and "before its inspection ended" in unproved.reason
    assert unproved.decide == "ladder run --resume R.json --budget 20"


@pytest.mark.parametrize("gib, is_less", [(4.0, True), (7.9, False)])
def test_a_rung_that_costs_time_says_which_memory_it_saves(gib: float, is_less: bool) -> None:
    """A user whose memory is short would take a bare SKIP for an answer."""
    made = changed("fused_act", verdict="slower", gain={"ratio": 0.9})
    left_out = two_clocks.run(mode="leave-one-out")
    left_out["rungs"][1] |= {"verdict": "slower", "gpu_verdict": "slower"}
    pairs = zip([*made["rungs"][-2:], *left_out["rungs"][1::-1]], (8.0, gib, 8.0, gib), strict=True)
    for rung, peak in pairs:
        rung["peak_reserved_bytes"] = int(peak * 2**30)
    for sources, name in (
        (stairs_of(made), "fused_act"),
        (Sources(None, typed(recipes.given(left_out)), {}), left_out["rungs"][1]["name"]),
    ):
        found = advice(sources)[name]
        assert found.advice == "SKIP"
        assert found.reason.endswith("; it takes less memory, 4.00 GiB instead of 8.00") == is_less


# --- units of practice ------------------------------------------------------------------------------------------------


def test_a_rung_s_saving_and_its_break_even_by_hand() -> None:
    sources = stairs_of(changed("fused_act", gain={"ratio": 1.25}, step_ms=50.0, prepare_s=12.0))
    found = advice(sources)["fused_act"]
    assert found.clock == "step" and found.saved_ms == 12.5
    assert found.prepare_s == 3.0 and found.pays_back == 240
    whole = recommend(sources, 3_600_000, 2.0)
    assert whole.hours(found.saved_ms) == pytest.approx(1.5625)  # 450,000 steps of 8 images, 12.5 ms each
    table = recommending.tabulate_rungs(whole)
    row = dict(zip([column.title for column in table.columns], table.format_cells()[-1], strict=True))
    assert (row["saves ms/step"], row["hours"], row["money"]) == ("12.5", "1.56", "3.12")
    assert (row["prepares, s"], row["pays back after"]) == ("+3.0", "240 steps")
    assert whole.baseline and whole.baseline.ms == 160.0 and whole.recommended.ms == 50.0
    assert whole.saved_ms == 110.0 and whole.pays_back == 28  # 3 s over 110 ms
    last = recommending.tabulate_units(whole).format_cells()[-1]
    assert last == ["saved", "110.0", "13.75", "", "13.8", "27.50"]


def test_a_rung_that_costs_or_is_open_pays_nothing_back() -> None:
    found = advice(stairs_of(changed("fused_act", verdict="slower", gain={"ratio": 0.8}, step_ms=50.0)))
    assert found["fused_act"].saved_ms == pytest.approx(-10.0) and found["fused_act"].pays_back is None
    assert found["set_to_none"].saved_ms is None and found["set_to_none"].pays_back is None
    assert advising.count_steps(-1.0, 5.0) == 0
    none = Advised(name="a", title="A", advice="ADOPT", reason="")
    assert none.saved_ms is None and none.pays_back is None


def test_numbers_of_images_and_prices() -> None:
    known = {"25M": 25_000_000, "200k": 200_000, "2.5m": 2_500_000, "7": 7}
    assert {words: recommending.images_of(words) for words in known} == known
    for words in ("many", "", "0", "-5", "nan", "1e400", "25MM", "25 M"):
        with pytest.raises(UserError, match="--images"):
            recommending.images_of(words)
    assert recommending.price_of("2.5/h") == recommending.price_of("2.5") == 2.5
    for words in ("x", "", "0/h", "-1", "2.5/min", "inf"):
        with pytest.raises(UserError, match="--price"):
            recommending.price_of(words)


def test_a_result_without_a_number_recommends_nothing() -> None:
    made = two_clocks.run()
    made["rungs"] = [made_up.rung(rung["name"]) for rung in made["rungs"]]
    with pytest.raises(UserError, match="no rung of the result has a number"):
        recommend(stairs_of(made))


# --- the recipe -------------------------------------------------------------------------------------------------------


def judged(made: Plain, **verdicts: str) -> Plain:
    """Return the run with other verdicts on the step, and none on the GPU's work."""
    for rung in made["rungs"]:
        if word := verdicts.get(rung["name"]):
            ratio = 0.9 if word == "slower" else 1.1
            gain = {"against": "x", "ratio": ratio, "interval": [0.8, 1.2], "rounds": 3}
            rung |= {"verdict": word, "gpu_verdict": None, "gpu_gain": None, "gain": gain}
    return made


def staircase(**verdicts: str) -> Plain:
    return recipes.given(judged(two_clocks.run(), **verdicts))


def left_out(**times: float) -> Plain:
    return recipes.given(made_up.judged_run("leave-one-out", **times))


def full(names: list[str], ladder: str = "full", **verdicts: str) -> Plain:
    """Return some rungs of a ladder, `full` or another, each with the recipe that it has there."""
    made = made_up.result([made_up.rung(name, 50.0 - 2 * k, 0.01) for k, name in enumerate(names)])
    made["ladder"]["name"] = ladder
    for rung in made["rungs"]:
        rung["kind"] = "captured"
    return recipes.given(judged(made, **verdicts))


def of(stairs: Plain | None, top: Plain | None = None) -> Recommendation:
    return recommend(Sources(*(typed(each) if each else None for each in (stairs, top)), {}))


def held(found: Recommendation, tmp_path: Path) -> list[str]:
    """Return the rungs of the article in the recipe, read back from the file that `ladder train` takes."""
    (tmp_path / "r.yaml").write_text(recommending.recipe_yaml(found, "for a test"))
    fields = catalog.load_recipe(str(tmp_path / "r.yaml"), [])
    assert fields == found.recipe
    inside = catalog.list_contained(fields)
    return [name for name in ARTICLE if name in inside]


def test_all_rungs_that_are_adopted_are_in_the_recipe(tmp_path: Path) -> None:
    found = of(staircase())
    assert held(found, tmp_path) == list(found.recipe_rungs) == ARTICLE
    assert found.is_timed and found.timed_as == "fused_act" and found.remarks == []


@pytest.mark.parametrize("ladder", catalog.list_ladders())
def test_the_top_of_each_ladder_is_a_file_that_loads(tmp_path: Path, ladder: str) -> None:
    climbed = catalog.plan_climb(catalog.load_ladder(ladder), dict.fromkeys(needs.NEEDS))
    top = Recipe.from_dict(climbed[-1].recipe or {}).to_dict()
    file = tmp_path / "r.yaml"
    advised = dataclasses.replace(of(staircase()), recipe=top)
    file.write_text(recommending.recipe_yaml(advised, "for a test"))
    assert catalog.load_recipe(str(file), []) == top


def test_a_rung_that_costs_time_is_left_out(tmp_path: Path) -> None:
    found = of(staircase(fused_norm="slower", channels_last="slower"))
    assert {each.name for each in found.rungs if each.advice == "SKIP"} == {"fused_norm", "channels_last"}
    assert held(found, tmp_path) == [each for each in ARTICLE if each not in ("fused_norm", "channels_last")]
    assert not found.is_timed and found.timed_as == "fused_act"
    assert any("this very recipe was not timed" in line for line in recommending.list_notes(found))
    assert recommending.tabulate_units(found).rows[1][0] == "fused_act, timed"


def test_a_top_that_costs_time_leaves_the_timed_rung_below_it(tmp_path: Path) -> None:
    found = of(staircase(fused_act="slower"))
    assert held(found, tmp_path) == ARTICLE[:-1] and found.is_timed
    assert found.timed_as == "data_loading" and found.recommended.ms == 68.4


@pytest.mark.parametrize(("ratio", "stays"), [(1.3, True), (1.1, False)])
def test_a_rung_that_another_one_needs_stays_if_the_two_gain_together(ratio: float, stays: bool) -> None:
    names = ["data_loading", "fused_act", "conv_double_backward", "fused_resample", "fused_residual"]
    made = full(names, **dict.fromkeys(names[2:], "faster") | {"fused_act": "slower"})  # 0.9x
    made["rungs"][4]["gain"]["ratio"] = ratio
    found = of(made)
    assert ("fused_act" in found.recipe_rungs) == ("fused_residual" in found.recipe_rungs) == stays
    begins = "fused_act stays in the recipe" if stays else "fused_residual: left out with fused_act"
    assert any(line.startswith(begins) for line in found.remarks)


def test_of_a_ladder_that_is_gone_one_of_ours_has_the_rungs_below() -> None:
    made = full(["fused_modulation", "graph_fills"], graph_fills="faster")
    made["ladder"] |= {"name": "gone", "rungs": ["fused_modulation", "graph_fills"]}
    found = of(made)
    assert list(found.recipe_rungs) == [step.name for step in catalog.load_ladder("full").rungs]
    assert found.is_timed and not found.remarks and found.recipe is not None


def test_a_gain_over_rungs_that_were_not_timed_names_them_and_they_go_together() -> None:
    found = of(full(["data_loading", "fused_adam"], fused_adam="slower"))
    (only,) = found.rungs
    assert list(only.between) == ["fused_act", "conv_double_backward", "fused_resample"]
    assert "together with fused_act, conv_double_backward, fused_resample, which" in only.reason
    assert found.recipe_rungs[-1] == "data_loading" and found.is_timed and found.timed_as == "data_loading"


def test_a_leave_one_out_run_decides_and_the_staircase_has_the_units() -> None:
    found = of(staircase(), left_out(bf16=24.0))
    each = {each.name: each for each in found.rungs}["bf16"]
    assert each.advice == "SKIP" and each.source == "leave-one-out"
    assert each.saved_ms is not None and -1.5 < each.saved_ms < -1.1
    assert each.title == "BF16 mixed precision"
    assert {each.source for each in found.rungs} == {"leave-one-out"}
    assert "bf16" not in found.recipe_rungs and found.is_timed and found.timed_as == "all without bf16"
    assert found.baseline and found.baseline.ms == 160.0


def test_a_leave_one_out_run_alone_has_no_baseline(tmp_path: Path) -> None:
    found = of(None, left_out(bf16=24.0))
    assert found.baseline is None and found.saved_ms is None and found.pays_back is None
    assert held(found, tmp_path) == [name for name in ARTICLE if name != "bf16"]
    made = left_out()
    made["rungs"][3] |= made_up.rung("fused_norm", status="oom", reason="CUDA out of memory")
    rung = next(each for each in of(None, made).rungs if each.name == "fused_norm")
    assert (rung.advice, rung.decide) == ("undecided", "ladder run -w article")
    assert rung.reason == "the ladder without it: oom: CUDA out of memory"


def test_other_workers_are_the_same_recipe_and_other_fields_are_not(tmp_path: Path) -> None:
    stairs = staircase()
    for rung in stairs["rungs"][6:]:
        rung["recipe"]["workers"] = 77
    assert of(stairs).is_timed and of(stairs).remarks == []
    for rung in stairs["rungs"][6:]:
        rung["recipe"]["uint8_input"] = False
    found = of(stairs)
    assert held(found, tmp_path) == ARTICLE and not found.is_timed
    assert found.remarks == ["the rungs have changed since this run: the recipe is made of today's"]


def test_the_top_of_another_ladder_is_no_rung() -> None:
    stairs = staircase()
    stairs["ladder"] |= {"name": "compile"}
    own = [step.name for step in catalog.load_ladder("compile").rungs]
    rival = catalog.list_order(catalog.load_ladder("compile"))[-1]
    stairs["rungs"] = [made_up.rung(name, 50.0) for name in [*own, rival]]
    judged(stairs, **{rival: "faster"})
    found = of(stairs)
    assert rival not in [each.name for each in found.rungs] and rival not in found.recipe_rungs


# --- the rungs in plain PyTorch ---------------------------------------------------------------------------------------


def test_a_recommendation_names_the_page_and_its_markdown_has_the_code_of_its_rungs_alone() -> None:
    found = of(staircase())
    adopted = recommending.find_anchors(found.recipe_rungs)
    assert adopted["bf16"] == "docs/adopt.md#bf16" and not recommending.list_code(["baseline"])
    shown = recommending.render_terminal(found, "for this machine", {})
    assert ", ".join(adopted) in shown and "```" not in shown
    assert "```python\ndef precise():" in recommending.render_advice(found, "for this machine")
    assert recommending.write_data(found, "for this machine", {})["adopt"] == adopted


def test_the_code_of_graphs_comes_with_what_it_calls() -> None:
    """All rungs of the page but `compile`: pasted after the loop that the page begins with, each name is known."""
    named = [name for each in recommending.read_sections() for name in each.rungs if name != "compile"]
    text = "\n".join(recommending.list_code(named))
    order = (
        "Frozen networks (docs/adopt.md#frozen-networks)",
        "def g_phase():",
        "def captured(",
        "def whole():",
    )
    assert [text.index(each) for each in order] == sorted(text.index(each) for each in order)
    code = ast.parse("\n".join(re.findall(r"```python\n(.+?)```", text, re.DOTALL)))
    names = {each for each in ast.walk(code) if isinstance(each, ast.Name)}
    given = {each.id for each in names if isinstance(each.ctx, ast.Store)} | {*vars(builtins)}
    for each in ast.walk(code):
        if isinstance(each, ast.FunctionDef):
            given |= {each.name, *(argument.arg for argument in each.args.args)}
        elif isinstance(each, ast.Import):
            given |= {alias.name for alias in each.names}
    loop = {"torch", "copy", "nn", "softplus", "device", "batch", "z_dim", "size", "G", "D", "G_ema"}
    assert {each.id for each in names} - given <= loop
