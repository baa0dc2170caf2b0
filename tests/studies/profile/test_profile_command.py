"""`ladder profile` from end to end: on the smallest workload each time, and on a GPU where there is one."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import click.testing
import msgspec
import pytest
import torch
import yaml
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.engine.pool import WorkerFailure
from ladder.publish.validation import validate
from ladder.studies import frame
from ladder.studies.profile import measuring, study, tools
from ladder.studies.profile.record import Category, Observed, Profile, Step
from ladder.studies.profile.study import STUDY
from stylegan_lite.config import Recipe, Workload
from tests.studies.test_contract import read
from tests.support.small import LEAST


class Done(NamedTuple):
    result: click.testing.Result
    profile: Profile
    path: Path


def invoke(*arguments: str) -> click.testing.Result:
    return CliRunner().invoke(cli.main, ["profile", *arguments])


@pytest.fixture(scope="module")
def least(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workload") / "least.yaml"
    path.write_text(yaml.safe_dump(LEAST))
    return path


@pytest.fixture(scope="module")
def done(least: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A profile of the smallest workload on the CPU, with a trace."""
    out = tmp_path_factory.mktemp("profile")
    trace = str(out / "step.json.gz")
    result = invoke("channels_last", "-w", str(least), "--device", "cpu", "--out", str(out), "--trace", trace)
    assert result.exit_code == 0, result.output
    (path,) = out.glob("*.json")
    return Done(result, STUDY.derive(frame.read_file(STUDY, path)), path)


def assert_whole(profile: Profile, path: Path) -> None:
    """Assert what every profile must hold: parts that sum to the work, few names and layers that are unknown."""
    assert profile.layers is not None
    for rows in (profile.phases, profile.layers.rows):
        assert sum(row.ms for row in rows) == pytest.approx(profile.total_ms, rel=1e-3)
    assert {"G_main", "G_pl", "D_main", "D_r1"} <= {row.name for row in profile.phases}
    other = next((row.share for row in profile.categories if row.name == "other"), 0)
    assert other < 0.05 and (profile.layers.unknown or 0) < 0.05
    assert validate.problem_of(path) is None


def test_a_profile_is_stored_with_all_its_parts(done: Done) -> None:
    profile = done.profile
    assert_whole(profile, done.path)
    assert (profile.rung, profile.ladder, profile.protocol.of) == ("channels_last", "article", "operators")
    assert profile.layers is not None and profile.memory is not None
    layers = {row.name: row for row in profile.layers.rows}
    assert {"G mapping", "G 8x8 conv0", "D from_rgb", "D 8x8 conv1", "outside the layers"} <= layers.keys()
    assert 0 < layers["D 8x8 conv1"].backward_ms < layers["D 8x8 conv1"].ms
    runs = {row.name: row.runs for row in profile.phases}
    assert (runs["G_main"], runs["G_pl"], runs["D_r1"]) == (1, 0.25, 0.0625)
    memory = profile.memory
    assert memory.parameters > 0 and memory.optimizer > memory.buffers and memory.graph_pools is None
    assert set(memory.timeline) == {"G_main", "G_pl", "D_main", "D_r1"}
    assert (memory.peak_allocated or 0) > memory.parameters + memory.optimizer
    assert any(each.gradients for each in memory.timeline["D_main"])
    assert str(done.path.parent) not in done.path.read_text()  # the trace's path stays with the user


def test_the_report_says_what_stood_for_kernels(done: Done) -> None:
    for words in (
        "operators' own time on the CPU",
        "Heaviest operators",
        "CPU smoke test",
        "one of each kind",
    ):
        assert words in done.result.output, words


def test_a_trace_opens_as_json_and_holds_steps_and_phases(done: Done) -> None:
    events = json.loads(gzip.decompress((done.path.parent / "step.json.gz").read_bytes()))["traceEvents"]
    names = {each.get("name") for each in events}
    assert {"step: G_main, G_pl, D_main, D_r1", "step: G_main, D_main", "step: G_main, G_pl, D_main"} <= names
    assert {"G_main", "D_r1", "aten::convolution", "layer: D 8x8 conv1"} <= names


def test_a_rate_of_next_to_nothing_is_left_out() -> None:
    row = Category(
        name="a", ms=2.0, own_ms=2.0, share=1.0, launches=1.0, rate=0.0375, unit="TB/s", replaced=None
    )
    changes: tuple[dict[str, Any], ...] = ({}, {"ms": 0.001}, {"rate": 1.76}, {"rate": None})
    rates = [study._format_rate(msgspec.structs.replace(row, **change)) for change in changes]
    assert rates == ["37.5 GB/s", None, "1.76 TB/s", None]


def test_two_kernels_of_a_table_never_look_alike() -> None:
    assert study.number_names(["a", "b", "a"]) == ["a", "b", "a (2)"]


def change_step(change: Any) -> frame.StudyFile:
    _, file = read("profile")
    step = file.observed["step"].step
    plain = json.loads(msgspec.json.encode(step))
    change(plain)
    changed = Observed(step=msgspec.convert(plain, Step))
    return msgspec.structs.replace(file, observed={**file.observed, "step": changed})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda step: step["profile"]["families"][0].update(own_ms=1e3), "are together not gpu_ms"),
        (lambda step: step["profile"]["families"][0].update(ms=1e6), "phases: their sum"),
        (lambda step: step["phases"][0].update(ms=1e6), "phases: their sum"),
        (lambda step: step["layers"].pop(0), "layers: their sum"),
        (lambda step: step["heaviest"][0].update(phase_ms=1e6), "heaviest: longer"),
        (lambda step: step["heaviest"][0].update(ms=1e6, phase_ms=1.0), "heaviest: longer"),
        (lambda step: step.update(walls_ms=[0.01]), "faster than this GPU"),
    ],
)
def test_parts_beyond_their_whole_are_refused(change: Any, words: str) -> None:
    assert words in (frame.find_problem(STUDY, change_step(change)) or "")


def test_gpu_time_beyond_all_kernels_of_an_older_file_is_refused() -> None:
    def change(step: dict[str, Any]) -> None:
        for row in step["profile"]["families"]:
            row.pop("own_ms")
        step.update(gpu_ms=1e6)

    assert "gpu_ms: longer" in (frame.find_problem(STUDY, change_step(change)) or "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "ladder full has no rung 'nonsense'"),
        (["cuda_graphs"], "cannot run here"),
        (["baseline", "--trace", "step.txt"], "ends in .json.gz or .json"),
        (["baseline", "--nsys", "step.txt"], "ends in .nsys-rep"),
        (["baseline", "--ncu"], "ncu"),
        (["baseline", "--nsys", "step.nsys-rep"], "nsys"),
    ],
)
def test_an_impossible_request_is_one_line(arguments: list[str], words: str, least: Path) -> None:
    result = invoke(*arguments, "-w", str(least), "--device", "cpu")
    assert result.exit_code == 2 and words in result.output and "Traceback" not in result.output


def test_a_step_that_does_not_fit_is_one_line(
    least: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 99 GiB")

    monkeypatch.setattr(measuring, "measure_step", full)
    result = invoke("baseline", "-w", str(least), "--device", "cpu", "--out", str(tmp_path / "o"))
    assert result.exit_code == 2 and "baseline on least does not fit into the memory" in result.output
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("during", ["the profile", "the search"])
def test_sigterm_ends_it_and_a_profile_that_is_made_stays(
    during: str, least: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    is_profiled = during == "the search"
    _, file = read("profile")
    step = file.observed["step"].step
    assert step is not None
    monkeypatch.setattr(measuring, "profile_step", (lambda *_: step) if is_profiled else end)
    monkeypatch.setattr(measuring, "search_batch", end)
    arguments = [
        "channels_last",
        "-w",
        str(least),
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
        "--largest-batch",
    ]
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("SIGTERM was not handled"))
    try:
        result = invoke(*arguments)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.exit_code == 130, result.output
    (path,) = tmp_path.glob("*-partial.json")
    assert ("step" in json.loads(path.read_text())["observed"]) is is_profiled


def test_counters_that_are_refused_leave_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise tools.Refused("ERR_NVGPUCTRPERM")

    monkeypatch.setattr(tools, "count", refuse)
    monkeypatch.setattr(tools, "find_ncu", lambda: "ncu")
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132)
    )
    job = SimpleNamespace(options=SimpleNamespace(rung="fused_act"), workload={}, device="cuda")
    session = SimpleNamespace(job=job, report=lambda line: None)
    with pytest.raises(WorkerFailure, match="--ncu: ERR_NVGPUCTRPERM"):
        measuring.count_kernels(session, None, {})  # type: ignore[arg-type]


def test_layers_that_cannot_be_recorded_leave_the_rest() -> None:
    compiled = SimpleNamespace(recipe=SimpleNamespace(compile="default"))
    assert measuring.run_eagerly(compiled, measuring.Lasting(0, 0, 0)).reason == measuring.COMPILED
    broken = SimpleNamespace(recipe=SimpleNamespace(compile="off"), graphs={}, held={}, device="cpu")
    assert "the eager run failed" in (measuring.run_eagerly(broken, measuring.Lasting(0, 0, 0)).reason or "")


@pytest.mark.parametrize(
    ("parts", "begins", "batch"), [(1, [2, 4, 8, 16, 32], 28), (2, [16, 32, 24], 24), (4, [16, 32], 16)]
)
def test_the_largest_batch_is_searched_with_fresh_processes(
    parts: int, begins: list[int], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro-batches hold whole groups: a batch that cannot be cut so is no answer, and is not tried."""
    tried: list[int] = []

    def try_batch(workers: Any, job: Any, recipe: Any, size: int, then: Any = None) -> str | None:
        tried.append(size)
        if size > 28:
            return "out of memory"
        if then is not None:
            then(SimpleNamespace(call=lambda do, **_: {"samples_s": [0.5, 0.5]}), size)
        return None

    class NoPool:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(measuring, "try_batch", try_batch)
    monkeypatch.setattr(measuring, "Pool", NoPool)
    workload = {**LEAST, "mbstd_group": 4, "batch": begins[0]}
    recipe: dict[str, Any] = {} if parts == 1 else {"micro_batches": parts}
    job = SimpleNamespace(
        workload=workload, device="cpu", machine={}, options=SimpleNamespace(rung="baseline")
    )
    session = SimpleNamespace(job=job, report=lambda line: None)
    search = measuring.search_batch(session, None, recipe).largest  # type: ignore[arg-type]
    assert search is not None and search.settled and search.images_per_s == 2 * batch
    assert max(each.batch for each in search.tried if each.reason is None) == batch
    assert tried[: len(begins)] == begins and tried[-1] == batch
    for size in tried:
        Recipe.from_dict(recipe).refuse_for(Workload.from_dict({**workload, "batch": size}))


@pytest.mark.gpu
@pytest.mark.parametrize("rung", ["baseline", "fused_act", "whole_step_graph"])
def test_a_profile_on_a_gpu(rung: str, least: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace" / "step.json.gz"
    trace.parent.mkdir()
    out = tmp_path / "out"
    arguments = ["-w", str(least), "--device", "cuda", "--out", str(out), "--trace", str(trace)]
    result = invoke(rung, *arguments)
    assert result.exit_code == 0, result.output
    (path,) = out.glob("*.json")
    profile = STUDY.derive(frame.read_file(STUDY, path))
    assert profile.protocol.of == "kernels" and profile.layers and profile.layers.reason is None
    assert not [note for note in profile.protocol.notes if "differ in their kernels" in note]
    assert [row.kernel for row in profile.passes or () if row.copy_ms] or rung == "baseline"
    assert trace.stat().st_size > 1000 and "one of each kind" in result.output
    assert_whole(profile, path)
