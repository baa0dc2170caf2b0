"""Waiting until a process group uses no CPU: how long it lasts, and when it is given up."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ladder.machine import stillness

Started = Callable[[str], int]


@pytest.fixture
def started() -> Iterator[Started]:
    """A function that runs a program in a group of its own, waits for its first line, and returns the group."""
    running: list[subprocess.Popen] = []

    def start(program: str) -> int:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        running.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"on\n"
        return process.pid

    yield start
    for process in running:
        os.killpg(process.pid, 9)
        process.communicate()


SPINS = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end:\n    pass\n"
SLEEPS = "import sys\nsys.stdin.read()\n"


def test_a_process_that_works_is_waited_for(started: Started) -> None:
    group = started("print('on')\n" + SPINS.format(seconds=1.0) + SLEEPS)
    assert (stillness.wait_until_still(group, quiet_s=1.0, limit_s=60) or 0) > 0.2


def test_a_child_of_it_is_waited_for_too(started: Started) -> None:
    child = SPINS.format(seconds=1.0) + SLEEPS
    group = started(f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
                    "print('on')\np.wait()\n")  # fmt: skip
    assert (stillness.wait_until_still(group, quiet_s=1.0, limit_s=60) or 0) > 0.2


def test_a_name_with_brackets_and_spaces_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second field of a stat file is the command, which may hold anything."""
    ticks = iter(range(10**6))
    (tmp_path / "7").mkdir()
    real = Path.read_text

    def read(path: Path, **how: str) -> str:
        if path.name != "stat":
            return real(path, **how)
        return f"7 (a) b (c) S 1 7 7 0 -1 0 0 0 0 0 {next(ticks)} 1 0 0"

    (tmp_path / "7" / "stat").touch()
    monkeypatch.setattr(stillness, "PROC", tmp_path)
    monkeypatch.setattr(Path, "read_text", read)
    assert stillness.wait_until_still(7, limit_s=0.2) is None and stillness.wait_until_still(8) == 0.0


def test_without_proc_or_processes_there_is_nothing_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stillness, "PROC", tmp_path / "nowhere")
    assert stillness.wait_until_still(os.getpgrp()) == 0.0
    monkeypatch.setattr(stillness, "PROC", tmp_path)
    assert stillness.wait_until_still(os.getpgrp()) == 0.0
