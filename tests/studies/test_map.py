"""`ladder map`: cells and recipes, where a rung matters, and the article's policy."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import pytest
import yaml

from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.records import read_record
from ladder.engine import looks, visit
from ladder.engine.looks import Look
from ladder.engine.pool import WorkerFailure
from ladder.machine import system
from ladder.plan import catalog, needs
from ladder.studies import frame
from ladder.studies import map as mapping
from ladder.studies.map import STUDY, Options
from tests.support import committed, servers
from tests.support.commands import call, refused
from tests.support.made_up_ablation import look, of_map, step_ms
from tests.support.small import LEAST

kept_servers = servers.kept_servers
MACHINE = json.loads(committed.file("results/ablation/nvidia-h200-article-full.json").read_text())["machine"]


def read(data):
    return frame.decode_file(STUDY, json.loads(json.dumps(data)))


@pytest.fixture(scope="module")
def cells():
    return mapping.Cells(read(of_map(MACHINE)))


def make_recipes(monkeypatch, ladder, *rungs):
    """Return the recipes of a job on a GPU."""
    monkeypatch.setattr(system, "list_capabilities", lambda device: dict.fromkeys(needs.OF_MACHINE))
    name, workload = catalog.load_workload("article")
    return mapping.make_recipes(
        Job("cuda", name, workload, None, MACHINE, Options(ladder=ladder, rung=list(rungs)), None)
    )


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_four_recipes_differ_in_two_rungs_and_in_what_rests_on_them(monkeypatch):
    recipes = make_recipes(monkeypatch, "article")
    fields = ("cuda_graphs", "channels_last", "fused_act")
    assert {out: tuple(recipe[key] for key in fields) for out, recipe in recipes.items()} == {
        (): (True, True, True),
        ("cuda_graphs",): (False, True, True),
        ("channels_last",): (True, False, True),
        ("cuda_graphs", "channels_last"): (False, False, True),
    }
    full = make_recipes(monkeypatch, "full", "fused_act", "cuda_graphs")["fused_act",]
    assert not full["fused_filter"] and full["cuda_graphs"]


@pytest.mark.parametrize(
    ("ladder", "rungs", "words"),
    [
        ("article", ["bf16"], "name two rungs"),
        ("article", ["bf16", "bf16"], "name two rungs"),
        ("article", ["bf16", "bf61"], "no change 'bf61'; did you mean 'bf16'"),
        ("article", ["bf16", "baseline"], "no change 'baseline'"),
        ("full", ["fused_act", "fused_filter"], "are not apart"),
    ],
)
def test_a_pair_that_cannot_be_mapped_is_one_line(monkeypatch, ladder, rungs, words):
    with pytest.raises(UserError, match=words):
        make_recipes(monkeypatch, ladder, *rungs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--resolutions", "33"], "33x33, batch 4: resolution must be a power of two"),
        (["--batches", "6"], "16x16, batch 6: batch must be a multiple of mbstd_group"),
        (["--batches", "four"], "give whole numbers from 1 to 65536"),
        (["--batches", "\u0664"], "give whole numbers from 1 to 65536"),
        (["--batches", ","], "give whole numbers from 1 to 65536"),
        (["--rung", "bf16", "--rung", "cuda_graphs"], "cuda_graphs cannot run here: needs a CUDA GPU"),
    ],
)
def test_bad_options_are_one_line(arguments, words):
    assert words in refused("map", "--device", "cpu", *arguments)


# --- the figures ------------------------------------------------------------------------------------------------------


def test_a_rung_matters_where_it_was_planted(cells):
    graphs, layout = mapping.list_findings(cells)[:2]
    assert graphs == (
        "cuda_graphs saves 2% of the step or more: every batch at 32x32; every batch at 64x64; batch 4, 8, 16 at"
        " 128x128; batch 4, 8 at 256x256."
    )
    assert (
        "no batch at 32x32; no batch at 64x64; every batch at 128x128; batch 4, 8, 16, 32 at 256x256"
        in layout
    )
    without, top = step_ms(128, 8, ("cuda_graphs",)), step_ms(128, 8, ())
    gain = cells.find_gain((128, 8), "cuda_graphs", "wall")
    assert gain == pytest.approx(without[0] / top[0], rel=1e-5) and gain > 1
    assert cells.find_gain((128, 8), "cuda_graphs", "gpu") == pytest.approx(1)


def test_the_article_s_policy_is_held_against_the_fastest_recipe(cells):
    """Planted: NCHW is 3% faster up to 64x64, and without graphs a step takes 60 ms or more."""
    line = mapping.describe_policy(cells)
    assert "within 2% of the fastest recipe in 9 of 19 cells" in line and "9.03x at 64x64, batch 4" in line


def test_out_of_memory_is_the_value_of_a_cell(cells):
    assert mapping.make_table(cells, "channels_last", "wall").rows[-1][-1] == "oom"
    assert "3 of 80 rows ran out of memory." in mapping.list_findings(cells)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda cases, seen, key: cases.update(more=cases[key]), "there twice"),
        (lambda cases, seen, key: cases[key].update(out=["bf16"]), "not of two rungs"),
        (lambda cases, seen, key: seen[key].update(status="oom"), "oom contradicts its look"),
        (
            lambda cases, seen, key: seen[key]["look"].update(wall_ms=[0.001], gpu_ms=[0.001]),
            "faster than this machine",
        ),
    ],
)
def test_what_no_genuine_file_holds_is_refused(change, words):
    data = of_map(MACHINE)
    change(data["cases"], data["observed"], "32x32, batch 4, whole ladder")
    with pytest.raises(UserError, match=words):
        read(data)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def least(tmp_path):
    (tmp_path / "least.yaml").write_text(yaml.safe_dump(LEAST))
    files = ["-w", str(tmp_path / "least.yaml"), "--out", str(tmp_path / "out")]
    return [*files, "--device", "cpu", "--rung", "channels_last", "--rung", "set_to_none"]


def observed_in(folder):
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())["observed"]


def test_a_cell_is_measured_on_a_cpu(least, tmp_path, kept_servers):
    result = call("map", *least, "--resolutions", "8", "--batches", "2")
    assert result.exit_code == 0, result.output
    observed = observed_in(tmp_path / "out")
    names = ["whole ladder", "without channels_last", "without set_to_none", "without both"]
    assert [*observed] == [f"8x8, batch 2, {name}" for name in names]
    assert all(len(each["look"]["wall_ms"]) == 2 for each in observed.values())
    assert "4 of 4, about 0 min left" in result.stderr
    assert "not to be quoted" in result.stdout and "GPU time" not in result.stdout
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".json", ".md", ".png", ".svg"]


@pytest.fixture
def fake(monkeypatch):
    """Measure nothing: `fake.answer(number, task)` returns a look. The numbers begin at 1."""
    nobody = SimpleNamespace(wait=lambda: None, look_around=lambda: None, close=lambda: None)
    nobody.take = lambda: nobody
    fake = SimpleNamespace(taken=[])

    @contextlib.contextmanager
    def opened(device):
        yield nobody, nobody

    def fresh(worker, task, visits, cycles):
        fake.taken.append((task.workload["resolution"], task.workload["batch"]))
        return fake.answer(len(fake.taken), task)

    monkeypatch.setattr(visit, "open_sitting", opened)
    monkeypatch.setattr(looks, "in_fresh_process", fresh)
    return fake


def test_what_failed_is_measured_again_and_what_ran_out_of_memory_is_not(least, fake, tmp_path):
    def answer(number, task):
        if task.workload["batch"] == 8:
            raise WorkerFailure("oom", "out of memory in prepare, at most 75.00 GiB reserved")
        if not task.recipe["set_to_none"] and number < 5:
            raise WorkerFailure("failed", "prepare: worker killed by SIGSEGV")
        return read_record(Look, look(None, 50.0))

    fake.answer = answer
    cells = ["--resolutions", "8", "--batches", "8,4"]
    result = call("map", *least, *cells)
    assert result.exit_code == 1 and fake.taken == [(8, 4)] * 4 + [(8, 8)] * 4
    assert (
        "failed: prepare: worker killed by SIGSEGV" in result.stderr and "oom: out of memory" in result.stderr
    )
    (path,) = (tmp_path / "out").glob("*.json")
    result = call("map", *least, *cells, "--resume", str(path))
    assert result.exit_code == 0 and fake.taken[8:] == [(8, 4)] * 2
    assert "another batches" in refused("map", *least, "--batches", "4", "--resume", str(path))


def test_a_row_with_a_void_gpu_time_is_measured_once_more(least, fake, tmp_path):
    def answer(number, task):
        if number == 6:
            raise WorkerFailure("failed", "prepare: worker killed by SIGSEGV")
        void = {"gpu_ms": None, "gpu_void": "the clock fell"} if number in {1, 3, 4, 5} else {}
        return read_record(Look, look(None, 50.0) | void)

    fake.answer = answer
    assert call("map", *least, "--resolutions", "8", "--batches", "4").exit_code == 0
    reasons = [each["look"].get("gpu_void") for each in observed_in(tmp_path / "out").values()]
    assert reasons == [None, "the clock fell", "the clock fell", None] and len(fake.taken) == 7
