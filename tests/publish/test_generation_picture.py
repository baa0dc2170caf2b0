"""The picture of a generation: there for both grounds, in the order of the protocol, without text over text."""

import re
from itertools import combinations

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from ladder.publish.pages import generation
from ladder.report import drawing
from ladder.report.themes import DARK, LIGHT
from tests.support import committed


def test_the_page_shows_it_on_light_and_on_dark_ground():
    page = (committed.ROOT / generation.PAGE).read_text(encoding="utf-8")
    shown = re.findall(r"images/(generation-\w+\.svg)", page)
    assert {*shown} == {"generation-light.svg", "generation-dark.svg"}
    assert all(
        (committed.ROOT / generation.FOLDER / name).read_bytes().startswith(b"<?xml") for name in shown
    )


def test_it_is_drawn_where_the_page_is_and_once(tmp_path):
    assert generation.write_pictures(tmp_path) == []
    (tmp_path / "docs").mkdir()
    (tmp_path / generation.PAGE).write_text("# A\n")
    assert [path.name for path in generation.write_pictures(tmp_path)] == [
        "generation-light.svg",
        "generation-dark.svg",
    ]
    assert generation.write_pictures(tmp_path) == []
    assert generation.render_picture(LIGHT) != generation.render_picture(DARK)


def test_a_pass_visits_each_process_once_and_a_profile_follows_every_visit():
    everyone = sorted(range(len(generation.PROCESSES)))
    assert [sorted(order) for order in generation.PASSES] == [everyone, everyone]
    assert sorted(generation.PROFILED) == everyone
    axes = generation.draw_figure(LIGHT).axes[0]
    colours = {name: matplotlib.colors.to_rgba(getattr(LIGHT, name)) for name in ("busy", "article")}
    begins = {
        name: [bar.get_x() for bar in axes.patches if bar.get_facecolor() == colour]
        for name, colour in colours.items()
    }
    assert len(begins["busy"]) == sum(map(len, generation.PASSES)) and len(set(begins["busy"])) == len(
        begins["busy"]
    )
    assert max(begins["busy"]) < min(begins["article"])


def test_no_text_overlaps_another():
    with matplotlib.rc_context(drawing.STYLE):
        figure = generation.draw_figure(LIGHT)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        boxes = [
            (text.get_text(), text.get_window_extent(canvas.get_renderer()))
            for text in figure.findobj(Text)
            if text.get_text().strip() and text.get_visible()
        ]
    for (one, a), (other, b) in combinations(boxes, 2):
        assert not a.overlaps(b), f"{one!r} overlaps {other!r}"
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for _, box in boxes)
