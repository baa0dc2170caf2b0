"""`ladder run --mode mistakes`, `--mode levers` and `--recipe`: what is planned, refused, defaulted, and really run."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ladder.base.errors import UserError
from ladder.cli import climb
from ladder.cli.main import main
from ladder.core.job import Job, RunPlan
from ladder.engine import inspection
from ladder.engine import run as measure
from ladder.machine import system
from ladder.plan import catalog, modes, needs
from ladder.stats import rounds_budget
from tests.support import servers
from tests.support.small import LITTLE
from tests.support.typed import problem_of, untyped

kept_servers = servers.kept_servers
NO_GPU = dict.fromkeys(needs.NEEDS, "needs a CUDA GPU") | {"bf16": None}
RECIPE = {"channels_last": True, "instance_norm": "var_mean", "set_to_none": True}
EMPTY = {field.name: None for field in dataclasses.fields(climb.Request)}


def request(**asked: Any) -> climb.Request:
    return climb.Request(**EMPTY | {"ladder": "article", "quick": False, "out": Path("out")} | asked)


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "best.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return str(path)


def laid_out(asked: climb.Request) -> tuple[str, catalog.Ladder, list[catalog.Planned]]:
    return climb.laid_out(asked, catalog.load_ladder("article"), NO_GPU, LITTLE, "cpu")


def test_a_recipe_stands_beside_the_baseline(recipe: str) -> None:
    mode, ladder, planned = laid_out(request(recipe=recipe))
    assert (mode, ladder.name) == (modes.RECIPE, modes.RECIPE) and ladder.digest
    base, mine = planned
    assert base.recipe == catalog.load_rung("baseline").change and base.name == "baseline"
    assert mine.name == "recipe" and mine.title == "the recipe best" and mine.variant is None
    assert mine.recipe is not None and mine.recipe.items() >= RECIPE.items()
    assert "channels_last" in catalog.contained(mine.recipe)  # whose receipts are asked for


def test_another_recipe_of_the_same_file_is_another_run(recipe: str) -> None:
    before = laid_out(request(recipe=recipe))[1].digest
    Path(recipe).write_text(yaml.safe_dump(RECIPE | {"set_to_none": False}))
    assert laid_out(request(recipe=recipe))[1].digest != before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("cuda_graphs: true\nadam: capturable\n", "cuda_graphs: true needs a CUDA device"),
        ("channel_last: true\n", "unknown key 'channel_last'; did you mean 'channels_last'"),
        ("fused_filter: true\n", "fused_filter needs resample: triton"),
    ],
)
def test_a_recipe_that_cannot_run_here_is_one_line(recipe: str, content: str, says: str) -> None:
    Path(recipe).write_text(content)
    with pytest.raises((UserError, ValueError), match=says) as caught:
        laid_out(request(recipe=recipe))
    assert "\n" not in str(caught.value)


def test_a_recipe_for_another_model_is_refused_before_anything_runs(recipe: str) -> None:
    Path(recipe).write_text("demodulation: grouped\n")
    asked, ladder = request(recipe=recipe), catalog.load_ladder("article")
    with pytest.raises(ValueError, match="demodulation needs a workload with convolution: full"):
        climb.laid_out(asked, ladder, NO_GPU, LITTLE | {"block_layers": 1}, "cpu")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--recipe", "x.yaml", "--mode", "solo"), "--recipe measures that recipe beside the baseline"),
        (("--recipe", "x.yaml", "--rungs", "bf16"), "leave out --mode and --rungs"),
        (("--recipe", "x.yaml"), "x.yaml: no such recipe file"),
        (("--mode", "mistakes", "--ladder", "full"), "--mode mistakes stands on the article's ladder"),
        (("--mode", "levers", "--rungs", "wide"), "--rungs: wide not in the levers"),
    ],
)
def test_what_contradicts_itself_is_one_line(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["run", "--device", "cpu", "--out", str(tmp_path), *words])
    assert found.exit_code == 2 and says in found.output and found.output.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_mistakes_take_a_budget_of_their_own_unless_asked_otherwise() -> None:
    assert climb.with_defaults(request(), "mistakes") == request(budget=8.0)
    for asked in (request(budget=30.0), request(rounds=5), request(quick=True)):
        assert climb.with_defaults(asked, "mistakes") == asked
    for mode in ("cumulative", "levers", "recipe"):
        assert climb.with_defaults(request(), mode) == request()


@pytest.mark.parametrize(("inspected_s", "cycles"), [(57.0, 2), (139.0, 1)], ids=["warm", "cold"])
def test_mistakes_keep_two_passes_where_three_generations_of_them_fit(
    inspected_s: float, cycles: int
) -> None:
    """Sixteen eager processes of a slow host: a generation of two passes takes some 128 s."""
    limit, round_s = 60 * rounds_budget.MISTAKES_MINUTES, 128.0
    spent = inspected_s + round_s
    assert cycles == rounds_budget.fitting_cycles(2, 1, budget_s=limit, spent_s=spent, round_s=round_s)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, kept_servers: None) -> dict[str, dict[str, Any]]:
    """A run of two mistakes and one of a lever, each of one generation, in real workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspection, "CACHE", tmp_path_factory.mktemp("cache"))
        article, found = catalog.load_ladder("article"), {}
        for mode, only in (("mistakes", ["item_each_step", "n_critic_2"]), ("levers", ["separable"])):
            planned = modes.plan(mode, article, NO_GPU, only, LITTLE | {"channel_max": 8})
            ladder = modes.ladder_of(mode, article)
            options = RunPlan(ladder=ladder, planned=planned, rounds=1, cycles=1, mode=mode)
            work, facts = LITTLE | {"data": None}, system.facts("cpu")
            job = Job("cpu", "little", work, None, facts, options, tmp_path_factory.mktemp(mode))
            found[mode] = untyped(measure.run_ladder(job))
        return found


def rungs(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {rung["name"]: rung for rung in result["rungs"]}


def test_mistakes_reach_the_workers_and_are_timed(ran: dict[str, dict[str, Any]]) -> None:
    result = ran["mistakes"]
    found = rungs(result)
    assert {rung["status"] for rung in found.values()} == {"ok"}, result
    assert found["clean"]["parity"]["verdict"] == found["item_each_step"]["parity"]["verdict"] == "ok"
    assert found["n_critic_2"]["parity"] is None and found["n_critic_2"]["variant"]["exempt"]
    for name in ("item_each_step", "n_critic_2"):
        assert found[name]["receipts"].keys() == {name} and found[name]["receipts"][name]["engaged"]
    assert "bf16" in found["clean"]["receipts"] and found["clean"]["variant"] is None
    assert [twin["of"] for twin in result["twins"]] == ["clean"]
    assert found["n_critic_2"]["images_per_s"] == pytest.approx(8 / found["n_critic_2"]["step_ms"] * 1000)
    assert (
        found["clean"]["rounds"][0]["after"] == "ok" and found["item_each_step"]["rounds"][0]["after"] is None
    )
    assert problem_of(result) is None


def test_levers_run_on_a_workload_of_their_own(ran: dict[str, dict[str, Any]]) -> None:
    found = rungs(ran["levers"])
    assert {rung["status"] for rung in found.values()} == {"ok"}
    assert found["separable"]["recipe"] == found["unchanged"]["recipe"]
    assert found["separable"]["variant"]["workload"] == {"convolution": "separable"}
    flops, parameters = (
        {n: r["inspection"][key] for n, r in found.items()} for key in ("flops", "parameters")
    )
    assert flops["separable"] < flops["unchanged"] and parameters["separable"] < parameters["unchanged"]
    assert {"unchanged", "conv_double_backward"} <= found["unchanged"]["receipts"].keys()
    assert "convolution" not in ran["levers"]["workload"]
    assert problem_of(ran["levers"]) is None
