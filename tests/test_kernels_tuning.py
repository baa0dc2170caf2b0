"""The tuner: what it tries can run, what it prints can be pasted, and without a GPU it says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels import tuning
from kernels.choices import DIRECTIONS, TABLE, Choice, Key

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("size", tuning.SHAPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_candidates_are_what_triton_and_a_multiprocessor_take(direction, size, itemsize):
    found = tuning.candidates(direction, size, itemsize)
    assert len(found) == len(set(found))
    for choice in [*found, *TABLE.values()]:
        assert choice.tile & (choice.tile - 1) == 0
        assert choice.columns <= choice.tile
        assert choice.per_sm * choice.warps <= 64  # resident warps of a multiprocessor
        assert direction == "forward" or choice.per_sm or choice not in found  # sums need few programs


def test_what_is_reported_is_a_row_of_the_table():
    key, choice = Key("modulate", "forward", 2, "nhwc", 90, "large"), Choice(2048, 512, 4)
    row = {"choice": choice._asdict(), "current": True, "all_shapes": True, "share": 0.9}
    text = tuning.report(key, [row | {"runs": [{"shape": (8, 64, 256, 256), "share": 0.9}]}])
    assert eval("{\n" + text + "\n}", {"Key": Key, "Choice": Choice}) == {key: choice}


def test_without_a_gpu_it_says_so_in_one_line():
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "kernels.tuning"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "kernels.tuning: no CUDA GPU that PyTorch can use\n")


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_it_finds_choices(direction, tmp_path, capsys):
    options = ["--op", "modulate", "--direction", direction, "--size", "small", "--minutes", "0.1"]
    assert tuning.main([*options, "--json", str(tmp_path / "tuning.json")]) == 0
    timed = json.loads((tmp_path / "tuning.json").read_text())["timed"]
    assert sum(row["current"] for row in timed) == 1
    assert all(0 < run["share"] < 2 for row in timed if row["current"] for run in row["runs"])
    assert "Choice(" in capsys.readouterr().out
