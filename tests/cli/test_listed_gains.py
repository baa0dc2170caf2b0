"""Names and gains in `ladder list` and `ladder show`: a gain is told by both clocks where a result has both."""

import json

import pytest

from ladder.cli import listing
from ladder.plan import catalog
from ladder.results import ranking
from tests.support import made_up, two_clocks, typed
from tests.support.commands import call, refused
from tests.support.typed import write_run


def told(made, name):
    rung = next(rung for rung in typed.typed(made).rungs if rung.name == name)
    return listing._render_gain(rung), listing._render_gain(rung, "vs previous")


def test_both_clocks_are_told_where_both_are_known():
    short, long = told(two_clocks.run(), "channels_last")
    assert short == "GPU 1.13x, step less than 8.9%"
    assert long.startswith("GPU 1.13x vs previous (1.122-1.136x), faster; step less than 8.9% vs previous (")


def test_too_few_generations_are_no_answer():
    short, long = told(two_clocks.run(2), "bf16")
    assert short == "GPU 1.26x?, step 1.05x?" and long.count("too few generations") == 2


def test_a_wide_interval_has_its_ends() -> None:
    made = two_clocks.run()
    next(each for each in made["rungs"] if each["name"] == "bf16")["gain"]["interval"] = [0.2, 30.0]
    assert "(0.200-30.000x)" in told(made, "bf16")[1]


def test_the_prediction_is_the_articles_over_the_same_rung_or_the_rungs_own_words():
    made = typed.typed(two_clocks.run())
    assert (
        listing._render_prediction("bf16", made)
        == "1.68x by the article (265 -> 158 ms/step, channels_last -> bf16)"
    )
    rung = catalog.load_rung("fused_rgb")
    assert listing._render_prediction("fused_rgb", made) == f"no number in the article; {rung.summary}"
    assert listing._render_prediction("baseline", made).startswith("no number in the article; ")


def test_an_older_result_has_the_step_alone():
    made = made_up.judged_run()
    assert told(made, "cuda_graphs")[0] == "2.80x"
    assert told(made_up.gpu_run(), "cuda_graphs") == ("", "")


def test_a_newer_run_of_selected_rungs_does_not_pass_for_the_gain_of_a_rung(tmp_path, monkeypatch):
    """It compares the top with a rung far below it, and the whole ladder has the answer."""
    monkeypatch.setattr(listing, "RESULTS", tmp_path)
    monkeypatch.setattr(ranking, "machines_here", lambda: ["nvidia-h200"])
    ends = two_clocks.selected("baseline", "fused_act") | {"started": "2026-11-22T10:15:00+00:00"}
    ends["rungs"][-1]["gpu_gain"] |= {"against": "baseline", "ratio": 1.72}
    ends["rungs"][-1]["gain"] |= {"against": "baseline", "ratio": 2.61}
    write_run(tmp_path / "nvidia-h200" / "ends.json", ends)
    (here,) = [line for line in listing._render_own("fused_act") if line.startswith("Here:")]
    assert "GPU 1.72x vs baseline (" in here and "step 2.61x vs baseline (" in here
    (listed,) = [
        line for line in listing._render_list(everything("fused_act")) if line.startswith("  fused_act")
    ]
    assert "GPU 1.72x, step 2.61x over baseline" in listed
    write_run(tmp_path / "nvidia-h200" / "whole.json", two_clocks.run())
    (here,) = [line for line in listing._render_own("fused_act") if line.startswith("Here:")]
    assert "GPU 1.11x vs previous (" in here and "step 1.12x vs previous (" in here
    (listed,) = [
        line for line in listing._render_list(everything("fused_act")) if line.startswith("  fused_act")
    ]
    assert "GPU 1.11x, step 1.12x" in listed and " over " not in listed


def everything(rung):
    return {"rungs": {rung: "what it does"}, "ladders": {"full": "on from there"}, "workloads": {}}


def test_show_tells_what_other_gpus_measured_by_both_clocks_and_nothing_that_must_not_be_quoted(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(listing, "RESULTS", tmp_path)
    monkeypatch.setattr(ranking, "machines_here", lambda: ["amd-epyc"])
    assert listing._render_elsewhere("bf16") == []
    write_run(tmp_path / "nvidia-h200" / "stopped.json", two_clocks.interrupt(two_clocks.run()))
    write_run(tmp_path / "nvidia-h200" / "few.json", two_clocks.run(2))
    assert listing._render_elsewhere("bf16") == []
    write_run(tmp_path / "nvidia-h200" / "whole.json", two_clocks.run())
    write_run(tmp_path / "nvidia-h200" / "left-out.json", two_clocks.run(mode="leave-one-out"))
    _, _, head, climbed, left_out = listing._render_elsewhere("bf16")
    assert head.split() == ["gpu", "workload", "GPU's", "work", "step", "compared", "advice", "file"]
    assert "1.26x faster" in climbed and "over channels_last" in climbed and "whole.json" in climbed
    assert "ADOPT" not in climbed and "ADOPT" in left_out and "left-out.json" in left_out
    monkeypatch.setattr(ranking, "machines_here", lambda: ["nvidia-h200"])
    assert listing._render_elsewhere("bf16") == []  # `Here:` tells them


@pytest.mark.parametrize(("study", "entry"), [("mistakes", "item_each_step"), ("levers", "half_width")])
def test_show_lists_the_entries_of_a_study_that_run_measures(study, entry):
    lines = call("show", study).stdout.splitlines()
    assert f"Measured by `ladder run --mode {study}`" in lines[1]
    assert any(line.startswith(f"{entry} ") for line in lines)


def test_show_knows_whatever_list_names():
    listed = json.loads(call("list", "--json").stdout)
    for kind in listed.values():
        for name in kind:
            assert call("show", name).exit_code == 0, name
    assert ["batch", "8"] in [line.split() for line in call("show", "article-sn").stdout.splitlines()]


@pytest.mark.parametrize("mode", ["cumulative", "solo", "leave-one-out"])
def test_show_of_a_mode_says_how_it_is_run(mode):
    assert refused("show", mode) == f"ladder: {mode} is a way to lay out a run: `ladder run --mode {mode}`"
