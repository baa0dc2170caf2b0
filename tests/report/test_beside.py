"""Results of `mistakes`, `levers` and `recipe`: judged beside the first entry, shown, validated, and no staircase."""

import re
from pathlib import Path
from typing import Any

import pytest

from ladder.core.errors import UserError
from ladder.publish import gallery
from ladder.report import chart, tables
from ladder.report.view import Row, View, describe_gain, view
from ladder.results import judging, ranking
from ladder.results.combine import series
from ladder.results.words import Seen
from tests.support.made_up_study import MODELS, TIMES, study
from tests.support.typed import problem_of, typed

FIVE = re.compile(r"(4\.9|5\.0)\dx \(slower\)")  # times the clean step, but for the noise


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return study("mistakes", TIMES)


def rows(shown: View) -> dict[str, Row]:
    return {row.name: row for row in shown.rows}


def cells(shown: View, name: str) -> dict[str, str]:
    table = tables.tabulate(shown)
    row = next(row for row in table.format_cells() if row[0] == name)
    return dict(zip([column.heading for column in table.columns], row, strict=True))


def test_a_mistake_is_told_in_times_of_the_clean_step_by_both_clocks(made: dict[str, Any]) -> None:
    result = typed(made)
    shown = view(result)
    assert judging.pairs(result) == [(name, "clean", name) for name in TIMES if name != "clean"]
    told = cells(shown, "n_critic_5")
    assert FIVE.fullmatch(told["times clean (step)"]) and told["times clean (GPU)"] == "2.14x (slower)"
    low, high = map(float, told["interval (GPU)"].rstrip("x").split("-"))
    assert 2.1 < low < 90 / 42 < high < 2.2
    low, high = map(float, told["interval (step)"].rstrip("x").split("-"))
    assert low < 5 < high
    assert (
        told["ms/image"] == f"{(rows(shown)['n_critic_5'].step_ms or 0) / 40:.2f}"
    )  # 5 updates of D, 8 images each
    assert told["parity"] == "exempt" and any(
        "n_critic_5: exempt from parity" in each for each in shown.remarks
    )
    told = cells(shown, "fp16_unmonitored")
    assert told["times clean (GPU)"] == "0.82x (faster)" and told["in force"] == "ok"
    assert told["times clean (step)"].startswith("less than ")
    assert told["GPU ms"].startswith("34.") and told["waiting (ms)"].startswith("36.")
    assert rows(shown)["fp16_unmonitored"].sentence.startswith("the GPU's work is 0.82x (faster); the step ")
    assert shown.baseline == "clean" and not any("speedups refer" in each for each in shown.remarks)


def test_a_step_that_its_host_hides_leaves_the_gpu_s_work_to_tell() -> None:
    """The step of a real host: 31% of difference are possible. The GPU's work is known within a percent."""
    work = Seen("slower", 1.13, times=True), Seen("less than", 1 / 1.1, 0.27)
    assert describe_gain(*work, waits=True) == (
        "the GPU's work is 1.13x (slower); the step changes by less than 31%, the CPU sets the pace"
    )


def test_levers_are_marked_and_have_flops_and_parameters() -> None:
    shown = view(typed(study("levers", MODELS)))
    told = cells(shown, "separable")
    assert told["times unchanged (step)"] == told["times unchanged (GPU)"] == "0.50x (faster)"
    assert told["GFLOP/step"] == "2,900" and told["parameters, M"] == "48.0" and "total" not in told
    below = "\n".join(tables.list_notes(shown))
    assert tables.MARKED in below and "3x3 of each channel by itself, then 1x1" in below


def test_a_study_is_a_valid_result_and_its_files_are_drawn(made: dict[str, Any]) -> None:
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
        series.find_nearest(tmp_path, None)
    monkeypatch.setattr(series.loading, "load_run", lambda path: result)
    with pytest.raises(UserError, match="a run of --" + ("recipe" if mode == "recipe" else f"mode {mode}")):
        series.read_nearest(path)
