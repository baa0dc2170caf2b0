"""`ladder submit`: what it refuses before it measures, where it goes on, and what it says is to be sent."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from benches import series
from ladder.base.errors import UserError
from ladder.cli import main as cli
from ladder.cli import submission as submit
from ladder.machine import system
from ladder.plan import catalog
from ladder.publish.history import machines as asvmachines
from ladder.publish.history import series as asvseries
from ladder.publish.validation import asv_files, validate
from ladder.results import judging, loading, record
from ladder.results import store as results
from tests.support import asv_clone, committed, made_up_asv, typed
from tests.support.repositories import commit_all, git
from tests.support.typed import write_run

clone = asv_clone.clone
GENUINE = committed.RUN
RUNGS = ["baseline", "channels_last", "bf16"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A clone with a commit."""
    (tmp_path / "ladder").mkdir()
    (tmp_path / "ladder" / "a.py").touch()
    git(tmp_path, "init", "-q")
    commit_all(tmp_path, "x")
    return tmp_path


@pytest.fixture
def submission(root: Path, monkeypatch: pytest.MonkeyPatch) -> submit.Submission:
    """On a machine without a GPU; asv has three rungs."""
    monkeypatch.setattr(system, "choose_device", lambda requested=None: "cpu")
    monkeypatch.setattr(submit, "_rungs", lambda submission: RUNGS)
    return submit.prepare(None, lambda line: None, root)


def asv(submission: submit.Submission, outcomes: dict[str, Any] | None = None) -> tuple[Callable, list[str]]:
    """Stands in for a call of `asv run`: adds its rungs' times to the file, as asv does; and the rungs it was for."""
    asked: list[str] = []
    torch = submission.facts["torch"].split("+")[0]

    def run(submission: submit.Submission, regex: str) -> int:
        rungs = [
            name for name in RUNGS if re.search(regex, f"rungs.Rung.samples_step_time('tiny', '{name}')")
        ]
        asked.append(" ".join(rungs))
        ended = {rung: (outcomes or {}).get(rung, 0) for rung in rungs}
        outcome = next(filter(None, ended.values()), 0)
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome in (0, 2):
            had = submit._measured(submission) | {rung for rung in rungs if ended[rung] == 0}
            seconds = {name: 0.1 + 0.01 * len(name) if name in had else math.nan for name in RUNGS}
            facts = asvmachines.identify(submission.facts, submission.root / "results" / "asv")
            path = made_up_asv.write(
                submission.root / "results" / "asv", facts, seconds, "tiny", commit=submission.commit
            )
            path.write_text(path.read_text().replace(made_up_asv.LIBRARIES["torch"], torch))
            named = path.with_name(path.name.replace(made_up_asv.LIBRARIES["torch"], torch))
            note = path.parent / "notes" / path.name
            note.write_text(note.read_text().replace(made_up_asv.LIBRARIES["torch"], torch))
            note.rename(note.with_name(named.name))
            path.rename(named)
        return outcome

    return run, asked


def climbed(submission: submit.Submission, complete: bool = True, quick: bool = False) -> Callable[..., Any]:
    """Stands in for `ladder run`: leaves a result of this machine and commit."""

    def climb(request: Any, on_file: Callable[[Path], None] = lambda path: None) -> Any:
        result = json.loads(GENUINE.read_text()) | {"commit": submission.commit}
        result["machine"] |= submission.facts
        preset = catalog.load_workload(submission.workload)[1]
        result["workload"] |= preset | {"name": submission.workload, "data": result["workload"]["data"]}
        result["measured_code"] = {"kernels": "0" * 16}
        result["protocol"] |= {"quick": quick, "rounds": 3 if complete else 9}
        run = typed.run_of(result)
        path = request.resume or request.out / record.name_file(Path("none"), run).relative_to("none")
        write_run(path, result)
        on_file(path)
        return judging.derive_result(run)

    return climb


# --- before anything is measured ----------------------------------------------------------------------------------


def test_a_dirty_tree_is_refused_and_new_results_are_no_dirt(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "choose_device", lambda requested=None: "cpu")
    (root / "results").mkdir()
    (root / "results" / "new.json").touch()
    assert len(submit.prepare(1.0, print, root).commit) == 40
    (root / "ladder" / "a.py").write_text("changed")
    (root / "ladder" / "b.py").touch()
    with pytest.raises(UserError, match=r"uncommitted changes in ladder/a\.py and 1 more: commit or stash"):
        submit.prepare(1.0, print, root)


def test_what_has_no_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="clone the repository with git"):
        submit.prepare(1.0, print, tmp_path)


def test_a_gpu_that_torch_cannot_use_ends_the_command_in_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(requested: str | None = None) -> str:
        raise UserError("NVIDIA X is here but torch cannot use it: no kernel image")

    monkeypatch.setattr(system, "choose_device", refuse)
    monkeypatch.setattr(submit.prepare, "__defaults__", (root,))
    seen = CliRunner().invoke(cli.main, ["submit"], prog_name="ladder")
    assert seen.exit_code == 2 and seen.stdout == ""
    assert seen.stderr == "ladder: NVIDIA X is here but torch cannot use it: no kernel image\n"


# --- the paired protocol ------------------------------------------------------------------------------------------


def test_ladder_run_is_started_once_gone_on_with_and_left_alone_when_complete(
    submission: submit.Submission,
) -> None:
    asked = []

    def climb(complete: bool) -> Callable[[Any], Any]:
        return lambda request, on_file: (
            asked.append(request) or climbed(submission, complete)(request, on_file)
        )

    assert submit.paired(submission, climb(False)) is None
    path = submit.paired(submission, climb(True))
    assert submit.paired(submission, climb(True)) == path and path is not None
    first, second = asked
    assert (first.workload, first.quick, first.budget, first.resume) == ("tiny", True, None, None)
    assert second.resume == path and loading.load_run(path).complete


def test_without_a_gpu_a_budget_is_kept_to_and_a_quick_run_is_not_enough_then(
    submission: submit.Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def climb(complete: bool, quick: bool) -> Callable[[Any], Any]:
        def climbed_(request: Any, on_file: Any) -> Any:
            asked.append(request)
            return climbed(submission, complete, quick)(request, on_file)

        return climbed_

    submit.paired(submission, climb(True, True))
    timed = submit.prepare(5.0, print, submission.root)
    assert (timed.minutes, timed.quick, submission.minutes) == (5.0, False, submit.MINUTES)
    assert submit._started(timed, submission.root / "results" / "ladder" / timed.facts["name"])[0] is None
    submit.paired(timed, climb(False, False))
    submit.paired(timed, climb(False, False))  # goes on
    assert [(each.quick, each.budget) for each in asked] == [(True, None), (False, 2.0), (False, 2.0)]
    assert asked[1].resume is None and asked[2].resume is not None
    submit.paired(submission, climb(True, False))  # better than a quick one is taken up too
    assert (asked[3].quick, asked[3].budget) == (False, pytest.approx(7.2)) and asked[3].resume


def test_on_a_gpu_two_fifths_of_the_time_are_paired_rounds_and_nothing_is_quick(
    submission: submit.Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "choose_device", lambda requested=None: "cuda")
    monkeypatch.setattr(system, "facts", lambda device: submission.facts)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # set for other tests
    on_gpu, asked = submit.prepare(None, print, submission.root), []
    submit.paired(on_gpu, lambda request, on_file: asked.append(request) or SimpleNamespace(complete=False))
    (request,) = asked
    assert request.workload == "article" and not request.quick and request.budget == pytest.approx(7.2)


def test_a_result_of_another_commit_or_machine_is_not_gone_on_with(submission: submit.Submission) -> None:
    path = submit.paired(submission, climbed(submission))
    for key, value in (("commit", "f" * 40), ("dirty", True)):
        other = results.read(path) | {key: value}
        write_run(path, other)
        assert submit._started(submission, path.parent) == (None, False)
    write_run(path, results.read(path) | {"commit": submission.commit, "dirty": False})
    submission.facts["torch"] = "9.9"
    assert submit._started(submission, path.parent) == (None, False)


# --- asv ----------------------------------------------------------------------------------------------------------


def test_every_rung_is_asked_for_once_and_an_interruption_costs_one(submission: submit.Submission) -> None:
    run, asked = asv(submission, {"channels_last": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        submit.history(submission, run)
    assert asked == ["baseline", "channels_last"]
    run, asked = asv(submission)
    assert submit.history(submission, run) == [] and asked == ["channels_last", "bf16"]
    run, asked = asv(submission)
    assert submit.history(submission, run) == [] and asked == []


def test_on_a_gpu_a_few_rungs_are_one_call_and_what_failed_of_them_is_tried_again(
    submission: submit.Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's import takes longer than a quick rung's visit, and only within one call do they import ahead."""
    monkeypatch.setitem(submit.GROUP, "cpu", 2)
    run, asked = asv(submission, {"channels_last": 2})
    assert submit.history(submission, run) == ["channels_last"]
    assert asked == ["baseline channels_last", "bf16"]
    run, asked = asv(submission)
    assert submit.history(submission, run) == [] and asked == ["channels_last"]
    assert submit.GROUP["cuda"] > 1


def test_where_the_folder_is_another_machines_asv_is_given_a_new_name(
    submission: submit.Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asv by itself would stop and ask for one."""
    taken, said, called = submission.facts["name"], [], []
    path = submission.root / "results" / "asv" / taken / "machine.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(asvmachines.describe(submission.facts) | {"num_cpu": "999"}))
    monkeypatch.setattr(submission, "say", said.append)
    assert submit.history(submission, asv(submission)[0]) == []
    assert submission.machine.startswith(f"{taken}-") and len(submission.machine) == len(taken) + 7
    assert f"asv run: results/asv/{taken} is another machine; this one is {submission.machine}" in said
    assert {file.parent.name for file in submit.asv_results(submission)} == {submission.machine}
    monkeypatch.setattr(submit.subprocess, "Popen", lambda command, **_: called.extend(command) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        submit._asv(submission, "x")
    assert called[called.index("--machine") + 1] == submission.machine


def test_a_rung_that_failed_is_named_and_tried_again(submission: submit.Submission) -> None:
    run, _ = asv(submission, {"channels_last": 2})
    assert submit.history(submission, run) == ["channels_last"]
    run, asked = asv(submission)
    assert submit.history(submission, run) == [] and asked == ["channels_last"]


def test_an_asv_that_cannot_run_ends_it_at_once(submission: submit.Submission) -> None:
    run, asked = asv(submission, {"baseline": 1})
    with pytest.raises(UserError, match="ended with status 1 at baseline"):
        submit.history(submission, run)
    assert asked == ["baseline"]


def test_when_the_time_is_over_the_rest_waits_for_the_next_call(submission: submit.Submission) -> None:
    submission.minutes = 0
    run, asked = asv(submission)
    assert submit.history(submission, run) == ["channels_last", "bf16"] and asked == ["baseline"]


def test_the_rungs_are_those_of_asv_that_this_machine_can_do() -> None:
    here = submit.Submission(submit.ROOT, "0" * 40, "cpu", system.facts("cpu"), 18.0, print)
    found = submit._rungs(here)
    assert found[0] == "baseline" and "channels_last" in found and "cuda_graphs" not in found


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_rung_that_is_asked_for_has_a_series_that_is_not_retired(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the command would say for ever that something is left."""
    here = dict.fromkeys(system.CAPABILITIES) if device == "cuda" else system.capabilities("cpu")
    monkeypatch.setattr(system, "capabilities", lambda device: here)
    made = submit.Submission(submit.ROOT, "0" * 40, device, {}, 18.0, print)
    pairs = {(made.workload, rung) for rung in submit._rungs(made)}
    known = {pair for pair in series.SERIES if pair[0] == made.workload}
    assert series.RETIRED and pairs == known - series.RETIRED


def test_a_list_of_series_that_cannot_be_read_ends_the_command_in_one_line(
    submission: submit.Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    (submission.root / "benches").mkdir()
    (submission.root / "benches" / "__init__.py").touch()  # else an installed `benches` goes before it
    (submission.root / "benches" / "series.py").write_text("raise ValueError('no such thing')")
    with pytest.raises(UserError, match="asv's list of series cannot be read: ValueError: no such thing"):
        submit._series(submission)


# --- all of it, with nothing in another's place --------------------------------------------------------------------


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

    def submitted() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, timeout=600)

    done = submitted()
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line for line in done.stderr.splitlines() if line.startswith(("ladder run:", "asv run:"))]
    wanted = [rung for workload, rung in series.SERIES if workload == "tiny"]
    assert ran[0] == "ladder run: tiny on cpu, a quick one"
    assert ran[1] == f"asv run: {len(wanted)} rungs of tiny, 0 already stored"
    assert ran[2] == f"asv run: {wanted[0]} (1 of {len(wanted)})" and len(ran) == 2 + len(wanted)
    assert "4 files to send, all accepted" in done.stdout and "call `ladder submit` again" not in done.stdout
    (path,) = (clone / "results" / "asv").glob("*/*-checkout-*.json")
    row = json.loads(path.read_text())["results"][asvseries.STEP]
    measured = {rung for index, (_, rung) in asv_files.combinations(row) if asv_files.number(row[0][index])}
    assert measured == set(wanted)
    seen = {file: file.stat().st_mtime_ns for file in (clone / "results").rglob("*-2*.json")} | {
        path: path.stat().st_mtime_ns
    }

    again = submitted()
    assert again.returncode == 0, again.stdout + again.stderr
    assert "is there and complete" in again.stderr and f"{len(wanted)} already stored" in again.stderr
    assert seen == {file: file.stat().st_mtime_ns for file in seen}
    assert again.stdout.splitlines()[-4:] == done.stdout.splitlines()[-4:]
    assert [line for line in again.stdout.splitlines() if line.strip().startswith("git add")]


# --- what is sent -------------------------------------------------------------------------------------------------


def whole(
    submission: submit.Submission, monkeypatch: pytest.MonkeyPatch, outcomes: dict | None = None
) -> Any:
    monkeypatch.setattr(submit, "prepare", lambda budget, say: submission)
    monkeypatch.setattr(submit, "_asv", asv(submission, outcomes)[0])
    monkeypatch.setattr(submit.paired, "__defaults__", (climbed(submission),))
    return CliRunner().invoke(cli.main, ["submit"], prog_name="ladder")


def test_the_files_are_validated_named_and_added_by_the_commands(
    submission: submit.Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = whole(submission, monkeypatch)
    assert seen.exit_code == 0, seen.output
    (add,) = [line.split()[2:] for line in seen.stdout.splitlines() if line.strip().startswith("git add ")]
    assert len(add) == 4 and "4 files to send" in seen.stdout
    paths = [submission.root / name for name in add]
    assert not [each for each in validate.validate(paths) if each.problem]
    assert {path.parts[-2] for path in paths} == {submission.facts["name"], "notes"}
    assert not [name for name in add if "benchmarks.json" in name]
    assert f"git switch -c results-{submission.facts['name']}-{submission.commit[:8]}" in seen.stdout
    for path in paths:
        assert path.is_file()


def test_what_is_left_for_the_next_call_is_said_with_status_1(
    submission: submit.Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = whole(submission, monkeypatch, {"bf16": 2})
    assert seen.exit_code == 1 and "asv has no time of bf16: call `ladder submit` again" in seen.stdout
    seen = whole(submission, monkeypatch, {"bf16": KeyboardInterrupt()})
    assert seen.exit_code == 130 and "`ladder submit` goes on" in seen.stderr


def test_a_file_that_would_be_refused_is_not_sent(
    submission: submit.Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(request: Any, on_file: Callable[[Path], None]) -> Any:
        def spoil(path: Path) -> None:
            path.write_text(json.dumps(json.loads(path.read_text()) | {"html": "x"}))
            on_file(path)

        return climbed(submission)(request, spoil)

    monkeypatch.setattr(submit, "prepare", lambda budget, say: submission)
    monkeypatch.setattr(submit, "_asv", asv(submission)[0])
    monkeypatch.setattr(submit.paired, "__defaults__", (broken,))
    seen = CliRunner().invoke(cli.main, ["submit"], prog_name="ladder")
    assert seen.exit_code == 1 and "unknown key 'html'" in seen.stderr and "git add" not in seen.stdout


def test_a_gpu_known_from_asv_alone_can_be_read_for_the_front_page(submission: submit.Submission) -> None:
    run, _ = asv(submission)
    submit.history(submission, run)
    (point,) = asvseries.points(submission.root / "results" / "asv")
    assert [name for name, _ in point.ms] == RUNGS
