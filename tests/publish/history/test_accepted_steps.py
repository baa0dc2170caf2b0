"""Steps of asv's history that were accepted or compared, the issues that they make, and hostile files."""

import dataclasses
import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ladder.cli.main import main
from ladder.core.errors import UserError
from ladder.publish.history import screening as history
from ladder.publish.history.screening import CANDIDATE, CONFIRMED, KNOWN, REFUTED
from ladder.studies import frame
from ladder.studies.commits import judging, known, study
from tests.support import committed, hostile_asv, made_up_asv
from tests.support.asv_steps import ENVIRONMENT, MACHINE, STEP, Toy, toy
from tests.support.made_up_comparison import fail, made_up, stored, with_side
from tests.support.repositories import git

__all__ = ["toy"]  # a fixture


def entry(commit: str, series: str = "article/*", days: int = 30, **more: Any) -> known.Entry:
    return known.Entry(commit, series, "wider tile", known.today() + datetime.timedelta(days), **more)


def test_what_was_accepted_is_silent_until_it_expires(toy: Toy) -> None:
    toy.slower_from(7)
    toy.compare(6, 7, 1.05)
    bad = toy.commits[7]
    assert toy.only(entry(bad)).status == toy.only(entry(bad[:9], machine=MACHINE)).status == KNOWN
    others = [
        entry(bad, days=-1),
        entry(toy.commits[6]),
        entry(bad, "article/baseline"),
        entry(bad, machine="x"),
    ]
    assert all(toy.only(other).status == CONFIRMED for other in others)


def test_an_accepted_commit_that_the_clone_lacks_is_told(toy: Toy, tmp_path: Path) -> None:
    """A mistyped commit silences nothing. A shallow clone cannot tell it from one that it has not fetched."""
    entries = [entry(toy.commits[7]), entry("0123456789"), entry(toy.commits[6], days=-1)]
    lacking, expired = known.list_idle(entries, toy.root)
    assert "expired" in expired and "0123456789 article/*: no such commit" in lacking
    git(tmp_path, "clone", "-q", "--depth", "1", toy.root.as_uri(), "shallow")
    assert known.list_idle(entries, tmp_path / "shallow") == [expired]


MEMORY = "rungs.Rung.track_peak_memory"


def reserve(toy: Toy, number: int, mib: int, machine: str = MACHINE, gpu: str = "Some GPU") -> Path:
    """Record what bf16 of a commit reserved on a machine, in place of its time."""
    path = toy.record(number, {"bf16": mib * 2.0**20})
    data = json.loads(path.read_text())
    path.unlink()
    data["results"] = {MEMORY: data["results"][STEP]}
    data["params"] |= {"machine": machine, "gpu": gpu}
    (toy.asv / machine).mkdir(exist_ok=True)
    path = toy.asv / machine / path.name
    path.write_text(json.dumps(data))
    return path


def test_memory_that_differs_between_processes_of_one_commit_is_no_step(toy: Toy) -> None:
    """The allocator reserves whole segments. One commit had 2,888 MiB on a host and 3,130 on another of its kind."""
    for number in range(len(toy.commits)):
        reserve(toy, number, 3130 if number >= 6 else 2888)
    assert toy.only().status == CANDIDATE and toy.only(entry(toy.commits[6], f"{MEMORY}(*")).status == KNOWN
    for number, mib, gpu in ((8, 3000, "Some GPU"), (8, 2888, "Another GPU"), (3, 2888, "Some GPU")):
        kept = reserve(toy, number, mib, "another", gpu), reserve(toy, number, 3130 if number >= 6 else 2888)
        assert toy.only().status == CANDIDATE, (number, mib, gpu)
        kept[0].unlink()
    for number, mib in ((8, 2888), (3, 3130)):
        kept = reserve(toy, number, mib, "another"), reserve(toy, number, 3130 if number >= 6 else 2888)
        step = toy.only()
        assert step.status == REFUTED and step.why.startswith(
            f"processes differ: {toy.commits[number][:10]} has 2,888"
        )
        kept[0].unlink()


def test_a_comparison_of_an_accepted_commit_is_no_alarm_unless_it_is_broken(toy: Toy) -> None:
    file, entries = made_up(1.05), [entry("b" * 40, "tiny/baseline")]
    marked = known.mark(file, entries)
    assert judging.find_status(marked) == 0 and "wider tile" in marked.rungs[0].known
    broken = with_side(file, "head", fail("failed", "it fails"))
    assert judging.find_status(known.mark(broken, entries)) == 1
    accepted = [entry(toy.commits[7])]
    for base, head, is_in_force in ((6, 9, True), (7, 9, False), (2, 6, False)):
        commits = toy.commits[base], toy.commits[head]
        assert bool(known.list_in_force(accepted, *commits, toy.root)) == is_in_force


def test_what_is_broken_cannot_be_accepted_in_the_history_either(toy: Toy) -> None:
    toy.slower_from(7)
    toy.compare(6, 7, 1.0)
    (path,) = toy.compared.iterdir()
    broken = with_side(frame.read_file(study.STUDY, path), "head", fail("failed", "it fails"))
    path.write_text(json.dumps(stored(broken)))
    step = toy.only(entry(toy.commits[7]))
    assert step.status == CONFIRMED and "broken" in step.why


def test_a_rung_that_has_left_the_ladder_stops_no_night(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rung left in its place may have another recipe. One refusal must not lose the other candidates."""
    asked: list[list[str]] = []

    def compare(good: str, bad: str, rungs: list[str], *_: Any) -> None:
        asked.append(rungs)
        if good == toy.commits[2]:
            raise UserError("this commit has no such recipe")

    facts = {"name": MACHINE, "torch": "2.13.0"}
    monkeypatch.setattr(history, "compare_commits", compare)
    monkeypatch.setattr(history.system, "describe_machine", lambda device: facts)
    toy.slower_from(7)
    step, told = toy.only(), []
    pairs = (("bf16-2", toy.commits[6]), ("cudnn_benchmark", toy.commits[6]), ("bf16", toy.commits[2]))
    steps = [
        dataclasses.replace(
            step, good=good, series=dataclasses.replace(step.series, params=("article", rung))
        )
        for rung, good in pairs
    ]
    assert history.confirm_steps([*steps, step], 1, toy.compared, None, told.append) == 1
    assert all(rungs == ["bf16"] for rungs in asked)
    for name in ("article/bf16-2", "article/cudnn_benchmark"):
        assert any(line.startswith(f"{name}: not what full has") for line in told)
    assert history.confirm_steps(steps[2:], 1, toy.compared, None, told.append) == 0
    assert "not measured: this commit has no such recipe" in told
    facts["name"] = "another"
    assert history.confirm_steps(steps, 1, toy.compared, None, told.append) == 0
    assert told[-1] == "nothing to confirm: no candidate's step was timed by another with torch 2.13.0"


@pytest.mark.parametrize("name", [*hostile_asv.RESULT_FILES][::5])
def test_the_command_reads_nothing_that_no_site_would_be_made_from(tmp_path: Path, name: str) -> None:
    """A traceback would end with the status of a confirmed regression."""
    committed.folder()  # the command asks git of this checkout
    path = made_up_asv.write(tmp_path / "asv")
    how, _ = hostile_asv.RESULT_FILES[name]
    how(path)
    seen = CliRunner().invoke(main, ["history", "--results", str(tmp_path / "asv"), "--json"])
    assert seen.exit_code == 0, seen.output
    assert json.loads(seen.stdout)["notes"]


def test_one_issue_for_each_confirmed_commit_and_none_for_candidates(toy: Toy) -> None:
    toy.slower_from(7)
    assert history.write_issues(toy.screen()[0]) == []
    toy.compare(6, 7, 1.05)
    steps = toy.screen()[0]
    steps[0].choices.insert(0, "<script> @octocat | x")
    (made,) = history.write_issues([*steps, *steps])
    assert made["body"].startswith(made["mark"]) and toy.commits[7] in made["mark"]
    assert made["title"] == f"Slower since {toy.commits[7][:10]}: article/bf16"
    assert toy.commits[6] in made["body"] and "asv find" not in made["body"]
    assert "<script>" not in made["body"] and "@octocat" not in made["body"]


def test_a_confirmed_range_names_the_range_and_how_to_bisect_it(toy: Toy) -> None:
    toy.slower_from(7)
    for number in (5, 6, 7):
        (toy.asv / MACHINE / f"{toy.commits[number][:8]}-{ENVIRONMENT}.json").unlink()
    toy.compare(4, 8, 1.05)
    steps = toy.screen()[0]
    assert steps[0].status == CONFIRMED
    (made,) = history.write_issues(steps)
    good, bad = toy.commits[4], toy.commits[8]
    assert made["title"] == f"Slower between {good[:10]} and {bad[:10]}: article/bf16"
    assert "were not: 3." in made["body"] and history.format_bisect(steps[0]) in made["body"].splitlines()
    assert history.MARK.format(where=bad) not in made["body"]  # which is still to be opened once it is found


# --- the file of accepted ones --------------------------------------------------------------------------------------

GOOD = {"commit": "0123456789", "series": "article/bf16", "reason": "wider tile", "expires": "2027-06-30"}
BAD = {
    "regressions: 3": "regressions: 3 is not `array`",
    "more: []": "unknown key 'more'",
    json.dumps(
        {"regressions": [GOOD | {"commit": "main"}]}
    ): "commit: 'main' is not 7 to 40 hexadecimal digits",
    json.dumps({"regressions": [GOOD | {"expires": 20270630}]}): "expires: 20270630 is not",
    json.dumps({"regressions": [GOOD | {"reason": "<b>x</b>"}]}): "reason: '<b>x</b>' is not plain text",
    json.dumps({"regressions": [{**GOOD, "reason": "x", "expiry": ""}]}): "unknown key 'expiry'",
    json.dumps({"regressions": [{"commit": "0123456789"}]}): "the key 'series' is missing",
    "regressions:\n  - commit: a\n   series: b": "line",
    "a: &x [1]\nregressions: *x": "aliases",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_entries_are_one_line_that_names_the_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "known-regressions.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        known.read_entries(path)
    assert BAD[text] in str(error.value) and "known-regressions.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_plain_day_is_read(tmp_path: Path) -> None:
    path = tmp_path / "known.yaml"
    path.write_text(
        "regressions:\n  - {commit: 0123456789, series: article/bf16, reason: x, expires: 2027-06-30}\n"
    )
    (found,) = known.read_entries(path)
    assert found.commit == "0123456789" and found.expires == datetime.date(2027, 6, 30)


def test_the_command_lists_and_ends_with_a_status(toy: Toy) -> None:
    def call(*arguments: object) -> Any:
        return CliRunner().invoke(main, ["history", *map(str, arguments)])

    none = toy.root / "none"
    none.mkdir()
    for arguments, words in (
        (("--results", toy.root / "nowhere"), "no such folder"),
        (("--results", none), "none: no results of asv in it"),
        (("--branch", "nope"), "git knows no such commit"),
    ):
        seen = call(*arguments)
        assert seen.exit_code == 2 and words in seen.output
    seen = call("--results", committed.folder("results/asv"), "--json")
    assert seen.exit_code == 0 and isinstance(json.loads(seen.output)["steps"], list)
