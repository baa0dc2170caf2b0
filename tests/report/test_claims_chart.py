"""The picture of the claims: each mark at its value, and no label on a mark or on another label."""

import pytest

from tests.report.test_chart import check_layout, lay_out
from tests.support import claims_chart

ROWS = [
    ("coalesced access beats strided", "8x", "45.4x"), ("a launch costs", "5-10 us", "6.54 us"),
    ("16 bits halve the memory", "0.5x", "0.14x"),
    ("a name that is far too long for the picture to hold it", "1x", "39x"),
    ("of the least that the axis shows", "39x", "1x"),
]  # fmt: skip


def test_labels_stand_beside_the_marks_and_each_mark_at_its_value() -> None:
    figure, texts = lay_out(lambda: claims_chart.draw(ROWS))
    check_layout(figure, texts)
    (axes,) = figure.axes
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    ticks = {line.get_xdata()[0] for line in axes.lines if line.get_marker() != "o"}
    _, one, ten = sorted(ticks)
    values = [10 ** float((line.get_xdata()[0] - one) / (ten - one)) for line in marks]
    assert values == pytest.approx([45.4 / 8, 6.54 / 7.5, 0.14 / 0.5, 39, 1 / 39])
    for line in marks:
        (x, y), reach = axes.transData.transform(line.get_xydata()[0]), 8 / 2 * figure.dpi / 72
        near = [text for text, box in texts if box.y0 < y + reach and box.y1 > y - reach]
        assert len(near) >= 2, "its name and its figures"
        assert not [t for t, box in texts if t in near and box.x0 < x + reach and box.x1 > x - reach]


def test_rows_are_those_of_the_documents_table_with_both_figures() -> None:
    table = "| claim | article | here | interval | verdict | details |\n|---|---|---|---|---|---|\n"
    table += (
        "| a launch costs | 5-10 us | 6.54 us | 6.30-6.88 us | holds | CPU |\n| b | | 1.09x | | holds | c |\n"
    )
    assert claims_chart.read_rows(table) == [("a launch costs", "5-10 us", "6.54 us")]
    assert len(claims_chart.read_rows(claims_chart.PAGE.read_text())) > 5
