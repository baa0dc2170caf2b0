"""A clone of this working tree with a toy for the model, and asv run in it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benches import ROOT, _measure
from tests.support.repositories import git

TOY = '''
"""A training step that keeps the contract and computes nothing."""
import time
CONTRACT = 1
class make_step:
    data_capacity = 0
    def __init__(self, workload, recipe, *, device=None, seed=0):
        self.recipe = type("Recipe", (), {{"to_dict": lambda _: recipe}})()
    def prepare(self): return {{}}
    def cycle(self, lazy=True): time.sleep({seconds})
    def settings(self): return {{}}
    def check_finite(self): return None
    def close(self): pass
'''


@pytest.fixture
def clone(tmp_path):
    """This working tree on a branch of another name, with a toy for the model; nothing of the user's around it."""
    clone = tmp_path / "clone"
    for folder in ("benches", "ladder"):
        shutil.copytree(ROOT / folder, clone / folder, ignore=shutil.ignore_patterns("*.pyc.*"))
    for file in ("asv.conf.json", "pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / file, clone / file)
    (ROOT / ".cache").mkdir(exist_ok=True)
    (clone / ".cache").symlink_to(ROOT / ".cache")  # the sample photographs take seconds to make
    with (clone / ".gitignore").open("a") as ignored:
        ignored.write(".cache\n")
    (clone / "kernels").mkdir()
    (clone / "kernels" / "__init__.py").touch()
    (clone / "stylegan_lite").mkdir()
    for name in ("config.py", "shares.py"):  # publishing knows recipes
        shutil.copy(ROOT / "stylegan_lite" / name, clone / "stylegan_lite")
    set_toy(clone, 0.01)
    git(clone, "init", "-q", "-b", "some-branch")
    return clone


def set_toy(clone: Path, seconds: float) -> None:
    (clone / "stylegan_lite" / "__init__.py").write_text(TOY.format(seconds=seconds))


def run_asv(clone: Path, *args: str) -> subprocess.CompletedProcess[str]:
    home = clone.parent / "home"
    home.mkdir(exist_ok=True)
    env = os.environ | {
        "HOME": str(home),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(clone.parent / "decoy"),
    }
    env["TMPDIR"] = str(home.parent)  # holds the device lock: a ladder run beside this must not matter
    env.pop(_measure.HANDOVER, None)
    command = [sys.executable, "-m", "asv", *args]
    return subprocess.run(
        command, cwd=clone, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


BASELINE_ONLY = ("-b", r"\('tiny', 'baseline'\)")


def step_times(clone: Path) -> dict[str, float]:
    """Commit (and "dirty") -> seconds for one step of `tiny`, `baseline`."""
    times = {}
    for path in (clone / "results" / "asv").glob("*/*-checkout-*.json"):
        data = json.loads(path.read_text())
        (result, *_) = data["results"]["rungs.Rung.samples_step_time"]
        times[data["commit_hash"] + data["requirements"].get("tree", "")] = next(v for v in result if v == v)
    return times
