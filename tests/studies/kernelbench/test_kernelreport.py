"""`ladder kernels`: verdicts, tables and the chart that follow from samples."""

import functools
import warnings

import numpy as np
import pytest

from ladder.base.text import NO_TIME, less_than
from ladder.publish.pages import studies
from ladder.report import drawing, tables
from ladder.studies import frame
from ladder.studies.kernelbench import record, report
from ladder.studies.kernelbench.study import STUDY
from tests.support import made_up, made_up_kernels, typed

CASE = made_up_kernels.cases(quick=True, ops=["modulate"])[0]


def judged(*factors, **more):
    """Verdict of one forward row whose contenders are behind the copy by these factors."""
    slower = dict(zip(("ours", "plain", "compile"), factors, strict=False))
    rows = [made_up_kernels.row(CASE, "forward", slower={k: v for k, v in slower.items() if v}, **more)]
    return made_up_kernels.result(rows).rows[0]


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
    assert judged(*factors).verdict == verdict


def test_a_winner_is_never_forced():
    assert judged(1.1, 3.0, 1.1, noise=0.01).verdict in ("ambiguous", "less than")
    assert judged(1.1, 3.0, 1.12, noise=0.05).verdict == "ambiguous"
    assert judged(1.1, 3.0, 1.1, noise=1e-5).verdict == "less than"
    assert judged(1.1, 3.0, 1.1015, noise=1e-6).verdict == "less than"  # below 0.25%: of no use


@pytest.mark.parametrize("repeats", [1, 2])
def test_fewer_than_three_repeats_decide_nothing(repeats):
    row = judged(1.1, 3.0, 1.3, repeats=repeats)
    assert row.verdict == "ambiguous" and row.floor is None
    assert row.against["plain"].interval is None and row.against["plain"].below is None
    assert row.against["plain"].times_faster == pytest.approx(3 / 1.1, rel=0.02)


def test_less_than_is_shown_with_its_number():
    row = judged(1.1, 3.0, 1.1, noise=1e-4)
    below = row.against["compile"].below
    assert below == pytest.approx(max(abs(np.log(row.against["compile"].interval))))
    assert row.against["plain"].below is None
    assert report.describe_verdict(row) == less_than(below) != "less than"
    timed = made_up_kernels.row(
        CASE, "forward", slower={"ours": 1.1, "plain": 3.0, "compile": 1.1}, noise=1e-4
    )
    result = made_up_kernels.result([timed, timed])
    assert "less than X%: 2" in report.list_remarks(result)
    assert studies._kernel_cells(result.rows)[3] == "2"  # comparisons


def test_noisy_twins_hide_what_they_differ_by():
    timed = made_up_kernels.row(CASE, "forward", noise=1e-4)
    cold = timed[1].samples_us.cold
    noisy = record.Samples(cold=cold | {"twin": [1.2 * t for t in cold["ours"]]})
    (row,) = made_up_kernels.result([made_up_kernels.change(timed, samples_us=noisy)]).rows
    assert row.floor > 0.18
    assert row.against["compile"].verdict != "faster"


def test_the_share_is_the_copys_time_by_the_ops():
    row = judged(1.25, 2.5, 2.0, noise=1e-6)
    assert row.share["ours"].median == pytest.approx(0.8, rel=1e-3)
    assert row.share["plain"].median == pytest.approx(0.4, rel=1e-3)
    low, high = row.share["ours"].interval
    assert low < row.share["ours"].median < high
    assert row.against["plain"].times_faster == pytest.approx(2.0, rel=1e-3)
    (double,) = made_up_kernels.result([made_up_kernels.row(CASE, "double backward")]).rows
    assert double.share == {} and double.verdict == "ours faster"


@functools.cache  # the intervals of all rows take seconds
def whole():
    return made_up_kernels.file()


@functools.cache
def with_gaps():
    cases = made_up_kernels.cases()
    rows = [
        made_up_kernels.row(case, direction, slower={"ours": 0.9 + index / 20, "plain": 4.0})
        for index, case in enumerate(cases)
        if index % 7 != 3
        for direction in case.directions
    ]
    return made_up_kernels.file(rows, cases[3::7])


@functools.cache
def nothing():
    return made_up_kernels.file([], made_up_kernels.cases())


RESULTS = [whole, with_gaps, nothing, lambda: made_up_kernels.file([])]


@pytest.mark.parametrize("make", RESULTS)
def test_terminal_and_markdown_show_every_row_that_there_was_time_for(make):
    file = make()
    reached = record.list_reached(STUDY.derive(file))
    printed, page = frame.render_terminal(STUDY, file, 200), frame.render_page(STUDY, file)
    table = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| op")]
    assert len(table) == len(reached)
    for row in reached:
        assert row.verdict in printed and "x".join(map(str, row.shape)) in printed


def test_what_is_missing_says_why_once():
    said = "\n".join(report.list_remarks(STUDY.derive(with_gaps())))
    cases = made_up_kernels.cases()
    assert f"{len(cases[3::7])} of {len(cases)} cases not measured: {NO_TIME}" in said
    assert said.count(NO_TIME) == 1
    assert "least share from 128x128 on" in said and ", conv" not in said


def test_reasons_and_notes_that_differ_in_their_size_alone_are_one_line_with_the_span():
    slow = ("0.3 s a call: not repeated", "1.8 s a call: not repeated", "out of memory")
    rows = []
    for case, why, mib in zip(made_up_kernels.cases(), slow, (78, 162, None), strict=False):
        notes = [f"not quite cold: only {mib} MiB between two uses of a buffer"] if mib else []
        for index, direction in enumerate(case.directions):
            reasons = dict.fromkeys(record.CONTENDERS, why)
            measured = record.Measured(direction=direction, reasons=reasons, notes=[] if index else notes)
            rows.append((case, measured))
    said = report.list_remarks(made_up_kernels.result(rows))
    assert [line.partition(": ")[2].partition(" (")[0] for line in said if "s a call" in line] == [
        "0.3 to 1.8 s a call: not repeated"
    ]
    assert "not quite cold: only 78 to 162 MiB between two uses of a buffer (2 rows)" in said
    assert any("out of memory" in line for line in said)


def draw(file):
    return report.draw_figure(file, STUDY.derive(file))


@pytest.mark.parametrize("make", [pytest.param(RESULTS[0], marks=pytest.mark.exhaustive), *RESULTS[1:]])
def test_no_text_of_the_chart_overlaps_another_or_leaves_it(make):
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    with matplotlib.rc_context(drawing.STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure = draw(make())
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        found = [t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]
        texts = [t.get_text() for t in found]
        x0, y0, x1, y1 = np.array([t.get_window_extent(canvas.get_renderer()).extents for t in found]).T
    outside = (x0 < 0) | (y0 < 0) | (x1 > figure.bbox.width) | (y1 > figure.bbox.height)
    assert not outside.any(), texts[outside.argmax()]
    wide = np.minimum.outer(x1, x1) - np.maximum.outer(x0, x0)
    high = np.minimum.outer(y1, y1) - np.maximum.outer(y0, y0)
    pairs = np.argwhere(np.triu((wide > 2) & (high > 3), k=1))
    assert not len(pairs), " overlaps ".join(repr(texts[i]) for i in pairs[0])


def test_each_case_has_a_line_of_the_chart_of_its_own():
    """Four cases of `dense_group` have one shape, and differ in the width of the result alone."""
    from matplotlib.text import Text

    made = [made_up_kernels.row(case, "forward") for case in made_up_kernels.cases(ops=["dense_group"])]
    figure = draw(made_up_kernels.file(made))
    told = {each.get_text() for each in figure.findobj(Text)}
    assert {f"32x4x512 O{width}" for width in (512, 256, 128, 64)} <= told


def test_the_same_result_gives_the_same_picture():
    def small(factor):
        slower = {"ours": factor, "plain": 4.0, "compile": 1.5}
        return made_up_kernels.file([made_up_kernels.row(CASE, "forward", slower=slower)])

    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        first = STUDY.draw(small(1.1), kind)
        assert first.startswith(start) and STUDY.draw(small(1.1), kind) == first
        assert first != STUDY.draw(small(1.2), kind)


def test_a_pipe_gets_no_colours_whatever_the_environment_says(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    tables.print_table(typed.typed(made_up.gpu_run()))
    printed = capsys.readouterr().out
    assert printed.strip() and "\x1b" not in printed
