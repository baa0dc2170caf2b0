"""Results of `mistakes`, `levers` and `recipe`: judged beside the first entry, shown, validated, and no staircase."""

import re
from pathlib import Path
from typing import Any

import pytest

from ladder.base.errors import UserError
from ladder.plan import mistakes
from ladder.publish import gallery
from ladder.publish.pages import ladders
from ladder.publish.pages.committed import Committed
from ladder.report import beside, chart, entries, panels, tables
from ladder.report.view import Row, View, view
from ladder.results import judging, ranking
from ladder.results.combine import nearest
from ladder.results.words import Seen
from tests.support.made_up_study import MODELS, TIMES, study
from tests.support.typed import problem_of, typed, write_run

FIVE = re.compile(r"(4\.9|5\.0)\dx \(slower\)")  # times the clean step, but for the noise


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return study("mistakes", TIMES)


def rows(shown: View) -> dict[str, Row]:
    return {row.name: row for row in shown.rows}


def cells(shown: View, row: Row) -> dict[str, str]:
    return {heading: cell(row) for heading, cell in tables.columns_of(shown)}


def test_a_mistake_is_told_in_times_of_the_clean_step_by_both_clocks(made: dict[str, Any]) -> None:
    result = typed(made)
    shown = view(result)
    assert judging.pairs(result) == [(name, "clean", name) for name in TIMES if name != "clean"]
    told = cells(shown, rows(shown)["n_critic_5"])
    assert FIVE.fullmatch(told["times clean (step)"]) and told["times clean (GPU)"] == "2.14x (slower)"
    low, high = map(float, told["interval (GPU)"].split("-"))
    assert 2.1 < low < 90 / 42 < high < 2.2
    low, high = map(float, told["interval (step)"].split("-"))
    assert low < 5 < high
    told = cells(shown, rows(shown)["fp16_unmonitored"])
    assert told["times clean (GPU)"] == "0.82x (faster)" and told["times clean (step)"].startswith(
        "less than "
    )
    assert (
        told["in force"] == "ok"
        and told["GPU ms"].startswith("34.")
        and told["waiting (ms)"].startswith("36.")
    )
    assert rows(shown)["fp16_unmonitored"].sentence.startswith(
        "the GPU's work is 1.22x faster; the step shows less"
    )
    assert shown.baseline == "clean" and not any("speedups refer" in each for each in shown.remarks)
    assert "GPU time: noise floor" in "\n".join(tables.lines_below(shown))


def test_a_mistake_that_only_makes_the_cpu_wait_has_equal_work_and_a_longer_step(
    made: dict[str, Any],
) -> None:
    shown = view(typed(made))
    item = rows(shown)["item_each_step"]
    assert item.gpu is not None and item.gpu.verdict == "less than"
    work, rest = item.sentence.split("; ")
    assert re.fullmatch(r"the GPU's work shows less than 0\.\d+% difference", work)
    assert rest == (
        "the step is 1.20x slower, because the GPU waits longer: "
        "to read a loss the CPU waits for the GPU, which then waits for the next launches"
    )


def test_a_step_that_its_host_hides_leaves_the_gpu_s_work_to_tell() -> None:
    """The step of a real host: 31% of difference are possible. The GPU's work is known within a percent."""
    work = Seen("slower", 1 / 1.13), Seen("less than", 1 / 1.1, 0.27)
    assert entries.sentence("mistakes", "nchw_left_in", *work, waits=True) == (
        "the GPU's work is 1.13x slower; the step shows less than 31% difference, the CPU sets the pace: "
        "each block's result is copied to NCHW, and the next convolution copies it back"
    )


def test_an_older_file_has_the_ratio_of_gpu_times_without_a_verdict() -> None:
    """Its GPU times are of one generation, and nothing in it was judged by them."""
    data = study("mistakes", TIMES, profiled=1)
    assert {rung["gpu_verdict"] for rung in data["rungs"][1:]} == {"too few generations"}
    for rung in data["rungs"]:
        rung |= {"gpu_verdict": None, "gpu_gain": None}
    assert problem_of(data) is None
    shown = view(typed(data))
    told = cells(shown, rows(shown)["n_critic_5"])
    assert told["times clean (GPU)"] == "2.14x" and "interval (GPU)" not in told
    assert re.match(r"the step is (4\.9|5\.0)\dx slower", rows(shown)["n_critic_5"].sentence)


def test_without_a_gpu_one_clock_is_told() -> None:
    shown = view(typed(study("mistakes", TIMES, profiled=0)))
    told = cells(shown, rows(shown)["n_critic_5"])
    assert FIVE.fullmatch(f"{told['times clean']} ({told['verdict']})") and "GPU ms" not in told


def test_the_picture_of_a_study_turns_the_answers_of_both_clocks(made: dict[str, Any]) -> None:
    columns = panels.columns_of(view(typed(made)))
    words = {column.heading: [line.text for line in column.cells[3]] for column in columns}
    assert words["times clean"][0] == "2.14x (slower)" and FIVE.fullmatch(words["times clean"][1])
    assert words[""] == ["GPU", "step"]
    assert [float(each.split("-")[0]) > 2 for each in words["interval"]] == [True, True]


def test_updates_of_d_are_told_per_update_of_g_and_per_image(made: dict[str, Any]) -> None:
    shown = view(typed(made))
    five, clean = rows(shown)["n_critic_5"], rows(shown)["clean"]
    assert five.cost.image_ms == pytest.approx((five.step_ms or 0) / 40) and five.cost.updates == 5
    assert clean.cost.image_ms == pytest.approx((clean.step_ms or 0) / 8)
    assert (
        cells(shown, five)["ms/image"] == f"{five.cost.image_ms:.2f}"
        and cells(shown, five)["parity"] == "exempt"
    )
    assert f"n_critic_5: exempt from parity: {mistakes.ANOTHER}" in shown.remarks


def test_levers_are_marked_and_have_flops_and_parameters() -> None:
    shown = view(typed(study("levers", MODELS)))
    told = cells(shown, rows(shown)["separable"])
    assert told["times unchanged (step)"] == told["times unchanged (GPU)"] == "0.50x (faster)"
    assert told["GFLOP/step"] == "2,900" and told["parameters, M"] == "48.0" and "total" not in told
    below = "\n".join(tables.lines_below(shown))
    assert beside.MARKED in below and "no optimizations" in shown.title
    assert "3x3 of each channel by itself, then 1x1" in below


def test_a_study_is_a_valid_result_and_its_files_are_drawn(made: dict[str, Any], tmp_path: Path) -> None:
    for data in (made, study("levers", MODELS)):
        assert problem_of(data) is None
        result = typed(data)
        assert f"### {result.ladder.title}".replace("_", "\\_") in tables.markdown(result)
        assert len(tables.csv_text([result]).splitlines()) == 1 + len(data["rungs"])
        assert chart.render(result, "svg").startswith(b"<?xml")
        assert gallery.name_files(result).startswith(f"nvidia-h200-article-{data['protocol']['mode']}")
        assert gallery.name_files(result).count(data["protocol"]["mode"]) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["ladder"].update(name="article"), "mode mistakes measures clean"),
        (lambda d: d["rungs"][3]["variant"].update(updates=0), "variant.updates"),
        (lambda d: d["rungs"][3]["variant"].update(path="/home"), "variant"),
        (lambda d: d["rungs"][3]["variant"].update(exempt="<b>"), "variant.exempt"),
        (lambda d: d["protocol"].update(mode="tricks"), "protocol.mode"),
    ],
)
def test_a_study_that_contradicts_itself_is_refused(change: Any, says: str) -> None:
    data = study("mistakes", TIMES)
    change(data)
    assert says in (problem_of(data) or "")


def test_a_lever_is_held_to_the_floor_of_its_own_model() -> None:
    data = study("levers", MODELS | {"separable": 0.9})
    assert problem_of(data) is None
    data["rungs"][1]["variant"]["workload"] = {}
    assert "faster than this GPU can compute" in (problem_of(data) or "")


@pytest.mark.parametrize("mode", ["mistakes", "levers", "recipe"])
def test_no_staircase_is_made_of_a_study(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = study(mode if mode != "recipe" else "mistakes", TIMES if mode != "levers" else MODELS)
    data["protocol"]["mode"] = mode
    result = typed(data)
    assert ranking.mode(result) == mode
    path = tmp_path / "nvidia-h200" / "run.json"
    path.parent.mkdir()
    monkeypatch.setattr(ranking, "stored", lambda folder, names: [(path, result)])
    with pytest.raises(UserError, match="no stored result"):
        nearest.find(tmp_path, None)
    monkeypatch.setattr(nearest.loading, "load_run", lambda path: result)
    with pytest.raises(UserError, match="a run of --" + ("recipe" if mode == "recipe" else f"mode {mode}")):
        nearest.of_file(path)


def test_foreign_names_and_first_entries_have_no_reason() -> None:
    assert entries.why("mistakes", "clean") == entries.why("levers", "x") == entries.why("solo", "bf16") == ""
    assert entries.sentence("levers", "half_width", Seen(), Seen(), waits=True) == ""
    few = Seen("too few generations")
    assert entries.sentence("mistakes", "clean", few, few, waits=True) == "too few generations for a verdict"


def test_a_document_s_table_has_every_entry(made: dict[str, Any], tmp_path: Path) -> None:
    made["workload"] |= {"channel_base": 16384}
    write_run(tmp_path / "results/ladder/nvidia-h200/article-mistakes-20261121T101500Z.json", made)
    text = ladders.render_beside(Committed(tmp_path), "nvidia-h200/article/mistakes/mistakes")
    assert "| entry | ms/step |" in text and "| times clean (GPU) |" in text and "| 1.20x (slower) |" in text
