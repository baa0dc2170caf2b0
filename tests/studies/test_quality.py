"""`ladder quality`: the test of equivalence, time to quality, and the command on trainings that are made up or tiny."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from msgspec import structs
from PIL import Image
from scipy import stats

from ladder.images import idx
from ladder.plan import beside
from ladder.publish.pages import tables
from ladder.publish.pages.committed import Committed
from ladder.studies import bugs, frame, quality
from ladder.studies.quality import STUDY, Case, Observed
from ladder.training import features, seeds
from ladder.training.point import Point
from ladder.training.seeds import Outcome
from tests.studies.test_contract import read
from tests.support.commands import call, refused
from tests.support.rung_steps import checked, cold, gathered, receipt, small
from tests.support.small import LITTLE

LATER = ("average_stops", "rate_falls", "epochs_alike")  # that a few steps do not show


def make_file(seeds: int = 5, **rungs: list[float]):
    """Return a file whose trainings end at these Fréchet distances after a second of ten steps."""
    _, golden = read("quality")
    cases, observed = {}, {}
    for rung, distances in rungs.items():
        for seed, distance in enumerate(distances):
            cases[f"{rung}, {seed}"] = Case(rung=rung, recipe={}, seed=seed)
            point = Point(step=10, seconds=1.0, levels={"32": 1.0}, frechet=distance)
            observed[f"{rung}, {seed}"] = Observed(points=[point])
    own = structs.replace(golden.options, seeds=seeds)
    return structs.replace(golden, options=own, cases=cases, observed=observed)


BASE = [10.0, 10.2, 9.8, 10.1, 9.9, 10.0, 10.3, 9.7, 10.1, 9.9]


def shift(by: float, spread: float = 1.0) -> list[float]:
    """Return five distances whose mean is that of the baseline plus `by`."""
    return [10 + by + spread * each for each in (-0.2, -0.1, 0, 0.1, 0.2)]


def test_a_rung_is_as_good_worse_better_or_not_decided_by_two_one_sided_tests() -> None:
    file = make_file(
        base=BASE, same=shift(0.05), worse=shift(1), better=shift(-1), wide=shift(0.3, 4), slightly=shift(0.3)
    )
    margin = quality.derive_margin(file)
    assert margin == pytest.approx(stats.t.ppf(0.995, 9) * statistics.stdev(BASE) * math.sqrt(2 / 5))
    rungs = {rung.name: rung for rung in quality.derive_rungs(file)}
    undecided = "not decided with 5 seeds"
    assert [rung.verdict for rung in rungs.values()] == [
        None, "as good", "worse", "better", undecided, "worse"
    ]  # fmt: skip
    for name, rung in rungs.items():
        if name == "base":
            continue
        error = [
            stats.ttest_ind(
                rung.distances, [each + side * margin for each in BASE], equal_var=False, alternative=kind
            )
            for side, kind in ((-1, "greater"), (1, "less"))
        ]
        assert (max(each.pvalue for each in error) < 0.05) == (rung.verdict == "as good"), name


def test_a_rung_among_many_is_worse_only_by_a_difference_that_chance_alone_does_not_make() -> None:
    worse = shift(0.4, 1.5)
    alone, among = (
        quality.derive_rungs(
            make_file(base=BASE, rung=worse, **{f"same{k}": shift(0) for k in range(others)})
        )[1]
        for others in (0, 19)
    )
    assert alone.verdict == "worse" and among.verdict == "not decided with 5 seeds"
    assert (alone.low, alone.high) == (among.low, among.high)


def test_there_is_no_answer_before_all_seeds_are_there_and_none_for_a_rung_that_broke() -> None:
    file = make_file(base=BASE, rung=shift(0))
    for lacking in ("base, 9", "rung, 4"):
        less = structs.replace(file, observed={k: v for k, v in file.observed.items() if k != lacking})
        assert quality.derive_rungs(less)[1].verdict is None
    broke = structs.replace(
        file, observed=file.observed | {"rung, 4": Observed(status="failed", reason="NaN")}
    )
    assert quality.derive_rungs(broke)[1].verdict == "broke" and STUDY.find_status(broke) == 1


@pytest.mark.parametrize(
    ("distances", "seconds"),
    [
        ([9, 5, 3, 1], 2.5), ([9, 3, 5, 3], 3.5),  # it leaves again: the last time counts
        ([9, 5, 4, 4], 3), ([3, 3, 3, 3], 1), ([9, 3, 3, 5], None), ([9, 9, 9, 9], None), ([], None),
    ],
)  # fmt: skip
def test_time_to_quality_is_that_from_which_the_distance_stays(
    distances: list[float], seconds: float | None
) -> None:
    assert quality.find_seconds([*zip((1, 2, 3, 4), distances, strict=False)], 4) == seconds


def train_by_name(setup: seeds.Setup, task: seeds.Task, real: object = None) -> Outcome:
    """Stand for a training: the FP32 baseline approaches 10, any other step in half of the time."""
    is_base = not task.recipe
    return Outcome(tuple(
        Point(
            step=setup.steps * k // setup.points, seconds=k * (2.0 if is_base else 1.0), levels={"32": 100.0},
            frechet=10 + 40 / k**2 + BASE[task.seed] - 10,
        )
        for k in range(1, setup.points + 1)
    ), 16)  # fmt: skip


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Trainings that take no time; returns those that were made: whether of the baseline, and the seed."""
    made: list[tuple[bool, int]] = []

    def train(setup: seeds.Setup, task: seeds.Task, real: object) -> Outcome:
        made.append((not task.recipe, task.seed))
        if len(made) == 7:
            raise KeyboardInterrupt
        return train_by_name(setup, task)

    monkeypatch.setattr(seeds, "train_rung", train)
    monkeypatch.setattr(seeds, "read_real", lambda *_, **more: None)
    monkeypatch.setattr(seeds, "measure_floor", lambda *_: Point(levels={"32": 5.0}, frechet=1.5))
    return made


def test_the_command_is_gone_on_with_and_compares_time_to_quality_with_the_step(
    tmp_path: Path, made_up: list[tuple[bool, int]]
) -> None:
    common = ("quality", "--device", "cpu", "--out", str(tmp_path))
    given = ("--ladder", "article", "--rungs", "channels_last", "--seeds", "3", "--points", "4")
    stopped = call(*common, *given)
    assert stopped.exit_code == 130 and "margin, from the baseline's seeds" in stopped.stderr
    (partial,) = tmp_path.glob("*.json")
    result = call(*common, "--resume", str(partial))
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("*.json")
    file = frame.read_file(STUDY, path)
    assert made_up == [(True, seed) for seed in range(6)] + [(False, 0)] + [
        (False, seed) for seed in range(3)
    ]
    derived = STUDY.derive(file)
    base, rung = derived.rungs
    assert rung.verdict == "as good" and derived.floor == 1.5 and derived.measure == "frechet"
    assert rung.speedup == 2 and rung.quality_speedup == pytest.approx(2, rel=0.1)
    assert base.to_target is not None and 6 < base.to_target <= 8  # between the last two points
    assert path.with_suffix(".png").exists() and "as good" in path.with_suffix(".md").read_text()


def test_parallel_trainings_have_no_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "train_all", lambda setup, tasks, jobs: (
        (task, train_by_name(setup, task)) for task in tasks
    ))  # fmt: skip
    monkeypatch.setattr(seeds, "measure_floor", lambda *_: Point(levels={"32": 5.0}, frechet=1.5))
    arguments = ("--ladder", "article", "--rungs", "bf16", "--seeds", "2", "--jobs", "2")
    assert call("quality", "--device", "cpu", "--out", str(tmp_path), *arguments).exit_code == 0
    (path,) = tmp_path.glob("*.json")
    rungs = STUDY.derive(frame.read_file(STUDY, path)).rungs
    assert all(rung.step_ms is rung.to_target is rung.speedup is None for rung in rungs) and rungs[1].verdict


def test_real_trainings_of_another_size_are_compared_by_the_sliced_distance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "MOST_SAMPLES", {"cpu": 8})
    for index in range(16):
        shade = np.linspace(20 + 5 * index, 200, 64).reshape(8, 8, 1).repeat(3, 2)
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(shade.astype(np.uint8)).save(tmp_path / "images" / f"{index:02d}.png")
    (tmp_path / "little.yaml").write_text(yaml.safe_dump(LITTLE | {"ema_images": 8}))
    names = ("-w", tmp_path / "little.yaml", "--data", tmp_path / "images", "--out", tmp_path / "out")
    arguments = (
        "--ladder",
        "article",
        "--rungs",
        "channels_last",
        "--seeds",
        "2",
        "--steps",
        "6",
        "--points",
        "3",
    )
    result = call("quality", "--device", "cpu", *map(str, names), *arguments)
    (path,) = (tmp_path / "out").glob("*.json")
    file = frame.read_file(STUDY, path)
    derived = STUDY.derive(file)
    assert result.exit_code in (0, 1) and derived.measure == "swd" and derived.floor > 0, result.output
    for each in file.observed.values():
        assert [point.step for point in each.points] == [2, 4, 6] and each.samples == 8
        assert 0 < each.points[0].seconds < each.points[2].seconds
    assert file.observed["baseline, seed 0"].points != file.observed["baseline, seed 1"].points


def test_samples_of_32x32_have_every_measure_and_the_data_itself_has_none_to_go() -> None:
    images = features.read_split(idx.SAMPLE, "train")[0][:64].expand(-1, 3, -1, -1)
    near, far = (
        seeds.measure_samples(images, images),
        seeds.measure_samples(images, torch.zeros_like(images)),
    )
    assert (near.frechet, near.swd, near.precision, near.recall) == (pytest.approx(0, abs=1e-6), 0, 1, 1)
    assert far.frechet > 10 and far.kid > 1 and far.precision == far.recall == 0


def test_a_rung_that_is_none_of_the_ladders_is_refused() -> None:
    assert "did you mean 'bf16'" in refused("quality", "--device", "cpu", "--rungs", "bf61")


def test_points_out_of_order_are_no_genuine_file() -> None:
    file = make_file(base=BASE, rung=shift(0))
    points = [Point(step=step, seconds=1.0, levels={"32": 1.0}, frechet=1.0) for step in (2, 1)]
    forged = structs.replace(file, observed=file.observed | {"rung, 4": Observed(points=points)})
    assert "not in order" in (frame.find_problem(STUDY, forged) or "")


def test_planted_bugs_are_listed_with_what_finds_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parity and receipts are those of the real step on a small workload; trainings are made up."""
    plan = beside.load_beside(quality.BUGS)
    chosen = {name: plan.entries[name] for name in ("sign_flipped", "autocast_lost", "rate_falls")}
    monkeypatch.setattr(beside, "load_beside", lambda mode: structs.replace(plan, entries=chosen))
    monkeypatch.setattr(seeds, "measure_floor", lambda *_: Point(levels={"8": 5.0}))

    def train(setup: seeds.Setup, task: seeds.Task, real: object) -> Outcome:
        far = 50.0 if task.variant and task.variant[1] == "rate_falls" else 0.0
        return Outcome((Point(step=1, levels={"8": BASE[task.seed] + far}),), 8)

    monkeypatch.setattr(seeds, "train_rung", train)
    (tmp_path / "little.yaml").write_text(yaml.safe_dump(LITTLE))
    names = ("-w", tmp_path / "little.yaml", "--out", tmp_path / "out", "--ladder", "article")
    result = call("quality", "--bugs", "--device", "cpu", "--seeds", "3", "--steps", "1", *map(str, names))
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "out").glob("*-bugs.json")
    clean, flipped, lost, falls = STUDY.derive(frame.read_file(STUDY, path)).bugs
    assert not clean.is_found and clean.tried == ["parity", "receipts", "training"]
    assert "G_main" in (flipped.parity or "") and flipped.training == "as good"
    assert "bf16" in (lost.receipts or "") and lost.parity is None
    assert falls.parity is falls.receipts is None and falls.training == "worse" and falls.is_found
    assert "3 of 3 planted bugs are found" in result.stdout


@pytest.mark.parametrize("name", [name for name in bugs.PATCHES if name not in LATER])
def test_a_planted_bug_is_found_in_the_step_itself(name: str, references: Path) -> None:
    recipe = {"channels_last": True, "precision": "bf16", "set_to_none": True}
    recipe |= beside.load_beside(quality.BUGS).entries[name].change
    step = small(recipe, resolution=8)
    bugs.apply(step, name)
    problem = checked(step, references)["reason"]
    if name == "autocast_lost":
        step = small(recipe, resolution=8)
        bugs.apply(step, name)
        assert problem is None and not receipt("bf16", gathered(step)).engaged
    else:
        assert problem is not None


def test_documents_show_the_answer_and_join_what_files_know_of_a_bug(tmp_path: Path) -> None:
    _, golden = read("quality")
    folder, empty = tmp_path / "results" / "quality", Committed(tmp_path)
    folder.mkdir(parents=True)
    assert "Only the article's eight rungs" in tables.render_trained(empty)
    assert all("No complete run" in render(empty) for render in (tables.render_quality, tables.render_bugs))

    def plant(name: str, **findings: str | None) -> quality.File:
        cases = {f"{by}": Case(rung=name, recipe={}, seed=0, bug=name, by=by) for by in findings}
        observed = {by: Observed(finding=found) for by, found in findings.items()}
        return structs.replace(
            golden, options=structs.replace(golden.options, bugs=True), cases=cases, observed=observed
        )

    files = {
        "a": golden, "b": plant("stale_style", parity="G_main loss: error 1, budget 0.1"),
        "c": plant("stale_style", receipts=None),
    }  # fmt: skip
    for name, file in files.items():
        frame.write_file(STUDY, file, folder / f"{name}.json", pages=False)
    committed = Committed(tmp_path)
    assert "![" in tables.render_quality(committed) and "a.png" in tables.render_quality(committed)
    assert "`bf16` not decided with 3 seeds, `graph_fills` broke" in tables.render_trained(committed)
    assert "| styles of the step before | yes | no |" in tables.render_bugs(committed)


def test_every_bug_has_a_patch_and_a_late_one_begins_after_a_hundred_steps() -> None:
    assert [*bugs.PATCHES] == [*beside.load_beside(quality.BUGS).entries]
    for name, network in (("average_stops", "G_ema"), ("rate_falls", "D")):
        step = cold(small(resolution=8))
        bugs.apply(step, name)
        moved = []
        for count in (0, bugs.LATE):
            before = [each.detach().clone() for each in getattr(step, network).parameters()]
            step.count = count
            step.step()
            after = getattr(step, network).parameters()
            moved.append(any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)))
        assert moved == [True, False], name
