"""`ladder run`: what a request plans, how one goes on with a file, its last lines, and studies in real workers."""

from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from ladder.cli import climb
from ladder.core.errors import UserError
from ladder.core.job import Job, RunPlan
from ladder.engine import inspection
from ladder.engine import run as measure
from ladder.machine import system
from ladder.plan import catalog, modes, needs
from ladder.report import output
from tests.support import made_up, servers
from tests.support.commands import refused
from tests.support.made_up_study import TIMES, study
from tests.support.small import LITTLE
from tests.support.typed import problem_of, untyped, write_run

kept_servers = servers.kept_servers
NO_GPU = dict.fromkeys(needs.NEEDS, "needs a CUDA GPU") | {"bf16": None}
RECIPE = {"channels_last": True, "instance_norm": "var_mean", "set_to_none": True}


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "best.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return str(path)


def plan(recipe: str, workload: dict[str, Any] = LITTLE) -> tuple[str, catalog.Ladder, list[catalog.Planned]]:
    ladder = catalog.load_ladder("article")
    return climb.plan_run(climb.Request(recipe=recipe), ladder, NO_GPU, workload, "cpu")


def test_a_recipe_stands_beside_the_baseline_and_another_of_the_same_file_is_another_run(recipe: str) -> None:
    mode, ladder, (base, mine) = plan(recipe)
    assert mode == ladder.name == modes.RECIPE and ladder.digest
    assert base.recipe == catalog.load_rung("baseline").change and base.name == "baseline"
    assert mine.name == "recipe" and mine.title == "the recipe best" and mine.variant is None
    assert mine.recipe is not None and mine.recipe.items() >= RECIPE.items()
    assert "channels_last" in catalog.list_contained(mine.recipe)  # whose receipts are asked for
    Path(recipe).write_text(yaml.safe_dump(RECIPE | {"set_to_none": False}))
    assert plan(recipe)[1].digest != ladder.digest


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("cuda_graphs: true\nadam: capturable\n", "cuda_graphs: true needs a CUDA device"),
        ("channel_last: true\n", "unknown key 'channel_last'; did you mean 'channels_last'"),
        ("fused_filter: true\n", "fused_filter needs resample: triton"),
        ("demodulation: grouped\n", "demodulation needs a workload with convolution: full"),
    ],
)
def test_a_recipe_that_cannot_run_here_is_one_line(recipe: str, content: str, problem: str) -> None:
    Path(recipe).write_text(content)
    with pytest.raises((UserError, ValueError), match=problem) as caught:
        plan(recipe, LITTLE | {"block_layers": 1})
    assert "\n" not in str(caught.value)


def test_mistakes_take_a_budget_of_their_own_unless_asked_otherwise() -> None:
    assert climb.choose_minutes(climb.Request(), "mistakes") == 8.0
    for request in (climb.Request(budget=30.0), climb.Request(rounds=5), climb.Request(quick=True)):
        assert climb.choose_minutes(request, "mistakes") == request.budget
    assert climb.choose_minutes(climb.Request(), "levers") is None


# --- a run that goes on -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"ladder": "full"}, "that run has another --ladder"),
        ({"cycles": 7}, "that run has another --cycles"),
        ({"budget": 30.0}, "that run has a fixed number of generations: give --generations"),
        ({"quick": True}, "that run is not a quick one"),
    ],
)
def test_a_run_that_goes_on_refuses_what_its_file_decides(
    options: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    result = made_up.judged_run(seed=1)
    result["protocol"] |= {"fixed": True, "budget_s": None}
    write_run(tmp_path / "r.json", result)
    known = {"resume": tmp_path / "r.json", "ladder": result["ladder"]["name"]}
    with pytest.raises(UserError, match=problem):
        climb.continue_request(climb.Request(**known | options))
    same = climb.Request(**known, cycles=result["protocol"]["cycles"], rounds=9)
    assert climb.continue_request(same).rounds == 9


def test_a_run_goes_on_with_the_ladder_that_it_was_begun_with(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_run(path, study("mistakes", TIMES))
    for ladder in ("article", None):
        assert climb.continue_request(climb.Request(resume=path, ladder=ladder)).mode == "mistakes"
    result = made_up.judged_run(seed=1)
    result["ladder"]["name"] = "gone"
    write_run(path, result)
    with pytest.raises(UserError, match="its ladder is a file of yours, or gone; name it with --ladder"):
        climb.continue_request(climb.Request(resume=path))


@pytest.mark.parametrize("as_json", [False, True])
def test_the_last_lines_name_the_result_and_the_command_that_goes_on(as_json: bool) -> None:
    """With what the user gave but for what the file says; a default is left out, and an earlier file replaced."""

    @click.command("measure")
    @click.argument("clone", required=False)
    @click.option("-w", "--workload")
    @click.option("--op", "ops", multiple=True)
    @click.option("--quick", is_flag=True)
    @click.option("--inspect/--no-inspect", default=True)
    @click.option("--rounds", default=3)
    @click.option("--resume")
    def run(**_: object) -> None:
        click.echo("a table")
        output.say_files(
            [Path("out") / "my result.json", Path("out") / "chart.png"], as_json, True, ("quick",)
        )

    words = "../clone -w mine.yaml --op a --op b --quick --no-inspect --resume old.json".split()
    shown = CliRunner().invoke(run, words, prog_name="ladder measure")
    last = [
        "result: out/my result.json",
        "go on:  ladder measure --resume 'out/my result.json' ../clone --workload mine.yaml --op a --op b --no-inspect",
    ]
    assert shown.stdout.splitlines() == ["a table", *([] if as_json else ["out/chart.png", *last])]
    assert shown.stderr.splitlines() == (last if as_json else [])


# --- studies, really run ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, kept_servers: None) -> dict[str, dict[str, Any]]:
    """A run of two mistakes and one of a lever, each of one generation, in real workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspection, "CACHE", tmp_path_factory.mktemp("cache"))
        article, results = catalog.load_ladder("article"), {}
        for mode, only in (("mistakes", ["item_each_step", "n_critic_2"]), ("levers", ["separable"])):
            planned = modes.plan_run(mode, article, NO_GPU, only, LITTLE | {"channel_max": 8})
            ladder = modes.ladder_of(mode, article)
            options = RunPlan(ladder=ladder, planned=planned, rounds=1, cycles=1, mode=mode)
            work, facts = LITTLE | {"data": None}, system.describe_machine("cpu")
            job = Job("cpu", "little", work, None, facts, options, tmp_path_factory.mktemp(mode))
            results[mode] = untyped(measure.run_ladder(job))
        return results


def test_mistakes_reach_the_workers_and_are_timed(ran: dict[str, dict[str, Any]]) -> None:
    result = ran["mistakes"]
    rungs = {rung["name"]: rung for rung in result["rungs"]}
    assert {rung["status"] for rung in rungs.values()} == {"ok"}, result
    assert rungs["clean"]["parity"]["verdict"] == rungs["item_each_step"]["parity"]["verdict"] == "ok"
    assert rungs["n_critic_2"]["parity"] is None and rungs["n_critic_2"]["variant"]["exempt"]
    for name in ("item_each_step", "n_critic_2"):
        assert rungs[name]["receipts"].keys() == {name} and rungs[name]["receipts"][name]["engaged"]
    assert "bf16" in rungs["clean"]["receipts"] and rungs["clean"]["variant"] is None
    assert [twin["of"] for twin in result["twins"]] == ["clean"]
    assert rungs["n_critic_2"]["images_per_s"] == pytest.approx(8 / rungs["n_critic_2"]["step_ms"] * 1000)
    assert (
        rungs["clean"]["rounds"][0]["after"] == "ok" and rungs["item_each_step"]["rounds"][0]["after"] is None
    )
    assert problem_of(result) is None


def test_levers_run_on_a_workload_of_their_own(ran: dict[str, dict[str, Any]]) -> None:
    rungs = {rung["name"]: rung for rung in ran["levers"]["rungs"]}
    assert {rung["status"] for rung in rungs.values()} == {"ok"}
    assert rungs["separable"]["recipe"] == rungs["unchanged"]["recipe"]
    assert rungs["separable"]["variant"]["workload"] == {"convolution": "separable"}
    for key in ("flops", "parameters"):
        assert rungs["separable"]["inspection"][key] < rungs["unchanged"]["inspection"][key]
    assert {"unchanged", "conv_double_backward"} <= rungs["unchanged"]["receipts"].keys()
    assert "convolution" not in ran["levers"]["workload"]
    assert problem_of(ran["levers"]) is None


@pytest.mark.parametrize("command", ["run", "train", "sustain"])
def test_nothing_is_written_into_the_folder_of_the_images(command: str, tmp_path: Path) -> None:
    """Charts and sample grids would be images of the next run."""
    (tmp_path / "photos").mkdir()
    out = tmp_path / "photos" / "out"
    line = refused(command, "-w", "tiny", "--device", "cpu", "--data", tmp_path / "photos", "--out", out)
    assert "lies in the images of" in line and not out.exists()
