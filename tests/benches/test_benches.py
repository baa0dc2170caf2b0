"""asv's side: what is frozen stays frozen, the right code is measured, and a fresh clone needs nothing."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from asv_runner.benchmarks.mark import SkipNotImplemented

from benches import ROOT, _measure, _spawning, preparing, series, unfrozen, workloads
from benches.rungs import Rung
from ladder.engine import once, pool
from ladder.machine import system
from ladder.plan import catalog, needs
from ladder.rungs import data_loading
from stylegan_lite.config import Recipe, Workload

PAIRS = sorted(series.SERIES)
FROZEN = [
    pytest.param(each.SERIES, pair, id=f"{each.__name__.partition('.')[2]} {'/'.join(pair)}")
    for each in (series, workloads, preparing)
    for pair in sorted(each.SERIES)
]
TINY = series.SERIES["tiny", "baseline"]


# --- what is frozen ---------------------------------------------------------------------------------------------


def test_parameter_values_are_only_ever_appended():
    """asv stores results by position: these lists may grow at the end and never change before it."""
    assert series.WORKLOADS[:2] == ["article", "tiny"]
    assert series.RUNGS[:8] == [
        "baseline",
        "channels_last",
        "bf16",
        "fused_norm",
        "set_to_none",
        "cuda_graphs",
        "data_loading",
        "fused_act",
    ]
    assert Rung.params == (series.WORKLOADS, series.RUNGS)
    assert {w for w, _ in PAIRS} <= set(series.WORKLOADS) and {r for _, r in PAIRS} <= set(series.RUNGS)


@pytest.mark.parametrize(("among", "pair"), FROZEN)
def test_a_frozen_series_keeps_its_fingerprint(among, pair):
    frozen = among[pair]
    now = series.fingerprint(frozen.workload, frozen.recipe)
    assert now == frozen.fingerprint, (
        f"{pair} was edited and is now {now}. If results of it exist, add a new value instead: see benches/series.py."
    )


@pytest.mark.parametrize(("among", "pair"), [each for each in FROZEN if each.values[1] not in series.RETIRED])
def test_a_series_measures_what_the_ladder_climbs(among, pair, monkeypatch):
    """A rung that changed its meaning must get a new name in benches/series.py, or its history lies."""
    # In the ladder: as many as there are cores, at most 8.
    monkeypatch.setitem(data_loading.change, "workers", 8)
    (name, rung), frozen = pair, among[pair]
    _, workload = catalog.load_workload(name)
    assert Workload.from_dict(frozen.workload).to_dict() == workload | {"data": None}
    able = _capabilities(frozen.device)
    able = able if among is series.SERIES else needs.join_capabilities(able, workload)
    ladder = catalog.load_ladder("compile_default" if rung == "compile" else "full")
    planned = {p.name: p for p in catalog.plan_climb(ladder, able)}
    assert planned[rung].recipe is not None, (
        f"the ladder skips it on {frozen.device}: {planned[rung].skipped}"
    )
    assert Recipe.from_dict(frozen.recipe) == Recipe.from_dict(planned[rung].recipe)


def test_a_series_is_a_rung_of_the_ladder_and_the_lines_of_one_without_are_printed(monkeypatch):
    """A new rung needs no series: asv's history of it begins once its lines are appended."""
    ladder = [step.name for step in catalog.load_ladder("full").rungs]
    on_cpu = [
        p.name
        for p in catalog.plan_climb(catalog.load_ladder("full"), _capabilities("cpu"))
        if p.recipe is not None
    ]
    current = [pair for pair in PAIRS if pair not in series.RETIRED]
    assert {r for w, r in current if w == "article"} <= set(ladder)
    assert {r for w, r in current if w == "tiny"} <= set(on_cpu)
    monkeypatch.delitem(series.SERIES, ("article", "graph_fills"))
    assert any('("article", "graph_fills")' in line for line in unfrozen.lines())


def test_a_series_needs_what_its_rungs_need():
    """Of the machine: what they need of the workload is frozen with it."""
    needs = {"cuda"}
    for step in catalog.load_ladder("full").rungs:
        needs |= set(catalog.load_rung(step.name).needs) & set(system.CAPABILITIES)
        if frozen := series.SERIES.get(("article", step.name)):
            assert set(frozen.needs) == needs, step.name


def _capabilities(device: str) -> dict[str, str | None]:
    return system.list_capabilities("cpu") if device == "cpu" else dict.fromkeys(system.CAPABILITIES)


# --- what a process of asv does -----------------------------------------------------------------------------------


def test_discovery_imports_neither_torch_nor_triton_nor_pytest(tmp_path):
    """One failing import ends discovery, and torch would cost seconds for every n/a."""
    found = tmp_path / "found.json"
    code = (
        "import sys; from asv_runner.discovery import _discover\n"
        f"_discover(({str(ROOT / 'benches')!r}, {str(found)!r}))\n"
        "print(sorted({'torch', 'triton', 'pytest', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr
    benchmarks = {b["name"]: b for b in json.loads(found.read_text())}
    assert set(benchmarks) == {
        "rungs.Rung.samples_step_time",
        "rungs.Rung.samples_gpu_time",
        "rungs.Rung.track_peak_memory",
        "workloads.Workload.samples_step_time",
        "workloads.Workload.samples_gpu_time",
        "workloads.Workload.track_peak_memory",
        "phases.Phase.samples_time",
        "loading.Loading.samples_seconds_per_image",
        "training.Training.track_distance",
        "preparing.Compiling.samples_seconds",
        "preparing.Capturing.samples_seconds",
        "kernels.Kernel.samples_cold",
        "kernels.Kernel.samples_hot",
        "kernels.Alternative.samples_cold",
        "kernels.Alternative.samples_hot",
    }
    for benchmark in benchmarks.values():
        assert (
            benchmark["version"] == "1" and benchmark["timeout"] >= 600
        )  # explicit: hashes of source orphan results
    for name, benchmark in benchmarks.items():  # never a rate: asv takes less for better
        other = {"memory": "bytes", "distance": "distance"}
        assert benchmark["unit"] == other.get(name.rpartition("_")[2], "seconds")


@pytest.fixture
def handover(tmp_path, monkeypatch):
    """The folder that the plugin gives to benchmark processes, on a machine without a GPU."""
    here = {"device": "cpu", "capabilities": system.list_capabilities("cpu")}
    (tmp_path / "machine.json").write_text(json.dumps(here))
    monkeypatch.setenv(_measure.HANDOVER, str(tmp_path))
    return tmp_path


def test_a_missing_capability_is_not_applicable(handover):
    here = {
        "device": "cuda",
        "capabilities": dict.fromkeys(system.CAPABILITIES) | {"bf16": "needs BF16 arithmetic"},
    }
    (handover / "machine.json").write_text(json.dumps(here))
    assert _measure.available("article", "channels_last")
    with pytest.raises(NotImplementedError, match="BF16"):
        _measure.available("article", "fused_act")


class Workers:
    """Stands for `pool.Pool`: tells when it is begun and ended."""

    def __init__(self, told):
        self.told = told

    def __enter__(self):
        self.told.append("begun")
        return self

    def __exit__(self, *_):
        self.told.append("ended")


@pytest.fixture
def told(handover, monkeypatch):
    """Return what a process of asv does that baseline, cuda_graphs (n/a), bf16 and set_to_none are asked of next."""
    told, names = [], {json.dumps(frozen.recipe): rung for (_, rung), frozen in series.SERIES.items()}

    def measure_once(workload, recipe, device, cycles, code=None, workers=None):
        rung = names[json.dumps(recipe)]
        told.append(rung)
        if rung == "bf16":
            raise pool.WorkerFailure("oom", "out of memory in visit")
        return {"samples_s": [float(len(told))], "peak_rss_bytes": len(rung), "recipe": recipe}

    _without_images(monkeypatch)
    monkeypatch.setattr(once, "measure_once", measure_once)
    monkeypatch.setattr(once, "open_pool", lambda device, code: Workers(told))
    after = [("tiny", "baseline"), ("tiny", "cuda_graphs"), ("tiny", "bf16"), ("tiny", "set_to_none")]
    monkeypatch.setenv(_measure.NEXT, json.dumps(after))
    return told


def step_time(rung):
    benchmark = Rung()
    benchmark.setup("tiny", rung)
    return benchmark.samples_step_time("tiny", rung)


def test_a_process_goes_on_with_what_asv_asks_for_next(told, monkeypatch):
    assert step_time("channels_last") == [2.0]  # its own comes first
    assert told == ["begun", "channels_last", "baseline", "bf16", "set_to_none", "ended"]
    monkeypatch.delenv(_measure.NEXT)
    assert step_time("baseline") == [3.0] and step_time("set_to_none") == [5.0]
    with pytest.raises(RuntimeError, match="out of memory in visit"):
        step_time("bf16")
    assert len(told) == 6
    step_time("baseline")  # asv's next round: a fresh process
    assert told[6:] == ["baseline"]


def test_a_process_whose_asv_was_killed_measures_no_more_and_leaves_nothing(told, handover, monkeypatch):
    """The folder may be the next run's by then, which measures other code."""
    parents = iter([1000, 1000, 1, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    with pytest.raises(SystemExit):
        step_time("channels_last")
    assert told == ["begun", "channels_last", "baseline", "ended"]
    left = {path.stem for path in handover.iterdir()}
    assert left == {"machine", series.SERIES["tiny", "channels_last"].fingerprint}


@pytest.mark.parametrize(
    ("status", "reason", "raised"),
    [
        ("oom", "out of memory in visit", RuntimeError),
        ("failed", "visit: ValueError: no", RuntimeError),
        ("n/a", "stylegan_lite.CONTRACT is not 1", SkipNotImplemented),
        (
            "failed",
            "build: ConfigError: recipe: unknown key 'fused_act'",
            SkipNotImplemented,
        ),  # an old commit
    ],
)
def test_a_failure_is_reported_once_for_both_quantities(handover, monkeypatch, status, reason, raised):
    visits = []

    def measure_once(*_, **__):
        visits.append(1)
        raise pool.WorkerFailure(status, reason)

    _without_images(monkeypatch)
    monkeypatch.setattr(once, "measure_once", measure_once)
    for quantity in ("time", "memory"):
        with pytest.raises(raised):
            _measure.measured(TINY, quantity)
    assert visits == [1]


def test_a_commit_that_gives_the_recipe_another_meaning_is_not_applicable(handover, monkeypatch):
    answer = {"samples_s": [1.0], "recipe": TINY.recipe | {"resample": "depthwise"}}
    _without_images(monkeypatch)
    monkeypatch.setattr(once, "measure_once", lambda *_, **__: answer)
    with pytest.raises(SkipNotImplemented, match="another meaning"):
        _measure.measured(TINY, "time")


def _without_images(monkeypatch):
    from ladder.images import prepare as images

    monkeypatch.setattr(images, "prepare_images", lambda *_, **__: SimpleNamespace(path="unused"))


# --- GPU seconds: a series of their own, from the process that gives wall seconds and memory -------------------------


@pytest.fixture
def visits(tmp_path, monkeypatch):
    """A machine with a GPU, and the list of visits that its processes make."""
    here = {"device": "cuda", "capabilities": dict.fromkeys(system.CAPABILITIES)}
    (tmp_path / "machine.json").write_text(json.dumps(here))
    monkeypatch.setenv(_measure.HANDOVER, str(tmp_path))
    monkeypatch.setattr(_measure, "images", lambda workload: "unused")
    made = []

    def measure_once(workload, recipe, device, cycles, code=None, workers=None):
        made.append(recipe)
        void = "the profiler saw no kernels" if recipe["channels_last"] else None
        gpu = None if void else [0.25, 0.26]
        found = {"samples_s": [0.5], "peak_reserved_bytes": 7, "gpu_s": gpu, "gpu_void": void}
        return found | {"recipe": recipe}

    monkeypatch.setattr(once, "measure_once", measure_once)
    return made


@pytest.mark.parametrize(("kind", "workload"), [(Rung, "article"), (workloads.Workload, "large")])
def test_one_visit_yields_gpu_seconds_beside_time_and_memory(visits, kind, workload):
    bench = kind()
    bench.setup(workload, "baseline")
    assert bench.samples_gpu_time(workload, "baseline") == [0.25, 0.26]
    assert bench.samples_step_time(workload, "baseline") == [0.5]
    assert bench.track_peak_memory(workload, "baseline") == 7
    assert len(visits) == 1
    bench.samples_gpu_time(workload, "baseline")  # asv's next round: a fresh process
    assert len(visits) == 2


def test_without_a_figure_that_counts_gpu_time_is_not_applicable_and_the_wall_time_is_there(visits):
    rung = Rung()
    rung.setup("article", "channels_last")
    with pytest.raises(SkipNotImplemented, match="saw no kernels"):
        rung.samples_gpu_time("article", "channels_last")
    assert rung.samples_step_time("article", "channels_last") == [0.5] and len(visits) == 1


def test_on_a_cpu_it_is_not_applicable_and_no_process_is_started(tmp_path, monkeypatch):
    handover = tmp_path
    (handover / "machine.json").write_text(
        json.dumps({"device": "cpu", "capabilities": system.list_capabilities("cpu")})
    )
    monkeypatch.setattr(_measure, "_record", lambda *_: pytest.fail("measured"))
    index = len(series.RUNGS) * series.WORKLOADS.index("tiny")
    assert _spawning.at_hand(f"rungs.Rung.samples_gpu_time-{index}", handover) == "NaN"
    assert _spawning.at_hand(f"rungs.Rung.samples_step_time-{index}", handover) is None  # a process is needed
