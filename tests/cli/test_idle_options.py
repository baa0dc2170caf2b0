"""An option that a request does not read is refused in one line: its user would take the result for another one."""

import pytest
from click.testing import CliRunner

from ladder.base.errors import UserError
from ladder.cli import climb
from ladder.cli.main import main
from tests.cli.test_run_studies import request
from tests.support import made_up
from tests.support.made_up_study import TIMES, study
from tests.support.typed import write_run

WEAK = ("scale", "flat", "--out", "x", "--device", "cpu", "--gpus", "1", "--scaling", "weak")
CANARY = ("train", "--canary", "--out", "x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*WEAK, "--total", "16"), "--total is for --scaling strong"),
        ((*CANARY, "--seed", "3"), "--seed is for a single training"),
        ((*CANARY, "--truncation", "0.7"), "--truncation is for a single training"),
        (("train", "--out", "x", "--seeds", "5"), "--seeds is for --canary"),
        (("bench-compare", "--report", "x.json", "--rounds", "5"), "--generations has no effect"),
        (("bench-compare", "--report", "x.json", "-w", "tiny"), "--workload has no effect"),
        (("run", "--without", "bf16", "--mode", "solo"), "leave out --rungs, --mode and --recipe"),
        (("doctor", "--roofline", "--gpu", "h200", "--device", "cpu"), "--device has no effect"),
        (("report", "--publish", "--price", "2/h"), "leave out every other option"),
    ],
)  # fmt: skip
def test_an_option_without_effect_is_one_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for writes in ("publish.gallery.publish",):  # into results/
        monkeypatch.setattr(f"ladder.{writes}", None)
    said = CliRunner().invoke(main, [*arguments])
    assert said.exit_code == 2 and words in said.stderr and said.stderr.count("\n") == 1, said.output
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"ladder": "full"}, "that run has another --ladder"),
        ({"cycles": 7}, "that run has another --cycles"),
        ({"budget": 30.0}, "that run has a fixed number of generations: give --generations"),
    ],
)
def test_a_run_that_goes_on_refuses_what_its_file_decides(asked, words, tmp_path):
    made = made_up.judged_run(seed=1)
    made["protocol"] |= {"fixed": True, "budget_s": None}
    write_run(tmp_path / "r.json", made)
    goes_on = {"resume": tmp_path / "r.json", "ladder": made["ladder"]["name"]}
    with pytest.raises(UserError, match=words):
        climb.continued(request(**goes_on | asked))
    assert climb.continued(request(**goes_on, cycles=made["protocol"]["cycles"], rounds=9)).rounds == 9


def test_a_study_goes_on_with_the_ladder_that_it_was_begun_with(tmp_path):
    write_run(tmp_path / "r.json", study("mistakes", TIMES))
    for ladder in ("article", None):
        goes_on = climb.continued(request(resume=tmp_path / "r.json", ladder=ladder, mode=None))
        assert goes_on.mode == "mistakes"


def test_a_run_of_a_ladder_that_is_not_here_asks_for_it(tmp_path):
    made = made_up.judged_run(seed=1)
    made["ladder"]["name"] = "gone"
    write_run(tmp_path / "r.json", made)
    with pytest.raises(UserError, match="its ladder is a file of yours, or gone; name it with --ladder"):
        climb.continued(request(resume=tmp_path / "r.json", ladder=None))


def test_a_run_goes_on_in_its_own_folder(tmp_path):
    path = tmp_path / "here" / "m" / "r.json"
    said = CliRunner().invoke(main, ["run", "--resume", str(path), "--out", str(tmp_path / "there")])
    assert said.exit_code == 2 and "goes on in its own file: leave out --out" in said.stderr
