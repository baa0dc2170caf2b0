"""How asv's processes are started: none for what is n/a here, and each notes its choices under its own series."""

import itertools
import json
import os
from pathlib import Path

import asv.results
import asv.runner
import pytest

from benches import ROOT, _environment, _measure, _spawning, series
from benches._measure import keep
from benches.loading import Loading
from benches.phases import Phase
from benches.preparing import Capturing, Compiling
from benches.rungs import Rung
from benches.workloads import Workload
from ladder.machine import system
from ladder.publish.history import notes as asvnotes
from ladder.report import tiles

NAME = "rungs.Rung.samples_step_time"
ROW = {"op": "act", "direction": "forward", "tile": 64, "columns": 8, "warps": 4, "per_sm": 0, "stages": 1}


def index(workload: str, rung: str) -> int:
    return series.WORKLOADS.index(workload) * len(series.RUNGS) + series.RUNGS.index(rung)


class Environment:
    """Stands for asv's: notes what it is asked to start; a benchmark's process leaves these choices."""

    name, env_vars, _default_benchmark_timeout = "here", {}, 60
    left = [ROW]

    def __init__(self):
        self.started, self.told = [], []

    def run(self, args, **kwargs):
        *_, name, _, _, result = args
        self.started.append(name)
        self.told.append(json.loads(os.environ[_measure.NEXT]))
        os.environ[_measure.HANDOVER] = str(_environment.handover(self))
        _measure.leave_choices(self.left)
        del os.environ[_measure.HANDOVER]
        Path(result).write_text('{"samples": [0.5, 0.25], "number": 1}')
        return "", "", 0


@pytest.fixture
def handover(tmp_path, monkeypatch):
    """asv with the plugin, put back afterwards, on a machine without a GPU."""
    monkeypatch.setattr(asv.runner, "Spawner", asv.runner.Spawner)
    monkeypatch.setattr(_environment, "handover", lambda environment: tmp_path)
    here = {"device": "cpu", "capabilities": system.list_capabilities("cpu")}
    (tmp_path / "machine.json").write_text(json.dumps(here))
    monkeypatch.setattr(_spawning, "selection", {})
    _spawning.setup()
    return tmp_path


def benchmark(rungs=("baseline", "cuda_graphs"), workloads=("article", "tiny")):
    """Return what asv knows of a benchmark; only these combinations are selected."""
    found = {
        "name": NAME,
        "params": [[f"'{each}'" for each in values] for values in (series.WORKLOADS, series.RUNGS)],
        "version": "1",
        "timeout": 60,
        "type": "time",
        "unit": "seconds",
        "param_names": ["workload", "rung"],
    }

    class Benchmarks(dict):
        benchmark_dir = "benches"
        benchmark_selection = {NAME: [index(w, r) for w in workloads for r in rungs]}

    return Benchmarks({NAME: found})


def measured(environment, **selected):
    results = asv.results.Results.unnamed()
    _spawning.selection.update(benchmark(**selected).benchmark_selection)
    asv.runner.run_benchmarks(benchmark(**selected), environment, results=results)
    return results


def test_no_process_is_started_for_what_this_machine_cannot_do(handover):
    environment = Environment()
    results = measured(environment)
    assert environment.started == [f"{NAME}-{index('tiny', 'baseline')}"]
    values = results.get_result_value(NAME, benchmark()[NAME]["params"])
    assert values[index("tiny", "baseline")] == 0.375
    assert str(values[index("article", "baseline")]) == str(values[index("tiny", "cuda_graphs")]) == "nan"
    assert results.errcode[NAME] == 0 and not results.stderr[NAME]
    assert _measure.HANDOVER not in os.environ and _measure.SERIES_NAME not in os.environ


def test_every_process_leaves_its_choices_under_its_series(handover):
    environment = Environment()
    measured(environment, rungs=("baseline", "bf16"))
    lines = tiles.lines([ROW])
    expected = {asvnotes.name_series(NAME, ["tiny", rung]): lines for rung in ("baseline", "bf16")}
    assert asvnotes.collect_choices(handover) == expected
    environment.left = None  # the commit does not say
    measured(environment, rungs=("conv_double_backward",))
    assert asvnotes.collect_choices(handover) == expected


def left(handover, monkeypatch, rung, **record):
    """An earlier process of the same commit measured this rung of `tiny`."""
    monkeypatch.setenv(_measure.HANDOVER, str(handover))
    keep(series.SERIES["tiny", rung].fingerprint, record)
    monkeypatch.delenv(_measure.HANDOVER)


def test_a_process_is_told_what_asv_asks_for_next(handover):
    environment, rungs = Environment(), ("baseline", "bf16", "set_to_none")
    measured(environment, rungs=rungs)
    tiny = [["tiny", rung] for rung in rungs]
    assert environment.told == [tiny[1:], tiny[2:], []]
    (handover / "machine.json").unlink()  # the first process of all finds out what is n/a
    environment.told.clear()
    measured(environment, rungs=rungs)
    assert environment.told[0] == [["article", rung] for rung in rungs[1:]] + tiny
    assert _measure.NEXT not in os.environ


def test_no_process_is_started_for_what_an_earlier_one_left(handover, monkeypatch):
    """Its samples become the result, and its choices the series' own; what failed is said by a process."""
    result = {"samples_s": [0.5, 0.25], "peak_rss_bytes": 7, "choices": [ROW]}
    left(handover, monkeypatch, "baseline", status="ok", result=result)
    left(handover, monkeypatch, "bf16", status="n/a", reason="this commit gives the recipe another meaning")
    left(handover, monkeypatch, "set_to_none", status="oom", reason="out of memory in visit")
    environment = Environment()
    rungs = ("baseline", "bf16", "set_to_none")
    results = measured(environment, rungs=rungs)
    assert environment.started == [f"{NAME}-{index('tiny', 'set_to_none')}"]
    values = results.get_result_value(NAME, benchmark()[NAME]["params"])
    assert values[index("tiny", "baseline")] == 0.375 and str(values[index("tiny", "bf16")]) == "nan"
    assert asvnotes.name_series(NAME, ["tiny", "baseline"]) in asvnotes.collect_choices(handover)
    name = f"rungs.Rung.track_peak_memory-{index('tiny', 'baseline')}"
    assert _spawning.at_hand(name, handover) == "7"
    assert _spawning.at_hand(name, handover) is None  # `rounds`: the second wants a fresh process
    measured(environment, rungs=("baseline",))
    assert environment.started[1:] == [f"{NAME}-{index('tiny', 'baseline')}"]


# --- what the commit refuses ----------------------------------------------------------------------------------------


def commit(folder, without="joint_batch"):
    """The package of a commit that does not know one field yet, beside a torch that must not be imported."""
    (folder / "stylegan_lite").mkdir(parents=True)
    for name in ("__init__", "config", "shares"):
        lines = (ROOT / "stylegan_lite" / f"{name}.py").read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f"    {without}: ")]
        (folder / "stylegan_lite" / f"{name}.py").write_text("".join(kept))
    (folder / "torch.py").write_text("raise SystemExit('torch was imported')")
    return folder


def test_no_process_is_started_for_what_the_commit_refuses(handover, tmp_path, monkeypatch):
    environment = Environment()
    environment.code = str(commit(tmp_path / "commit"))
    known, later = ("baseline", "bf16", "fused_adam"), ("joint_batch", "lean_weights")
    results = measured(environment, rungs=known + later)
    assert environment.started == [f"{NAME}-{index('tiny', rung)}" for rung in known]
    assert environment.told[0] == [["tiny", "bf16"], ["tiny", "fused_adam"]]  # nor by a process that goes on
    values = results.get_result_value(NAME, benchmark()[NAME]["params"])
    assert all(str(values[index("tiny", rung)]) == "nan" for rung in later)
    assert results.errcode[NAME] == 0
    asked = []
    monkeypatch.setattr(_spawning, "find_refused", lambda *_: asked.append(1) or {})
    measured(environment, rungs=known + later)
    assert len(environment.started) == len(known) + len(known + later) and asked == [1]


@pytest.mark.parametrize(
    "cls", [Rung, Workload, Phase, Compiling, Capturing, Loading], ids=lambda c: c.__name__
)
def test_a_commit_is_asked_for_what_a_benchmark_measures(cls, tmp_path):
    every = {(*pair, frozen.fingerprint): frozen for pair, frozen in cls.among.items()}
    assert {pair[:2] for pair in every} <= set(itertools.product(*cls.params[:2]))
    refused = _spawning.find_refused(commit(tmp_path, "uint8_input"), every.values())
    assert set(refused) == {one.fingerprint for one in every.values() if "uint8_input" in one.recipe}
    assert all("unknown key 'uint8_input'" in line for line in refused.values())
    assert _spawning.find_refused(ROOT, every.values()) == {}
