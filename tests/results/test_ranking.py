"""Which of several results is shown, in a folder, by `report`, `list` and `show`; and the mark of too few rounds."""

import copy
import json

import pytest

from ladder.cli import listing
from ladder.cli import stored as command
from ladder.core import starting
from ladder.publish import site as front
from ladder.report import chart, tables
from ladder.report import view as viewing
from ladder.results import publishable, ranking
from ladder.results.combine import comparing, series
from tests.cli.test_cli import call, refused
from tests.support import made_up, two_clocks
from tests.support.typed import Reading, write_run

chart = Reading(chart)
comparing = Reading(comparing)
publishable = Reading(publishable)
front = Reading(front)
ranking = Reading(ranking)
series = Reading(series)
tables = Reading(tables)
view = Reading(viewing).view

MARK = "fewer than 3 rounds: not to be quoted"


def few(result, rounds=1, **changes):
    """A copy with so many rounds a rung."""
    made = copy.deepcopy(result) | changes
    for rung in made["rungs"]:
        rung["rounds"] = rung["rounds"][:rounds]
    return made


def start_up():
    """What issued first: one rung, one round, complete, and newer than the staircase."""
    made = few(made_up.judged_run(), started="2026-11-22T00:00:00+00:00")
    made["rungs"] = made["rungs"][-1:]
    made["ladder"]["rungs"], made["twins"] = [made["rungs"][0]["name"]], made["twins"][-1:]
    return made


def unfinished():
    """All rungs, complete false, newer; one round of each."""
    return few(made_up.judged_run(), started="2026-11-23T00:00:00+00:00", complete=False)


@pytest.mark.parametrize("newer", [start_up(), unfinished()], ids=["one rung", "one round"])
def test_a_staircase_is_shown_before_newer_runs_of_less(tmp_path, newer):
    stairs = made_up.judged_run()
    found = []
    for name, result in (("a", stairs), ("b", newer)):
        write_run(tmp_path / f"{name}.json", result)
        found.append((tmp_path / f"{name}.json", result))
    (shown,), _ = series.collect([tmp_path])
    assert shown["started"] == stairs["started"]
    (entry,) = front.choose_entries(found, tmp_path)
    assert len(entry.rows) == 8 and entry.path == "a.json"
    assert ranking.newest(found)[1] == stairs


def test_of_equal_ones_the_newest_is_shown_and_a_quick_one_last():
    old = made_up.judged_run()
    new = copy.deepcopy(old) | {"started": "2026-11-22T00:00:00+00:00"}
    quick = copy.deepcopy(new) | {"started": "2026-11-23T00:00:00+00:00"}
    quick["protocol"]["quick"] = True
    assert sorted([new, quick, old], key=ranking.rank) == [quick, old, new]
    assert sorted([new, quick, old], key=ranking.standing) == [quick, old, new]


def test_too_few_rounds_are_said_wherever_a_result_is_shown(tmp_path, capsys):
    for rounds, said in ((1, True), (2, True), (3, False), (5, False)):
        made = few(made_up.judged_run(), rounds)
        assert (MARK in publishable.publishable(made)) is said
    made = made_up.judged_run()
    for visit in made["rungs"][3]["rounds"][:3]:
        visit["alloc_retries"] = 2
    assert ranking.fewest_rounds(made) == 2 and MARK in publishable.publishable(made)
    made = few(made_up.judged_run(), 2)
    tables.print_table(made)
    assert MARK in capsys.readouterr().out
    assert MARK in tables.markdown(made) and MARK in tables.csv_text([made])
    write_run(tmp_path / "few.json", made)
    write_run(tmp_path / "whole.json", made_up.judged_run(seed=1))
    comparing.show(tmp_path / "whole.json", tmp_path / "few.json", False, False)
    assert f"warning: after: {MARK}" in capsys.readouterr().out


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Results of this machine (an H200), by mode and with a start-up run, and of another one."""
    folder = tmp_path / "results"
    for name, result in (
        ("nvidia-h200/a", made_up.judged_run()),
        ("nvidia-h200/b", made_up.judged_run("leave-one-out")),
        ("nvidia-h200/c", start_up()),
        ("intel/d", made_up.cpu_run()),
    ):
        write_run(folder / f"{name}.json", result)
    monkeypatch.setattr(listing.ranking, "machines_here", lambda: ["nvidia-h200"])
    monkeypatch.setattr(command, "RESULTS", folder)
    monkeypatch.setattr(listing, "RESULTS", folder)
    return folder


def test_a_bare_report_is_of_this_machine_and_says_how_to_see_the_rest(stored, monkeypatch):
    said = call("report").stdout
    assert said.count("ms/step") == 1 and "FP32" not in said and "baseline" in said
    assert "2 more results: `ladder report --all`" in said
    assert json.loads(call("report", "--json").stdout)["started"] == made_up.judged_run()["started"]
    monkeypatch.setattr(starting, "program_name", lambda: "python -m ladder")
    assert "2 more results: `python -m ladder report --all`" in call("report").stdout
    everything = call("report", "--all").stdout
    assert everything.count("ms/step") == 3 and "more result" not in everything
    monkeypatch.setattr(listing.ranking, "machines_here", lambda: ["amd-epyc"])
    said = call("report").stdout
    assert "no result of this machine (amd-epyc) yet: this is of NVIDIA H200" in said
    assert "leave out PATH" in refused("report", "--all", stored)


def test_list_is_by_ladder_in_its_order_with_needs_and_gains(stored):
    lines = call("list").stdout.splitlines()
    head, *rows = [line.split() for line in lines[1:10]]
    assert head[:4] == ["rung", "needs", "gain", "here"]
    assert [row[0] for row in rows] == list(made_up.H200)
    known = {row[0]: row[1:] for row in rows}
    assert known["cuda_graphs"][:2] == ["cuda,", "cuda_graphs"] and known["cuda_graphs"][2].startswith("2.8")
    assert any(line.startswith(f"full  ladder of {two_clocks.RUNGS} rungs") for line in lines)
    (stored / "nvidia-h200" / "a.json").write_text("{")  # what cannot be read is no reason to end
    assert call("list").exit_code == 0


def test_show_explains_a_ladder_ours_or_the_user_s(tmp_path):
    lines = call("show", "full").stdout.splitlines()
    assert f"ladder full, {two_clocks.RUNGS} rungs" in lines[0]
    (row,) = (line.split() for line in lines if line.split()[1:2] == ["cuda_graphs"])
    assert row[:5] == ["6", "cuda_graphs", "cuda,", "cuda_graphs", "119"]
    assert row[5:] == ["cuda_graphs:", "true,", "adam:", '"capturable"']
    assert any("the largest first" in line for line in lines)  # the notes of its file
    both = call("show", "compile").stdout
    assert "Receipt." in both and "ladder compile, 10 rungs" in both and "the top of full" in both
    (tmp_path / "mine.yaml").write_text("# Mine\nrungs: [baseline, tf32]\n")
    assert "mine, 2 rungs" in call("show", tmp_path / "mine.yaml").stdout


MISSPELT = {
    "show bf61": "bf16",
    "show fulll": "full",
    "run --device cpu --rungs Cuda-Graph": "cuda_graphs",
    "run --ladder artcle": "article",
    "run --workload tinny": "tiny",
    "train --device cpu --recipe recipe.yaml --out out": "precision",
    "run --workload workload.yaml": "batch",
    "run --ladder ladder.yaml": "reference",
    "show rungs.yaml": "fused_act",
    "sustain --device cpu basline": "baseline",
}


@pytest.mark.parametrize("arguments", MISSPELT)
def test_a_name_that_does_not_exist_gets_the_nearest_in_a_short_line(tmp_path, arguments):
    for name, text in {
        "recipe": "precison: bf16\n",
        "workload": "resolution: 32\nchannel_base: 1024\nbatchsize: 4\n",
        "ladder": "refrence: x\nrungs: [baseline]\n",
        "rungs": "rungs: [baseline, fused_akt]\n",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    words = [
        tmp_path / each if each.endswith(".yaml") or each == "out" else each for each in arguments.split()
    ]
    line = refused(*words)
    assert f"did you mean '{MISSPELT[arguments]}'" in line and len(line.replace(str(tmp_path), "")) < 240
