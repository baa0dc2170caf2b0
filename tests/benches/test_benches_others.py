"""What asv measures on request: frozen like the rungs, on what it says, and off unless it is asked for."""

import json
import re

import pytest
from asv_runner.benchmarks.mark import SkipNotImplemented

from benches import _frozen, _measure, loading, phases, preparing, series, training, workloads
from ladder.engine import once, parts
from ladder.machine import caches, system
from ladder.plan import catalog, needs
from ladder.publish.history import notes as asvnotes
from ladder.report import tiles
from ladder.training import seeds
from ladder.training.point import Point
from stylegan_lite.config import Recipe

EVERYTHING = dict.fromkeys(system.CAPABILITIES)


# --- frozen ---------------------------------------------------------------------------------------------------------


def test_parameter_values_are_only_ever_appended():
    assert workloads.WORKLOADS[:5] == ["article-b32", "adain-256", "large", "stylegan2-512", "stylegan2-1024"]
    assert workloads.RUNGS[:3] == ["baseline", "fused_act", "cached_uint8"]
    assert phases.PHASES == ["G_main", "D_main", "G_pl", "D_r1"]
    assert preparing.RUNGS[:4] == ["baseline", "fused_act", "cached_uint8", "compile"]
    assert preparing.WORKLOADS[:2] == loading.WORKLOADS[:2] == ["article", "tiny"]
    assert loading.SETTINGS[:3] == ["workers 0", "workers 0 uint8", "workers 0 cached"]
    assert loading.SETTINGS[-3:] == ["data_loading", "prefetch_stream", "cached_uint8"]
    assert preparing.CACHES == ["cold", "warm"] and len(loading.SETTINGS) == 11


def test_every_other_workload_has_its_baseline_and_the_highest_rung_with_a_series():
    ladder = catalog.load_ladder("full")
    known = set(series.WORKLOADS) | {"article-sn", "fashion"}  # of the ladder `more`, and of `quality`
    assert set(workloads.WORKLOADS) == set(catalog.list_workloads()) - known
    for name in workloads.WORKLOADS:
        climbed = catalog.plan_climb(
            ladder, needs.join_capabilities(EVERYTHING, catalog.load_workload(name)[1])
        )
        able = [rung.name for rung in climbed if not rung.skipped and ("article", rung.name) in series.SERIES]
        assert {(name, "baseline"), (name, able[-1])} <= set(workloads.SERIES)  # of adain-256 a rung less
    newest = [rung.name for rung in ladder.rungs if ("article", rung.name) in series.SERIES][-1]
    assert ("article", newest) in preparing.SERIES


@pytest.mark.parametrize(("workload", "setting"), loading.FINGERPRINTS)
def test_a_loader_setting_keeps_its_fingerprint(workload, setting):
    what, recipe = series.SERIES[workload, "baseline"].workload, loading.RECIPES[setting]
    assert _frozen.fingerprint(what, recipe) == loading.FINGERPRINTS[workload, setting], "it needs a new name"
    Recipe.from_dict(recipe)
    if (rung := series.SERIES.get(("article", setting))) is not None:  # named after a rung: its loader
        switches = {key: rung.recipe.get(key, default) for key, default in Recipe().to_dict().items()}
        known = _LOADER & {*switches}
        assert {k: v for k, v in Recipe.from_dict(recipe).to_dict().items() if k in known} == {
            key: switches[key] for key in known
        }


_LOADER = {"workers", "pin_memory", "persistent_workers", "prefetch_factor", "drop_last", "async_copy"}
_LOADER |= {"uint8_input", "prefetch_stream", "cached_images"}


# --- asked for ------------------------------------------------------------------------------------------------------


def test_a_bare_run_takes_the_rungs_and_leaves_retired_series_alone():
    wanted = _frozen.default({("tiny", "bf16"), ("article", "a.b")})
    name = "rungs.Rung.samples_step_time({!r}, {!r})".format

    def runs(text):
        return re.search(wanted, text) is not None

    assert runs(name("tiny", "baseline")) and runs(name("article", "bf16")) and runs(name("article", "axb"))
    assert not runs(name("tiny", "bf16")) and not runs(name("article", "a.b"))
    for other in ("kernels.Kernel.samples_hot", "workloads.Workload.track_peak_memory", "phases.Phase.x"):
        assert not runs(f"{other}('tiny', 'baseline')")
    assert re.search(series.DEFAULT, name("tiny", "baseline")) and _frozen.default([]) == r"^rungs\."


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A machine with a GPU, for asv's benchmark processes, and the folder that they hand things over in."""
    folder = tmp_path / "handover"
    folder.mkdir()
    (folder / "machine.json").write_text(json.dumps({"device": "cuda", "capabilities": EVERYTHING}))
    monkeypatch.setenv(_measure.HANDOVER, str(folder))
    monkeypatch.setenv(_measure.SERIES_NAME, "a series")
    monkeypatch.setattr(_measure, "images", lambda workload: "unused")
    return tmp_path


def test_what_a_machine_cannot_do_is_not_applicable(here):
    cpu = {"device": "cpu", "capabilities": system.list_capabilities("cpu")}
    (here / "handover" / "machine.json").write_text(json.dumps(cpu))
    for benchmark, *params in (
        (workloads.Workload, "large", "baseline"),
        (phases.Phase, "article", "baseline", "G_pl"),
        (phases.Phase, "tiny", "fused_act", "G_pl"),
        (loading.Loading, "tiny", "data_loading"),
        (preparing.Compiling, "article", "cached_uint8", "cold"),
        (preparing.Compiling, "tiny", "compile", "cold"),
        (preparing.Capturing, "tiny", "cached_uint8", "warm"),
    ):
        with pytest.raises(NotImplementedError):
            benchmark().setup(*params)
    for benchmark, *params in (
        (phases.Phase, "tiny", "bf16", "G_pl"),
        (loading.Loading, "article", "workers 8 uint8"),
        (preparing.Compiling, "tiny", "cached_uint8", "cold"),
    ):
        benchmark().setup(*params)


@pytest.mark.parametrize("broken", [None, "ConfigError: recipe: unknown key", "the samples are not finite"])
def test_a_distance_is_the_mean_of_its_seeds(here, monkeypatch, broken):
    cpu = {"device": "cpu", "capabilities": system.list_capabilities("cpu")}
    (here / "handover" / "machine.json").write_text(json.dumps(cpu))
    asked = []

    def train(setup, task, real):
        asked.append((setup.steps, task.seed, task.recipe))
        point = Point(levels={"32": 1.0}, frechet=10.0 * len(asked))
        return seeds.Outcome(reason=broken) if broken else seeds.Outcome((point,), 16)

    monkeypatch.setattr(seeds, "train_rung", train)
    monkeypatch.setattr(seeds, "read_real", lambda setup: None)
    benchmark = training.Training()
    benchmark.setup("tiny", "baseline")
    if broken:
        with pytest.raises(SkipNotImplemented if "Config" in broken else RuntimeError):
            benchmark.track_distance("tiny", "baseline")
        return
    assert benchmark.track_distance("tiny", "baseline") == 20
    assert asked == [(100, seed, series.SERIES["tiny", "baseline"].recipe) for seed in range(3)]


def test_all_phases_come_from_one_process_and_are_captured_apart(here, monkeypatch):
    asked, row = [], {"op": "bias_act", "direction": "forward"}

    def fake(workload, recipe, device):
        asked.append(recipe)
        seconds = {phase: [float(index)] for index, phase in enumerate(phases.PHASES)}
        return {"samples_s": seconds, "recipe": recipe | {"more": 1}, "choices": [row]}

    monkeypatch.setattr(parts, "time_phases", fake)
    for rung in ("fused_act", "cached_uint8"):
        for index, phase in enumerate(phases.PHASES):
            benchmark = phases.Phase()
            benchmark.setup("article", rung, phase)
            monkeypatch.setenv(_measure.SERIES_NAME, f"{rung} {phase}")
            assert benchmark.samples_time("article", rung, phase) == [float(index)]
    eight, top = (series.SERIES["article", rung].recipe for rung in ("fused_act", "cached_uint8"))
    assert asked == [eight, top | {"whole_step_graph": False}]
    noted = asvnotes.collect_choices(here / "handover")  # of each series, also where it was handed over
    assert noted == {
        f"{rung} {phase}": tiles.lines([row])
        for rung in ("fused_act", "cached_uint8")
        for phase in phases.PHASES
    }


def test_cold_and_warm_come_from_processes_that_share_a_folder_nobody_else_has(here, monkeypatch):
    folders = []

    def fake(workload, recipe, device, code=None):
        import os

        (folder,) = {os.path.dirname(os.environ[name]) for name in caches.VARIABLES}
        kernel = os.path.join(os.environ["TRITON_CACHE_DIR"], "kernel")
        cold = not os.path.exists(kernel)
        open(kernel, "w").close()
        folders.append(folder)
        took = {"prepare_s": 90.0 if cold else 8.0, "capture_s": 2.0, "cache_s": 1.0}
        return took | {"recipe": recipe, "choices": []}

    monkeypatch.setattr(once, "prepare_once", fake)
    found = {}
    for benchmark in (preparing.Compiling(), preparing.Capturing()):
        for cache in preparing.CACHES:
            benchmark.setup("article", "cached_uint8", cache)
            found[type(benchmark), cache] = benchmark.samples_seconds("article", "cached_uint8", cache)
    assert found == {
        (preparing.Compiling, "cold"): [88.0],
        (preparing.Compiling, "warm"): [6.0] * 3,
        (preparing.Capturing, "cold"): [2.0],
        (preparing.Capturing, "warm"): [2.0] * 3,
    }
    assert len(folders) == 4 and len(set(folders)) == 1
