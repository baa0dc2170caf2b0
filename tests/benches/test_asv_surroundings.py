"""asv in strange surroundings: another repository's variables, users' settings, worktrees, no git, others' machines."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benches import ROOT, _hardware
from ladder.base.errors import UserError
from ladder.publish.history import machines as asvmachines
from ladder.publish.validation import validate
from tests.base.test_git import KEYGEN, SETTINGS
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


def test_a_hook_and_the_users_settings_lead_asv_nowhere_else(history, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "other")
    (tmp_path / "ignored").touch()
    (tmp_path / "keygen").write_text(KEYGEN)
    (tmp_path / "keygen").chmod(0o755)
    settings = SETTINGS.format(ignored=tmp_path / "ignored", keygen=tmp_path / "keygen")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-checkout").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "post-checkout").chmod(0o755)
    settings += f'[core]\n    hooksPath = {hooks}\n[protocol "file"]\n    allow = never\n'
    (tmp_path / "settings").write_text(settings)
    env = {"GIT_CONFIG_GLOBAL": str(tmp_path / "settings"), "LANG": "de_DE.UTF-8"}
    env |= {"GIT_DIR": str(other / ".git"), "GIT_INDEX_FILE": str(other / ".git/index")}
    ok(asv(history, *ONE, **env))
    ok(asv(history, "run", "--python=same", "-b", "tiny", **env))
    assert sorted(commits(history)) == sorted(git(history, "rev-parse", name) for name in ("v2", "HEAD"))
    ok(asv(history, "publish", **env))
    assert git(other, "status", "--porcelain") == ""


def _no_git(history: Path, home: Path) -> dict[str, str]:
    return {"PATH": str(home)}


def _no_repository(history: Path, home: Path) -> dict[str, str]:
    shutil.rmtree(history / ".git")
    return {}


def _inside_another(history: Path, home: Path) -> dict[str, str]:
    shutil.rmtree(history / ".git")
    git(history.parent, "init", "-q")
    return {}


def _of_another_user(history: Path, home: Path) -> dict[str, str]:
    """git's own way to test this, which reaches it past what is dropped."""
    wrapper = home / "git"
    wrapper.write_text(f'#!/bin/sh\nGIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec {shutil.which("git")} "$@"\n')
    wrapper.chmod(0o755)
    return {"PATH": f"{home}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("spoil", "said", "commands"),
    [
        (_no_git, "git was not found", ("run",)),
        (_no_repository, "no git repository", ("run", "publish")),
        (_inside_another, "a folder of another git repository", ("run",)),
        (_of_another_user, "git config --global --add safe.directory", ("run",)),
    ],
)
def test_without_a_commit_asv_stops_in_one_line_and_writes_nothing(history, tmp_path, spoil, said, commands):
    home = tmp_path / "bin"
    home.mkdir()
    env = spoil(history, home)
    for command in commands:
        refused(asv(history, command, **env), said)
    assert files(history) == {} and not (history / ".asv").exists()


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


def test_a_stream_or_port_that_cannot_be_used_is_no_traceback(history):
    ok(asv(history, *ONE))
    (history / ".asv/html").mkdir(parents=True)
    refused(asv(history, "preview", "--port", "99999"), "port must be 0-65535")
    for into, status, said in ((" > /dev/full", 2, "asv: standard output: No space left"), ("| true", 1, "")):
        run = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m asv show v2 {into}; exit ${{PIPESTATUS[0]}}"],
            cwd=history,
            capture_output=True,
            text=True,
        )
        assert run.returncode == status and run.stderr.startswith(said), run.stderr
        assert run.stderr.count("\n") <= 1


def test_asv_setup_is_done_when_its_environments_are(history):
    """asv itself ends with status 1 and prints a list of objects."""
    ok(run := asv(history, "setup"))
    assert run.stderr == ""


@pytest.mark.parametrize("command", [("check",), ("run", "v2^!")])
def test_benchmarks_that_cannot_be_imported_are_one_line_with_the_place(history, command):
    (history / "benches/broken.py").write_text("\nx = (\n")
    refused(asv(history, *command), "benches/broken.py:2: SyntaxError: '(' was never closed")


@pytest.mark.exhaustive
def test_a_worktree_a_submodule_and_a_read_only_home_are_measured_like_any_clone(history, tmp_path):
    """Each has a `.git` that is a file. Without HOME git has no settings of the user."""
    worktree, outer = tmp_path / "worktree", tmp_path / "outer"
    git(history, "worktree", "add", "-q", "--detach", str(worktree), "v2")
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(history), "inner")
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    home.chmod(0o555)
    try:
        for folder in (worktree, outer / "inner"):
            ok(asv(folder, "run", "-b", "tiny", HOME=str(home)))
            assert commits(folder) == [git(folder, "rev-parse", "HEAD")]
    finally:
        home.chmod(0o755)


@pytest.mark.exhaustive
def test_publishing_from_a_shallow_clone_says_what_is_not_drawn(history, tmp_path):
    (tmp_path / "both").write_text("v2\nv6")
    ok(asv(history, "run", f"HASHFILE:{tmp_path / 'both'}"))
    git(history, "switch", "-q", "--detach", "v6")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{history}", str(shallow))
    shutil.copytree(history / "results", shallow / "results")
    run = asv(shallow, "publish")
    ok(run)
    assert "this clone is shallow: `git fetch --unshallow` gets them" in run.stderr
    refused(asv(shallow, "run", "v1..v2"), "this clone is shallow")


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interruption_outside_a_measurement_is_one_line(name, status):
    """A process of asv's own pools, which asv ends by SIGTERM, says nothing."""
    code = f"""
import multiprocessing, signal, time
from benches import _plugin
_plugin.setup()
forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
forked.start()
forked.terminate()
forked.join()
signal.raise_signal(signal.{name})"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (status, "", "asv: interrupted\n")


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


def test_the_name_of_the_hardware_may_have_six_digits_of_the_users_choice(tmp_path):
    """Two machines that no fact tells apart."""
    first = asvmachines.choose(H200, tmp_path)
    (tmp_path / "nvidia-h200").mkdir()
    (tmp_path / "nvidia-h200" / "machine.json").write_text(json.dumps(first))
    second = asvmachines.choose(H200, tmp_path, "nvidia-h200-000002")
    assert second == first | {"machine": "nvidia-h200-000002"} and asvmachines.choose(H200, tmp_path) == first


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"cores": 32}, "nvidia-h200"),
        ({"ram_gb": 1024.0}, "nvidia-h200"),
        ({"cpu": "AMD EPYC"}, "nvidia-h200"),
        ({}, "mybox"),
        ({}, "nvidia-h200-2"),
        ({}, "nvidia-h200-00000G"),
        ({}, "../nvidia-h200"),
        ({}, "amd-epyc"),
    ],
)
def test_a_name_that_would_be_refused_later_is_refused_at_once(tmp_path, other, named):
    first = asvmachines.choose(H200, tmp_path)
    (tmp_path / "nvidia-h200").mkdir()
    (tmp_path / "nvidia-h200" / "machine.json").write_text(json.dumps(first))
    with pytest.raises(UserError, match=r"^--machine .*nvidia-h200") as line:
        asvmachines.choose(H200 | other, tmp_path, named)
    right = re.search(r"this machine (?:is|with --machine) ([\w-]+)", str(line.value))[1]
    assert asvmachines.choose(H200 | other, tmp_path, right)["machine"] == right
    assert (right == "nvidia-h200") is not bool(other) and "\n" not in str(line.value)
