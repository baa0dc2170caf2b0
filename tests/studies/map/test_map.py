"""`ladder map`: cells and recipes, where a rung matters, and the article's policy."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ladder.base.errors import UserError
from ladder.base.records import build
from ladder.engine import looks, sitting
from ladder.engine.pool import WorkerFailure
from ladder.machine import system
from ladder.plan import catalog, needs
from ladder.publish.validation import kinds, validate
from ladder.report.themes import DARK, LIGHT
from ladder.studies.map import chart, record, report
from ladder.studies.map import plan as planning
from tests.support import committed, servers
from tests.support.commands import call, refused
from tests.support.made_up_ablation import look, of_map, step_ms
from tests.support.small import LEAST

kept_servers = servers.kept_servers
MACHINE = json.loads(committed.file("results/precision/nvidia-h200.json").read_text())["machine"]


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return of_map(MACHINE)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "capabilities", lambda device: dict.fromkeys(needs.OF_MACHINE))


def plan_of(ladder: str, *rungs: str) -> planning.Plan:
    return planning.make(*catalog.load_workload("article"), "cuda", ladder, rungs, [(32, 4)])


# --- the plan -----------------------------------------------------------------------------------------------------


def test_four_recipes_differ_in_two_rungs_and_in_what_rests_on_them(on_a_gpu: None) -> None:
    plan = plan_of("article")
    assert [*plan.recipes] == [
        (),
        ("cuda_graphs",),
        ("channels_last",),
        ("cuda_graphs", "channels_last"),
    ]
    seen = {
        out: (recipe["cuda_graphs"], recipe["channels_last"], recipe["fused_act"])
        for out, recipe in plan.recipes.items()
    }
    assert list(seen.values()) == [
        (True, True, True),
        (False, True, True),
        (True, False, True),
        (False, False, True),
    ]
    full = plan_of("full", "fused_act", "cuda_graphs").recipes["fused_act",]
    assert not full["fused_filter"] and full["cuda_graphs"]
    assert plan.of((32, 4))["batch"] == 4 and plan.of((32, 4))["channel_base"] == 16384


@pytest.mark.parametrize(
    ("rungs", "words"),
    [
        (["bf16"], "name two rungs"),
        (["bf16", "bf16"], "name two rungs"),
        (["bf16", "bf61"], "no change 'bf61'; did you mean 'bf16'"),
        (["bf16", "baseline"], "no change 'baseline'"),
    ],
)
def test_a_pair_that_cannot_be_mapped_is_one_line(on_a_gpu: None, rungs: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        plan_of("article", *rungs)


def test_rungs_that_always_leave_together_are_no_pair(on_a_gpu: None) -> None:
    with pytest.raises(UserError, match="are not apart"):
        plan_of("full", "fused_act", "fused_filter")


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
def test_what_cannot_be_asked_is_one_line(arguments: list[str], words: str) -> None:
    assert words in refused("map", "--device", "cpu", *arguments)


# --- the figures --------------------------------------------------------------------------------------------------


def test_a_rung_matters_where_it_was_planted(data: dict[str, Any]) -> None:
    result = build(record.Result, data)
    graphs, layout = (report.matters_sentence(result, rung) for rung in planning.PAIR)
    assert graphs == (
        "cuda_graphs saves 2% of the step or more at every batch at 32x32 and 64x64, up to batch 16 at 128x128, up to"
        " batch 8 at 256x256 (4 of 5 batches have a time)."
    )
    assert "at no batch at 32x32 and 64x64, at every batch at 128x128 and 256x256" in layout
    wanted = step_ms(128, 8, ("cuda_graphs",)), step_ms(128, 8, ())
    assert wanted[0] and wanted[1]
    seen = report.cell_factor(result, "cuda_graphs", "wall", 128, 8)
    assert seen == pytest.approx(wanted[0][0] / wanted[1][0], rel=1e-5)
    assert report.cell_factor(result, "cuda_graphs", "gpu", 128, 8) == pytest.approx(1)


def test_a_rung_that_matters_in_every_cell_is_told_in_few_words(data: dict[str, Any]) -> None:
    result = build(record.Result, data)
    result = replace(result, gains=[replace(gain, wall=1.5) for gain in result.gains])
    said = report.matters_sentence(result, "channels_last")
    assert said == "channels_last saves 2% of the step or more in all 20 cells."
    one = replace(result, protocol=replace(result.protocol, cells=[[32, 4]]))
    assert report.matters_sentence(one, "channels_last").endswith("2% of the step or more in the one cell.")


def test_the_article_s_policy_is_held_against_the_fastest_recipe(data: dict[str, Any]) -> None:
    """Planted: NCHW is 3% faster up to 64x64, and without graphs a step takes 60 ms or more."""
    result = build(record.Result, data)
    said = report.policy_sentence(result)
    assert "within 2% of the fastest recipe in 9 of 19 cells" in said
    assert "9.03x at 64x64, batch 4" in said and said.count(". ") == 0
    other = replace(result, protocol=replace(result.protocol, rungs=["bf16", "fused_act"]))
    assert "this pair does not test it" in report.policy_sentence(other)


def test_out_of_memory_is_the_value_of_a_cell(data: dict[str, Any]) -> None:
    result = build(record.Result, data)
    assert report.table(result, "channels_last", "wall")[1][-1][-1] == "oom"
    assert "3 of 80 rows ran out of memory." in report.sentences(result)
    assert "oom" in report.markdown(result) and validate.check(data) is None


def test_a_void_gpu_time_is_told_where_the_cell_has_no_gain(data: dict[str, Any]) -> None:
    copy, why = json.loads(json.dumps(data)), "GPU time of 88.56 ms in a step of 87.37 ms"
    row = next(row for row in copy["rows"] if (row["resolution"], row["batch"], row["out"]) == (64, 4, []))
    row["look"].update(gpu_ms=None, gpu_void=why)
    result = record.derive(build(record.Result, copy))
    assert report.table(result, "channels_last", "gpu")[1][1][1] == "void"
    assert report.table(result, "channels_last", "wall")[1][1][1] != "void"
    assert (
        f"GPU time is void in 1 of 80 rows, first at 64x64, batch 4, whole ladder: {why}."
        in report.sentences(result)
    )


def test_charts_are_drawn_in_both_themes(data: dict[str, Any]) -> None:
    result = build(record.Result, data)
    assert chart.render(result, "svg", LIGHT) != chart.render(result, "svg", DARK)
    assert chart.render(replace(result, rows=[], gains=[]), "svg")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data["gains"][0].update(wall=9.0), "gains: not what the rows say"),
        (lambda data: data["gains"].pop(), "gains: not what the rows say"),
        (lambda data: data["rows"].append(data["rows"][0]), "one is there twice"),
        (lambda data: data["rows"][0].update(out=["bf16"]), "no row of this protocol"),
        (lambda data: data["rows"][0].update(batch=5), "no row of this protocol"),
        (lambda data: data["rows"][0].update(status="oom"), "a time, but not the status ok"),
        (lambda data: data["rows"][0]["look"].update(wall_ms=[0.001]), "faster than this machine"),
        (lambda data: data.update(rows=[]), "nothing was measured"),
        (lambda data: data.update(complete=False), "interrupted"),
        (lambda data: data.update(more=1), "unknown key"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    change: Callable[[dict[str, Any]], object], words: str, data: dict[str, Any]
) -> None:
    copy = json.loads(json.dumps(data))
    assert validate.check(copy) is None and kinds.marks(copy) == []
    change(copy)
    assert words in (validate.check(copy) or "")


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def least(tmp_path: Path) -> list[str]:
    (tmp_path / "least.yaml").write_text(yaml.safe_dump(LEAST))
    files = ["-w", str(tmp_path / "least.yaml"), "--out", str(tmp_path / "out")]
    return [*files, "--device", "cpu", "--rung", "channels_last", "--rung", "set_to_none"]


def read(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())


def test_a_cell_is_measured_on_a_cpu(least: list[str], tmp_path: Path, kept_servers: None) -> None:
    said = call("map", *least, "--resolutions", "8", "--batches", "2")
    assert said.exit_code == 0, said.output
    found = read(tmp_path / "out")
    assert [row["out"] for row in found["rows"]] == [
        [],
        ["channels_last"],
        ["set_to_none"],
        ["channels_last", "set_to_none"],
    ]
    assert all(len(row["look"]["wall_ms"]) == 2 and not row["look"]["gpu_ms"] for row in found["rows"])
    assert (
        "1 cell, 4 rows, for how long the first visit will tell" in said.stderr
        and "4 of 4, about 0 min left" in said.stderr
    )
    assert "not to be quoted" in said.stdout and "GPU time" not in said.stdout
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".json", ".md", ".png", ".svg"]
    assert call("validate", tmp_path / "out").exit_code == 0


class Worker:
    """A worker that is never asked for anything, and the watch and the pool beside it."""

    def wait(self) -> None: ...

    def look_around(self) -> None: ...

    def take(self) -> "Worker":
        return self

    def close(self) -> None: ...


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Measure nothing: batch 8 is out of memory, others are planted. Returns the list of cells that were tried."""
    taken: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def opened(device: str) -> Iterator[tuple[Worker, Worker]]:
        yield Worker(), Worker()

    def fresh(worker: Any, task: looks.Task, visits: Any, cycles: int, ours: Any = ()) -> looks.Look:
        cell = task.workload["resolution"], task.workload["batch"]
        taken.append(cell)
        if cell[1] == 8:
            raise WorkerFailure("oom", "out of memory in prepare, at most 75.00 GiB reserved")
        if not task.recipe["set_to_none"] and len(taken) < 5:
            raise WorkerFailure("failed", "prepare: worker killed by SIGSEGV")
        return build(looks.Look, look(None, 50.0))

    monkeypatch.setattr(sitting, "opened", opened)
    monkeypatch.setattr(looks, "in_fresh_process", fresh)
    return taken


def test_the_time_ends_and_only_what_is_missing_or_failed_is_measured_later(
    least: list[str], fake: list[tuple[int, int]], tmp_path: Path
) -> None:
    cells = ["--resolutions", "8", "--batches", "8,4"]
    assert call("map", *least, *cells, "--budget", "1e-9").exit_code == 130 and fake == [(8, 4)]
    (path,) = (tmp_path / "out").glob("*-partial.json")
    said = call("map", *least, *cells, "--resume", str(path))
    assert said.exit_code == 1 and fake == [(8, 4)] * 4 + [(8, 8)] * 4
    assert "failed: prepare: worker killed by SIGSEGV" in said.stderr and "oom: out of memory" in said.stderr
    assert not list((tmp_path / "out").glob("*-partial.*"))
    (path,) = (tmp_path / "out").glob("*.json")
    said = call("map", *least, *cells, "--resume", str(path))
    assert said.exit_code == 0 and fake[8:] == [(8, 4)] * 2  # what ran out of memory does so again
    assert "other cells, another pair" in refused("map", *least, "--resume", str(path))


def test_a_row_with_a_void_gpu_time_is_measured_once_more(
    least: list[str], fake: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fresh(*_: Any) -> looks.Look:
        tried.append("look")
        if len(tried) == 6:
            raise WorkerFailure("failed", "prepare: worker killed by SIGSEGV")
        made = build(looks.Look, look(None, 50.0))
        return replace(made, gpu_ms=None, gpu_void="the clock fell") if len(tried) in {1, 3, 4, 5} else made

    monkeypatch.setattr(looks, "in_fresh_process", fresh)
    assert call("map", *least, "--resolutions", "8", "--batches", "4").exit_code == 0
    found = [row["look"]["gpu_void"] for row in read(tmp_path / "out")["rows"]]
    assert found == [None, "the clock fell", "the clock fell", None] and len(tried) == 7
