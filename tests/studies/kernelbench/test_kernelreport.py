"""`ladder kernels`: verdicts, also by simulation, the table and the chart that follow from samples."""

import numpy as np
import pytest
from matplotlib.text import Text

from ladder.core.text import NO_TIME, less_than
from ladder.studies import frame
from ladder.studies.kernelbench import record, study
from ladder.studies.kernelbench.record import Samples
from ladder.studies.kernelbench.study import STUDY
from tests.report.test_chart import check_layout, lay_out
from tests.support import made_up_kernels
from tests.support.simulation import FAMILIES

CASE = made_up_kernels.cases(quick=True, ops=["modulate"])[0]


def judge(*factors, **more):
    """Return one forward row whose contenders are behind the copy by these factors."""
    slower = {
        name: factor for name, factor in zip(("ours", "plain", "compile"), factors, strict=False) if factor
    }
    return made_up_kernels.rows([made_up_kernels.row(CASE, "forward", slower=slower, **more)])[0]


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ((1.1, 3.0, 1.3), "ours faster"),
        ((1.3, 3.0, 1.1), "compile faster"),
        ((1.3, 1.1, 1.2), "plain faster"),
        ((1.3, 1.2, 1.1), "compile faster"),
        ((1.1, 3.0), "ours faster"),
        ((1.1,), "nothing to compare with"),
        ((None, 3.0), "not measured"),
    ],
)
def test_the_quickest_is_named(factors, verdict):
    assert judge(*factors).verdict == verdict


def test_a_winner_is_never_forced():
    assert judge(1.1, 3.0, 1.1, noise=0.01).verdict in ("ambiguous", "less than")
    assert judge(1.1, 3.0, 1.12, noise=0.05).verdict == "ambiguous"
    assert judge(1.1, 3.0, 1.1, noise=1e-5).verdict == "less than"
    assert judge(1.1, 3.0, 1.1015, noise=1e-6).verdict == "less than"  # below 0.25%: of no use


@pytest.mark.parametrize("repeats", [1, 2])
def test_fewer_than_three_repeats_decide_nothing(repeats):
    row = judge(1.1, 3.0, 1.3, repeats=repeats)
    plain = row.against["plain"]
    assert (row.verdict, row.floor, plain.interval, plain.below) == ("ambiguous", None, None, None)
    assert plain.times_faster == pytest.approx(3 / 1.1, rel=0.02)


def test_less_than_is_shown_with_its_number():
    timed = made_up_kernels.row(
        CASE, "forward", slower={"ours": 1.1, "plain": 3.0, "compile": 1.1}, noise=1e-4
    )
    file = made_up_kernels.file([timed, timed])
    rows = record.derive_rows(file)
    against, table = rows[0].against, study.make_table(file, rows)
    assert against["compile"].below == pytest.approx(max(abs(np.log(against["compile"].interval))))
    assert against["plain"].below is None
    assert table.rows[0][-1] == less_than(against["compile"].below) != "less than"
    assert "less than X%: 2" in table.notes


def test_noisy_twins_hide_what_they_differ_by():
    timed = made_up_kernels.row(CASE, "forward", noise=1e-4)
    cold = timed[1].samples_us.cold
    noisy = Samples(cold=cold | {"twin": [1.2 * t for t in cold["ours"]]})
    (row,) = made_up_kernels.rows([made_up_kernels.change(timed, samples_us=noisy)])
    assert row.floor > 0.18 and row.against["compile"].verdict != "faster"


def test_the_share_is_the_copys_time_by_the_ops():
    row = judge(1.25, 2.5, 2.0, noise=1e-6)
    assert row.share["ours"].median == pytest.approx(0.8, rel=1e-3)
    assert row.share["plain"].median == pytest.approx(0.4, rel=1e-3)
    low, high = row.share["ours"].interval
    assert low < row.share["ours"].median < high
    assert row.against["plain"].times_faster == pytest.approx(2.0, rel=1e-3)
    (double,) = made_up_kernels.rows([made_up_kernels.row(CASE, "double backward")])
    assert double.share == {} and double.verdict == "ours faster"


# --- verdicts by simulation: known gains are found, and equal contenders are not told apart ---------------------------

SD = 0.003  # of a contender from repeat to repeat
DRIFT = 0.02  # of all contenders of a repeat alike
NAMES = ("ours", "twin", "plain", "compile")
ROWS, REPEATS = 8, 5


def simulate(rng, family, gain=0.0):
    """Return the rows of one run. In each, ours is faster than plain and compile by `gain`, a log ratio."""
    rows = []
    for _ in range(ROWS):
        noise = np.array([FAMILIES[family](rng, REPEATS, SD) for _ in NAMES])
        logs = 3 + noise + rng.normal(0, DRIFT, REPEATS) + gain * np.array([[0.0], [0.0], [1.0], [1.0]])
        samples = Samples(cold=dict(zip(NAMES, np.exp(logs).tolist(), strict=True)))
        rows.append(made_up_kernels.change(made_up_kernels.row(CASE, "forward"), samples_us=samples))
    return made_up_kernels.rows(rows)


@pytest.mark.parametrize("family", ["normal", "heavy tail", "bimodal"])
def test_equal_contenders_are_not_told_apart(family):
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(150):
        verdicts = {each.verdict for row in simulate(rng, family) for each in row.against.values()}
        wrong += bool(verdicts & {"faster", "slower"})
    assert wrong <= 1  # Holm and the floor: far less than one run in twenty


@pytest.mark.parametrize("sign", [1, -1])
def test_two_percent_are_found_and_what_drifts_alike_hides_nothing(sign):
    rng = np.random.default_rng(1)
    rows = [row for _ in range(25) for row in simulate(rng, "normal", sign * np.log(1.02))]
    word, other = ("faster", "slower") if sign > 0 else ("slower", "faster")
    verdicts = [each.verdict for row in rows for each in row.against.values()]
    assert verdicts.count(word) >= 0.99 * len(verdicts) and other not in verdicts
    ratios = [each.times_faster for row in rows for each in row.against.values()]
    assert np.mean(ratios) == pytest.approx(1.02**sign, abs=0.0005)
    assert sign < 0 or sum(row.verdict == "ours faster" for row in rows) >= 0.98 * len(rows)


def test_holm_is_over_all_rows_of_a_run():
    rows = simulate(np.random.default_rng(2), "normal", np.log(1.02))
    levels = sorted(1 - each.confidence for row in rows for each in row.against.values())
    assert levels == pytest.approx([0.05 / left for left in range(2 * ROWS, 0, -1)])


# --- table and chart --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_gaps():
    cases = made_up_kernels.cases()
    rows = [
        made_up_kernels.row(case, direction, slower={"ours": 0.9 + index / 20, "plain": 4.0})
        for index, case in enumerate(cases)
        if index % 7 != 3
        for direction in case.directions
    ]
    return made_up_kernels.file(rows, cases[3::7])


def test_terminal_and_markdown_show_every_row_that_there_was_time_for(with_gaps):
    rows, cases = record.derive_rows(with_gaps), made_up_kernels.cases()
    reached = [row for row in rows if row.is_reached]
    printed, page = frame.render_terminal(STUDY, with_gaps, 200), frame.render_page(STUDY, with_gaps)
    table = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| op")]
    assert len(table) == len(reached) < len(rows)
    assert all(row.verdict in printed and "x".join(map(str, row.shape)) in printed for row in reached)
    assert printed.count(NO_TIME) == 1
    assert f"{len(cases[3::7])} of {len(cases)} cases not measured: {NO_TIME}" in printed


def test_a_reason_is_given_once_for_all_rows_that_share_it():
    reasons = ("0.3 s a call: slow", "1.8 s a call: slow")
    rows = [
        (case, record.Measured(direction="forward", reasons={"plain": why}, notes=["not quite cold: 7 MiB"]))
        for case, why in zip(made_up_kernels.cases(), reasons, strict=False)
    ]
    notes = next(iter(STUDY.list_tables(made_up_kernels.file(rows)))).notes
    assert (
        "n/a: plain PyTorch, forward: a slow call: slow (2 rows)" in notes
        and "not quite cold (2 rows)" in notes
    )


@pytest.mark.parametrize("name", ["gaps", "no time", "empty"])
def test_no_text_of_the_chart_overlaps_another_or_leaves_it(name, with_gaps):
    cases = made_up_kernels.cases() if name == "no time" else ()
    file = with_gaps if name == "gaps" else made_up_kernels.file([], cases)
    check_layout(*lay_out(lambda: study.draw_figure(file, record.derive_rows(file))))


def test_each_case_has_a_line_of_the_chart_of_its_own():
    """Four cases of `dense_group` have one shape, and differ in the width of the result alone."""
    file = made_up_kernels.file(
        [made_up_kernels.row(each, "forward") for each in made_up_kernels.cases(ops=["dense_group"])]
    )
    texts = {each.get_text() for each in study.draw_figure(file, record.derive_rows(file)).findobj(Text)}
    assert {f"dense_group 32x4x512 O{width}" for width in (512, 256, 128, 64)} <= texts
