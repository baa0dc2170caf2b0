"""`ladder ablate`: which subsets are measured, what follows from planted times, and what a file may not say."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ladder.base.errors import EnvironmentFailure
from ladder.base.records import build, plain
from ladder.cli import ablate as cli_ablate
from ladder.engine import inspection, looks, sitting
from ladder.engine.pool import WorkerFailure
from ladder.machine import system
from ladder.plan import catalog, needs
from ladder.publish.validation import kinds, validate
from ladder.report.themes import DARK, LIGHT
from ladder.studies.ablate import chart, record, report
from ladder.studies.ablate import plan as planning
from tests.support import committed, servers
from tests.support import made_up_ablation as made_up
from tests.support.commands import call, refused
from tests.support.made_up_ablation import ARTICLE, GAINS, TOGETHER, look, of_ablation, planted
from tests.support.small import LEAST

kept_servers = servers.kept_servers
MACHINE = json.loads(committed.file("results/precision/nvidia-h200.json").read_text())["machine"]


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return of_ablation(MACHINE)


@pytest.fixture(scope="module")
def result(data: dict[str, Any]) -> record.Result:
    return build(record.Result, data)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "capabilities", lambda device: dict.fromkeys(needs.OF_MACHINE))


def plan_of(ladder: str) -> planning.Plan:
    return planning.make(*catalog.load_workload("article"), "cuda", ladder)


# --- the plan -----------------------------------------------------------------------------------------------------


def test_every_subset_of_the_article_s_rungs_is_planned_once_its_ends_first(on_a_gpu: None) -> None:
    plan = plan_of("article")
    found = planning.subsets(plan)
    assert plan.rungs == tuple(ARTICLE) and plan.whole
    assert len(found) == len({*found}) == 128 and found[:2] == [plan.everything, frozenset()]
    climbed = catalog.climb(catalog.load_ladder("article"), system.capabilities("cuda"))
    assert plan.laid(plan.everything) == climbed[-1].recipe  # the key under which a run's inspection is kept
    assert plan.recipe(frozenset({"cuda_graphs"}))["adam"] == "capturable"
    again = planning.again(plan, found)
    assert len({*again}) == 13 and again == planning.again(plan, found[::-1])


def test_impossible_subsets_and_rungs_without_what_they_rest_on_are_left_out(
    on_a_gpu: None, tmp_path: Path
) -> None:
    """fused_filter joins two others, and parallel streams rest on graphs, while two more make them possible."""
    rungs = ["baseline", "fused_act", "fused_resample", "fused_filter", "cuda_graphs"]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"rungs": rungs}))
    found = planning.subsets(plan_of(str(path)))
    assert len(found) == 10 and all(
        {"fused_act", "fused_resample"} <= each for each in found if "fused_filter" in each
    )
    rungs = ["baseline", "conv_double_backward", "lean_weights", "cuda_graphs", "parallel_streams"]
    path.write_text(yaml.safe_dump({"rungs": rungs}))
    found = planning.subsets(plan_of(str(path)))
    assert [each for each in found if "parallel_streams" in each] == [frozenset(rungs[1:])]


def test_a_longer_ladder_is_measured_without_each_rung_and_without_pairs_of_the_five_largest(
    on_a_gpu: None,
) -> None:
    plan = plan_of("full")
    singles = planning.outs(plan)
    assert not plan.whole and sorted(singles.values()) == sorted((name,) for name in plan.rungs)
    filtered = next(each for each, names in singles.items() if names == ("fused_act",))
    assert "fused_filter" not in filtered and "fused_norm" in filtered
    savings = {name: float(k) for k, name in enumerate(plan.rungs)}
    assert planning.largest(savings) == list(plan.rungs[:-6:-1])
    both = planning.subsets(plan, savings)
    assert both[:2] == [plan.everything, frozenset()] and both[2 : 2 + len(singles)] == list(singles)
    assert len(both) == 2 + len(singles) + 10


# --- the figures --------------------------------------------------------------------------------------------------


def test_planted_gains_and_interactions_come_back(result: record.Result) -> None:
    """A pair's gain is shared by its two, so a value is the planted gain and half of its pairs'."""
    for each in result.worth:
        shared = sum(gain / 2 for names, gain in TOGETHER.items() if each.rung in names)
        assert each.gain == pytest.approx(GAINS[each.rung] + shared, abs=1e-9)
        assert each.alone == pytest.approx(GAINS[each.rung], abs=1e-9)
        assert each.left_out == pytest.approx(GAINS[each.rung] + 2 * shared, abs=1e-9)
        assert each.interval and each.interval[0] < each.gain < each.interval[1]
    for pair in result.pairs:
        wanted = TOGETHER.get(frozenset({pair.first, pair.second}), 0.0)
        assert pair.gain == pytest.approx(wanted, abs=1e-9)
        assert report.beyond_noise(pair, result) == (wanted != 0)
    assert len(result.pairs) == 21 and len(result.worth) == 7


def test_values_sum_to_the_whole_in_both_units(result: record.Result) -> None:
    total = result.total
    assert total and total.orders == math.factorial(7)
    assert math.fsum(each.gain or 0 for each in result.worth) == pytest.approx(total.gain, abs=1e-9)
    assert math.fsum(each.ms or 0 for each in result.worth) == pytest.approx(total.ms, abs=1e-6)
    assert total.ms == pytest.approx(planted(frozenset()) - planted(frozenset(ARTICLE)), abs=1e-4)


def test_the_share_of_the_order_is_none_without_interactions(result: record.Result) -> None:
    apart = [0.04, 0.04, 0.01, 0.01]  # half of each pair's gain, at both of its rungs
    size = sum(abs(each.staircase or 0) + abs(each.gain or 0) for each in result.worth)
    assert result.total and result.total.moved == pytest.approx(sum(apart) / size, abs=1e-6)
    made = of_ablation(MACHINE, ARTICLE[:3], lambda subset: planted(subset, together={}))
    alone = build(record.Result, made)
    assert alone.total and alone.total.moved == pytest.approx(0, abs=1e-6)
    assert report.order_sentence(alone).startswith("0% of the staircase's 1.51x in GPU time is its order")
    assert report.pair_sentence(alone) == "No pair of rungs gains or loses together beyond the noise."


def test_the_error_comes_from_fresh_processes_and_a_common_shift_is_no_error(result: record.Result) -> None:
    noise = result.noise
    assert noise and noise.freedom == 12 and noise.sd == pytest.approx(0.0021 / math.sqrt(2), rel=0.1)
    shifted = build(record.Result, of_ablation(MACHINE, fresh=lambda number: 1.05)).noise
    assert shifted and shifted.sd < 1e-6 and shifted.shift == pytest.approx(math.log(1.05), abs=1e-6)
    few = build(record.Result, of_ablation(MACHINE, ARTICLE[:3]))
    assert few.noise is None and few.worth[0].interval is None
    assert "too few subsets repeated" in few.protocol.notes[-1]


def test_other_kernels_in_a_fresh_process_are_told(result: record.Result) -> None:
    rows = [*result.subsets]
    at = next(k for k, row in enumerate(rows) if row.again)
    rows[at] = replace(rows[at], again=replace(rows[at].again, kernels=3400.0))
    found = record.derive(replace(result, subsets=rows))
    assert "1 of 13 subsets launched other numbers of kernels" in found.protocol.notes[-1]
    assert not any("numbers of kernels" in note for note in result.protocol.notes)


def test_orders_that_pass_a_subset_without_a_time_do_not_count() -> None:
    names = ARTICLE[:3]
    made = of_ablation(MACHINE, names, kept=lambda subset: subset != frozenset({names[2]}))
    found = build(record.Result, made)
    assert found.total and found.total.orders == 4 and validate.check(made) is None
    assert math.fsum(each.gain or 0 for each in found.worth) == pytest.approx(found.total.gain, abs=1e-9)
    assert found.worth[2].alone is None


def test_a_longer_ladder_has_gains_at_its_top_and_pairs_there() -> None:
    found = build(record.Result, made_up.of_longer(MACHINE))
    assert [each.gain for each in found.worth] == [None] * 9
    assert found.worth[-2].left_out == pytest.approx(0.05, abs=1e-6)
    (pair,) = found.pairs
    assert [pair.first, pair.second] == ARTICLE[:2] and pair.gain == pytest.approx(0.08, abs=1e-6)
    product = math.exp(sum(made_up.LONGER.values()) + 0.05 + 2 * (0.08 - 0.02))
    assert f"multiply to {product:.2f}x, the whole ladder's gain is 1.94x" in report.order_sentence(found)
    head, rows = report.table(found)
    assert head[-1] == "leaves with it" and [row[-1] for row in rows] == [""] * 8 + ["fused_adam", ""]
    assert rows[-2][1] == "1.07x" and rows[-1][:2] == ("all together", "1.94x")
    assert "on top of all others" in report.markdown(found).splitlines()[0]
    assert chart.render(found, "png")[:4] == b"\x89PNG"
    assert validate.check(json.loads(json.dumps(plain(found)))) is None


def test_the_report_says_it_in_sentences_and_the_chart_in_both_themes(result: record.Result) -> None:
    said = report.text(result)
    assert "of the staircase's 1.81x in GPU time is its order" in said and "all 5,040 orders" in said
    assert "channels_last and bf16 act on each other most: together they gain more, 1.08x the" in said
    assert "13 subsets were measured again in fresh processes" in said and "1.174x" not in said
    assert "fresh processes took 0.02% longer" in said
    assert report.markdown(result).count("| channels\\_last, bf16 |") == 1
    assert chart.render(result, "svg", LIGHT) != chart.render(result, "svg", DARK)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data["worth"][0].update(gain=0.5), "worth: not what the subsets say"),
        (lambda data: data["pairs"][0].update(gain=0.0), "pairs: not what the subsets say"),
        (lambda data: data["noise"].update(sd=1e-6), "noise: not what the subsets say"),
        (lambda data: data["total"].update(moved=0.5), "total: not what the subsets say"),
        (lambda data: data["subsets"].append(data["subsets"][3]), "one is there twice"),
        (lambda data: data["subsets"][3]["once"].update(gpu_ms=[0.01]), "faster than this machine"),
        (lambda data: data["subsets"][3].update(status="oom"), "a time, but not the status ok"),
        (lambda data: data["subsets"][3]["once"].update(gpu_ms=None), "no gpu time"),
        (lambda data: data.update(complete=False), "interrupted"),
        (lambda data: data["protocol"].update(rungs=[f"r{k}" for k in range(9)] + ARTICLE), "every subset of 16"),
        (lambda data: data.update(more=1), "unknown key"),
        (lambda data: data["machine"].update(name="another"), "machine.name"),
    ],
)  # fmt: skip
def test_a_file_that_contradicts_itself_is_refused(
    change: Callable[[dict[str, Any]], object], words: str, data: dict[str, Any]
) -> None:
    copy = json.loads(json.dumps(data))
    assert validate.check(copy) is None and kinds.marks(copy) == []
    change(copy)
    assert words in (validate.check(copy) or "")


# --- the command --------------------------------------------------------------------------------------------------

LADDER = {"rungs": ["baseline", "channels_last", "set_to_none"]}


@pytest.fixture
def least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the options of a run on the smallest workload and a ladder of two changes, which was inspected before."""
    monkeypatch.setattr(looks, "PROFILED", 1)
    monkeypatch.setattr(inspection.Cache, "get", lambda self, recipe: {})
    (tmp_path / "least.yaml").write_text(yaml.safe_dump(LEAST))
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(LADDER))
    files = ["-w", str(tmp_path / "least.yaml"), "--ladder", str(tmp_path / "two.yaml")]
    return [*files, "--device", "cpu", "--out", str(tmp_path / "out")]


class Nobody:
    """Workers and a watch that are never asked for anything."""

    def wait(self) -> None: ...

    def look_around(self) -> None: ...

    def take(self) -> "Nobody":
        return self

    def close(self) -> None: ...


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measure nothing: each look is planted. Returns the list of looks that were taken."""
    taken: list[str] = []

    @contextlib.contextmanager
    def opened(device: str) -> Iterator[tuple[Nobody, Nobody]]:
        yield Nobody(), Nobody()

    onlookers: list[looks.Onlooker] = []

    def planted_look(onlooker: looks.Onlooker, task: looks.Task, visits: Any) -> looks.Look:
        onlookers.extend([onlooker] * (onlooker not in onlookers))
        taken.append(f"process {onlookers.index(onlooker)}")
        return build(looks.Look, look(None, 50.0 + task.recipe["set_to_none"]))

    monkeypatch.setattr(sitting, "opened", opened)
    monkeypatch.setattr(looks.Onlooker, "look", planted_look)
    return taken


def read(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())


def test_a_ladder_is_taken_apart_on_a_cpu(least: list[str], tmp_path: Path, kept_servers: None) -> None:
    said = call("ablate", *least)
    assert said.exit_code == 0, said.output
    found = read(tmp_path / "out")
    assert len(found["subsets"]) == 4 and found["complete"] and found["protocol"]["clock"] == "wall"
    assert sum(row["again"] is not None for row in found["subsets"]) == 3 and found["noise"]
    assert all(len(row["once"]["wall_ms"]) == 1 and row["once"]["gpu_ms"] is None for row in found["subsets"])
    for told in ("7 measurements, for how long the first visit will tell", "7 of 7, about 0 min left"):
        assert told in said.stderr
    assert "in wall time on a CPU is its order" in said.stdout and "not to be quoted" in said.stdout
    suffixes = sorted(path.suffix for path in (tmp_path / "out").iterdir())
    assert suffixes == [".json", ".md", ".png", ".svg"]
    assert call("validate", tmp_path / "out").exit_code == 0


def test_the_time_ends_and_the_rest_is_measured_later(
    least: list[str], fake: list[str], tmp_path: Path
) -> None:
    said = call("ablate", *least, "--budget", "1e-9")
    assert said.exit_code == 130 and fake == ["process 0"] and "go on:" in said.stdout
    partial = read(tmp_path / "out")
    assert not partial["complete"] and len(partial["subsets"]) == 1 and validate.check(partial) is None
    (path,) = (tmp_path / "out").glob("*-partial.json")
    said = call("ablate", *least, "--resume", str(path))
    assert said.exit_code == 0, said.output
    assert fake == ["process 0", *["process 1"] * 3, "process 2", "process 3", "process 4"]
    found = read(tmp_path / "out")
    assert found["complete"] and not list((tmp_path / "out").glob("*-partial.*"))
    other = [*least[:3], "article", *least[4:], "--resume", str(next((tmp_path / "out").glob("*.json")))]
    assert "another ladder, other rungs or another seed" in refused("ablate", *other)


def test_a_subset_that_fails_has_a_reason_and_is_tried_again(
    least: list[str], fake: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = looks.Onlooker.look

    def broken(self: looks.Onlooker, task: looks.Task, visits: Any) -> looks.Look:
        if task.recipe["channels_last"] and task.recipe["set_to_none"]:
            raise WorkerFailure("failed", "cycle: no kernel image <here>")
        return real(self, task, visits)

    monkeypatch.setattr(looks.Onlooker, "look", broken)
    said = call("ablate", *least)
    assert said.exit_code == 1 and "failed: cycle: no kernel image (here)" in said.stderr
    assert "ladder's two ends were not both measured" in said.stdout
    assert validate.check(read(tmp_path / "out")) is None
    monkeypatch.setattr(looks.Onlooker, "look", real)
    (path,) = (tmp_path / "out").glob("*.json")
    assert call("ablate", *least, "--resume", str(path)).exit_code == 0
    assert read(tmp_path / "out")["total"]["orders"] == 2


def test_without_a_time_at_either_end_nothing_else_is_tried(
    least: list[str], fake: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def void(*_: Any) -> looks.Look:
        raise WorkerFailure("invalid", fake.append("void") or "the profiler saw no kernels")

    monkeypatch.setattr(looks.Onlooker, "look", void)
    assert "base has a time: the profiler saw no kernels" in call("ablate", *least).stderr and len(fake) == 2


def test_a_subset_at_which_the_system_fails_is_kept_and_comes_last(
    least: list[str], fake: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = looks.Onlooker.look, []

    def full(self: looks.Onlooker, task: looks.Task, visits: Any) -> looks.Look:
        seen.append((task.recipe["channels_last"], task.recipe["set_to_none"]))
        if seen[-1] == (False, False):
            raise EnvironmentFailure("No space left on device: prepare")
        return real(self, task, visits)

    monkeypatch.setattr(looks.Onlooker, "look", full)
    said = call("ablate", *least)
    assert "No space left on device: prepare; what was finished is kept" in said.stderr
    assert said.exit_code == 2 and "-partial.json" in said.stderr and seen == [(True, True), (False, False)]
    (path,) = (tmp_path / "out").glob("*-partial.json")
    said = call("ablate", *least, "--resume", str(path))
    assert said.exit_code == 2 and len(seen) == 5 and seen[-1] == (False, False)
    assert [row["status"] for row in read(tmp_path / "out")["subsets"]].count("ok") == 3


def test_a_ladder_that_fails_parity_is_not_measured(
    least: list[str], fake: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection.Cache, "get", lambda self, recipe: None)
    asked: list[str] = []

    def answer(self: Nobody, do: str, **fields: Any) -> dict[str, Any]:
        asked.append(do)
        return {"verdict": "failed: parity", "reason": "D_main loss: error 0.5, budget 0.01"}

    monkeypatch.setattr(Nobody, "call", answer, raising=False)
    said = call("ablate", *least)
    assert said.exit_code == 1 and fake == [] and asked == ["build", "prepare", "parity"]
    assert "failed parity: D_main loss: error 0.5" in said.stdout
    assert validate.check(read(tmp_path / "out")) is None


def test_stored_runs_of_the_machine_stand_beside(
    on_a_gpu: None, result: record.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_ablate, "RUNS", committed.file("results/ladder"))
    found = cli_ablate.stored(plan_of("article"), MACHINE)
    assert "leave-one-out" in {each.mode for each in found}
    graphs = next(each for each in found if each.rung == "cuda_graphs")
    assert graphs.wall and graphs.wall > 1  # how much more is the host's
    shown = replace(result, beside=found)
    assert "| cuda\\_graphs | leave-one-out, 20" in report.tables(shown)
    assert validate.check(json.loads(json.dumps(plain(shown)))) is None


def test_too_few_rungs_are_one_line(least: list[str], tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(
        yaml.safe_dump({"rungs": ["baseline", "channels_last", "cuda_graphs"]})
    )
    assert "fewer than two of its rungs run here" in refused("ablate", *least)
