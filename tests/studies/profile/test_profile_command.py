"""`ladder profile` from end to end: on the smallest workload each time, and on a GPU where there is one."""

from __future__ import annotations

import contextlib
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
from ladder.studies.profile import measuring
from ladder.studies.profile.record import Observed, Profile, share_of_other
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
def least(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("workload") / "least.yaml"
    path.write_text(yaml.safe_dump(LEAST))
    return str(path)


def profile_into(out: Path, rung: str, least: str, device: str) -> Done:
    trace = ("--trace", str(out / "step.json.gz"))
    result = invoke(rung, "-w", least, "--device", device, "--out", str(out), *trace)
    assert result.exit_code == 0, result.output
    (path,) = out.glob("*.json")
    return Done(result, STUDY.derive(frame.read_file(STUDY, path)), path)


@pytest.fixture(scope="module")
def done(least: str, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A profile of the smallest workload on the CPU, with a trace."""
    return profile_into(tmp_path_factory.mktemp("profile"), "channels_last", least, "cpu")


def assert_whole(done: Done) -> None:
    """Assert what every profile must hold: parts that sum to the work, few names and layers that are unknown."""
    profile = done.profile
    assert profile.layers is not None and profile.layers.reason is None
    for rows in (profile.phases, profile.layers.rows):
        total_ms = sum(row.ms for row in profile.categories)
        assert sum(row.ms for row in rows) == pytest.approx(total_ms, rel=1e-3)
    assert {"G_main", "G_pl", "D_main", "D_r1"} <= {row.name for row in profile.phases}
    assert share_of_other(profile.categories) < 0.05 and (profile.layers.unknown or 0) < 0.05
    assert validate.problem_of(done.path) is None
    assert "one step of each kind" in done.result.output


def test_a_profile_is_stored_with_all_its_parts(done: Done) -> None:
    assert_whole(done)
    profile = done.profile
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
    assert "Heaviest operators" in done.result.output and "CPU smoke test" in done.result.output


def test_a_trace_opens_as_json_and_holds_steps_and_phases(done: Done) -> None:
    events = json.loads(gzip.decompress((done.path.parent / "step.json.gz").read_bytes()))["traceEvents"]
    names = {each.get("name") for each in events}
    assert {"step: G_main, G_pl, D_main, D_r1", "step: G_main, D_main", "step: G_main, G_pl, D_main"} <= names
    assert {"G_main", "D_r1", "aten::convolution", "layer: D 8x8 conv1"} <= names


def test_a_step_faster_than_the_machine_is_refused() -> None:
    _, file = read("profile")
    step = msgspec.structs.replace(file.observed["step"].step, walls_ms=[0.01])
    forged = msgspec.structs.replace(file, observed={**file.observed, "step": Observed(step=step)})
    assert "faster than this machine" in (frame.find_problem(STUDY, forged) or "")


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
def test_an_impossible_request_is_one_line(arguments: list[str], words: str, least: str) -> None:
    result = invoke(*arguments, "-w", least, "--device", "cpu")
    assert result.exit_code == 2 and words in result.output and "Traceback" not in result.output


def test_a_step_that_does_not_fit_is_one_line(
    least: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 99 GiB")

    monkeypatch.setattr(measuring, "make_step", fail)
    result = invoke("baseline", "-w", least, "--device", "cpu", "--out", str(tmp_path / "o"))
    assert result.exit_code == 2 and "baseline on least does not fit into the memory" in result.output
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("during", ["the profile", "the search"])
def test_sigterm_ends_it_and_a_profile_that_is_made_stays(
    during: str, least: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    is_profiled = during == "the search"
    step = read("profile")[1].observed["step"].step
    monkeypatch.setattr(measuring, "profile_step", (lambda *_: step) if is_profiled else end)
    monkeypatch.setattr(measuring, "search_batch", end)
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("SIGTERM was not handled"))
    try:
        where = ("-w", least, "--device", "cpu", "--out", str(tmp_path))
        result = invoke("channels_last", *where, "--largest-batch")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.exit_code == 130, result.output
    (path,) = tmp_path.glob("*-partial.json")
    assert ("step" in json.loads(path.read_text())["observed"]) is is_profiled


@pytest.mark.parametrize(
    ("parts", "begins", "batch"), [(1, [2, 4, 8, 16, 32], 28), (2, [16, 32, 24], 24), (4, [16, 32], 16)]
)
def test_the_largest_batch_is_searched_with_fresh_processes(
    parts: int, begins: list[int], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro-batches hold whole groups: a batch that cannot be cut so is no answer, and is not tried."""
    tried: list[int] = []

    class FreshWorker:
        def call(self, do: str, **what: Any) -> Any:
            if do == "build":
                tried.append(what["workload"]["batch"])
                if tried[-1] > 28:
                    raise WorkerFailure("oom", "out of memory")
            return {"samples_s": [0.5, 0.5]}

        def close(self) -> None: ...
        def kill(self) -> None: ...

    pool = contextlib.nullcontext(SimpleNamespace(take=FreshWorker))
    monkeypatch.setattr(measuring, "Pool", lambda: pool)
    recipe: dict[str, Any] = {} if parts == 1 else {"micro_batches": parts}
    workload = {**LEAST, "mbstd_group": 4, "batch": begins[0]}
    options = SimpleNamespace(rung="baseline", seed=0)
    job = SimpleNamespace(workload=workload, device="cpu", machine={}, options=options)
    session: Any = SimpleNamespace(job=job, report=lambda line: None)
    search = measuring.search_batch(session, None, recipe).largest
    assert search is not None and search.settled and search.images_per_s == 2 * batch
    assert max(each.batch for each in search.tried if each.reason is None) == batch
    assert tried[: len(begins)] == begins and tried[-1] == batch
    for size in tried:
        Recipe.from_dict(recipe).refuse_for(Workload.from_dict({**workload, "batch": size}))


@pytest.mark.gpu
@pytest.mark.parametrize("rung", ["baseline", "fused_act", "whole_step_graph"])
def test_a_profile_on_a_gpu(rung: str, least: str, tmp_path: Path) -> None:
    done = profile_into(tmp_path, rung, least, "cuda")
    assert_whole(done)
    assert done.profile.protocol.of == "kernels"
    assert [row.kernel for row in done.profile.passes or () if row.copy_ms] or rung == "baseline"
