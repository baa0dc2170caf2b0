"""Wall and GPU time of generations: derived numbers, verdicts of their own, and when a generation is added."""

import copy
import random

import pytest

from ladder.results import judging as judging_module
from ladder.results import ranking as ranking_module
from tests.support import made_up, typed
from tests.support.typed import Reading, problem_of

judging = Reading(judging_module)
GPU = {  # ms a step; the wall time is made_up.H200's
    "baseline": 36.6,
    "channels_last": 32.0,
    "bf16": 27.0,
    "fused_norm": 26.0,
    "set_to_none": 25.9,
    "cuda_graphs": 25.95,
    "data_loading": 25.9,
    "fused_act": 21.0,
}


ranking = Reading(ranking_module)


def generations(mode="cumulative", seed=0, count=3, gpu_sd=0.001, wall_sd=0.03):
    """A run of live processes on a noisy host: eager rungs have two passes and captured ones four."""
    rng = random.Random(seed)
    made = made_up.judged_run(mode)
    drift = [rng.gauss(0, 0.1) for _ in range(count)]
    slow = [[rng.gauss(0, 0.05) for _ in range(4)] for _ in range(count)]
    for rung in [*made["rungs"], *made["twins"]]:
        name = rung.get("of", rung["name"])
        captured = rung["recipe"].get("cuda_graphs")
        wall, gpu = made_up.H200.get(name, (25.3, 0))[0], GPU.get(name, 21.0)
        before, rung["rounds"] = rung["rounds"][0], []
        rung.pop("inspection", None)
        for number in range(count):
            host = 0.0 if captured else drift[number]
            passes = list(range(4)) if captured else [1, 3]
            sd = 0.002 if captured else wall_sd
            share = 0.02 if captured else 1.0
            samples = [wall * 2.718 ** (host + share * slow[number][at] + rng.gauss(0, sd)) for at in passes]
            process = gpu * 2.718 ** rng.gauss(0, gpu_sd)
            profiled = [
                {"gpu_ms": process * (1 + 1e-4 * i), "wall_ms": 1.1 * wall, "kernels": 400.0, "sm_mhz": None}
                for i in range(2)
            ]
            rung["rounds"].append(
                {**before, "round": number, "samples_ms": samples, "passes": passes, "profiled": profiled}
            )
    return typed.fill(made)


def by_name(made):
    return {rung["name"]: rung for rung in [*made["rungs"], *made["twins"]]}


def test_gpu_time_decides_where_wall_time_cannot():
    made = generations(wall_sd=0.07)
    rungs = by_name(made)
    for name in ("channels_last", "bf16", "fused_norm", "fused_act"):
        assert rungs[name]["gpu_verdict"] == "faster"
    assert rungs["set_to_none"]["gpu_verdict"] == rungs["cuda_graphs"]["gpu_verdict"] == "less than"
    assert rungs["set_to_none"]["gpu_gain"]["below"] < 0.015
    assert rungs["channels_last"]["verdict"] != "faster" and rungs["baseline"]["gpu_verdict"] is None
    gain = rungs["channels_last"]["gpu_gain"]
    assert gain["against"] == "baseline" and gain["ratio"] == pytest.approx(36.6 / 32.0, rel=0.005)
    assert gain["interval"][0] < gain["ratio"] < gain["interval"][1]
    assert set(made["noise"]) == set(made["gpu_noise"]) == {"eager", "captured"}
    assert made["gpu_noise"]["eager"]["floor"] < 0.01 < made["noise"]["eager"]["floor"]


def test_gpu_numbers_of_a_rung():
    made = generations()
    rung, base = by_name(made)["bf16"], by_name(made)["baseline"]
    values = sorted(
        (each["profiled"][0]["gpu_ms"] * each["profiled"][1]["gpu_ms"]) ** 0.5 for each in rung["rounds"]
    )
    assert rung["gpu_ms"] == pytest.approx(values[1])
    low, high = rung["gpu_interval_ms"]
    assert low < values[0] and values[2] < high
    assert rung["waiting_ms"] == pytest.approx(rung["step_ms"] - rung["gpu_ms"])
    assert rung["host_bound"] == pytest.approx(rung["waiting_ms"] / rung["step_ms"])
    assert rung["gpu_speedup_total"] == pytest.approx(base["gpu_ms"] / rung["gpu_ms"], rel=0.005)
    assert rung["gpu_speedup_previous"] == pytest.approx(32.0 / 27.0, rel=0.005)
    assert base["gpu_speedup_previous"] is None and base["gpu_speedup_total"] == 1


def test_a_gpu_that_works_longer_than_the_step_waits_for_nothing():
    made = generations()
    for each in by_name(made)["fused_act"]["rounds"]:
        for cycle in each["profiled"]:
            cycle["gpu_ms"] = 26.0
    typed.fill(made)
    rung = by_name(made)["fused_act"]
    assert rung["gpu_ms"] > rung["step_ms"] and rung["waiting_ms"] == rung["host_bound"] == 0


def test_void_profiles_do_not_count_and_are_told():
    made = generations(count=4)
    before = by_name(made)["bf16"]["gpu_ms"]
    bad = by_name(made)["bf16"]["rounds"][1]
    bad["gpu_void"] = "kernels differ between two cycles"
    for cycle in bad["profiled"]:
        cycle["gpu_ms"] *= 3
    typed.fill(made)
    rung = by_name(made)["bf16"]
    assert rung["gpu_ms"] == pytest.approx(before, rel=0.01) and rung["gpu_gain"]["rounds"] == 3
    assert rung["gain"]["rounds"] == 4  # wall time is as good as before
    assert "GPU time void in generation 2: kernels differ between two cycles" in rung["notes"]
    for each in rung["rounds"]:
        each["gpu_void"] = "no CUPTI"
    typed.fill(made)
    rung = by_name(made)["bf16"]
    assert rung["gpu_ms"] is rung["gpu_verdict"] is rung["gpu_gain"] is rung["waiting_ms"] is None
    assert rung["verdict"] and by_name(made)["fused_norm"]["gpu_gain"] is None


def test_a_result_without_profiles_has_no_gpu_numbers():
    made = made_up.judged_run()
    assert made["gpu_noise"] == {} and made["noise"]
    for rung in made["rungs"]:
        for key in ("ms", "verdict", "gain", "interval_ms", "speedup_previous", "speedup_total"):
            assert rung[f"gpu_{key}"] is None
        assert rung["waiting_ms"] is None and rung["host_bound"] is not None


def test_pass_effects_leave_the_values_of_their_kind_and_no_other():
    """A minute in which the host was slow, seen by all eager rungs but one: that one is no faster for it."""
    made = generations(wall_sd=0.0005)
    quiet = by_name(copy.deepcopy(made))
    for rung in [*made["rungs"], *made["twins"]]:
        if not rung["recipe"].get("cuda_graphs"):
            first = rung["rounds"][0]
            first["samples_ms"] = [1.5 * first["samples_ms"][0], first["samples_ms"][1]]
    missed = by_name(made)["channels_last"]["rounds"][0]
    missed["samples_ms"], missed["passes"] = missed["samples_ms"][1:], [3]
    typed.fill(made)
    rungs = by_name(made)
    for name in ("channels_last", "bf16"):
        assert rungs[name]["gain"]["ratio"] == pytest.approx(quiet[name]["gain"]["ratio"], rel=0.002)
        assert rungs[name]["verdict"] == quiet[name]["verdict"]
    for name in ("data_loading", "fused_act"):
        assert rungs[name]["gain"]["ratio"] == quiet[name]["gain"]["ratio"]
    validated(made)


def validated(made):
    made["machine"]["name"], made["workload"]["data"] = "nvidia-h200", None
    assert problem_of(made) is None


def test_a_value_beyond_a_rung_s_own_samples_is_not_shown():
    """The only samples of a rung lie in a slow pass: its value is below them, and a reader would refuse it."""
    made = generations(wall_sd=0.0)
    rung = by_name(made)["bf16"]
    for each in [*made["rungs"], *made["twins"]]:
        for visit in each["rounds"]:
            if not each["recipe"].get("cuda_graphs"):
                visit["samples_ms"] = (
                    [each["step_ms"], 2 * each["step_ms"]] if "step_ms" in each else [96.4, 192.8]
                )
    for visit in rung["rounds"]:
        visit["samples_ms"], visit["passes"] = [2 * rung["step_ms"]], [3]
    typed.fill(made)
    rung = by_name(made)["bf16"]
    assert rung["step_ms"] == rung["samples_ms"][0]
    validated(made)


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_generations_have_numbers_and_no_verdict(count):
    made = generations(count=count)
    for rung in made["rungs"][1:]:
        assert rung["verdict"] == rung["gpu_verdict"] == "too few generations"
        assert rung["gain"]["interval"] is rung["gpu_gain"]["interval"] is rung["interval_ms"] is None
        assert rung["gain"]["ratio"] > 0 and rung["gpu_ms"] and rung["total_interval"] is None
    assert made["noise"] == made["gpu_noise"] == {}
    validated(made)


def test_leave_one_out_goes_by_gpu_time_unless_the_rung_captures_the_step():
    made = generations("leave-one-out")
    rungs = by_name(made)
    assert rungs["bf16"]["gpu_gain"]["against"] == "all"
    for name, (gpu_ms, advice) in {"bf16": (25.0, "ADOPT"), "fused_norm": (20.0, "SKIP")}.items():
        for each, other in zip(rungs[name]["rounds"], rungs["all"]["rounds"], strict=True):
            each["samples_ms"] = list(other["samples_ms"])  # the step shows no difference
            for cycle in each["profiled"]:
                cycle["gpu_ms"] *= gpu_ms / GPU[name]
        typed.fill(made)
        assert ranking.top_gains(made)[name]["advice"] == advice
    whole = by_name(made)["all"]["gpu_ms"]
    assert ranking.top_gains(made)["bf16"]["gpu_gain"] == pytest.approx(25.0 / whole, rel=0.01)
    graphs = by_name(made)["cuda_graphs"]
    assert (
        graphs["kind"] == "eager"
        and ranking.top_gains(made)["cuda_graphs"]["gain"] == graphs["gain"]["ratio"]
    )


def test_a_generation_is_added_for_the_widths_of_gpu_time_or_of_wall_time_without_it():
    sure, wide = generations(gpu_sd=0.0005), generations(gpu_sd=0.006)
    wants = judging.wants_generations
    assert not wants(sure) and wants(wide) and wants(generations(count=2, gpu_sd=0.0))
    assert not wants(generations(count=12, gpu_sd=0.02))
    for each in [*sure["rungs"], *sure["twins"]]:
        for visit in each["rounds"]:
            del visit["profiled"]
    assert wants(sure)  # its wall time is open
