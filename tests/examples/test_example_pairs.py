"""The examples of pairs climb on the CPU, as a user runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ladder.core.git import clean_environment
from tests.studies.test_studies_of_pairs import PAIR
from tests.support.repositories import commit_all, git

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "dcgan": ("width=4", "batch=4", "z_dim=8"),
    "r3gan": ("size=16", "width=16", "blocks=1", "batch=4", "z_dim=8"),
    "superres": ("size=32", "width=8", "blocks=1", "batch=2"),
    "vae_patchgan": ("size=32", "width=8", "batch=2"),
    "vocoder": ("width=8", "batch=2", "samples=256"),
}


def ladder(*arguments, cwd=ROOT):
    command = [sys.executable, "-m", "ladder", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=500)


def with_model(name, device="cpu"):
    settings = [part for each in TINY[name] for part in ("--set", each)]
    return ["--model", ROOT / "examples" / "pairs" / f"{name}.py", *settings, "--device", device]


@pytest.mark.parametrize("name", TINY)
def test_an_example_climbs_with_receipts_and_parity(name, tmp_path):
    quick = [
        "--rungs",
        "baseline,channels_last,fused_adam,double_backward",
        "--generations",
        1,
        "--cycles",
        1,
    ]
    # Weight norm makes weights, and folding images, in NCHW. R3GAN alone has penalties.
    lacks = ["double_backward"] * (name != "r3gan") + ["channels_last"] * (name == "vocoder")
    done = ladder("run", *with_model(name), *quick, "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["workload"]["name"], result["ladder"]["name"]) == (name, "pair")
    assert [rung["name"] for rung in result["rungs"] if rung["status"] == "n/a"] == lacks
    for rung in (rung for rung in result["rungs"] if rung["name"] not in lacks):
        assert rung["status"] == "ok" and not rung["parity"]["problems"]
        assert all(receipt["engaged"] for receipt in rung["receipts"].values())
        assert {"loss", "gradient", "update"} <= rung["parity"]["phases"]["D_main"].keys()
    stored = next(tmp_path.rglob("*.json"))
    assert "examples" not in (text := stored.read_text()) and "class" not in text
    assert len(result["workload"]["pair"]) == 16
    checked = ladder("validate", stored)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["dcgan", "vae_patchgan", "vocoder"])
def test_an_example_climbs_all_rungs_on_a_gpu(name, tmp_path):
    quick = ["--generations", 1, "--cycles", 1, "--out", tmp_path, "--json"]
    done = ladder("run", *with_model(name, "cuda"), *quick)
    assert done.returncode == 0, done.stderr
    assert {rung["status"] for rung in json.loads(done.stdout)["rungs"]} <= {"ok", "n/a"}


def test_the_page_has_the_whole_adapter():
    page = (ROOT / "docs" / "your-pair.md").read_text(encoding="utf-8")
    code = (ROOT / "examples" / "pairs" / "dcgan.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```\n" in page and 40 <= len(code.splitlines()) <= 120


def test_a_pair_is_shown_with_the_rungs_that_apply():
    done = ladder("show", "memory", *with_model("dcgan"))
    assert done.returncode == 0, done.stderr
    assert "D_main trains D, G_main trains G" in done.stdout
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "applies" in lines["bf16"] and "layers of StyleGAN2" in lines["fused_norm"]
    assert "running_mean moves" in lines["accumulate_2"] and "no blocks" in lines["checkpointing"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "nowhere.py"], "no such file"),
        (["--set", "width=4"], "give --model"),
        (["--model", "examples/pairs/dcgan.py", "-w", "tiny"], "leave out --workload"),
        (
            ["--model", "examples/pairs/dcgan.py", "--device", "cpu", "--set", "depth=4"],
            "takes no setting 'depth'",
        ),
    ],
)
def test_a_request_that_cannot_be_is_refused_in_one_line(arguments, words):
    done = ladder("run", *arguments)
    assert done.returncode == 2 and words in done.stderr.strip().splitlines()[-1], done.stderr


def test_the_benchmark_of_the_page_runs_in_a_repository_of_the_users_own(tmp_path):
    page = (ROOT / "docs" / "your-pair.md").read_text(encoding="utf-8")
    (block,) = (each for each in page.split("```python\n") if each.startswith('"""Seconds of a step'))
    (folder := tmp_path / "their_benchmarks").mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "bench_step.py").write_text(block.partition("```")[0])
    (folder / "my_pair.py").write_text(PAIR)
    config = {"version": 1, "project": "theirs", "repo": ".", "branches": ["main"]}
    config |= {"benchmark_dir": folder.name, "environment_type": "existing", "pythons": ["same"]}
    (tmp_path / "asv.conf.json").write_text(json.dumps(config))
    git(tmp_path, "init", "-qb", "main")
    commit = commit_all(tmp_path, "one")
    machine = ["machine", "--yes", "--machine", "here"]
    measure = ["run", "--python=same", "--quick", "--machine", "here", "--set-commit-hash", commit]
    for command in (machine, measure):
        done = subprocess.run(
            [sys.executable, "-m", "asv", *command], cwd=tmp_path, capture_output=True, text=True, timeout=500,
            env=clean_environment() | {"ASV_PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    (result,) = (tmp_path / "results" / "here").glob(f"{commit[:8]}-*.json")
    (values, recipes, *_) = json.loads(result.read_text())["results"]["bench_step.Step.track_step"]
    assert recipes == [["'baseline'", "'best'"]] and all(0 < seconds < 60 for seconds in values)
