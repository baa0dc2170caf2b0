"""What becomes of a rung: twins, skipped rungs, leave-one-out without a baseline, visits short of memory."""

import copy
from pathlib import Path
from typing import get_args

import pytest

from ladder.cli import climb as climbing
from ladder.plan import catalog, modes, needs
from ladder.results import code_digest, derive, judging
from ladder.results.combine import resuming
from ladder.results.file import OUT, Status
from tests.cli.test_cli import call
from tests.support import fake_runs, made_up, typed
from tests.support.typed import Reading, problem_of, untyped, write_run

judging = Reading(judging)


def planned(mode="cumulative"):
    """Planned recipes of the article's ladder on a machine that can do everything."""
    found = modes.plan_run(mode, catalog.load_ladder("article"), dict.fromkeys(needs.NEEDS))
    return {p.name: p.recipe for p in found}


def by_name(result):
    return {rung["name"]: rung for rung in [*result["rungs"], *result["twins"]]}


def climbed(mode="cumulative"):
    """A run whose recipes are those of the plan."""
    made = made_up.judged_run(mode)
    for rung in [*made["rungs"], *made["twins"]]:
        rung["recipe"] = planned(mode)[rung.get("of", rung["name"])]
    return made


def judged_anew(made):
    typed.fill(made)
    return by_name(made)


@pytest.mark.parametrize("status", OUT[1:])
def test_what_contains_a_rung_that_is_out_is_skipped_with_its_twin(status):
    made = climbed()
    by_name(made)["cuda_graphs"].update(status=status, reason="why", failed_at={"round": 2})
    assert list(typed.skipped(made)) == ["data_loading", "fused_act", "fused_act.twin"]
    rungs = judged_anew(made)
    for name in ("data_loading", "fused_act", "fused_act.twin"):
        assert (rungs[name]["status"], rungs[name]["reason"]) == ("skipped", "depends on cuda_graphs")
        assert rungs[name].get("step_ms") is None and rungs[name]["rounds"]  # kept, but no result
    assert rungs["set_to_none"]["status"] == "ok" and rungs["baseline.twin"]["status"] == "ok"


def test_without_its_reference_no_other_mode_measures_on():
    for mode, first in (("solo", "baseline"), ("leave-one-out", "all")):
        made = climbed(mode)
        made["rungs"][0].update(status="failed", reason="why")
        assert len(typed.skipped(made)) >= 7
        assert judged_anew(made)["bf16"]["reason"] == f"depends on {first}"
        assert all(rung["verdict"] is None for rung in made["rungs"])
        made = climbed(mode)  # and if they were measured nevertheless, nothing else stands in for it
        made["rungs"][0].update(status="failed", reason="why")
        judged_anew(made)
        assert all(rung["verdict"] is None for rung in made["rungs"])


@pytest.mark.parametrize(
    ("status", "here", "elsewhere"),
    [
        ("failed", True, True),
        ("oom", False, False),
        ("invalid", False, False),
        ("failed: parity", False, True),  # another commit may have put right what judges
        ("not engaged", False, True),
    ],
)
def test_a_resumed_run_tries_again_what_failed_and_at_another_commit_what_was_refused(
    status, here, elsewhere, tmp_path
):
    fresh = made_up.judged_run() | {
        code_digest.KEY: code_digest.digests(),
        "commit": "1" * 40,
        "dirty": False,
    }
    for rung in [*fresh["rungs"], *fresh["twins"]]:
        rung["recipe"] = planned()[rung.get("of", rung["name"])]
    for commit, again in (("1" * 40, here), ("2" * 40, elsewhere), (None, here)):
        made = copy.deepcopy(fresh)
        made["protocol"] |= {"fixed": True, "budget_s": None}
        found = {"inspection": None, "parity": made_up.parity(3.0, "failed: parity"), "receipts": {}}
        by_name(made)["bf16"].update(found, status=status, reason="why", failed_at={"round": 0})
        write_run(tmp_path / "a.json", made)
        asked = typed.run_of(copy.deepcopy(fresh) | {"commit": commit})
        taken = resuming.take_up(tmp_path / "a.json", asked, fake_runs.job(tmp_path, []))
        rungs = by_name(untyped(judging.derive_result(taken)))
        assert rungs["bf16"]["status"] == ("ok" if again else status)
        assert (rungs["bf16"]["parity"] is not None) is not again
        for name in ("fused_norm", "fused_act", "fused_act.twin"):
            assert rungs[name]["status"] == ("ok" if again else "skipped"), (status, name)
            assert rungs[name]["reason"] == (None if again else "depends on bf16")
        assert rungs["channels_last"]["status"] == "ok"


def test_leave_one_out_has_twins_of_all_alone():
    names = list(planned("leave-one-out"))
    assert judging.twins_of(names, quick=False) == judging.twins_of(names, quick=True) == ["all"]
    made = made_up.judged_run("leave-one-out")
    assert [twin["of"] for twin in made["twins"]] == ["all"] and made["baseline"] == "all"
    rungs = by_name(made)
    assert rungs["all"]["verdict"] is None and rungs["bf16"]["gain"]["against"] == "all"
    assert all(rung["verdict"] for rung in made["rungs"][1:])


def test_the_one_eager_rung_of_a_captured_ladder_is_judged_by_its_own_error():
    """No twin and no other rung shows the noise of its kind; three percent were assumed before."""
    made = made_up.judged_run("leave-one-out")
    gain = by_name(made)["cuda_graphs"]["gain"]
    assert set(made["noise"]) == {"captured"} and gain["floor"] > 3 * made["noise"]["captured"]["floor"]
    calm = copy.deepcopy(made)
    for number, each in enumerate(by_name(calm)["cuda_graphs"]["rounds"]):
        each["samples_ms"] = [31.2 + 0.001 * number] * 2
    assert judged_anew(calm)["cuda_graphs"]["gain"]["floor"] < 0.002


def test_rounds_of_older_files_with_allocator_retries_do_not_count():
    made = made_up.judged_run()
    rung = by_name(made)["bf16"]
    before = rung["step_ms"]
    rung["rounds"][0].update(alloc_retries=2, samples_ms=[400.0, 400.0])
    judged_anew(made)
    assert rung["step_ms"] == pytest.approx(before, rel=0.02) and 400.0 not in rung["samples_ms"]
    assert rung["gain"]["rounds"] == 4 and "in 1 of 5 rounds" in rung["notes"][0]
    assert derive.void_memory(None) is derive.void_memory(0) is None
    for each in (*rung["rounds"], *made["twins"][1]["rounds"]):
        each["alloc_retries"] = 3
    rungs = judged_anew(made)
    assert rungs["fused_act.twin"]["status"] == "invalid" and set(made["noise"]) == {"eager", "captured"}
    assert "retried 3 times" in rungs["bf16"]["reason"]
    assert rungs["bf16"]["status"] == "invalid" and "memory is too tight" in rungs["bf16"]["reason"]
    assert rungs["fused_norm"]["gain"]["against"] == "channels_last"


@pytest.mark.parametrize(("rounds", "verdict"), [(2, "too few generations"), (3, "ambiguous")])
def test_rounds_that_differ_much_are_a_result_that_validate_accepts(rounds, verdict):
    """Holm's first level and two degrees of freedom: factors of millions."""
    made = made_up.judged_run()
    for rung in [*made["rungs"], *made["twins"]]:
        del rung["rounds"][rounds:]
        rung.pop("inspection", None)
    noisy = by_name(made)["data_loading"]["rounds"][1]
    noisy["samples_ms"] = [3000 * ms for ms in noisy["samples_ms"]]
    judged = judged_anew(made)["data_loading"]
    assert judged["verdict"] == verdict and (judged["gain"]["interval"] is None) is (rounds < 3)
    assert (judged["total_interval"] is None) is (judged["interval_ms"] is None) is (rounds < 3)
    if rounds == 3:
        assert judged["gain"]["interval"][1] > 1e6
    made["machine"]["name"], made["workload"]["data"] = "nvidia-h200", None
    assert problem_of(made) is None


@pytest.mark.parametrize("status", get_args(Status))
def test_a_run_with_a_rung_that_is_out_is_no_success(status, monkeypatch):
    made = made_up.judged_run()
    made["rungs"][-1]["status"] = status
    found = typed.typed(made)
    monkeypatch.setattr(climbing, "run", lambda *_: (Path("r.json"), found))
    assert call("run").exit_code == (0 if status in ("ok", "n/a") else 1)


def test_a_rung_is_captured_by_its_recipe_on_a_gpu_alone():
    for recipe, device, kind in (
        ({"cuda_graphs": True}, "cuda", "captured"),
        ({"cuda_graphs": False, "whole_step_graph": True}, "cuda", "captured"),
        ({"cuda_graphs": False}, "cuda", "eager"),
        ({}, "cuda", "eager"),
        ({"cuda_graphs": True}, "cpu", "eager"),
    ):
        assert derive.kind(typed.typed(made_up.rung("bf16", 10.0, recipe=recipe)), device) == kind
