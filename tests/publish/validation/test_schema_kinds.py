"""`ladder validate` of what is no ladder: kernels and tunings are judged as strictly, others are named."""

import json
from pathlib import Path

import pytest

from ladder.core.records import write_record
from ladder.publish.validation import validate
from tests.support import committed, made_up_kernels
from tests.support.judging_files import judge

ROOT = Path(__file__).parents[3]
TUNING = committed.file("results/kernels/nvidia-h200-tuning.json")


@pytest.fixture
def kernels():
    rows = [
        made_up_kernels.row(case, d)
        for case in made_up_kernels.cases(quick=True)[:2]
        for d in case.directions
    ]
    return json.loads(json.dumps(write_record(made_up_kernels.file(rows))))


def test_kernels_are_accepted_or_say_what_is_wrong(tmp_path, kernels):
    assert judge(tmp_path, kernels) is None
    key, row = next(iter(kernels["observed"])), "rows[0]"
    for change, says in (
        (lambda rows: rows[0].update(where="/home/x"), f"observed.{key}.{row}: unknown key 'where'"),
        (
            lambda rows: rows[0]["samples_us"]["cold"].update(ours=["x"]),
            "samples_us.cold.ours[0]: 'x' is not a number",
        ),
        (lambda rows: rows[0].update(notes=["<b>"]), "notes[0]"),
        (lambda rows: rows.pop(), "ok without every direction"),
    ):
        changed = json.loads(json.dumps(kernels))
        change(changed["observed"][key]["rows"])
        assert says in judge(tmp_path, changed)
    kernels["machine"]["name"] = "nvidia-b200"
    assert "is not made from its hardware" in judge(tmp_path, kernels)


def test_commits_that_contradict_each_other_are_refused_in_a_result_of_a_study(tmp_path, kernels):
    twice = kernels | {"commits": [kernels["commit"]] * 2}
    assert judge(tmp_path, twice) == "commits: not several, the result's own among them"


def test_a_tuning_is_accepted_or_says_what_is_wrong(tmp_path):
    assert validate.problem_of(TUNING) is None
    changed = json.loads(TUNING.read_text())
    changed["timed"][0]["choice"]["tile"] = "2048"
    assert judge(tmp_path, changed) == "timed[0].choice.tile: '2048' is not a number from 0 to 1e+09"


def test_a_tuning_of_filters_is_accepted_or_says_what_is_wrong(tmp_path):
    path = TUNING.with_name("nvidia-h200-filter-tuning.json")
    assert validate.problem_of(path) is None
    changed = json.loads(path.read_text())
    changed["timed"][0]["config"]["rows"] = "8"
    assert judge(tmp_path, changed).startswith("timed[0].config.rows: '8' is not")


def test_why_not_to_quote_them_is_said(tmp_path, kernels):
    kernels["options"]["quick"] = True
    (tmp_path / "a.json").write_text(json.dumps(kernels))
    (judged,) = validate.validate([tmp_path / "a.json"])
    assert judged.verdict == "accepted; quick: not to be quoted"
