"""The staircase: what it says, for every kind of result, and that its text neither overlaps nor leaves the picture."""

import copy
import csv
import io
import json
import warnings
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image

from ladder.plan import catalog
from ladder.report import chart as charting
from ladder.report import drawing, tables
from ladder.report import view as viewing
from ladder.results.combine import series
from ladder.show.themes import DARK, LIGHT
from tests.support import made_up, two_clocks
from tests.support.typed import Reading, typed

chart = Reading(charting)
tables = Reading(tables)
series = Reading(series)
view = Reading(viewing).view

NO_GPU = dict.fromkeys(("gpu_ms", "gpu_gain", "gpu_verdict", "waiting_ms", "host_bound"))
DRAWN = {}  # drawing takes seconds, and tests only look at a picture


def judged():
    made = made_up.judged_run()
    return series.with_top(made, [made, made_up.judged_run("leave-one-out", set_to_none=25.29)])


def left_out():
    return made_up.judged_run("leave-one-out")


def nothing_measured():
    return made_up.result([made_up.rung(name) for name in made_up.H200])


def full():
    """Return the longest ladder by both clocks, each rung a little faster than the one before it."""
    made = two_clocks.run()
    for number, step in enumerate(catalog.load_ladder("full").rungs[8:]):
        names = {"name": step.name, "title": catalog.load_rung(step.name).title}
        by = 0.93 ** (number + 1)
        times = {"step_ms": 61.3 * by, "gpu_ms": 61.2 * by, "interval_ms": [61.0 * by, 61.6 * by]}
        record = copy.deepcopy(made["rungs"][-1]) | names | times
        made["rungs"].append(record | {"article_ms": None, "speedup_total": 160 / (61.3 * by)})
    assert len(made["rungs"]) == two_clocks.RUNGS
    return made


def held_up():
    """One process of a rung waited for half a minute: its interval is fifty times its bar."""
    run = judged()
    run["rungs"][1]["interval_ms"] = [1.0, 50 * run["rungs"][1]["step_ms"]]
    run["rungs"][1]["total_interval"] = [0.02, 90.0]
    return run


def lay_out(make):
    """Return (figure, its visible texts with their boxes in pixels)."""
    with matplotlib.rc_context(drawing.STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters the font lacks
        figure = make()
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
        return figure, [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in texts]


def check_layout(figure, texts):
    for text, box in texts:
        assert box.x0 >= 0 and box.y0 >= 0, text
        assert box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height, text
    for (one, a), (other, b) in combinations(texts, 2):
        wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert wide <= 1 or high <= 3, f"{one!r} overlaps {other!r}"  # boxes have some air around the letters


def drawn(result):
    key = json.dumps(result, sort_keys=True)
    if key not in DRAWN:
        DRAWN[key] = lay_out(lambda: charting.draw_figure(view(result)))
    return DRAWN[key]


def words(result):
    return "\n".join(text for text, _ in drawn(result)[1])


def bars(result):
    """Return the widths of each rung's bars in inches and the first bar's colour, by rung from the top."""
    found = {}
    for bar in drawn(result)[0].axes[0].patches:
        if 0.2 < bar.get_height() < 0.3:  # no swatch of the legend, nor the ground of a rung without a number
            found.setdefault(round(bar.get_y(), 3), []).append(bar)
    return [([bar.get_width() for bar in found[y]], found[y][0].get_facecolor()) for y in sorted(found)]


@pytest.mark.parametrize(
    "make",
    [
        made_up.gpu_run,
        made_up.checked_run,
        made_up.cpu_run,
        made_up.faulty_run,
        nothing_measured,
        held_up,
        lambda: two_clocks.run(mode="leave-one-out"),
        full,
        pytest.param(left_out, marks=pytest.mark.exhaustive),
        pytest.param(lambda: two_clocks.run(1), marks=pytest.mark.exhaustive),
    ],
)
def test_no_text_overlaps_another_or_leaves_the_picture(make):
    check_layout(*drawn(make()))


def test_it_says_what_was_measured_where_and_beside_what():
    said = words(made_up.gpu_run())
    for text in (
        "NVIDIA H200: 96.4 to 25.3 ms a step, 3.81x", "article: 256x256, batch 8", "A100", "2.62x", "3.09x",
        "29.6", "3.00x", "95% interval", "GPU waiting", "CUDA graphs", "not a target",
    ):  # fmt: skip
        assert text in said


def test_the_article_s_numbers_stand_beside_no_other_workload():
    """They are of 256x256, batch 8: beside batch 32 they would read as a comparison."""
    for name, batch in (("article", 8), ("article-b32", 32)):
        made = made_up.gpu_run()
        made["workload"] |= {"name": name, "batch": batch}
        for text in (tables.markdown(made), words(made)):
            assert ("2.62x" in text, "A100" in text) == (batch == 8, batch == 8)
        rows = csv.DictReader(io.StringIO(tables.csv_text([made])))
        (row,) = [row for row in rows if row["rung"] == "cuda_graphs"]
        assert bool(row["article_ms"]) == bool(row["article_speedup_total"]) == (batch == 8)


def test_a_picture_is_at_most_1600_pixels_wide_and_keeps_the_ground_of_its_theme():
    made = typed(full())
    light, dark = (Image.open(io.BytesIO(charting.render(made, "png", theme))) for theme in (LIGHT, DARK))
    assert light.width <= 1600 and light.height > 600 and light.size == dark.size
    assert light.getpixel((5, 5))[:3] == (255, 255, 255) and dark.getpixel((5, 5))[:3] == (0x12, 0x16, 0x1B)
    texts = [text for text in drawn(full())[0].findobj(Text) if text.get_text().strip()]
    assert all(text.get_fontsize() >= 7.5 for text in texts)


def test_a_bar_shows_what_the_gpu_works_and_what_it_waits():
    widths = [each for each, _ in bars(two_clocks.run())]
    scale = sum(widths[0]) / 160.0
    assert widths[1] == pytest.approx([93.0 * scale, 65.0 * scale])
    assert widths[7] == pytest.approx([61.2 * scale, 0.1 * scale])
    said = [text for text, _ in drawn(two_clocks.run())[1]]
    for text in ("93.0", "waits 65.0", "158", "1.13x faster", "less than 8.9%", "1.122-1.136"):
        assert text in said
    assert said.count("GPU") == said.count("step") == 7  # the baseline gains nothing


def test_an_interval_has_the_scale_of_the_bars():
    made = two_clocks.run()
    scale = sum(bars(made)[0][0]) / 160.0
    low, high = made["rungs"][0]["interval_ms"]
    lines = [line.get_xdata() for line in drawn(made)[0].axes[0].lines if len(line.get_xdata()) == 2]
    assert any(line[1] - line[0] == pytest.approx(scale * (high - low)) for line in lines)


def test_a_bar_tells_the_gpu_time_of_the_table_where_it_exceeds_the_step():
    """Both come from other cycles. The bar ends with the step, and the figures are those of the table."""
    made, note = two_clocks.run(), "GPU time is of other, profiled cycles, and may exceed the step's"
    assert note not in " ".join(words(made).split())
    made["rungs"][7] |= {"gpu_ms": 61.9, "waiting_ms": 0.0}
    widths = [each for each, _ in bars(made)]
    assert widths[7] == [pytest.approx(sum(widths[0]) * 61.3 / 160.0)]
    said = [text for text, _ in drawn(made)[1]]
    assert "61.9" in said and "61.3" in said and note in " ".join(words(made).split())


def test_unknown_gpu_time_is_not_drawn_as_work_of_the_gpu():
    made = two_clocks.run()
    made["rungs"][6] |= NO_GPU
    colours = [colour for _, colour in bars(made)]
    assert colours[6] != colours[5] == colours[7] and "GPU time unknown" in words(made)
    for rung in made["rungs"]:
        rung |= NO_GPU
    assert {len(widths) for widths, _ in bars(made)} == {1}
    assert "waiting" not in words(made) and "1.84x faster" in words(made)


def test_gaps_say_why_and_doubtful_runs_say_so():
    said = words(made_up.faulty_run())
    for text in ("oom", "CUDA out of memory", "not to be quoted", "interrupted", "Speedups refer to"):
        assert text in said
    assert "needs a CUDA GPU" in words(made_up.cpu_run()) and "no rung has a number" in words(
        nothing_measured()
    )
    said = words(judged())
    for text in ("Step time: noise floor", "captured rungs", "ADOPT", "gain at top"):
        assert text in said
    assert "all rungs but" in words(left_out()) and "oise floor" not in words(made_up.gpu_run())


def test_the_same_result_gives_the_same_bytes_whatever_the_users_settings():
    for kind in ("svg", "png"):
        first = chart.render(made_up.gpu_run(), kind)
        with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "other"}):
            assert chart.render(made_up.gpu_run(), kind) == first
    assert first != chart.render(made_up.cpu_run(), kind)


def test_a_strangers_text_is_drawn_as_it_stands():
    made = made_up.gpu_run()
    made["machine"]["gpu"] = "GPU $\\frac{$ <script>alert(1)</script> 日本 " * 6
    made["rungs"][3] = made_up.rung("fused_norm", status="failed", reason="$x_{ <b> & " * 60)
    root = ElementTree.fromstring(chart.render(made, "svg"))
    assert not [node for node in root.iter() if node.tag.rsplit("}")[-1] == "script"]
    figure, texts = drawn(made)
    assert [text for text, box in texts if box.x1 > figure.bbox.width] == []


def test_a_whole_that_is_not_decided_has_no_factor_in_the_title():
    """A title read "148 to 115 ms a step, 0.92x": a mean over pairs beside two medians."""
    run = judged()
    run["rungs"][0]["step_ms"], run["rungs"][-1]["step_ms"] = 148.0, 115.0
    run["rungs"][-1] |= {"speedup_total": 0.92, "total_interval": [0.31, 2.7]}
    assert "NVIDIA H200: 148 to 115 ms a step, not decided" in words(run)


def test_one_wide_interval_does_not_press_the_bars_flat():
    (calm, _), (wild, _) = bars(judged())[0], bars(held_up())[0]
    assert sum(wild) >= sum(calm) / 2
    assert "goes on" in words(held_up()) and "goes on" not in words(judged())
