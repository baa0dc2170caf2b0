"""`ladder profile` from end to end: on the smallest workload each time, on `tiny` and on a GPU where they are run."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click.testing
import pytest
import torch
import yaml
from click.testing import CliRunner

from ladder.base.records import build, plain
from ladder.cli import main as cli
from ladder.publish.validation import validate
from ladder.studies.profile import largest, measure, report
from ladder.studies.profile.record import Category, Result
from stylegan_lite.config import Recipe, Workload
from tests.support.small import LEAST


class Done(NamedTuple):
    said: click.testing.Result
    found: dict[str, Any]
    out: Path


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
    said = invoke("channels_last", "-w", str(least), "--device", "cpu", "--out", str(out), "--trace", trace)
    assert said.exit_code == 0, said.output
    (path,) = out.glob("*.json")
    return Done(said, json.loads(path.read_text()), out)


def whole(found: dict[str, Any]) -> None:
    """Assert what every profile must hold: parts that sum to the work, few names and layers that are unknown."""
    total = sum(row["ms"] for row in found["categories"])
    for rows in (found["phases"], found["layers"]["rows"]):
        assert sum(row["ms"] for row in rows) == pytest.approx(total, rel=1e-3)
    assert {"G_main", "G_pl", "D_main", "D_r1"} <= {row["name"] for row in found["phases"]}
    other = next((row["share"] for row in found["categories"] if row["name"] == "other"), 0)
    assert other < 0.05 and found["layers"]["unknown"] < 0.05
    assert validate.check(found) is None


def test_a_profile_is_stored_with_all_its_tables(done: Done) -> None:
    found = done.found
    whole(found)
    assert (found["rung"], found["ladder"], found["protocol"]["of"]) == (
        "channels_last",
        "article",
        "operators",
    )
    named = {row["name"] for row in found["layers"]["rows"]}
    assert {"G mapping", "G 8x8 conv0", "D from_rgb", "D 8x8 conv1", "outside the layers"} <= named
    convolved = next(row for row in found["layers"]["rows"] if row["name"] == "D 8x8 conv1")
    assert 0 < convolved["backward_ms"] < convolved["ms"]
    runs = {row["name"]: row["runs"] for row in found["phases"]}
    assert (runs["G_main"], runs["G_pl"], runs["D_r1"]) == (1, 0.25, 0.0625)
    held = found["memory"]
    assert held["parameters"] > 0 and held["optimizer"] > held["buffers"] and held["graph_pools"] is None
    assert set(held["timeline"]) == {"G_main", "G_pl", "D_main", "D_r1"}
    assert held["peak_allocated"] > held["parameters"] + held["optimizer"]
    assert any(each["gradients"] for each in held["timeline"]["D_main"])


def test_the_report_says_what_stood_for_kernels(done: Done) -> None:
    for words in (
        "operators' own time on the CPU", "By category", "Heaviest operators", "By phase", "By layer", "Memory",
        "35-40%", "other is", "unknown layers", "CPU smoke test", "one of each kind",
    ):  # fmt: skip
        assert words in done.said.output, words
    (page,) = done.out.glob("*.md")
    assert "| category | ms a step |" in page.read_text() and page.read_text() == report.markdown(
        build(Result, done.found)
    )


def test_a_trace_opens_as_json_and_holds_steps_and_phases(done: Done) -> None:
    events = json.loads(gzip.decompress((done.out / "step.json.gz").read_bytes()))["traceEvents"]
    names = {each.get("name") for each in events}
    assert {"step: G_main, G_pl, D_main, D_r1", "step: G_main, D_main", "step: G_main, G_pl, D_main"} <= names
    assert {"G_main", "D_r1", "aten::convolution", "layer: D 8x8 conv1"} <= names


def test_a_profile_that_is_given_to_report_is_told_by_its_kind(done: Done) -> None:
    (path,) = done.out.glob("*.json")
    said = CliRunner().invoke(cli.main, ["report", str(path)])
    assert (
        said.exit_code == 2
        and "a result of the kind 'profile', which the .md file beside it shows" in said.output
    )


COUNTED = {
    "kernel": "",
    "us": 8.0,
    "sm": 76.0,
    "dram": 23.0,
    "l1_hits": 0.0,
    "sector_bytes": None,
    "sentence": "-",
}
FEW = {"us": 69224.2, "sm": 0.3, "dram": 0.4, "sector_bytes": 4.04, "blocks": 65, "sms": 132}
UNSEEN = dict.fromkeys(("us", "sm", "dram", "l1_hits", "sector_bytes")) | {
    "sentence": "no launch was counted"
}


def test_the_table_of_counters_fits_a_terminal(done: Done) -> None:
    long = "cutlass_bf16_s16816fprop_optimized_bf16_128x128_32x5_nhwc_align8"
    rows = [COUNTED | {"kernel": "fast"}, COUNTED | FEW | {"kernel": long}, COUNTED | FEW | {"kernel": long}]
    found = build(Result, done.found | {"counters": [*rows, COUNTED | UNSEEN | {"kernel": "gone"}]})
    assert validate.check(plain(found)) is None
    said = (
        report.text(found).partition("Counters of the heaviest kernels")[2].partition("\n\n")[0].splitlines()
    )
    assert max(map(len, said)) <= 160
    _, _, fast, few, again, *notes = said
    assert fast.startswith("fast  ") and fast.endswith("compute bound")
    assert few.startswith(f"{long}  ") and few.endswith("does not fill the GPU: 65 blocks for 132 SMs")
    assert again.startswith(f"{long} (2)")  # two kernels of a table never look alike
    assert notes[-1] == "- no counters of gone: no launch was counted"
    page = report.markdown(found).partition("## Counters")[2]
    assert "|---|---:|---:|---:|---:|---:|---|" in page and "| compute bound |" in page


def test_a_rate_of_next_to_nothing_is_left_out() -> None:
    row = Category(name="a", ms=2.0, share=1.0, launches=1.0, rate=0.0375, unit="TB/s", replaced=None)
    rates = [
        report._rate(replace(row, **more)) for more in ({}, {"ms": 0.001}, {"rate": 1.76}, {"rate": None})
    ]
    assert rates == ["37.5 GB/s", "", "1.76 TB/s", ""]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found["categories"][0].update(ms=1e6), "is not the sum of its families"),
        (lambda found: found["categories"][0].update(share=0.01), "the share of"),
        (lambda found: found["categories"][0].update(own_ms=1e3), "together they are not gpu_ms"),
        (lambda found: found["categories"].pop(), "categories: "),
        (lambda found: found["phases"][0].update(ms=1e6), "phases: their sum"),
        (lambda found: found["layers"]["rows"].pop(0), "layers: their sum"),
        (lambda found: found.update(gpu_ms=1e6), "gpu_ms"),
        (lambda found: found["heaviest"][0].update(phase_ms=1e6), "heaviest: longer"),
        (lambda found: found["heaviest"][0].update(ms=1e6, phase_ms=1.0), "heaviest: longer"),
        (lambda found: found.update(surprise=1), "unknown key"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(change: Any, words: str, done: Done) -> None:
    found = json.loads(json.dumps(done.found))
    change(found)
    assert words in (validate.check(found) or "")


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
    said = invoke(*arguments, "-w", str(least), "--device", "cpu")
    assert said.exit_code == 2 and words in said.output and "Traceback" not in said.output


def test_a_step_that_does_not_fit_is_one_line(
    least: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 99 GiB")

    monkeypatch.setattr(measure, "measure", full)
    said = invoke("baseline", "-w", str(least), "--device", "cpu", "--out", str(tmp_path / "o"))
    assert said.exit_code == 2 and "baseline on least does not fit into the memory" in said.output
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("during", ["the profile", "the search"])
def test_sigterm_ends_it_and_a_profile_that_is_made_stays(
    during: str, done: Done, least: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    whole = during == "the search"
    monkeypatch.setattr(measure, "profile", (lambda *_: build(Result, done.found)) if whole else ended)
    monkeypatch.setattr(largest, "find", ended)
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("SIGTERM was not handled"))
    try:
        said = invoke(
            "channels_last",
            "-w",
            str(least),
            "--device",
            "cpu",
            "--out",
            str(tmp_path / "o"),
            "--largest-batch",
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert said.exit_code == 130, said.output
    assert len([*tmp_path.glob("o/*.json")]) == whole and not [*tmp_path.glob("o/.*")]


def test_layers_that_cannot_be_recorded_leave_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    compiled = SimpleNamespace(recipe=SimpleNamespace(compile="default"))
    assert measure.eager(compiled, measure.memory.Static(0, 0, 0)).reason == measure.COMPILED
    broken = SimpleNamespace(recipe=SimpleNamespace(compile="off"), graphs={}, held={}, device="cpu")
    assert "the eager run failed" in (measure.eager(broken, measure.memory.Static(0, 0, 0)).reason or "")


@pytest.mark.parametrize(
    ("parts", "begins", "batch"), [(1, [2, 4, 8, 16, 32], 28), (2, [16, 32, 24], 24), (4, [16, 32], 16)]
)
def test_the_largest_batch_is_searched_with_fresh_processes(
    parts: int, begins: list[int], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro-batches hold whole groups: a batch that cannot be cut so is no answer, and is not tried."""
    tried: list[int] = []

    def trying(workers: Any, asked: Any, size: int, then: Any) -> str | None:
        tried.append(size)
        if size > 28:
            return "out of memory"
        then(SimpleWorker())
        return None

    class SimpleWorker:
        def call(self, do: str, **fields: Any) -> dict[str, Any]:
            return {"samples_s": [0.5, 0.5]}

    class NoPool:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(largest, "_tried", trying)
    monkeypatch.setattr(largest, "Pool", NoPool)
    workload = {**LEAST, "mbstd_group": 4, "batch": begins[0]}
    recipe = {} if parts == 1 else {"micro_batches": parts}
    asked = measure.Plan("least", workload, "article", "baseline", None, recipe, "cpu")
    found = largest.find(asked, lambda line: None)
    assert found.batch == batch and found.settled and found.images_per_s == 2 * batch
    assert tried[: len(begins)] == begins and tried[-1] == batch
    for size in tried:
        Recipe.from_dict(recipe).refuse_for(Workload.from_dict({**workload, "batch": size}))


@pytest.mark.gpu
@pytest.mark.parametrize("rung", ["baseline", "fused_act", "whole_step_graph"])
def test_a_profile_on_a_gpu(rung: str, least: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace" / "step.json.gz"
    trace.parent.mkdir()
    said = invoke(
        rung, "-w", str(least), "--device", "cuda", "--out", str(tmp_path / "out"), "--trace", str(trace)
    )
    assert said.exit_code == 0, said.output
    (path,) = (tmp_path / "out").glob("*.json")
    found = json.loads(path.read_text())
    assert found["protocol"]["of"] == "kernels" and found["layers"]["reason"] is None
    assert not [note for note in found["protocol"]["notes"] if "differ in their kernels" in note]
    assert [row["kernel"] for row in found["passes"] if row["copy_ms"]] or rung == "baseline"
    assert trace.stat().st_size > 1000 and "one of each kind" in said.output
    whole(found)
