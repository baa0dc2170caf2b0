"""The workflows: pinned, without secrets, unable to write where a stranger's code runs; what they run, run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ladder.studies.commits import study
from tests.support.made_up_comparison import made_up, stored

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "workflows"
NAMES = sorted(path.name for path in FOLDER.glob("*.yml"))


def load(name: str) -> dict[Any, Any]:
    return yaml.safe_load((FOLDER / name).read_text())


def events(name: str) -> dict[str, Any]:
    return load(name)[True]  # YAML 1.1 takes the key `on` for a truth value


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in load(name)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", NAMES)
def test_actions_are_pinned_by_commit_and_leave_no_credential(name: str) -> None:
    for line in (FOLDER / name).read_text().splitlines():
        if "uses:" in line:
            assert re.search(r"uses: actions/[a-z-]+(/[a-z]+)?@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line
    for step in steps(name):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("name", NAMES)
def test_no_secret_is_named_and_nothing_of_an_event_becomes_code(name: str) -> None:
    """A branch may be called `$(...)`: what an event says reaches a script through its environment alone."""
    assert "secrets" not in (FOLDER / name).read_text() and "pull_request_target" not in events(name)
    for step in steps(name):
        assert "${{" not in step.get("run", "") + step.get("with", {}).get("script", "")


@pytest.mark.parametrize("name", NAMES)
def test_who_runs_a_strangers_code_may_only_read_and_who_writes_runs_none(name: str) -> None:
    whole = load(name)
    assert whole["permissions"] in ({}, {"contents": "read"})
    for job in whole["jobs"].values():
        granted = whole["permissions"] | job.get("permissions", {})
        writes = {key for key, value in granted.items() if value == "write"}
        own = "self-hosted" in job["runs-on"]
        if "pull_request" in events(name) or own:
            assert not writes
        if own and "pull_request" in events(name):
            assert events(name)["pull_request"] == {"types": ["labeled"]}
            assert job["environment"] == "gpu-benchmark" and "label.name == 'benchmark'" in job["if"]
        if writes:
            refs = [
                s.get("with", {}).get("ref", "") for s in job["steps"] if "checkout@" in s.get("uses", "")
            ]
            assert all("head" not in ref and "pull" not in ref for ref in refs)
    assert not any("head" in s.get("with", {}).get("ref", "") for s in steps("gpu-comment.yml"))


# --- what a step runs, run ------------------------------------------------------------------------------------------


def run(name: str, step: str, tmp_path: Path, **env: str) -> subprocess.CompletedProcess:
    """A step's script as a runner runs it."""
    (script,) = [each["run"] for each in steps(name) if each.get("name") == step]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=ROOT,
        env=os.environ | {"RUNNER_TEMP": str(tmp_path), "PATH": path} | env,
        capture_output=True,
        text=True,
    )


JUDGE = "Validate, judge anew, write the comment"


def artifact(tmp_path: Path, result: Any) -> None:
    folder = tmp_path / "artifact"
    folder.mkdir(exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(stored(result) if result else None))


@pytest.mark.parametrize("head", [pytest.param(1.0, marks=pytest.mark.exhaustive), 1.05])
def test_the_second_stage_writes_the_comment_whatever_the_verdict(tmp_path: Path, head: float) -> None:
    artifact(tmp_path, made_up(head))
    seen = run("gpu-comment.yml", JUDGE, tmp_path, HEAD="b" * 40)
    assert seen.returncode == 0, seen.stderr
    page = (tmp_path / "comment.md").read_text()
    assert page.startswith(study.MARK) and ("HEAD is slower" in page) == (head > 1)


def test_the_second_stage_refuses_what_is_no_result_or_another_commits(tmp_path: Path) -> None:
    for result, head in ((made_up(), "c" * 40), (None, "b" * 40)):
        artifact(tmp_path, result)
        seen = run("gpu-comment.yml", JUDGE, tmp_path, HEAD=head)
        assert seen.returncode == 2 and not (tmp_path / "comment.md").exists()
        assert "comparison.json: " in seen.stderr and seen.stderr.count("\n") == 1


def test_what_validates_needs_no_more_of_the_lock_than_is_installed_for_it(tmp_path: Path) -> None:
    """No torch, in particular: the trusted stage is a minute, and reads files only."""
    artifact(tmp_path, made_up())
    for name, command in (
        ("gpu-comment.yml", ["bench-compare", "--report", str(tmp_path / "artifact" / "comparison.json")]),
        ("nightly.yml", ["history"]),
    ):
        (listed,) = [s["run"] for s in steps(name) if s.get("name", "").startswith("What validating needs")]
        wanted = re.search(r"\^\((.*)\)==", listed)[1].split("|")
        modules = {"pyyaml": "yaml", "pillow": "PIL", "asv.runner": "asv_runner"}
        allowed = {modules.get(each, each) for each in wanted}
        allowed |= {"typing_extensions"}  # msgspec uses it where it is there
        if "asv" in wanted:  # what it needs itself
            allowed |= {"json5", "tabulate", "packaging", "importlib_metadata", "zipp", "lazy_importer"}
        program = (
            "import sys; sys.argv = ['ladder', *sys.argv[1:]]\n"
            "from ladder.cli.main import main\n"
            "try:\n    main()\nexcept SystemExit:\n    pass\n"
            "print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names), file=sys.stderr)"
        )
        seen = subprocess.run(
            [sys.executable, "-c", program, *command], cwd=ROOT, capture_output=True, text=True
        )
        used = {each for each in seen.stderr.split() if not each.startswith(("_", "cython"))}
        assert used - allowed == {"ladder", "stylegan_lite"}, used - allowed
