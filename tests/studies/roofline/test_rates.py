"""Rates on record: the highest counts, of this GPU only, and nothing that cannot be a rate."""

import json
from pathlib import Path

import pytest

from ladder.base import text
from ladder.base.errors import UserError
from ladder.studies.roofline import derive, study
from ladder.studies.roofline.record import Op, Rate
from tests.support import committed

OP = Op("forward", (8, 64, 256, 256), (64, 64, 3, 3), 1, 1, "bf16")
KEY = OP.key("channels_last")
GPU = "nvidia-h200"
GOLDEN = Path(__file__).parents[1] / "goldens" / "roofline.json"


def result(folder, name, recorded, gpu="NVIDIA H200", kind="roofline"):
    """Write the golden file with other rates of its day."""
    folder.mkdir(exist_ok=True)
    data = json.loads(GOLDEN.read_text())
    data["machine"] |= {"name": text.slug(gpu), "gpu": gpu}
    data["kind"] = kind
    data["observed"]["bf16"]["today"]["rates"] |= recorded
    (folder / name).write_text(json.dumps(data))


def load(gpu, folder):
    """Return all rates of a GPU, the committed facts among them."""
    loaded = study.load_rates(gpu, folder)
    loaded.add_facts()
    return loaded


def seconds(loaded, op=OP, layout="channels_last"):
    return loaded.convolution(op, layout)[0]


def test_the_committed_facts_can_be_read():
    loaded = load(GPU, derive.FACTS.parent)
    assert loaded.known["copy"].value == 4.24e12 and loaded.known["matmul bf16"].value == 774e12
    assert loaded.known["matmul fp32"].source == "facts"
    assert {kind for group in loaded.ranges for kind in group.kinds} == {
        "forward",
        "input gradient",
        "weight gradient",
    }


def test_the_highest_of_facts_earlier_results_and_today_counts(tmp_path):
    result(tmp_path, f"{GPU}-article.json", {"copy": 4.5e12, KEY: 500e12})
    result(tmp_path, f"{GPU}-large.json", {"copy": 4.1e12, KEY: 600e12})
    loaded = load(GPU, tmp_path)
    assert loaded.known["copy"] == Rate(4.5e12, f"{GPU}-article.json")
    assert seconds(loaded) == pytest.approx(OP.flops / 600e12)
    loaded.add({KEY: 550e12, "copy": 4.6e12}, "today")
    assert seconds(loaded) == pytest.approx(OP.flops / 600e12), "a bad day must not raise the floor"
    assert loaded.known["copy"].source == "today"


def test_another_gpus_rates_and_other_files_do_not_count(tmp_path):
    result(tmp_path, f"{GPU}-x.json", {"copy": 9e12}, gpu="NVIDIA H200 NVL")
    result(tmp_path, f"{GPU}-y.json", {"copy": 9e12}, kind="profile")
    (tmp_path / f"{GPU}-z.json").write_text("{")
    assert load(GPU, tmp_path).known["copy"].value == 4.24e12


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, True, "9e12", [9e12], None])
def test_what_cannot_be_a_rate_does_not_count(tmp_path, value):
    result(tmp_path, f"{GPU}-x.json", {"copy": value})
    assert load(GPU, tmp_path).known["copy"] == Rate(4.24e12, "facts")


def test_a_measured_shape_has_its_own_rate_but_never_less_than_its_class(tmp_path):
    loaded = load(GPU, tmp_path)
    loaded.add({KEY: 400e12}, "today")
    assert loaded.convolution(OP, "channels_last") == (pytest.approx(OP.flops / 400e12), "today")
    loaded = load(GPU, tmp_path)
    loaded.add({KEY: 100e12}, "today")
    assert seconds(loaded) == pytest.approx(OP.flops / 340e12)
    narrow = Op("forward", (8, 32, 512, 512), (32, 32, 3, 3), 1, 1, "bf16")
    loaded.add({narrow.key("channels_last"): 100e12}, "today")
    assert seconds(loaded, narrow) == pytest.approx(narrow.flops / 100e12), "no facts of 32 channels"


def test_an_unmeasured_shape_gets_the_highest_rate_of_its_kind(tmp_path):
    other = Op("forward", (8, 128, 128, 128), (128, 128, 3, 3), 1, 1, "bf16")
    loaded = load(GPU, tmp_path)
    assert seconds(loaded) == pytest.approx(OP.flops / 540e12)
    loaded.add({other.key("channels_last"): 650e12}, "today")
    assert seconds(loaded) == pytest.approx(OP.flops / 650e12)
    loaded.add({other.key("nchw"): 900e12}, "today")
    assert seconds(loaded) == pytest.approx(OP.flops / 650e12), "another layout is another kind"


def test_an_unmeasured_convolution_takes_at_least_as_long_as_copying_its_tensors(tmp_path):
    thin = Op("forward", (8, 64, 256, 256), (8, 64, 1, 1), 1, 0, "bf16")
    moved = 2 * (8 * 64 * 256**2 + 8 * 64 + 8 * 8 * 256**2)
    assert seconds(load(GPU, tmp_path), thin) == pytest.approx(moved / 4.24e12)


def test_a_convolution_to_rgb_takes_what_rgb_takes_however_slow_it_was_measured(tmp_path):
    rgb = Op("forward", (8, 64, 256, 256), (3, 64, 1, 1), 1, 0, "bf16")
    loaded = load(GPU, tmp_path)
    loaded.add({rgb.key("channels_last"): 2.6e12}, "today")
    assert seconds(loaded, rgb) == pytest.approx(2 * (3 * 64 + 8 * 3 * 256**2) / 4.24e12)


def test_where_no_class_is_known_the_matmul_rate_is_the_ceiling(tmp_path):
    fp32 = Op("forward", (8, 512, 64, 64), (512, 512, 3, 3), 1, 1, "fp32")
    assert seconds(load(GPU, tmp_path), fp32) == pytest.approx(fp32.flops / 395e12)


@pytest.mark.parametrize("name", ["nvidia-h200", "NVIDIA H200", "h200"])
def test_a_gpu_may_be_named_as_people_do(name, tmp_path):
    assert study.choose_rates(name, tmp_path).gpu == GPU


def test_a_gpu_without_rates_is_refused_with_those_that_have_some(tmp_path):
    result(tmp_path, "nvidia-h100-article.json", {}, gpu="NVIDIA H100")
    with pytest.raises(UserError, match="nvidia-h100, nvidia-h200"):
        study.choose_rates("A100", tmp_path)
    with pytest.raises(UserError, match="no rate of 'matmul bf16' is recorded for nvidia-l4"):
        seconds(derive.Rates("nvidia-l4"))


def tuning(folder, rows, gpu="NVIDIA H200", **fields):
    """A file of kernels.tuning beside a folder of rooflines; returns that folder."""
    key = {"op": "x", "direction": "forward", "itemsize": 2, "layout": "nhwc", "architecture": 90}
    choice = dict.fromkeys(("tile", "columns", "warps", "per_sm", "stages"), 1)
    row = {
        "key": key | {"size": "large"},
        "choice": choice,
        "current": True,
        "all_shapes": True,
        "share": 0.9,
    }
    row["runs"] = [{"shape": [8]} | each for each in rows]
    content = {"schema": 1, "kind": "tuning", "gpu": gpu, "torch": "2.11", "timed": [row]} | fields
    (folder / "kernels").mkdir(exist_ok=True)
    (folder / "kernels" / "x-tuning.json").write_text(json.dumps(content))
    return folder / "roofline"


def test_copies_that_kernels_were_tuned_against_are_on_record(tmp_path):
    slow, fast = (
        {"bytes": 10**9, "copy_microseconds": 300.0},
        {"bytes": 9 * 10**8, "copy_microseconds": 200.0},
    )
    found = load(GPU, tuning(tmp_path, [slow, fast, {"error": "out of memory"}])).known["copy"]
    assert found == Rate(pytest.approx(4.5e12), "x-tuning.json")
    driver = {"bytes": 10**9, "copy_microseconds": 300.0, "driver_copy_microseconds": 200.0}
    assert load(GPU, tuning(tmp_path, [driver])).known["copy"].value == pytest.approx(5e12)
    assert load(GPU, tuning(tmp_path, [slow])).known["copy"] == Rate(4.24e12, "facts")


@pytest.mark.parametrize(
    "damage",
    [{"gpu": "NVIDIA L4"}, {"gpu": 7}, {"kind": ["tuning"]}, {"kind": "a tuning"}, {"timed": 3}, {"more": 1}],
)
def test_a_tuning_of_another_gpu_or_damaged_does_not_count(tmp_path, damage):
    folder = tuning(tmp_path, [{"bytes": 10**9, "copy_microseconds": 1.0}], **damage)
    assert load(GPU, folder).known["copy"] == Rate(4.24e12, "facts")


@pytest.mark.parametrize("us", [0, -1.0, "1", True, None, float("nan"), float("inf")])
def test_what_cannot_be_a_time_of_a_copy_does_not_count(tmp_path, us):
    folder = tuning(tmp_path, [{"bytes": 10**9, "copy_microseconds": us}])
    assert load(GPU, folder).known["copy"].value == 4.24e12


def test_the_committed_tunings_hold_a_faster_copy_than_the_facts():
    copy = load(GPU, committed.file("results/roofline")).known["copy"]
    assert copy.value > 4.24e12 and copy.source.endswith("-tuning.json")
