"""Results of `mistakes`, `levers` and `recipe`: judged beside the first entry, shown, validated, and no staircase."""

import random
from pathlib import Path
from typing import Any

import pytest

from ladder.base.errors import UserError
from ladder.plan import levers, mistakes
from ladder.publish import gallery
from ladder.publish.pages import ladders
from ladder.publish.pages.committed import Committed
from ladder.report import beside, chart, entries, tables
from ladder.report.view import Row, View, view
from ladder.results import check, judging, ranking
from ladder.results import store as results
from ladder.results.combine import nearest
from ladder.results.types import Result, build
from ladder.results.words import Seen
from tests.support import made_up, typed

TIMES = {"clean": 70.0, "item_each_step": 84.0, "fp16_unmonitored": 70.4, "n_critic_5": 350.0}
MODELS = {"unchanged": 26.0, "separable": 13.0, "half_width": 11.0}


def study(mode: str, times: dict[str, float], seed: int = 0) -> dict[str, Any]:
    """A judged result of a study, with GPU times in the first generation alone where that is so."""
    rng = random.Random(seed)
    known = {m.name: m for m in mistakes.MISTAKES}
    made = made_up.result([made_up.rung(name, ms, 0.3) for name, ms in times.items()])
    made["protocol"]["mode"] = mode
    made["ladder"] |= {"name": mode, "title": mistakes.TITLE if mode == "mistakes" else levers.TITLE}
    made["workload"] |= {"channel_base": 16384}
    for record in made["rungs"]:
        name, first = record["name"], record is made["rungs"][0]
        record["inspection"] = {"error": None} | (
            {"flops": 2.9e12, "parameters": 48_000_000} if mode == "levers" else {}
        )
        record["receipts"] = {name: {"engaged": True, "lines": ["calls: 2 a step"]}}
        exempt = known[name].exempt if name in known else None if first else levers.EXEMPT
        work = {"convolution": "separable"} if name == "separable" else {}
        updates = known[name].updates if name in known else 1
        if not (first and mode == "mistakes"):
            record["variant"] = {"exempt": exempt, "updates": updates, "workload": work}
        record["rounds"] = rounds(record["step_ms"], rng, 1 if mode == "mistakes" else 3)
        record["host_bound"] = None
    twin = judging.new_twin(made["rungs"][0])
    made["twins"] = [twin]
    twin.update(status="ok", rounds=rounds(made["rungs"][0]["step_ms"], rng, 1))
    typed.derived(made)
    typed.judged(made)
    return made


def rounds(ms: float, rng: random.Random, profiled: int) -> list[dict[str, Any]]:
    found = made_up.rounds(ms, 0.3, rng)[:3]
    for number, each in enumerate(found):
        each["passes"] = list(range(len(each["samples_ms"])))
        if number < profiled:
            each["profiled"] = [{"gpu_ms": ms * 0.6, "wall_ms": ms, "kernels": 900.0, "sm_mhz": None}]
            each["gpu_void"] = None
    return found


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return study("mistakes", TIMES)


def rows(shown: View) -> dict[str, Row]:
    return {row.name: row for row in shown.rows}


def cells(shown: View, row: Row) -> dict[str, str]:
    return {heading: cell(row) for heading, cell in tables.columns_of(shown)}


def test_a_mistake_is_told_in_times_of_the_clean_step(made: dict[str, Any]) -> None:
    result = build(Result, made)
    shown = view(result)
    item = rows(shown)["item_each_step"]
    assert judging.pairs(result) == [(name, "clean", name) for name in TIMES if name != "clean"]
    told = cells(shown, item)
    assert told["times clean"] == "1.20x" and told["verdict"] == "slower" and told["times (GPU)"] == "1.20x"
    low, high = map(float, told["interval"].split("-"))
    assert low < 1.2 < high
    assert item.sentence == (
        "the step is 1.20x slower: to read a loss the CPU waits for the GPU, which then waits for the next launches"
    )
    assert told["in force"] == "ok" and told["GPU ms"] == "50.40" and told["waits, ms"]
    assert item.gpu is not None and not item.gpu.verdict  # one generation was profiled
    assert shown.baseline == "clean" and not any("speedups refer" in each for each in shown.remarks)


def test_updates_of_d_are_told_per_update_of_g_and_per_image(made: dict[str, Any]) -> None:
    shown = view(build(Result, made))
    five, clean = rows(shown)["n_critic_5"], rows(shown)["clean"]
    assert five.cost.image_ms == pytest.approx((five.step_ms or 0) / 40) and five.cost.updates == 5
    assert clean.cost.image_ms == pytest.approx((clean.step_ms or 0) / 8)
    assert (
        cells(shown, five)["ms/image"] == f"{five.cost.image_ms:.2f}"
        and cells(shown, five)["parity"] == "exempt"
    )
    assert f"n_critic_5: exempt from parity: {mistakes.ANOTHER}" in shown.remarks


def test_levers_are_marked_and_have_flops_and_parameters() -> None:
    shown = view(build(Result, study("levers", MODELS)))
    told = cells(shown, rows(shown)["separable"])
    assert told["times unchanged"] == "0.50x" and told["verdict"] == "faster"
    assert told["GFLOP/step"] == "2,900" and told["parameters, M"] == "48.0" and "total" not in told
    below = "\n".join(tables.lines_below(shown))
    assert beside.MARKED in below and "no optimizations" in shown.title
    assert "3x3 of each channel by itself, then 1x1" in below


def test_a_study_is_a_valid_result_and_its_files_are_drawn(made: dict[str, Any], tmp_path: Path) -> None:
    for data in (made, study("levers", MODELS)):
        assert check.problem_of(data) is None
        result = build(Result, data)
        assert f"### {result.ladder.title}".replace("_", "\\_") in tables.markdown(result)
        assert len(tables.csv_text([result]).splitlines()) == 1 + len(data["rungs"])
        assert chart.render(result, "svg").startswith(b"<?xml")
        assert gallery.stem(result).startswith(f"nvidia-h200-article-{data['protocol']['mode']}")
        assert gallery.stem(result).count(data["protocol"]["mode"]) == 1


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
    assert says in (check.problem_of(data) or "")


def test_a_lever_is_held_to_the_floor_of_its_own_model() -> None:
    data = study("levers", MODELS | {"separable": 0.9})
    assert check.problem_of(data) is None
    data["rungs"][1]["variant"]["workload"] = {}
    assert "faster than this GPU can compute" in (check.problem_of(data) or "")


@pytest.mark.parametrize("mode", ["mistakes", "levers", "recipe"])
def test_no_staircase_is_made_of_a_study(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = study(mode if mode != "recipe" else "mistakes", TIMES if mode != "levers" else MODELS)
    data["protocol"]["mode"] = mode
    result = build(Result, data)
    assert ranking.mode(result) == mode
    path = tmp_path / "nvidia-h200" / "run.json"
    path.parent.mkdir()
    monkeypatch.setattr(ranking, "stored", lambda folder, names: [(path, result)])
    with pytest.raises(UserError, match="no stored result"):
        nearest.find(tmp_path, None)
    monkeypatch.setattr(nearest.results, "load", lambda path: result)
    with pytest.raises(UserError, match="a run of --" + ("recipe" if mode == "recipe" else f"mode {mode}")):
        nearest.of_file(path)


def test_foreign_names_and_first_entries_have_no_reason() -> None:
    assert entries.why("mistakes", "clean") == entries.why("levers", "x") == entries.why("solo", "bf16") == ""
    assert entries.sentence("levers", "half_width", Seen()) == ""
    assert (
        entries.sentence("mistakes", "clean", Seen("too few generations"))
        == "too few generations for a verdict"
    )


def test_a_document_s_table_has_every_entry_and_its_sentence(made: dict[str, Any], tmp_path: Path) -> None:
    results.write(tmp_path / "results/ladder/nvidia-h200/article-mistakes-20261121T101500Z.json", made)
    text = ladders.beside(Committed(tmp_path), "nvidia-h200/article/mistakes/mistakes")
    assert "| entry | ms/step |" in text and "1.20x" in text
    assert "- item\\_each\\_step: the step is 1.20x slower: to read a loss" in text
