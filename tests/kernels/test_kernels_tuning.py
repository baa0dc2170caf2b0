"""The tuner: what it tries can run, what it prints can be pasted, and without a GPU it says so."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from kernels import choices
from kernels.choices import DIRECTIONS, TABLE, Choice, Key, choose
from kernels.tuning import __main__ as tuning
from kernels.tuning import timing
from tests.support import committed, programs

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("size", tuning.SHAPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_candidates_are_what_triton_and_a_multiprocessor_take(direction, size, itemsize):
    found = tuning.candidates(direction, size, itemsize)
    assert len(found) == len(set(found))
    for choice in [*found, *TABLE.values()]:
        assert choice.tile & (choice.tile - 1) == 0
        assert choice.columns <= choice.tile
        assert choice.per_sm * choice.warps <= 64  # resident warps of a multiprocessor
        assert direction == "forward" or choice.per_sm or choice not in found  # sums need few programs


def test_what_is_reported_is_a_row_of_the_table():
    key, choice = Key("modulate", "forward", 2, "nhwc", 90, "large"), Choice(2048, 512, 4)
    row = {"choice": choice._asdict(), "current": True, "all_shapes": True, "share": 0.9}
    text = tuning.report(key, [row | {"runs": [{"shape": (8, 64, 256, 256), "share": 0.9}]}])
    assert eval("{\n" + text + "\n}", {"Key": Key, "Choice": Choice}) == {key: choice}


FILES = {"H200": "nvidia-h200-tuning.json", "H200_MEDIUM": "nvidia-h200-tuning-medium-backward.json"}


def measured(file: str) -> dict[Key, list[dict]]:
    """Return the rows of a file behind the measured rows, by key."""
    found: dict[Key, list[dict]] = {}
    for row in json.loads(committed.file(f"results/kernels/{file}").read_text())["timed"]:
        found.setdefault(Key(**row["key"]), []).append(row)
    return found


def test_rows_of_a_gpu_are_what_was_measured_best_there():
    """And the shares in the comments beside them are those of the file."""
    source = (ROOT / "kernels/choices.py").read_text()
    said = re.findall(r'Key\("(\w+)", "(\w+)", \*(\w+)\): .*# ([\d.]+)%, before ([\d.]+)%', source)
    assert {Key(op, direction, *getattr(choices, where)) for op, direction, where, *_ in said} == {
        key for key in TABLE if key.architecture is not None
    }
    for op, direction, where, share, before in said:
        key = Key(op, direction, *getattr(choices, where))
        rows = measured(FILES[where])[key]
        best, current = max(rows, key=complete), next(row for row in rows if row["current"])
        assert Choice(**best["choice"]) == TABLE[key]
        assert (float(share), float(before)) == (
            round(100 * best["share"] + 1e-9, 1),
            round(100 * current["share"] + 1e-9, 1),
        )
        assert best["share"] > 1.01 * current["share"]


def complete(row: dict) -> float:
    """The share of a row that ran at every shape."""
    return row["share"] if row["all_shapes"] else 0.0


def test_shares_of_the_files_follow_from_their_times():
    for file in (*FILES.values(), "nvidia-h200-tuning-medium.json"):
        for row in (row for rows in measured(file).values() for row in rows):
            shares = [run["copy_microseconds"] / run["microseconds"] for run in row["runs"]]
            assert row["share"] == pytest.approx(math.prod(shares) ** (1 / len(shares)), abs=2e-4)


def test_the_yardstick_is_made_of_whole_pages_and_pieces_that_are_not_too_large():
    """134,743,040 bytes took 51 us on an H200, 136,331,264 took 34."""
    cpu = torch.device("cpu")
    assert [piece.numel() for piece in timing.make_copy(2 * 351, cpu, page=10, largest=100)()] == [90] * 4
    for page in timing.PAGES:
        (piece,) = timing.make_copy(134_743_040, cpu, page, largest=384 << 20)()
        assert piece.numel() % page == 0 and 0 <= piece.numel() - 134_743_040 // 2 < page


def test_the_yardstick_is_the_fastest_way_to_copy(monkeypatch):
    """A slow one would make every kernel look fast: an H200 copied 269,488,128 bytes, whole pages, at 2.7 TB/s."""
    took = {(4096, 384 << 20): 3.0, (65536, 384 << 20): 2.0, (4096, 128 << 20): 1.0, (65536, 128 << 20): 4.0}
    monkeypatch.setattr(timing, "make_copy", lambda total, device, page, largest: (page, largest))
    monkeypatch.setattr(timing, "seconds", lambda calls: took[calls[0]])
    assert timing.copy_seconds(2**30, torch.device("cpu"), 3) == 1.0


def test_a_bench_times_what_it_is_given_and_the_table_s_where_that_is_nothing(monkeypatch):
    key, choice = Key("modulate", "forward", 2, "nhwc", 90, "large"), Choice(64, 16, 2)
    bench, taken = object.__new__(timing.Bench), []
    bench.taking = tuning.taking
    bench.shape, bench.calls, bench.copy, bench.bytes = (2, 3, 4, 4), [], 1.0, 8
    monkeypatch.setattr(timing, "seconds", lambda calls: taken.append(choose(*key)) or 2.0)
    assert [bench.run(each)["share"] for each in (choice, None)] == [0.5, 0.5]
    assert taken == [choice, choose(*key)] and choice != choose(*key)


def test_the_table_s_choice_and_the_best_few_run_at_every_shape(monkeypatch):
    """With a bench that likes large tiles, in place of a GPU."""
    key = Key("modulate", "forward", 2, "nhwc", 90, "large")

    class Bench:
        def __init__(self, make, shape, dtype, taking):
            self.shape = shape

        def run(self, choice):
            return {"shape": self.shape, "share": choice.tile / 1e6}

    compiled = []
    monkeypatch.setattr(tuning, "Bench", Bench)
    monkeypatch.setattr(tuning, "compile_ahead", compiled.append)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    rows = list(tuning.tune(key, torch.bfloat16, math.inf))
    assert [row["current"] for row in rows] == [True] + [False] * (len(rows) - 1)
    assert Choice(**rows[0]["choice"]) == choose(*key) and len(compiled) == 2
    whole = [row for row in rows if row["all_shapes"]]
    assert rows[0] in whole and all(len(row["runs"]) == len(tuning.SHAPES["large"]) for row in whole)
    assert max(row["choice"]["tile"] for row in rows) in [row["choice"]["tile"] for row in whole]
    assert len(whole) - tuning.FINALISTS["large"] in (0, 1)
    assert len(list(tuning.tune(key, torch.bfloat16, -math.inf))) == 1  # no time: the table's choice alone


def test_a_bench_has_calls_on_buffers_of_its_own(monkeypatch):
    made = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(timing, "buffers", lambda *_: 3)
    monkeypatch.setattr(timing, "copy_seconds", lambda total, device, count: total * count)
    bench = timing.Bench(lambda: (made.append(0), 8), (2, 3, 4, 4), torch.float32, tuning.taking)
    assert (len(made), len(bench.calls), bench.bytes, bench.copy) == (3, 3, 8, 24)


def test_without_a_gpu_it_says_so_in_one_line():
    """Also by the name that each tuner had before, which says the new one first."""
    earlier = {"filter_": "filters", "planes_": "planes", "sums_": "sums"}
    moved = {f"kernels.{old}tuning": f"kernels.tuning.{new}" for old, new in earlier.items()}
    tuners = ["kernels.tuning", *moved.values(), *moved]
    ended = programs.run(*([tuner] for tuner in tuners), CUDA_VISIBLE_DEVICES="")
    for tuner, end in zip(tuners, ended, strict=True):
        first = f"{tuner} is {moved[tuner]} now\n" if tuner in moved else ""
        said = f"{first}{moved.get(tuner, tuner)}: no CUDA GPU that PyTorch can use\n"
        assert (end.returncode, end.stderr) == (2, said)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_it_finds_choices(direction, tmp_path, capsys):
    options = ["--op", "modulate", "--direction", direction, "--size", "small", "--minutes", "0.1"]
    assert tuning.main([*options, "--json", str(tmp_path / "tuning.json")]) == 0
    timed = json.loads((tmp_path / "tuning.json").read_text())["timed"]
    assert sum(row["current"] for row in timed) == 1
    assert all(0 < run["share"] < 2 for row in timed if row["current"] for run in row["runs"])
    assert "Choice(" in capsys.readouterr().out
