"""`ladder submit --slurm`: what sbatch is given, and what its script does when Slurm ends and requeues it."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
from pathlib import Path

import pytest

from ladder.cli import submit
from ladder.publish import fleet
from tests.support.commands import call, refused

SBATCH = """#!/bin/sh
printf '%s\\n' "$@" > "$FAKE/sbatch.$(echo "$2" | cut -d= -f2)"
case "$2" in *full*) echo "sbatch: error: Batch job submission failed: Invalid partition" >&2; exit 1;; esac
echo "41;cluster"
"""
# `ladder run` and `ladder validate`: what each call does stands in a line of its own in $FAKE/plan.
LADDER = """#!/bin/bash
echo "$*" >> "$FAKE/calls"
if [ "$3" = validate ]; then grep -q bad "$4" && exit 1; exit 0; fi
read -r status complete < "$FAKE/plan"; sed -i 1d "$FAKE/plan"
if [ "$4" = --resume ]; then file=$5; else file=$7/gpu/run-$(wc -l < "$FAKE/calls").json; fi
mkdir -p "$(dirname "$file")"
[ "$status" = 2 ] || printf '{\\n "complete": %s\\n}\\n' "$complete" > "$file"
exit "$status"
"""
SQUEUE = '#!/bin/sh\n[ "$2" = --jobs=41_1 ] && cat "$FAKE/state"\n'
SCONTROL = '#!/bin/sh\necho "$*" >> "$FAKE/scontrol"\n'


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with stand-ins for Slurm's commands and for `ladder`, and with what they were called with."""
    for name, text in (("sbatch", SBATCH), ("python", LADDER), ("scontrol", SCONTROL), ("squeue", SQUEUE)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "state").write_text("RUNNING\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(tmp_path))
    monkeypatch.setattr(fleet.sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(submit, "refuse_changes", lambda: "0" * 40)
    return tmp_path


def task(fake: Path, plan: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the script of a fleet as Slurm runs its task 1, with the statuses that `ladder run` ends with."""
    fleet.submit(fleet.Fleet(fake / "out", ("a100",), ("tiny", "article"), ("--rounds", "3")))
    (fake / "plan").write_text(plan)
    slurm = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "41", "SLURM_JOB_PARTITION": "a100"}
    slurm |= {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}
    return subprocess.run(
        ["bash", fake / "out" / "job.sh"], env=os.environ | slurm, capture_output=True, text=True, timeout=60
    )


def calls(fake: Path) -> list[str]:
    return (fake / "calls").read_text().splitlines()


def shared(fake: Path) -> list[str]:
    return sorted(path.name for path in (fake / "out" / "results" / "ladder").rglob("*.*"))


def test_each_partition_gets_an_array_of_the_workloads(fake: Path) -> None:
    out = fake / "out"
    asked = ["-w", "tiny", "-w", "article", "--sbatch=--gres=gpu:1", "--out", out, "--", "--budget", "20"]
    run = call("submit", "--slurm", "a100", "--slurm", "full", "--slurm", "h100", *asked)
    assert run.exit_code == 1  # a partition refused, and held no other up
    assert "a100: job 41, 2 tasks" in run.stdout and "h100: job 41" in run.stdout
    assert "full: refused: sbatch: error: Batch job submission failed: Invalid partition" in run.stderr
    given = (fake / "sbatch.h100").read_text().splitlines()
    logs = f"--output={out}/logs/h100-%a.log"
    assert given == ["--parsable", "--partition=h100", "--array=0-1", logs, "--gres=gpu:1", f"{out}/job.sh"]
    script = (out / "job.sh").read_text()
    assert "--requeue" in script and "workloads=(tiny article)\narguments=(--budget 20)\n" in script


def test_a_whole_run_is_checked_and_joins_the_others(fake: Path) -> None:
    assert task(fake, "1 true\n").returncode == 0  # a rung without a number is no fault of the task
    own = fake / "out" / "tasks" / "a100" / "article"
    assert calls(fake)[0] == f"-m ladder run --workload article --out {own} --rounds 3"
    assert calls(fake)[1] == f"-m ladder validate {own}/gpu/run-1.json"
    assert shared(fake) == ["run-1.json"] and not (fake / "scontrol").exists()


@pytest.mark.parametrize("status", [137, 143, 130])
def test_a_task_that_was_ended_is_requeued_and_goes_on(fake: Path, status: int) -> None:
    assert task(fake, f"{status} false\n").returncode == status
    assert (fake / "scontrol").read_text() == "requeue 41_1\n" and shared(fake) == []
    assert task(fake, "0 true\n", restarts=1).returncode == 0
    own = f"{fake}/out/tasks/a100/article"
    asked = f"--workload article --out {own} --rounds 3"
    assert calls(fake)[1] == f"-m ladder run --resume {own}/gpu/run-1.json {asked}"
    assert shared(fake) == ["run-1.json"]


@pytest.mark.parametrize("state, restarts, status", [("COMPLETING", 0, 130), ("RUNNING", 9, 137)])
def test_a_task_that_was_cancelled_or_ended_too_often_is_given_up(
    fake: Path, state: str, restarts: int, status: int
) -> None:
    (fake / "state").write_text(f"{state}\n")
    assert task(fake, f"{status} false\n", restarts).returncode == status
    assert not (fake / "scontrol").exists()


def test_another_kind_of_node_begins_anew_and_the_file_goes_on_where_it_can(fake: Path) -> None:
    task(fake, "137 false\n")
    assert task(fake, "2 false\n0 true\n", restarts=1).returncode == 0
    assert shared(fake) == ["run-3.json"]
    assert task(fake, "0 true\n", restarts=2).returncode == 0
    assert "run --resume" in calls(fake)[-2] and shared(fake) == ["run-1.json", "run-3.json"]


def test_a_task_leaves_alone_what_another_task_writes(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "WAIT_S", 0)
    task(fake, "137 false\n")
    own = fake / "out" / "tasks" / "a100" / "article"
    with (own / ".task").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = task(fake, "2 false\n2 false\n")
    assert second.returncode == 2 and "another task" in second.stdout
    assert (own / "gpu" / "run-1.json").is_file() and len(calls(fake)) == 1


def test_two_runs_of_the_same_second_are_both_kept(fake: Path) -> None:
    other = fake / "out" / "results" / "ladder" / "gpu" / "run-1.json"
    other.parent.mkdir(parents=True)
    other.write_text("of another partition")
    assert task(fake, "0 true\n").returncode == 0
    assert shared(fake) == ["run-1-2.json", "run-1.json"] and other.read_text() == "of another partition"


@pytest.mark.parametrize("plan, status", [("2 false\n", 2), ("0 bad\n", 1)], ids=["impossible", "not valid"])
def test_what_is_no_result_stays_away_from_the_others(fake: Path, plan: str, status: int) -> None:
    assert task(fake, plan).returncode == status
    assert shared(fake) == [] and not (fake / "scontrol").exists()


def test_names_with_spaces_and_quotes_reach_the_script_as_they_are(fake: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a 'b' $(c)"
    folder.mkdir()
    workload = folder / "my work.yaml"
    workload.write_text("resolution: 8\nchannel_base: 64\nbatch: 4\n")
    fleet.submit(fleet.Fleet(folder, ("a100",), (str(workload),), ("--data", "x y")))
    words = 'printf "%s\\n" "$fleet" "${workloads[@]}" "${arguments[@]}"; exit'
    head = (folder / "job.sh").read_text().partition("name=$")[0] + words
    said = subprocess.run(["bash", "-c", head], capture_output=True, text=True).stdout.splitlines()
    assert said == [str(folder), str(workload), "--data", "x y"]


def test_bad_requests_are_one_line(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = ("submit", "--slurm", "a", "--out", tmp_path / "o")
    for arguments, words in (
        (("submit", "-w", "tiny"), "only with --slurm"),
        (("submit", "--slurm", "a b", "--out", tmp_path / "o"), "is no name of a partition"),
        ((*slurm, "-w", "nosuch"), "nosuch"),
        ((*slurm, "-w", "tiny", "-w", "tiny"), "share a folder"),
        ((*slurm, "--budget", "9"), "-- --budget MINUTES"),
        ((*slurm, "--", "--budgett", "9"), "behind --, options of `ladder run`: No such option '--budgett'"),
        ((*slurm, "--", "--cycles", "0"), "is not in the range"),
        ((*slurm, "--", "fused_act"), "unexpected extra argument"),
        ((*slurm, "--", "--ladder", "nosuch"), "no ladder 'nosuch'"),
        ((*slurm, "--", "--rungs", "bf16,nosuch"), "--rungs: nosuch not in ladder article"),
        ((*slurm, "--", "--mode", "levers", "--rungs", "bf16"), "--rungs: bf16 not in the levers"),
        ((*slurm, "--", "--resume", "x"), "is set by each task: leave it out"),
        ((*slurm, "--", "-w", "x"), "is set by each task: leave it out"),
    ):
        assert words in refused(*arguments), arguments
    assert not (tmp_path / "o").exists()
    monkeypatch.setenv("PATH", "/usr/bin/nowhere")
    assert "no sbatch on the PATH" in refused(*slurm)
