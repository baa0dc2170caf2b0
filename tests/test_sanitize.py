"""The sanitizer's verdicts, and that what it watches is every kernel there is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ladder import sanitize

ROOT = Path(__file__).parents[1]
CLEAN = "========= COMPUTE-SANITIZER\nlaunched: a_kernel\n========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    ("text", "status", "verdict"),
    [
        (CLEAN, 0, "clean"),
        (CLEAN.replace("0 errors", "3 errors"), 0, "errors"),
        (
            "launched: a_kernel\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
            0,
            "clean",
        ),
        (
            "launched: a_kernel\n========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)",
            0,
            "errors",
        ),
        (CLEAN, 1, "did not run"),  # the program under it failed
        (CLEAN.replace("launched: a_kernel\n", ""), 0, "did not run"),  # nothing was watched
        ("========= Error: Device not supported", 1, "did not run"),
        ("", 0, "did not run"),
    ],
)
def test_only_a_run_that_launched_kernels_and_found_nothing_is_clean(text, status, verdict):
    assert sanitize.judge(text, status)["status"] == verdict


def test_what_is_published_names_no_folder_of_this_machine():
    found = sanitize.judge("at /home/someone/secret/kernel.py:3\n" + CLEAN, 0)
    assert "someone" not in json.dumps(found)


def test_where_it_cannot_run_it_says_so_in_one_line(tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "ladder.sanitize", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("sanitize: ")
    assert len(done.stderr.splitlines()) == 1


def test_every_kernel_is_launched(monkeypatch):
    """In the interpreter, on one shape: which kernels run does not depend on it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    import kernels
    from kernels import tiles
    from kernels.choices import Choice
    from ladder.watch import launches
    from tests.test_kernels_compile import jit_kernels

    monkeypatch.setattr(tiles, "choose", lambda *key: Choice(tile=16, columns=4, warps=1, per_sm=1))
    tiles.tiling.cache_clear()
    with launches() as seen:
        x = torch.randn((2, 5, 3, 7), device="cuda" if torch.cuda.is_available() else "cpu")
        for function, inputs in sanitize.calls(kernels, x):
            sanitize.differentiate_twice(function, inputs)
    tiles.tiling.cache_clear()
    assert set(seen) == jit_kernels()
