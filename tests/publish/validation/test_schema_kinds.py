"""`ladder validate` of what is no ladder: kernels and tunings are judged as strictly, others are named."""

import json
from pathlib import Path

import pytest

from ladder.base.records import plain
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
    return json.loads(json.dumps(plain(made_up_kernels.result(rows))))


def test_kernels_are_accepted_or_say_what_is_wrong(tmp_path, kernels):
    assert judge(tmp_path, kernels) is None
    for path, value, says in (
        ("rows 0 where", "/home/x", "rows[0]: unknown key 'where'"),
        ("rows 1 samples_us cold ours 0", "x", "rows[1].samples_us.cold.ours[0]: 'x' is not a number"),
        ("rows 0 us cold ours median", 1e6, "the median of ours is not among its samples"),
        ("machine name", "nvidia-b200", "is not made from its hardware"),
        ("protocol notes", ["<b>"], "protocol.notes[0]"),
    ):
        changed = json.loads(json.dumps(kernels))
        *way, last = (int(each) if each.isdigit() else each for each in path.split())
        holder = changed
        for key in way:
            holder = holder[key]
        holder[last] = value
        assert says in judge(tmp_path, changed)


def test_commits_that_contradict_each_other_are_refused_in_a_result_of_a_study(tmp_path, kernels):
    twice = kernels | {"commits": [kernels["commit"]] * 2}
    assert judge(tmp_path, twice) == "commits: not several, the result's own among them"


def test_a_tuning_is_accepted_or_says_what_is_wrong(tmp_path):
    assert validate.problem_of(TUNING) is None
    changed = json.loads(TUNING.read_text())
    changed["timed"][0]["choice"]["tile"] = "2048"
    assert judge(tmp_path, changed) == "timed[0].choice.tile: '2048' is not a whole number"


def test_a_tuning_of_filters_is_accepted_or_says_what_is_wrong(tmp_path):
    path = TUNING.with_name("nvidia-h200-filter-tuning.json")
    assert validate.problem_of(path) is None
    changed = json.loads(path.read_text())
    changed["timed"][0]["config"]["rows"] = "8"
    assert judge(tmp_path, changed).startswith("timed[0].config.rows: '8' is not")


def test_why_not_to_quote_them_is_said(tmp_path, kernels):
    kernels["protocol"]["notes"] = ["quick: not to be quoted"]
    (tmp_path / "a.json").write_text(json.dumps(kernels))
    (judged,) = validate.validate([tmp_path / "a.json"])
    assert judged.verdict == "accepted; quick: not to be quoted"
