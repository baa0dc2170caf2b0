"""The trial of parity's factor: each spelling against the others, as parity judges."""

import json

import pytest
import torch

from ladder.parity import check as parity
from ladder.parity import trial as paritytrial
from ladder.parity.budget import FACTOR, budgets, worst
from stylegan_lite.config import Workload
from tests.support import committed
from tests.support.commands import call, refused
from tests.support.small import LITTLE


def spelling(loss: float, weight: tuple[float, float]) -> list[dict[str, float]]:
    """Two replays of one loss and two weights; the second weight is as everywhere."""
    return [
        {"D_r1/loss/loss": loss, "D_r1/gradient/a.weight": one, "D_r1/gradient/b.weight": 1e-3}
        for one in weight
    ]


def test_a_spelling_that_strays_from_the_others_needs_a_factor():
    runs = {
        "a": spelling(1e-3, (1e-3, 1e-3)),
        "b": spelling(1e-3, (2e-3, 9e-3)),
        "c": spelling(3e-3, (1e-3, 1e-3)),
    }
    rows = {row["spelling"]: row for row in paritytrial.left_one_out(runs, "fp32")}
    assert rows["b"]["ratio"] == pytest.approx(
        2.0
    )  # the better of its replays against the worst of the others'
    assert rows["b"]["nearest"] == "D_r1/gradient/a.weight" and rows["b"]["error"] == 2e-3
    assert rows["c"]["ratio"] == rows["c"]["whole"] == pytest.approx(3.0)
    assert rows["a"]["ratio"] == pytest.approx(1 / 3, abs=1e-3) and rows["a"]["judged"] == 3


@pytest.mark.parametrize("errors, whole", [((2e-3, 9e-3), False), ((2e-3, 9e-3), True), ((1e-3, 0.6), True)])
def test_the_ratio_is_the_smallest_factor_with_which_parity_passes(errors, whole):
    key = "D_r1/loss/loss" if whole else "D_r1/gradient/a.weight"
    others = {key: 1e-3}
    least = paritytrial.ratio(errors, budgets(others, "fp32", 1.0)[key], whole)
    for factor, passes in ((least * 1.01, True), (least * 0.99, False)):
        budget = {key: factor * others[key]}
        assert (parity.judge([{key: e} for e in errors], budget, others) == []) == passes


def test_the_command_tries_both_precisions_and_writes_what_it_found(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    fields = Workload.from_dict(LITTLE).to_dict()
    monkeypatch.setattr(paritytrial, "named", lambda *_: [("small", fields)])
    said = []
    found, path = paritytrial.run((), "cpu", cache=tmp_path / "cache", out=tmp_path / "out", tell=said.append)
    assert [(t["precision"], len(t["spellings"])) for t in found["trials"]] == [("fp32", 5), ("bf16", 5)]
    assert found["cases"] == 10 and 0.5 < found["worst"] <= FACTOR
    assert "small, bf16: budget, D_r1, replay 2" in said
    stored = json.loads(path.read_text())
    assert stored["worst"] == found["worst"] and str(tmp_path) not in path.read_text()
    assert "| ratio |" in path.with_suffix(".md").read_text()
    text = paritytrial.text(found)
    assert f"worst ratio {found['worst']:.2f} in 10 cases, within" in text


def test_the_worst_of_all_spellings_is_what_the_budget_is_made_of():
    runs = {"a": spelling(1e-3, (1e-3, 4e-3)), "b": spelling(2e-3, (3e-3, 2e-3))}
    assert worst(runs)["D_r1/gradient/a.weight"] == 4e-3 and worst(runs)["D_r1/loss/loss"] == 2e-3


def test_a_workload_without_the_trial_is_refused(monkeypatch):
    assert "--parity-trial" in refused("doctor", "--workload", "tiny")


def test_honest_code_that_fails_is_status_1(monkeypatch):
    row = {"spelling": "a", "ratio": 9.0, "nearest": "x"}
    trial = {"workload": "w", "precision": "fp32", "spellings": [row]}
    found = {"worst": 9.0, "factor": 2.5, "cases": 1, "trials": [trial]}
    monkeypatch.setattr(paritytrial, "run", lambda *_, **__: (found, paritytrial.OUT / "x.json"))
    seen = call("doctor", "--parity-trial", "--device", "cpu")
    assert seen.exit_code == 1 and "OUTSIDE the factor 2.5" in seen.stdout


def test_the_factor_is_wide_enough_in_every_trial_that_is_kept():
    trials = committed.folder(paritytrial.OUT.relative_to(committed.ROOT).as_posix())
    kept = {path.name: json.loads(path.read_text()) for path in trials.glob("*-trial.json")}
    assert kept and all(found["worst"] <= FACTOR == found["factor"] for found in kept.values())
