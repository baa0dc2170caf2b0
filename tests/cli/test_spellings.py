import json

from ladder import spellings
from ladder.machine import system
from ladder.plan import catalog

STEP = {"G_main": 30.0, "D_main": 40.0, "G_pl": 80.0, "D_r1": 160.0, "main": 70.0, "step": 100.0}


def test_every_spelling_of_the_recipe_is_in_the_baseline_table():
    rows = list(spellings.spellings("demod", "FP32 NCHW"))
    assert len(rows) == 10 and len({json.dumps(row) for row in rows}) == 10
    assert {"modconv": "grouped", "resample": "folded"} in rows
    assert {"instance_norm": "var_mean", "resample": "bilinear"} in list(
        spellings.spellings("instance", "FP32 NCHW")
    )


def test_a_row_that_cannot_run_says_why_and_the_others_go_on(monkeypatch):
    def fake(workload, recipe, device, seconds):
        if recipe["resample"] == "bilinear":
            raise RuntimeError("no kernel | here\nsecond line")
        return STEP | {"step": {"depthwise": 600.0, "subpixel": 99.0}.get(recipe["resample"], 120.0)}

    monkeypatch.setattr(spellings, "time_phases", fake)
    monkeypatch.setattr(system, "facts", lambda device: {"name": "x", "gpu": "X", "cpu": "Y", "torch": "2"})
    name, workload = catalog.load_workload("tiny")
    data = spellings.result(name, workload, "cpu")
    failed = [row for row in data["rows"] if row["ms"] is None]
    assert {row["reason"] for row in failed} == {"no kernel | here"} and len(failed) < len(data["rows"])
    text = spellings.markdown(data)
    first = text.split("## FP32 NCHW")[1].splitlines()[4]
    assert "subpixel" in first and "**99.0**" in first
    assert "no kernel / here" in text


def test_a_spelling_is_timed_phase_by_phase():
    _, workload = catalog.load_workload("tiny")
    times = spellings.time_phases(workload | {"resolution": 16}, {"resample": "subpixel"}, "cpu", 0.0)
    assert set(times) == set(STEP)
    assert times["step"] == times["main"] + times["G_pl"] / 4 + times["D_r1"] / 16
