"""How the command is started: by which name, from which folder, in a Python that lacks something."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ladder.cli import main as about
from ladder.core import starting
from ladder.core.paths import ROOT

# of ladder, by whatever Python there is
READ_FIRST = ("__init__.py", "__main__.py", "core/__init__.py", "core/paths.py", "core/starting.py")


def bare(tmp_path: Path, *arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run this Python without anything that is installed; its first argument follows `-m`."""
    if not (tmp_path / "bare").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    return subprocess.run(
        [python, "-m", *arguments],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", READ_FIRST)
def test_what_is_read_first_is_plain_enough_for_an_old_python(name: str) -> None:
    """Else a SyntaxError comes before the line that says which Python is needed."""
    tree = ast.parse((ROOT / "ladder" / name).read_text(), feature_version=(3, 6))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert "__future__" not in modules  # `annotations` came in 3.7
    assert not any(isinstance(node, (ast.NamedExpr, ast.Match)) for node in ast.walk(tree))


@pytest.mark.parametrize("old", sorted(Path.home().glob(".pyenv/versions/3.[6-9].*/bin/python"))[:2])
def test_an_old_python_is_refused_in_one_line(old: Path) -> None:
    run = subprocess.run(
        [old, "-m", "ladder", "x"], cwd=ROOT, capture_output=True, text=True, errors="replace"
    )
    (line,) = run.stderr.splitlines()
    assert run.returncode == 2 and "3.10 or newer is needed" in line


def test_an_installation_without_its_checkout_is_refused_in_one_line(tmp_path: Path) -> None:
    """`pip install .` leaves ladders behind: "no ladder 'article'; there are: " says too little."""
    copy = tmp_path / "site"
    shutil.copytree(ROOT / "ladder", copy / "ladder", ignore=shutil.ignore_patterns("*.yaml", "__pycache__"))
    run = bare(tmp_path, "ladder", "--version", cwd=tmp_path, PYTHONPATH=str(copy))
    (line,) = run.stderr.splitlines()
    assert run.returncode == 2 and "pip install -e ." in line and str(copy.name) in line


@pytest.mark.parametrize("asked", ["ladder", "ladder doctor", "kernels.tuning"])
def test_a_missing_package_is_one_line_with_the_command_that_helps(asked: str, tmp_path: Path) -> None:
    run = bare(tmp_path, *asked.split())
    (line,) = run.stderr.splitlines()
    assert run.returncode == 2 and not run.stdout
    assert "is not installed for" in line and re.search(r"`make setup`|`\.venv/bin/\S+", line), line


def test_version_says_what_a_report_of_a_fault_needs() -> None:
    names = list(about.list_versions())
    assert names == ["ladder", "commit", "torch", "CUDA", "cuDNN"]
    assert about.list_versions()["ladder"] == starting.read_version() and re.match(
        r"\d+\.\d+", starting.read_version()
    )
