"""The tuner of sums: what it tries adds up, what it prints can be pasted, its files are accepted."""

import json
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from kernels.common import sums
from kernels.common.sums import Blocks, add_up
from kernels.tuning import sums as tuning
from kernels.tuning.timing import mean_us
from ladder.publish.validation import validate
from tests.support import committed

ROOT = Path(__file__).parents[2]
EVERY = tuning.candidates()


def test_candidates_are_what_triton_takes_and_those_in_force_are_among_them():
    assert len(EVERY) == len(set(EVERY)) > 20
    for how in EVERY:
        assert all(number & (number - 1) == 0 for number in how)
        assert 1 <= how.rows * how.columns / (32 * how.warps) <= 32
    mosts = [most for most, _ in sums.BLOCKS]
    assert mosts == sorted(mosts) and mosts[-1] == math.inf
    assert {how for _, how in sums.BLOCKS} <= set(EVERY)


def test_the_table_goes_by_the_most_rows(monkeypatch):
    few, many = EVERY[0], EVERY[1]
    monkeypatch.setattr(sums, "BLOCKS", ((64, few), (math.inf, many)))
    assert [sums.blocks(rows) for rows in (1, 64, 65, 10**6)] == [few, few, many, many]


def test_the_table_is_what_was_measured_best_but_for_noise():
    rows = json.loads(committed.file("results/kernels/nvidia-h200-sums-tuning.json").read_text())["timed"]
    for most, how in sums.BLOCKS:
        timed = {
            Blocks(**row["config"]): mean_us(row["runs"]) for row in rows if (row["most"] or math.inf) == most
        }
        assert timed[how] < 1.01 * min(timed.values())


@pytest.mark.parametrize("how", [Blocks(32, 8, 1), Blocks(64, 32, 8), EVERY[-1]], ids=str)
def test_every_way_adds_up_the_same(how):
    """Rows and channels that no block divides; sums by sample, by channel and over all programs in one launch."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    by_sample, by_channel, by_program = (torch.randn(n, device=device) for n in (3 * 70 * 37, 300 * 37, 331))
    outs = [torch.full(size, math.nan, device=device) for size in ((3, 37), (37,), ())]
    add_up((by_sample, by_channel, by_program), outs, (70, 300, 331), 37, how)
    wanted = by_sample.view(3, 70, 37).sum(1), by_channel.view(300, 37).sum(0), by_program.sum()
    for out, want in zip(outs, wanted, strict=True):
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
    outs[1].fill_(math.nan)
    add_up((None, by_channel, None), (None, outs[1], None), (0, 300, 0), 37, how)
    torch.testing.assert_close(outs[1], wanted[1], rtol=1e-4, atol=1e-4)


def row(how: Blocks, microseconds: float, current: bool = False, most: float | None = 64) -> dict:
    runs = [{"shape": shape, "microseconds": microseconds} for shape in tuning.SHAPES[64]]
    return {"most": most, "config": how._asdict(), "current": current, "runs": runs}


@pytest.mark.parametrize("most", [64, None])
def test_what_is_reported_is_a_row_of_the_table(most):
    rows = [row(EVERY[0], 2.5, current=True, most=most), row(EVERY[1], 2.0, most=most)]
    text = tuning.report(rows)
    assert eval("(\n" + text + "\n)", {"Blocks": Blocks, "math": math}) == ((most or math.inf, EVERY[1]),)
    assert "best: 2.00 us" in text and "now: 2.50 us" in text


def test_its_file_is_accepted_and_judged(tmp_path):
    good = {
        "schema": 1,
        "kind": "sums tuning",
        "gpu": "NVIDIA H200",
        "torch": "2.11.0",
        "timed": [row(EVERY[0], 2.5)],
    }
    path = tmp_path / "sums-tuning.json"
    path.write_text(json.dumps(good))
    assert validate.problem_of(path) is None
    good["timed"][0]["config"]["block"] = 8
    path.write_text(json.dumps(good))
    assert "timed[0].config: unknown key 'block'" in validate.problem_of(path)


@pytest.mark.gpu
def test_it_finds_rows(tmp_path, capsys):
    path = tmp_path / "tuning.json"
    assert tuning.main(["--json", str(path)]) == 0
    timed = json.loads(path.read_text())["timed"]
    assert sum(each["current"] for each in timed) == len(tuning.SHAPES)
    assert validate.problem_of(path) is None and "Blocks(" in capsys.readouterr().out
