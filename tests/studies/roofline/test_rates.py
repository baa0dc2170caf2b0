"""Rates on record: the highest counts, of this GPU only, and nothing that cannot be a rate."""

import json
from pathlib import Path

import pytest

from ladder.core import text
from ladder.core.errors import UserError
from ladder.studies.roofline import derive, study
from ladder.studies.roofline.derive import Op, Rate
from tests.support import committed

OP = Op("forward", (8, 64, 256, 256), (64, 64, 3, 3), 1, 1, "bf16")
KEY = OP.key("channels_last")
GPU = "nvidia-h200"
GOLDEN = Path(__file__).parents[1] / "goldens" / "roofline.json"
CEILINGS = {"copy": 4e12, "matmul bf16": 774e12, "matmul tf32": 395e12, "matmul fp32": 50e12}


def write_result(folder, name, recorded, gpu="NVIDIA H200", kind="roofline"):
    """Write the golden file with other rates of its day."""
    folder.mkdir(exist_ok=True)
    data = json.loads(GOLDEN.read_text())
    data["machine"] |= {"name": text.make_slug(gpu), "gpu": gpu}
    data["kind"] = kind
    data["observed"]["bf16"]["today"]["rates"] |= recorded
    (folder / name).write_text(json.dumps(data))


def test_the_highest_of_earlier_results_and_today_counts(tmp_path):
    write_result(tmp_path, f"{GPU}-article.json", {"copy": 4.5e12, KEY: 500e12})
    write_result(tmp_path, f"{GPU}-large.json", {"copy": 4.1e12, KEY: 600e12})
    rates = study.load_rates(GPU, tmp_path)
    assert rates.known["copy"] == Rate(4.5e12, f"{GPU}-article.json")
    rates.add({KEY: 550e12, "copy": 4.6e12}, "today")
    assert rates.known[KEY].value == 600e12, "a bad day must not raise the floor"
    assert rates.known["copy"].source == "today"
    assert {study.choose_rates(name, tmp_path).gpu for name in (GPU, "NVIDIA H200", "h200")} == {GPU}
    with pytest.raises(UserError, match=f"no rates are recorded of 'A100'; there are: {GPU}"):
        study.choose_rates("A100", tmp_path)
    with pytest.raises(UserError, match="no rate of 'matmul bf16' is recorded for nvidia-l4"):
        derive.Rates("nvidia-l4").time_convolution(OP, "nchw")


IMPOSSIBLE = [float("nan"), float("inf"), -1, True, "9e12", [9e12], None]


@pytest.mark.parametrize(
    ("value", "more"),
    [(9e12, {"gpu": "NVIDIA H200 NVL"}), (9e12, {"kind": "profile"}), *((value, {}) for value in IMPOSSIBLE)],
)
def test_another_gpus_rates_other_files_and_impossible_values_do_not_count(tmp_path, value, more):
    write_result(tmp_path, f"{GPU}-x.json", {"copy": value}, **more)
    (tmp_path / f"{GPU}-z.json").write_text("{")
    assert not study.load_rates(GPU, tmp_path).known


LARGE = Op("forward", (8, 128, 128, 128), (128, 128, 3, 3), 1, 1, "bf16").key("channels_last")
NARROW = Op("forward", (8, 32, 512, 512), (32, 32, 3, 3), 1, 1, "bf16")
THIN = Op("forward", (8, 64, 256, 256), (8, 64, 1, 1), 1, 0, "bf16")
RGB = Op("forward", (8, 64, 256, 256), (3, 64, 1, 1), 1, 0, "bf16")
FP32 = Op("forward", (8, 512, 64, 64), (512, 512, 3, 3), 1, 1, "fp32")
THIN_BYTES = 2 * (8 * 64 * 256**2 + 8 * 64 + 8 * 8 * 256**2)


@pytest.mark.parametrize(
    ("op", "rates", "expected"),
    [
        (OP, {KEY: 400e12}, OP.flops / 400e12),
        (OP, {KEY: 100e12}, OP.flops / 340e12),  # the least that this kind is known to reach
        (NARROW, {NARROW.key("channels_last"): 100e12}, NARROW.flops / 100e12),  # nothing is known of 32 channels
        (OP, {LARGE: 650e12}, OP.flops / 650e12),  # not measured: the highest of its kind, and of its layout
        (OP, {LARGE: 650e12, LARGE.replace("channels_last", "nchw"): 700e12}, OP.flops / 650e12),
        (THIN, {}, THIN_BYTES / 4e12),  # not measured: at least a copy of its tensors
        (RGB, {RGB.key("channels_last"): 2.6e12}, 2 * (3 * 64 + 8 * 3 * 256**2) / 4e12),  # however slow
        (FP32, {}, FP32.flops / 395e12),  # no class known: the matmul rate
    ],
)  # fmt: skip
def test_the_best_time_of_a_convolution(op, rates, expected):
    known = derive.Rates(GPU)
    known.add(CEILINGS | rates, "today")
    assert known.time_convolution(op, "channels_last")[0] == pytest.approx(expected)


def tune(folder, rows, gpu="NVIDIA H200", **fields):
    """Write a file of kernels.tuning beside a folder of rooflines; return its rate of a copy."""
    key = {
        "op": "x",
        "direction": "forward",
        "itemsize": 2,
        "layout": "nhwc",
        "architecture": 90,
        "size": "large",
    }
    choice = dict.fromkeys(("tile", "columns", "warps", "per_sm", "stages"), 1)
    row = {"key": key, "choice": choice, "current": True, "all_shapes": True, "share": 0.9}
    row["runs"] = [{"shape": [8]} | each for each in rows]
    content = {"schema": 1, "kind": "tuning", "gpu": gpu, "torch": "2.11", "timed": [row]} | fields
    (folder / "kernels").mkdir(exist_ok=True)
    (folder / "kernels" / "x-tuning.json").write_text(json.dumps(content))
    return study.load_rates(GPU, folder / "roofline").known.get("copy")


def test_copies_that_kernels_were_tuned_against_are_on_record(tmp_path):
    slow = {"bytes": 10**9, "copy_microseconds": 300.0}
    fast = {"bytes": 9 * 10**8, "copy_microseconds": 200.0}
    rows = [slow, fast, {"error": "out of memory"}]
    assert tune(tmp_path, rows) == Rate(pytest.approx(4.5e12), "x-tuning.json")
    assert tune(tmp_path, [slow | {"driver_copy_microseconds": 200.0}]).value == pytest.approx(5e12)


DAMAGE = [
    {"gpu": "NVIDIA L4"},
    {"gpu": 7},
    {"kind": ["tuning"]},
    {"kind": "a tuning"},
    {"timed": 3},
    {"more": 1},
]


@pytest.mark.parametrize(
    ("us", "damage"), [(1.0, each) for each in DAMAGE] + [(us, {}) for us in (0, *IMPOSSIBLE)]
)
def test_a_tuning_of_another_gpu_or_damaged_does_not_count(tmp_path, us, damage):
    assert tune(tmp_path, [{"bytes": 10**9, "copy_microseconds": us}], **damage) is None


def test_the_committed_results_hold_the_rates_of_the_h200():
    known = study.load_rates(GPU, committed.file("results/roofline")).known
    assert known["copy"].value > 4.24e12 and known["copy"].source.endswith("-tuning.json")
    assert all(known[name].value > rate for name, rate in CEILINGS.items())
