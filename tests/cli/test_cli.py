"""The command from outside: what is printed where, what is written, and how it ends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ladder.cli import main as cli
from ladder.core import text
from ladder.engine import run as measure
from ladder.machine import system
from ladder.publish.validation import validate
from ladder.results import loading
from ladder.training import train
from tests.support import commands, made_up, typed
from tests.support.commands import FAKE, call, load_commands, refused, succeed  # noqa: F401
from tests.support.typed import write_run

ROOT = Path(__file__).resolve().parents[2]
fakes = commands.fakes


def read_result(path: Path) -> dict[str, Any]:
    return typed.untyped(loading.load_run(path))


def test_help_list_show_and_recommend_import_no_torch(tmp_path):
    write_run(tmp_path / "r.json", made_up.gpu_run())
    code = (
        "import sys; sys.argv = ['ladder', *sys.argv[1:]]\nfrom ladder.cli.main import main\n"
        "try: main(prog_name='ladder')\n"
        "finally: print([m for m in ('torch', 'matplotlib') if m in sys.modules], file=sys.stderr)"
    )
    for line in ("list", "show bf16", "run --help", f"recommend {tmp_path / 'r.json'}"):
        command = [sys.executable, "-c", code, *line.split()]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 0 and run.stderr.strip() == "[]"


def test_a_chart_folder_that_cannot_be_written_is_refused_too(tmp_path, fakes):
    """Charts lie beside the result: the machine's folder takes both, or the run is refused."""
    folder = tmp_path / text.make_slug(system.describe_machine("cpu")["name"])
    folder.write_text("")
    line = refused("run", "--workload", "tiny", "--rounds", 1, "--quick", "--out", tmp_path)
    assert f"{folder.name}: cannot be written" in line
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_run_writes_result_table_and_chart_and_shows_what_is_n_a(tmp_path, fakes):
    seen = call("run", "--workload", "tiny", "--rounds", 2, "--cycles", 1, "--quick", "--out", tmp_path)
    assert seen.exit_code == 0, seen.output
    assert "quick: not to be quoted" in seen.stdout
    assert "fused_norm, cuda_graphs, data_loading, fused_act: n/a: needs a CUDA GPU" in seen.stdout
    assert "upscaled" in seen.stderr and "\x1b" not in seen.output
    assert "after 1 generation, times alone" in seen.stderr and "after 2" not in seen.stderr
    assert "verdict" not in seen.stderr.partition("times alone")[2].partition("\n")[2]
    assert seen.output.count("vs previous") == 1  # the last table, once
    following = [line.split() for line in seen.stdout.partition("next:\n")[2].splitlines()]
    assert len(following) == 3 and {words[1] for words in following} <= {*cli.main.commands}
    (file,) = tmp_path.glob("*/*.json")
    result = read_result(file)
    assert [rung["status"] for rung in result["rungs"]] == "ok ok ok n/a ok n/a n/a n/a".split()
    assert result["workload"]["data"] == "sample-photographs"
    written = sorted(path.name for path in file.parent.iterdir())
    assert written == [f"{file.stem}.{suffix}" for suffix in ("csv", "json", "md", "png", "svg")]


def test_json_is_all_that_is_printed(tmp_path, fakes):
    words = "run --workload tiny --rungs bf16 --rounds 1 --cycles 1 --quick --json --out"
    seen = call(*words.split(), tmp_path)
    assert seen.exit_code == 0 and Path(seen.stderr.strip().removeprefix("result: ")).is_file()
    result = json.loads(seen.stdout)
    assert result["baseline"] == "bf16" and result["rungs"][0]["recipe"]["channels_last"] is True


def test_a_failed_rung_is_status_1_and_the_others_are_kept(tmp_path, fakes):
    fakes["channels_last"] = {"fault": "raise"}
    words = "run --workload tiny --rungs baseline,channels_last,bf16 --rounds 1 --quick --out"
    seen = call(*words.split(), tmp_path)
    assert seen.exit_code == 1 and "RuntimeError: weight of model.py is wrong" in seen.stdout
    assert "channels_last: failed" in seen.stderr  # at once, not only at the end
    statuses = json.loads(next(tmp_path.glob("*/*.json")).read_text())["rungs"]
    assert [rung["status"] for rung in statuses] == ["ok", "failed", "ok"]


def test_ctrl_c_is_status_130_and_keeps_what_is_finished(tmp_path, fakes, monkeypatch):
    make = measure._Run.generation

    def interrupted(self, number):
        if number:
            raise KeyboardInterrupt
        make(self, number)

    monkeypatch.setattr(measure._Run, "generation", interrupted)
    arguments = ("run", "--workload", "tiny", "--rungs", "baseline", "--rounds", 3, "--cycles", 1, "--quick")
    seen = call(*arguments, "--out", tmp_path)
    assert seen.exit_code == 130
    assert "incomplete: the run was interrupted" in seen.stdout
    assert len(list(tmp_path.glob("*/tiny-article-*"))) == 5


def test_report_reads_what_was_written_and_says_what_it_could_not(tmp_path):
    write_run(tmp_path / "r" / "a.json", made_up.gpu_run())
    (tmp_path / "r" / "torn.json").write_text("{")
    outputs = [tmp_path / "t.md", tmp_path / "t.csv", tmp_path / "c.png", tmp_path / "c.svg"]
    flags = ("--markdown", "--csv", "--chart", "--chart")
    arguments = [part for pair in zip(flags, outputs, strict=True) for part in pair]
    seen = call("report", tmp_path / "r", *arguments)
    assert seen.exit_code == 1 and "torn.json" in seen.stderr
    assert "3.81x" in seen.stdout and all(path.stat().st_size > 500 for path in outputs)
    assert json.loads(call("report", tmp_path / "r" / "a.json", "--json").stdout)["baseline"] == "baseline"


def test_train_gets_the_recipe_of_the_rung_and_a_divergence_is_status_1(tmp_path, fakes, monkeypatch):
    from ladder.training.losslog import Diverged

    calls = []

    def training(workload, recipe, pictures, settings, on_event, ranks):
        calls.append(recipe)
        if settings.seed == 1:
            raise Diverged("D_r1 is NaN at step 48")
        files = {"samples": "s.png", "checkpoint": "c.pt"}
        return {"step": settings.steps, "images": 192, "seconds": 1.5, "files": files}

    monkeypatch.setattr(train, "train_model", training)
    common = ("train", "--workload", "tiny", "--steps", 48, "--out", tmp_path / "t")
    assert json.loads(succeed(*common, "--recipe", "channels_last", "--json").stdout)["step"] == 48
    assert calls[0]["channels_last"] is True and "precision" not in calls[0]
    assert "48 steps" in succeed(*common).stdout
    assert calls[1]["set_to_none"] is True and "fused_norm" not in calls[1]  # the highest a CPU can do
    seen = call(*common, "--seed", 1)
    assert seen.exit_code == 1 and "D_r1 is NaN at step 48" in seen.stderr


def test_a_ladder_of_the_real_model_from_a_folder_of_pictures(tmp_path):
    """End to end: real images, real workers, the real step; the smallest workload and one cycle."""
    (tmp_path / "photos").mkdir()
    for index in range(8):
        Image.effect_noise((40, 48), 90 + index).convert("RGB").save(tmp_path / "photos" / f"{index}.png")
    (tmp_path / "least.yaml").write_text(
        "resolution: 8\nchannel_base: 64\nchannel_max: 8\nz_dim: 8\nw_dim: 8\nmapping_layers: 1\nbatch: 2\n"
    )
    words = "run --rungs baseline,cuda_graphs --rounds 1 --cycles 1 --quick --device cpu --workload"
    command = [sys.executable, "-m", "ladder", *words.split(), str(tmp_path / "least.yaml")]
    command += ["--data", str(tmp_path / "photos"), "--out", str(tmp_path / "out")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr
    (path,) = (tmp_path / "out").glob("*/*.json")
    result = read_result(path)
    baseline, graphs = result["rungs"]
    assert baseline["status"] == "ok" and baseline["step_ms"] > 0 and baseline["images_per_s"] > 0
    assert graphs["status"] == "n/a" and "GPU" in graphs["reason"]
    assert result["complete"] and result["workload"]["data"] == "user-images"
    assert str(tmp_path) not in path.read_text()
    assert validate.problem_of(path) is None  # every key that a run writes is known to `ladder.results.run`
    assert len(list(path.parent.iterdir())) == 5


RUNGS = ("--rungs", "baseline,channels_last,bf16")


@pytest.mark.parametrize(
    "asked", [("--mode", "leave-one-out", *RUNGS), ("--without", "channels_last", "--without", "bf16")]
)
def test_leave_one_out_advises_and_joins_the_staircase(tmp_path, fakes, asked):
    fakes["bf16"] = {"sleep": 0.05}  # the fake without bf16 is the slow one: bf16 is worth having
    common = ("--workload", "tiny", "--rounds", 3, "--out", tmp_path)
    seen = succeed("run", *asked, *common)
    assert "gain at top" in seen.stdout and "all rungs" not in seen.stderr
    (file,) = tmp_path.glob("*/*-leave-one-out-*.json")
    result = read_result(file)
    assert [rung["name"] for rung in result["rungs"]] == ["all", "channels_last", "bf16"]
    assert [twin["of"] for twin in result["twins"]] == ["all"]
    without = result["rungs"][2]
    assert without["recipe"].get("precision") is None and without["gain"]["against"] == "all"
    assert without["gain"]["ratio"] == pytest.approx(
        without["step_ms"] / result["rungs"][0]["step_ms"], rel=0.3
    )
    assert without["gain"]["ratio"] > 2 and without["verdict"] in ("faster", "ambiguous")
    assert file.with_suffix(".png").exists()
    assert "at the top" in succeed("run", *RUNGS, *common).stdout


def test_a_run_is_resumed_from_its_file_alone(tmp_path, fakes):
    common = ("--workload", "tiny", "--rungs", "baseline,bf16", "--quick", "--out", tmp_path)
    fakes["bf16"] = {"fault": "kill"}
    assert call("run", *common, "--rounds", 2, "--seed", 3).exit_code == 1
    (file,) = tmp_path.glob("*/*.json")
    fakes.clear()
    seen = succeed("run", "--resume", file, "--out", tmp_path)
    assert "quick: not to be quoted" in seen.stdout and list(tmp_path.glob("*/*.json")) == [file]
    assert {path.stem for path in file.parent.iterdir()} == {file.stem}  # charts follow their result
    result = read_result(file)
    assert [len(rung["rounds"]) for rung in result["rungs"]] == [2, 2] and result["protocol"]["seed"] == 3
    assert (
        "after " not in succeed("run", "--resume", file, "--out", tmp_path).stderr
    )  # nothing is left: the table alone
    assert "another --mode" in refused("run", "--resume", file, "--mode", "solo", "--out", tmp_path)
    assert "cannot be read" in refused("run", "--resume", tmp_path / "no.json", "--out", tmp_path)
    assert "--generations" in refused("run", "--budget", 5, "--rounds", 2, "--out", tmp_path)
