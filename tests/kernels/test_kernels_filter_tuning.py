"""The tuner of filters: what it tries computes, what it prints can be pasted, and without a GPU it says so."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from kernels.tuning import filters as tuning
from kernels.upfirdn import filtered_act_launch as fused
from kernels.upfirdn.upfirdn2d import Config
from tests.support import committed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("nhwc", [True, False])
@pytest.mark.parametrize("name", tuning.NAMES)
def test_candidates_and_the_one_in_force_are_configurations_that_cover(name, nhwc):
    found = [*tuning.candidates(name, nhwc), tuning.in_force(name, nhwc, (9, 0))]
    assert len(found[:-1]) == len(set(found[:-1]))
    strips = [config for config in found if isinstance(config, fused.Strip)]
    assert bool(strips) == (nhwc and name not in tuning.MODES)
    assert all(strip.width >= 16 and strip.block_c >= 16 for strip in strips)
    assert not any(isinstance(config, fused.Strip) for config in tuning.candidates(name, nhwc, short=False))
    up = tuning.MODES.get(name, {}).get("up", 1)
    medium = tuning.medium_candidates(name) if nhwc and name in tuning.MODES else []
    assert len(medium) == len(set(medium))
    for config in (config for config in [*found, *medium] if config not in strips):
        threads = config.warps * 32
        assert config.rows % up == config.cols % up == 0 and math.log2(threads * config.width).is_integer()
        assert config.registers is None or config.registers * threads <= 65536


def test_the_rows_of_medium_maps_are_what_was_measured_best():
    """And the shares in the comments beside them are those of the file."""
    rows = json.loads(committed.file("results/kernels/nvidia-h200-filter-tuning-medium.json").read_text())[
        "timed"
    ]
    source = (ROOT / "kernels/upfirdn/upfirdn2d.py").read_text()
    said = re.findall(r'\("medium", True, (\d), (\d)\): Config\(.*# ([\d.]+)%, before ([\d.]+)%', source)
    assert len(said) == sum(key[0] == "medium" for key in tuning.plain.CONFIGS) == 3
    names = {("1", "1"): tuning.PAIR, ("2", "1"): "upfirdn2d up", ("1", "2"): "upfirdn2d down"}
    for up, down, share, before in said:
        timed = [row for row in rows if row["kernel"] == f"{names[up, down]} medium"]
        most = max(len(row["runs"]) for row in timed)
        best = max((row for row in timed if len(row["runs"]) == most), key=tuning.share)
        (current,) = (row for row in timed if row["current"])
        assert Config(**best["config"]) == tuning.plain.CONFIGS["medium", True, int(up), int(down)]
        shares = [f"{100 * tuning.share(row):.1f}" for row in (best, current)]
        assert [share, before] == shares and tuning.share(best) > 1.01 * tuning.share(current)


def test_what_is_reported_is_a_row_of_the_table():
    config = Config(8, 2, 1, 64, 0.5, 4, 96)
    run = {"shape": (8, 64, 256, 256), "share": 0.9, "microseconds": 40.0}
    row = {"nhwc": True, "config": config._asdict(), "current": False, "runs": [run]}
    worse = row | {"current": True, "runs": [run | {"share": 0.5}]}
    for name, key in (
        ("filter_act", ("filter_act", True)),
        ("upfirdn2d up", (True, 2, 1)),
        ("upfirdn2d up medium", ("medium", True, 2, 1)),
    ):
        text = tuning.report([row | {"kernel": name}, worse | {"kernel": name}])
        assert eval("{\n" + text + "\n}", {"Config": Config}) == {key: config}
        assert "90%" in text and "now: 50.0%" in text
    strip = fused.Strip(32, 32, 64, 4)
    text = tuning.report([row | {"kernel": "filter_act", "config": strip._asdict()}, worse | {"kernel": "x"}])
    assert eval("{\n" + text + "\n}", {"Strip": fused.Strip}) == {"filter_act": strip}


def test_while_it_tunes_launches_take_the_configuration_and_afterwards_the_table_s():
    before = fused.config, fused._cover
    with tuning.forced():
        config = Config(4, 2, 0, 64, 0.5, 4, None)
        assert tuning.tried(lambda: None, config) is None
        assert fused.config("filter_act", True, (9, 0)) == config
        assert tuning.tried(lambda: 1 / 0, config) == "ZeroDivisionError: division by zero"
    assert (fused.config, fused._cover) == before


@pytest.mark.parametrize("name", tuning.NAMES)
def test_every_call_launches_its_kernel(name, monkeypatch):
    """On the CPU in Triton's interpreter, at a size for that."""
    from ladder.receipts.watch import launches

    if not torch.cuda.is_available():
        honest = {f: getattr(torch, f) for f in ("randn", "ones")}
        for f, function in honest.items():
            monkeypatch.setattr(torch, f, lambda *a, function=function, device=None, **k: function(*a, **k))
    call, moved = tuning.make_call(name, (1, 2, 4, 4), torch.float32, True)
    with launches() as seen:
        call()
    assert f"{name.split()[0]}_kernel" in seen and moved > 0


@pytest.mark.parametrize("size", tuning.SHAPES)
def test_the_best_few_go_to_every_shape_one_kernel_after_another(size, monkeypatch):
    """With a bench that likes high numbers of rows, in place of a GPU."""

    class Bench:
        def __init__(self, name, dtype, nhwc, shape):
            self.shape = shape

        def run(self, config):
            return {"shape": self.shape, "share": config.rows / 100, "microseconds": 1.0}

    monkeypatch.setattr(tuning, "bench_of", Bench)
    monkeypatch.setattr(tuning, "make_call", lambda *_: (lambda: None, 1))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    names = ["upfirdn2d", "upfirdn2d up"] if size == "medium" else ["act_filter", "upfirdn2d"]
    found = list(tuning.tune(names, torch.bfloat16, True, math.inf, 1, size))
    assert [rows[0]["kernel"] for rows in found] == [f"{n} medium" if size == "medium" else n for n in names]
    for rows in found:
        assert [row["current"] for row in rows] == [True] + [False] * (len(rows) - 1)
        whole = [row for row in rows if len(row["runs"]) == len(tuning.SHAPES[size])]
        assert len(whole) - tuning.FINALISTS[size] in (0, 1) and rows[0] in whole
        most = max(row["config"]["rows"] for row in rows)
        assert any(row["config"]["rows"] == most for row in whole)
        assert tuning.report(rows).count("\n") == 2


@pytest.mark.gpu
def test_it_finds_configurations(tmp_path, capsys):
    path = tmp_path / "tuning.json"
    options = ["--kernel", "act_filter", "--minutes", "0.5", "--processes", "4", "--json", str(path)]
    assert tuning.main(options) == 0
    timed = json.loads(path.read_text())["timed"]
    assert sum(row["current"] for row in timed) == 1
    assert all(0 < run["share"] < 2 for row in timed if row["current"] for run in row["runs"])
    (best,) = eval("{\n" + capsys.readouterr().out + "\n}", {"Config": Config, "Strip": fused.Strip}).values()
    assert best._asdict() in [row["config"] for row in timed]
