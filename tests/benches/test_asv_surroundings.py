"""asv in strange surroundings: another repository's variables, users' settings, worktrees, no git, others' machines."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from benches import _hardware
from ladder.publish.history import machines as asvmachines
from ladder.publish.validation import validate
from tests.support import repositories
from tests.support.repositories import git
from tests.support.toyhistory import asv

H200 = {"name": "nvidia-h200", "gpu": "NVIDIA H200", "gpu_memory_gb": 139.8, "cpu": "Intel Xeon"}
H200 |= {"cores": 16, "ram_gb": 126.0, "os": "Linux x86_64"}
ONE = ("run", "v2^!", "-b", "tiny")


def files(history: Path) -> dict[str, bytes]:
    """Everything under results, by path."""
    found = (path for path in (history / "results").rglob("*") if path.is_file())
    return {path.relative_to(history).as_posix(): path.read_bytes() for path in found}


def ok(run: subprocess.CompletedProcess[str]) -> None:
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr


def refused(run: subprocess.CompletedProcess[str], *words: str) -> str:
    """One line, status 2."""
    assert run.returncode == 2 and run.stderr.count("\n") == 1, run.stdout + run.stderr
    assert "Traceback" not in run.stdout and all(word in run.stderr for word in words), run.stderr
    return run.stderr


def commits(history: Path) -> list[str]:
    """The commits that asv has results of."""
    found = (history / "results/asv").glob("*/????????-*.json")
    return [json.loads(path.read_text())["commit_hash"] for path in found]


# --- git ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("run", "none..v2"), ("commits 'none..v2'", "none")),
        (("run", ""), ("name a commit", "main~9..main")),
        (("run", "-b", "step_time("), ("'step_time(' is no regular expression", "\\(")),
        (("run", "v2^!", "-b", "nosuch"), ("No benchmarks selected",)),
        (("run", "HASHFILE:nosuch"), ('"nosuch" is not a file',)),
        (("run", "-E", "nosuch"), ("'nosuch' is no environment", "checkout", "managed")),
        (("check", "-E", "nosuch"), ("'nosuch' is no environment",)),
        (("find", "v1..v6", "step_time("), ("'step_time(' is no regular expression",)),
        (("find", "v1..v6", "nosuch"), ("'nosuch' benchmark not found",)),
        (("find", "v1..v6", "Rung"), ("'Rung' matches more than one benchmark",)),
        (("find", "v2..v2", "step_time"), ("No commit hashes selected",)),
        (("preview",), (".asv/html", "`asv publish` makes the site")),
        (("profile", "nosuch"), ("'nosuch' benchmark not found",)),
        (("continuous", "nosuch"), ("Unknown commit nosuch",)),
    ],
)
def test_a_wrong_call_is_one_line_and_leaves_no_machine(history, command, words):
    """A machine without a result would be one that `asv compare` asks about."""
    refused(asv(history, *command), *words)
    assert not list((history / "results").rglob("machine.json"))


def test_a_wrong_question_about_results_is_one_line_and_removes_nothing(history):
    ok(asv(history, *ONE))
    (history / "stylegan_lite/left.py").touch()
    ok(asv(history, "run", "--python=same", "-b", "tiny"))
    before = files(history)
    refused(asv(history, "rm", "-y", "nosuch=1"), "'nosuch=1'", "commit_hash", "python", "tree")
    refused(asv(history, "rm", "python=3.*"), "no terminal", "--help")
    refused(asv(history, "show", "nosuch"), "'nosuch'", "`asv show`")
    refused(asv(history, "show", "v3"), "'v3'", "`asv show`")
    refused(asv(history, "compare", "v2", "v3"), "Did not find results for commit")
    assert files(history) == before
    ok(shown := asv(history, "show", "v2"))
    assert "rungs.Rung" in shown.stdout
    ok(asv(history, "rm", "-y", "tree=dirty", "python=3.*"))  # the other result has no tree
    assert commits(history) == [git(history, "rev-parse", "v2")]


@pytest.mark.parametrize("command", [("check",), ("run", "v2^!")])
def test_benchmarks_that_cannot_be_imported_are_one_line_with_the_place(history, command):
    (history / "benches/broken.py").write_text("\nx = (\n")
    refused(asv(history, *command), "benches/broken.py:2: SyntaxError: '(' was never closed")


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interruption_of_a_measurement_is_one_line_and_leaves_no_process(history, name, status):
    benchmark = history / "benches/rungs.py"
    ends = f"os.kill(os.getppid(), signal.{name}); time.sleep(600)"
    pid = f"Path({str(history.parent / 'pid')!r}).write_text(str(os.getpid()))"
    benchmark.write_text(
        benchmark.read_text().replace(
            "import stylegan_lite", f"import signal, stylegan_lite, time; {pid}; {ends}"
        )
    )
    run = asv(history, *ONE, "--launch-method=spawn")
    assert run.returncode == status and run.stderr == "asv: interrupted\n", run.stdout + run.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int((history.parent / "pid").read_text()), 0)
    assert commits(history) == []


# --- whose machine it is --------------------------------------------------------------------------------------------


def store(history: Path, **other: str) -> str:
    """Commit the folder of a machine with this one's GPU or CPU; returns its name."""
    record = asvmachines.describe(_hardware.facts()) | other
    path = history / "results/asv" / record["machine"] / "machine.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**record, "version": 1}))
    repositories.commit_all(history, "somebody's results")
    return record["machine"]


def test_where_the_folder_is_anothers_a_new_name_is_asked_for_before_measuring(history):
    """An owner of the same card in another host: neither the record is overwritten, nor results are mixed."""
    taken = store(history, num_cpu="96")
    before = files(history)
    said = refused(asv(history, *ONE), f"results/asv/{taken} is another machine", "num_cpu 96, here ")
    refused(asv(history, *ONE, "--machine", taken), f"--machine {taken}: ", "is another machine")
    assert files(history) == before and not (history / ".asv").exists()

    new = said.split("--machine ")[1].strip()
    ok(asv(history, *ONE, "--machine", new))
    ok(asv(history, "run", "v3^!", "-b", "tiny"))  # from now on it is known
    assert {Path(name).parts[2] for name in files(history)} - {taken, "benchmarks.json"} == {new}
    assert {name: files(history)[name] for name in before} == before
    judged = list(validate.validate([history / "results/asv" / new]))
    assert [each.problem for each in judged] == [None] * 5, judged
