"""Which code a number depends on: what changes its digest, and what rounds of two commits may do for that."""

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest

from ladder.core.errors import UserError
from ladder.publish.validation import validate
from ladder.results import code_digest, derive, loading, sources
from ladder.results.combine import merging, series
from ladder.stats import estimates
from tests.cli.test_cli import call, refused
from tests.results.combine.test_merging import cut, run, rung, write
from tests.results.test_judging import planned
from tests.support import typed
from tests.support.typed import Reading, untyped

derive = Reading(derive)
merging = Reading(merging)
series = Reading(series)
sources = Reading(sources)

ROOT = Path(__file__).resolve().parents[2]
ONE, OTHER, THIRD = ("1" * 40, "2" * 40, "3" * 40)
CODE = code_digest.digests()


def at(made, commit, **changed):
    """The run as if it had been measured at `commit`, with other digests of the parts that were `changed`."""
    return made | {"commit": commit, code_digest.KEY: CODE | changed}


# --- what changes the digest ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkout")
    for package in ("kernels", "stylegan_lite", "ladder"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    return root


TIMED = {"kernels/pointwise/bias_act.py": "kernels", "stylegan_lite/step/training.py": "stylegan_lite"}


def test_a_digest_changes_with_what_is_timed(checkout):
    before = code_digest.digests(checkout)
    assert before == CODE and len(set(before.values())) == 4
    for name, part in TIMED.items():
        path = checkout / name
        text = path.read_bytes()
        path.write_bytes(text + b"import os  # another comment\n")
        assert code_digest.digests(checkout) == before
        path.write_bytes(text + b"slower = True\n")
        after = code_digest.digests(checkout)
        assert [key for key in before if after[key] != before[key]] == [part], name
        path.write_bytes(text)
    (checkout / "kernels" / "another.py").write_text("")
    assert code_digest.digests(checkout)["kernels"] != before["kernels"]
    (checkout / "kernels" / "another.py").rename(checkout / "kernels" / "renamed.py")
    assert len({code_digest.digests(root)["kernels"] for root in (checkout, ROOT)}) == 2
    (checkout / "kernels" / "renamed.py").rename(checkout / "kernels" / "test_ops.py")
    assert code_digest.digests(checkout) == before
    (checkout / "kernels" / "test_ops.py").unlink()
    (checkout / "kernels" / "README.md").write_text("a page\n")
    assert code_digest.digests(checkout) == before


@pytest.mark.parametrize(
    ("name", "was", "now", "counts"),
    [
        ("rungs/bf16.py", '{"precision": "bf16"}', '{"precision": "fp16"}', True),
        ("rungs/bf16.py", 'needs = ("bf16",)', "needs = ()", True),
        ("rungs/data_loading.py", "os.cpu_count() or 1", "1", True),  # what a change is made of
        ("ladders/full.yaml", "- bf16: 158\n  - fused_norm: 131", "- fused_norm: 131\n  - bf16: 158", True),
        ("ladders/compile.yaml", "rival: full", "rival: article", True),
        ("rungs/fused_norm.py", "def receipt", "OTHER = 1\n\n\ndef receipt", False),
        ("rungs/fused_norm.py", "return judge(", "return judge((True, ''), ", False),
        ("rungs/bf16.py", '"""', '"""Taught in other words. ', False),
        ("ladders/full.yaml", "title: The", "title: Other words, the", False),
        ("ladders/full.yaml", "baseline: 312", "baseline: 313", False),
        ("results/judging.py", "import itertools", "slower = True\nimport itertools", False),
        ("parity/check.py", "from __future__", "slower = True\nfrom __future__", False),
    ],
)
def test_a_rung_is_what_it_changes_and_needs_and_a_ladder_its_order(name, was, now, counts, checkout):
    path = checkout / "ladder" / name
    text = path.read_text()
    assert was in text
    path.write_text(text.replace(was, now, 1))
    digests = code_digest.digests(checkout)
    path.write_text(text)
    assert [key for key in CODE if digests[key] != CODE[key]] == ["rungs"] * counts


def test_the_packages_that_are_measured_may_come_from_elsewhere(tmp_path):
    (tmp_path / "stylegan_lite").mkdir()
    (tmp_path / "stylegan_lite" / "__init__.py").write_text("CONTRACT = 1\n")
    found = code_digest.digests(code=tmp_path)
    assert [part for part in CODE if found[part] == CODE[part]] == ["rungs", "engine"]


# --- rounds of two commits ------------------------------------------------------------------------------------------


def test_rounds_of_two_commits_that_measured_the_same_are_one_result_that_names_both(tmp_path):
    paths = write(tmp_path, at(run(1), ONE), at(run(2), OTHER))
    out = tmp_path / "whole.json"
    said = call("merge", *paths, "--out", out)
    assert said.exit_code == 0 and "commits 1111111111, 2222222222, 2026" in said.stdout
    assert "not publishable" not in said.stdout and validate.problem_of(out) is None
    merged = untyped(loading.load_run(out))
    assert merged["commit"] == OTHER and merged["commits"] == [ONE, OTHER]
    assert merged[code_digest.KEY] == CODE and rung(merged, "fused_act")["gain"]["rounds"] == 10
    assert len(merged["merged"]) == 2
    csv = tmp_path / "table.csv"
    assert call("report", out, "--csv", csv, "--chart", tmp_path / "chart.png").exit_code == 0
    assert f"{ONE} {OTHER}" in csv.read_text()
    third = write(tmp_path, at(run(3), THIRD), name="third")
    again = merging.merge([out, *third])
    assert again["commits"] == [ONE, OTHER, THIRD] and sources.end(again) == 15
    assert again["rungs"] == merging.merge([*paths, *third])["rungs"]
    assert "commits 1111111111, 2222222222" in call("compare", out, *third).stdout
    assert "visits of one run are in both" in call("compare", out, paths[0]).stderr


@pytest.mark.parametrize("part", CODE)
def test_other_measured_code_is_refused_in_one_line_that_says_which(part, tmp_path):
    paths = write(tmp_path, at(run(1), ONE), at(run(2), OTHER, **{part: "0" * 16}))
    for more in ((), ("--anyway",)):
        line = refused("merge", *paths, "--out", tmp_path / "out.json", *more)
        assert f"measured_code.{part}: {CODE[part]} and {'0' * 16}" in line
        assert "--anyway" not in line and not (tmp_path / "out.json").exists()
    same = write(tmp_path, at(run(1), ONE), at(run(2), ONE, **{part: "0" * 16}), name="changed")
    line = refused("merge", *same)  # of one commit, of which one was changed before it was measured
    assert f"measured_code.{part}: " in line and "commit" not in line


def test_a_result_without_digests_merges_with_its_own_commit_alone(tmp_path):
    old = run(1) | {"commit": ONE}
    assert f"commit: {ONE} and {OTHER}" in refused("merge", *write(tmp_path, old, at(run(2), OTHER)))
    merged = merging.merge(write(tmp_path, old, at(run(2), ONE)))
    assert merged["commit"] == ONE and merged[code_digest.KEY] is merged["commits"] is None
    several = merging.merge(write(tmp_path, at(run(2), ONE), at(run(3), OTHER)))
    (path,) = write(tmp_path, several, name="several")
    assert f"commit: {ONE} and {ONE}, {OTHER}" in refused("merge", *write(tmp_path, old, name="old"), path)


def test_code_that_was_never_committed_merges_by_its_digests_and_stays_marked(tmp_path):
    for changed in ({"commit": None, "dirty": None}, {"dirty": True}):
        paths = write(tmp_path, at(run(1), ONE) | changed, at(run(2), OTHER))
        said = call("merge", *paths, "--out", tmp_path / "out.json")
        assert said.exit_code == 0 and "not publishable" in said.stdout
        assert validate.problem_of(tmp_path / "out.json") is None
        (tmp_path / "out.json").unlink()


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        ({"commits": [ONE, ONE]}, "commits"),
        ({"commits": [OTHER, THIRD]}, "commits"),
        ({"commits": [ONE]}, "commits"),
        ({"commits": [ONE, "main"]}, "commits"),
        ({"commits": [ONE, OTHER], code_digest.KEY: {}}, "no measured_code"),
        ({code_digest.KEY: CODE | {"kernels": "short"}}, "measured_code"),
        ({code_digest.KEY: []}, "measured_code"),
    ],
)
def test_a_stranger_s_commits_and_digests_are_checked(planted, words, tmp_path):
    (path,) = write(tmp_path, at(run(1), ONE) | planted)
    said = call("validate", path)
    assert said.exit_code == 1 and words in said.stdout.partition("refused: ")[2]
    assert call("report", path).exit_code in (0, 2)  # shown or refused, and in no case an exception's 1


# --- taken up at another commit -------------------------------------------------------------------------------------


def test_a_run_is_taken_up_at_another_commit_that_measures_the_same(tmp_path):
    begun = at(cut(run(1), 3), ONE)
    for each in begun["rungs"]:
        each["recipe"] = planned()[each["name"]]
    begun["protocol"] |= {"fixed": True, "budget_s": None}
    (path,) = write(tmp_path, begun)
    taken = typed.take_up(path, at(copy.deepcopy(begun), OTHER))
    assert taken["commit"] == OTHER and taken["commits"] == [ONE, OTHER]
    assert typed.take_up(path, copy.deepcopy(begun))["commits"] is None
    with pytest.raises(UserError, match=r"--resume: .*measured_code\.engine: ") as refusal:
        typed.take_up(path, at(copy.deepcopy(begun), ONE, engine="0" * 16))
    assert "\n" not in str(refusal.value)
    del begun[code_digest.KEY]
    write(tmp_path, begun)
    with pytest.raises(UserError, match=f"commit: {ONE} and {OTHER}"):
        typed.take_up(path, at(copy.deepcopy(begun), OTHER))
    assert typed.take_up(path, at(copy.deepcopy(begun), ONE))[code_digest.KEY] is None


# --- runs of some rungs ---------------------------------------------------------------------------------------------


def part(made, *names):
    """What `--rungs` would have measured of the run: the lowest and the highest of these have a twin."""
    made["ladder"]["rungs"] = list(names)
    made["rungs"] = [each for each in made["rungs"] if each["name"] in names]
    made["twins"] = [each for each in made["twins"] if each["of"] in names]
    return typed.fill(made)


def test_rounds_of_some_rungs_join_those_of_the_whole_ladder(tmp_path):
    whole, some = run(1), part(run(2), "cuda_graphs", "fused_act")
    merged = merging.merge(write(tmp_path, some, whole))
    assert merged["ladder"]["rungs"] == whole["ladder"]["rungs"] == [each["name"] for each in merged["rungs"]]
    assert {each["name"]: len(each["rounds"]) for each in merged["rungs"]} == {
        each["name"]: 10 if each["name"] in some["ladder"]["rungs"] else 5 for each in whole["rungs"]
    }
    top, before = (rung(merged, name) for name in ("fused_act", "data_loading"))
    assert top["gain"]["against"] == "data_loading" and top["gain"]["rounds"] == 5
    assert rung(merged, "fused_act.twin")["rounds"][-1]["round"] == 9
    ratios = estimates.log_ratios(derive.round_medians(before), derive.round_medians(top))
    assert top["gain"]["ratio"] == pytest.approx(np.exp(np.mean(ratios)))
    (out,) = write(tmp_path, merged, name="merged")
    assert validate.problem_of(out) is None
    said = [note for note in merged["protocol"]["notes"] if note.startswith("only")]
    assert said == ["only 2 of 8 rungs in the run of 2026-11-22T10:15"]
    again = merging.merge([out, *write(tmp_path, run(3), name="third")])
    assert said[0] in again["protocol"]["notes"]


def test_a_ladder_measured_in_pieces_needs_a_rung_in_common_to_be_in_order(tmp_path):
    names = run(1)["ladder"]["rungs"]
    low, high = part(run(1), *names[:4]), part(run(2), names[0], *names[3:])
    merged = merging.merge(write(tmp_path, low, high))
    assert [each["name"] for each in merged["rungs"]] == names and merged["complete"]
    assert all(each["verdict"] for each in merged["rungs"][1:])
    apart = part(run(2), names[0], *names[4:])
    line = refused("merge", *write(tmp_path, low, apart))
    assert f"which of {names[1]} and {names[4]} comes first" in line
    low["ladder"]["name"] = high["ladder"]["name"] = "mine"  # the article's order is known
    high["ladder"]["rungs"].reverse()
    high["rungs"].reverse()
    assert "comes first" in refused("merge", *write(tmp_path, low, high))
