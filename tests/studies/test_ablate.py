"""`ladder ablate`: which subsets are measured, and what follows from planted times."""

from __future__ import annotations

import contextlib
import json
import math
from types import SimpleNamespace

import msgspec
import pytest
import yaml

from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.records import read_record
from ladder.engine import inspection, looks, visit
from ladder.engine.looks import Look
from ladder.engine.pool import WorkerFailure
from ladder.machine import system
from ladder.plan import catalog, needs
from ladder.studies import ablate, frame
from ladder.studies.ablate import LARGEST, PARITY, STUDY, Options, list_subsets, load_changes, pick_again
from ladder.studies.ablate.record import Figures, is_beyond_noise
from tests.support import committed, servers
from tests.support import made_up_ablation as made_up
from tests.support.commands import call
from tests.support.made_up_ablation import ARTICLE, GAINS, TOGETHER, look, of_ablation, planted
from tests.support.small import LEAST

kept_servers = servers.kept_servers
MACHINE = json.loads(committed.file("results/ablation/nvidia-h200-article-full.json").read_text())["machine"]


def read(data):
    return frame.decode_file(STUDY, json.loads(json.dumps(data)))


def derive(data):
    return Figures(read(data))


@pytest.fixture(scope="module")
def whole():
    return derive(of_ablation(MACHINE))


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(system, "list_capabilities", lambda device: dict.fromkeys(needs.OF_MACHINE))


def job_of(ladder):
    name, workload = catalog.load_workload("article")
    return Job("cuda", name, workload, None, MACHINE, Options(ladder=str(ladder)), None)


# --- the plan ---------------------------------------------------------------------------------------------------------


def subsets_of(ladder, savings=None):
    job = job_of(ladder)
    return list_subsets(job, load_changes(job), savings)


def test_every_subset_of_the_article_s_rungs_is_planned_once_its_ends_first(on_a_gpu):
    changes, subsets = load_changes(job_of("article")), [*subsets_of("article")]
    everything = frozenset(ARTICLE)
    assert list(changes.changes) == ARTICLE and len({*subsets}) == 128
    assert subsets[:2] == [everything, frozenset()]
    climbed = catalog.plan_climb(catalog.load_ladder("article"), system.list_capabilities("cuda"))
    assert changes.lay(everything) == climbed[-1].recipe  # the key under which a run's inspection is kept
    assert changes.make_recipe({"cuda_graphs"})["adam"] == "capturable"
    again = pick_again(subsets, 0)
    assert len({*again}) == 13 and again == pick_again(subsets[::-1], 0)


def test_impossible_subsets_and_rungs_without_what_they_rest_on_are_left_out(on_a_gpu, tmp_path):
    """fused_filter joins two others, and parallel streams rest on graphs, while two more make them possible."""
    rungs = ["baseline", "fused_act", "fused_resample", "fused_filter", "cuda_graphs"]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"rungs": rungs}))
    subsets = subsets_of(path)
    assert len(subsets) == 10
    assert all({"fused_act", "fused_resample"} <= each for each in subsets if "fused_filter" in each)
    rungs = ["baseline", "conv_double_backward", "lean_weights", "cuda_graphs", "parallel_streams"]
    path.write_text(yaml.safe_dump({"rungs": rungs}))
    assert [each for each in subsets_of(path) if "parallel_streams" in each] == [frozenset(rungs[1:])]


def test_a_longer_ladder_is_measured_without_each_rung_and_without_pairs_of_the_five_largest(on_a_gpu):
    singles, names = subsets_of("full"), [*load_changes(job_of("full")).changes]
    assert sorted(out for out in singles.values() if out) == sorted((name,) for name in names)
    without_act = next(each for each, out in singles.items() if out == ("fused_act",))
    assert "fused_filter" not in without_act and "fused_norm" in without_act
    both = subsets_of("full", {name: float(k) for k, name in enumerate(names)})
    pairs = [out for out in both.values() if len(out) == 2]
    assert [*both][: len(singles)] == [*singles] and len(pairs) == 10
    assert {name for out in pairs for name in out} == {*names[-LARGEST:]}


def test_the_cases_of_a_longer_ladder_follow_from_what_was_seen(on_a_gpu):
    """First one rung out each, then pairs of those that save most, then some again in fresh processes."""
    job, counts = job_of("full"), []
    file = msgspec.structs.replace(read(made_up.of_longer(MACHINE)), cases={}, observed={})
    while len(file.cases) < len(cases := STUDY.list_cases(job, file)):
        observed = {
            key: ablate.Observed(look=read_record(Look, look(100.0 - len(case.rungs))))
            for key, case in cases.items()
        }
        file = msgspec.structs.replace(file, cases=cases, observed=observed | {PARITY: ablate.Observed()})
        kinds = [(case.kind, len(case.out)) for case in cases.values()]
        counts.append((kinds.count(("once", 2)), sum(kind == "again" for kind, _ in kinds)))
    assert counts == [(0, 0), (10, 0), (10, 4)] and file.is_complete
    failed = {PARITY: ablate.Observed(status="failed: parity")}
    assert list(STUDY.list_cases(job, msgspec.structs.replace(file, observed=failed))) == [PARITY]


# --- the figures ------------------------------------------------------------------------------------------------------


def test_planted_gains_and_interactions_come_back(whole):
    """A pair's gain is shared by its two, so a value is the planted gain and half of its pairs'."""
    for each in whole.worth:
        shared = sum(gain / 2 for names, gain in TOGETHER.items() if each.rung in names)
        assert each.gain == pytest.approx(GAINS[each.rung] + shared, abs=1e-9)
        assert each.alone == pytest.approx(GAINS[each.rung], abs=1e-9)
        assert each.left_out == pytest.approx(GAINS[each.rung] + 2 * shared, abs=1e-9)
        assert each.interval and each.interval[0] < each.gain < each.interval[1]
    for pair in whole.pairs:
        wanted = TOGETHER.get(frozenset({pair.first, pair.second}), 0.0)
        assert pair.gain == pytest.approx(wanted, abs=1e-9)
        assert is_beyond_noise(pair, whole.noise, 21) == (wanted != 0)
    assert len(whole.pairs) == 21 and len(whole.worth) == 7


def test_many_pairs_share_one_level(whole):
    """A pair that is just beyond its own 95% interval is not beyond that of one in 21."""
    half = (whole.pairs[0].interval[1] - whole.pairs[0].interval[0]) / 2
    pair = msgspec.structs.replace(whole.pairs[0], gain=1.05 * half)
    assert is_beyond_noise(pair, whole.noise, 1) and not is_beyond_noise(pair, whole.noise, 21)


def test_values_sum_to_the_whole_in_both_units(whole):
    total = whole.total
    assert total.orders == math.factorial(7)
    assert math.fsum(each.gain for each in whole.worth) == pytest.approx(total.gain, abs=1e-9)
    assert math.fsum(each.ms for each in whole.worth) == pytest.approx(total.ms, abs=1e-6)
    assert total.ms == pytest.approx(planted(frozenset()) - planted(frozenset(ARTICLE)), abs=1e-4)


def test_the_share_of_the_order_is_none_without_interactions(whole):
    apart = [0.04, 0.04, 0.01, 0.01]  # half of each pair's gain, at both of its rungs
    size = sum(abs(each.staircase) + abs(each.gain) for each in whole.worth)
    assert whole.total.moved == pytest.approx(sum(apart) / size, abs=1e-6)
    alone = derive(of_ablation(MACHINE, ARTICLE[:3], lambda subset: planted(subset, together={})))
    assert alone.total.moved == pytest.approx(0, abs=1e-6)
    assert not any(is_beyond_noise(pair, alone.noise, 3) for pair in alone.pairs)


def test_the_error_comes_from_fresh_processes_and_a_common_shift_is_no_error(whole):
    assert whole.noise.freedom == 12 and whole.noise.sd == pytest.approx(0.0021 / math.sqrt(2), rel=0.1)
    shifted = derive(of_ablation(MACHINE, fresh=lambda number: 1.05)).noise
    assert shifted.sd < 1e-6 and shifted.shift == pytest.approx(math.log(1.05), abs=1e-6)
    few = derive(of_ablation(MACHINE, ARTICLE[:3]))
    assert few.noise is None and few.worth[0].interval is None
    assert "too few subsets repeated" in STUDY.list_cautions(read(of_ablation(MACHINE, ARTICLE[:3])))[-1]


def test_orders_that_pass_a_subset_without_a_time_do_not_count():
    names = ARTICLE[:3]
    found = derive(of_ablation(MACHINE, names, kept=lambda subset: subset != frozenset({names[2]})))
    assert found.total.orders == 4 and found.worth[2].alone is None
    assert math.fsum(each.gain for each in found.worth) == pytest.approx(found.total.gain, abs=1e-9)


def test_a_longer_ladder_has_gains_at_its_top_and_pairs_there():
    file = read(made_up.of_longer(MACHINE))
    found = Figures(file)
    assert [each.gain for each in found.worth] == [None] * 9
    assert found.worth[-2].left_out == pytest.approx(0.05, abs=1e-6)
    (pair,) = found.pairs
    assert [pair.first, pair.second] == ARTICLE[:2] and pair.gain == pytest.approx(0.08, abs=1e-6)
    assert [row[-1] for row in ablate.make_table(found).rows] == [""] * 7 + ["", "fused_adam", ""]
    assert STUDY.draw(file, "png")[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda cases, seen: cases.update(extra=next(iter([*cases.values()][3:]))) or seen.update(extra=seen["bf16"]),
         "there twice"),
        (lambda cases, seen: cases["bf16"].update(rungs=["fused_rgb"]), "rungs that the ladder lacks"),
        (lambda cases, seen: cases.pop(PARITY) and seen.pop(PARITY), "is missing"),
        (lambda cases, seen: seen["bf16"]["look"].update(gpu_ms=[0.01]), "bf16: faster than this machine"),
        (lambda cases, seen: seen["nothing" + ablate.AGAIN]["look"].update(gpu_ms=[0.01]), "faster than this machine"),
        (lambda cases, seen: seen["bf16"].update(status="oom"), "oom contradicts its look"),
        (lambda cases, seen: seen["bf16"]["look"].pop("gpu_ms"), "no gpu time"),
    ],
)  # fmt: skip
def test_what_no_genuine_file_holds_is_refused(change, words):
    data = of_ablation(MACHINE)
    change(data["cases"], data["observed"])
    with pytest.raises(UserError, match=words):
        read(data)


# --- the command ------------------------------------------------------------------------------------------------------

PROBLEM = "D_main loss: error 0.5, budget 0.01"
INSPECTED = {"verdict": "ok", "reason": None, "problems": []}
LADDER = {"rungs": ["baseline", "channels_last", "set_to_none"]}


@pytest.fixture
def least(tmp_path, monkeypatch):
    """Return the options of a run on the smallest workload and a ladder of two changes, which was inspected before."""
    monkeypatch.setattr(looks, "PROFILED", 1)
    monkeypatch.setattr(inspection.Cache, "get", lambda self, recipe: {"parity": INSPECTED})
    (tmp_path / "least.yaml").write_text(yaml.safe_dump(LEAST))
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(LADDER))
    files = ["-w", str(tmp_path / "least.yaml"), "--ladder", str(tmp_path / "two.yaml")]
    return [*files, "--device", "cpu", "--out", str(tmp_path / "out")]


@pytest.fixture
def fake(monkeypatch):
    """Measure nothing: each look is planted. Returns the list of looks that were taken, by their processes."""
    taken, onlookers = [], []
    nobody = SimpleNamespace(wait=lambda: None, look_around=lambda: None, close=lambda: None)
    nobody.take = lambda: nobody

    @contextlib.contextmanager
    def opened(device):
        yield nobody, nobody

    def planted_look(onlooker, task, visits):
        onlookers.extend([onlooker] * (onlooker not in onlookers))
        taken.append(f"process {onlookers.index(onlooker)}")
        return read_record(Look, look(None, 50.0 + task.recipe["set_to_none"]))

    monkeypatch.setattr(visit, "open_sitting", opened)
    monkeypatch.setattr(looks.Onlooker, "look", planted_look)
    taken.append(nobody)
    return taken


def observed_in(folder):
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())["observed"]


def test_a_ladder_is_taken_apart_on_a_cpu(least, tmp_path, kept_servers):
    result = call("ablate", *least)
    assert result.exit_code == 0, result.output
    observed = observed_in(tmp_path / "out")
    assert len(observed) == 1 + 4 + 3 and observed[PARITY]["earlier"]
    assert all(len(each["look"]["wall_ms"]) == 1 for key, each in observed.items() if key != PARITY)
    assert "8 of 8, about 0 min left" in result.stderr
    assert "in wall time on a CPU is its order" in result.stdout and "not to be quoted" in result.stdout
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".json", ".md", ".png", ".svg"]


def test_one_process_takes_all_subsets_and_fresh_ones_the_repeats(least, fake, tmp_path):
    assert call("ablate", *least).exit_code == 0
    assert fake[1:] == ["process 0"] * 4 + ["process 1", "process 2", "process 3"]
    (path,) = (tmp_path / "out").glob("*.json")
    assert str(tmp_path) not in path.read_text()  # no path of the workload, of the ladder, or of images


def test_a_subset_that_fails_has_a_reason_and_is_tried_again(least, fake, tmp_path, monkeypatch):
    real = looks.Onlooker.look

    def broken(self, task, visits):
        if task.recipe["channels_last"] and task.recipe["set_to_none"]:
            raise WorkerFailure("failed", "cycle: no kernel image <here>")
        return real(self, task, visits)

    monkeypatch.setattr(looks.Onlooker, "look", broken)
    result = call("ablate", *least)
    assert result.exit_code == 1 and "failed: cycle: no kernel image (here)" in result.stderr
    assert "two ends were not both measured" in result.stdout
    monkeypatch.setattr(looks.Onlooker, "look", real)
    (path,) = (tmp_path / "out").glob("*.json")
    assert call("ablate", *least, "--resume", str(path)).exit_code == 0
    assert Figures(frame.read_file(STUDY, path)).total.orders == 2


def test_a_ladder_that_fails_parity_is_not_measured(least, fake, tmp_path, monkeypatch):
    monkeypatch.setattr(inspection.Cache, "get", lambda self, recipe: None)
    calls = []

    def answer(do, **fields):
        calls.append(do)
        return {"verdict": "failed: parity", "reason": PROBLEM, "problems": [PROBLEM]}

    fake[0].call = answer
    result = call("ablate", *least)
    assert result.exit_code == 1 and len(fake) == 1 and calls == ["build", "prepare", "parity"]
    assert "failed parity: D_main loss: error 0.5" in result.stdout
    assert observed_in(tmp_path / "out")[PARITY]["parity"] == {"problems": [PROBLEM]}


def test_stored_runs_of_the_machine_stand_beside(on_a_gpu, monkeypatch):
    monkeypatch.setattr(ablate, "RUNS", committed.file("results/ladder"))
    beside = ablate.read_beside(job_of("article"), load_changes(job_of("article")))
    assert "leave-one-out" in {each.mode for each in beside}
    graphs = next(each for each in beside if each.rung == "cuda_graphs")
    assert graphs.wall and graphs.wall > 1  # how much more is the host's


@pytest.mark.gpu
def test_a_ladder_is_taken_apart_on_a_gpu(tmp_path, monkeypatch):
    """Captured and eager subsets of a small ladder, in one process and in fresh ones."""
    monkeypatch.setattr(inspection.Cache, "get", lambda self, recipe: {"parity": INSPECTED})
    ladder = {"rungs": ["baseline", "set_to_none", "cuda_graphs", "data_loading"]}
    for name, content in {"least": LEAST, "three": ladder}.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    files = ["-w", tmp_path / "least.yaml", "--ladder", tmp_path / "three.yaml"]
    result = call("ablate", *files, "--device", "cuda", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "out").glob("*.json")
    file = frame.read_file(STUDY, path)
    found = Figures(file)
    assert found.clock == "gpu" and len(found.rows) == 8
    assert all(len(once.look.gpu_ms) == 2 for _, once, _ in found.rows)
    assert not [note for note in STUDY.list_cautions(file) if "numbers of kernels" in note]
