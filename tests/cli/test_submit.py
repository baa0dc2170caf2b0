"""`ladder submit`: what it refuses before it measures, where it goes on, and which files it names to be sent."""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from benches import series
from ladder.cli import climb
from ladder.cli import submit as work
from ladder.core.errors import UserError
from ladder.machine import system
from ladder.plan import catalog
from ladder.publish.history import machines
from ladder.publish.history import series as asvseries
from ladder.publish.validation import asv_files, validate
from ladder.results import code_digest, judging, loading, record, store
from tests.support import asv_clone, committed, made_up_asv, typed
from tests.support.commands import call
from tests.support.repositories import commit_all, git
from tests.support.typed import write_run

clone = asv_clone.clone
RUNGS = ["baseline", "channels_last", "bf16"]
Submission = work.Submission


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A clone with a commit."""
    (tmp_path / "ladder").mkdir()
    (tmp_path / "ladder" / "a.py").touch()
    git(tmp_path, "init", "-q")
    commit_all(tmp_path, "x")
    return tmp_path


@pytest.fixture
def submission(root: Path, monkeypatch: pytest.MonkeyPatch) -> Submission:
    """On a machine without a GPU; asv has three rungs, and its runs are stand-ins."""
    monkeypatch.setattr(system, "choose_device", lambda requested=None: "cpu")
    monkeypatch.setattr(work, "list_rungs", lambda submission: RUNGS)
    return work.prepare(None, root)


def fake_asv(monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Any] | None = None) -> list[str]:
    """Let `asv run` add its rungs' times to the file, or end otherwise; the list fills with the rungs of each call."""
    calls: list[str] = []

    def run(submission: Submission, regex: str) -> int:
        rungs = [
            name for name in RUNGS if re.search(regex, f"rungs.Rung.samples_step_time('tiny', '{name}')")
        ]
        calls.append(" ".join(rungs))
        ended = {rung: (outcomes or {}).get(rung, 0) for rung in rungs}
        outcome = next(filter(None, ended.values()), 0)
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome in (0, 2):
            folder, torch = submission.root / "results" / "asv", submission.facts["torch"].split("+")[0]
            measured = work.list_measured(submission) | {rung for rung in rungs if ended[rung] == 0}
            seconds = {name: 0.1 + 0.01 * len(name) if name in measured else math.nan for name in RUNGS}
            facts = machines.identify(submission.facts, folder)
            path = made_up_asv.write(folder, facts, seconds, "tiny", commit=submission.commit)
            for each in (path, path.parent / "notes" / path.name):
                each.write_text(each.read_text().replace(made_up_asv.LIBRARIES["torch"], torch))
                each.rename(each.with_name(each.name.replace(made_up_asv.LIBRARIES["torch"], torch)))
        return outcome

    monkeypatch.setattr(work, "run_asv", run)
    return calls


def fake_ladder(
    monkeypatch: pytest.MonkeyPatch,
    submission: Submission,
    complete: bool = True,
    quick: bool = False,
    **more: Any,
) -> list[climb.Request]:
    """Let `ladder run` leave a result of this machine and commit; the list fills with its requests."""
    requests = []

    def run(request: climb.Request) -> Any:
        requests.append(request)
        result = json.loads(committed.RUN.read_text()) | {"commit": submission.commit}
        result["machine"] |= submission.facts
        preset = catalog.load_workload(submission.workload)[1]
        result["workload"] |= preset | {"name": submission.workload, "data": result["workload"]["data"]}
        result["measured_code"] = code_digest.digests(submission.root)
        names = [step.name for step in catalog.load_ladder("article").rungs]
        timed, missing = (
            {rung["name"]: rung for rung in result["rungs"]},
            {"status": "n/a", "reason": "no GPU"},
        )
        result["rungs"] = [timed.get(name, {"name": name, "title": name, **missing}) for name in names]
        result["ladder"]["rungs"] = names
        result["protocol"] |= {"quick": quick, "rounds": 3 if complete else 9}
        stored = typed.run_of(result)
        path = request.resume or request.out / record.name_file(Path("none"), stored).relative_to("none")
        write_run(path, result)
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
        return path, judging.derive_result(stored)

    monkeypatch.setattr(climb, "run", run)
    return requests


# --- before anything is measured --------------------------------------------------------------------------------------


def test_a_dirty_tree_is_refused_and_new_results_are_no_dirt(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "choose_device", lambda requested=None: "cpu")
    (root / "results").mkdir()
    (root / "results" / "new.json").touch()
    assert len(work.prepare(1.0, root).commit) == 40
    (root / "ladder" / "a.py").write_text("changed")
    (root / "ladder" / "b.py").touch()
    with pytest.raises(UserError, match=r"uncommitted changes in ladder/a\.py and 1 more: commit or stash"):
        work.prepare(1.0, root)


# --- the paired protocol ----------------------------------------------------------------------------------------------


def test_ladder_run_is_started_once_gone_on_with_and_left_alone_when_complete(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = fake_ladder(monkeypatch, submission, complete=False)
    assert work.measure_ladder(submission) is None
    gone_on = fake_ladder(monkeypatch, submission)
    path = work.measure_ladder(submission)
    assert work.measure_ladder(submission) == path and path is not None and loading.load_run(path).complete
    assert [(each.workload, each.quick, each.budget, each.resume) for each in begun] == [
        ("tiny", True, None, None)
    ]
    assert [each.resume for each in gone_on] == [path]


def test_without_a_gpu_a_budget_is_kept_to_and_a_quick_run_is_not_enough_then(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ladder(monkeypatch, submission, quick=True)
    work.measure_ladder(submission)
    timed = work.prepare(5.0, submission.root)
    assert (timed.minutes, timed.quick, submission.minutes) == (5.0, False, work.MINUTES)
    requests = fake_ladder(monkeypatch, submission, complete=False)
    work.measure_ladder(timed)
    work.measure_ladder(timed)  # goes on
    work.measure_ladder(submission)  # better than a quick one is taken up too
    assert [(each.quick, each.budget) for each in requests] == [
        (False, 2.0),
        (False, 2.0),
        (False, pytest.approx(7.2)),
    ]
    assert requests[0].resume is None and all(each.resume for each in requests[1:])


def test_only_a_whole_run_of_this_code_and_machine_is_taken_up_even_of_an_earlier_commit(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ladder(monkeypatch, submission)
    path = work.measure_ladder(submission)
    genuine = store.read(path)
    write_run(path, genuine | {"commit": "f" * 40})  # its result was committed since
    assert work.find_run(submission, path.parent) == (path, True)
    some = {
        "ladder": genuine["ladder"] | {"rungs": genuine["ladder"]["rungs"][:4]},
        "rungs": genuine["rungs"][:4],
    }
    images = {"count": 9, "digest": "0" * 16}
    code = genuine["measured_code"] | {"kernels": "0" * 16}
    for changes in ({"measured_code": code}, {"dirty": True}, {"images": images}, some):
        write_run(path, genuine | changes)
        assert loading.load_run(path) and work.find_run(submission, path.parent) == (None, False)
    write_run(path, genuine)
    assert work.find_run(submission, path.parent) == (path, True)
    submission.facts["torch"] = "9.9"
    assert work.find_run(submission, path.parent) == (None, False)


# --- asv --------------------------------------------------------------------------------------------------------------


def test_every_rung_is_measured_once_and_an_interruption_costs_one(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_asv(monkeypatch, {"channels_last": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        work.measure_history(submission)
    assert calls == ["baseline", "channels_last"]
    calls = fake_asv(monkeypatch)
    assert work.measure_history(submission) == [] and calls == ["channels_last", "bf16"]
    assert work.measure_history(submission) == [] and len(calls) == 2


@pytest.mark.parametrize("size, calls", [(1, RUNGS), (2, ["baseline channels_last", "bf16"])])
def test_a_few_rungs_are_one_call_and_what_failed_of_them_is_tried_again(
    size: int, calls: list[str], submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's import takes longer than a quick rung's visit, and only within one call do they import ahead."""
    monkeypatch.setitem(work.GROUP, "cpu", size)
    first = fake_asv(monkeypatch, {"channels_last": 2})
    assert work.measure_history(submission) == ["channels_last"] and first == calls
    again = fake_asv(monkeypatch)
    assert work.measure_history(submission) == [] and again == ["channels_last"]
    every = asvseries.read(submission.root / "results" / "asv")
    assert {one.params[1] for one in every if one.benchmark == asvseries.STEP} == {*RUNGS}


def test_where_the_folder_is_another_machines_asv_is_given_a_new_name(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asv by itself would stop and ask for one."""
    taken, command = submission.facts["name"], list[str]()
    path = submission.root / "results" / "asv" / taken / "machine.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(machines.describe(submission.facts) | {"num_cpu": "999"}))
    monkeypatch.setattr(work.subprocess, "Popen", lambda words, **_: command.extend(words) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        work.run_asv(submission, "x")
    assert command[command.index("--machine") + 1] == submission.machine
    fake_asv(monkeypatch)
    assert work.measure_history(submission) == []
    assert submission.machine.startswith(f"{taken}-") and len(submission.machine) == len(taken) + 7
    assert {file.parent.name for file in work.find_asv_results(submission)} == {submission.machine}


def test_the_time_that_is_over_leaves_the_rest(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission.minutes = 0
    calls = fake_asv(monkeypatch)
    assert work.measure_history(submission) == ["channels_last", "bf16"] and calls == ["baseline"]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_rungs_are_those_of_asv_that_this_machine_can_do_and_none_is_retired(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the command would say for ever that something is left."""
    here = dict.fromkeys(system.CAPABILITIES) if device == "cuda" else system.list_capabilities("cpu")
    monkeypatch.setattr(system, "list_capabilities", lambda device: here)
    own = Submission(work.ROOT, "0" * 40, device, {}, 18.0)
    rungs = work.list_rungs(own)
    known = {pair for pair in series.SERIES if pair[0] == own.workload}
    assert rungs[0] == "baseline" and ("cuda_graphs" in rungs) == (device == "cuda")
    assert series.RETIRED and {(own.workload, rung) for rung in rungs} == known - series.RETIRED


# --- all of it --------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive  # every rung of `tiny`, by `ladder run` and by asv
@pytest.mark.slow
@pytest.mark.skipif(bool(system.gpus_seen()), reason="on a GPU, `tiny` is n/a")
def test_a_clone_is_measured_by_ladder_and_asv_in_one_call_and_the_next_has_nothing_to_do(
    clone: Path,
) -> None:
    """The model is a toy; `ladder run` does not inspect it, which would compare it with the real one."""
    job = clone / "ladder" / "core" / "job.py"
    text = job.read_text()
    assert text.count("    inspect: bool = True") == 1
    job.write_text(text.replace("    inspect: bool = True", "    inspect: bool = False"))
    commit_all(clone, "toy")
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(clone.parent), "HOME": str(clone.parent)}
    command = [sys.executable, "-m", "ladder", "submit"]

    def submit() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, timeout=600)

    done = submit()
    assert done.returncode == 0, done.stdout + done.stderr
    rungs = [rung for workload, rung in series.SERIES if workload == "tiny"]
    assert f"asv run: {len(rungs)} rungs of tiny as " in done.stderr and "0 stored" in done.stderr
    assert "4 files to send, all accepted" in done.stdout and "call `ladder submit` again" not in done.stdout
    (path,) = (clone / "results" / "asv").glob("*/*-checkout-*.json")
    row = json.loads(path.read_text())["results"][asvseries.STEP]
    measured = {rung for index, (_, rung) in asv_files.combinations(row) if asv_files.number(row[0][index])}
    assert measured == set(rungs)
    before = {file: file.stat().st_mtime_ns for file in (path, *(clone / "results").rglob("*-2*.json"))}
    again = submit()
    assert again.returncode == 0, again.stdout + again.stderr
    assert "is there and complete" in again.stderr and f"{len(rungs)} stored" in again.stderr
    assert before == {file: file.stat().st_mtime_ns for file in before}
    assert again.stdout.splitlines()[-4:] == done.stdout.splitlines()[-4:]


@pytest.fixture
def submit(submission: Submission, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call the command, whose two measurements are stand-ins."""

    def run(outcomes: dict[str, Any] | None = None, **more: Any) -> Result:
        fake_asv(monkeypatch, outcomes)
        fake_ladder(monkeypatch, submission, **more)
        return call("submit")

    monkeypatch.setattr(work, "prepare", lambda budget: submission)
    return run


def test_the_files_are_validated_named_and_added_by_the_commands(
    submit: Callable[..., Result], submission: Submission
) -> None:
    shown = submit()
    assert shown.exit_code == 0, shown.output
    (add,) = [line.split()[2:] for line in shown.stdout.splitlines() if line.strip().startswith("git add ")]
    paths = [submission.root / name for name in add]
    assert len(add) == 4 and "4 files to send" in shown.stdout
    assert not [each for each in validate.validate(paths) if each.problem]
    assert {path.parts[-2] for path in paths} == {submission.facts["name"], "notes"}
    assert f"git switch -c results-{submission.facts['name']}-{submission.commit[:8]}" in shown.stdout


@pytest.mark.parametrize(
    "outcome, status, words",
    [
        (2, 1, "asv has no time of bf16: call `ladder submit` again"),
        (KeyboardInterrupt(), 130, "`ladder submit` goes on"),
        (1, 1, "`asv run` ended with status 1 at bf16"),
    ],
)
def test_what_is_left_or_broken_is_named_with_a_status(
    outcome: Any, status: int, words: str, submit: Callable[..., Result]
) -> None:
    shown = submit({"bf16": outcome})
    assert shown.exit_code == status and words in shown.output
    assert ("git add results/ladder/" in shown.stdout) == (status == 1)  # the run of the ladder can be sent


def test_a_file_that_would_be_refused_is_not_sent(submit: Callable[..., Result]) -> None:
    shown = submit(html="x")
    assert shown.exit_code == 1 and "unknown key 'html'" in shown.stderr and "git add" not in shown.stdout


def test_without_asv_the_ladder_is_measured_and_sent_and_how_to_get_asv_is_shown(
    submit: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    missing = lambda name: None if name == "asv_runner" else find(name)  # noqa: E731
    monkeypatch.setattr(work.importlib.util, "find_spec", missing)
    shown = submit({"baseline": ZeroDivisionError()})
    assert shown.exit_code == 1
    assert shown.stderr.startswith("without asv's history: asv is not installed for ")  # before it measures
    assert "1 file to send, all accepted" in shown.stdout and "git add results/ladder/" in shown.stdout
    assert "-m pip install -e" in shown.stdout.splitlines()[-1]
