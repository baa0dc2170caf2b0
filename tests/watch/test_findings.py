"""Findings that only a GPU shows, on made-up observations; and the report in its three forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import kernels
from ladder.core.records import read_record
from ladder.watch.findings import FINDINGS, Observation, list_findings
from ladder.watch.inside import ladder_watch
from tests.support.commands import call, refused

WGRAD = "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc"
SGEMM = "ampere_sgemm_128x64_nn"


def make_row(us: float, **fields: Any) -> dict[str, Any]:
    row = {
        "op": "aten::mul", "top": "aten::mul", "kernel": "vectorized_elementwise_kernel<4, MulFunctor>",
        "dtype": "bfloat16", "line": "train.py:10", "outer": "train.py:30", "via": "", "phase": 0, "order": 0,
        "note": "", "owner": -1, "unused": False, "calls": 4,
    }  # fmt: skip
    return {**row, **fields, "us": us}


ADAM = {"name": "Adam", "line": "train.py:34", "tensors": 20, "fused": True, "capturable": True, "calls": 4,
        "backward": ["train.py:33"]}  # fmt: skip


def make_observation(**fields: Any) -> dict[str, Any]:
    """Return the observation of a clean training on a GPU: a step of 10 ms, of which 4 were profiled."""
    return {
        "what": "watch", "version": 1, "torch": "2.11.0", "python": "3.12.1", "gpu": "NVIDIA H100",
        "cores": 16, "capability": 9, "matmul": "tf32", "convolution": "tf32", "anomaly": False, "benchmark": True,
        "blocking": False, "walls_ms": [10.0] * 40, "window": 4, "busy_cores": 1.1,
        "idle": [{"phase": 0, "busy_us": 38_000.0, "idle_us": 2000.0, "kernels": 800}], "idle_steps": 4,
        "optimizers": [ADAM], "loaders": [], "scalers": [], "parallels": [],
        "dropped": [], "graphs": {}, "unowned": 0, "rows": [make_row(1000.0)], "synchronizations": [],
        "empty_caches": {}, "compiled": {}, "breaks": {}, "retries": 0, "lines": {"train.py:10": "x = x * 2"}, **fields,
    }  # fmt: skip


SYNC = {"call": "item", "line": "train.py:12", "via": "", "on_gpu": True, "calls": 4, "us": 8000.0}
PARALLEL = {"line": "train.py:5", "finds_unused": False, "bucket_mib": 25.0, "gradients_mib": 100.0}
# what is seen -> the one finding, its line, and the milliseconds of a step at stake
CASES: list[tuple[dict[str, Any], str, list[str], float | None]] = [
    ({"rows": [make_row(8000.0, kernel=SGEMM, op="aten::mm", dtype="float32")], "matmul": "ieee"},
     "ieee_products", ["train.py:10"], 2.0),
    ({"rows": [make_row(16000.0, kernel=WGRAD, op="aten::convolution_backward", dtype="float32")]},
     "full_precision", ["train.py:10"], 4.0),
    ({"rows": [make_row(8000.0, kernel="void nchwToNhwcKernel<float>", line="net.py:3")]},
     "layout_conversions", ["net.py:3"], 2.0),
    ({"idle": [{"phase": 0, "busy_us": 16_000.0, "idle_us": 24_000.0, "kernels": 12_000}]},
     "idle_gpu", ["train.py:34"], 6.0),
    ({"synchronizations": [SYNC]}, "synchronizations", ["train.py:12"], 0.5),  # for so long the GPU waits
    ({"rows": [make_row(8000.0, kernel="Memcpy HtoD (Pageable -> Device)")]}, "pageable_copies", ["train.py:10"], 2.0),
    ({"rows": [make_row(8000.0, op="aten::mm", top="ConvolutionBackwardBackward0", line="net.py:3")]},
     "double_backward", ["net.py:3"], 2.0),
    ({"loaders": [{"line": "train.py:8", "workers": 64, "waits_ms": [0.1] * 20, "steps": 20}]},
     "too_many_workers", ["train.py:8"], None),
    ({"optimizers": [ADAM | {"reduced": 2.0}], "rows": [make_row(8000.0, op="c10d::allreduce_", kernel="nccl")]},
     "repeated_reductions", ["train.py:33"], 1.0),
    ({"rows": [make_row(9000.0, kernel=WGRAD)], "benchmark": False}, "cudnn_benchmark", ["train.py:10"], None),
    ({"rows": [make_row(9000.0, kernel=WGRAD)], "new_shapes": 0.9}, "cudnn_benchmark", ["train.py:10"], None),
    ({"retries": 3}, "allocator_retries", [], None),
    ({"parallels": [PARALLEL | {"bucket_mib": 1.0}]}, "small_buckets", ["train.py:5"], None),
    ({"busy_cores": 8.0}, "spinning_threads", [], None),
    ({"blocking": True}, "debug_modes", [], None),
    ({"walls_ms": [10.0 + 0.2 * number for number in range(60)], "idle": []}, "growing_step", [], None),
]  # fmt: skip
# near misses, none of which is a finding
INNOCENT: list[dict[str, Any]] = [
    {},
    {**CASES[6][0], "repaired": True},  # the double backward, by `fast_double_backward`
    {"rows": [make_row(300.0, kernel=SGEMM, op="aten::mm", dtype="float32")], "matmul": "ieee"},
    {"rows": [make_row(9000.0, kernel=WGRAD, op="aten::convolution_backward", dtype="bfloat16")]},
    {"rows": [make_row(9000.0, kernel="Memcpy HtoD (Pinned -> Device)")]},
    {"synchronizations": [SYNC | {"via": "grad_scaler"}, SYNC | {"calls": 1}]},
    {"parallels": [PARALLEL]},
    {"optimizers": [ADAM | {"reduced": 1.1}]},
    {"rows": [make_row(9000.0, kernel=WGRAD)], "new_shapes": 0.2},
    {"rows": [make_row(9000.0, kernel=WGRAD)], "benchmark": False, "new_shapes": 0.2},
    {"rows": [make_row(9000.0, kernel=WGRAD)], "benchmark": None, "new_shapes": 0.9},
    {
        "loaders": [{"line": "train.py:8", "workers": 8, "waits_ms": [9.0] * 20, "steps": 20}]
    },  # the GPU is busy
    {"walls_ms": [10.0, 14.0, 9.0, 30.0] * 15, "idle": []},
    {"walls_ms": [10.0] * 50 + [90.0] * 10},
    {"graphs": {"train.py:20": [3, 9, 3, 9]}},
    {"dropped": [{"owner": 0, "phase": 0, "count": 60, "steps": 20}]},
]


def read_observation(**fields: Any) -> Observation:
    return read_record(Observation, make_observation(**fields))


@pytest.mark.parametrize(("fields", "name", "where", "ms"), CASES, ids=[case[1] for case in CASES])
def test_a_loss_is_found_with_its_line_and_the_time_at_stake(
    fields: dict[str, Any], name: str, where: list[str], ms: float | None
) -> None:
    (finding,) = list_findings(read_observation(**fields))
    assert (finding.id, finding.where, finding.ms) == (name, where, None if ms is None else pytest.approx(ms))


@pytest.mark.parametrize("fields", INNOCENT)
def test_what_is_no_loss_is_no_finding(fields: dict[str, Any]) -> None:
    assert list_findings(read_observation(**fields)) == []


def test_a_process_that_repairs_its_double_backward_is_known() -> None:
    assert not ladder_watch.is_repaired(torch)
    with kernels.fast_double_backward():
        assert ladder_watch.is_repaired(torch)
    assert not ladder_watch.is_repaired(torch)


def test_the_largest_loss_comes_first_and_each_is_shown_in_every_form(tmp_path: Path) -> None:
    rows = [
        *CASES[0][0]["rows"],
        *CASES[6][0]["rows"],
        make_row(400.0, op="aten::bmm", dtype="float32", kernel=SGEMM),
    ]
    rows[0], rows[1] = rows[0] | {"us": 4000.0}, rows[1] | {"us": 12_000.0}
    path = tmp_path / "watch.json"
    path.write_text(json.dumps(make_observation(rows=rows, matmul="ieee", retries=2)))
    shown = json.loads(call("watch", "--report", path, "--json").stdout)
    assert [each["id"] for each in shown["findings"]] == [
        "double_backward",
        "ieee_products",
        "allocator_retries",
    ]
    assert shown["step_ms"] == 10.0 and shown["findings"][0]["share"] == pytest.approx(0.3)
    page = tmp_path / "page.html"
    text = call("watch", "--report", path, "--html", page).stdout
    html = page.read_text()
    for words in ("net.py:3", "ladder export out --ops conv2d", "3.00 ms of a step, 30%"):
        assert words in text and words in html
    assert "x = x * 2" in text


def test_every_finding_names_a_rung_or_a_mistake_of_this_project_or_none() -> None:
    listed = json.loads(call("list", "--json").stdout)["rungs"]
    known = {each if isinstance(each, str) else each["name"] for each in listed}
    from ladder.plan import beside, modes

    known |= {*beside.load_beside(modes.MISTAKES).entries}
    assert {advice.rung for advice in FINDINGS.values()} - known == {""}


def test_wrong_requests_are_one_line(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"what": "run"}')
    assert "runs no command" in refused("watch", "--report", other, "--", "python", "train.py")
    assert "other.json: what: 'run'" in refused("watch", "--report", other)
    assert "go with --report" in refused("watch", "--json", "--", "python", "train.py")
