"""The sentence on a rung: it says both clocks, whatever their verdicts are, and blames the CPU only where it waits."""

import itertools

import pytest

from ladder.report.sentences import sentence
from ladder.results.values import AMBIGUOUS, FASTER, LESS_THAN, NO_GAIN, SLOWER, TOO_FEW
from ladder.results.words import Seen, whole, word

GPU = {
    "faster": (Seen(FASTER, 1.13), "the GPU's work is 1.13x faster"),
    "slower": (Seen(SLOWER, 0.9), "the GPU's work is 1.11x slower"),
    "less": (Seen(LESS_THAN, 1.001, 0.004), "the GPU's work shows less than 0.41% difference"),
    "ambiguous": (Seen(AMBIGUOUS, 1.01, 0.02), "the change of the GPU's work stays ambiguous"),
    "few": (Seen(TOO_FEW, 1.2), "the GPU's work has too few generations for a verdict"),
    "none": (Seen(), "the GPU's time is unknown"),
}
WALL = {
    "faster": (Seen(FASTER, 1.84), "the step is 1.84x faster"),
    "slower": (Seen(SLOWER, 0.994), "the step is 0.6% slower"),
    "less": (Seen(LESS_THAN, 1.01, 0.0769), "the step shows less than 8% difference"),
    "ambiguous": (Seen(AMBIGUOUS, 1.1, 0.3), "the change of the step stays ambiguous"),
    "few": (Seen(TOO_FEW, 1.2), "the step has too few generations for a verdict"),
    "none": (Seen(), "the step has no verdict"),
}
LESS, LONGER, PACE = (
    ", because the GPU waits less",
    ", because the GPU waits longer",
    ", the CPU sets the pace",
)
# The verdicts themselves show that the waiting changed.
WHY = {
    ("slower", "faster"): LESS,
    ("less", "faster"): LESS,
    ("faster", "slower"): LONGER,
    ("less", "slower"): LONGER,
    ("faster", "faster"): ", because the GPU also waits less",  # 1.84x is more than 1.13x of work explains
}
SILENT = ("few", "none")  # without two answers nothing is explained


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("gpu", "wall"), [*itertools.product(GPU, WALL)])
def test_every_combination_says_both(gpu, wall, waits):
    said = sentence(GPU[gpu][0], WALL[wall][0], waits)
    if (gpu, wall) == ("none", "none"):
        expected = ""
    elif (gpu, wall) == ("few", "few"):
        expected = "too few generations for a verdict"
    else:
        why = PACE if waits else ""
        if gpu in SILENT or wall in SILENT:
            why = ""
        expected = f"{GPU[gpu][1]}; {WALL[wall][1]}{WHY.get((gpu, wall), why)}"
    assert said == expected
    assert all(len(clause.split()) <= 20 for clause in said.split(";"))


def test_a_step_that_changes_by_less_than_the_gpu_s_work_might_has_no_explanation():
    gpu = Seen(LESS_THAN, 1.004, 0.012)
    assert "because" not in sentence(gpu, Seen(FASTER, 1.01), waits=False)
    assert "because" in sentence(gpu, Seen(FASTER, 1.02), waits=False)


def test_the_word_of_a_table_has_its_number():
    assert word(Seen(LESS_THAN, 1.0, 0.00123)) == "less than 0.13%"  # rounded up: it is a bound
    assert word(Seen(LESS_THAN, 1.0, 0.69)) == "less than 100%"
    assert [word(Seen(each)) for each in (FASTER, AMBIGUOUS, NO_GAIN, "")] == [FASTER, AMBIGUOUS, NO_GAIN, ""]


@pytest.mark.parametrize(
    "before, after, total, interval, expected",
    [
        (148.2, 115.4, 0.92, (0.31, 2.7), "not decided"),  # medians and pairs of a noisy host point apart
        (148.2, 115.4, 1.3, (0.9, 1.9), "not decided"),
        (148.2, 115.4, 0.92, (0.86, 0.98), "not decided"),
        (148.2, 115.4, 0.92, None, "not decided"),
        (148.2, 115.4, 1.28, (1.2, 1.37), "1.28x"),
        (115.4, 148.2, 0.78, (0.7, 0.9), "0.78x"),
        (148.2, 115.4, 1.28, None, "1.28x"),
        (148.2, 148.2, 1.0, None, "1.00x"),
        (148.2, 115.4, None, None, ""),
        (None, 115.4, 1.28, None, ""),
    ],
)
def test_a_factor_stands_beside_two_times_only_if_it_is_decided_and_they_agree(
    before, after, total, interval, expected
):
    assert whole(before, after, total, interval) == expected
