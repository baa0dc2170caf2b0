"""Advice on each rung, and its time in units of practice, from results that no machine measured."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ladder.base.errors import UserError
from ladder.report import advising, recommend_text
from ladder.report import recommend as recommending
from ladder.report.advising import Advised, Sources
from ladder.results.words import Seen
from tests.report import test_explain
from tests.support import made_up, recipes, two_clocks
from tests.support.typed import typed

Plain = dict[str, Any]
WORDS = ("faster", "slower", "less than", "ambiguous", "too few generations", "no measurable gain")


def staircase(made: Plain, **resumes: str) -> Sources:
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


def test_a_gain_of_gpu_work_counts_where_a_later_rung_removes_the_waiting() -> None:
    found = advice(staircase(two_clocks.run()))
    assert {name: each.advice for name, each in found.items()} == {
        "channels_last": "ADOPT", "bf16": "ADOPT", "fused_norm": "ADOPT", "set_to_none": "NO DIFFERENCE",
        "cuda_graphs": "ADOPT", "data_loading": "ADOPT", "fused_act": "ADOPT",
    }  # fmt: skip
    bf16 = found["bf16"]
    assert bf16.clock == "GPU" and bf16.seen.verdict == "faster" and bf16.interval is not None
    assert bf16.interval[0] < 93.0 / 73.8 < bf16.interval[1]
    assert bf16.reason.startswith("the GPU's work is 1.26x faster; ")
    assert bf16.reason.endswith("; cuda_graphs removes this waiting")
    assert found["cuda_graphs"].clock == "step" and "the GPU waits less" in found["cuda_graphs"].reason


def test_the_reason_says_what_the_difference_of_gpu_work_is_made_of() -> None:
    planted = {"set_to_none": test_explain.BEFORE, "data_loading": test_explain.BEFORE}
    made = test_explain.run(**planted, fused_act=test_explain.AFTER)
    found = advice(staircase(made))
    words = "; GPU work: elementwise -9.08 ms, fused: activation and bias +2.20 ms, the rest -0.13 ms"
    assert found["fused_act"].reason.endswith(words)
    others = [found[name].reason for name in ("bf16", "cuda_graphs", "set_to_none", "data_loading")]
    assert not any("GPU work:" in each for each in others)  # no profile of both, or no difference
    left_out = two_clocks.run(mode="leave-one-out")
    for place, profile in ((0, test_explain.AFTER), (-1, test_explain.BEFORE)):
        rung = left_out["rungs"][place]
        rung["profile"], gpu_ms = profile
        for each in rung["rounds"]:
            each["profiled"] = [{**cycle, "gpu_ms": gpu_ms} for cycle in each["profiled"]]
    row = left_out["rungs"][-1]
    row["gpu_verdict"] = "faster"
    found = advice(Sources(None, typed(recipes.given(left_out)), {}))
    assert found[row["name"]].reason.endswith(words)


def test_eager_work_that_nobody_captures_later_is_judged_by_the_step() -> None:
    made = two_clocks.run()
    made["rungs"] = made["rungs"][:5]
    found = advice(staircase(made))
    assert {each.advice for each in found.values()} == {"undecided"}  # the step leaves 9% open
    assert found["bf16"].clock == "step" and "removes" not in found["bf16"].reason


def test_graphs_that_cost_time_remove_nothing() -> None:
    found = advice(staircase(changed("cuda_graphs", verdict="slower", gain={"ratio": 0.8})))
    assert found["cuda_graphs"].advice == "SKIP" and found["channels_last"].advice == "undecided"


def test_a_captured_top_that_still_waits_removes_nothing() -> None:
    found = advice(staircase(changed("fused_act", waiting_ms=6.0)))
    assert found["channels_last"].advice == "undecided"


@pytest.mark.parametrize(
    "below, expected", [(0.04, "NO DIFFERENCE"), (0.06, "undecided"), (0.6, "undecided")]
)
def test_a_run_that_leaves_a_gain_open_does_not_say_that_there_is_no_difference(
    below: float, expected: str
) -> None:
    """A busy CPU's "less than 83%" is no reason to leave a rung out."""
    made = two_clocks.run()
    made["rungs"] = made["rungs"][:2]
    made["rungs"][1]["gain"] |= {"below": below}
    made["rungs"][1]["verdict"] = "less than"
    found = advice(staircase(made))["channels_last"]
    assert found.advice == expected and (found.decide is None) == (expected == "NO DIFFERENCE")


@pytest.mark.parametrize("gpu, wall", [*itertools.product((*WORDS, ""), repeat=2)])
@pytest.mark.parametrize("waits, removed", [*itertools.product((True, False), repeat=2)])
def test_advice_never_contradicts_what_stays_of_the_step(
    gpu: str, wall: str, waits: bool, removed: bool
) -> None:
    found = advising.of_staircase(gpu, wall, waits, removed)
    assert found in ("ADOPT", "SKIP", "NO DIFFERENCE", "undecided", "")
    if found == "ADOPT":
        assert "faster" in (gpu, wall) and (removed or wall != "slower") and (not removed or gpu != "slower")
    if found == "SKIP":
        assert "slower" in (gpu, wall) and wall != "faster" and not (removed and gpu == "faster")
    if found == "NO DIFFERENCE":
        assert not {"faster", "slower"} & {wall, *([gpu] if removed or not waits else [])}
    if waits and not removed:
        assert found == advising.of_staircase("", wall, True, False)
    assert found or not wall


@pytest.mark.parametrize("status", ["failed: parity", "not engaged", "failed", "oom", "invalid"])
def test_a_rung_that_failed_is_broken_and_those_on_top_of_it_are_open(status: str) -> None:
    made = two_clocks.run()
    reason = "G_main gradient of all: error 0.0041, budget 0.002"
    made["rungs"][2] = made_up.rung("bf16", status=status, reason=reason)
    for index in range(3, 8):
        name = made["rungs"][index]["name"]
        made["rungs"][index] = made_up.rung(name, status="skipped", reason="depends on bf16")
    sources = staircase(made)
    found = advice(sources)
    assert (found["bf16"].advice, found["bf16"].reason) == ("BROKEN", f"{status}: {reason}")
    assert found["bf16"].decide is None and found["bf16"].interval is None
    last = found["fused_act"]
    assert (last.advice, last.reason) == ("undecided", "depends on bf16")
    assert last.decide == "ladder run -w article --mode solo"
    assert recommending.recommend(sources).kept == ("baseline", "channels_last")


def test_a_rung_that_this_machine_cannot_have_is_neither_broken_nor_open() -> None:
    found = advice(staircase(made_up.cpu_run()))["cuda_graphs"]
    assert (found.advice, found.reason, found.decide) == ("n/a", "needs a CUDA GPU", None)


def test_an_open_rung_names_the_command_that_decides() -> None:
    made = changed("fused_act", verdict="ambiguous", gpu_verdict="ambiguous")
    found = advice(staircase(made, staircase="R.json"))["fused_act"]
    assert (found.advice, found.decide) == ("undecided", "ladder run -w article --mode leave-one-out")
    few = two_clocks.run(2)
    assert advice(staircase(few))["bf16"].decide == "ladder run -w article"
    few["protocol"]["budget_s"] = 600.0
    resumed = advice(staircase(few, staircase="R.json"))["bf16"]
    assert (resumed.advice, resumed.decide) == ("undecided", "ladder run --resume R.json --budget 20")
    few["protocol"] |= {"rounds": 2, "fixed": True}  # such a run refuses a budget
    assert (
        advice(staircase(few, staircase="R.json"))["bf16"].decide
        == "ladder run --resume R.json --generations 4"
    )
    few["protocol"]["quick"] = True
    assert advice(staircase(few, staircase="R.json"))["bf16"].decide == "ladder run -w article"


def test_a_rung_without_proof_is_not_adopted() -> None:
    made = changed("fused_act", inspection=None)
    found = advice(staircase(made, staircase="R.json"))["fused_act"]
    assert found.advice == "undecided" and "before its inspection ended" in found.reason
    assert found.decide == "ladder run --resume R.json --budget 20"


def test_units_by_hand() -> None:
    found = recommending.units(100.0, 8, 25_000_000, 2.5)
    assert (found.s_per_kimg, found.images_per_s) == (12.5, 80.0)
    assert found.hours == pytest.approx(86.8056, abs=1e-4)  # 3,125,000 steps of 0.1 s
    assert found.money == pytest.approx(217.014, abs=1e-3)
    assert recommending.units(100.0, 8, 25_000_000, None).money is None


def test_a_rung_s_saving_and_its_break_even_by_hand() -> None:
    made = changed("fused_act", gain={"ratio": 1.25}, step_ms=50.0, prepare_s=12.0)
    sources = staircase(made)
    found = advice(sources)["fused_act"]
    assert found.clock == "step" and found.saved_ms == 12.5
    assert found.prepare_s == 3.0 and found.pays_back == 240
    whole = recommending.recommend(sources, 3_600_000, 2.0)
    assert whole.hours(found.saved_ms) == pytest.approx(1.5625)  # 450,000 steps of 8 images, 12.5 ms each
    row = dict(zip(recommend_text.head(whole), recommend_text.rows(whole)[-1], strict=True))
    assert (row["saves ms/step"], row["hours"], row["money"]) == ("12.5", "1.56", "3.12")
    assert (row["prepares, s"], row["pays back after"]) == ("+3.0", "240 steps")
    assert whole.baseline and whole.baseline.ms == 160.0 and whole.recommended.ms == 50.0
    assert whole.saved_ms == 110.0 and whole.pays_back == 28  # 3 s over 110 ms
    last = recommend_text.figures(whole)[-1]
    assert last == ["saved", "110.0", "13.75", "", "13.8", "27.50"]


def test_a_rung_that_costs_or_is_open_pays_nothing_back() -> None:
    found = advice(staircase(changed("fused_act", verdict="slower", gain={"ratio": 0.8}, step_ms=50.0)))
    assert found["fused_act"].saved_ms == pytest.approx(-10.0) and found["fused_act"].pays_back is None
    assert found["set_to_none"].saved_ms is None and found["set_to_none"].pays_back is None
    assert advising.steps_to_pay_back(-1.0, 5.0) == 0


@pytest.mark.parametrize(
    "given, number", [("25M", 25_000_000), ("200k", 200_000), ("2.5m", 2_500_000), ("7", 7)]
)
def test_a_number_of_images(given: str, number: int) -> None:
    assert recommending.images_of(given) == number


@pytest.mark.parametrize("given", ["many", "", "0", "-5", "nan", "1e400", "25MM", "25 M"])
def test_no_number_of_images(given: str) -> None:
    with pytest.raises(UserError, match="--images"):
        recommending.images_of(given)


def test_a_price() -> None:
    assert recommending.price_of("2.5/h") == recommending.price_of("2.5") == 2.5
    for given in ("x", "", "0/h", "-1", "2.5/min", "inf"):
        with pytest.raises(UserError, match="--price"):
            recommending.price_of(given)


def test_a_terminal_has_the_reasons_that_the_table_does_not_tell_then_what_the_work_is_made_of() -> None:
    planted = {"data_loading": test_explain.BEFORE, "fused_act": test_explain.AFTER}
    made = recommending.recommend(staircase(test_explain.run(**planted)))
    said = recommend_text.of_terminal(made, "here", {}).splitlines()
    assert not any(line.startswith("fused_act: ADOPT") for line in said)  # step and work gain alike
    assert any(line.startswith("bf16: ADOPT: the GPU's work is 1.26x faster; ") for line in said)
    parts = "  elementwise -9.08 ms, fused: activation and bias +2.20 ms, the rest -0.13 ms"
    assert [line for line in said if line.endswith(parts)] == [f"fused_act{parts}"]
    assert any(line.startswith("fused_act: ADOPT: the GPU's") for line in recommend_text.reasons(made))


def test_a_gain_of_the_step_that_the_work_does_not_explain_keeps_its_reason() -> None:
    planted = {"data_loading": test_explain.BEFORE, "fused_act": test_explain.AFTER}
    run = test_explain.run(**planted)
    next(rung for rung in run["rungs"] if rung["name"] == "fused_act")["gain"] |= {"ratio": 1.5}
    said = recommend_text.of_terminal(recommending.recommend(staircase(run)), "here", {})
    assert (
        "fused_act: ADOPT: " in said and "the step is 1.50x faster, because the GPU also waits less" in said
    )


@pytest.mark.parametrize("gib, told", [(4.0, True), (7.9, False)])
def test_a_rung_that_costs_time_says_which_memory_it_saves(gib: float, told: bool) -> None:
    """A user whose memory is short would take a bare SKIP for an answer."""
    made = changed("fused_act", verdict="slower", gain={"ratio": 0.9})
    for rung, peak in zip(made["rungs"][-2:], (8.0, gib), strict=True):
        rung["peak_reserved_bytes"] = int(peak * 2**30)
    found = advice(staircase(made))["fused_act"]
    assert found.advice == "SKIP"
    assert ("it takes less memory" in found.reason) == told
    assert found.reason.endswith("; it takes less memory, 4.00 GiB instead of 8.00") == told
    left_out = two_clocks.run(mode="leave-one-out")
    for rung, peak in zip(left_out["rungs"], (gib, 8.0), strict=False):
        rung["peak_reserved_bytes"] = int(peak * 2**30)
    left_out["rungs"][1] |= {"verdict": "slower", "gpu_verdict": "slower"}
    found = advice(Sources(None, typed(recipes.given(left_out)), {}))[left_out["rungs"][1]["name"]]
    assert found.advice == "SKIP"
    assert found.reason.endswith("; it takes less memory, 4.00 GiB instead of 8.00") == told


def test_equal_reasons_share_a_line() -> None:
    made = recommending.recommend(staircase(made_up.cpu_run()))
    assert (
        "fused_norm, cuda_graphs, data_loading, fused_act: n/a: needs a CUDA GPU"
        in recommend_text.reasons(made)
    )


def test_a_result_without_a_number_recommends_nothing() -> None:
    made = two_clocks.run()
    made["rungs"] = [made_up.rung(rung["name"]) for rung in made["rungs"]]
    with pytest.raises(UserError, match="no rung of the result has a number"):
        recommending.recommend(staircase(made))


def test_a_figure_without_a_verdict_saves_nothing() -> None:
    none = Advised("a", "A", "ADOPT", "", "", Seen(), None, "", None, None, None)
    assert none.saved_ms is None and none.pays_back is None
